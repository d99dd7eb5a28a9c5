# `make demo` and `make test` are all the set-up there is: each makes .venv with this machine's
# Python if it is missing, installs what it needs, and goes on. Nothing outside this folder is
# written: temporary files and caches lie in .venv.

SHELL := /bin/sh
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
VENV := .venv
BIN := $(VENV)/bin
export TMPDIR := $(CURDIR)/$(VENV)/tmp
# The environment's LANGUAGE is gettext's; only `make demo LANGUAGE=en` is meant for us.
DEMO_LANGUAGE := $(if $(filter command line,$(origin LANGUAGE)),$(LANGUAGE),zh-TW)

.PHONY: help demo test check soak bench format clean

help:
	@echo "make demo    run the resume coach across restarts and a kill -9, offline"
	@echo "make demo LANGUAGE=en    the same in English"
	@echo "make test    run the tests"
	@echo "make check   format, lint, types and import directions"
	@echo "make soak    run the randomised tests with their full counts"
	@echo "make bench   measure against other stores and write docs/benchmarks.md (a quarter of an hour)"
	@echo "make format  rewrite the code in the project's format"

demo: $(VENV)/.installed-demo
	@PYTHONPATH=agents $(BIN)/python -m resume_coach.demo --language $(DEMO_LANGUAGE)

test: $(VENV)/.installed-dev
	@$(BIN)/python -m pytest -n 2 $(PYTEST)

soak: $(VENV)/.installed-dev
	@SOAK=1 $(BIN)/python -m pytest -n 2 $(PYTEST)

bench: $(VENV)/.installed-bench
	@$(BIN)/python -m benchmarks $(BENCH)

check: $(VENV)/.installed-dev
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(VENV)/.installed-dev
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache

# What is installed is written down in a file that is newer than pyproject.toml, so that the
# second call installs nothing.
$(VENV)/.installed-dev: EXTRAS := dev
$(VENV)/.installed-demo: EXTRAS := cli
$(VENV)/.installed-bench: EXTRAS := bench
$(VENV)/.installed-%: pyproject.toml | $(BIN)/python
	@echo "Installing the package into $(VENV) (about a minute, once) ..."
	@$(BIN)/python -m pip install --quiet --no-cache-dir --disable-pip-version-check \
		--editable '.[$(EXTRAS)]'
	@touch $@

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or later is needed; set PYTHON=/path/to/python" >&2; exit 1; }
	@echo "Creating $(VENV) with $$($(PYTHON) --version) ..."
	@$(PYTHON) -m venv $(VENV)
	@mkdir -p $(TMPDIR)
