"""A workflow of ten steps with side effects, run by child processes that may die anywhere in it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from google.adk.agents.llm_agent import LlmAgent
from google.adk.apps import App
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.sessions.database_session_service import DatabaseSessionService
from google.adk.tools.tool_context import ToolContext  # noqa: TC002  # ADK reads it
from google.genai import types

from adk_memory_ext import (
    DurableSessionService,
    MemoryPlugin,
    Recovery,
    idempotency_key,
    request_checkpoint,
)
from restart.child import die
from restart.killswitch import Point, arm, watch_databases

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator
    from multiprocessing.connection import Connection
    from pathlib import Path

    from google.adk.models.llm_request import LlmRequest

    from adk_memory_ext.interruptions import Recover

STEPS: Final = 10
EVENTS: Final = 2 * STEPS + 1
"""What the Runner yields of the whole workflow: ten calls, ten answers, and the end."""
OVER_ADK: Final = "over ADK's: "
"""What stands before the URL of a database that ADK's own service has opened."""
KEY: Final[dict[str, Any]] = {"app_name": "app", "user_id": "ann", "session_id": "s"}


class Planner(BaseLlm):
    """Calls the next step that has no good answer in the request, and says so when all have."""

    model: str = "planner"

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Yields the one response."""
        del stream
        parts = [part for content in llm_request.contents for part in content.parts or []]
        answers = [part.function_response.response for part in parts if part.function_response]
        done = {answer["done"] for answer in answers if answer and "done" in answer}
        part = types.Part(text="finished")
        if len(done) < STEPS:
            number = min(set(range(1, STEPS + 1)) - done)
            part = types.Part.from_function_call(name="do", args={"number": number})
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


def effects(folder: Path) -> list[str]:
    """Returns the effects that an outside service has had, one each time it had one."""
    return sorted(path.read_text() for path in folder.glob("effect-*"))


@asynccontextmanager
async def opened(url: str, folder: Path) -> AsyncIterator[DurableSessionService]:
    """Yields our service, or ours over ADK's with a store beside it."""
    if not url.startswith(OVER_ADK):
        async with DurableSessionService.from_url(url) as sessions:
            yield sessions
        return
    store = f"sqlite:///{folder}/checkpoints.db"
    adks = url.removeprefix(OVER_ADK).replace("sqlite://", "sqlite+aiosqlite://")
    async with (
        DatabaseSessionService(adks) as plain,
        DurableSessionService(plain, store=store) as sessions,
    ):
        yield sessions


def work(
    pipe: Connection, url: str, folder: Path, how: Recover, kill: tuple[int, Point | None] | None
) -> None:
    """Runs the workflow; dies after an event of this number, or at a point of the next commit."""
    watch_databases()

    def do(number: int, tool_context: ToolContext) -> dict[str, int]:
        """Does a step, once: the outside service knows the key of a call that it has seen."""
        effect = folder / f"effect-{idempotency_key(tool_context)}"
        if not effect.exists():
            effect.write_text(str(number))
        tool_context.state["done"] = [*tool_context.state["done"], number]
        request_checkpoint(tool_context, step=f"step {number}")
        return {"done": number}

    async def run() -> None:
        agent = LlmAgent(name="agent", model=Planner(), tools=[do])
        app = App(name="app", root_agent=agent, plugins=[MemoryPlugin(recovery=Recovery(how=how))])
        async with opened(url, folder) as sessions:
            await sessions.get_or_create_session(**KEY, state={"done": []})
            runner = Runner(app=app, session_service=sessions)
            message = types.Content(role="user", parts=[types.Part(text="go on")])
            number = 0
            async for _event in runner.run_async(
                user_id="ann", session_id="s", new_message=message
            ):
                number += 1
                if kill is not None and number == kill[0]:
                    if kill[1] is None:
                        die()
                    arm(kill[1])
            session = await sessions.get_session(**KEY)
            assert session is not None
            pipe.send(session.state)
            pipe.send([point.step for point in await sessions.checkpoints.list(**KEY)][::-1])
            await runner.close()

    asyncio.run(run())
