"""The contenders: each opened as its own documentation opens it, at its default durability.

What a store is not able to do (state, stale writers) it does not do here either; the report says
so.
"""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from benchmarks.adk_stores import open_adk, open_adk_sqlite, open_ours
from benchmarks.other_stores import open_langgraph, open_openai, open_raw

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractAsyncContextManager

    from benchmarks.store import Store


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A store to measure."""

    name: str
    label: str
    package: str
    """The distribution that it comes from."""
    open: Callable[[str], AbstractAsyncContextManager[Store]]
    """Opens the database at a SQLAlchemy URL, creating it."""
    does_less: str = ""
    """What it leaves out, for the report."""

    @property
    def installed(self) -> bool:
        """Whether its distribution is installed."""
        try:
            importlib.metadata.version(self.package)
        except importlib.metadata.PackageNotFoundError:
            return False
        return True


ADK: Final = Contender(
    name="adk", label="ADK DatabaseSessionService", package="google-adk", open=open_adk
)
ADK_WAL: Final = Contender(
    name="adk-wal",
    label="ADK DatabaseSessionService, WAL",
    package="google-adk",
    open=lambda url: open_adk(url, wal=True),
)
ADK_SQLITE: Final = Contender(
    name="adk-sqlite",
    label="ADK SqliteSessionService",
    package="google-adk",
    open=open_adk_sqlite,
)
OPENAI: Final = Contender(
    name="openai",
    label="OpenAI Agents SQLiteSession",
    package="openai-agents",
    open=open_openai,
    does_less="no state, no stale check",
)
OPENAI_NORMAL: Final = Contender(
    name="openai-normal",
    label="OpenAI Agents SQLiteSession, NORMAL",
    package="openai-agents",
    open=lambda url: open_openai(url, normal=True),
    does_less="no state, no stale check",
)
LANGGRAPH: Final = Contender(
    name="langgraph",
    label="LangGraph AsyncSqliteSaver",
    package="langgraph-checkpoint-sqlite",
    open=open_langgraph,
    does_less="one message a checkpoint; a graph stores its whole state each time",
)
RAW_FULL: Final = Contender(
    name="raw",
    label="raw sqlite3, FULL",
    package="sqlalchemy",
    open=lambda url: open_raw(url, synchronous="FULL"),
    does_less="the limit: one INSERT, one UPDATE, no thread",
)
RAW_NORMAL: Final = Contender(
    name="raw-normal",
    label="raw sqlite3, NORMAL",
    package="sqlalchemy",
    open=lambda url: open_raw(url, synchronous="NORMAL"),
    does_less="the limit: one INSERT, one UPDATE, no thread",
)
OURS: Final = Contender(
    name="ours", label="adk_memory_ext", package="adk-memory-ext", open=open_ours
)
OURS_NORMAL: Final = Contender(
    name="ours-normal",
    label="adk_memory_ext, NORMAL",
    package="adk-memory-ext",
    open=lambda url: open_ours(url, synchronous="NORMAL"),
)

SQLITE: Final = (
    ADK,
    ADK_WAL,
    ADK_SQLITE,
    OPENAI,
    OPENAI_NORMAL,
    LANGGRAPH,
    RAW_FULL,
    RAW_NORMAL,
    OURS,
    OURS_NORMAL,
)
"""Everything that appends to a SQLite file."""
CONCURRENT: Final = (ADK, ADK_WAL, ADK_SQLITE, OPENAI, OPENAI_NORMAL, LANGGRAPH, OURS, OURS_NORMAL)
"""What many tasks may append to at once."""
SERVER: Final = (ADK, OURS)
"""What runs on PostgreSQL."""


def installed(contenders: Iterable[Contender]) -> list[Contender]:
    """Returns those that are installed."""
    return [contender for contender in contenders if contender.installed]
