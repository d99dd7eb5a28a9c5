"""Copies of one session in several processes: who is refused, what is kept, what is left behind."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest
from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.sessions.session import Session

from adk_memory_ext import Extend, Increment, Maximum, Union
from adk_memory_ext.service import DurableSessionService
from backends import count
from conversation import replay, said, texts
from rivals import in_processes
from servers import execute
from tables import contents

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from pathlib import Path

OWNER: Final[dict[str, Any]] = {"app_name": "app", "user_id": "ann"}
KEY: Final[dict[str, Any]] = OWNER | {"session_id": "session"}
PROCESSES: Final = 4

pytestmark = pytest.mark.usefixtures("no_deadlock")


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database that several processes can open."""
    if request.param == "sqlite":
        return f"sqlite+aiosqlite:///{tmp_path}/sessions.db"
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


def opened(url: str) -> DurableSessionService:
    """Returns a service with few connections, because several processes have one each."""
    return DurableSessionService.from_url(
        url, pool_size=4, max_overflow=4, pool_timeout=timedelta(minutes=10)
    )


@pytest.fixture
async def sessions(url: str) -> AsyncIterator[DurableSessionService]:
    """A service over the database."""
    async with opened(url) as service:
        yield service


async def stored(sessions: DurableSessionService) -> Session:
    """Returns the session, which must be there."""
    session = await sessions.get_session(**KEY)
    assert session is not None
    return session


async def copies(sessions: DurableSessionService, number: int) -> list[Session]:
    """Returns copies of the session that were all loaded before anybody writes."""
    return await asyncio.gather(*(stored(sessions) for _ in range(number)))


def state_only(**delta: Any) -> Event:
    """Returns what ADK's PATCH of a session appends."""
    return Event(author="user", actions=EventActions(state_delta=delta))


async def named(work: Awaitable[Any]) -> str:
    """Returns `stored`, or the name of the error."""
    try:
        await work
    except Exception as error:  # noqa: BLE001  # the test looks at it
        return type(error).__name__
    return "stored"


@pytest.fixture
def no_deadlock(url: str) -> Iterator[None]:
    """Fails the test if PostgreSQL had to break a deadlock; MariaDB counts none for a database."""
    before = _deadlocks(url)
    yield
    assert _deadlocks(url) == before


def _deadlocks(url: str) -> int:
    """Returns how many there were; what a connection has counted is seen when it has ended."""
    if not url.startswith("postgresql"):
        return 0
    query = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    number: int = execute(url, query)[0][0]
    return number


def append_all(
    number: int, url: str, loaded: list[list[Session]], events: list[list[Event]]
) -> tuple[list[str], list[Session], list[Event]]:
    """Has one process append its events to its copies at once; what came of each."""

    async def run() -> list[str]:
        async with opened(url) as service:
            return await asyncio.gather(
                *(
                    named(service.append_event(session, event))
                    for session, event in zip(loaded[number], events[number], strict=True)
                )
            )

    return asyncio.run(run()), loaded[number], events[number]


async def raced(
    url: str, loaded: list[Session], events: list[Event]
) -> list[tuple[str, Session, Event]]:
    """Appends each event to its copy, in several processes at once; what came of each."""
    results = await asyncio.to_thread(
        in_processes,
        PROCESSES,
        append_all,
        url,
        [loaded[number::PROCESSES] for number in range(PROCESSES)],
        [events[number::PROCESSES] for number in range(PROCESSES)],
    )
    return [line for result in results for line in zip(*result, strict=True)]


async def test_of_stale_copies_in_several_processes_one_wins(
    url: str, sessions: DurableSessionService
) -> None:
    """A copy keeps its revision on its way to another process, and equal times help nobody."""
    await sessions.create_session(**KEY)
    events = [said(f"{n}", at=1000.0, state={f"k{n}": n, f"user:k{n}": n}) for n in range(20)]
    lines = await raced(url, await copies(sessions, 20), events)

    (winner,) = [event for outcome, _, event in lines if outcome == "stored"]
    assert sorted(outcome for outcome, _, _ in lines) == ["StaleSessionError"] * 19 + ["stored"]
    read = await stored(sessions)
    assert read.events == [winner]
    assert read.state == winner.actions.state_delta
    for outcome, session, event in lines:
        if outcome == "stored":
            assert session == read
        else:
            assert (session.events, session.state) == ([], {})
            assert event == events[int(texts([event])[0])]
    assert len(contents(url, prefix="events")["events"]) == 1
    assert len(contents(url, prefix="memext_events")["memext_events"]) == 1


async def test_state_only_events_of_several_processes_are_all_applied(
    url: str, sessions: DurableSessionService
) -> None:
    """20 stale copies PATCH the session while a turn runs in it: nobody is refused."""
    session = await sessions.create_session(**KEY, state={"n": 0})
    loaded = await copies(sessions, 20)
    await sessions.append_event(session, said("a turn begins"))
    events = [
        state_only(
            **{f"k{n}": n, "n": Increment(), "list": Extend([n]), "user:set": Union([n % 3])},
            **{"app:max": Maximum(n)},
        )
        for n in range(20)
    ]
    race = asyncio.create_task(raced(url, loaded, events))
    turns = 0
    while not race.done():
        await sessions.append_event(session, said(f"{turns}", state={"turn": turns}))
        turns += 1
    assert [outcome for outcome, _, _ in await race] == ["stored"] * 20

    read = await stored(sessions)
    assert [text for text in texts(read.events) if text][1:] == [f"{n}" for n in range(turns)]
    assert read.state["n"] == 20
    assert sorted(read.state["list"]) == list(range(20))
    assert sorted(read.state["user:set"]) == [0, 1, 2]
    assert read.state["app:max"] == 19
    assert read.state.items() >= {f"k{n}": n for n in range(20)}.items()
    assert replay(read.events, {"n": 0}) == read.state


async def test_one_event_delivered_by_several_processes_is_one_event(
    url: str, sessions: DurableSessionService
) -> None:
    """Whoever delivers it has it afterwards, and can go on if nobody else has."""
    await sessions.create_session(**KEY)
    event = said("once", state={"user:n": Increment(), "list": Extend([1])})
    given = [event.model_copy(deep=True) for _ in range(20)]
    lines = await raced(url, await copies(sessions, 20), given)
    assert [outcome for outcome, _, _ in lines] == ["stored"] * 20
    read = await stored(sessions)
    assert read.state == {"user:n": 1, "list": [1]}
    for _, session, returned in lines:
        assert session == read
        assert [returned] == read.events
    await sessions.append_event(lines[7][1], said("next"))
    with pytest.raises(StaleSessionError):
        await sessions.append_event(lines[8][1], said("too late"))


async def test_different_events_under_one_id_leave_one(
    url: str, sessions: DurableSessionService
) -> None:
    """One of them is stored; each other one is an error, whether its copy is stale or not."""
    await sessions.create_session(**KEY)
    events = [said(f"{n}").model_copy(update={"id": "one"}) for n in range(20)]
    lines = await raced(url, await copies(sessions, 20), events)
    outcomes = sorted(outcome for outcome, _, _ in lines)
    assert outcomes == ["AlreadyExistsError"] * 19 + ["stored"]
    fresh = await stored(sessions)
    assert len(fresh.events) == 1
    with pytest.raises(AlreadyExistsError):
        await sessions.append_event(fresh, said("again").model_copy(update={"id": "one"}))


async def test_a_late_second_delivery_does_not_hide_what_its_copy_has_not_seen(
    sessions: DurableSessionService,
) -> None:
    """A copy that delivers a stored event again is still stale for what came before it."""
    session = await sessions.create_session(**KEY)
    behind = await stored(sessions)
    await sessions.append_event(session, said("unseen"))
    last = said("last")
    await sessions.append_event(session, last)
    await sessions.append_event(behind, last.model_copy(deep=True))
    assert texts(behind.events) == ["last"]
    with pytest.raises(StaleSessionError):
        await sessions.append_event(behind, said("an answer to half of the conversation"))

    # A PATCH before and after it is no content.
    session = await stored(sessions)
    retrying = await stored(sessions)
    await sessions.state.update({"a": 1}, **KEY)
    event = said("retried")
    await sessions.append_event(session, event)
    await sessions.state.update({"b": 1}, **KEY)
    await sessions.append_event(retrying, event.model_copy(deep=True))
    await sessions.append_event(retrying, said("goes on"))


@pytest.mark.parametrize("at", [1000.0, None])
async def test_a_session_rebuilt_from_json_is_refused_when_others_have_appended(
    at: float | None, sessions: DurableSessionService
) -> None:
    """It knows no revision: its last event decides, whatever the times of events are."""
    created = await sessions.create_session(**KEY)
    rebuilt, behind = [Session.model_validate_json(created.model_dump_json()) for _ in range(2)]
    await sessions.append_event(rebuilt, said("one", at=at))
    await sessions.append_event(rebuilt, said("two", at=at))
    for late in (behind, created):
        with pytest.raises(StaleSessionError):
            await sessions.append_event(late, said("late", at=at))
    again = Session.model_validate_json((await stored(sessions)).model_dump_json())
    window = GetSessionConfig(num_recent_events=0)
    empty = await sessions.get_session(**KEY, config=window)
    assert empty is not None
    await sessions.append_event(
        Session.model_validate_json(empty.model_dump_json()), said("three", at=at)
    )
    with pytest.raises(StaleSessionError):
        await sessions.append_event(again, said("late", at=at))
    assert texts((await stored(sessions)).events) == ["one", "two", "three"]


async def test_parallel_appends_to_one_session_object_are_one_after_the_other(
    sessions: DurableSessionService,
) -> None:
    """Many sessions with twelve appends at once each: all wait and all succeed, in order."""
    number = count(30, 150)
    talks = [await sessions.create_session(**OWNER, session_id=f"{n}") for n in range(number)]
    await asyncio.gather(
        *(
            sessions.append_event(session, said(f"{n}", state={"user:n": Increment()}))
            for n in range(12)
            for session in talks
        )
    )
    assert await sessions.get_user_state(**OWNER) == {"n": 12 * number}
    for session in talks[:: max(1, number // 10)]:
        read = await sessions.get_session(**OWNER, session_id=session.id)
        assert read is not None
        assert texts(read.events) == [f"{n}" for n in range(12)]
        assert read.events == session.events


def make_and_erase(number: int, url: str, rounds: int) -> list[str]:
    """Creates, erases and appends to a few sessions that everybody else does this to as well."""

    async def step(service: DurableSessionService, turn: int) -> None:
        key = {**OWNER, "session_id": f"{(number + turn) % 3}"}
        session = await service.get_or_create_session(**key, state={"user:made": Increment()})
        await service.append_event(session, said("x", state={"a": turn, "user:n": Increment()}))
        await service.state.update({"n": Increment()}, **key)
        if turn % 2:
            await service.delete_session(**key)

    async def run() -> list[str]:
        async with opened(url) as service:
            return await asyncio.gather(*(named(step(service, turn)) for turn in range(rounds)))

    return asyncio.run(run())


async def test_creating_erasing_and_appending_at_once_leaves_no_halves(
    url: str, sessions: DurableSessionService
) -> None:
    """Each call succeeds or is refused for what another one did; no row is left without its own."""
    results = await asyncio.to_thread(in_processes, PROCESSES, make_and_erase, url, count(12, 80))
    allowed = {"stored", StaleSessionError.__name__, SessionNotFoundError.__name__}
    assert {outcome for result in results for outcome in result} <= allowed

    for session in (await sessions.list_sessions(app_name="app")).sessions:
        read = await sessions.get_session(**OWNER, session_id=session.id)
        assert read is not None
        own = {key: value for key, value in read.state.items() if ":" not in key}
        log = {key: value for key, value in replay(read.events).items() if ":" not in key}
        assert own == log
        await sessions.append_event(read, said("goes on"))
        await sessions.delete_session(**OWNER, session_id=session.id)
    left = contents(url)
    assert {name for name, rows in left.items() if rows} <= {
        *("adk_internal_metadata", "app_states", "user_states", "memext_migrations"),
        "memext_receipts",
    }


def write_in_any_order(number: int, url: str, rounds: int) -> list[str]:
    """Changes app, user and session state, together and alone, in an order of its own."""

    async def talk(service: DurableSessionService, task: int) -> None:
        name = f"{number}-{task}"
        session = await service.create_session(
            **OWNER, session_id=name, state={"user:n": Increment(), "app:n": Increment()}
        )
        steps: list[Callable[[], Awaitable[Any]]] = [
            lambda: service.append_event(session, said("a", state={"user:n": Increment()})),
            lambda: service.append_event(session, said("b", state={"app:n": Increment()})),
            lambda: service.append_event(
                session, said("c", state={"app:n": Increment(), "user:n": Increment(), "n": 1})
            ),
            lambda: service.state.update({"user:n": Increment(), "app:n": Increment()}, **OWNER),
            lambda: service.state.update({"user:n": Increment(), "n": 2}, **OWNER, session_id=name),
            lambda: service.state.increment("app:n", app_name="app"),
        ]
        for turn in range(rounds):
            await steps[(task + number + turn) % len(steps)]()
        await service.delete_session(**OWNER, session_id=name)

    async def run() -> list[str]:
        async with opened(url) as service:
            return await asyncio.gather(*(named(talk(service, task)) for task in range(6)))

    return asyncio.run(run())


async def test_writers_of_all_scopes_wait_for_each_other_in_one_order(
    url: str, sessions: DurableSessionService
) -> None:
    """No deadlock, no lost increment: 4 processes that touch the same app and user throughout."""
    rounds = 6 * count(1, 10)
    results = await asyncio.to_thread(in_processes, PROCESSES, write_in_any_order, url, rounds)
    assert [outcome for result in results for outcome in result] == ["stored"] * PROCESSES * 6
    talks = PROCESSES * 6
    # Of six steps four count for the user and four for the app.
    total = talks + talks * rounds * 4 // 6
    assert await sessions.get_user_state(**OWNER) == {"n": total}
    assert await sessions.state.increment("app:n", 0, app_name="app") == total
