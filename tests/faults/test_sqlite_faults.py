"""SQLite is full, locked or half broken: the documented error, and the service works on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
from contextlib import asynccontextmanager, closing
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest
from google.adk.errors import StaleSessionError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from sqlalchemy import Engine, event

from adk_memory_ext import Increment
from adk_memory_ext.errors import StateRejectedError, StoreUnavailableError
from adk_memory_ext.service import DurableSessionService
from conversation import replay, said, texts
from faults.fuse import Fuse, connect, fused
from faults.limits import write_past_the_limit
from rivals import in_processes
from servers import HANG_SECONDS
from tables import file_url

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
    from pathlib import Path

    from google.adk.sessions.session import Session

pytestmark = pytest.mark.usefixtures("nothing_left")

OWN: Final[dict[str, Any]] = {"app_name": "app", "user_id": "user"}
SESSION: Final[dict[str, Any]] = {**OWN, "session_id": "session"}
NEIGHBOURS: Final = 20
LONG: Final = "x" * 400_000
SOON: Final = timedelta(milliseconds=50)


@pytest.fixture
def fuse(monkeypatch: pytest.MonkeyPatch) -> Fuse:
    """A fuse in every connection of the services under test."""
    return fused(monkeypatch)


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


async def until(condition: Callable[[], bool]) -> None:
    """Waits for what another thread does."""
    async with asyncio.timeout(HANG_SECONDS):
        while not condition():
            await asyncio.sleep(0.001)


# --- Writes that share a transaction


class Crowd:
    """A service whose writes wait together."""

    def __init__(self, sessions: DurableSessionService, path: Path, fuse: Fuse) -> None:
        self.sessions = sessions
        self._path = path
        self._fuse = fuse

    async def together(self, writes: list[Coroutine[Any, Any, Any]]) -> list[Any]:
        """Returns what came of writes that shared one transaction."""
        passed = self._fuse.passed
        with closing(connect(self._path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            begun = passed.count("BEGIN IMMEDIATE")
            first = asyncio.ensure_future(self.sessions.state.increment("user:first", **OWN))
            # Now the writing thread waits for the lock, and whatever comes waits behind.
            await until(lambda: passed.count("BEGIN IMMEDIATE") > begun)
            tasks = [asyncio.ensure_future(write) for write in writes]
            await asyncio.sleep(0)
            other.execute("ROLLBACK")
        await first
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert passed.count("BEGIN IMMEDIATE") == begun + 2
        return results

    async def said_in(self, *numbers: int) -> dict[int, list[str]]:
        """Returns what was said in each of the numbered sessions."""
        found = {
            number: await self.sessions.get_session(**OWN, session_id=str(number))
            for number in numbers
        }
        return {number: texts(one.events) for number, one in found.items() if one is not None}


@pytest.fixture
async def crowd(tmp_path: Path, fuse: Fuse) -> AsyncIterator[Crowd]:
    """A service with many sessions, and what makes their writes wait together."""
    async with DurableSessionService.from_url(file_url(tmp_path)) as sessions:
        for number in range(NEIGHBOURS):
            await sessions.create_session(**OWN, session_id=str(number))
        yield Crowd(sessions, tmp_path / "sessions.db", fuse)


async def loaded(crowd: Crowd) -> list[Session]:
    """Returns a copy of each session."""
    found = [
        await crowd.sessions.get_session(**OWN, session_id=str(number))
        for number in range(NEIGHBOURS)
    ]
    return [one for one in found if one is not None]


def appends(crowd: Crowd, copies: list[Session], text: str) -> list[Coroutine[Any, Any, Any]]:
    """Returns one append to each session."""
    delta = {"user:n": Increment(), "app:n": Increment()}
    return [crowd.sessions.append_event(copy, said(text, state=delta)) for copy in copies]


async def test_a_failing_write_leaves_its_neighbours_alone(crowd: Crowd, fuse: Fuse) -> None:
    """Of writes that share a transaction, one whose n-th statement fails is undone alone."""
    fuse.holding = "7"
    count = 0
    for statement in range(100):
        copies = await loaded(crowd)
        untouched = copies[7].model_copy(deep=True)
        fuse.set(statement)
        results = await crowd.together(appends(crowd, copies, str(statement)))
        fuse.mend()
        if not fuse.has_blown:
            break
        count += NEIGHBOURS - 1
        assert type(results.pop(7)) is StoreUnavailableError
        assert not any(isinstance(result, BaseException) for result in results)
        assert copies[7] == untouched
    assert statement >= 3
    everything = [str(number) for number in range(statement + 1)]
    assert await crowd.said_in(6, 7, 8) == {6: everything, 7: everything[-1:], 8: everything}
    state = await crowd.sessions.get_user_state(**OWN)
    assert state["n"] == count + NEIGHBOURS


async def test_each_of_them_gets_its_own_error(crowd: Crowd) -> None:
    """Refusals of every kind beside each other take nobody with them."""
    copies = await loaded(crowd)
    await crowd.sessions.append_event(copies[1].model_copy(deep=True), said("newer"))
    stored = await crowd.sessions.append_event(copies[2].model_copy(deep=True), said("again"))
    await crowd.sessions.delete_session(**OWN, session_id="3")
    await crowd.sessions.state.update_user({"text": "text"}, **OWN)
    good = appends(crowd, [copies[0], *copies[5:]], "good")
    bad = [
        crowd.sessions.append_event(copies[1], said("stale")),
        crowd.sessions.append_event(copies[2], stored),
        crowd.sessions.append_event(copies[3], said("gone")),
        crowd.sessions.append_event(copies[4], said("unfit", state={"user:text": Increment()})),
    ]

    results = await crowd.together([*good[:8], *bad, *good[8:]])

    stale, again, gone, unfit = results[8:12]
    assert type(stale) is StaleSessionError
    assert again is stored
    assert type(gone) is SessionNotFoundError
    assert type(unfit) is StateRejectedError
    assert not any(isinstance(result, BaseException) for result in results[:8] + results[12:])
    assert await crowd.said_in(0, 1, 2, 3, 4, 5) == {
        0: ["good"],
        1: ["newer"],
        2: ["again"],
        4: [],
        5: ["good"],
    }


@pytest.mark.parametrize("gives_up", [False, True], ids=["at commit", "in the middle"])
async def test_a_failing_transaction_fails_all_of_it(
    crowd: Crowd, fuse: Fuse, gives_up: bool
) -> None:
    """When SQLite gives a transaction up, every write in it is told, and nothing of it is there."""
    copies = await loaded(crowd)
    untouched = [copy.model_copy(deep=True) for copy in copies]
    fuse.gives_up = gives_up
    fuse.holding, fuse.only = ("7", "") if gives_up else (None, "COMMIT")
    fuse.set(1)

    results = await crowd.together(appends(crowd, copies, "lost"))

    assert {type(result) for result in results} == {StoreUnavailableError}
    assert len({id(result) for result in results}) == NEIGHBOURS
    assert copies == untouched
    assert await crowd.said_in(0, 7, 19) == {0: [], 7: [], 19: []}
    assert await crowd.sessions.get_user_state(**OWN) == {"first": 1}
    await asyncio.gather(*appends(crowd, copies, "kept"))
    assert await crowd.said_in(0, 7, 19) == {0: ["kept"], 7: ["kept"], 19: ["kept"]}


# --- No room


@pytest.fixture
def small_disk() -> Iterator[list[sqlite3.Connection]]:
    """Limits each connection's database to a few pages, and lists the connections."""
    connections: list[sqlite3.Connection] = []

    def restrict(connection: sqlite3.Connection, _record: object) -> None:
        connection.execute("PRAGMA max_page_count = 60")
        connections.append(connection)

    event.listen(Engine, "connect", restrict)
    yield connections
    event.remove(Engine, "connect", restrict)


async def test_a_full_database_is_an_error_and_not_the_end(
    tmp_path: Path, small_disk: list[sqlite3.Connection]
) -> None:
    """When the database cannot grow, the append fails whole; smaller ones and later ones do not."""
    async with DurableSessionService.from_url(file_url(tmp_path)) as sessions:
        session = await begun(sessions)
        with pytest.raises(StoreUnavailableError, match="full"):
            await sessions.append_event(session, said(LONG, state={"k": 5}))
        await goes_on(sessions, session, "first")
        for connection in small_disk:
            connection.execute("PRAGMA max_page_count = 100000")
        await sessions.append_event(session, said(LONG))
        await goes_on(sessions, session, "first", "next", LONG)


@pytest.fixture
def little_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk of 2 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = shutil.which("mount")
    arguments = [mount or "mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    if mount is None or subprocess.run(arguments, check=False, capture_output=True).returncode:
        pytest.skip("this user may not mount a small disk")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def fill(path: Path) -> None:
    """Writes a file until the disk is full."""
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while file.write(b"x" * 1024):
            pass
    assert os.statvfs(path.parent).f_bavail == 0


async def test_a_full_disk_is_an_error_and_not_the_end(little_folder: Path) -> None:
    """While somebody else fills the disk appends fail whole; when there is room they succeed."""
    rest = little_folder / "rest"
    async with DurableSessionService.from_url(file_url(little_folder)) as sessions:
        session = await begun(sessions)
        fill(rest)
        for _ in range(3):
            with pytest.raises(StoreUnavailableError, match="full"):
                await sessions.append_event(session, said(LONG, state={"k": 5}))
        assert await sessions.get_user_state(**OWN) == {"count": 0}
        rest.unlink()
        await sessions.append_event(session, said(LONG))
        await goes_on(sessions, session, "first", LONG)


async def test_a_disk_that_is_full_from_the_start_is_an_error(little_folder: Path) -> None:
    """Without room for the tables the first use fails; when there is room it succeeds."""
    rest = little_folder / "rest"
    async with DurableSessionService.from_url(file_url(little_folder)) as sessions:
        fill(rest)
        for _ in range(2):
            with pytest.raises(StoreUnavailableError):
                await sessions.create_session(**SESSION)
            with pytest.raises(StoreUnavailableError):
                await sessions.get_session(**SESSION)
        rest.unlink()
        await goes_on(sessions, await begun(sessions), "first")


def test_a_file_that_may_not_grow_is_an_error_and_not_the_end(tmp_path: Path) -> None:
    """In a process with a limit for the size of files, what fits is stored and the rest refused."""
    ((errors, stored),) = in_processes(1, write_past_the_limit, str(tmp_path))

    assert len(errors) == 2
    assert all("nothing was written" in error for error in errors)
    assert stored == ["first", "small", "xxxxx"]


# --- Locks


@asynccontextmanager
async def locked(path: Path, how: str) -> AsyncIterator[None]:
    """Holds a lock on the database as another process would."""
    with closing(connect(path, isolation_level=None)) as other:
        other.execute(f"BEGIN {how}")
        yield
        other.execute("ROLLBACK")


async def test_a_lock_past_the_limit_is_an_error(tmp_path: Path) -> None:
    """When another process holds the write lock for too long, nothing is written; later it is."""
    path = tmp_path / "sessions.db"
    async with DurableSessionService.from_url(file_url(tmp_path), busy_timeout=SOON) as sessions:
        session = await begun(sessions)
        async with locked(path, "IMMEDIATE"):
            for _ in range(2):
                with pytest.raises(StoreUnavailableError, match="locked"):
                    await sessions.append_event(session, said("second"))
            assert await sessions.get_session(**SESSION) is not None, "readers need not wait"
        await goes_on(sessions, session, "first")


@pytest.mark.parametrize("how", ["IMMEDIATE", "EXCLUSIVE"])
async def test_a_lock_at_the_first_use_is_an_error(tmp_path: Path, how: str) -> None:
    """When another process holds the file while it is opened, the next use opens it."""
    path = tmp_path / "sessions.db"
    async with DurableSessionService.from_url(file_url(tmp_path), busy_timeout=SOON) as sessions:
        async with locked(path, how):
            for _ in range(2):
                with pytest.raises(StoreUnavailableError, match="locked"):
                    await sessions.create_session(**SESSION)
                with pytest.raises(StoreUnavailableError, match="locked"):
                    await sessions.get_session(**SESSION)
                with pytest.raises(StoreUnavailableError, match="locked"):
                    await sessions.list_sessions(**OWN)
        await goes_on(sessions, await begun(sessions), "first")


async def test_a_lock_within_the_limit_is_waited_for(tmp_path: Path) -> None:
    """A write waits for another process's write to end."""
    path = tmp_path / "sessions.db"
    async with DurableSessionService.from_url(file_url(tmp_path)) as sessions:
        session = await begun(sessions)
        async with locked(path, "IMMEDIATE"):
            append = asyncio.ensure_future(sessions.append_event(session, said("second")))
            await asyncio.sleep(0.05)
            assert not append.done()
        await append
        await goes_on(sessions, session, "first", "second")


async def test_who_is_cancelled_while_a_file_is_locked_leaves_nothing(tmp_path: Path) -> None:
    """A write that has not begun when its caller is cancelled is not made up for later."""
    async with DurableSessionService.from_url(file_url(tmp_path)) as sessions:
        session = await begun(sessions)
        async with locked(tmp_path / "sessions.db", "IMMEDIATE"):
            append = asyncio.ensure_future(sessions.append_event(session, said("cancelled")))
            await asyncio.sleep(0.05)
            append.cancel()
            await asyncio.wait([append])
        await goes_on(sessions, session, "first")
