"""`adk-memory policy`: a policy for people to read, and against what is stored."""

from __future__ import annotations

import asyncio
import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from adk_memory_ext.errors import ConfigurationError

if TYPE_CHECKING:
    from adk_memory_ext.policy import StatePolicy

T = TypeVar("T")


@click.group()
def policy() -> None:
    """Read a state policy, or look for what breaks it.

    SPEC is `module:name`, such as `resume_coach.policy:POLICY`; the working folder is looked into
    first.
    """


@policy.command()
@click.argument("spec")
def show(spec: str) -> None:
    """Print what may be remembered, where and for how long, as a table."""
    from adk_memory_ext.policy.findings import COLUMNS, rows_of, sentences_of

    found = load(spec)
    rows = [COLUMNS, *rows_of(found)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    for number, row in enumerate(rows):
        click.echo(_line(row, widths))
        if number == 0:
            click.echo(_line(["-" * width for width in widths], widths))
    click.echo()
    for sentence in sentences_of(found):
        click.echo(sentence)


@policy.command()
@click.argument("spec")
@click.argument("url")
def check(spec: str, url: str) -> None:
    """Say what in the database at URL breaks the policy. Changes nothing; exits with 1 if any."""
    from adk_memory_ext.policy.findings import findings
    from adk_memory_ext.stored_state import all_states

    found = findings(load(spec), asyncio.run(all_states(url)))
    for row in found:
        more = f" and {row.places - 1:,} more" if row.places > 1 else ""
        click.echo(f"{row.key!r} {row.reason}: {row.example}{more}")
    if found:
        raise click.exceptions.Exit(1)
    click.echo("Nothing in the database breaks the policy.")


def load(spec: str) -> StatePolicy:
    """Returns the state policy that `module:name` names; raises as `load_as`."""
    from adk_memory_ext.policy import StatePolicy

    return load_as(spec, StatePolicy)


def load_as(spec: str, kind: type[T]) -> T:
    """Returns what `module:name` names.

    Raises:
        ConfigurationError: When there is nothing of that kind.
    """
    module, colon, name = spec.partition(":")
    if not (module and colon and name):
        raise ConfigurationError(f"A policy is named as module:name, not {spec!r}.")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found = getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise ConfigurationError(f"The module {module!r} cannot be imported: {error}.") from error
    except AttributeError as error:
        raise ConfigurationError(f"The module {module!r} has no {name!r}.") from error
    if not isinstance(found, kind):
        raise ConfigurationError(f"{spec} is a {type(found).__name__} and no {kind.__name__}.")
    return found


def _line(cells: tuple[str, ...] | list[str], widths: list[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
