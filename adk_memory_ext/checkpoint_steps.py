"""The `checkpoints` part of `MemoryPlugin`: checkpoints at the steps that an application names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from google.adk.plugins.base_plugin import BasePlugin

from adk_memory_ext.checkpoint_requests import request_checkpoint
from adk_memory_ext.service import DurableSessionService

if TYPE_CHECKING:
    from collections.abc import Mapping

    from google.adk.agents.base_agent import BaseAgent
    from google.adk.agents.callback_context import CallbackContext
    from google.adk.agents.invocation_context import InvocationContext
    from google.adk.tools.base_tool import BaseTool
    from google.adk.tools.tool_context import ToolContext


class CheckpointSteps(BasePlugin):
    """Makes a checkpoint after tools and agents, and at the end of each invocation.

    Those after a tool or an agent are made in the transaction of its event. Tools can ask for one
    themselves, with `request_checkpoint`, also without this part.

    Args:
        name: The plugin's name, unique within a Runner.
        after_tools: The step that is done when a tool has answered, by the tool's name.
        after_agents: The step that is done when an agent has ended, by the agent's name.
        at_end: The step that each invocation ends with; None to make no checkpoint there.
        workflow: What the steps belong to.
        agent_version: What the app calls this version of its agents.
    """

    def __init__(
        self,
        name: str = "checkpoints",
        *,
        after_tools: Mapping[str, str] | None = None,
        after_agents: Mapping[str, str] | None = None,
        at_end: str | None = None,
        workflow: str = "",
        agent_version: str = "",
    ) -> None:
        super().__init__(name=name)
        self._after_tools = dict(after_tools or {})
        self._after_agents = dict(after_agents or {})
        self._at_end = at_end
        self._workflow = workflow
        self._agent_version = agent_version

    async def after_tool_callback(
        self,
        *,
        tool: BaseTool,
        tool_args: dict[str, Any],  # noqa: ARG002  # ADK's interface
        tool_context: ToolContext,
        result: dict[str, Any],  # noqa: ARG002
    ) -> None:
        """Asks for a checkpoint with the tool's answer."""
        self._request(tool_context, self._after_tools.get(tool.name))

    async def after_agent_callback(
        self, *, agent: BaseAgent, callback_context: CallbackContext
    ) -> None:
        """Asks for a checkpoint with the agent's last event."""
        self._request(callback_context, self._after_agents.get(agent.name))

    async def after_run_callback(self, *, invocation_context: InvocationContext) -> None:
        """Makes the checkpoint of the invocation's end."""
        service = invocation_context.session_service
        if self._at_end is None or not isinstance(service, DurableSessionService):
            return
        await service.checkpoints.create(
            invocation_context.session,
            step=self._at_end,
            workflow=self._workflow,
            agent=invocation_context.agent.name if invocation_context.agent else "",
            agent_version=self._agent_version,
        )

    def _request(self, context: CallbackContext, step: str | None) -> None:
        if step is not None:
            request_checkpoint(
                context, step=step, workflow=self._workflow, agent_version=self._agent_version
            )
