"""The service's face: ADK's whole interface, ownership, creation under a race, and time order."""

from __future__ import annotations

import asyncio
import inspect
import math
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import pytest
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.sessions.base_session_service import BaseSessionService, GetSessionConfig
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from hypothesis import given
from hypothesis import strategies as st

from adk_memory_ext.errors import ConfigurationError, StateRejectedError, StoreUnavailableError
from adk_memory_ext.service import DurableSessionService
from backends import OURS, OURS_MARIADB
from conversation import said, texts
from rivals import get_or_create, in_processes, write_user_keys
from servers import execute

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from google.adk.events.event import Event
    from google.adk.sessions.session import Session

    from backends import Place

pytestmark = pytest.mark.usefixtures("nothing_left")

OWNER: Final[dict[str, Any]] = {"app_name": "app", "user_id": "user"}
KEY: Final[dict[str, Any]] = OWNER | {"session_id": "session"}
TASKS: Final = 50
PROCESSES: Final = 4


def listing(folder: Path) -> list[str]:
    """Returns the names of what lies in a folder."""
    return sorted(path.name for path in folder.iterdir())


# --- ADK's interface


def public_methods(service: type) -> set[str]:
    """Returns the names of the methods that ADK's interface declares."""
    return {
        name
        for name, value in vars(service).items()
        if inspect.isfunction(value) and not name.startswith("_")
    }


def test_every_method_of_adks_interface_is_overridden() -> None:
    """A method that a new ADK adds to the interface turns this red until it is delegated."""
    assert public_methods(BaseSessionService) - public_methods(DurableSessionService) == set()


@pytest.mark.parametrize("name", sorted(public_methods(BaseSessionService)))
def test_each_method_takes_what_adks_takes(name: str) -> None:
    """Names, kinds and defaults of the parameters are those of ADK's interface."""

    def shape(method: Callable[..., Any]) -> list[tuple[str, object, object]]:
        parameters = inspect.signature(method).parameters.values()
        return [(item.name, item.kind, item.default) for item in parameters]

    ours: Callable[..., Any] = getattr(DurableSessionService, name)
    adks: Callable[..., Any] = getattr(BaseSessionService, name)
    assert shape(ours) == shape(adks)
    assert inspect.iscoroutinefunction(ours) == inspect.iscoroutinefunction(adks)


class RecordingService(InMemorySessionService):
    """Notes what it is asked, and answers as the service in memory does."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, dict[str, Any]]] = []

    async def flush(self) -> None:
        """Notes the call."""
        self.calls.append(("flush", {}))

    async def append_event(self, session: Session, event: Event) -> Event:
        """Notes the call."""
        self.calls.append(("append_event", {"session": session, "event": event}))
        return await super().append_event(session, event)


async def test_a_call_reaches_the_wrapped_service_once() -> None:
    """An event is appended once, with the caller's own objects, and a flush is handed on."""
    wrapped = RecordingService()
    sessions = DurableSessionService(wrapped)
    session = await sessions.create_session(**KEY)
    event = said("once")
    assert await sessions.append_event(session, event) is event
    await sessions.flush()
    assert sessions.wrapped is wrapped
    assert wrapped.calls == [("append_event", {"session": session, "event": event}), ("flush", {})]
    assert texts(session.events) == ["once"]


@pytest.mark.parametrize("wrapped", [None, InMemorySessionService()], ids=["ours", "adks"])
async def test_a_partial_event_passes_untouched(
    wrapped: BaseSessionService | None, sessions: DurableSessionService
) -> None:
    """A partial event is returned as it came, with its own time, and is not stored."""
    sessions = sessions if wrapped is None else DurableSessionService(wrapped)
    await sessions.delete_session(**KEY)
    session = await sessions.create_session(**KEY)
    event = said("half", at=1.5)
    event.partial = True
    assert await sessions.append_event(session, event) is event
    assert event.timestamp == 1.5
    assert session.events == []
    read = await sessions.get_session(**KEY)
    assert read is not None
    assert read.events == []


# --- Ownership


async def test_a_service_of_its_own_is_closed_with_its_connections(
    sessions: DurableSessionService, place: Place
) -> None:
    """After `close` nothing is open any more: the file can be deleted, the server is free."""
    await sessions.create_session(**KEY)
    await sessions.close()
    await sessions.close()
    assert listing(place.folder) in ([], ["sessions.db"])


class ClosableService(InMemorySessionService):
    """Notes whether it was closed."""

    closed = False

    async def close(self) -> None:
        """Notes the call."""
        self.closed = True


async def test_a_borrowed_service_stays_open() -> None:
    """Whoever made the wrapped service closes it."""
    wrapped = ClosableService()
    async with DurableSessionService(wrapped) as sessions:
        await sessions.create_session(**KEY)
    await sessions.close()
    assert not wrapped.closed


async def test_an_error_inside_the_block_closes_the_service_and_goes_on(tmp_path: Path) -> None:
    """`async with` closes the service on the way out and lets the error through."""

    async def fail() -> None:
        async with DurableSessionService.from_url(f"sqlite:///{tmp_path}/sessions.db") as sessions:
            await sessions.create_session(**KEY)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert listing(tmp_path) == ["sessions.db"]


def test_an_unknown_option_is_named() -> None:
    """A misspelt option is refused, with those that exist."""
    with pytest.raises(ConfigurationError, match="'synchronus'; there are busy_timeout"):
        DurableSessionService.from_url("", synchronus="FULL")


# --- get_or_create_session


async def test_the_state_is_the_creators(sessions: DurableSessionService) -> None:
    """`state` is used by the call that creates the session and ignored by every later one."""
    first = await sessions.get_or_create_session(**KEY, state={"a": 1, "user:b": 2})
    again = await sessions.get_or_create_session(**KEY, state={"a": 3, "user:c": 4})
    assert first.state == again.state == {"a": 1, "user:b": 2}
    assert await sessions.get_user_state(**OWNER) == {"b": 2}


async def test_an_existing_session_comes_with_its_events(sessions: DurableSessionService) -> None:
    """A session that is already there is returned whole and can be appended to."""
    session = await sessions.create_session(**KEY)
    await sessions.append_event(session, said("first"))
    found = await sessions.get_or_create_session(**KEY)
    await sessions.append_event(found, said("second"))
    assert texts(found.events) == ["first", "second"]


async def test_of_many_tasks_one_creates_the_session(sessions: DurableSessionService) -> None:
    """Tasks that race all get the same session, with the state of one of them only."""
    found = await asyncio.gather(
        *(
            sessions.get_or_create_session(**KEY, state={"creator": task, f"only-{task}": True})
            for task in range(TASKS)
        )
    )
    states = [session.state for session in found]
    creator = states[0]["creator"]
    assert states == [{"creator": creator, f"only-{creator}": True}] * TASKS
    assert len((await sessions.list_sessions(**OWNER)).sessions) == 1


@pytest.mark.parametrize("storage", ["sqlite", "postgresql"])
def test_of_many_processes_one_creates_the_session(
    storage: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Processes that race, on a database that none of them has opened before, agree as well."""
    url = f"sqlite:///{tmp_path}/sessions.db"
    if storage == "postgresql":
        url = request.getfixturevalue("postgresql_url")
    answers = [
        answer for found in in_processes(PROCESSES, get_or_create, url, TASKS) for answer in found
    ]
    creator = answers[0][1]["creator"]
    state = {"creator": creator, f"only-{creator}": True}
    assert answers == [("session", state)] * (PROCESSES * TASKS)


class ContrarySessionService(InMemorySessionService):
    """Behaves as if another process created the session before each create and deleted it after."""

    async def get_session(self, **_arguments: Any) -> None:
        """Returns None: it is deleted already."""

    async def create_session(self, **_arguments: Any) -> Session:
        """Raises: it is there again."""
        raise AlreadyExistsError


async def test_a_race_that_cannot_be_won_ends_in_an_error() -> None:
    """Where others create and delete the session without end, the caller is told to try again."""
    with pytest.raises(StoreUnavailableError, match="'session' was created and deleted by others"):
        await DurableSessionService(ContrarySessionService()).get_or_create_session(**KEY)


# --- Scoped state under parallel writers


async def test_parallel_sessions_lose_no_user_state(tmp_path: Path) -> None:
    """Twenty sessions of one user that write five keys each at once leave a hundred keys."""
    async with DurableSessionService.from_url(f"sqlite:///{tmp_path}/sessions.db") as sessions:

        async def talk(name: str) -> None:
            session = await sessions.create_session(**OWNER, session_id=name)
            for key in range(5):
                event = said("noted", state={f"user:{name}-{key}": key})
                await sessions.append_event(session, event)

        await asyncio.gather(*(talk(str(number)) for number in range(20)))
        stored = await sessions.get_user_state(**OWNER)
    assert stored == {f"{number}-{key}": key for number in range(20) for key in range(5)}


async def test_parallel_processes_lose_no_user_state(tmp_path: Path) -> None:
    """Processes that write keys of one user into one file at once lose none of them."""
    url = f"sqlite:///{tmp_path}/sessions.db"
    await asyncio.to_thread(in_processes, PROCESSES, write_user_keys, url, 4, 5)
    async with DurableSessionService.from_url(url) as sessions:
        stored = await sessions.get_user_state(**OWNER)
    assert stored == {
        f"{process}-{talk}-{key}": key
        for process in range(PROCESSES)
        for talk in range(4)
        for key in range(5)
    }


# --- Order in time


def microseconds(timestamp: float) -> int:
    """Returns a time as a database keeps it."""
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    return (datetime.fromtimestamp(timestamp, UTC) - epoch) // timedelta(microseconds=1)


NOW: Final = datetime.now(UTC).timestamp()
TIMES: Final = st.one_of(
    st.floats(-1e9, 1e9),
    st.sampled_from([0.0, -0.0, 1.0, NOW, NOW + 1e-7, NOW + 1e-6, NOW + 3600]),
    st.floats(NOW - 1e-3, NOW + 1e-3),
    st.floats(8e9, 2.5e11),  # beyond the year 2242 a float keeps no single microseconds
)


def test_read_order_is_append_order_whatever_the_times_are(tmp_path: Path) -> None:
    """Stored times rise by whole microseconds at least, and the returned event carries its own."""
    sessions = DurableSessionService.from_url(f"sqlite:///{tmp_path}/sessions.db")

    async def talk(times: list[float]) -> tuple[list[Event], list[Event]]:
        session = await sessions.create_session(**OWNER)
        events = [said(str(number), at=time) for number, time in enumerate(times)]
        returned = [await sessions.append_event(session, event) for event in events]
        read = await sessions.get_session(**OWNER, session_id=session.id)
        assert read is not None
        return returned, read.events

    with asyncio.Runner() as runner:

        @given(times=st.lists(TIMES, min_size=2, max_size=8))
        def check(times: list[float]) -> None:
            returned, read = runner.run(talk(times))
            assert texts(read) == [str(number) for number in range(len(times))]
            assert read == returned
            stored = [microseconds(event.timestamp) for event in read]
            assert all(earlier < later for earlier, later in pairwise(stored))

        try:
            check()
        finally:
            runner.run(sessions.close())


@pytest.mark.parametrize("time", [math.nan, math.inf, -math.inf, 1e300, 253402300800.0, -1e12])
async def test_a_time_that_no_calendar_has_is_refused(
    time: float, sessions: DurableSessionService
) -> None:
    """A time that is no number, or of no year from 1 to 9999, is refused and nothing is stored."""
    session = await sessions.create_session(**KEY, state={"kept": 1})
    with pytest.raises(StateRejectedError, match=r"'timestamp' .* nothing was written"):
        await sessions.append_event(session, said("never", at=time, state={"lost": 1}))
    assert session.events == []
    assert session.state == {"kept": 1}
    read = await sessions.append_event(session, said("next"))
    assert read is session.events[-1]
    stored = await sessions.get_session(**KEY)
    assert stored is not None
    assert texts(stored.events) == ["next"]
    assert stored.state == {"kept": 1}


async def test_tasks_that_share_a_session_keep_their_order(
    sessions: DurableSessionService,
) -> None:
    """Events that tasks append to one session object at once are read as they came into it."""
    session = await sessions.create_session(**KEY)
    same = datetime.now(UTC).timestamp()
    await asyncio.gather(
        *(sessions.append_event(session, said(str(number), at=same)) for number in range(20))
    )
    read = await sessions.get_session(**KEY)
    assert read is not None
    assert texts(read.events) == texts(session.events)
    assert sorted(texts(read.events), key=int) == [str(number) for number in range(20)]
    assert len({microseconds(event.timestamp) for event in read.events}) == 20


async def test_an_event_after_a_windowed_load_comes_last(sessions: DurableSessionService) -> None:
    """A session loaded without its events still knows after which one the next event comes."""
    session = await sessions.create_session(**KEY)
    later = datetime.now(UTC).timestamp() + 3600
    await sessions.append_event(session, said("first", at=later))
    windowed = await sessions.get_session(**KEY, config=GetSessionConfig(num_recent_events=0))
    assert windowed is not None
    assert windowed.events == []
    await sessions.append_event(windowed, said("second", at=later - 60))
    read = await sessions.get_session(**KEY)
    assert read is not None
    assert texts(read.events) == ["first", "second"]


async def test_an_operation_on_a_file_goes_to_its_thread_and_back_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it is made of: a change of thread costs as much as several statements."""
    loop = asyncio.get_running_loop()
    wakes: list[object] = []
    wake = loop.call_soon_threadsafe

    def counted(*call: Any, **options: Any) -> asyncio.Handle:
        wakes.append(call)
        return wake(*call, **options)

    monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
    state = {"k": 1, "user:k": 1, "app:k": 1}
    async with DurableSessionService.from_url(f"sqlite:///{tmp_path}/sessions.db") as sessions:
        session = await sessions.create_session(**KEY)
        await sessions.list_sessions_page("app")  # looks for sessions of plain ADK, once
        operations: dict[str, Callable[[], Any]] = {
            "create": lambda: sessions.create_session(**OWNER, state=state),
            "append": lambda: sessions.append_event(session, said("x", state=state)),
            "get": lambda: sessions.get_session(**KEY),
            "list": lambda: sessions.list_sessions(**OWNER),
            "page": lambda: sessions.list_sessions_page("app"),
            "state of a user": lambda: sessions.get_user_state(**OWNER),
            "change state": lambda: sessions.state.update(state, **KEY),
        }
        found = {}
        for name, operation in operations.items():
            wakes.clear()
            await operation()
            found[name] = len(wakes)
        assert found == dict.fromkeys(operations, 1)


@pytest.mark.parametrize("backend", [*OURS, OURS_MARIADB], ids=lambda backend: backend.name)
async def test_any_number_of_recent_events_may_be_asked_for(
    sessions: DurableSessionService,
) -> None:
    """More than there are means all, also where no database knows the number."""
    session = await sessions.create_session(**KEY)
    for number in (2**31, 2**63, 10**30):
        config = GetSessionConfig(num_recent_events=number)
        for after in (None, 1.0):
            config.after_timestamp = after
            read = await sessions.get_session(**KEY, config=config)
            assert read == session
        await sessions.append_event(session, said("one more"))


async def test_another_service_on_the_wrapped_one_sees_the_same_order(
    postgresql_url: str,
) -> None:
    """Times are raised in what is stored, so that the server's own order by time is the order."""
    async with DurableSessionService.from_url(postgresql_url) as sessions:
        session = await sessions.create_session(**KEY)
        for number in range(10):
            await sessions.append_event(session, said(str(number), at=0.0))
        ids = [event.id for event in session.events]
    rows = execute(postgresql_url, "SELECT id FROM events ORDER BY timestamp")
    assert [row[0] for row in rows] == ids


async def test_what_a_foreign_service_cannot_hold_has_a_database_of_its_own(
    tmp_path: Path,
) -> None:
    """`store` opens a database beside a foreign service; ours has one already and refuses it."""
    url = f"sqlite:///{tmp_path}/own.db"
    async with DurableSessionService(InMemorySessionService(), store=url) as sessions:
        assert sessions.database is not None
        await sessions.database.read(lambda _tx: None)
        assert (tmp_path / "own.db").exists()
    with pytest.raises(StoreUnavailableError, match="closed"):
        await sessions.database.read(lambda _tx: None)
    assert DurableSessionService(InMemorySessionService()).database is None
    async with DurableSessionService.from_url("") as sessions:
        assert sessions.database is not None
        with pytest.raises(ConfigurationError, match="leave `store` out"):
            DurableSessionService(sessions.wrapped, store=url)
