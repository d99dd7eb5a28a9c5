"""`History(record=True)` and `adk-memory explain`: what was cut, in ids and counts."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import pytest
from click.testing import CliRunner
from google.adk.agents.llm_agent import LlmAgent
from google.adk.apps import App
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google.genai import types

from adk_memory_ext import CapabilityError, DurableSessionService, History, MemoryPlugin, unwrap
from adk_memory_ext.cli import main
from adk_memory_ext.records import SessionId

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from click.testing import Result
    from google.adk.models.llm_request import LlmRequest
    from google.adk.sessions.base_session_service import BaseSessionService

KEY: Final[dict[str, Any]] = {"app_name": "app", "user_id": "user", "session_id": "session"}
IDENTITY: Final = SessionId("app", "user", "session")


class Talker(BaseLlm):
    """Says much."""

    model: str = "talker"

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Says the same whatever it is asked."""
        del llm_request, stream
        part = types.Part(text="a secret " * 200)
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


async def talk(sessions: BaseSessionService, turns: int) -> None:
    """Holds a conversation whose requests are recorded."""
    await sessions.create_session(**KEY)
    plugin = MemoryPlugin(history=History(2_000, record=True))
    app = App(name="app", root_agent=LlmAgent(name="agent", model=Talker()), plugins=[plugin])
    async with Runner(app=app, session_service=sessions) as runner:
        for number in range(turns):
            message = types.UserContent(f"a secret question {number}")
            async for _ in runner.run_async(
                user_id="user", session_id="session", new_message=message
            ):
                pass


async def test_each_request_is_recorded_until_its_session_goes(
    sessions: DurableSessionService,
) -> None:
    """In order, on each database; a deleted session leaves no report to one of the same id."""
    await talk(sessions, 6)
    found = await sessions.requests.of_session(IDENTITY)
    assert [request.turn for request in found] == [1, 2, 3, 4, 5, 6]
    assert {request.agent for request in found} == {"agent"}
    assert found[-1].report["reason"] == "over budget"
    assert "secret" not in str(found)
    assert await sessions.requests.of_session(SessionId("app", "other", "session")) == []
    await sessions.delete_session(**KEY)
    await sessions.create_session(**KEY)
    assert await sessions.requests.of_session(IDENTITY) == []


async def test_where_there_is_no_database_it_says_so() -> None:
    """Over a foreign service the turn ends with an error that names what is needed."""
    sessions = DurableSessionService(InMemorySessionService())
    with pytest.raises(RuntimeError) as caught:
        await talk(sessions, 1)
    assert isinstance(unwrap(caught.value), CapabilityError)


def explain(*arguments: str) -> Result:
    """Returns what `adk-memory explain` prints."""
    return CliRunner(env={"ADK_MEMORY_URL": None}).invoke(main, ["explain", *arguments])


def test_the_command_line_explains(tmp_path: Path) -> None:
    """A line for each request; every event of one turn; one line for each mistake."""
    url = f"sqlite:///{tmp_path}/sessions.db"

    async def use() -> None:
        async with DurableSessionService.from_url(url) as sessions:
            await talk(sessions, 6)
            await sessions.create_session(app_name="app", user_id="b", session_id="twice")
            await sessions.create_session(app_name="app", user_id="c", session_id="twice")

    asyncio.run(use())
    lines = explain("session", "--url", url).stdout.splitlines()
    assert len(lines) == 6
    assert "over budget" in lines[-1]
    assert "fits: " in lines[0]
    detailed = explain("session", "--turn", "6", "--url", url).stdout
    assert "dropped" in detailed
    assert "digest" in detailed
    assert "secret" not in detailed
    assert "No request was recorded" in explain("twice", "--user", "b", "--url", url).stdout
    for wrong, message in (
        (["twice"], "2 sessions are called 'twice'; name --app and --user."),
        (["nobody"], "There is no session 'nobody'."),
        (["session", "--turn", "9"], "Turn 9 was not recorded; there are 6."),
    ):
        result = explain(*wrong, "--url", url)
        assert result.exit_code == 1
        assert result.stderr == f"Error: {message}\n"


def test_explaining_creates_no_database(tmp_path: Path) -> None:
    """A wrong path is an error, not a new file."""
    result = explain("session", "--url", f"sqlite:///{tmp_path}/none.db")
    assert result.exit_code == 1
    assert list(tmp_path.iterdir()) == []
