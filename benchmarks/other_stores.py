"""What people use instead: OpenAI Agents, LangGraph, and plain `sqlite3` as the limit."""

from __future__ import annotations

import json
import sqlite3
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.store import Synchronous, library_durability, sqlite_durability, sqlite_file

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from benchmarks.workload import Message


@dataclass
class _OpenAIConversation:
    session: Any

    def prepare(self, message: Message) -> list[dict[str, Any]]:
        """Returns the message as an item of the Responses API, of the event's size."""
        return [_as_document(message)]

    async def append(self, prepared: list[dict[str, Any]]) -> None:
        """Adds the item."""
        await self.session.add_items(prepared)


@dataclass
class _OpenAIStore:
    session_class: Callable[[str, str], Any]
    path: str
    durability: str
    opened: list[Any]

    async def conversation(self, name: str) -> _OpenAIConversation:
        """Opens a session of that name; it keeps its own connections."""
        session = self.session_class(name, self.path)
        self.opened.append(session)
        return _OpenAIConversation(session)


@asynccontextmanager
async def open_openai(url: str, *, normal: bool = False) -> AsyncIterator[_OpenAIStore]:
    """Opens OpenAI Agents' `SQLiteSession`; `normal` as SQLite builds with that default do.

    It sets WAL and leaves `synchronous` to the SQLite library, where the usual default is FULL and
    some builds, such as macOS's own, have NORMAL. There is no option for it.
    """
    from agents.memory.sqlite_session import SQLiteSession

    class NormalSQLiteSession(SQLiteSession):  # type: ignore[misc]  # it is seen as Any
        @staticmethod
        def _configure_connection(conn: sqlite3.Connection) -> None:
            SQLiteSession._configure_connection(conn)  # noqa: SLF001  # it has no public face
            conn.execute("PRAGMA synchronous=NORMAL")

    path = sqlite_file(url)
    session_class = NormalSQLiteSession if normal else SQLiteSession
    session_class("first", path).close()
    durability = sqlite_durability("wal", "NORMAL") if normal else library_durability(path)
    store = _OpenAIStore(session_class, path, durability, [])
    try:
        yield store
    finally:
        for session in store.opened:
            session.close()


@dataclass
class _LangGraphConversation:
    saver: Any
    config: dict[str, Any]

    def prepare(self, message: Message) -> dict[str, Any]:
        """Returns a checkpoint that holds the message, and no message before it."""
        return {**whole_state([message]), "channel_versions": {"messages": message.number + 1}}

    async def append(self, prepared: dict[str, Any]) -> None:
        """Puts the checkpoint after the one before."""
        metadata = {"source": "loop", "step": prepared["channel_versions"]["messages"]}
        self.config = await self.saver.aput(
            self.config, prepared, metadata, prepared["channel_versions"]
        )


@dataclass
class _LangGraphStore:
    saver: Any
    durability: str

    async def conversation(self, name: str) -> _LangGraphConversation:
        """Begins a thread of that name."""
        config = {"configurable": {"thread_id": name, "checkpoint_ns": ""}}
        return _LangGraphConversation(self.saver, config)


def whole_state(messages: Sequence[Message]) -> dict[str, Any]:
    """Returns the checkpoint of a LangGraph graph whose state is all messages so far."""
    from langgraph.checkpoint.base import empty_checkpoint

    return {
        **empty_checkpoint(),
        "channel_values": {"messages": [_as_document(message) for message in messages]},
        "channel_versions": {"messages": len(messages)},
    }


@asynccontextmanager
async def open_langgraph(url: str) -> AsyncIterator[_LangGraphStore]:
    """Opens LangGraph's `AsyncSqliteSaver`."""
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

    path = sqlite_file(url)
    async with AsyncSqliteSaver.from_conn_string(path) as saver:
        await saver.setup()
        yield _LangGraphStore(saver, library_durability(path))


def _as_document(message: Message) -> dict[str, Any]:
    """Returns the message as JSON data of the size that ADK's event has."""
    return {
        "id": message.id,
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": message.text, "annotations": []}],
        "metadata": {
            **message.state,
            "time": message.time,
            "invocation": f"e-{message.id}",
            "author": "coach",
            "node_info": {"path": ""},
        },
    }


@dataclass
class _RawStore:
    connection: sqlite3.Connection
    durability: str

    async def conversation(self, name: str) -> _RawConversation:
        """Inserts the conversation's row."""
        self.connection.execute("INSERT INTO conversations VALUES (?, '{}')", (name,))
        return _RawConversation(self.connection, name)


@dataclass
class _RawConversation:
    connection: sqlite3.Connection
    name: str

    def prepare(self, message: Message) -> tuple[str, str, str]:
        """Returns the values to bind."""
        return (message.id, json.dumps(_as_document(message)), json.dumps(dict(message.state)))

    async def append(self, prepared: tuple[str, str, str]) -> None:
        """Writes both rows in one transaction, in the event loop's own thread."""
        message_id, document, state = prepared
        execute = self.connection.execute
        execute("BEGIN IMMEDIATE")
        execute("INSERT INTO messages VALUES (?, ?, ?)", (self.name, message_id, document))
        execute("UPDATE conversations SET state = ? WHERE name = ?", (state, self.name))
        execute("COMMIT")


@asynccontextmanager
async def open_raw(url: str, *, synchronous: Synchronous) -> AsyncIterator[_RawStore]:
    """Opens the standard library's sqlite3 with two tables."""
    with closing(sqlite3.connect(sqlite_file(url), isolation_level=None)) as connection:
        (journal,) = connection.execute("PRAGMA journal_mode=WAL").fetchone()
        connection.execute(f"PRAGMA synchronous={synchronous}")
        connection.execute("CREATE TABLE conversations (name TEXT PRIMARY KEY, state TEXT)")
        connection.execute(
            "CREATE TABLE messages"
            " (conversation TEXT, id TEXT, document TEXT, PRIMARY KEY (conversation, id))"
        )
        (level,) = connection.execute("PRAGMA synchronous").fetchone()
        yield _RawStore(connection, sqlite_durability(journal, level))
