"""`adk-memory policy`: a policy for people to read, and what in a database breaks it."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from adk_memory_ext import DurableSessionService
from adk_memory_ext.cli import main
from backends import BARE, OURS, Backend, Place

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result

SOURCE = """
from datetime import timedelta
from adk_memory_ext import StatePolicy, StateRule
POLICY = StatePolicy(
    rules=[
        StateRule("temp:*"),
        StateRule("step", type=int, max_bytes=5),
        StateRule("user:locale", type=str, sensitivity="personal", ttl=timedelta(days=180),
                  default="en"),
    ],
    undeclared="reject",
    scopes={"session", "user", "temp"},
    max_scope_bytes={"user": 2000},
    max_session_bytes=5000,
    on_refused="drop",
)
NOTHING = None
"""


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "house.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "house", raising=False)


def run(*arguments: str) -> Result:
    """Returns what `adk-memory policy` prints and its exit code."""
    return CliRunner().invoke(main, ["policy", *arguments])


def test_a_policy_is_shown_as_a_table_for_people() -> None:
    """One line a rule, in the order of the scopes, and the rest in sentences."""
    outcome = run("show", "house:POLICY")
    assert outcome.exit_code == 0, outcome.output
    assert outcome.stdout.splitlines() == [
        "key          scope    type  sensitivity  at most   kept for     if missing",
        "-----------  -------  ----  -----------  --------  -----------  ----------",
        "step         session  int   public       5 bytes   the session  nothing",
        "user:locale  user     str   personal     any size  180 days     'en'",
        "temp:*       temp     any   public       any size  one turn     nothing",
        "",
        "Nobody may write to: app.",
        "Keys without a rule are refused.",
        "The scope user holds at most 2,000 bytes.",
        "A session sees at most 5,000 bytes.",
        "Blacked out before storage: one time codes, bearer tokens, private keys.",
        "A refused key is left out and listed in its event; the rest is stored.",
    ]


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        ("house", "module:name"),
        ("nowhere:POLICY", "'nowhere' cannot be imported"),
        ("house:POLICIES", "has no 'POLICIES'"),
        ("house:NOTHING", "is a NoneType and no StatePolicy"),
    ],
)
def test_a_policy_that_is_not_there_is_one_line(spec: str, error: str) -> None:
    """The line says what is wrong with the name."""
    outcome = run("show", spec)
    assert outcome.exit_code == 1
    assert error in outcome.stderr
    assert len(outcome.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "backend",
    [row for row in (*OURS, *BARE) if row.name in {"ours-sqlite", "ours-postgresql",
                                                   "database-sqlite"}],
    ids=lambda row: row.name,
    indirect=True,
)  # fmt: skip
def test_what_breaks_a_policy_is_listed_with_its_place(backend: Backend, place: Place) -> None:
    """Key, reason, ids of the first place and how many more; never a value. Nothing is changed."""

    async def store() -> None:
        async with backend.open(place) as sessions:
            for number in range(3):
                await sessions.create_session(
                    app_name="app",
                    user_id="ann",
                    session_id=f"s{number}",
                    state={"step": "personal-value", "user:locale": "nl", "app:x": 1},
                )
            await sessions.create_session(
                app_name="app", user_id="bob", session_id="t", state={"step": 1}
            )

    asyncio.run(store())
    outcome = run("check", "house:POLICY", place.url)
    first = "app 'app', user 'ann', session 's0'"
    assert outcome.exit_code == 1
    assert outcome.stdout.splitlines() == [
        f"'step' does not fit the type int (int_parsing): {first} and 2 more",
        "'app:x' is in the scope app, which the policy does not let anybody write: app 'app'",
    ]
    assert "personal-value" not in outcome.output


def test_a_database_in_order_or_not_there_says_so(tmp_path: Path) -> None:
    """Exit code 0, and no file is made."""
    for url in ("sqlite:///missing.db", "sqlite:///there.db"):
        outcome = run("check", "house:POLICY", url)
        assert (outcome.exit_code, outcome.stdout) == (
            0,
            "Nothing in the database breaks the policy.\n",
        )
        assert not (tmp_path / "missing.db").exists()

        async def store() -> None:
            async with DurableSessionService.from_url("sqlite:///there.db") as sessions:
                await sessions.create_session(app_name="a", user_id="u", state={"step": 1})

        asyncio.run(store())
