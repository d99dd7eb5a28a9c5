"""What a whole Runner turn costs over a long history: windowed, and as ADK offers it."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Final

from google.adk.agents import RunConfig
from google.adk.agents.llm_agent import LlmAgent
from google.adk.apps import App
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.context_filter_plugin import ContextFilterPlugin
from google.adk.runners import Runner
from google.adk.sessions.base_session_service import GetSessionConfig
from google.genai import types

from adk_memory_ext import DurableSessionService, Window
from benchmarks.adk_stores import APP, open_adk, open_ours
from benchmarks.histories import seed_history
from benchmarks.rounds import Measured, in_turns
from benchmarks.workload import AUTHOR

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from google.adk.models.llm_request import LlmRequest
    from google.adk.plugins.base_plugin import BasePlugin
    from google.adk.sessions.base_session_service import BaseSessionService

    from benchmarks.effort import Effort

SHORT: Final = 20
WINDOW: Final = 20
LARGE_WINDOW: Final = 120
WINDOWED: Final = f"adk_memory_ext, window of {WINDOW}"
LARGE_WINDOWED: Final = f"adk_memory_ext, window of {LARGE_WINDOW}"
WHOLE: Final = "adk_memory_ext"
ADK_WHOLE: Final = "ADK"
ADK_FILTER: Final = "ADK, ContextFilterPlugin"
ADK_TAIL: Final = "ADK, get_session_config"
_MILLISECONDS: Final = 1_000
_GROWING: Final = 100


class _Tool(BaseLlm):
    """Calls its one tool, then answers."""

    model: str = "tool"

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Answers from the last content alone."""
        del stream
        part = (llm_request.contents[-1].parts or [types.Part()])[0]
        if part.function_response is None:
            answer = types.Part.from_function_call(name="look_up", args={"topic": "week one"})
        else:
            answer = types.Part(text="That is week one.")
        yield LlmResponse(content=types.Content(role="model", parts=[answer]))


def look_up(topic: str) -> dict[str, str]:
    """Looks a topic up."""
    return {"found": topic}


@dataclass(frozen=True)
class _Setup:
    """One way to run a turn."""

    service: BaseSessionService
    config: GetSessionConfig | None = None
    filtered: bool = False

    async def turn(self, session: str) -> float:
        """Returns the milliseconds of one turn with a tool call."""
        plugins: list[BasePlugin] = []
        if self.filtered:
            plugins.append(ContextFilterPlugin(num_invocations_to_keep=5))
        agent = LlmAgent(name=AUTHOR, model=_Tool(), tools=[look_up])
        runner = Runner(
            app=App(name=APP, root_agent=agent, plugins=plugins), session_service=self.service
        )
        start = perf_counter()
        run = runner.run_async(
            user_id=session,
            session_id=session,
            new_message=types.UserContent("What is in week one?"),
            run_config=RunConfig(get_session_config=self.config),
        )
        events = [event async for event in run]
        elapsed = perf_counter() - start
        if len(events) != 3:  # call, answer, words
            raise AssertionError(f"a turn with {len(events)} events")
        return elapsed * _MILLISECONDS


def _windowed(ours: DurableSessionService, events: int) -> _Setup:
    return _Setup(DurableSessionService(ours.wrapped, window=Window(events=events)))


async def measure_long_turns(
    url: Callable[[str], str], effort: Effort, step: Callable[[float], None]
) -> Measured:
    """Measures `turn_ms/<length>`: a turn with one tool call behind so many earlier events.

    Args:
        url: Returns a contender's own database by its name.
        effort: How long.
        step: Is told the part that is done, from 0 to 1.
    """
    measured = Measured()
    lengths = sorted({SHORT, *effort.lengths})
    async with AsyncExitStack() as stack:
        adk = (await stack.enter_async_context(open_adk(url("adk")))).service
        ours = (await stack.enter_async_context(open_ours(url("ours")))).service
        for service in (adk, ours):
            for length in lengths:
                await seed_history(service, f"turn-{length}", length)
        step(0.5)
        assert isinstance(ours, DurableSessionService)  # noqa: S101  # for the type checker
        setups = {
            WINDOWED: _windowed(ours, WINDOW),
            LARGE_WINDOWED: _windowed(ours, LARGE_WINDOW),
            WHOLE: _Setup(ours),
            ADK_WHOLE: _Setup(adk),
            ADK_FILTER: _Setup(adk, filtered=True),
            ADK_TAIL: _Setup(adk, GetSessionConfig(num_recent_events=WINDOW)),
        }
        turns = [f"{name}/{length}" for name in setups for length in lengths]
        _longest, rounds = effort.loads[-1]  # those take seconds, each of them
        for number, turn in in_turns(turns, rounds):
            name, _, events = turn.partition("/")
            session = f"turn-{events}"
            if int(events) <= _GROWING:  # which a few turns would make another length
                session = f"{session}-{name}-{number}"
                await seed_history(setups[name].service, session, int(events))
            value = await setups[name].turn(session)
            measured.add(f"turn_ms/{events}", name, value)
            step(0.5 + (number + 1) / rounds / 2)
    return measured
