"""Kills this process at a chosen point of what it does to its database.

The product has no hook for it. On SQLite every connection that is opened after `watch_databases`
is one that reports its statements: SQLite's own trace, which sees each statement before it runs,
whoever sent it and however (`commit()`, `execute("COMMIT")`, a script, SQLAlchemy, aiosqlite); and
a subclass of the driver's classes, which sees when the call has come back. On PostgreSQL it is the
driver's `Transaction.commit`, which everything in Python goes through.

That a switch was in the right place is for the test to check: the child must have died of it.
"""

from __future__ import annotations

import sqlite3
import sqlite3.dbapi2
from typing import Any, Final, Literal

from asyncpg.transaction import Transaction  # type: ignore[import-untyped]

from restart.child import die

Point = Literal["before COMMIT", "after COMMIT"] | int
"""Where to die: at the next COMMIT of a transaction that has written something, or before the n-th
statement from now on."""


class _Switch:
    """What is awaited. One of it: there is one process to kill."""

    def __init__(self) -> None:
        self.point: Point | None = None
        self.statements = 0


_switch: Final = _Switch()


def arm(point: Point) -> None:
    """Has the process die at this point from now on."""
    _switch.statements = 0
    _switch.point = point


def disarm() -> int:
    """Lets the process live, and returns how many statements it has run since `arm`."""
    _switch.point = None
    return _switch.statements


class _Connection(sqlite3.Connection):
    """Reports what happens on it."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.changes_before = 0
        self.is_committing = False
        self.set_trace_callback(self.before)

    def before(self, statement: str) -> None:
        """Runs before each statement, inside SQLite."""
        _switch.statements += 1
        word = statement.strip().upper().split(maxsplit=1)[0].rstrip(";")
        if word == "BEGIN":
            self.changes_before = self.total_changes
        self.is_committing = word in {"COMMIT", "END"} and self.total_changes > self.changes_before
        if self.is_committing and _switch.point == "before COMMIT":
            die()
        if _switch.statements == _switch.point:
            die()

    def after(self) -> None:
        """Runs when a call of the driver has come back."""
        if self.is_committing and _switch.point == "after COMMIT":
            die()
        self.is_committing = False

    def cursor(self, factory: Any = None) -> Any:
        return super().cursor(factory or _Cursor)

    def execute(self, *arguments: Any) -> Any:
        result = super().execute(*arguments)
        self.after()
        return result

    def executescript(self, *arguments: Any) -> Any:
        result = super().executescript(*arguments)
        self.after()
        return result

    def commit(self) -> None:
        super().commit()
        self.after()


class _Cursor(sqlite3.Cursor):
    connection: _Connection

    def execute(self, *arguments: Any) -> Any:
        result = super().execute(*arguments)
        self.connection.after()
        return result


async def _commit(self: Any) -> None:
    if _switch.point == "before COMMIT":
        die()
    await _driver_commit(self)
    if _switch.point == "after COMMIT":
        die()


_driver_connect: Final = sqlite3.connect
_driver_commit: Final = Transaction.commit


def _connect(*arguments: Any, **options: Any) -> Any:
    return _driver_connect(*arguments, **{"factory": _Connection} | options)


def watch_databases() -> None:
    """Has every connection that this process opens from now on report to the switch."""
    for module, name, reporting in (
        (sqlite3, "connect", _connect),
        (sqlite3.dbapi2, "connect", _connect),
        (Transaction, "commit", _commit),
    ):
        setattr(module, name, reporting)
