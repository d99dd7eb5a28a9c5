"""What a checkpoint's digest still stands for: pruned stretches, plain ADK's events, lost logs."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from google.adk.agents.llm_agent import LlmAgent
from google.adk.sessions.database_session_service import DatabaseSessionService
from google.adk.tools.tool_context import ToolContext  # noqa: TC002  # ADK reads it

from adk_memory_ext import (
    CheckpointInconsistentError,
    CheckpointPolicy,
    CheckpointRetention,
    DurableSessionService,
    RetentionPolicy,
    request_checkpoint,
)
from conversation import said, texts
from model_input import faults
from people import OWN, SESSION, running, say
from scenarios.scripted import Scripted, call, text
from servers import execute

if TYPE_CHECKING:
    from pathlib import Path

    from google.adk.sessions.session import Session

    from adk_memory_ext import Checkpoint


@pytest.fixture
def url(tmp_path: Path) -> str:
    """The URL of an empty SQLite database."""
    return f"sqlite+aiosqlite:///{tmp_path}/sessions.db"


async def found(sessions: DurableSessionService) -> Session:
    """Returns the session as it is stored."""
    session = await sessions.get_session(**SESSION)
    assert session is not None
    return session


async def talked(
    sessions: DurableSessionService, messages: int
) -> tuple[Session, list[Checkpoint]]:
    """Returns a session with a checkpoint after each message."""
    session = await sessions.create_session(**SESSION, state={"n": 0, "letter": "a letter"})
    points = []
    for number in range(1, messages + 1):
        event = said(f"words {number}", invocation=f"i{number}", state={"n": number})
        await sessions.append_event(session, event)
        points.append(await sessions.checkpoints.create(session, step=f"s{number}"))
    return session, points


def change(url: str, event_id: str) -> None:
    """Changes what is stored of an event, as somebody with the file could."""
    data = "replace(event_data, 'words', 'other words')"
    execute(url, f"UPDATE events SET event_data = {data} WHERE id = '{event_id}'")  # noqa: S608


@pytest.mark.parametrize("changed", [1, 2, 4, 5])
async def test_a_pruned_checkpoint_leaves_its_digest(changed: int, url: str) -> None:
    """A change in its stretch is still found and named, by the checkpoint that took it over."""
    async with DurableSessionService.from_url(url) as sessions:
        session, points = await talked(sessions, 6)
        rule = CheckpointRetention(last=1, last_of_each_step=False)
        assert await sessions.checkpoints.prune(rule, **SESSION) == 5
        assert (await sessions.checkpoints.restore(points[5].id)).state_only is False
        event_id = session.events[changed - 1].id
    change(url, event_id)
    async with DurableSessionService.from_url(url) as sessions:
        with pytest.raises(CheckpointInconsistentError) as refusal:
            await sessions.checkpoints.restore(points[5].id)
        assert refusal.value.event_id == event_id
        assert f"Event {changed} " in str(refusal.value)
        assert await sessions.checkpoints.latest(**SESSION) is None


async def test_what_plain_adk_went_on_with_is_digested_from_there_on(url: str) -> None:
    """The next checkpoint covers its events: one that is changed later is named."""
    async with DurableSessionService.from_url(url) as sessions:
        _session, (before,) = await talked(sessions, 1)
    async with DatabaseSessionService(url) as plain:
        theirs = await plain.get_session(**SESSION)
        assert theirs is not None
        for number in (2, 3):
            event = said(f"words {number}", invocation=f"i{number}", state={"n": number})
            await plain.append_event(theirs, event)
    async with DurableSessionService.from_url(url) as sessions:
        # Not covered yet: what was said since is hidden, and nothing of it is judged.
        assert (await sessions.checkpoints.latest(**SESSION)) == before
        behind = await sessions.checkpoints.create(await found(sessions), step="behind")
        assert behind.sequence == 3
        assert (await sessions.checkpoints.restore(before.id)).hidden == 2
        await sessions.checkpoints.restore(behind.id)
        assert texts((await found(sessions)).events)[-2:] == ["words 2", "words 3"]
    change(url, theirs.events[1].id)
    async with DurableSessionService.from_url(url) as sessions:
        with pytest.raises(CheckpointInconsistentError) as refusal:
            await sessions.checkpoints.restore(behind.id)
        assert refusal.value.event_id == theirs.events[1].id
        assert await sessions.checkpoints.latest(**SESSION) == before


async def test_without_its_session_a_restore_is_of_state_only_and_says_so(url: str) -> None:
    """After the session's expiry: state without history, and what only the log knew by name."""
    policy = CheckpointPolicy(personal=("letter",))
    async with DurableSessionService.from_url(url, checkpoint_policy=policy) as sessions:
        _session, points = await talked(sessions, 3)
        expired = RetentionPolicy(session_age=timedelta(0))
        await sessions.erasure.sweep(expired, now=points[2].created_at + 1)
        assert await sessions.get_session(**SESSION) is None
        restored = await sessions.checkpoints.restore(points[1].id)
        assert (restored.state_only, restored.missing) == (True, ("letter",))
        session = await found(sessions)
        assert (session.events, dict(session.state)) == ([], {"n": 2})
        fork = await sessions.checkpoints.fork(points[2].id)
        assert (fork.state_only, fork.repeated, fork.missing) == (True, 0, ("letter",))


async def test_later_words_of_the_same_turn_are_not_in_the_next_request() -> None:
    """Restored to the answer of its first tool, the model is sent that and nothing behind it."""

    def look(what: str, tool_context: ToolContext) -> dict[str, str]:
        """Looks."""
        tool_context.state["seen"] = what
        request_checkpoint(tool_context, step=what)
        return {"seen": what}

    script: list[Any] = [call("look", what="one"), call("look", what="two"), text("a lie")]
    model = Scripted(decide=lambda _request: script.pop(0) if script else text("again"))
    agent = LlmAgent(name="agent", model=model, tools=[look])
    async with DurableSessionService.from_url("") as sessions, running(sessions, agent) as runner:
        await say(runner, "look twice")
        point = await sessions.checkpoints.latest(**OWN, step="one")
        assert point is not None
        assert len((await found(sessions)).events) == 6
        restored = await sessions.checkpoints.restore(point.id)
        assert (restored.hidden, restored.repeated) == (3, 3)
        assert (await found(sessions)).state["seen"] == "one"
        await say(runner, "go on")
    contents = model.heard[-1].contents
    assert faults(contents) == []
    sent = str(contents)
    assert ("look twice" in sent, "'one'" in sent, "go on" in sent) == (True, True, True)
    assert "two" not in sent
    assert "a lie" not in sent
