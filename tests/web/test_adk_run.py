"""`adk run` speaks one turn per process and goes on where the last process stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from adk_server import COACH
from resume_coach.scenario import messages

if TYPE_CHECKING:
    from adk_server import AdkProject


def test_conversation_goes_on_in_the_next_process(project: AdkProject) -> None:
    """The second `adk run` of a session finds the first turn and plans from it."""
    question, answer, _ = messages("zh-TW")
    assert "18 小時" not in _say(project, question)
    assert "18 小時" in _say(project, answer)  # three weeks of six hours


def _say(project: AdkProject, message: str) -> str:
    uri = "memext+sqlite:///.sessions/sessions.db"
    options = ("--session_service_uri", uri, "--session_id", "s1")
    ended = project.adk("run", *options, f"agents/{COACH}", message)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout
