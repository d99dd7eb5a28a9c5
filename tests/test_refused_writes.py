"""The plugin part that makes a refused write the tool's answer, reached by a real Runner."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import pytest
from google.adk.agents.llm_agent import LlmAgent
from google.adk.apps import App
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.genai import types

from adk_memory_ext import DurableSessionService, Increment, MemoryPlugin, StatePolicy, StateRule
from adk_memory_ext.errors import StateRejectedError
from adk_memory_ext.refused_writes import RefusedWrites
from conversation import texts

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from google.adk.events.event import Event
    from google.adk.models.llm_request import LlmRequest
    from google.adk.plugins.base_plugin import BasePlugin
    from google.adk.tools.tool_context import ToolContext

OWNER: Final[dict[str, Any]] = {"app_name": "app", "user_id": "ann"}
POLICY: Final = StatePolicy(
    rules=[StateRule("n", type=int), StateRule("items", type=list[int])],
    scopes={"session", "user", "temp"},
)


class CallsAll(BaseLlm):
    """Calls every tool that it has in one step, and then says done."""

    model: str = "calls-all"

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Answers from the request alone."""
        del stream
        last = (llm_request.contents[-1].parts or [types.Part()])[0]
        parts = [types.Part(text="done")]
        if not last.function_response:
            parts = [
                types.Part.from_function_call(name=name, args={}) for name in llm_request.tools_dict
            ]
        yield LlmResponse(content=types.Content(role="model", parts=parts))


async def play(
    service: DurableSessionService,
    *tools: Callable[..., Any],
    plugin: BasePlugin | None = None,
    state: dict[str, Any] | None = None,
) -> tuple[list[Event], dict[str, Any]]:
    """Returns the events of a turn that calls the tools at once, and the state as stored."""
    session = await service.create_session(**OWNER, state=state)
    agent = LlmAgent(name="agent", model=CallsAll(), tools=list(tools))
    app = App(name="app", root_agent=agent, plugins=[plugin or MemoryPlugin()])
    async with Runner(app=app, session_service=service) as runner:
        events = [
            event
            async for event in runner.run_async(
                user_id="ann", session_id=session.id, new_message=types.UserContent("hello")
            )
        ]
    found = await service.get_session(**OWNER, session_id=session.id)
    assert found is not None
    return events, dict(found.state)


def answers(events: list[Event]) -> dict[str, Any]:
    """Returns what each tool answered."""
    return {
        answer.name or "": answer.response
        for event in events
        for answer in event.get_function_responses()
    }


async def publish(tool_context: ToolContext) -> dict[str, str]:
    """Writes what it may not."""
    tool_context.state["n"] = 2
    await asyncio.sleep(0)
    tool_context.state["app:secret"] = "a-value"
    return {"said": "published"}


async def note(tool_context: ToolContext) -> dict[str, str]:
    """Writes what it may."""
    await asyncio.sleep(0)
    tool_context.state["m"] = 3
    return {"said": "noted"}


async def test_of_parallel_tools_the_refused_one_alone_is_undone() -> None:
    """The other one's state is stored, and each call has its answer."""
    async with DurableSessionService.from_url("", policy=POLICY) as service:
        events, state = await play(service, publish, note, state={"n": 1})
    found = answers(events)
    assert found["note"] == {"said": "noted"}
    assert "'app:secret' is in the scope app" in found["publish"]["error"]
    assert "a-value" not in str(found)
    assert state == {"n": 1, "m": 3}
    assert texts(events)[-1] == "done"


async def test_it_works_alone_as_a_plugin() -> None:
    """An app that wants nothing else of ours can have it."""
    async with DurableSessionService.from_url("", policy=POLICY) as service:
        events, state = await play(service, publish, plugin=RefusedWrites(), state={"n": 1})
    assert "error" in answers(events)["publish"]
    assert state == {"n": 1}


async def test_without_the_part_the_run_ends_with_the_error() -> None:
    """`MemoryPlugin(policy=None)` leaves it to who called the Runner; nothing is stored."""
    async with DurableSessionService.from_url("", policy=POLICY) as service:
        with pytest.raises(StateRejectedError, match="app:secret"):
            await play(service, publish, plugin=MemoryPlugin(policy=None))


async def test_a_service_without_a_policy_is_left_alone() -> None:
    """Everything may be written."""
    async with DurableSessionService.from_url("") as service:
        events, state = await play(service, publish)
    assert answers(events)["publish"] == {"said": "published"}
    assert state == {"n": 2, "app:secret": "a-value"}


async def test_dropped_keys_leave_the_answer_as_it_is() -> None:
    """With `on_refused="drop"` the event says what was left out."""
    policy = StatePolicy(scopes={"session"}, on_refused="drop")
    async with DurableSessionService.from_url("", policy=policy) as service:
        events, state = await play(service, publish)
    (event,) = (event for event in events if event.get_function_responses())
    assert answers(events)["publish"] == {"said": "published"}
    assert [item["key"] for item in (event.custom_metadata or {})["memext_refused"]] == [
        "app:secret"
    ]
    assert state == {"n": 2}


async def test_a_refusal_by_sessions_state_inside_a_tool_is_its_answer_too() -> None:
    """A tool that changes state without its context meets the same policy."""

    async def outside(tool_context: ToolContext) -> dict[str, str]:
        """Writes through the service."""
        tool_context.state["m"] = 1
        await service.state.update({"app:x": 1}, app_name="app")
        return {"said": "never"}

    async with DurableSessionService.from_url("", policy=POLICY) as service:
        events, state = await play(service, outside)
    assert "'app:x' is in the scope app" in answers(events)["outside"]["error"]
    assert state == {}


async def test_changes_of_a_tool_are_taken_and_judged() -> None:
    """`Increment` passes the part, whose result only the store knows."""

    def count(tool_context: ToolContext) -> dict[str, str]:
        """Counts."""
        tool_context.state["n"] = Increment(2)
        return {"said": "counted"}

    async with DurableSessionService.from_url("", policy=POLICY) as service:
        events, state = await play(service, count, state={"n": 1})
    assert answers(events)["count"] == {"said": "counted"}
    assert state == {"n": 3}


async def test_other_errors_of_tools_pass() -> None:
    """Only a refused write becomes an answer."""

    def broken() -> None:
        """Fails."""
        raise ConnectionError("the library is closed")

    async with DurableSessionService.from_url("", policy=POLICY) as service:
        with pytest.raises(ConnectionError):
            await play(service, broken)
