"""The `recovery` part of `MemoryPlugin`: settles what a crash left open before a turn begins."""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from google.adk.plugins.base_plugin import BasePlugin

from adk_memory_ext.errors import RestoreHookError
from adk_memory_ext.interruptions import needs_fresh_facts
from adk_memory_ext.records import SessionId
from adk_memory_ext.service import DurableSessionService

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from google.adk.agents.callback_context import CallbackContext
    from google.adk.agents.invocation_context import InvocationContext
    from google.adk.models.llm_request import LlmRequest
    from google.adk.tools.tool_context import ToolContext
    from google.genai import types

    from adk_memory_ext.interruptions import Recover, Recovered

    RestoreHook: TypeAlias = Callable[[CallbackContext], Awaitable[Any]]


_AFRESH: Final = (
    "The conversation was interrupted and restored. These facts were read afresh just now and"
    " replace whatever was said of them before: "
)


class Recovery(BasePlugin):
    """Finds an interrupted invocation at the start of a turn, and settles it.

    It stands behind the `turns` part: without a turn of its own it does nothing, because what looks
    interrupted may be running.

    Args:
        name: The plugin's name, unique within a Runner.
        how: `tell` answers each open call with "interrupted, outcome unknown", so that the model
            checks before it repeats; `rollback` restores the session's last good checkpoint, and
            tells where there is none.
        on_restore: Functions that read live facts (an order's status, a balance, a stock) with
            their own service. They are run before the first model call after a recovery or a
            restore, and what they return is put before the model as fresh, under the function's
            name, in every request of that turn.
        on_report: Called with what was found and done, when something was found.
    """

    def __init__(
        self,
        name: str = "recovery",
        *,
        how: Recover = "tell",
        on_restore: Sequence[RestoreHook] = (),
        on_report: Callable[[Recovered], None] | None = None,
    ) -> None:
        super().__init__(name=name)
        self._how: Recover = how
        self._on_restore = tuple(on_restore)
        self._on_report = on_report
        self._fresh: dict[str, str | None] = {}
        """What is put before the model, by invocation; None until the hooks have run."""

    async def on_user_message_callback(
        self, *, invocation_context: InvocationContext, user_message: types.Content
    ) -> types.Content | None:
        """Settles what the last process left open; the message stays as it is."""
        service, session = invocation_context.session_service, invocation_context.session
        if not isinstance(service, DurableSessionService) or not _has_turn(
            service, invocation_context
        ):
            return None
        answers = [part.function_response for part in user_message.parts or []]
        answered = {answer.id for answer in answers if answer and answer.id}
        run = invocation_context.run_config
        config = run.get_session_config if run else None
        report = await service.checkpoints.recover_in_turn(session, self._how, answered, config)
        if report.did != "nothing" and self._on_report is not None:
            self._on_report(report)
        is_restored = not session.events and await service.checkpoints.is_restored(session)
        if self._on_restore and (is_restored or needs_fresh_facts(session.events)):
            self._fresh[invocation_context.invocation_id] = None
        return None

    async def before_model_callback(
        self, *, callback_context: CallbackContext, llm_request: LlmRequest
    ) -> None:
        """Puts live facts before the model, read once after a restore or recovery.

        Raises:
            RestoreHookError: When a hook fails; it ends the turn.
        """
        invocation = callback_context.invocation_id
        if invocation not in self._fresh:
            return
        facts = self._fresh[invocation]
        if facts is None:
            facts = self._fresh[invocation] = _AFRESH + await self._read_afresh(callback_context)
        llm_request.append_instructions([facts])

    async def _read_afresh(self, context: CallbackContext) -> str:
        facts: dict[str, Any] = {}
        for hook in self._on_restore:
            name = getattr(hook, "__name__", type(hook).__name__)
            try:
                facts[name] = await hook(context)
            except Exception as error:
                raise RestoreHookError(name) from error
        return json.dumps(facts, ensure_ascii=False, default=str)

    async def after_run_callback(self, *, invocation_context: InvocationContext) -> None:
        """Forgets the invocation."""
        self._fresh.pop(invocation_context.invocation_id, None)

    async def on_run_error_callback(
        self,
        *,
        invocation_context: InvocationContext,
        error: Exception,  # noqa: ARG002  # ADK's interface
    ) -> None:
        """Forgets the invocation."""
        self._fresh.pop(invocation_context.invocation_id, None)


def _has_turn(service: DurableSessionService, context: InvocationContext) -> bool:
    """Whether this invocation runs alone, so that nothing it finds open is still running."""
    session = context.session
    identity = SessionId(session.app_name, session.user_id, session.id)
    turn = service.turns.of(identity, context.invocation_id)
    return turn is not None and turn.failure is None and not turn.released


def idempotency_key(tool_context: ToolContext, *, step: str = "") -> str:
    """Returns a key for an outside service that is the same when the model repeats this call.

    It is made of the session, the tool's name, its arguments and the step, and of nothing that
    changes when an invocation is resumed, told of an interruption, or rolled back. Two calls that
    are meant to happen twice with the same arguments need two steps; a model that repeats a call
    with other arguments makes another key.

    Args:
        tool_context: What ADK gave the tool.
        step: What tells apart calls that are alike and meant so.
    """
    session, call_id = tool_context.session, tool_context.function_call_id
    calls = (call for event in reversed(session.events) for call in event.get_function_calls())
    call = next((call for call in calls if call.id == call_id), None)
    named = [call_id] if call is None else [call.name, call.args or {}]
    identity = [session.app_name, session.user_id, session.id, step, *named]
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"), default=str)
    return blake2b(text.encode(), digest_size=16).hexdigest()
