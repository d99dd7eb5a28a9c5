"""A store as the benchmark sees it, and what its commit means."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from sqlalchemy import make_url

if TYPE_CHECKING:
    from benchmarks.workload import Message

Synchronous = Literal["FULL", "NORMAL"]


class Conversation(Protocol):
    """One conversation in a store."""

    def prepare(self, message: Message) -> Any:
        """Returns the message in the store's own terms; this is not measured."""

    async def append(self, prepared: Any) -> None:
        """Stores the message; this is measured."""


class Store(Protocol):
    """An open database."""

    durability: str
    """What its commit means, as read back from the database where it can be asked."""

    async def conversation(self, name: str) -> Conversation:
        """Returns a new conversation."""


_LEVELS: Final = {0: "OFF", 1: "NORMAL", 2: "FULL", 3: "EXTRA"}


def sqlite_durability(journal: str, synchronous: int | str) -> str:
    """Returns both pragmas in words."""
    level = _LEVELS[synchronous] if isinstance(synchronous, int) else synchronous
    name = "WAL" if journal == "wal" else f"rollback journal ({journal.upper()})"
    return f"{name}, synchronous={level}"


def library_durability(path: str) -> str:
    """Returns what a plain connection to the file has: its journal, the library's `synchronous`.

    For stores that set no `synchronous` and show no connection.
    """
    with closing(sqlite3.connect(path)) as connection:
        (journal,) = connection.execute("PRAGMA journal_mode").fetchone()
        (level,) = connection.execute("PRAGMA synchronous").fetchone()
    return sqlite_durability(journal, level)


def sqlite_file(url: str) -> str:
    """Returns the path in a SQLite URL."""
    return str(make_url(url).database)
