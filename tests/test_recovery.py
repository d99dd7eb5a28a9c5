"""What a crash left open is settled before the next turn: told or rolled back, and facts afresh."""

from __future__ import annotations

import asyncio
import gc
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import pytest
from google.adk.agents.llm_agent import LlmAgent
from google.adk.apps import ResumabilityConfig
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.tools.tool_context import ToolContext  # noqa: TC002  # ADK reads it
from google.genai import types

from adk_memory_ext import (
    ConfigurationError,
    DurableSessionService,
    Increment,
    MemoryPlugin,
    Recovered,
    Recovery,
    RestoreHookError,
    Window,
    idempotency_key,
    resume_interrupted,
)
from adk_memory_ext.finished_calls import FINISHED
from adk_memory_ext.interruptions import find_interruption
from backends import OURS, WRAPPED
from conversation import answered, called, said, texts
from people import OWN, SESSION, echo, running, say

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

    from google.adk.agents.callback_context import CallbackContext
    from google.adk.events.event import Event
    from google.adk.models.llm_request import LlmRequest
    from google.adk.runners import Runner
    from google.adk.sessions.session import Session

experimental = pytest.mark.filterwarnings(r"ignore:\[EXPERIMENTAL\]")
over_every_service = pytest.mark.parametrize(
    "backend", [*OURS, *WRAPPED], ids=lambda backend: backend.name
)


class Reader(BaseLlm):
    """Answers at once, and keeps what it was sent."""

    model: str = "reader"
    requests: list[Any] = []  # noqa: RUF012  # pydantic copies it

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Yields the one response."""
        del stream
        self.requests.append(llm_request)
        yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text="read")]))


def reader() -> tuple[LlmAgent, list[Any]]:
    """Returns the agent, and the requests that its model will have been sent."""
    model = Reader()
    return LlmAgent(name="agent", model=model), model.requests


def parts(request: LlmRequest) -> list[types.Part]:
    """Returns the parts of a request's contents."""
    return [part for content in request.contents for part in content.parts or []]


async def interrupted(sessions: DurableSessionService, *events: Event) -> Session:
    """Returns a session whose last process died after these events."""
    session = await sessions.create_session(**SESSION, state={"step": "begun"})
    for event in events:
        await sessions.append_event(session, event)
    return session


BOOKING: Final = {"flight": "LH1"}


def booking() -> tuple[Event, Event]:
    """Returns a message and a call that was never answered."""
    return said("book it"), called("book", BOOKING)


@over_every_service
async def test_an_open_call_gets_the_answer_that_its_outcome_is_unknown(
    sessions: DurableSessionService,
) -> None:
    """The model sees its call and the answer, so that it checks before it books again."""
    await interrupted(sessions, *booking())
    agent, requests = reader()
    reports: list[Recovered] = []
    plugin = MemoryPlugin(recovery=Recovery(on_report=reports.append))
    async with running(sessions, agent, plugins=[plugin]) as runner:
        await say(runner, "well?")
        await say(runner, "and now?")
    calls = [part.function_call for part in parts(requests[0]) if part.function_call]
    answers = [part.function_response for part in parts(requests[0]) if part.function_response]
    assert [call.args for call in calls] == [BOOKING]
    assert [answer.id for answer in answers] == [call.id for call in calls]
    assert answers[0].response is not None
    assert (answers[0].response["status"], answers[0].response["outcome"]) == (
        "interrupted",
        "unknown",
    )
    assert [(report.did, report.found.kind) for report in reports] == [("told", "call")]


async def test_without_the_part_the_call_is_forgotten() -> None:
    """ADK drops a call without its answer: this is what the part is for."""
    async with DurableSessionService.from_url("") as sessions:
        await interrupted(sessions, *booking())
        agent, requests = reader()
        async with running(sessions, agent, plugins=[MemoryPlugin(recovery=None)]) as runner:
            await say(runner, "well?")
        assert [part for part in parts(requests[0]) if part.function_call] == []


@over_every_service
async def test_recover_reports_and_settles_once(sessions: DurableSessionService) -> None:
    """Outside a run it does the same; afterwards nothing is open, in a fresh copy too."""
    session = await interrupted(sessions, *booking())
    report = await sessions.checkpoints.recover(session)
    assert (report.did, report.found.kind) == ("told", "call")
    assert [(call.name, call.call_id) for call in report.found.calls] == [("book", "call-book")]
    assert report.found.invocation_id == "invocation-1"
    again = await sessions.get_session(**SESSION)
    assert again is not None
    assert (again.events[-1].author, again.events[-1].invocation_id) == ("agent", "invocation-1")
    assert (await sessions.checkpoints.recover(again)).found.calls == ()
    with pytest.raises(ConfigurationError):
        await sessions.checkpoints.recover(again, "guess")  # type: ignore[arg-type]


def waiting(event: Event) -> Event:
    """Returns a call that is declared long-running."""
    event.long_running_tool_ids = {"call-approve"}
    return event


@pytest.mark.parametrize(
    ("events", "kind"),
    [
        ([], "none"),
        ([said("hello")], "message"),
        ([said("hello"), said("hi", author="agent")], "none"),
        ([said("hello"), called("look", {})], "call"),
        ([said("hello"), called("look", {}), answered("look", {})], "turn"),
        ([said("hello"), waiting(called("approve", {}))], "none"),
        ([said("x"), waiting(called("approve", {})), answered("approve", {"status": "p"})], "none"),
        ([said("x"), called("a", {}), said("on", author="agent")], "call"),
    ],
)
def test_each_kind_of_interruption_is_told_apart(events: list[Event], kind: str) -> None:
    """A message, a call or a turn without its end; what waits for a person is no crash."""
    assert find_interruption(events).kind == kind


def test_a_call_whose_answer_arrives_is_not_open() -> None:
    """The message that brings the answer of a call is no reason to answer it before."""
    events = [said("hello"), called("look", {})]
    assert find_interruption(events, {"call-look"}).calls == ()


async def test_a_rollback_restores_the_last_checkpoint(sessions: DurableSessionService) -> None:
    """The model sees the history up to the checkpoint and the new message, nothing of the rest."""
    session = await interrupted(sessions, said("one"), said("two", author="agent"))
    await sessions.checkpoints.create(session, step="a")
    await sessions.append_event(session, said("book", invocation="i2", state={"step": "booking"}))
    await sessions.append_event(session, called("book", BOOKING, invocation="i2"))
    agent, requests = reader()
    reports: list[Recovered] = []
    part = Recovery(how="rollback", on_report=reports.append)
    async with running(sessions, agent, plugins=[MemoryPlugin(recovery=part)]) as runner:
        await asyncio.wait_for(say(runner, "again"), 20)
    assert [part.text for part in parts(requests[0])] == ["one", "two", "again"]
    assert [report.did for report in reports] == ["rolled back"]
    found = await sessions.get_session(**SESSION)
    assert found is not None
    assert found.state["step"] == "begun"


async def test_a_rollback_leaves_the_window_as_it_is(sessions: DurableSessionService) -> None:
    """A turn that loads the tail of a long log gets the tail of what was restored, and no more."""
    session = await sessions.create_session(**SESSION)
    for number in range(100):
        event = said(f"{number}", author="agent", invocation=f"i{number}")
        await sessions.append_event(session, event)
    await sessions.checkpoints.create(session, step="a")
    for event in booking():
        await sessions.append_event(session, event)
    windowed = DurableSessionService(sessions.wrapped, window=Window(events=5))
    agent, requests = reader()
    plugin = MemoryPlugin(recovery=Recovery(how="rollback"))
    async with running(windowed, agent, plugins=[plugin]) as runner:
        await say(runner, "again")
    heard = [part.text for part in parts(requests[0]) if part.text != "Continue"]
    assert heard[-2:] == ["99", "again"]
    assert 4 <= len(heard) <= 12


class Counted(list[Any]):
    """A list that counts what is taken out of it."""

    taken = 0

    def __getitem__(self, place: Any) -> Any:
        """Counts one item."""
        self.taken += 1
        return super().__getitem__(place)

    def __iter__(self) -> Iterator[Any]:
        """Counts every item."""
        for item in super().__iter__():
            self.taken += 1
            yield item

    def __reversed__(self) -> Iterator[Any]:
        """Counts every item."""
        for item in super().__reversed__():
            self.taken += 1
            yield item


@pytest.mark.parametrize(
    ("tail", "kind", "opened"),
    [
        ([], "none", []),
        ([said("hi", invocation="x")], "message", []),
        ([said("hi", invocation="x"), called("a", {}, invocation="x")], "call", ["a"]),
        (
            [called("a", {}, invocation="x"), said("?", invocation="y")],
            "call",
            ["a"],
        ),
        ([called("a", {}, invocation="x"), called("b", {}, invocation="y")], "call", ["a", "b"]),
    ],
)
def test_a_long_log_is_looked_at_from_its_end(
    tail: list[Event], kind: str, opened: list[str]
) -> None:
    """What a crash has left is found, also of two in a row, without looking at what came before."""
    log = Counted()
    for number in range(1_000):
        log.append(said("ask", invocation=f"i{number}"))
        log.append(said("answer", author="agent", invocation=f"i{number}"))
    log += tail
    log.taken = 0
    found = find_interruption(log)
    assert (found.kind, [call.name for call in found.calls]) == (kind, opened)
    assert log.taken < 12


async def test_a_rollback_without_a_checkpoint_tells(sessions: DurableSessionService) -> None:
    """There is always a way on."""
    session = await interrupted(sessions, *booking())
    assert (await sessions.checkpoints.recover(session, "rollback")).did == "told"


# --- ADK's resumability


def resumable(agent: LlmAgent, **options: Any) -> dict[str, Any]:
    """Returns what a resumable app is made of."""
    part = Recovery(**{"how": "resume", **options})
    return {
        "agent": agent,
        "plugins": [MemoryPlugin(recovery=part)],
        "resumability_config": ResumabilityConfig(is_resumable=True),
    }


async def resumed(runner: Runner) -> list[Event]:
    """Returns the events of what is resumed."""
    return [one async for one in resume_interrupted(runner, user_id="user", session_id="session")]


@experimental
@over_every_service
async def test_an_interrupted_message_is_resumed(sessions: DurableSessionService) -> None:
    """The invocation comes to its end under its own id, with facts read afresh, once."""
    await interrupted(sessions, said("well?", invocation="i1"))
    agent, requests = reader()

    async def stock(context: CallbackContext) -> str:
        """Reads it."""
        return f"7 for {context.user_id}"

    async with running(sessions, **resumable(agent, on_restore=[stock])) as runner:
        events = await resumed(runner)
        assert {event.invocation_id for event in events} == {"i1"}
        assert [text for text in texts(events) if text] == ["read"]
        assert "7 for user" in str(requests[0].config.system_instruction)
        assert await resumed(runner) == []
        assert await say(runner, "next") != []
        assert "7 for user" not in str(requests[1].config.system_instruction)


@experimental
async def test_what_cannot_be_resumed_says_so(sessions: DurableSessionService) -> None:
    """An app without ADK's resumability, a session that is not there, a word that means nothing."""
    await interrupted(sessions, said("well?"))
    async with running(sessions, reader()[0]) as runner:
        with pytest.raises(ConfigurationError, match="is_resumable"):
            await resumed(runner)
    async with running(sessions, **resumable(reader()[0])) as runner:
        await sessions.delete_session(**SESSION)
        with pytest.raises(SessionNotFoundError):
            await resumed(runner)
    with pytest.raises(ConfigurationError, match="guess"):
        Recovery(how="guess")  # type: ignore[arg-type]


@experimental
@pytest.mark.parametrize(
    ("calls", "change", "kept"), [(1, 1, 0), (2, 1, 2), (2, Increment(1), 0), (3, None, 3)]
)
async def test_answers_of_parallel_calls_are_kept(calls: int, change: Any, kept: int) -> None:
    """One alone is not, as ADK stores it at once; nor is one whose change is no value."""

    async def look(text: str, tool_context: ToolContext) -> Any:
        """Looks it up."""
        tool_context.state["seen"] = [*tool_context.state.get("seen", []), text]
        tool_context.state["change"] = change
        return text

    async with DurableSessionService.from_url("") as sessions:
        options = resumable(echo(tools=[look], calls=calls))
        async with running(sessions, **options) as runner:
            await say(runner, "now")
        session = await sessions.get_session(**SESSION)
    assert session is not None
    found = [event for event in session.events if FINISHED in (event.custom_metadata or {})]
    assert len(found) == kept
    assert session.state["seen"] == ["now"] * calls
    assert find_interruption(session.events).kind == "none"


# --- Facts read afresh


async def stock(context: CallbackContext) -> dict[str, int]:
    """Reads the stock of the candidates."""
    return dict.fromkeys(context.state["candidates"], 7)


async def test_facts_are_read_afresh_after_a_restore(sessions: DurableSessionService) -> None:
    """Before the first model call, once, in another session of the same id too."""
    session = await sessions.create_session(**SESSION, state={"candidates": ["ring"]})
    await sessions.append_event(session, said("gifts?"))
    point = await sessions.checkpoints.create(session, step="filtered")
    agent, requests = reader()
    plugin = MemoryPlugin(recovery=Recovery(on_restore=[stock]))
    async with running(sessions, agent, plugins=[plugin]) as runner:
        await sessions.append_event(session, said("a ring", author="agent"))
        await say(runner, "before")
        await sessions.checkpoints.restore(point.id)
        await say(runner, "after")
        await say(runner, "later")
        await sessions.wrapped.delete_session(**SESSION)  # as its expiry does
        latest = await sessions.checkpoints.latest(**OWN)
        assert latest is not None
        await sessions.checkpoints.restore(latest.id)
        await say(runner, "a week later")
    told = ["stock" in str(request.config.system_instruction) for request in requests]
    assert told == [False, True, False, True]
    assert '{"ring": 7}' in str(requests[1].config.system_instruction)


@pytest.mark.parametrize("words", [["gifts?"], ["gifts?", "a ring"], []])
async def test_facts_are_read_afresh_in_a_fork(
    words: list[str], sessions: DurableSessionService
) -> None:
    """What was true at the checkpoint may not be true any more: once, whoever spoke last there."""
    session = await sessions.create_session(**SESSION, state={"candidates": ["ring"]})
    for author, word in zip(("user", "agent"), words, strict=False):
        await sessions.append_event(session, said(word, author=author))
    point = await sessions.checkpoints.create(session, step="filtered")
    await sessions.checkpoints.fork(point.id, "fork")
    again = await sessions.checkpoints.fork(point.id, "other")
    agent, requests = reader()
    plugin = MemoryPlugin(recovery=Recovery(on_restore=[stock]))
    async with running(sessions, agent, plugins=[plugin]) as runner:
        for session_id in ("fork", "fork", "session", again.session_id):
            await say(runner, "now", session_id)
    told = ['{"ring": 7}' in str(request.config.system_instruction) for request in requests]
    assert told == [True, False, False, True]


class Looking(Reader):
    """Looks once with a tool, and then answers."""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Yields the one response."""
        async for response in super().generate_content_async(llm_request, stream):
            last = (llm_request.contents[-1].parts or [types.Part()])[0]
            if not last.function_response:
                call = types.Part.from_function_call(name="look", args={})
                response.content = types.Content(role="model", parts=[call])
            yield response


async def test_fresh_facts_stay_for_the_whole_turn(sessions: DurableSessionService) -> None:
    """A turn of several model calls: each has the facts, which are read once."""
    await interrupted(sessions, *booking())
    reads: list[str] = []

    async def balance(context: CallbackContext) -> int:
        reads.append(context.invocation_id)
        return 7

    def look() -> str:
        """Looks."""
        return "seen"

    model = Looking()
    agent = LlmAgent(name="agent", model=model, tools=[look])
    plugin = MemoryPlugin(recovery=Recovery(on_restore=[balance]))
    async with running(sessions, agent, plugins=[plugin]) as runner:
        await say(runner, "well?")
        await say(runner, "and now?")
    told = [
        '{"balance": 7}' in str(request.config.system_instruction) for request in model.requests
    ]
    assert told == [True, True, False, False]
    assert len(reads) == 1


async def test_a_cancelled_turn_is_forgotten(sessions: DurableSessionService) -> None:
    """Nothing of an invocation is kept when it is over, whatever ended it."""
    session = await interrupted(sessions, *booking())
    await sessions.append_event(session, said("x", state={"candidates": ["ring"]}))
    part = Recovery(on_restore=[stock])
    before = sum(map(len, (part._fresh, part._answered)))  # what must not grow
    options = {"plugins": [MemoryPlugin(recovery=part)]}
    async with running(sessions, echo(tools=[], gate=asyncio.Event()), **options) as runner:
        turn = asyncio.ensure_future(say(runner, "well?"))
        while not part._answered:
            await asyncio.sleep(0.01)
        turn.cancel()
        with suppress(asyncio.CancelledError):
            await turn
    del turn, runner
    await asyncio.sleep(0.05)
    gc.collect()
    assert sum(map(len, (part._fresh, part._answered))) == before == 0


async def unreachable(context: CallbackContext) -> None:
    """Fails."""
    del context
    raise OSError


async def test_a_hook_that_fails_stops_the_turn(sessions: DurableSessionService) -> None:
    """The model is not asked about facts that nobody could read; the next turn tries again."""
    await interrupted(sessions, *booking())
    agent, requests = reader()
    plugin = MemoryPlugin(recovery=Recovery(on_restore=[unreachable]))
    async with running(sessions, agent, plugins=[plugin]) as runner:
        for _ in range(2):
            with pytest.raises(RuntimeError) as failure:
                await say(runner, "well?")
            chain = [failure.value.__cause__, failure.value]
            assert any(isinstance(error, RestoreHookError) for error in chain)
            assert "unreachable" in str(chain)
    assert requests == []


# --- Keys for outside services


class Repeating(BaseLlm):
    """Calls the tool with the same arguments for every message."""

    model: str = "repeating"

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Yields the one response."""
        del stream
        last = (llm_request.contents[-1].parts or [types.Part()])[0]
        part = types.Part(text="done")
        if not last.function_response:
            arguments = {"text": "LH1", "extra": {"b": 1, "a": 2}}
            part = types.Part.from_function_call(name="book", args=arguments)
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


async def test_a_repeated_call_has_the_same_key(sessions: DurableSessionService) -> None:
    """Another call id, the same tool and arguments: one key; another step or session: another."""
    keys: list[tuple[str, str]] = []
    call_ids: list[str | None] = []

    async def book(text: str, extra: dict[str, int], tool_context: ToolContext) -> str:
        """Books."""
        del text, extra
        call_ids.append(tool_context.function_call_id)
        keys.append(
            (idempotency_key(tool_context), idempotency_key(tool_context, step="second leg"))
        )
        return "booked"

    agent = LlmAgent(name="agent", model=Repeating(), tools=[book])
    async with running(sessions, agent) as runner:
        events = await say(runner, "one")
        await say(runner, "two")
        await sessions.create_session(**OWN, session_id="other")
        await say(runner, "three", "other")
    assert texts(events)[-1] == "done"
    assert len(set(call_ids)) == 3
    assert keys[0] == keys[1]
    assert len({*keys[0], *keys[2]}) == 4
