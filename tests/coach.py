"""The résumé coach in a Runner, with the model of a test's choice."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from google.adk.apps import App
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.sessions import InMemorySessionService
from google.genai import types

from adk_memory_ext import DurableSessionService, MemoryPlugin, PreloadProfile
from conversation import texts
from resume_coach.agent import root_agent
from resume_coach.learning_plan import PLAN_KEY, LearningPlan, stored_plan
from resume_coach.offline_model import OfflineCoach

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from google.adk.agents import RunConfig
    from google.adk.events.event import Event
    from google.adk.models.llm_request import LlmRequest
    from google.adk.sessions.session import Session

    from adk_memory_ext import History

APP_NAME = "resume_coach"
USER_ID = "person"
SESSION_ID = "conversation"

RESUME = """\
Sam Rivers
- I wrote a booking service in Python with Flask.
- We used Git with pull requests.
- 20 pytest tests for the prices.
"""
JOB_AD = """\
Backend engineer
- Python
- Git
- SQL: joins
- Docker: build an image
- Automated tests
"""


class Script(BaseLlm):
    """Says or calls what a test has written down, one part for each request."""

    model: str = "script"
    parts: list[types.Part]

    async def generate_content_async(
        self,
        llm_request: LlmRequest,  # noqa: ARG002  # a script does not listen
        stream: bool = False,  # noqa: ARG002
    ) -> AsyncGenerator[LlmResponse, None]:
        """Yields the next part of the script."""
        yield LlmResponse(content=types.Content(role="model", parts=[self.parts.pop(0)]))


class Listener(OfflineCoach):
    """Answers as `OfflineCoach` and keeps every request."""

    heard: list[Any] = []  # noqa: RUF012  # pydantic copies it for each instance

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Keeps the request and answers it."""
        self.heard.append(llm_request.model_copy(deep=True))
        async for response in super().generate_content_async(llm_request, stream):
            yield response


@dataclass
class Conversation:
    """A conversation with the coach after some turns."""

    session: Session
    turns: list[list[Event]] = field(default_factory=list)
    """The events that each message has brought about."""

    def said(self, turn: int) -> str:
        """Returns the coach's words in a turn, counted from 1."""
        return "\n".join(text for text in texts(self.turns[turn - 1]) if text)

    def calls(self, turn: int) -> list[types.FunctionCall]:
        """Returns the tool calls of a turn, counted from 1, in order."""
        return [call for event in self.turns[turn - 1] for call in event.get_function_calls()]

    def answers(self, turn: int) -> list[dict[str, Any]]:
        """Returns the tool answers of a turn, counted from 1, in order."""
        events = self.turns[turn - 1]
        answers = [answer for event in events for answer in event.get_function_responses()]
        return [answer.response or {} for answer in answers]

    @property
    def plan(self) -> LearningPlan | None:
        """The accepted plan in session state."""
        return stored_plan(self.session.state.get(PLAN_KEY))


def pasted(resume: str = RESUME, job_ad: str = JOB_AD, question: str = "What do I lack?") -> str:
    """Returns a message as a person would paste it."""
    return f"{question}\n\nRésumé:\n{resume}\n\nJob advertisement:\n{job_ad}"


async def converse(
    messages: Sequence[str],
    model: BaseLlm | None = None,
    state: Mapping[str, Any] | None = None,
    sessions: DurableSessionService | None = None,
    run_config: RunConfig | None = None,
    *,
    history: History | None = None,
) -> Conversation:
    """Sends messages to the coach, one turn each, and returns what came of it.

    Args:
        messages: The person's messages.
        model: The model to answer; `OfflineCoach` if None.
        state: The state with which the session begins.
        sessions: Where the session lives; in memory if None.
        run_config: ADK's configuration of each run.
        history: What bounds its requests; None to send all.
    """
    sessions = sessions or DurableSessionService(InMemorySessionService())
    agent = root_agent.clone({"model": model or OfflineCoach()})
    plugin = MemoryPlugin(profile=PreloadProfile(), history=history)
    app = App(name=APP_NAME, root_agent=agent, plugins=[plugin])
    session = await sessions.get_or_create_session(
        app_name=APP_NAME, user_id=USER_ID, session_id=SESSION_ID, state=dict(state or {})
    )
    turns = []
    async with Runner(app=app, session_service=sessions) as runner:
        for message in messages:
            run = runner.run_async(
                user_id=USER_ID,
                session_id=SESSION_ID,
                new_message=types.UserContent(message),
                run_config=run_config,
            )
            turns.append([event async for event in run])
    found = await sessions.get_session(app_name=APP_NAME, user_id=USER_ID, session_id=SESSION_ID)
    return Conversation(found or session, turns)
