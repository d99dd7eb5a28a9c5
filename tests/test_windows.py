"""Windows: what is loaded of a long session, and that nothing is missed which is not."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Final

import pytest
from google.adk.agents import RunConfig
from google.adk.agents.llm_agent import LlmAgent
from google.adk.apps import App
from google.adk.events._rewind_events import _apply_rewinds
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions, EventCompaction
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.sessions.database_session_service import DatabaseSessionService
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google.adk.tools.long_running_tool import LongRunningFunctionTool
from google.genai import types
from sqlalchemy import text as sql_text

from adk_memory_ext import schema
from adk_memory_ext.errors import ConfigurationError
from adk_memory_ext.plugin import MemoryPlugin
from adk_memory_ext.service import DurableSessionService
from adk_memory_ext.windows import Window, window_of
from backends import count
from conversation import said, texts
from tables import within

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from pathlib import Path

    from google.adk.models.llm_request import LlmRequest
    from google.adk.sessions.session import Session

    from backends import Backend, Place

KEY: Final[dict[str, Any]] = {"app_name": "app", "user_id": "user", "session_id": "session"}

# ADK warns of them once a process.
pytestmark = pytest.mark.filterwarnings(r"ignore:\[EXPERIMENTAL\]")


# --- Logs of every kind


def call_event(call_id: str, invocation: str, *, long_running: bool = True) -> Event:
    """Returns the event in which the agent calls a tool."""
    call = types.FunctionCall(id=call_id, name="approve", args={"amount": 3})
    return Event(
        invocation_id=invocation,
        author="agent",
        content=types.Content(role="model", parts=[types.Part(function_call=call)]),
        long_running_tool_ids={call_id} if long_running else None,
    )


def answer_event(call_id: str, invocation: str, *, author: str = "user") -> Event:
    """Returns the event in which a call is answered."""
    answer = types.FunctionResponse(id=call_id, name="approve", response={"approved": True})
    return Event(
        invocation_id=invocation,
        author=author,
        content=types.Content(role="user", parts=[types.Part(function_response=answer)]),
    )


def summary_event(invocation: str, events: Sequence[Event]) -> Event:
    """Returns ADK's compaction of some events."""
    compaction = EventCompaction(
        start_timestamp=events[0].timestamp,
        end_timestamp=events[-1].timestamp,
        compacted_content=types.Content(role="model", parts=[types.Part(text="so far")]),
    )
    return Event(
        invocation_id=invocation, author="user", actions=EventActions(compaction=compaction)
    )


def random_log(seed: int, invocations: int) -> list[Event]:
    """Returns a log with open, answered and ordinary calls, summaries and rewinds."""
    chance = random.Random(seed)  # noqa: S311
    log: list[Event] = []
    waiting: list[str] = []
    for number in range(invocations):
        invocation = f"i{number}"
        log.append(said(f"question {number}", invocation=invocation))
        for step in range(chance.randrange(4)):
            call = f"call-{number}-{step}"
            is_long = chance.random() < 0.15
            log.append(call_event(call, invocation, long_running=is_long))
            log.append(answer_event(call, invocation, author="agent"))
            waiting += [call] if is_long else []
        if waiting and chance.random() < 0.2:
            call = waiting.pop(chance.randrange(len(waiting)))
            log.append(answer_event(call, invocation))
        if chance.random() < 0.1:
            log.append(summary_event(invocation, log))
        if chance.random() < 0.04:
            target = chance.randrange(number + 1)
            actions = EventActions(rewind_before_invocation_id=f"i{target}")
            rewind = Event(invocation_id=f"r{number}", author="user", actions=actions)
            log.append(rewind)
    for place, event in enumerate(log):
        event.timestamp = 1_700_000_000.0 + place
    return log


async def stored(sessions: DurableSessionService, log: Sequence[Event]) -> list[Event]:
    """Stores a log and returns its events as they are read back."""
    session = await sessions.create_session(**KEY)
    for event in log:
        await sessions.append_event(session, event)
    return (await whole(sessions)).events


async def whole(sessions: DurableSessionService) -> Session:
    """Returns the session with its whole log."""
    session = await sessions.get_whole_session(**KEY)
    assert session is not None
    return session


async def loaded(sessions: DurableSessionService, config: GetSessionConfig | None) -> Session:
    """Returns the session as a caller with this configuration gets it."""
    session = await sessions.get_session(**KEY, config=config)
    assert session is not None
    return session


@pytest.mark.parametrize("seed", range(count(6, 60)))
async def test_the_database_finds_what_a_look_at_the_whole_log_finds(
    sessions: DurableSessionService, seed: int
) -> None:
    """A window loaded with SQL is the one that is cut from the whole log, event for event."""
    events = await stored(sessions, random_log(seed, 30))
    for window in (
        Window(events=1),
        Window(events=10, step=3),
        Window(events=20),
        Window(events=60),
        Window(events=1_000),
    ):
        found = (await loaded(sessions, window.config())).events
        assert found == window_of(events, window), window
        assert live_ids(found) <= live_ids(events), window


def live_ids(events: Sequence[Event]) -> set[str]:
    """Returns the ids of the events that ADK shows the model."""
    return {event.id for event in _apply_rewinds(list(events))}


async def told(sessions: DurableSessionService, first: int, final: int) -> None:
    """Says something in each of the turns."""
    session = await whole(sessions)
    for number in range(first, final):
        await sessions.append_event(session, said(f"{number}", invocation=f"i{number}"))


@pytest.mark.parametrize("foreign", [False, True], ids=["ours", "foreign"])
async def test_no_window_holds_what_a_rewind_has_hidden(
    sessions: DurableSessionService, foreign: bool
) -> None:
    """An open call and a summary are referred to, and not when a rewind has taken them back.

    What an answer to the call said is taken back too: then the call is open again.
    """
    wrapped = InMemorySessionService() if foreign else sessions.wrapped
    windowed = DurableSessionService(wrapped, window=Window(events=4, step=1))
    session = await windowed.create_session(**KEY)
    await windowed.append_event(session, call_event("kept", "kept"))
    for invocation in ("gone", "later"):
        await windowed.append_event(session, call_event(invocation, invocation))
    await windowed.append_event(session, answer_event("kept", "later"))
    await windowed.append_event(session, summary_event("later", session.events))
    actions = EventActions(rewind_before_invocation_id="gone")
    await windowed.append_event(session, Event(author="user", invocation_id="r", actions=actions))
    await told(windowed, 0, 20)
    found = (await loaded(windowed, None)).events
    assert [event.invocation_id for event in found] == ["kept", "i16", "i17", "i18", "i19"]


async def test_what_a_restore_has_brought_back_is_in_the_window(
    sessions: DurableSessionService,
) -> None:
    """A call that was hidden and is live again is referred to as any other."""
    session = await sessions.create_session(**KEY)
    early = await sessions.checkpoints.create(session, step="early")
    await sessions.append_event(session, call_event("back", "back"))
    await sessions.append_event(session, said("and on", invocation="on"))
    late = await sessions.checkpoints.create(session, step="late")
    for point in (early, late):
        await sessions.checkpoints.restore(point.id)
    await told(sessions, 0, 20)
    found = (await loaded(sessions, Window(events=4, step=1).config())).events
    assert {event.invocation_id for event in found} == {"back", "i16", "i17", "i18", "i19"}
    assert live_ids(found) <= live_ids((await whole(sessions)).events)


def test_a_window_begins_with_the_first_event_of_an_invocation() -> None:
    """No invocation is cut, wherever the window begins."""
    log = random_log(1, 60)
    for events in range(1, 40):
        tail = window_of(log, Window(events=events, step=1))
        first = tail[0]
        place = log.index(first)
        assert place == 0 or log[place - 1].invocation_id != first.invocation_id


def test_a_window_holds_at_least_what_it_says() -> None:
    """However long the log is, the newest events are there, and few more."""
    log = [said(f"{number}", invocation=f"i{number}") for number in range(500)]
    for length in range(1, 500, 7):
        kept = window_of(log[:length], Window(events=50))
        assert min(length, 50) <= len(kept) < 100
        assert kept == log[length - len(kept) : length]


def test_the_beginning_of_a_window_moves_seldom() -> None:
    """Over 400 events a window of 100 begins at four places, so that prompts begin alike."""
    window = Window(events=100)
    assert len({window.start(last) for last in range(1, 500)}) == 4


@pytest.mark.parametrize("bad", [{"events": 0}, {"events": -1}, {"events": 5, "step": 0}])
def test_a_window_without_events_is_refused(bad: dict[str, int]) -> None:
    """A window that would hold nothing is an error of set-up."""
    with pytest.raises(ConfigurationError):
        Window(**bad)


# --- In a Runner


class Asks(BaseLlm):
    """Calls the tool once when asked to, and then repeats what it last heard."""

    model: str = "asks"
    heard: list[Any] = []  # noqa: RUF012  # pydantic copies it for each instance

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Answers from the request alone."""
        del stream
        self.heard.append(llm_request.contents)
        part = (llm_request.contents[-1].parts or [types.Part()])[0]
        if part.text == "approve it":
            answer = types.Part.from_function_call(name="approve", args={"amount": 3})
        elif part.function_response is not None:
            answer = types.Part(text=f"heard {part.function_response.response}")
        else:
            answer = types.Part(text="yes")
        yield LlmResponse(content=types.Content(role="model", parts=[answer]))


def approve(amount: int) -> dict[str, str]:
    """Asks a person to approve an amount."""
    return {"status": f"pending for {amount}"}


def runner_over(sessions: DurableSessionService, model: BaseLlm) -> Runner:
    """Returns ADK's Runner with a long-running tool."""
    agent = LlmAgent(name="agent", model=model, tools=[LongRunningFunctionTool(approve)])
    return Runner(
        app=App(name="app", root_agent=agent, plugins=[MemoryPlugin()]),
        session_service=sessions,
    )


async def say(
    runner: Runner, message: types.Part, config: GetSessionConfig | None = None
) -> list[Event]:
    """Returns what comes of a message."""
    run = runner.run_async(
        user_id="user",
        session_id="session",
        new_message=types.Content(role="user", parts=[message]),
        run_config=RunConfig(get_session_config=config),
    )
    return [event async for event in run]


async def ask_then_talk(
    runner: Runner, sessions: DurableSessionService, events: int
) -> types.FunctionCall:
    """Has the agent make a long-running call, and adds so many events; returns the call."""
    await sessions.create_session(**KEY)
    asked = await say(runner, types.Part(text="approve it"))
    (call,) = [call for event in asked for call in event.get_function_calls()]
    session = await whole(sessions)
    for number in range(events):
        await sessions.append_event(session, said(f"{number}", invocation=f"talk-{number}"))
    return call


@pytest.mark.parametrize(
    "config",
    [
        GetSessionConfig(num_recent_events=0),
        GetSessionConfig(num_recent_events=1),
        GetSessionConfig(num_recent_events=7),
        Window(events=1).config(),
        Window(events=120).config(),
        None,
    ],
    ids=["none", "one", "seven", "window of one", "window", "of the service"],
)
async def test_a_late_answer_finds_its_call(
    backend: Backend, place: Place, config: GetSessionConfig | None
) -> None:
    """The answer to a tool called long ago (1,000 events in a soak) reaches the model with it."""
    async with (
        DurableSessionService.from_url(place.url, window=Window(events=40)) as sessions,
        runner_over(sessions, Asks(model=backend.name)) as runner,
    ):
        call = await ask_then_talk(runner, sessions, count(70, 1_000))
        answer = types.FunctionResponse(id=call.id, name=call.name, response={"approved": True})
        events = await say(runner, types.Part(function_response=answer), config)
        assert texts(events) == ["heard {'approved': True}"]
        again = await say(runner, types.Part(text="and now?"), config)
        assert texts(again) == ["yes"]


async def test_a_run_loads_the_window_only(sessions: DurableSessionService) -> None:
    """With a window of the service, the model sees its events and none before them."""
    session = await sessions.create_session(**KEY)
    for number in range(300):
        await sessions.append_event(session, said(f"{number}", invocation=f"talk-{number}"))
    windowed = DurableSessionService(sessions.wrapped, window=Window(events=50))
    model = Asks()
    async with runner_over(windowed, model) as runner:
        await say(runner, types.Part(text="hello"))
    heard = [(content.parts or [types.Part()])[0].text for content in model.heard[-1]]
    assert heard == [*map(str, range(250, 300)), "hello"]


@pytest.mark.parametrize("foreign", [False, True], ids=["ours", "foreign"])
async def test_adks_rewind_sees_the_whole_log(
    sessions: DurableSessionService, foreign: bool
) -> None:
    """`Runner.rewind_async` to an invocation outside the window works; a run sees the rest.

    This test fails when ADK renames that method or asks for the session from elsewhere.
    """
    wrapped = InMemorySessionService() if foreign else sessions.wrapped
    windowed = DurableSessionService(wrapped, window=Window(events=10))
    session = await windowed.create_session(**KEY, state={})
    for number in range(100):
        event = said(f"{number}", invocation=f"talk-{number}", state={"at": number})
        await windowed.append_event(session, event)
    model = Asks()
    async with runner_over(windowed, model) as runner:
        await runner.rewind_async(
            user_id="user", session_id="session", rewind_before_invocation_id="talk-3"
        )
        await say(runner, types.Part(text="hello"))
    assert (await whole(windowed)).state["at"] == 2
    heard = [(content.parts or [types.Part()])[0].text for content in model.heard[-1]]
    assert heard == ["0", "1", "2", "hello"]


async def test_the_whole_session_is_there_for_who_asks(sessions: DurableSessionService) -> None:
    """`get_whole_session` returns every event, whatever the window; None for an unknown one."""
    windowed = DurableSessionService(sessions.wrapped, window=Window(events=5))
    log = await stored(windowed, random_log(3, 20))
    assert len(log) > 20
    assert len((await loaded(windowed, None)).events) < len(log)
    assert (await whole(windowed)).events == log
    assert await windowed.get_whole_session(**{**KEY, "session_id": "other"}) is None


async def test_a_foreign_service_is_windowed_too() -> None:
    """Over a service that only loads everything, the session has the events of the window."""
    windowed = DurableSessionService(InMemorySessionService(), window=Window(events=10))
    log = await stored(windowed, random_log(4, 30))
    assert (await loaded(windowed, None)).events == window_of(log, Window(events=10))


# --- What was there before


async def test_calls_that_plain_adk_stored_are_found(tmp_path: Path) -> None:
    """An open call in rows that plain ADK wrote is inside the window once they were seen."""
    url = f"sqlite+aiosqlite:///{tmp_path}/sessions.db"
    async with DatabaseSessionService(url) as plain:
        session = await plain.create_session(**KEY)
        await plain.append_event(session, call_event("late", "first"))
        for number in range(30):
            await plain.append_event(session, said(f"{number}", invocation=f"i{number}"))
    async with DurableSessionService.from_url(url) as sessions:
        found = (await loaded(sessions, Window(events=3, step=1).config())).events
    assert [event.long_running_tool_ids for event in found] == [{"late"}, None, None, None]


OF_VERSION_1: Final = {"memext_migrations", "memext_sessions", "memext_events"}


async def test_an_older_database_is_searched_for_calls(backend: Backend, place: Place) -> None:
    """A database of version 1 gets the places of its open calls and rewinds when it is opened."""
    if not backend.durable:
        pytest.skip("nothing is left of it")
    async with DurableSessionService.from_url(place.url) as sessions:
        log = await stored(sessions, random_log(28, 40))
    assert any(event.actions.rewind_before_invocation_id for event in log)

    def back_to_version_1(connection: Any) -> None:
        for name in schema.metadata.tables.keys() - OF_VERSION_1:
            connection.execute(sql_text(f"DROP TABLE {name}"))
        connection.execute(sql_text("DELETE FROM memext_migrations WHERE version > 1"))

    within(place.url, back_to_version_1)
    async with DurableSessionService.from_url(place.url) as sessions:
        window = Window(events=10)
        found = (await loaded(sessions, window.config())).events
    assert found == window_of(log, window)
    assert len(found) > len(log[window.start(len(log)) - 1 :])


async def test_a_deleted_session_leaves_no_landmark(backend: Backend, place: Place) -> None:
    """The places of calls go with their session."""
    if not backend.durable:
        pytest.skip("nothing can be looked at")
    async with DurableSessionService.from_url(place.url) as sessions:
        await stored(sessions, random_log(6, 20))
        await sessions.delete_session(**KEY)
    query = sql_text("SELECT count(*) FROM memext_landmarks")
    left: list[Any] = []
    within(place.url, lambda connection: left.append(connection.execute(query).scalar()))
    assert left == [0]
