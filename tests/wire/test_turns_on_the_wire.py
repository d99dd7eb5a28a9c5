"""What the real Gemini client sends for the coach when every turn has a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from google.adk.models.llm_request import LlmRequest
from google.genai import types

from gemini_stub import GeminiStub
from resume_coach.offline_model import OfflineCoach
from resume_coach.scenario import messages

if TYPE_CHECKING:
    from collections.abc import Iterator

_TURNS: Final = Path(__file__).parent / "turns.py"
_AGENTS: Final = Path(__file__).parents[2] / "agents"


@dataclass(frozen=True)
class Coach:
    """The coach on Gemini, over a SQLite file; each `play` is a process that is killed."""

    gemini: GeminiStub
    url: str
    forks: subprocess.Popen[str]

    def play(self, *say: str, **script: Any) -> None:
        """Says the messages in a new process; see `turns.Script` for the rest."""
        assert self.forks.stdin
        assert self.forks.stdout
        line = {"gemini": self.gemini.environment, "url": self.url, "say": say, **script}
        print(json.dumps(line), file=self.forks.stdin, flush=True)
        assert self.forks.stdout.readline() == f"{signal.SIGKILL.value}\n"


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[str]]:
    """The process that has imported everything and forks the others."""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path_factory.mktemp("home")),
        "PYTHONPATH": str(_AGENTS),
        "RESUME_COACH_MODEL": "gemini-2.5-flash",
    }
    with subprocess.Popen(
        [sys.executable, str(_TURNS)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as forks:
        yield forks


@pytest.fixture
def coach(forks: subprocess.Popen[str], tmp_path: Path) -> Iterator[Coach]:
    """The coach with an empty database, on a Gemini that answers as the offline coach does."""
    with GeminiStub(_answer) as gemini:
        yield Coach(gemini, f"sqlite:///{tmp_path}/sessions.db", forks)
    assert [request.rejection for request in gemini.requests if request.rejection] == []


def _answer(body: dict[str, Any]) -> list[dict[str, Any]]:
    """Decides from nothing but the request that came in."""
    request = LlmRequest(
        contents=[types.Content.model_validate(content) for content in body["contents"]],
        config=types.GenerateContentConfig(
            system_instruction=body["systemInstruction"]["parts"][0]["text"]
        ),
    )

    async def last_response() -> types.Content:
        responses = [r async for r in OfflineCoach().generate_content_async(request)]
        assert responses[-1].content
        return responses[-1].content

    content = asyncio.run(last_response())
    parts: list[dict[str, Any]] = content.model_dump(mode="json", by_alias=True, exclude_none=True)[
        "parts"
    ]
    return parts


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_second_turn_carries_the_first_byte_for_byte(stream: bool, coach: Coach) -> None:
    """From a new process, the first turn goes out as it did before, and its answer as it came."""
    question, answer, _ = messages("zh-TW")
    coach.play(question, stream=stream)
    called, told = coach.gemini.requests
    coach.play(answer, stream=stream)
    second = coach.gemini.requests[2]
    assert second.method == ("streamGenerateContent" if stream else "generateContent")

    # The first turn: the question, the tool call with its signature, the tool's answer ...
    assert len(told.contents) == 3
    assert told.contents[:1] == called.contents
    assert b"thoughtSignature" in told.contents[1]
    assert second.contents[:3] == told.contents
    # ... and what the model said last; then comes the new message.
    said = {"parts": _answer(told.json), "role": "model"}
    assert second.contents[3] == json.dumps(said).encode()
    assert json.loads(second.contents[4])["parts"] == [{"text": answer}]
    assert len(second.contents) == 5


def test_restarted_processes_send_what_one_that_never_stopped_sends(coach: Coach) -> None:
    """Over three turns every request is, byte for byte, that of ADK's own service in memory."""
    coach.play(*messages("en"), url=None)
    never_stopped = [request.body for request in coach.gemini.requests]
    assert len(never_stopped) == 7  # three answers and four tool calls
    coach.gemini.requests.clear()
    for message in messages("en"):
        coach.play(message)
    assert [request.body for request in coach.gemini.requests] == never_stopped


def test_state_of_every_scope_stands_in_the_system_text(coach: Coach) -> None:
    """What session, user and app keep reaches the model from a new process; others see theirs."""
    name, rule, resume = "Alex of Riverside", "No plan over ten weeks.", "Wrote a parcel tracker."
    state = {"user:preferred_name": name, "app:house_rules": rule, "resume_text": resume}
    coach.play("Hello", state=state)
    coach.play("Hello again")
    coach.play("Hello", session="session-2")
    coach.play("Hello", user="user-2")
    at_once, later, other_session, other_user = (
        [text in request.system_text for text in (name, rule, resume)]
        for request in coach.gemini.requests
    )
    assert at_once == later == [True, True, True]
    assert other_session == [True, True, False]
    assert other_user == [False, True, False]
