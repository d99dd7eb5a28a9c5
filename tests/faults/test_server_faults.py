"""PostgreSQL goes away at the worst moments: the documented error, all or nothing, and on again."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import asyncpg  # type: ignore[import-untyped]
import pytest
from sqlalchemy import make_url

from adk_memory_ext import Increment
from adk_memory_ext.errors import CommitUnknownError, StoreUnavailableError
from adk_memory_ext.service import DurableSessionService
from conversation import said, texts
from servers import HANG_SECONDS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from google.adk.sessions.session import Session

OWN: Final[dict[str, Any]] = {"app_name": "app", "user_id": "user"}
SESSION: Final[dict[str, Any]] = {**OWN, "session_id": "session"}
_OTHERS = (
    "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    " AND backend_type = 'client backend'"
)


@asynccontextmanager
async def administrator(url: str) -> AsyncIterator[asyncpg.Connection]:
    """Yields a connection of somebody else's."""
    plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    connection = await asyncpg.connect(plain)
    try:
        yield connection
    finally:
        await connection.close()


async def terminate(connection: asyncpg.Connection, condition: str = "true") -> int:
    """Ends the other connections that are in a state, and returns how many there were."""
    rows = await connection.fetch(f"SELECT pg_terminate_backend(pid) {_OTHERS} AND {condition}")
    return len(rows)


async def until(connection: asyncpg.Connection, condition: str) -> None:
    """Waits until somebody else's connection is in a state."""
    async with asyncio.timeout(HANG_SECONDS):
        while not await connection.fetchval(f"SELECT count(*) {_OTHERS} AND {condition}"):
            await asyncio.sleep(0.01)


async def found(sessions: DurableSessionService) -> Session:
    """Returns the stored session."""
    session = await sessions.get_session(**SESSION)
    assert session is not None
    return session


async def test_connections_that_died_while_idle_are_not_noticed(postgresql_url: str) -> None:
    """After a restart of the server the next operations succeed: nothing of them was sent yet."""
    async with (
        DurableSessionService.from_url(postgresql_url) as sessions,
        administrator(postgresql_url) as other,
    ):
        session = await sessions.create_session(**SESSION)
        await asyncio.gather(*(sessions.get_session(**SESSION) for _ in range(4)))
        assert await terminate(other)
        await sessions.append_event(session, said("first"))
        assert await terminate(other)
        assert texts((await found(sessions)).events) == ["first"]


async def cut_while_waiting(connection: asyncpg.Connection, before: set[int]) -> None:
    """Ends a connection that waits for a lock and is none of those that were ended `before`."""
    waiting = f"SELECT pid {_OTHERS} AND wait_event_type = 'Lock' AND pid <> ALL($1)"
    async with asyncio.timeout(HANG_SECONDS):
        while (pid := await connection.fetchval(waiting, list(before))) is None:
            await asyncio.sleep(0.01)
    before.add(pid)
    await connection.execute("SELECT pg_terminate_backend($1)", pid)


@pytest.mark.parametrize("times", [1, 2])
async def test_a_connection_cut_while_it_waits_loses_nothing(
    postgresql_url: str, times: int
) -> None:
    """An append whose connection is cut is made again once; then it is refused whole."""
    async with (
        DurableSessionService.from_url(postgresql_url) as sessions,
        administrator(postgresql_url) as other,
        administrator(postgresql_url) as holder,
    ):
        session = await sessions.create_session(**SESSION)
        async with holder.transaction():
            await holder.execute("SELECT 1 FROM sessions FOR UPDATE")
            append = asyncio.ensure_future(sessions.append_event(session, said("first")))
            ended: set[int] = set()
            for _ in range(times):
                await cut_while_waiting(other, ended)
            if times > 1:
                with pytest.raises(StoreUnavailableError, match="nothing was written"):
                    await asyncio.wait_for(append, HANG_SECONDS)
                assert (await found(sessions)).events == session.events == []
        if times == 1:
            await append
        else:
            await sessions.append_event(session, said("first"))
        assert texts((await found(sessions)).events) == texts(session.events) == ["first"]


async def test_a_deadlock_is_tried_again(postgresql_url: str) -> None:
    """An append that PostgreSQL ends because of a deadlock is made again, and is stored once."""
    async with (
        DurableSessionService.from_url(postgresql_url) as sessions,
        administrator(postgresql_url) as other,
        administrator(postgresql_url) as holder,
    ):
        session = await sessions.create_session(**SESSION, state={"user:n": 0})
        async with holder.transaction():
            # The other way round: our appends lock the session before the state of the user.
            await holder.execute("SELECT 1 FROM user_states FOR UPDATE")
            append = asyncio.ensure_future(
                sessions.append_event(session, said("first", state={"user:n": Increment()}))
            )
            await until(other, "wait_event_type = 'Lock'")
            await holder.execute("SET LOCAL deadlock_timeout = '1h'")  # let them find it
            await holder.execute("SELECT 1 FROM sessions FOR UPDATE")
        await append
        stored = await found(sessions)
        assert texts(stored.events) == ["first"]
        assert stored.state == {"user:n": 1}


@asynccontextmanager
async def setting(connection: asyncpg.Connection, name: str, value: str) -> AsyncIterator[None]:
    """Sets a parameter for connections to the database that are opened from now on."""
    database = await connection.fetchval("SELECT current_database()")
    await connection.execute(f"ALTER DATABASE \"{database}\" SET {name} = '{value}'")
    try:
        yield
    finally:
        await connection.execute(f'ALTER DATABASE "{database}" RESET {name}')


@pytest.mark.parametrize("name", ["lock_timeout", "statement_timeout"])
async def test_a_limit_of_the_server_is_an_error(postgresql_url: str, name: str) -> None:
    """A write that waits longer than the server allows is refused whole, and succeeds later."""
    async with (
        administrator(postgresql_url) as holder,
        administrator(postgresql_url) as other,
        DurableSessionService.from_url(postgresql_url) as first,
    ):
        session = await first.create_session(**SESSION)
        async with (
            setting(other, name, "200ms"),
            DurableSessionService.from_url(postgresql_url) as sessions,
        ):
            async with holder.transaction():
                await holder.execute("SELECT 1 FROM sessions FOR UPDATE")
                with pytest.raises(StoreUnavailableError, match="nothing was written"):
                    await sessions.append_event(session, said("first"))
                assert (await found(sessions)).events == session.events == []
            await sessions.append_event(session, said("second"))
            assert texts((await found(sessions)).events) == ["second"]


async def test_a_server_that_only_reads_is_an_error(postgresql_url: str) -> None:
    """On a standby or a server in recovery reads succeed and writes are refused."""
    async with (
        administrator(postgresql_url) as other,
        DurableSessionService.from_url(postgresql_url) as first,
    ):
        session = await first.create_session(**SESSION)
        async with (
            setting(other, "default_transaction_read_only", "on"),
            DurableSessionService.from_url(postgresql_url) as sessions,
        ):
            with pytest.raises(StoreUnavailableError, match="nothing was written"):
                await sessions.append_event(session, said("first"))
            assert (await found(sessions)).events == []
        await first.append_event(session, said("second"))


async def test_a_pool_without_a_free_connection_is_an_error(postgresql_url: str) -> None:
    """Who waits too long for a connection is told that nothing was written."""
    async with (
        DurableSessionService.from_url(
            postgresql_url, pool_size=1, max_overflow=0, pool_timeout=timedelta(milliseconds=50)
        ) as sessions,
        administrator(postgresql_url) as other,
        administrator(postgresql_url) as holder,
    ):
        session = await sessions.create_session(**SESSION)
        async with holder.transaction():
            await holder.execute("SELECT 1 FROM sessions FOR UPDATE")
            append = asyncio.ensure_future(sessions.append_event(session, said("first")))
            await until(other, "wait_event_type = 'Lock'")
            with pytest.raises(StoreUnavailableError, match="nothing was written"):
                await sessions.get_user_state(**OWN)
            with pytest.raises(StoreUnavailableError, match="nothing was written"):
                await sessions.create_session(**OWN)
        await append
        assert texts((await found(sessions)).events) == ["first"]


async def test_a_connection_cut_during_commit_says_that_it_cannot_tell(
    postgresql_url: str,
) -> None:
    """Cut during COMMIT, the append says so; sent again under its id, it is stored once."""
    async with (
        DurableSessionService.from_url(postgresql_url) as sessions,
        administrator(postgresql_url) as other,
    ):
        session = await sessions.create_session(**SESSION)
        await other.execute(
            "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN PERFORM pg_sleep(600); RETURN NULL; END $$;"
            " CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON events DEFERRABLE INITIALLY DEFERRED"
            " FOR EACH ROW EXECUTE FUNCTION slow()"
        )
        event = said("first", state={"k": 1})
        append = asyncio.ensure_future(sessions.append_event(session, event))
        await until(other, "query ILIKE 'COMMIT%' AND state = 'active'")
        await terminate(other)
        with pytest.raises(CommitUnknownError):
            await asyncio.wait_for(append, HANG_SECONDS)
        assert session.events == []

        await other.execute("DROP TRIGGER slow ON events")
        await sessions.append_event(session, event)
        stored = await found(sessions)
        assert texts(stored.events) == texts(session.events) == ["first"]
        assert stored.state == session.state == {"k": 1}


async def test_a_server_that_is_not_there_is_one_line(unused_tcp_port: int) -> None:
    """Without a server the error says that nothing was written, and names no password."""
    url = f"postgresql://user:secret@127.0.0.1:{unused_tcp_port}/database"
    async with DurableSessionService.from_url(url) as sessions:
        with pytest.raises(StoreUnavailableError, match="nothing was written") as raised:
            await sessions.create_session(**SESSION)
    assert "secret" not in str(raised.value)
    assert "\n" not in str(raised.value)
