"""Two calls at once, run by child processes of which the first dies inside the second call."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from google.adk.agents.llm_agent import LlmAgent
from google.adk.apps import App, ResumabilityConfig
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.tools.tool_context import ToolContext  # noqa: TC002  # ADK reads it
from google.genai import types

from adk_memory_ext import (
    DurableSessionService,
    MemoryPlugin,
    Recovery,
    request_checkpoint,
    resume_interrupted,
)
from conversation import texts
from people import OWN, SESSION, content
from restart.child import die

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from multiprocessing.connection import Connection
    from pathlib import Path

    from google.adk.events.event import Event
    from google.adk.models.llm_request import LlmRequest

    from adk_memory_ext.interruptions import Recover

PLACES: Final = ("quick", "slow")


class Both(BaseLlm):
    """Calls both at once and says what came back."""

    model: str = "both"

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Yields the one response."""
        del stream
        parts = [part for one in llm_request.contents for part in one.parts or []]
        answers = [part.function_response.response for part in parts if part.function_response]
        if answers:
            said = types.Content(role="model", parts=[types.Part(text=f"{answers}")])
            yield LlmResponse(content=said)
            return
        calls = [types.Part.from_function_call(name="book", args={"place": one}) for one in PLACES]
        yield LlmResponse(content=types.Content(role="model", parts=calls))


def bookings(folder: Path) -> list[str]:
    """Returns what the tools have booked, once each time that they did."""
    return sorted(path.read_text() for path in folder.glob("booked-*"))


def work(pipe: Connection, url: str, folder: Path, how: Recover, kill: bool) -> None:
    """Begins the turn, or goes on with it in the way that `how` names."""

    async def book(place: str, tool_context: ToolContext) -> dict[str, Any]:
        """Books a place; dies where it has to, when the other has booked."""
        if place == "slow":
            await asyncio.sleep(0.3)
            if kill:
                die()
        (folder / f"booked-{len(bookings(folder))}").write_text(place)
        tool_context.state["booked"] = [*tool_context.state.get("booked", []), place]
        request_checkpoint(tool_context, step=place)
        return {"booked": place}

    async def run() -> None:
        app = App(
            name="app",
            root_agent=LlmAgent(name="agent", model=Both(), tools=[book]),
            plugins=[MemoryPlugin(recovery=Recovery(how=how))],
            resumability_config=ResumabilityConfig(is_resumable=True),
        )
        async with DurableSessionService.from_url(url) as sessions:
            await sessions.get_or_create_session(**SESSION)
            runner = Runner(app=app, session_service=sessions)
            events: AsyncGenerator[Event, None]
            if kill or how == "tell":
                events = runner.run_async(**_who(), new_message=content("book both"))
            else:
                events = resume_interrupted(runner, **_who())
            told = [event async for event in events]
            session = await sessions.get_session(**SESSION)
            assert session is not None
            pipe.send(("".join(filter(None, texts(told))), session.state.get("booked")))
            points = await sessions.checkpoints.list(**SESSION)
            pipe.send(sorted(point.step for point in points))
            await runner.close()

    asyncio.run(run())


def _who() -> dict[str, Any]:
    return {"user_id": OWN["user_id"], "session_id": SESSION["session_id"]}
