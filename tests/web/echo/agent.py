"""An agent that repeats what the person has said so far, as the model request shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from google.adk.agents import LlmAgent
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.genai import types

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from google.adk.models.llm_request import LlmRequest


class Echo(BaseLlm):
    """A model that answers with every user text in the request, in order."""

    async def generate_content_async(
        self,
        llm_request: LlmRequest,
        stream: bool = False,  # noqa: ARG002  # the answer comes in one piece either way
    ) -> AsyncGenerator[LlmResponse, None]:
        """Yields the one answer."""
        said = [
            part.text
            for content in llm_request.contents
            if content.role == "user"
            for part in content.parts or []
            if part.text
        ]
        answer = types.Part(text=" / ".join(said))
        yield LlmResponse(content=types.Content(role="model", parts=[answer]))


root_agent = LlmAgent(name="echo", model=Echo(model="echo"))
