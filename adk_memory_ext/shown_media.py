"""The `media` part of `MemoryPlugin`: a model sees the media that its history refers to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from google.adk.plugins.base_plugin import BasePlugin

from adk_memory_ext.media import with_media

if TYPE_CHECKING:
    from google.adk.agents.callback_context import CallbackContext
    from google.adk.models.llm_request import LlmRequest
    from google.adk.models.llm_response import LlmResponse


class ShownMedia(BasePlugin):
    """Puts media that lie with the artifact service back into each request.

    It runs behind `history`, which counts them by their references, so that nothing is loaded that
    is cut anyway. As a plain callback: `LlmAgent(before_model_callback=ShownMedia().show)`.

    Args:
        name: The plugin's name, unique within a Runner.
    """

    def __init__(self, name: str = "memory_media") -> None:
        super().__init__(name=name)

    async def before_model_callback(
        self, *, callback_context: CallbackContext, llm_request: LlmRequest
    ) -> LlmResponse | None:
        """Puts the media back; what the session holds stays as it is."""
        await self.show(callback_context, llm_request)
        return None

    async def show(self, callback_context: CallbackContext, llm_request: LlmRequest) -> None:
        """Puts the media back; what the session holds stays as it is."""
        run = callback_context.get_invocation_context()
        llm_request.contents = await with_media(llm_request.contents, run)
