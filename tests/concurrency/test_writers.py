"""Many writers at once, in tasks and in processes: nothing is lost, and log and state agree."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import pytest
from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions, EventCompaction
from google.genai import types

from adk_memory_ext.service import DurableSessionService
from adk_memory_ext.state_changes import Increment, Union
from backends import count
from conversation import replay, said, texts
from rivals import in_processes

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from google.adk.sessions.session import Session

APP = "app"
USER = "user"
OWN: Final[dict[str, Any]] = {"app_name": APP, "user_id": USER}
SHARED: Final[dict[str, Any]] = {**OWN, "session_id": "shared"}


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of an empty database that several processes can open."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path_factory.mktemp('writers')}/sessions.db"
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


def opened(url: str) -> DurableSessionService:
    """Returns a service with few connections, because several processes have one each."""
    return DurableSessionService.from_url(url, pool_size=4, max_overflow=4)


async def loaded(sessions: DurableSessionService) -> Session:
    """Returns a copy of the shared session."""
    session = await sessions.get_session(**SHARED)
    assert session is not None
    return session


async def outcomes(work: list[Coroutine[Any, Any, Any]]) -> list[Any]:
    """Returns what each of them returned or raised, all begun at once."""
    return await asyncio.gather(*work, return_exceptions=True)


def keep_writing(number: int, url: str, tasks: int) -> None:
    """Creates sessions and appends to them at once, with keys of their own in each scope."""

    async def one(sessions: DurableSessionService, name: str) -> None:
        at_creation = {f"user:made-{name}": name, f"app:made-{name}": name}
        session = await sessions.create_session(**OWN, session_id=name, state=at_creation)
        state = {f"user:said-{name}": name, f"app:said-{name}": name, "own": name}
        await sessions.append_event(
            session,
            said(name, state={**state, "user:total": Increment(1), "app:all": Union([name])}),
        )

    async def run() -> None:
        async with opened(url) as sessions:
            await asyncio.gather(*(one(sessions, f"{number}-{task}") for task in range(tasks)))

    asyncio.run(run())


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_writers_of_scoped_state_lose_nothing(url: str, processes: int) -> None:
    """Whoever creates sessions or appends to them at once, every key of every scope is kept."""
    tasks = count(64, 256) // processes
    in_processes(processes, keep_writing, url, tasks)

    async def found() -> tuple[dict[str, Any], Session | None]:
        async with opened(url) as sessions:
            state = await sessions.get_user_state(**OWN)
            return state, await sessions.get_session(**OWN, session_id="0-0")

    user_state, session = asyncio.run(found())
    names = {f"{number}-{task}" for number in range(processes) for task in range(tasks)}
    assert session is not None
    app_state = {key: value for key, value in session.state.items() if key.startswith("app:")}
    assert {key for key in user_state if key != "total"} == {
        f"{verb}-{name}" for verb in ("made", "said") for name in names
    }
    assert user_state["total"] == len(names)
    assert set(app_state.pop("app:all")) == names
    assert set(app_state) == {f"app:{verb}-{name}" for verb in ("made", "said") for name in names}


def take_turns(_number: int, url: str, appends: int) -> int:
    """Appends to the shared session, loading it anew when it was stale; how often it was."""

    async def run() -> int:
        refused = 0
        async with opened(url) as sessions:
            session = await loaded(sessions)
            done = 0
            while done < appends:
                state = {f"key-{len(session.events)}": done, "user:count": Increment(1)}
                try:
                    await sessions.append_event(session, said("hello", state=state))
                    done += 1
                except StaleSessionError:
                    refused += 1
                    session = await loaded(sessions)
        return refused

    return asyncio.run(run())


def test_log_and_state_agree_after_writers_of_one_session(url: str) -> None:
    """Four processes that append to one session leave a log whose replay is the state."""
    appends = count(8, 60)

    async def begin() -> None:
        async with opened(url) as sessions:
            await sessions.create_session(**SHARED)

    asyncio.run(begin())
    in_processes(4, take_turns, url, appends)

    async def found() -> Session:
        async with opened(url) as sessions:
            return await loaded(sessions)

    session = asyncio.run(found())
    assert len(session.events) == 4 * appends
    assert replay(session.events) == session.state
    assert session.state["user:count"] == 4 * appends


async def test_of_stale_copies_one_wins(sessions: DurableSessionService) -> None:
    """Of 20 copies that append content at once, also at equal times, one is stored whole."""
    await sessions.create_session(**SHARED)
    copies = [await loaded(sessions) for _ in range(20)]

    results = await outcomes(
        [
            sessions.append_event(copy, said(f"{number}", at=7.0, state={f"k{number}": number}))
            for number, copy in enumerate(copies)
        ]
    )

    winners = [number for number, result in enumerate(results) if isinstance(result, Event)]
    assert [type(result) for result in results].count(StaleSessionError) == 19
    session = await loaded(sessions)
    assert texts(session.events) == [f"{winners[0]}"]
    assert session.state == {f"k{winners[0]}": winners[0]}
    for number, copy in enumerate(copies):
        if number not in winners:
            assert copy.events == []
            assert copy.state == {}


async def test_stale_state_only_events_are_all_applied(sessions: DurableSessionService) -> None:
    """What ADK's PATCH appends is applied key by key to the session as it is by then."""
    await sessions.create_session(**SHARED)
    copies = [await loaded(sessions) for _ in range(20)]
    running = await loaded(sessions)

    results = await outcomes(
        [
            *(
                sessions.append_event(
                    copy,
                    Event(
                        author="user",
                        invocation_id=f"p-{number}",
                        actions=EventActions(state_delta={f"k{number}": number, "last": number}),
                    ),
                )
                for number, copy in enumerate(copies)
            ),
            sessions.append_event(running, said("a turn", state={"turn": True})),
        ]
    )

    assert [result for result in results if isinstance(result, BaseException)] == []
    await sessions.append_event(running, said("and its next event"))
    session = await loaded(sessions)
    last = session.state.pop("last")
    assert session.state == {f"k{number}": number for number in range(20)} | {"turn": True}
    assert replay(session.events) == session.state | {"last": last}


async def test_a_summary_makes_no_turn_stale(sessions: DurableSessionService) -> None:
    """ADK's compaction event is stored from a stale copy; a turn that runs meanwhile goes on."""
    first = await sessions.create_session(**SHARED)
    await sessions.append_event(first, said("one"))
    running = await loaded(sessions)
    await sessions.append_event(running, said("two"))

    summary = EventCompaction(
        start_timestamp=0.0,
        end_timestamp=1.0,
        compacted_content=types.Content(role="model", parts=[types.Part(text="sum")]),
    )
    await sessions.append_event(
        first,
        Event(author="user", invocation_id="c", actions=EventActions(compaction=summary)),
    )
    await sessions.append_event(running, said("three"))

    session = await loaded(sessions)
    assert texts(session.events) == ["one", "two", "", "three"]
    assert session.events[2].actions.compaction == summary


async def test_a_session_that_was_made_anew_takes_no_old_copy(
    sessions: DurableSessionService,
) -> None:
    """After an erase and a new creation under the same id, an old copy cannot append anything."""
    old = await sessions.create_session(**SHARED)
    await sessions.delete_session(**SHARED)
    await sessions.create_session(**SHARED)

    for event in (
        said("content"),
        Event(author="user", invocation_id="p", actions=EventActions(state_delta={"k": 1})),
    ):
        with pytest.raises(StaleSessionError):
            await sessions.append_event(old, event)
    session = await loaded(sessions)
    assert (session.events, session.state) == ([], {})


async def test_one_event_delivered_often_is_one_event(sessions: DurableSessionService) -> None:
    """An event that is appended 20 times at once, by as many copies, is stored once."""
    await sessions.create_session(**SHARED)
    copies = [await loaded(sessions) for _ in range(20)]
    event = said("once", state={"user:count": Increment(1), "k": [1]})

    results = await outcomes(
        [sessions.append_event(copy, event.model_copy(deep=True)) for copy in copies]
    )

    assert [result for result in results if isinstance(result, BaseException)] == []
    session = await loaded(sessions)
    assert texts(session.events) == ["once"]
    assert session.state == {"user:count": 1, "k": [1]}
    for copy in copies:
        assert [each.id for each in copy.events] == [event.id]
        assert copy.state == session.state


async def test_another_event_under_a_used_id_is_an_error(sessions: DurableSessionService) -> None:
    """An id stands for one event of a session: another one under it changes nothing."""
    session = await sessions.create_session(**SHARED)
    event = await sessions.append_event(session, said("one", state={"k": 1}))

    for other in (said("two", state={"k": 1}), said("one", state={"k": 2})):
        other.id = event.id
        with pytest.raises(AlreadyExistsError):
            await sessions.append_event(session, other)

    found = await loaded(sessions)
    assert texts(found.events) == ["one"]
    assert found.state == session.state == {"k": 1}


async def test_many_sessions_that_append_at_once_wait_and_succeed(
    sessions: DurableSessionService,
) -> None:
    """Parallel appends to many sessions wait for each other instead of failing as locked."""
    width, depth = count(60, 150), 12

    async def talk(number: int) -> None:
        session = await sessions.create_session(**OWN, session_id=f"{number}")
        for turn in range(depth):
            await sessions.append_event(session, said(f"{turn}", state={"user:n": turn}))

    assert await outcomes([talk(number) for number in range(width)]) == [None] * width

    session = await sessions.get_session(**OWN, session_id=f"{width - 1}")
    assert session is not None
    assert texts(session.events) == [f"{turn}" for turn in range(depth)]


async def test_mixed_writers_do_not_block_each_other_for_good(
    sessions: DurableSessionService,
) -> None:
    """Creations, appends and changes of user and app state in any order end without a deadlock."""

    async def mixed(number: int) -> None:
        session = await sessions.create_session(
            **OWN, session_id=f"{number}", state={"app:a": number, "user:b": number}
        )
        await sessions.state.update_user({"b": number}, **OWN)
        await sessions.append_event(session, said("x", state={"user:b": 1, "app:a": 2}))
        await sessions.state.update({"app:n": Increment(), "user:n": Increment()}, **OWN)
        await sessions.append_event(session, said("y", state={"app:a": 3, "user:b": 4}))

    width = count(16, 64)
    assert await outcomes([mixed(number) for number in range(width)]) == [None] * width
    assert (await sessions.get_user_state(**OWN))["n"] == width
