"""Checkpoints that agents and tools ask for are made with the event, or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google.adk.tools.tool_context import ToolContext  # noqa: TC002  # ADK reads it

from adk_memory_ext import (
    CapabilityError,
    CheckpointSteps,
    DurableSessionService,
    InvalidIdError,
    MemoryPlugin,
    StatePolicy,
    checkpoint_after_agent,
    checkpoint_after_model,
    checkpoint_after_tool,
    request_checkpoint,
)
from conversation import said, texts
from people import OWN, SESSION, echo, note, running, say

if TYPE_CHECKING:
    from google.adk.agents.llm_agent import LlmAgent
    from google.adk.events.event import Event

    from adk_memory_ext import Checkpoint


def filter_candidates(text: str, tool_context: ToolContext) -> dict[str, str]:
    """Filters, and asks for a checkpoint."""
    tool_context.state["candidates"] = [1, 2]
    request_checkpoint(
        tool_context, step="filtered", summary="two left", references={"candidates": [1, 2]}
    )
    return {"kept": text}


async def points(sessions: DurableSessionService) -> list[Checkpoint]:
    """Returns the checkpoints of the session, oldest first."""
    return (await sessions.checkpoints.list(**SESSION))[::-1]


def covered(events: list[Event], point: Checkpoint) -> Event:
    """Returns the event that a checkpoint covers last."""
    return next(event for event in events if event.id == point.event_id)


async def test_a_tool_asks_for_a_checkpoint(sessions: DurableSessionService) -> None:
    """It covers the tool's answer, and holds the state that the tool has set."""
    async with running(sessions, echo(tools=[filter_candidates])) as runner:
        events = await say(runner, "one")
        (point,) = await points(sessions)
        assert (point.step, point.summary, point.agent) == ("filtered", "two left", "echo")
        assert point.references == {"candidates": [1, 2]}
        assert covered(events, point).get_function_responses()
        assert await sessions.checkpoints.state(point.id) == {"candidates": [1, 2]}
        session = await sessions.get_session(**SESSION)
        assert session is not None
        assert not [key for key in session.state if key.startswith("temp:")]
        await sessions.checkpoints.restore(point.id)
        assert (await say(runner, "two"))[-1].invocation_id != point.invocation_id


AFTER: Final[dict[str, Any]] = {
    "tool": {"after_tool_callback": checkpoint_after_tool("note", step="tool")},
    "every tool": {"after_tool_callback": checkpoint_after_tool(step="every tool")},
    "agent": {"after_agent_callback": checkpoint_after_agent(step="agent")},
    "model": {"after_model_callback": checkpoint_after_model(step="model", workflow="w")},
}


@pytest.mark.parametrize("step", AFTER)
async def test_plain_callbacks_ask_for_checkpoints(step: str) -> None:
    """After the tool's answer, after the agent's end, with each response of the model."""
    agent: LlmAgent = echo().model_copy(update=AFTER[step])
    async with (
        DurableSessionService.from_url("") as sessions,
        running(sessions, agent, plugins=[]) as runner,
    ):
        events = await say(runner, "one")
        made = await points(sessions)
        assert {point.step for point in made} == {step}
        last = covered(events, made[-1])
        expected = {"model": ["", "echo one, message 1"]}.get(step)
        if expected is not None:
            assert texts(covered(events, point) for point in made) == expected
        else:
            assert len(made) == 1
            assert bool(last.get_function_responses()) == (step != "agent")


async def test_a_callback_for_another_tool_does_nothing() -> None:
    """Only the tools that are named have a checkpoint."""
    agent = echo().model_copy(
        update={"after_tool_callback": checkpoint_after_tool("other", step="x")}
    )
    async with DurableSessionService.from_url("") as sessions, running(sessions, agent) as runner:
        await say(runner, "one")
        assert await points(sessions) == []


async def test_the_part_makes_checkpoints_at_named_steps(sessions: DurableSessionService) -> None:
    """After a tool, after an agent and at the invocation's end; each can be restored."""
    steps = CheckpointSteps(
        after_tools={"note": "noted"},
        after_agents={"echo": "answered"},
        at_end="turn",
        workflow="talk",
        agent_version="3",
    )
    async with running(
        sessions, echo(tools=[note]), plugins=[MemoryPlugin(checkpoints=steps)]
    ) as runner:
        await say(runner, "one")
        made = await points(sessions)
        assert [point.step for point in made] == ["noted", "answered", "turn"]
        assert {(point.workflow, point.agent_version) for point in made} == {("talk", "3")}
        assert [point.agent for point in made] == ["echo", "echo", "echo"]
        await say(runner, "two")
        assert len(await points(sessions)) == 6
        restored = await sessions.checkpoints.restore(made[0].id)
        assert restored.hidden >= 4
        session = await sessions.get_session(**SESSION)
        assert session is not None
        state = {key: value for key, value in session.state.items() if ":" not in key}
        assert state == await sessions.checkpoints.state(made[0].id)


async def test_a_request_beside_a_direct_write_leaves_no_key(
    sessions: DurableSessionService,
) -> None:
    """The request is taken out of the state, and what no delta held is kept."""
    session = await sessions.create_session(**SESSION)
    key = "temp:memext_checkpoint:a"
    session.state["unsaved"] = 1
    session.state.update({key: {"step": "a"}})
    appended = await sessions.append_event(session, said("one", state={key: {"step": "a"}}))
    assert appended.actions.state_delta == {"unsaved": 1}
    assert session.state == {"unsaved": 1}
    assert [point.step for point in await points(sessions)] == ["a"]


async def test_without_the_event_there_is_no_checkpoint(sessions: DurableSessionService) -> None:
    """An append that is refused leaves no checkpoint, and a delivery twice makes one."""
    session = await sessions.create_session(**SESSION)
    event = said("one", state={"temp:memext_checkpoint:a": {"step": "a"}, "x": 1})
    delta = dict(event.actions.state_delta)
    stale = await sessions.get_session(**SESSION)
    assert stale is not None
    bad = said("bad", state={**delta, "y": float("nan")})
    with pytest.raises(ValueError, match="nan"):
        await sessions.append_event(session, bad)
    assert bad.actions.state_delta.keys() == {*delta, "y"}
    nameless = said("bad", state={"temp:memext_checkpoint:": {"step": ""}})
    with pytest.raises(InvalidIdError):
        await sessions.append_event(session, nameless)
    assert await points(sessions) == []
    again = event.model_copy(deep=True)
    await sessions.append_event(session, event)
    (point,) = await points(sessions)
    await sessions.append_event(stale, again)
    assert await points(sessions) == [point]
    assert await sessions.checkpoints.latest(**OWN) == point


@pytest.mark.parametrize("policy", [None, StatePolicy()])
async def test_a_service_without_a_place_for_checkpoints_refuses_the_event(
    policy: StatePolicy | None,
) -> None:
    """A request is never dropped in silence."""
    sessions = DurableSessionService(InMemorySessionService(), policy=policy)
    session = await sessions.create_session(**SESSION)
    event = said("one", state={"temp:memext_checkpoint:a": {"step": "a"}})
    with pytest.raises(CapabilityError, match="InMemorySessionService"):
        await sessions.append_event(session, event)
    assert session.events == []
