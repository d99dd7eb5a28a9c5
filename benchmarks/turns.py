"""What a whole turn of a Runner costs, with the plugin and without it."""

from __future__ import annotations

import statistics
from contextlib import AsyncExitStack
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from google.adk.agents.llm_agent import LlmAgent
from google.adk.apps import App
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.sessions.database_session_service import DatabaseSessionService
from google.genai import types

from adk_memory_ext import DurableSessionService, MemoryPlugin
from benchmarks.rounds import Measured, in_turns

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from google.adk.models.llm_request import LlmRequest
    from google.adk.sessions.base_session_service import BaseSessionService

    from benchmarks.effort import Effort

WITH: Final = "turn_ms"
WITHOUT: Final = "turn_without_plugin_ms"
_TURNS: Final = 5
"""Turns of one side in one round; the median counts."""
_MILLISECONDS: Final = 1_000
_WHO: Final[dict[str, Any]] = {"user_id": "user", "session_id": "session"}


class _Answering(BaseLlm):
    model: str = "answering"

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        del llm_request, stream
        usage = types.GenerateContentResponseUsageMetadata(
            prompt_token_count=1, candidates_token_count=1, total_token_count=2
        )
        answer = types.Content(role="model", parts=[types.Part(text="An answer.")])
        yield LlmResponse(content=answer, usage_metadata=usage)


async def measure_turns(
    url: Callable[[str], str], effort: Effort, step: Callable[[float], None]
) -> Measured:
    """Measures a turn of one session that nobody else uses: a message, an answer, no tool.

    `turn_ms` and `turn_without_plugin_ms` over ours, `turn_without_plugin_ms` over ADK's default.
    The session begins anew each round, so that its length does not matter.
    """
    measured = Measured()
    async with AsyncExitStack() as stack:
        ours = await stack.enter_async_context(DurableSessionService.from_url(url("ours")))
        adks = await stack.enter_async_context(DatabaseSessionService(url("adk")))
        sides: dict[str, tuple[str, str, BaseSessionService, Runner]] = {}
        for side, (quantity, who, service, plugins) in {
            "with": (WITH, "ours", ours, [MemoryPlugin()]),
            "without": (WITHOUT, "ours", ours, []),
            "adk": (WITHOUT, "adk", adks, []),
        }.items():
            app = App(
                name="app",
                root_agent=LlmAgent(name="agent", model=_Answering()),
                plugins=list(plugins),
            )
            runner = await stack.enter_async_context(Runner(app=app, session_service=service))
            sides[side] = (quantity, who, service, runner)
        for number, side in in_turns(list(sides), effort.append_rounds):
            quantity, who, service, runner = sides[side]
            measured.add(quantity, who, await _time(service, runner))
            step((number + 1) / effort.append_rounds)
    return measured


async def _time(service: BaseSessionService, runner: Runner) -> float:
    await service.delete_session(app_name="app", **_WHO)
    await service.create_session(app_name="app", **_WHO)
    times = []
    for number in range(1 + _TURNS):
        message = types.Content(role="user", parts=[types.Part(text=f"Question {number}.")])
        start = perf_counter()
        async for _event in runner.run_async(**_WHO, new_message=message):
            pass
        times.append(perf_counter() - start)
    return statistics.median(times[1:]) * _MILLISECONDS
