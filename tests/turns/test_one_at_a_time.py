"""Two messages at once: the second waits, sees the whole of the first, and is answered."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest
from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.live_request_queue import LiveRequestQueue
from google.adk.agents.llm_agent import LlmAgent
from google.adk.agents.run_config import RunConfig
from google.adk.apps import App, ResumabilityConfig
from google.adk.errors import StaleSessionError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.long_running_tool import LongRunningFunctionTool
from google.genai import types

from adk_memory_ext import (
    ConfigurationError,
    DurableSessionService,
    MemoryPlugin,
    TurnBusyError,
    TurnHeldTooLongError,
    TurnNestedError,
    Turns,
    reject,
    supersede,
    wait,
)
from adk_memory_ext.records import SessionId
from backends import OURS, OURS_MARIADB, WRAPPED, count
from conversation import said, texts
from people import OWN, SESSION, Echo, content, echo, log, running, say, turns, whole
from servers import HANG_SECONDS

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from google.adk.agents.invocation_context import InvocationContext
    from google.adk.models.llm_request import LlmRequest
    from google.adk.runners import Runner
    from google.adk.sessions.base_session_service import BaseSessionService

SESSION_ID: Final = SessionId("app", "user", "session")
over_every_service = pytest.mark.parametrize(
    "backend", [*OURS, OURS_MARIADB, *WRAPPED], ids=lambda backend: backend.name
)


@over_every_service
async def test_messages_at_once_are_answered_one_after_the_other(
    sessions: BaseSessionService,
) -> None:
    """All are answered, in the order of their arrival, each seeing all before it, over any service.

    Each turn has its tool's notes, in all three scopes, behind those of the turns before it.
    """
    names = [f"message-{number}" for number in range(count(8, 20))]
    async with running(sessions) as runner:
        await asyncio.gather(*(say(runner, name) for name in names))
    session = await sessions.get_session(**SESSION)
    assert session is not None
    assert turns(session.events) == whole(*names)
    for scope in ("", "user:", "app:"):
        assert session.state[f"{scope}notes"] == names


async def test_sessions_do_not_wait_for_each_other() -> None:
    """A turn of one session runs while that of another one is under way."""
    gate = asyncio.Event()
    async with DurableSessionService.from_url("") as sessions:
        await sessions.create_session(**OWN, session_id="other")
        async with running(sessions, echo(gate=gate)) as slow, running(sessions) as fast:
            waiting = asyncio.ensure_future(say(slow, "slow"))
            await asyncio.wait_for(say(fast, "fast", "other"), HANG_SECONDS)
            gate.set()
            await waiting
        assert turns(await log(sessions)) == whole("slow")


async def test_a_second_turn_sees_what_another_session_wrote_meanwhile() -> None:
    """State of user and app is fresh after a wait."""
    gate = asyncio.Event()
    async with DurableSessionService.from_url("") as sessions:
        talker = echo(gate=gate, tools=[])
        async with running(sessions, talker) as slow, running(sessions) as second:
            first = asyncio.ensure_future(say(slow, "first"))
            while sessions.turns.holder(SESSION_ID) is None:
                await asyncio.sleep(0)
            waiting = asyncio.ensure_future(say(second, "second"))
            for _ in range(50):
                await asyncio.sleep(0)
            await sessions.state.update({"user:notes": ["by hand"]}, **OWN)
            gate.set()
            await asyncio.gather(first, waiting)
        session = await sessions.get_session(**SESSION)
    assert session is not None
    assert session.state["user:notes"] == ["by hand", "second"]


class Transferring(BaseLlm):
    """Hands the conversation to the agent `sub`, unless it is that agent."""

    model: str = "transferring"
    gate: Any = None
    """An event to wait for before the transfer; None for none."""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Answers from the request alone."""
        del stream
        await asyncio.sleep(0)
        instruction = str(llm_request.config.system_instruction)
        if "You are sub." in instruction:
            yield LlmResponse(content=content("sub speaking", "model"))
            return
        if self.gate is not None:
            await self.gate.wait()
        call = types.Part.from_function_call(name="transfer_to_agent", args={"agent_name": "sub"})
        yield LlmResponse(content=types.Content(role="model", parts=[call]))


def transferring(gate: asyncio.Event) -> LlmAgent:
    """Returns an agent that hands the conversation to another one."""
    sub = LlmAgent(name="sub", model=Transferring(), instruction="You are sub.")
    model = Transferring(gate=gate)
    return LlmAgent(name="root", model=model, instruction="You are root.", sub_agents=[sub])


@pytest.mark.parametrize("services", [1, 2])
async def test_after_a_transfer_the_next_message_goes_to_the_new_agent(
    services: int, tmp_path: Path
) -> None:
    """ADK chose the agent before the wait; it chooses again after it, in another process too."""
    gate = asyncio.Event()
    url = f"sqlite:///{tmp_path}/sessions.db"
    async with (
        DurableSessionService.from_url(url) as one,
        DurableSessionService.from_url(url) as another,
        running(one, transferring(gate)) as runner,
        running(one if services == 1 else another, transferring(gate)) as other,
    ):
        first = asyncio.ensure_future(say(runner, "one"))
        while not await log(one):
            await asyncio.sleep(0)
        second = asyncio.ensure_future(say(other, "two"))
        await asyncio.sleep(0.05)
        gate.set()
        await asyncio.gather(first, second)
        events = await log(one)
    authors = [event.author for event in events if event.content]
    assert authors == ["user", "root", "root", "sub", "user", "sub"]


async def test_the_window_of_a_run_is_kept_over_a_wait() -> None:
    """A run that loaded the last events only has the last events only after it waited."""
    config = RunConfig(get_session_config=GetSessionConfig(num_recent_events=2))
    async with DurableSessionService.from_url("") as sessions:
        async with running(sessions, echo(tools=[])) as runner:
            await asyncio.gather(
                say(runner, "one"), say(runner, "two"), say(runner, "three", run_config=config)
            )
        assert texts(await log(sessions))[-1] == "echo three, message 2"


# --- What a busy session says


async def test_reject_refuses_the_second_turn() -> None:
    """The running turn goes on, the other one is told, and nothing of it is stored."""
    gate = asyncio.Event()
    plugin = MemoryPlugin(turns=Turns(on_busy=reject()))
    async with DurableSessionService.from_url("") as sessions:
        async with running(sessions, echo(gate=gate), plugins=[plugin]) as runner:
            first = asyncio.ensure_future(say(runner, "first"))
            while sessions.turns.holder(SESSION_ID) is None:
                await asyncio.sleep(0)
            with pytest.raises(TurnBusyError, match="session has a running turn; nothing"):
                await say(runner, "second")
            gate.set()
            await first
            await say(runner, "third")
        assert turns(await log(sessions)) == whole("first", "third")


async def test_wait_ends_after_its_time() -> None:
    """Who has waited for the time that was set is told; the running turn goes on."""
    gate = asyncio.Event()
    plugin = MemoryPlugin(turns=Turns(on_busy=wait(timedelta(milliseconds=20))))
    async with DurableSessionService.from_url("") as sessions:
        async with running(sessions, echo(gate=gate), plugins=[plugin]) as runner:
            first = asyncio.ensure_future(say(runner, "first"))
            while sessions.turns.holder(SESSION_ID) is None:
                await asyncio.sleep(0)
            with pytest.raises(TurnBusyError, match=r"still had after 0\.02 s"):
                await say(runner, "second")
            gate.set()
            await first
        assert turns(await log(sessions)) == whole("first")


async def test_a_session_deleted_under_who_waits_is_said_to_be_gone() -> None:
    """Both turns get ADK's own error, and a new session of that id is served."""
    gate = asyncio.Event()
    async with (
        DurableSessionService.from_url("") as sessions,
        running(sessions, echo(gate=gate, tools=[])) as slow,
        running(sessions, echo(tools=[])) as quick,
    ):
        first = asyncio.ensure_future(say(slow, "first"))
        while sessions.turns.holder(SESSION_ID) is None:
            await asyncio.sleep(0)
        second = asyncio.ensure_future(say(quick, "second"))
        await asyncio.sleep(0.05)
        await sessions.delete_session(**SESSION)
        gate.set()
        ends = await asyncio.gather(first, second, return_exceptions=True)
        assert [type(end) for end in ends] == [SessionNotFoundError] * 2
        await sessions.create_session(**SESSION)
        await asyncio.wait_for(say(quick, "third"), HANG_SECONDS)
        assert turns(await log(sessions)) == whole("third")


async def test_supersede_aborts_the_running_turn() -> None:
    """The newest message is answered; what the aborted turn did stays, with no call left open."""
    started = asyncio.Event()

    async def stay(text: str) -> str:
        """Stays for ever."""
        started.set()
        await asyncio.Event().wait()
        return text

    plugin = MemoryPlugin(turns=Turns(on_busy=supersede()))
    async with DurableSessionService.from_url("") as sessions:
        async with (
            running(sessions, echo(tools=[stay]), plugins=[plugin]) as runner,
            running(sessions, echo(tools=[]), plugins=[plugin]) as quick,
        ):
            first = asyncio.ensure_future(say(runner, "first"))
            await started.wait()
            await asyncio.wait_for(say(quick, "second"), HANG_SECONDS)
            await asyncio.wait([first])
        events = await log(sessions)
    calls = [call.id for event in events for call in event.get_function_calls()]
    answers = [answer.id for event in events for answer in event.get_function_responses()]
    assert len(calls) == 1
    assert calls == answers
    assert texts(events)[-1] == "echo second, message 2"


async def test_a_turn_that_is_held_too_long_is_lost() -> None:
    """Others go on after the hold limit, and the late one is refused whatever it appends."""
    gate = asyncio.Event()
    plugin = MemoryPlugin(turns=Turns(hold_limit=timedelta(milliseconds=50)))
    async with DurableSessionService.from_url("") as sessions:
        async with (
            running(sessions, echo(gate=gate), plugins=[plugin]) as slow,
            running(sessions, echo()) as quick,
        ):
            first = asyncio.ensure_future(say(slow, "first"))
            while sessions.turns.holder(SESSION_ID) is None:
                await asyncio.sleep(0)
            await asyncio.wait_for(say(quick, "second"), HANG_SECONDS)
            gate.set()
            with pytest.raises(TurnHeldTooLongError, match=r"appended nothing for 0\.05 s"):
                await first
        # A slow machine takes the turn away before its message is stored.
        assert texts(await log(sessions))[-1].startswith("echo second, message ")


@pytest.mark.parametrize("limit", [timedelta(0), timedelta(seconds=-1)])
def test_limits_without_a_meaning_are_refused(limit: timedelta) -> None:
    """A turn must be allowed to last, and cannot wait for a negative time."""
    with pytest.raises(ConfigurationError, match="hold_limit must be positive"):
        Turns(hold_limit=limit)
    with pytest.raises(ConfigurationError, match="negative"):
        wait(timedelta(seconds=-1))


# --- Runs inside runs


async def test_a_tool_that_runs_its_own_session_is_told_at_once() -> None:
    """It would wait for itself; it gets an error, and the turn that it belongs to goes on."""
    errors: list[BaseException] = []
    runners: list[Runner] = []

    async def ask_again(text: str) -> str:
        """Asks the same session again."""
        try:
            await say(runners[0], text)
        except TurnNestedError as error:
            errors.append(error)
        return "asked"

    async with DurableSessionService.from_url("") as sessions:
        async with running(sessions, echo(tools=[ask_again])) as runner:
            runners.append(runner)
            await asyncio.wait_for(say(runner, "first"), HANG_SECONDS)
        assert len(errors) == 1
        assert turns(await log(sessions)) == whole("first")


async def test_a_tool_may_run_another_session() -> None:
    """A run of another session inside a tool call is a turn of its own."""
    runners: list[Runner] = []

    async def ask_other(text: str) -> str:
        """Asks another session."""
        await say(runners[0], text, "other")
        return "asked"

    async with DurableSessionService.from_url("") as sessions:
        await sessions.create_session(**OWN, session_id="other")
        async with (
            running(sessions, echo(tools=[ask_other])) as runner,
            running(sessions, echo(tools=[])) as inner,
        ):
            runners.append(inner)
            await asyncio.wait_for(say(runner, "first"), HANG_SECONDS)
        assert turns(await log(sessions)) == whole("first")
        assert turns(await log(sessions, "other")) == whole("first")


@pytest.mark.filterwarnings("ignore:The `plugins` argument is deprecated")  # AgentTool passes it
async def test_an_agent_that_is_a_tool_is_left_alone() -> None:
    """The run of an `AgentTool` has a session of its own and takes no turn."""
    expert = LlmAgent(name="expert", model=Echo(), description="Knows.")

    class Asking(Echo):
        async def generate_content_async(
            self, llm_request: LlmRequest, stream: bool = False
        ) -> AsyncGenerator[LlmResponse, None]:
            async for response in super().generate_content_async(llm_request, stream):
                for part in (response.content and response.content.parts) or []:
                    if part.function_call:
                        part.function_call.args = {"request": "look"}
                yield response

    agent = LlmAgent(name="agent", model=Asking(), tools=[AgentTool(expert)])
    async with DurableSessionService.from_url("") as sessions:
        async with running(sessions, agent) as runner:
            await asyncio.wait_for(
                asyncio.gather(say(runner, "one"), say(runner, "two")), HANG_SECONDS
            )
        assert turns(await log(sessions)) == whole("one", "two")


async def test_two_plugins_are_one() -> None:
    """An app whose plugin is given twice, also by `--extra_plugins`, does not wait for itself."""
    async with DurableSessionService.from_url("") as sessions:
        plugins = [MemoryPlugin(), MemoryPlugin(name="adk_memory_ext.MemoryPlugin")]
        async with running(sessions, plugins=plugins) as runner:
            await asyncio.wait_for(
                asyncio.gather(say(runner, "one"), say(runner, "two")), HANG_SECONDS
            )
        assert turns(await log(sessions)) == whole("one", "two")


# --- Pauses


async def test_a_long_running_tool_does_not_hold_the_turn() -> None:
    """While the answer of a long-running call is awaited, others may talk, and then it may come."""

    def book(text: str) -> None:
        """Books a table, some day."""
        del text

    agent = LlmAgent(name="agent", model=Echo(), tools=[LongRunningFunctionTool(book)])
    async with DurableSessionService.from_url("") as sessions:
        async with running(sessions, agent) as runner, running(sessions, echo(tools=[])) as other:
            events = await say(runner, "first")
            (call,) = [call for event in events for call in event.get_function_calls()]
            await asyncio.wait_for(say(other, "meanwhile"), HANG_SECONDS)
            answer = types.Part(
                function_response=types.FunctionResponse(
                    id=call.id, name=call.name, response={"status": "booked"}
                )
            )
            late = types.Content(role="user", parts=[answer])
            await asyncio.wait_for(say(runner, "", new_message=late), HANG_SECONDS)
        assert sessions.turns.holder(SESSION_ID) is None
        assert "meanwhile" in texts(await log(sessions))


async def test_a_question_to_a_person_does_not_hold_the_turn() -> None:
    """While a tool waits for a person's confirmation others may talk; then it runs in its turn."""

    def book(text: str) -> str:
        """Books a table."""
        return f"booked {text}"

    asking = echo(tools=[FunctionTool(book, require_confirmation=True)])
    async with DurableSessionService.from_url("") as sessions:
        async with running(sessions, asking) as runner, running(sessions, echo(tools=[])) as other:
            events = await say(runner, "first")
            assert sessions.turns.holder(SESSION_ID) is None
            *_, question = [call for event in events for call in event.get_function_calls()]
            await asyncio.wait_for(say(other, "meanwhile"), HANG_SECONDS)
            answer = types.Part(
                function_response=types.FunctionResponse(
                    id=question.id, name=question.name, response={"confirmed": True}
                )
            )
            yes = types.Content(role="user", parts=[answer])
            events = await asyncio.wait_for(say(runner, "", new_message=yes), HANG_SECONDS)
        answers = [answer.response for event in events for answer in event.get_function_responses()]
        assert answers == [{"result": "booked first"}]
        assert sessions.turns.holder(SESSION_ID) is None


@pytest.mark.filterwarnings(r"ignore:\[EXPERIMENTAL\] ResumabilityConfig")
async def test_a_resumed_run_waits_for_its_turn() -> None:
    """A run without a new message takes a turn as well."""
    gate = asyncio.Event()
    config = ResumabilityConfig(is_resumable=True)
    async with (
        DurableSessionService.from_url("") as sessions,
        running(sessions, echo(gate=gate), resumability_config=config) as slow,
        running(sessions, echo(), resumability_config=config) as runner,
    ):
        earlier = await say(runner, "earlier")
        first = asyncio.ensure_future(say(slow, "first"))
        while sessions.turns.holder(SESSION_ID) is None:
            await asyncio.sleep(0)
        resumed = asyncio.ensure_future(
            say(runner, "", new_message=None, invocation_id=earlier[0].invocation_id)
        )
        for _ in range(50):
            await asyncio.sleep(0)
        assert not resumed.done()
        gate.set()
        await asyncio.wait_for(asyncio.gather(first, resumed), HANG_SECONDS)


class Saying(BaseAgent):
    """An agent without a model."""

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        for number in range(3):
            await asyncio.sleep(0)
            yield Event(
                invocation_id=ctx.invocation_id,
                author=self.name,
                content=content(f"{number}", "model"),
            )


async def test_any_root_agent_takes_turns() -> None:
    """Also one that ADK runs in the caller's own task."""
    async with DurableSessionService.from_url("") as sessions:
        async with running(sessions, Saying(name="saying")) as runner:
            await asyncio.gather(*(say(runner, f"{number}") for number in range(5)))
        assert turns(await log(sessions)) == [[f"{n}", "0", "1", "2"] for n in range(5)]


class Talking(BaseAgent):
    """An agent for a live run."""

    async def _run_live_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        for number in range(3):
            await asyncio.sleep(0.01)
            yield Event(
                invocation_id=ctx.invocation_id,
                author=self.name,
                content=content(f"{number}", "model"),
            )


async def test_live_runs_take_turns() -> None:
    """Two live runs of one session come one after the other, whole."""

    async def talk(runner: Runner) -> list[Event]:
        queue = LiveRequestQueue()
        queue.close()
        return [
            event
            async for event in runner.run_live(
                user_id="user", session_id="session", live_request_queue=queue
            )
        ]

    async with DurableSessionService.from_url("") as sessions:
        async with running(sessions, Talking(name="talking")) as runner:
            await asyncio.wait_for(asyncio.gather(talk(runner), talk(runner)), HANG_SECONDS)
        assert turns(await log(sessions)) == [["0", "1", "2"]] * 2
        assert sessions.turns.holder(SESSION_ID) is None


# --- Without the plugin


async def test_without_the_plugin_no_event_is_half_stored() -> None:
    """A turn that lost against another one is refused at its first append with content."""
    async with DurableSessionService.from_url("") as sessions:
        await sessions.create_session(**SESSION)
        first, second = [await sessions.get_session(**SESSION) for _ in range(2)]
        assert first is not None
        assert second is not None
        await sessions.append_event(first, said("first", state={"k": 1}))
        with pytest.raises(ValueError, match="has not seen"):
            await sessions.append_event(second, said("second", state={"k": 2}))
        session = await sessions.get_session(**SESSION)
        assert session is not None
        assert texts(session.events) == ["first"]
        assert session.state == {"k": 1}
        assert second.events == []


async def test_without_the_plugin_a_losing_turn_leaves_nothing() -> None:
    """Of two runs at once ADK fails one as stale; not even its question is stored."""
    async with DurableSessionService.from_url("") as sessions:
        async with running(sessions, plugins=[]) as runner:
            ends = await asyncio.gather(
                say(runner, "first"), say(runner, "second"), return_exceptions=True
            )
        assert [type(end) for end in ends] == [list, StaleSessionError]
        assert turns(await log(sessions)) == whole("first")


def test_a_plugin_of_its_own() -> None:
    """`Turns` alone is a plugin that an App takes."""
    app = App(name="app", root_agent=echo(), plugins=[Turns()])
    assert app.plugins[0].name == "turns"
