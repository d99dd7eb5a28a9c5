"""What a turn costs in statements: two rows more to read, and one load more after a wait."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import pytest
from sqlalchemy import Engine, event

from adk_memory_ext import DurableSessionService
from adk_memory_ext.records import SessionId
from people import echo, running, say

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator
    from pathlib import Path

SESSION_ID: Final = SessionId("app", "user", "session")
_WORK: Final = ("SELECT", "INSERT", "UPDATE", "DELETE", "REPLACE")
_SET_UP: Final = ("memext_migrations", "adk_internal_metadata", "sqlite_master")
"""What a connection asks when it is opened, as each reading thread does at its first use."""


@pytest.fixture
def statements() -> Iterator[list[str]]:
    """The statements that SQLite runs, without the frames of transactions and the set-up."""
    run: list[str] = []

    def trace(connection: sqlite3.Connection, _record: object) -> None:
        def note(sql: str) -> None:
            if sql.startswith(_WORK) and not any(name in sql for name in _SET_UP):
                run.append(sql)

        connection.set_trace_callback(note)

    event.listen(Engine, "connect", trace)
    yield run
    event.remove(Engine, "connect", trace)


async def test_an_uncontended_turn_reads_two_rows_more(
    tmp_path: Path, statements: list[str]
) -> None:
    """The plugin looks whether the session is still the newest, and whether the profile is.

    It writes nothing.
    """
    numbers = []
    async with (
        DurableSessionService.from_url(f"sqlite:///{tmp_path}/sessions.db") as sessions,
        running(sessions, plugins=[]) as plain,
        running(sessions) as queued,
    ):
        await say(plain, "warm")
        for runner in (plain, queued):
            statements.clear()
            await say(runner, "hello")
            numbers.append(len(statements))
    assert numbers[1] - numbers[0] == 2
    assert all(sql.startswith("SELECT") for sql in statements[:2])


async def test_a_turn_that_waited_loads_the_session_once_more(
    tmp_path: Path, statements: list[str]
) -> None:
    """After the wait the session is read anew, once."""
    gate = asyncio.Event()
    async with (
        DurableSessionService.from_url(f"sqlite:///{tmp_path}/sessions.db") as sessions,
        running(sessions, echo(tools=[], gate=gate)) as slow,
        running(sessions, echo(tools=[])) as quick,
    ):
        first = asyncio.ensure_future(say(slow, "first"))
        while sessions.turns.holder(SESSION_ID) is None:
            await asyncio.sleep(0)
        second = asyncio.ensure_future(say(quick, "second"))
        await asyncio.sleep(0.1)
        statements.clear()
        gate.set()
        await asyncio.gather(first, second)
    loads = [sql for sql in statements if "event_data" in sql and sql.startswith("SELECT")]
    assert len(loads) == 1
