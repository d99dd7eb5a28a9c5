"""SQLite whose statements fail when a test wants it; there is no hook for it in the product."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

connect: Final = sqlite3.connect
"""Opens a connection in which nothing fails."""


def input_output_error() -> sqlite3.Error:
    """Returns what a broken disk makes SQLite raise."""
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR
    return error


def unconfirmed_sync() -> sqlite3.Error:
    """Returns what SQLite raises when the disk does not confirm that it has what was written."""
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
    return error


def corruption() -> sqlite3.Error:
    """Returns what SQLite raises when it finds a page that makes no sense."""
    error = sqlite3.DatabaseError("database disk image is malformed")
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error


class Fuse:
    """Lets statements through until it is to blow."""

    def __init__(self) -> None:
        self.left: int | None = None
        """How many statements still go through; None for all."""
        self.only = ""
        """Counts only statements that begin with this."""
        self.holding: object = None
        """Counts only statements with this parameter; None for all."""
        self.error: Callable[[], sqlite3.Error] = input_output_error
        """Makes what is raised."""
        self.for_good = False
        """Whether every later statement fails too, of whatever kind."""
        self.gives_up = False
        """Whether the transaction is undone too, as SQLite does when the disk is full."""
        self.has_blown = False
        """Whether a statement has failed since it was set."""
        self.passed: list[str] = []
        """The statements that went through."""

    def set(self, left: int) -> None:
        """Lets so many statements through and has the next one fail."""
        self.left = left
        self.has_blown = False

    def mend(self) -> None:
        """Lets everything through again."""
        self.left = None

    def burn(self, connection: sqlite3.Connection, sql: str, parameters: Any) -> None:
        """Raises the error at the statement that was chosen."""
        if self.left is not None and self._counts(sql, parameters):
            if self.left == 0:
                self.has_blown = True
                if not self.for_good:
                    self.mend()
                if self.gives_up and connection.in_transaction:
                    connection.rollback()
                raise self.error()
            self.left -= 1
        self.passed.append(sql)

    def _counts(self, sql: str, parameters: Any) -> bool:
        if self.left == 0 and self.for_good:
            return True
        holds = self.holding is None or self.holding in tuple(parameters)
        return holds and sql.startswith(self.only)


def fused(monkeypatch: pytest.MonkeyPatch) -> Fuse:
    """Returns a fuse in every connection that is opened from now on."""
    fuse = Fuse()

    class FusedCursor(sqlite3.Cursor):
        def execute(self, sql: str, parameters: Any = (), /) -> FusedCursor:
            fuse.burn(self.connection, sql, parameters)
            super().execute(sql, parameters)
            return self

    class FusedConnection(sqlite3.Connection):
        def cursor(self, factory: Any = FusedCursor) -> Any:
            return super().cursor(factory)

        def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
            # Not through a cursor of ours: a traceback would keep it alive, and the file open.
            fuse.burn(self, sql, parameters)
            return super().execute(sql, parameters)

    def open_fused(*arguments: Any, **options: Any) -> sqlite3.Connection:
        return connect(*arguments, **options, factory=FusedConnection)

    monkeypatch.setattr(sqlite3, "connect", open_fused)
    return fuse
