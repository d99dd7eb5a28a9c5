"""Whichever statement fails, in whichever operation: the documented error, and all or nothing."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import asynccontextmanager, closing
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions.database_session_service import DatabaseSessionService
from google.adk.sessions.session import Session

from adk_memory_ext import Increment, Remove
from adk_memory_ext.errors import CommitUnknownError, StoreError, StoreUnavailableError
from adk_memory_ext.service import DurableSessionService
from conversation import said, texts
from faults.fuse import Fuse, connect, corruption, fused, unconfirmed_sync
from tables import file_url

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("nothing_left")

OWN: Final[dict[str, Any]] = {"app_name": "app", "user_id": "user"}
KEY: Final[dict[str, Any]] = OWN | {"session_id": "session"}
FOREIGN: Final[dict[str, Any]] = OWN | {"session_id": "foreign"}
STATE: Final[dict[str, Any]] = {"app:n": 0, "user:n": 0, "k": 1}
CHANGES: Final[dict[str, Any]] = {"app:n": 5, "user:n": Increment(), "k": Remove(), "l": [1]}


@pytest.fixture
def fuse(monkeypatch: pytest.MonkeyPatch) -> Fuse:
    """A fuse in every connection of the services under test."""
    return fused(monkeypatch)


def dump(path: Path, *, ours: bool = True) -> list[str]:
    """Returns the whole content of a database, or that of ADK's tables."""
    with closing(connect(path)) as connection:
        return [line for line in connection.iterdump() if ours or "memext_" not in line]


class Scene(NamedTuple):
    """A service over a file in which something has happened."""

    sessions: DurableSessionService
    fresh: Session
    """The session, up to date."""
    stale: Session
    """A copy of the session that has not seen the last event."""
    first: Event
    """An event that is stored."""


@asynccontextmanager
async def scene(path: Path) -> AsyncIterator[Scene]:
    """Opens a service over a file with a session of ours, and one of plain ADK, still unseen."""
    url = file_url(path.parent)
    async with DurableSessionService.from_url(url) as sessions:
        session = await sessions.create_session(**KEY, state=STATE)
        first = await sessions.append_event(session, said("first"))
        stale = session.model_copy(deep=True)
        await sessions.append_event(session, said("second"))
        # Each reading thread has a connection of its own, and the first read opens one.
        assert await sessions.get_session(**KEY) is not None
        async with DatabaseSessionService(url) as plain:
            foreign = await plain.create_session(**FOREIGN)
            await plain.append_event(foreign, said("theirs"))
        yield Scene(sessions, session, stale, first)


def patch(delta: dict[str, Any]) -> Event:
    """Returns an event without content."""
    return Event(author="user", actions=EventActions(state_delta=dict(delta)))


async def append_to_foreign(here: Scene) -> None:
    """Appends to the session of plain ADK through a copy that says nothing of a revision."""
    copy = Session(app_name="app", user_id="user", id="foreign", last_update_time=2e9)
    await here.sessions.append_event(copy, patch({"l": 1}))


class Operation(NamedTuple):
    """Something that a caller asks for."""

    run: Callable[[Scene], Coroutine[Any, Any, Any]]
    statements: int
    """At least so many are in it."""


WRITES: Final = {
    "create": Operation(
        lambda here: here.sessions.create_session(**OWN, session_id="new", state=STATE), 9
    ),
    "append": Operation(
        lambda here: here.sessions.append_event(here.fresh, said("third", state=CHANGES)), 9
    ),
    "append housekeeping to a stale copy": Operation(
        lambda here: here.sessions.append_event(here.stale, patch(CHANGES)), 9
    ),
    "append to a session of plain adk": Operation(append_to_foreign, 12),
    "title": Operation(lambda here: here.sessions.set_session_title(**KEY, title="title"), 4),
    "title of a session of plain adk": Operation(
        lambda here: here.sessions.set_session_title(**FOREIGN, title="title"), 10
    ),
    # The rows; what follows, the verification, does not fail a deletion.
    "delete": Operation(lambda here: here.sessions.wrapped.delete_session(**KEY), 6),
    "change state": Operation(
        lambda here: here.sessions.state.update({"app:n": 1, "user:n": 2}, **OWN), 6
    ),
    "change state of a session": Operation(
        lambda here: here.sessions.state.update(CHANGES, **KEY), 10
    ),
}
READS: Final = {
    "append again": Operation(lambda here: here.sessions.append_event(here.fresh, here.first), 6),
    "get": Operation(lambda here: here.sessions.get_session(**KEY), 6),
    "list": Operation(lambda here: here.sessions.list_sessions(**OWN), 5),
    "user state": Operation(lambda here: here.sessions.get_user_state(**OWN), 3),
    "take in the session of plain adk": Operation(
        lambda here: here.sessions.get_session(**FOREIGN), 10
    ),
    "first page": Operation(lambda here: here.sessions.list_sessions_page("app"), 3),
}


async def outcome(work: Coroutine[Any, Any, Any]) -> Any:
    """Returns what came of an operation: its result, or what it raised."""
    return (await asyncio.gather(work, return_exceptions=True))[0]


by_operation = pytest.mark.parametrize(
    "operation", [*WRITES.values(), *READS.values()], ids=[*WRITES, *READS]
)


@by_operation
@pytest.mark.parametrize("for_good", [False, True], ids=["once", "for a while"])
async def test_a_statement_that_fails_leaves_nothing(
    tmp_path: Path, fuse: Fuse, operation: Operation, for_good: bool
) -> None:
    """When the disk fails at any statement, once or until it is mended, nothing has changed.

    What a read takes in of plain ADK's sessions may stay in our tables.
    """
    path = tmp_path / "sessions.db"
    is_write = operation in WRITES.values()
    async with scene(path) as here:
        before = dump(path, ours=is_write)
        copies = [copy.model_copy(deep=True) for copy in (here.fresh, here.stale)]
        fuse.for_good = for_good
        for statement in itertools.count():
            fuse.set(statement)
            failure = await outcome(operation.run(here))
            fuse.mend()
            if not fuse.has_blown:
                break
            # A read has what it needs when only its end fails.
            assert type(failure) is StoreUnavailableError or not is_write
            assert not isinstance(failure, Exception) or "nothing was written" in str(failure)
            assert dump(path, ours=is_write) == before
            assert [here.fresh, here.stale] == copies
        assert not isinstance(failure, Exception)
        assert statement >= operation.statements
        assert (dump(path, ours=is_write) != before) == is_write
        await assert_works(here.sessions)


@pytest.mark.parametrize("name", ["append", "create", "get"])
async def test_a_corrupt_page_is_another_error(tmp_path: Path, fuse: Fuse, name: str) -> None:
    """What retrying does not cure is a StoreError, and nothing has changed either."""
    path = tmp_path / "sessions.db"
    operation = (WRITES | READS)[name]
    fuse.error = corruption
    async with scene(path) as here:
        before = dump(path)
        for statement in itertools.count():
            fuse.set(statement)
            failure = await outcome(operation.run(here))
            if not isinstance(failure, Exception):
                break
            assert type(failure) is StoreError
            assert dump(path) == before
        fuse.mend()
        await assert_works(here.sessions)


@pytest.mark.parametrize("for_good", [False, True], ids=["once", "for a while"])
async def test_a_first_use_that_fails_leaves_all_tables_or_none(
    tmp_path: Path, fuse: Fuse, for_good: bool
) -> None:
    """Wherever the first use of a new file fails, the next one works; no table is half made."""
    path = tmp_path / "sessions.db"
    fuse.for_good = for_good
    stages = set()
    async with DurableSessionService.from_url(file_url(tmp_path)) as sessions:
        for statement in itertools.count():
            fuse.set(statement)
            try:
                await sessions.create_session(**KEY, state=STATE)
            except StoreUnavailableError:
                fuse.mend()
                made = [line.split("(")[0] for line in dump(path) if "CREATE" in line]
                stages.add(tuple(made))
                assert not any('INTO "sessions"' in line for line in dump(path))
                continue
            break
        assert len(stages) == 2
        assert () in stages
        fuse.mend()
        assert statement > 30
        await assert_works(sessions)


async def test_a_first_read_that_fails_is_read_again(tmp_path: Path, fuse: Fuse) -> None:
    """Wherever the first read fails, later reads work and nobody is kept from writing."""
    async with DurableSessionService.from_url(file_url(tmp_path)) as sessions:
        for statement in itertools.count():
            fuse.set(statement)
            try:
                assert await sessions.get_session(**KEY) is None
            except StoreUnavailableError:
                continue
            break
        fuse.mend()
        assert statement > 30
        await sessions.create_session(**KEY)
        await assert_works(sessions)


@pytest.mark.parametrize("verb", ["BEGIN", "COMMIT", "ROLLBACK"])
async def test_a_transaction_that_cannot_begin_or_end_leaves_nothing(
    tmp_path: Path, fuse: Fuse, verb: str
) -> None:
    """When BEGIN, COMMIT or the ROLLBACK after an error fails, nothing is kept."""
    path = tmp_path / "sessions.db"
    async with scene(path) as here:
        before = dump(path)
        fuse.only = verb
        fuse.set(0)
        event = said("third", state={"n": Increment(), "k": 2})
        if verb == "ROLLBACK":
            here.fresh.id = "gone"
        with pytest.raises(StoreUnavailableError):
            await here.sessions.append_event(here.fresh, event)
        assert dump(path) == before
        await assert_works(here.sessions)


async def test_a_commit_that_the_disk_does_not_confirm_is_unknown(
    tmp_path: Path, fuse: Fuse
) -> None:
    """Of such a commit the caller hears that nobody knows; appended again, it is one event."""
    async with scene(tmp_path / "sessions.db") as here:
        fuse.only, fuse.error = "COMMIT", unconfirmed_sync
        fuse.set(0)
        event = said("third", state={"n": Increment()})
        with pytest.raises(CommitUnknownError):
            await here.sessions.append_event(here.fresh, event)

        await here.sessions.append_event(here.fresh, event)

        found = await here.sessions.get_session(**KEY)
        assert found is not None
        assert texts(found.events) == ["first", "second", "third"]
        assert found.state["n"] == 1


async def assert_works(sessions: DurableSessionService) -> None:
    """Fails unless the service takes a session and events, also beside each other."""
    session = await sessions.create_session(**OWN, session_id="works")
    await sessions.append_event(session, said("one", state={"k": 1}))
    await sessions.append_event(session, said("two", state={"user:k": 2}))
    found = await sessions.get_session(**OWN, session_id="works")
    assert found is not None
    assert texts(found.events) == ["one", "two"]
    assert found.state["k"] == 1
    assert found.state["user:k"] == 2
