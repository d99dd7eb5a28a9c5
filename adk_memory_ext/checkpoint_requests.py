"""Asking for a checkpoint from inside a run: in a tool, or in the callbacks of an agent.

The request travels as a `temp:` key with the event of the tool, the agent or the model; the service
takes it out at the append and makes the checkpoint together with the event.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from adk_memory_ext.checkpoint_records import CheckpointRequest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from google.adk.agents.callback_context import CallbackContext
    from google.adk.events.event import Event
    from google.adk.models.llm_response import LlmResponse
    from google.adk.sessions.session import Session
    from google.adk.tools.base_tool import BaseTool

REQUESTS: Final = "memext_checkpoints"
"""Where an event's `custom_metadata` says which checkpoints are made with it."""
_KEY: Final = "temp:memext_checkpoint:"


def request_checkpoint(  # noqa: D417  # the rest is described in CheckpointRequest
    context: CallbackContext,
    *,
    step: str,
    workflow: str = "",
    summary: str = "",
    agent_version: str = "",
    references: Mapping[str, Any] | None = None,
) -> None:
    """Has a checkpoint made of this moment, in the same transaction as the event that ends it.

    Inside a tool that is the event of the tool's answer, with the state that the tool has changed.
    Nothing is written when that event is not.

    Args:
        context: The `tool_context` or `callback_context` that ADK gave.
        step: The step that is done with this; once in an event.
    """
    request = CheckpointRequest(
        step=step,
        workflow=workflow,
        summary=summary,
        agent=context.agent_name,
        agent_version=agent_version,
        references=dict(references or {}),
    )
    context.state[_KEY + step] = asdict(request)


def checkpoint_after_tool(
    *tools: str, step: str, **said: Any
) -> Callable[..., Awaitable[dict[str, Any] | None]]:
    """Returns an `after_tool_callback` that asks for a checkpoint with the answer of a tool.

    Args:
        *tools: The names of the tools; none for every tool of the agent.
        step: The step that is done with it.
        **said: More for `request_checkpoint`.
    """

    async def checkpoint(
        tool: BaseTool,
        args: dict[str, Any],  # noqa: ARG001  # ADK's interface
        tool_context: CallbackContext,
        tool_response: Any,  # noqa: ARG001
    ) -> dict[str, Any] | None:
        if not tools or tool.name in tools:
            request_checkpoint(tool_context, step=step, **said)
        return None

    return checkpoint


def checkpoint_after_agent(*, step: str, **said: Any) -> Callable[..., Awaitable[None]]:
    """Returns an `after_agent_callback` that asks for a checkpoint when the agent is done.

    Args:
        step: The step that is done with it.
        **said: More for `request_checkpoint`.
    """

    async def checkpoint(callback_context: CallbackContext) -> None:
        request_checkpoint(callback_context, step=step, **said)

    return checkpoint


def checkpoint_after_model(*, step: str, **said: Any) -> Callable[..., Awaitable[None]]:
    """Returns an `after_model_callback` that asks for a checkpoint with the model's whole response.

    Args:
        step: The step that is done with it.
        **said: More for `request_checkpoint`.
    """

    async def checkpoint(callback_context: CallbackContext, llm_response: LlmResponse) -> None:
        if not llm_response.partial:
            request_checkpoint(callback_context, step=step, **said)

    return checkpoint


def take_requests(session: Session, event: Event) -> bool:
    """Moves the requests of an event from its delta to its metadata; whether there were any."""
    delta = event.actions.state_delta
    keys = [key for key in delta if isinstance(key, str) and key.startswith(_KEY)]
    if not keys:
        return False
    event.actions.state_delta = {key: value for key, value in delta.items() if key not in keys}
    requests = [delta[key] for key in keys]
    event.custom_metadata = {**(event.custom_metadata or {}), REQUESTS: requests}
    for key in keys:
        session.state.pop(key, None)
    return True


def requests_in(metadata: Any) -> Iterable[CheckpointRequest]:
    """Returns the requests in an event's stored metadata; what is none is passed over."""
    listed = metadata.get(REQUESTS) if isinstance(metadata, dict) else None
    for said in listed if isinstance(listed, list) else ():
        try:
            request = CheckpointRequest(**said)
        except TypeError:
            continue
        if isinstance(request.step, str) and isinstance(request.references, dict):
            yield request
