"""`PreloadProfile`: what is known of the user stands in the system instruction of each turn."""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from google.adk.plugins.base_plugin import BasePlugin

from adk_memory_ext.errors import ConfigurationError, MemoryExtError, StoreError
from adk_memory_ext.profile.fence import fenced
from adk_memory_ext.service import DurableSessionService

if TYPE_CHECKING:
    from google.adk.agents.callback_context import CallbackContext
    from google.adk.agents.invocation_context import InvocationContext
    from google.adk.models.llm_request import LlmRequest

_logger: Final = logging.getLogger(__name__)
_OPEN_TURNS: Final = 4_096
_UNREAD: Final = "The user's profile could not be read just now. Do not take it for empty."


class PreloadProfile(BasePlugin):
    """Puts the user's facts into the system instruction, recalled once a turn.

    They are recalled at the first model call of a turn and stand in each call of it, in the same
    bytes as long as they do not change, so that a provider's prompt cache goes on. Without facts
    nothing is added. Facts marked as sensitive are left to `recall_profile`. Where a database for
    profiles is missing, and inside an `AgentTool`, it does nothing.

    It is the `profile` part of `MemoryPlugin` and can be used alone.

    Args:
        name: The plugin's name, unique within a Runner.
        budget_tokens: How many tokens the facts may take, estimated; the least certain and oldest
            are left out.
        stop_if_unavailable: End the turn when the database cannot be read, instead of telling the
            model that the profile is not known.
    """

    def __init__(
        self,
        name: str = "profile",
        *,
        budget_tokens: int = 500,
        stop_if_unavailable: bool = False,
    ) -> None:
        super().__init__(name=name)
        if not isinstance(budget_tokens, int) or budget_tokens < 1:
            raise ConfigurationError("budget_tokens must be a whole number from 1 on.")
        self._budget_tokens = budget_tokens
        self._stops = stop_if_unavailable
        self._texts: OrderedDict[tuple[str, str], str] = OrderedDict()

    async def before_run_callback(self, *, invocation_context: InvocationContext) -> None:
        """Lets saves wait for the end of the turn."""
        service = invocation_context.session_service
        if isinstance(service, DurableSessionService) and service.profiles.available:
            service.profiles.begin_turn(invocation_context.invocation_id)

    async def before_model_callback(
        self, *, callback_context: CallbackContext, llm_request: LlmRequest
    ) -> None:
        """Adds the facts to the system instruction.

        Raises:
            StoreError: When they cannot be read and `stop_if_unavailable` is set; ADK hands it on
                as the cause of a `RuntimeError`.
        """
        context = callback_context.get_invocation_context()
        service = context.session_service
        if not isinstance(service, DurableSessionService) or not service.profiles.available:
            return
        turn = (context.invocation_id, callback_context.agent_name)
        if turn not in self._texts:
            self._texts[turn] = await self._text(context, service, callback_context.agent_name)
            while len(self._texts) > _OPEN_TURNS:
                self._texts.popitem(last=False)
        if text := self._texts[turn]:
            llm_request.append_instructions([text])

    async def _text(
        self, context: InvocationContext, service: DurableSessionService, agent: str
    ) -> str:
        try:
            recalled = await service.profiles.recall(
                app_name=context.app_name,
                user_id=context.user_id,
                agent=agent,
                include_sensitive=False,
                budget_tokens=self._budget_tokens,
                on_unavailable="raise" if self._stops else "partial",
            )
        except StoreError:
            raise
        except MemoryExtError as error:
            _logger.warning("No profile was recalled: %s", error)
            return ""
        parts = [fenced(recalled.facts)] if recalled.facts else []
        if recalled.partial:
            parts.append(_UNREAD)
        return "\n".join(parts)

    async def after_run_callback(self, *, invocation_context: InvocationContext) -> None:
        """Saves what waited for the turn's end."""
        await self._end(invocation_context, failed=False)

    async def on_run_error_callback(
        self,
        *,
        invocation_context: InvocationContext,
        error: Exception,  # noqa: ARG002  # ADK's interface
    ) -> None:
        """Gives up what waited for the turn's end."""
        await self._end(invocation_context, failed=True)

    async def _end(self, context: InvocationContext, *, failed: bool) -> None:
        for turn in [turn for turn in self._texts if turn[0] == context.invocation_id]:
            del self._texts[turn]
        if isinstance(context.session_service, DurableSessionService):
            await context.session_service.profiles.end_turn(context.invocation_id, failed=failed)
