"""A trip planner without a network: it recalls, plans, and saves what it is asked to keep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from google.adk.agents.llm_agent import LlmAgent
from google.adk.apps import App
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.genai import types

from adk_memory_ext import PROFILE_INSTRUCTION, MemoryPlugin, PreloadProfile, ProfileToolset
from conversation import texts

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from google.adk.events.event import Event
    from google.adk.models.llm_request import LlmRequest

    from adk_memory_ext import DurableSessionService

DIETS = ("vegetarian", "vegan")


class Planner(BaseLlm):
    """Answers from the request alone: what the request does not say, it does not know."""

    model: str = "planner"
    heard: list[Any] = []  # noqa: RUF012  # pydantic copies it for each instance

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Yields the next call or answer."""
        del stream
        self.heard.append(llm_request.model_copy(deep=True))
        yield LlmResponse(content=types.Content(role="model", parts=[self._next(llm_request)]))

    def _next(self, request: LlmRequest) -> types.Part:
        last = (request.contents[-1].parts or [types.Part()])[0]
        if answer := last.function_response:
            if answer.name == "recall_profile":
                return self._plan(str(answer.response))
            return types.Part(text=f"Done: {answer.response}")
        said = last.text or ""
        diet = next((diet for diet in DIETS if diet in said), None)
        if "forget" in said:
            return _call("forget_profile", key="dietary")
        if diet and "remember" in said:
            return _call("save_profile", key="dietary", value=diet, kind="constraint")
        system = str(request.config.system_instruction)
        if "<user_profile>" in system:
            return self._plan(system)
        return _call("recall_profile")

    def _plan(self, known: str) -> types.Part:
        diet = next((diet for diet in DIETS if f'"{diet}"' in known), "no particular")
        return types.Part(text=f"Two days in Lisbon, with {diet} food.")


def _call(name: str, **arguments: Any) -> types.Part:
    return types.Part.from_function_call(name=name, args=arguments)


def app(model: BaseLlm, *, preload: PreloadProfile | bool = True, **options: Any) -> App:
    """Returns the planner's app."""
    part = PreloadProfile() if preload is True else preload or None
    agent = LlmAgent(
        name="planner",
        model=model,
        instruction=str(PROFILE_INSTRUCTION),
        tools=[ProfileToolset(**options)],
    )
    plugin = MemoryPlugin(profile=part)
    return App(name="trip_planner", root_agent=agent, plugins=[plugin])


async def say(
    sessions: DurableSessionService,
    session_id: str,
    *messages: str | types.Part,
    user: str = "person",
    of: App | None = None,
) -> list[Event]:
    """Sends messages to the planner, one turn each, and returns the events of the last turn."""
    await sessions.get_or_create_session(
        app_name="trip_planner", user_id=user, session_id=session_id
    )
    events: list[Event] = []
    async with Runner(app=of or app(Planner()), session_service=sessions) as runner:
        for message in messages:
            part = types.Part(text=message) if isinstance(message, str) else message
            content = types.Content(role="user", parts=[part])
            run = runner.run_async(user_id=user, session_id=session_id, new_message=content)
            events = [event async for event in run]
    return events


def answer(events: list[Event]) -> str:
    """Returns what was said in a turn."""
    return " ".join(text for text in texts(events) if text)


def responses(events: list[Event]) -> list[dict[str, Any]]:
    """Returns the answers of the tools in a turn."""
    return [one.response or {} for event in events for one in event.get_function_responses()]
