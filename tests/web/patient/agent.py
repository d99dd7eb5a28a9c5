"""An agent that answers when a file called `go` lies in the server's folder."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.genai import types

from adk_memory_ext import MemoryPlugin, Turns, reject

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from google.adk.models.llm_request import LlmRequest


class Patient(BaseLlm):
    """A model that waits."""

    async def generate_content_async(
        self,
        llm_request: LlmRequest,  # noqa: ARG002  # it does not matter what is asked
        stream: bool = False,  # noqa: ARG002  # the answer comes in one piece either way
    ) -> AsyncGenerator[LlmResponse, None]:
        """Yields the one answer, some day."""
        while not Path("go").exists():  # noqa: ASYNC240  # another process makes it
            await asyncio.sleep(0.01)
        yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text="done")]))


app = App(
    name="patient",
    root_agent=LlmAgent(name="patient", model=Patient(model="patient")),
    plugins=[MemoryPlugin(turns=Turns(on_busy=reject()))],
)
