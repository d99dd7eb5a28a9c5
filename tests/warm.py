"""What the server of `forks.py` does before it forks: import ADK and us, and run one turn.

The turn builds what pydantic and ADK build at their first use. It starts no thread.
"""

from __future__ import annotations

import asyncio
import importlib
from typing import TYPE_CHECKING, Final

from google.adk.agents.llm_agent import LlmAgent
from google.adk.events.event import Event
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google.genai import types

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from google.adk.models.llm_request import LlmRequest

_MODULES: Final = (
    "adk_memory_ext.plugin",
    "adk_memory_ext.server_database",
    "adk_memory_ext.sql_sessions",
    "adk_memory_ext.sqlite_database",
    "aiosqlite",
    "asyncpg",
    "conversation",
    "google.adk.cli.cli_tools_click",
    "people",
    "google.adk.sessions.database_session_service",
    "pytest",
    "redis",
    "restart.children",
    "sqlalchemy.dialects.postgresql.asyncpg",
    "sqlalchemy.dialects.sqlite.pysqlite",
)


class _Model(BaseLlm):
    model: str = "warm"

    async def generate_content_async(
        self,
        llm_request: LlmRequest,
        stream: bool = False,  # noqa: ARG002  # ADK's interface
    ) -> AsyncGenerator[LlmResponse, None]:
        is_answered = (llm_request.contents[-1].parts or [])[-1].function_response
        call = types.Part(function_call=types.FunctionCall(name="nothing", args={}))
        part = types.Part(text="done") if is_answered else call
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


def nothing() -> dict[str, str]:
    """Does nothing."""
    return {}


async def _turn() -> None:
    sessions = InMemorySessionService()
    session = await sessions.create_session(app_name="app", user_id="user")
    agent = LlmAgent(name="agent", model=_Model(), tools=[nothing])
    runner = Runner(app_name="app", agent=agent, session_service=sessions)
    message = types.Content(role="user", parts=[types.Part(text="hello")])
    async for event in runner.run_async(user_id="user", session_id=session.id, new_message=message):
        Event.model_validate_json(event.model_dump_json())
    await runner.close()


for _module in _MODULES:
    importlib.import_module(_module)
asyncio.run(_turn())
