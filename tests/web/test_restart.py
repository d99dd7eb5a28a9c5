"""The coach's conversation over REST goes on after the server was killed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import pytest

from adk_server import COACH
from resume_coach.scenario import messages

if TYPE_CHECKING:
    from adk_server import AdkProject, AdkServer, Serve

README_URI: Final = "memext+sqlite+aiosqlite:///.sessions/sessions.db"
"""As the README gives it: relative to the folder in which `adk` was started."""


@pytest.mark.parametrize("command", ["web", "api_server"])
def test_conversation_goes_on_after_the_server_was_killed_between_turns(
    command: str, project: AdkProject, serve: Serve
) -> None:
    """Each turn needs the turn before it, and each is served by another process."""
    question, answer, change = messages("en")
    server = serve(README_URI, command=command)
    server.create_session(COACH, "s1")
    assert _tools_called(server.run(COACH, "s1", question)) == ["verify_evidence"]
    acknowledged = server.session(COACH, "s1")
    server.kill()

    server.start()
    assert server.session(COACH, "s1") == acknowledged
    second = server.run_sse(COACH, "s1", answer)
    assert _tools_called(second) == ["lookup_resources", "validate_learning_plan"]
    before = _weeks(server)
    server.kill()

    server.start()
    assert _tools_called(server.run(COACH, "s1", change)) == ["validate_learning_plan"]
    now = _weeks(server)
    assert [week["hours_used"] for week in before] == [6, 6, 6]
    assert [week["hours_used"] for week in now] == [6, 2, 6]
    assert [now[0], now[2]] == [before[0], before[2]]
    assert (project.root / ".sessions" / "sessions.db").is_file()

    # The control: where the turns before are missing, the same messages bring no plan.
    server.create_session(COACH, "empty")
    assert _tools_called(server.run(COACH, "empty", answer)) == []
    assert _tools_called(server.run(COACH, "empty", change)) == []


def _tools_called(events: list[dict[str, Any]]) -> list[str]:
    return [
        part["functionCall"]["name"]
        for event in events
        for part in event.get("content", {}).get("parts", [])
        if "functionCall" in part and not event.get("partial")
    ]


def _weeks(server: AdkServer) -> list[dict[str, Any]]:
    plan = json.loads(server.session(COACH, "s1")["state"]["learning_plan"])
    weeks: list[dict[str, Any]] = plan["weeks"]
    return weeks
