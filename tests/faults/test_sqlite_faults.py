"""SQLite fails at any point: the documented error, all or nothing, and the service works on."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
import sqlite3.dbapi2
from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest
from sqlalchemy import Engine, event

from adk_memory_ext.errors import StateRejectedError, StoreUnavailableError
from adk_memory_ext.service import DurableSessionService
from adk_memory_ext.state_changes import Increment
from conversation import replay, said, texts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from google.adk.sessions.session import Session

OWN: Final[dict[str, Any]] = {"app_name": "app", "user_id": "user"}
SESSION: Final[dict[str, Any]] = {**OWN, "session_id": "session"}


def dump(path: Path) -> list[str]:
    """Returns the whole content of a database."""
    with closing(sqlite3.connect(path)) as connection:
        return list(connection.iterdump())


class Fuse:
    """Lets statements through until it is to blow."""

    def __init__(self) -> None:
        self.left: int | None = None
        """How many statements still go through; None for all."""
        self.only: str = ""
        """Counts only statements that begin with this."""

    def burn(self, sql: str) -> None:
        """Raises what a broken disk makes SQLite raise, at the statement that was chosen."""
        if self.left is None or not sql.startswith(self.only):
            return
        if self.left == 0:
            self.left = None
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR
            raise error
        self.left -= 1


@pytest.fixture
def fuse(monkeypatch: pytest.MonkeyPatch) -> Fuse:
    """A fuse in every connection that is opened from now on."""
    fuse = Fuse()

    class FusedConnection(sqlite3.Connection):
        def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
            fuse.burn(sql)
            return super().execute(sql, parameters)

    connect = sqlite3.connect

    def fused(*arguments: Any, **options: Any) -> sqlite3.Connection:
        return connect(*arguments, **options, factory=FusedConnection)

    monkeypatch.setattr(sqlite3.dbapi2, "connect", fused)
    return fuse


async def begun(sessions: DurableSessionService) -> Session:
    """Returns a session with an event and state in every scope."""
    session = await sessions.create_session(**SESSION, state={"user:count": 0, "app:n": 0})
    await sessions.append_event(session, said("first", state={"k": 1}))
    return session


async def goes_on(sessions: DurableSessionService, session: Session, *said_before: str) -> None:
    """Checks that the session takes the next event and that log and state agree."""
    await sessions.append_event(session, said("next", state={"k": 2}))
    found = await sessions.get_session(**SESSION)
    assert found is not None
    assert texts(found.events) == [*said_before, "next"] == texts(session.events)
    assert replay(found.events, {"user:count": 0, "app:n": 0}) == found.state == session.state


async def test_a_statement_that_fails_leaves_nothing(tmp_path: Path, fuse: Fuse) -> None:
    """Whichever statement of an append fails, nothing of the event is stored or in the objects."""
    path = tmp_path / "sessions.db"
    async with DurableSessionService.from_url(f"sqlite:///{path}") as sessions:
        session = await begun(sessions)
        before, copy = dump(path), session.model_copy(deep=True)
        for statement in itertools.count():
            fuse.left = statement
            event_ = said("second", state={"user:count": Increment(), "app:n": 5, "k": 9})
            untouched = event_.model_copy(deep=True)
            (result,) = await asyncio.gather(
                sessions.append_event(session, event_), return_exceptions=True
            )
            if result is event_:
                break
            assert isinstance(result, StoreUnavailableError)
            assert "nothing was written" in str(result)
            assert dump(path) == before
            assert session == copy
            assert event_ == untouched
        fuse.left = None
        assert statement >= 8, "there are not so many statements in an append"
        await goes_on(sessions, session, "first", "second")


@pytest.mark.parametrize("verb", ["BEGIN", "COMMIT"])
async def test_a_transaction_that_cannot_begin_or_end_leaves_nothing(
    tmp_path: Path, fuse: Fuse, verb: str
) -> None:
    """When BEGIN or COMMIT fails, every write that shares it gets the error and nothing is kept."""
    path = tmp_path / "sessions.db"
    async with DurableSessionService.from_url(f"sqlite:///{path}") as sessions:
        session = await begun(sessions)
        before = dump(path)
        fuse.only, fuse.left = verb, 0
        with pytest.raises(StoreUnavailableError):
            await sessions.append_event(session, said("second"))
        assert dump(path) == before
        await goes_on(sessions, session, "first")


async def test_a_failing_write_leaves_its_neighbours_alone(tmp_path: Path) -> None:
    """Of writes that share a transaction, one that fails is undone alone."""
    async with DurableSessionService.from_url(f"sqlite:///{tmp_path}/sessions.db") as sessions:
        await sessions.create_session(**SESSION, state={"user:name": "Ada"})
        bad = sessions.state.increment("user:name", **OWN)
        good = [sessions.state.increment(f"user:n{number}", **OWN) for number in range(20)]

        results = await asyncio.gather(*good[:10], bad, *good[10:], return_exceptions=True)

        assert isinstance(results.pop(10), StateRejectedError)
        assert results == [1] * 20
        state = await sessions.get_user_state(**OWN)
        assert state == {"name": "Ada"} | {f"n{number}": 1 for number in range(20)}


@pytest.fixture
def small_disk() -> Iterator[list[int]]:
    """Limits each connection's database to the number of pages in the list, once it has one."""
    limit: list[int] = []

    def restrict(connection: sqlite3.Connection, _record: object) -> None:
        if limit:
            connection.execute(f"PRAGMA max_page_count = {limit[0]}")

    event.listen(Engine, "connect", restrict)
    yield limit
    event.remove(Engine, "connect", restrict)


async def test_a_full_disk_is_an_error_and_not_the_end(
    tmp_path: Path, small_disk: list[int]
) -> None:
    """When the database cannot grow, the append fails whole, and smaller ones still succeed."""
    small_disk.append(60)
    async with DurableSessionService.from_url(f"sqlite:///{tmp_path}/sessions.db") as sessions:
        session = await begun(sessions)
        with pytest.raises(StoreUnavailableError, match="full"):
            await sessions.append_event(session, said("x" * 400_000, state={"k": 5}))
        await goes_on(sessions, session, "first")


async def test_a_lock_past_the_limit_is_an_error(tmp_path: Path) -> None:
    """When another process holds the write lock for too long, nothing is written; later it is."""
    path = tmp_path / "sessions.db"
    limit = timedelta(milliseconds=50)
    async with DurableSessionService.from_url(f"sqlite:///{path}", busy_timeout=limit) as sessions:
        session = await begun(sessions)
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreUnavailableError, match="locked"):
                await sessions.append_event(session, said("second"))
            assert await sessions.get_session(**SESSION) is not None, "readers need not wait"
            other.execute("ROLLBACK")
        await goes_on(sessions, session, "first")


async def test_a_lock_within_the_limit_is_waited_for(tmp_path: Path) -> None:
    """A write waits for another process's write to end."""
    path = tmp_path / "sessions.db"
    async with DurableSessionService.from_url(f"sqlite:///{path}") as sessions:
        session = await begun(sessions)
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            append = asyncio.ensure_future(sessions.append_event(session, said("second")))
            await asyncio.sleep(0.05)
            assert not append.done()
            other.execute("ROLLBACK")
            await append
        await goes_on(sessions, session, "first", "second")


async def test_close_finishes_what_waits(tmp_path: Path) -> None:
    """Writes that were begun before `close` are stored, and later ones are refused."""
    url = f"sqlite:///{tmp_path}/sessions.db"
    async with DurableSessionService.from_url(url) as sessions:
        await sessions.create_session(**SESSION)
        waiting = [
            asyncio.ensure_future(sessions.state.increment("user:n", **OWN)) for _ in range(50)
        ]
        await asyncio.sleep(0)
        await sessions.close()
        await asyncio.gather(*waiting)
        with pytest.raises(StoreUnavailableError, match="closed"):
            await sessions.get_user_state(**OWN)
        with pytest.raises(StoreUnavailableError, match="closed"):
            await sessions.create_session(**OWN)
    async with DurableSessionService.from_url(url) as sessions:
        assert await sessions.get_user_state(**OWN) == {"n": 50}
