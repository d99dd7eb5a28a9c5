"""`MemoryPlugin`: the one ADK plugin that brings what needs callbacks, part by part."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Literal

from google.adk.plugins.base_plugin import BasePlugin

from adk_memory_ext.errors import ConfigurationError
from adk_memory_ext.history import History
from adk_memory_ext.profile import PreloadProfile
from adk_memory_ext.recovery import Recovery
from adk_memory_ext.refused_writes import RefusedWrites
from adk_memory_ext.service import DurableSessionService
from adk_memory_ext.shown_media import ShownMedia
from adk_memory_ext.turns import Turns
from adk_memory_ext.watched_state import ToolReads, current_tool

if TYPE_CHECKING:
    from collections.abc import Iterable

    from google.adk.agents.base_agent import BaseAgent
    from google.adk.agents.callback_context import CallbackContext
    from google.adk.agents.invocation_context import InvocationContext
    from google.adk.events.event import Event
    from google.adk.models.llm_request import LlmRequest
    from google.adk.models.llm_response import LlmResponse
    from google.adk.tools.base_tool import BaseTool
    from google.adk.tools.tool_context import ToolContext
    from google.genai import types

PARTS: Final = (
    *("turns", "policy", "recovery", "checkpoints", "profile", "history", "media"),
    "pruning",
)
"""The parts in the order in which each callback reaches them.

A turn is taken before anything reads the session; a write that the policy refuses becomes the
tool's error answer before another part sees that answer; what a crash left open is settled before a
checkpoint is made of it; the profile joins the request before history is cut to its budget; media
are loaded for what is left; what is pruned, the turn that ends has no need of.
"""

_inside_tool: ContextVar[bool] = ContextVar("adk_memory_ext_inside_tool", default=False)


class MemoryPlugin(BasePlugin):
    """Runs the memory parts in their fixed order, over the Runner's `DurableSessionService`.

    Takes no required argument and finds the service at `invocation_context.session_service`, so
    that `adk web --extra_plugins adk_memory_ext.MemoryPlugin` works as well as
    `App(plugins=[MemoryPlugin()])`. As among ADK's plugins, the first part that answers a callback
    ends it. An agent that runs as an `AgentTool` has a session service of its own inside the tool
    call and is left alone.

    Args:
        name: The plugin's name, unique within a Runner.
        turns: `Turns()` unless another one is given; None to let turns of a session collide.
        policy: `RefusedWrites()` unless another one is given; None leaves refused writes to the
            Runner, as errors.
        recovery: `Recovery()` unless another one is given; None to leave open what a crash cut off.
        checkpoints: `CheckpointSteps(…)`, or another plugin to run after `recovery`.
        profile: `PreloadProfile()`, which adds what is known of the user to a request, unless
            another one is given; it runs after `checkpoints`. None to add nothing.
        history: A plugin to run when the model request is complete, such as `History(…)`.
        media: `ShownMedia()`, which gives a request the media that its history refers to, unless
            another one is given; it runs last. None to send references as they are.
        pruning: `PruneHistory(…)`, or another plugin to run at the end of a turn.
        budget_tokens: For `history=History(budget_tokens)`.

    Raises:
        ConfigurationError: When `history` and `budget_tokens` are both given.
    """

    def __init__(
        self,
        name: str = "memory",
        *,
        turns: BasePlugin | Literal["default"] | None = "default",
        policy: BasePlugin | Literal["default"] | None = "default",
        recovery: BasePlugin | Literal["default"] | None = "default",
        checkpoints: BasePlugin | None = None,
        profile: BasePlugin | Literal["default"] | None = "default",
        history: BasePlugin | None = None,
        media: BasePlugin | Literal["default"] | None = "default",
        pruning: BasePlugin | None = None,
        budget_tokens: int | None = None,
    ) -> None:
        super().__init__(name=name)
        if budget_tokens is not None:
            if history is not None:
                raise ConfigurationError("Give budget_tokens or history, not both.")
            history = History(budget_tokens)
        if turns == "default":
            turns = Turns()
        if recovery == "default":
            recovery = Recovery()
        if profile == "default":
            profile = PreloadProfile()
        if policy == "default":
            policy = RefusedWrites()
        if media == "default":
            media = ShownMedia()
        parts = (turns, policy, recovery, checkpoints, profile, history, media, pruning)
        self._parts = tuple(part for part in parts if part is not None)

    @property
    def parts(self) -> tuple[BasePlugin, ...]:
        """The parts that are in use, in their order."""
        return self._parts

    async def on_user_message_callback(
        self, *, invocation_context: InvocationContext, user_message: types.Content
    ) -> types.Content | None:
        """Refuses a Runner without a `DurableSessionService`, then asks every part, in order.

        A part that returns a message replaces it for the later ones.

        Raises:
            ConfigurationError: When the Runner's session service is another one; ADK hands it on
                as the cause of a `RuntimeError`. Nothing was stored.
        """
        _refuse_foreign_service(invocation_context)
        answer: types.Content | None = None
        for part in self._parts_for({"invocation_context": invocation_context}):
            answer = (
                await part.on_user_message_callback(
                    invocation_context=invocation_context, user_message=answer or user_message
                )
                or answer
            )
        return answer

    async def before_run_callback(
        self, *, invocation_context: InvocationContext
    ) -> types.Content | None:
        """Refuses a Runner without a `DurableSessionService`, also for a resumed or live run.

        From here on erasures reach the Runner's artifacts and memory.
        """
        _refuse_foreign_service(invocation_context)
        service = invocation_context.session_service
        if isinstance(service, DurableSessionService):
            service.erasure.see_runner(
                invocation_context.artifact_service, invocation_context.memory_service
            )
        answer: types.Content | None = await self._first(
            "before_run_callback", invocation_context=invocation_context
        )
        return answer

    async def on_event_callback(
        self, *, invocation_context: InvocationContext, event: Event
    ) -> Event | None:
        """Asks the parts, in order."""
        answer: Event | None = await self._first(
            "on_event_callback", invocation_context=invocation_context, event=event
        )
        return answer

    async def after_run_callback(self, *, invocation_context: InvocationContext) -> None:
        """Tells every part."""
        await self._each("after_run_callback", invocation_context=invocation_context)

    async def before_agent_callback(
        self, *, agent: BaseAgent, callback_context: CallbackContext
    ) -> types.Content | None:
        """Asks the parts, in order."""
        answer: types.Content | None = await self._first(
            "before_agent_callback", agent=agent, callback_context=callback_context
        )
        return answer

    async def after_agent_callback(
        self, *, agent: BaseAgent, callback_context: CallbackContext
    ) -> types.Content | None:
        """Asks the parts, in order."""
        answer: types.Content | None = await self._first(
            "after_agent_callback", agent=agent, callback_context=callback_context
        )
        return answer

    async def before_model_callback(
        self, *, callback_context: CallbackContext, llm_request: LlmRequest
    ) -> LlmResponse | None:
        """Asks the parts, in order."""
        answer: LlmResponse | None = await self._first(
            "before_model_callback", callback_context=callback_context, llm_request=llm_request
        )
        return answer

    async def after_model_callback(
        self, *, callback_context: CallbackContext, llm_response: LlmResponse
    ) -> LlmResponse | None:
        """Asks the parts, in order."""
        answer: LlmResponse | None = await self._first(
            "after_model_callback", callback_context=callback_context, llm_response=llm_response
        )
        return answer

    async def on_model_error_callback(
        self, *, callback_context: CallbackContext, llm_request: LlmRequest, error: Exception
    ) -> LlmResponse | None:
        """Asks the parts, in order."""
        answer: LlmResponse | None = await self._first(
            "on_model_error_callback",
            callback_context=callback_context,
            llm_request=llm_request,
            error=error,
        )
        return answer

    async def before_tool_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext
    ) -> dict[str, Any] | None:
        """Asks the parts, in order."""
        # ADK runs each tool call in a task of its own, which keeps this mark to the call.
        _inside_tool.set(True)
        current_tool.set(ToolReads())
        answer: dict[str, Any] | None = await self._first(
            "before_tool_callback", tool=tool, tool_args=tool_args, tool_context=tool_context
        )
        return answer

    async def after_tool_callback(
        self,
        *,
        tool: BaseTool,
        tool_args: dict[str, Any],
        tool_context: ToolContext,
        result: dict[str, Any],
    ) -> dict[str, Any] | None:
        """Asks the parts, in order."""
        if (reads := current_tool.get()) is not None:
            reads.finish()
        answer: dict[str, Any] | None = await self._first(
            "after_tool_callback",
            tool=tool,
            tool_args=tool_args,
            tool_context=tool_context,
            result=result,
        )
        return answer

    async def on_tool_error_callback(
        self,
        *,
        tool: BaseTool,
        tool_args: dict[str, Any],
        tool_context: ToolContext,
        error: Exception,
    ) -> dict[str, Any] | None:
        """Asks the parts, in order."""
        answer: dict[str, Any] | None = await self._first(
            "on_tool_error_callback",
            tool=tool,
            tool_args=tool_args,
            tool_context=tool_context,
            error=error,
        )
        return answer

    async def on_agent_error_callback(
        self, *, agent: BaseAgent, callback_context: CallbackContext, error: Exception
    ) -> None:
        """Tells every part."""
        await self._each(
            "on_agent_error_callback", agent=agent, callback_context=callback_context, error=error
        )

    async def on_run_error_callback(
        self, *, invocation_context: InvocationContext, error: Exception
    ) -> None:
        """Tells every part."""
        await self._each(
            "on_run_error_callback", invocation_context=invocation_context, error=error
        )

    async def close(self) -> None:
        """Closes every part, the last one first, also when one of them fails.

        Raises:
            ExceptionGroup: With what failed, after every part was closed.
        """
        await _call_each(reversed(self._parts), "close")

    async def _first(self, callback: str, **arguments: Any) -> Any:
        """Returns the first answer that is not None; later parts are not asked."""
        for part in self._parts_for(arguments):
            answer = await getattr(part, callback)(**arguments)
            if answer is not None:
                return answer
        return None

    async def _each(self, callback: str, **arguments: Any) -> None:
        """Calls every part; what failed is raised together when all were called."""
        await _call_each(self._parts_for(arguments), callback, **arguments)

    def _parts_for(self, arguments: dict[str, Any]) -> tuple[BasePlugin, ...]:
        """Returns the parts; none inside an `AgentTool`, whose run is nobody's conversation."""
        run = arguments.get("invocation_context")
        if self._parts and run is None:
            context = arguments.get("callback_context") or arguments["tool_context"]
            run = context.get_invocation_context()
        durable = run is not None and isinstance(run.session_service, DurableSessionService)
        return self._parts if durable else ()


async def _call_each(parts: Iterable[BasePlugin], callback: str, **arguments: Any) -> None:
    failures: list[Exception] = []
    for part in parts:
        try:
            await getattr(part, callback)(**arguments)
        except Exception as error:  # noqa: BLE001  # raised below, after the other parts
            failures.append(error)
    if failures:
        raise ExceptionGroup(f"{callback} failed in {len(failures)} part(s)", failures)


def _refuse_foreign_service(invocation_context: InvocationContext) -> None:
    """Raises ConfigurationError if a run has another session service and is no `AgentTool`'s."""
    service = invocation_context.session_service
    if isinstance(service, DurableSessionService) or _inside_tool.get():
        return
    raise ConfigurationError(
        f"MemoryPlugin needs a DurableSessionService, but this Runner has a"
        f" {type(service).__name__}; wrap it: DurableSessionService({type(service).__name__}(…)),"
        " or start ADK with --session_service_uri memext+sqlite:///.sessions/sessions.db"
    )
