"""What others do to a session while a turn runs: rewinds, state from outside, summaries, clocks."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

import pytest
from google.adk.apps.app import EventsCompactionConfig
from google.adk.apps.llm_event_summarizer import LlmEventSummarizer
from google.adk.errors import StaleSessionError
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions, EventCompaction

from adk_memory_ext import DurableSessionService, TurnNestedError
from adk_memory_ext.records import SessionId
from adk_memory_ext.turn_queue import Turn, reject
from backends import OURS, OURS_MARIADB, WRAPPED, count
from conversation import said, texts
from people import OWN, SESSION, Echo, content, echo, log, running, say, turns, whole
from servers import HANG_SECONDS

if TYPE_CHECKING:
    from google.adk.runners import Runner
    from google.adk.sessions.session import Session
    from google.adk.tools.tool_context import ToolContext

SESSION_ID: Final = SessionId("app", "user", "session")
SERVICES: Final = (*OURS, OURS_MARIADB, *WRAPPED)
over_every_service = pytest.mark.parametrize("backend", SERVICES, ids=lambda backend: backend.name)


async def found(sessions: DurableSessionService) -> Session:
    """Returns the session as it is stored."""
    session = await sessions.get_session(**SESSION)
    assert session is not None
    return session


def count_up(text: str, tool_context: ToolContext) -> str:
    """Counts."""
    del text
    tool_context.state["count"] = (tool_context.state.get("count") or 0) + 1
    return "done"


async def holding(sessions: DurableSessionService) -> None:
    """Returns when a turn has begun."""
    while sessions.turns.holder(SESSION_ID) is None:
        await asyncio.sleep(0)


# --- Rewinds


async def rewind(runner: Runner, invocation_id: str) -> None:
    """Rewinds to before an invocation."""
    await runner.rewind_async(
        user_id="user", session_id="session", rewind_before_invocation_id=invocation_id
    )


@over_every_service
async def test_a_rewind_waits_for_the_running_turn(sessions: DurableSessionService) -> None:
    """It happens behind the turn, and its delta is for the state that the turn has left."""
    gate = asyncio.Event()
    async with (
        running(sessions, echo(tools=[count_up])) as runner,
        running(sessions, echo(tools=[count_up], gate=gate)) as slow,
    ):
        await say(runner, "one")
        second = (await say(runner, "two"))[0].invocation_id
        turn = asyncio.ensure_future(say(slow, "three"))
        await holding(sessions)
        while (await found(sessions)).state["count"] < 3:
            await asyncio.sleep(0.01)
        rewinding = asyncio.ensure_future(rewind(runner, second))
        await asyncio.sleep(0.05)
        assert not rewinding.done()
        gate.set()
        await asyncio.wait_for(asyncio.gather(turn, rewinding), HANG_SECONDS)
        session = await found(sessions)
        assert session.state["count"] == 1
        assert session.events[-1].actions.rewind_before_invocation_id == second
        assert texts(session.events)[-2].startswith("echo three")
        assert (await say(runner, "four"))[-1].content == content("echo four, message 2", "model")


async def test_a_rewind_without_a_turn_waits_for_nobody() -> None:
    """It leaves no turn behind, and what the rewound turn had set is gone."""
    async with (
        DurableSessionService.from_url("") as sessions,
        running(sessions, echo(tools=[count_up])) as runner,
    ):
        first = (await say(runner, "one"))[0].invocation_id
        await rewind(runner, first)
        session = await found(sessions)
        assert "count" not in session.state
        assert sessions.turns.holder(SESSION_ID) is None
        assert (await say(runner, "two"))[-1].content == content("echo two, message 1", "model")


async def test_a_rewind_inside_a_turn_is_refused() -> None:
    """A tool that rewinds its own session would wait for itself."""
    errors: list[Exception] = []
    runners: list[Runner] = []

    async def undo(text: str) -> str:
        """Rewinds."""
        del text
        try:
            await rewind(runners[0], invocation)
        except TurnNestedError as error:
            errors.append(error)
        return "done"

    async with (
        DurableSessionService.from_url("") as sessions,
        running(sessions, echo(tools=[])) as runner,
        running(sessions, echo(tools=[undo])) as undoing,
    ):
        invocation = (await say(runner, "one"))[0].invocation_id
        runners.append(runner)
        await asyncio.wait_for(say(undoing, "two"), HANG_SECONDS)
        assert len(errors) == 1
        assert turns(await log(sessions)) == whole("one", "two")


# --- State and summaries from outside


def patch(number: int) -> Event:
    """Returns the event that ADK's PATCH of a session appends."""
    delta = {f"k{number}": number, f"user:k{number}": number}
    return Event(
        author="user", invocation_id=f"p-{number}", actions=EventActions(state_delta=delta)
    )


def summary(of: Session) -> Event:
    """Returns the event of ADK's compaction."""
    compaction = EventCompaction(
        start_timestamp=of.events[0].timestamp,
        end_timestamp=of.events[0].timestamp,
        compacted_content=content("in short", "model"),
    )
    return Event(
        author="user", invocation_id="summary", actions=EventActions(compaction=compaction)
    )


@over_every_service
async def test_state_from_outside_and_a_running_turn_are_both_kept(
    sessions: DurableSessionService,
) -> None:
    """Events of state only, from many at once, apply beside a turn, and the turn ends well."""
    numbers = range(count(8, 20))

    async def outside(number: int) -> None:
        session = await found(sessions)
        await asyncio.sleep(0)
        await sessions.append_event(session, patch(number))

    gate = asyncio.Event()
    async with running(sessions, echo(gate=gate)) as runner:
        turn = asyncio.ensure_future(say(runner, "hello"))
        await holding(sessions)
        while not await log(sessions):
            await asyncio.sleep(0.005)
        await asyncio.gather(*map(outside, numbers))
        gate.set()
        await asyncio.wait_for(turn, HANG_SECONDS)
    session = await found(sessions)
    assert turns(session.events) == whole("hello")
    for number in numbers:
        assert session.state[f"k{number}"] == session.state[f"user:k{number}"] == number


@over_every_service
async def test_a_summary_appended_while_the_next_turn_begins_harms_neither(
    sessions: DurableSessionService,
) -> None:
    """ADK appends its summary behind the turn, when the next one may have loaded the session."""
    async with running(sessions) as runner:
        await say(runner, "one")
        before, next_turn = await found(sessions), await found(sessions)
        await sessions.append_event(before, summary(before))
        await sessions.append_event(next_turn, said("two", invocation="next"))
        late = await found(sessions)
        await sessions.append_event(next_turn, said("answer", author="echo", invocation="next"))
        await sessions.append_event(late, summary(late))
        events = await log(sessions)
    assert [event.actions.compaction is not None for event in events[-4:]] == [
        True,
        False,
        False,
        True,
    ]


@over_every_service
@pytest.mark.filterwarnings("ignore:.*EXPERIMENTAL")
async def test_turns_at_once_and_adks_own_summaries_harm_nobody(
    sessions: DurableSessionService,
) -> None:
    """ADK summarises behind each turn, while the next one that has waited begins."""
    names = [f"{number}" for number in range(count(5, 20))]
    summarising = EventsCompactionConfig(
        summarizer=LlmEventSummarizer(llm=Echo(ticks=20)), compaction_interval=1, overlap_size=0
    )
    async with running(sessions, echo(), events_compaction_config=summarising) as runner:
        await asyncio.gather(*(say(runner, name) for name in names))
    events = await log(sessions)
    said_by_people = [event for event in events if event.actions.compaction is None]
    assert [turn[0] for turn in turns(said_by_people)] == names
    assert len(said_by_people) == 4 * len(names)
    assert len(events) > len(said_by_people)


@pytest.mark.parametrize(
    "backend", [row for row in SERVICES if row.refuses_stale], ids=lambda backend: backend.name
)
async def test_content_that_was_not_seen_makes_a_writer_stale(
    sessions: DurableSessionService,
) -> None:
    """What is let through is housekeeping only."""
    await sessions.create_session(**SESSION)
    one, two = await found(sessions), await found(sessions)
    await sessions.append_event(one, said("one"))
    await asyncio.sleep(0.002)
    with pytest.raises(StaleSessionError):
        await sessions.append_event(two, said("two"))
    assert texts(await log(sessions)) == ["one"]


@pytest.mark.parametrize("backend", OURS, ids=lambda backend: backend.name)
async def test_the_message_of_a_turn_goes_behind_what_was_not_seen(
    sessions: DurableSessionService,
) -> None:
    """Whoever holds the turn has nothing else to do with content that came from outside."""
    await sessions.create_session(**SESSION)
    turn = Turn(SESSION_ID, "invocation")
    await sessions.turns.take(turn, reject())
    one, two = await found(sessions), await found(sessions)
    await sessions.append_event(one, said("one", invocation="outside"))
    await sessions.append_event(two, said("two", invocation="invocation"))
    assert texts(two.events) == texts(await log(sessions)) == ["one", "two"]
    await sessions.append_event(one, patch(1))
    await sessions.append_event(await found(sessions), said("three", invocation="outside"))
    with pytest.raises(StaleSessionError):
        await sessions.append_event(two, said("four", invocation="invocation"))
    sessions.turns.release(turn)


# --- Clocks


@pytest.mark.parametrize("step", [-86_400.0, 0.0, 86_400.0])
async def test_a_clock_that_jumps_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, step: float
) -> None:
    """Turns wait by order of arrival and are held by the monotonic clock."""
    start, jumps = time.time(), iter(range(10**6))
    monkeypatch.setattr("time.time", lambda: start + step * (next(jumps) % 7))
    async with DurableSessionService.from_url("") as sessions:
        async with running(sessions) as runner:
            names = [f"{number}" for number in range(6)]
            await asyncio.gather(*(say(runner, name) for name in names))
        assert turns(await log(sessions)) == whole(*names)


async def test_catching_up_is_in_place() -> None:
    """A loaded session becomes what is stored; its `temp:` state stays, and its list of events."""
    async with DurableSessionService.from_url("") as sessions:
        session = await sessions.create_session(**SESSION, state={"temp:mine": 1, "gone": 1})
        events: list[Event] = session.events
        assert await sessions.catch_up(session) is False
        other = await found(sessions)
        await sessions.append_event(other, said("one", state={"k": 1, "user:k": 2}))
        await sessions.state.delete(["gone"], **OWN, session_id="session")
        assert await sessions.catch_up(session) is True
        assert session.events is events
        assert texts(events) == ["one", ""]
        assert session.state == {"k": 1, "user:k": 2, "temp:mine": 1}
        await sessions.append_event(session, said("two"))
        assert await sessions.catch_up(session, whole=True) is False
        await sessions.delete_session(**SESSION)
        with pytest.raises(Exception, match="Session session not found"):
            await sessions.catch_up(session)
