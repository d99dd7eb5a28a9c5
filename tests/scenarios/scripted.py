"""Models that decide from the request alone: what it does not say, they do not know."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.genai import types

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from google.adk.models.llm_request import LlmRequest


class Scripted(BaseLlm):
    """Answers with what a function makes of the request, and keeps what it was sent."""

    model: str = "scripted"
    decide: Any
    """Takes a request, and returns the part of the answer."""
    heard: list[Any] = []  # noqa: RUF012  # pydantic copies it for each instance

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Yields the next call or answer."""
        del stream
        self.heard.append(llm_request.model_copy(deep=True))
        part = self.decide(llm_request)
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


def since_the_last_message(request: LlmRequest) -> tuple[str, dict[str, Any]]:
    """Returns the user's last message, and the answers of tools behind it, by their names."""
    wish, answers = "", dict[str, Any]()
    for content in request.contents:
        for part in content.parts or []:
            if part.function_response and part.function_response.name:
                answers[part.function_response.name] = part.function_response.response
            elif content.role == "user" and part.text:
                wish, answers = part.text, {}
    return wish, answers


def text(words: str) -> types.Part:
    """Returns what a model says."""
    return types.Part(text=words)


def call(name: str, **arguments: Any) -> types.Part:
    """Returns a call of a tool."""
    return types.Part.from_function_call(name=name, args=arguments)
