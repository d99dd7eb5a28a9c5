"""The plugin part that tells the model, and not the caller, when a tool's write is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from google.adk.plugins.base_plugin import BasePlugin

from adk_memory_ext.errors import StateRejectedError
from adk_memory_ext.policy import enforce
from adk_memory_ext.service import DurableSessionService

if TYPE_CHECKING:
    from google.adk.tools.base_tool import BaseTool
    from google.adk.tools.tool_context import ToolContext

    from adk_memory_ext.policy import StatePolicy


class RefusedWrites(BasePlugin):
    """Turns a state write that the service's policy refuses into the tool's error answer.

    Nothing that the call wrote to the state is kept then, and the run goes on. Works alone as a
    plugin too; without a policy it does nothing.

    Args:
        name: The plugin's name, unique within a Runner.
    """

    def __init__(self, name: str = "memory_policy") -> None:
        super().__init__(name=name)
        self._before: WeakKeyDictionary[ToolContext, dict[str, Any]] = WeakKeyDictionary()

    async def before_tool_callback(
        self,
        *,
        tool: BaseTool,  # noqa: ARG002  # the callback's signature
        tool_args: dict[str, Any],  # noqa: ARG002
        tool_context: ToolContext,
    ) -> dict[str, Any] | None:
        """Notes the state before the call; asks for nothing."""
        if _policy(tool_context) is not None:
            self._before[tool_context] = dict(tool_context.state.to_dict())
        return None

    async def after_tool_callback(
        self,
        *,
        tool: BaseTool,  # noqa: ARG002
        tool_args: dict[str, Any],  # noqa: ARG002
        tool_context: ToolContext,
        result: dict[str, Any],  # noqa: ARG002
    ) -> dict[str, Any] | None:
        """Returns an error answer where the policy refuses what the tool wrote."""
        policy = _policy(tool_context)
        before = self._before.pop(tool_context, {})
        # Asking for it records what was changed in place.
        if policy is None or policy.on_refused == "drop" or not tool_context.state.has_delta():
            return None
        refused = enforce(policy, tool_context.actions.state_delta, before).refused
        if not refused:
            return None
        self._undo(tool_context, before)
        return _answer("; ".join(f"{refusal.key!r} {refusal.reason}" for refusal in refused))

    async def on_tool_error_callback(
        self,
        *,
        tool: BaseTool,  # noqa: ARG002
        tool_args: dict[str, Any],  # noqa: ARG002
        tool_context: ToolContext,
        error: Exception,
    ) -> dict[str, Any] | None:
        """Returns an error answer where the tool itself met the policy, as in `sessions.state`."""
        before = self._before.pop(tool_context, {})
        if not isinstance(error, StateRejectedError) or _policy(tool_context) is None:
            return None
        self._undo(tool_context, before)
        return _answer(f"{error.key!r} {error.reason}")

    @staticmethod
    def _undo(tool_context: ToolContext, before: dict[str, Any]) -> None:
        """Takes the call's writes out of its delta and of the session that others read."""
        delta = tool_context.actions.state_delta
        live = tool_context.session.state
        for key, written in list(delta.items()):
            del delta[key]
            if live.get(key) is not written:
                continue  # another call of this step wrote it since
            if key in before and before[key] is not written:
                live[key] = before[key]
            else:
                live.pop(key, None)


def _policy(tool_context: ToolContext) -> StatePolicy | None:
    service = tool_context.get_invocation_context().session_service
    return service.policy if isinstance(service, DurableSessionService) else None


def _answer(reasons: str) -> dict[str, Any]:
    return {"error": f"State was refused: {reasons}. Nothing that this call wrote was remembered."}
