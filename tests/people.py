"""People who talk to an agent at the same time, and the agent, which needs no network."""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from google.adk.agents.llm_agent import LlmAgent
from google.adk.apps import App
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.genai import types

from adk_memory_ext.plugin import MemoryPlugin
from adk_memory_ext.service import DurableSessionService
from conversation import texts

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable
    from multiprocessing.connection import Connection

    from google.adk.agents.base_agent import BaseAgent
    from google.adk.events.event import Event
    from google.adk.models.llm_request import LlmRequest
    from google.adk.sessions.base_session_service import BaseSessionService
    from google.adk.tools.tool_context import ToolContext

OWN: Final[dict[str, Any]] = {"app_name": "app", "user_id": "user"}
SESSION: Final[dict[str, Any]] = {**OWN, "session_id": "session"}


def content(text: str, role: str = "user") -> types.Content:
    """Returns what somebody says."""
    return types.Content(role=role, parts=[types.Part(text=text)])


class Echo(BaseLlm):
    """Answers each message with the same text, after a tool call, a few ticks of the loop later."""

    model: str = "echo"
    ticks: int = 3
    gate: Any = None
    """An event to wait for before the final answer; None for none."""
    calls: int = 1
    """How many calls of the tool it makes at once before it answers."""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Answers from the request alone."""
        del stream
        for _ in range(self.ticks):
            await asyncio.sleep(0)
        asked = [
            part.text
            for one in llm_request.contents
            for part in one.parts or []
            if one.role == "user" and part.text
        ]
        last = (llm_request.contents[-1].parts or [types.Part()])[0]
        if llm_request.tools_dict and not last.function_response:
            name = next(iter(llm_request.tools_dict))
            parts = [
                types.Part.from_function_call(name=name, args={"text": f"{asked[-1]}"})
                for _ in range(self.calls)
            ]
            yield LlmResponse(content=types.Content(role="model", parts=parts))
            return
        if self.gate is not None:
            await self.gate.wait()
        yield LlmResponse(content=content(f"echo {asked[-1]}, message {len(asked)}", "model"))


def note(text: str, tool_context: ToolContext) -> dict[str, str]:
    """Notes a text in the state of session, user and app."""
    for prefix in ("", "user:", "app:"):
        tool_context.state[prefix + "notes"] = [
            *tool_context.state.get(prefix + "notes", []),
            text,
        ]
    return {"noted": text}


def echo(**options: Any) -> LlmAgent:
    """Returns the agent."""
    tools: list[Callable[..., Any]] = options.pop("tools", [note])
    return LlmAgent(name="echo", model=Echo(**options), tools=tools)  # type: ignore[arg-type]


@asynccontextmanager
async def running(
    sessions: BaseSessionService, agent: BaseAgent | Any = None, **options: Any
) -> AsyncIterator[Runner]:
    """Yields a Runner with our plugin over a session that exists."""
    options = {"plugins": [MemoryPlugin()]} | options
    app = App(name="app", root_agent=agent or echo(), **options)
    if await sessions.get_session(**SESSION) is None:
        with suppress(AlreadyExistsError):  # another process has just made it
            await sessions.create_session(**SESSION)
    async with Runner(app=app, session_service=sessions) as runner:
        yield runner


async def say(
    runner: Runner, text: str, session_id: str = "session", **options: Any
) -> list[Event]:
    """Returns the events of one turn."""
    options = {"new_message": content(text)} | options
    return [
        event async for event in runner.run_async(user_id="user", session_id=session_id, **options)
    ]


async def log(sessions: BaseSessionService, session_id: str = "session") -> list[Event]:
    """Returns what is stored."""
    session = await sessions.get_session(**OWN, session_id=session_id)
    assert session is not None
    return session.events


def turns(events: list[Event]) -> list[list[str]]:
    """Returns what was said, one list an invocation, in the order of the log.

    Raises:
        AssertionError: When an invocation is in pieces.
    """
    found: list[tuple[str, list[str]]] = []
    for event in events:
        if event.content is None:
            continue
        if not found or found[-1][0] != event.invocation_id:
            assert event.invocation_id not in [one for one, _ in found], "a turn is interrupted"
            found.append((event.invocation_id, []))
        found[-1][1].extend(text for text in texts([event]) if text)
    return [said for _, said in found]


def whole(*messages: str) -> list[list[str]]:
    """Returns the turns of messages that were each answered after all before them."""
    return [
        [text, f"echo {text}, message {number}"] for number, text in enumerate(messages, start=1)
    ]


# --- In other processes


def send_pairs(number: int, url: str, pairs: int, sessions: int) -> None:
    """Sends two messages at once, again and again, each pair to some session of some."""
    choose = random.Random(number)  # noqa: S311  # the same in each run

    async def run() -> None:
        async with (
            DurableSessionService.from_url(url, pool_size=4, max_overflow=4) as service,
            running(service) as runner,
        ):
            for pair in range(pairs):
                name = f"session-{choose.randrange(sessions)}"
                await service.get_or_create_session(**OWN, session_id=name)
                await asyncio.gather(
                    *(say(runner, f"{number}-{pair}-{which}", name) for which in "ab")
                )

    asyncio.run(run())


def hold_for_ever(url: str, is_held: Connection) -> None:
    """Begins a turn, says so, and does not end."""

    async def run() -> None:
        async with DurableSessionService.from_url(url) as service:
            agent = echo(tools=[], gate=asyncio.Event())
            async with running(service, agent) as runner:
                turn = asyncio.ensure_future(say(runner, "killed"))
                while not await log(service):
                    await asyncio.sleep(0.01)
                is_held.send(None)
                await turn

    asyncio.run(run())
