"""The `turns` part of `MemoryPlugin`: takes a turn before the agent is chosen, and gives it back.

ADK 2.13 calls no hook when a run is cancelled or its generator is dropped, so a turn is bound to
all that can end with it: the run's own callbacks, the tasks that carry it, its appends, and the
invocation context itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.plugins.base_plugin import BasePlugin

from adk_memory_ext.errors import ConfigurationError, TurnError
from adk_memory_ext.records import SessionId
from adk_memory_ext.service import DurableSessionService
from adk_memory_ext.turn_queue import HOLD_LIMIT, OnBusy, Turn, TurnQueue, wait

if TYPE_CHECKING:
    from google.adk.agents.base_agent import BaseAgent
    from google.adk.agents.callback_context import CallbackContext
    from google.adk.agents.invocation_context import InvocationContext
    from google.adk.tools.base_tool import BaseTool
    from google.adk.tools.tool_context import ToolContext
    from google.genai import types


class Turns(BasePlugin):
    """Runs one invocation of a session at a time.

    A second one waits and then sees the whole of the first: its events, its state, and the agent
    that it transferred to. In one process in order of arrival; between processes one after the
    other. It must be the first plugin that answers `on_user_message_callback`: ADK asks no other
    one after a plugin that returns a message.

    Args:
        name: The plugin's name, unique within a Runner.
        on_busy: What to do when a turn is running: `wait()`, `reject()` or `supersede()`. Whoever
            is refused gets a `TurnBusyError` where the user's message would be appended.
        hold_limit: How long a turn may be held without an append before others may go on; its own
            later appends fail with `TurnHeldTooLongError`.
    """

    def __init__(
        self,
        name: str = "turns",
        *,
        on_busy: OnBusy | None = None,
        hold_limit: timedelta = HOLD_LIMIT,
    ) -> None:
        super().__init__(name=name)
        if hold_limit <= timedelta(0):
            raise ConfigurationError("hold_limit must be positive.")
        self._on_busy = on_busy or wait()
        self._hold_limit = hold_limit

    async def on_user_message_callback(
        self, *, invocation_context: InvocationContext, user_message: types.Content
    ) -> types.Content | None:
        """Takes the turn; returns the message where ADK must choose the agent anew.

        ADK chose it before the wait, from the session as it was then.
        """
        # A refused turn, and one of a session that was deleted while it waited, goes on to the
        # append of the message, which the service refuses with an error that reaches the caller as
        # it is; one raised here reaches it inside a RuntimeError.
        with contextlib.suppress(TurnError, SessionNotFoundError):
            if await self._take(invocation_context):
                return user_message
        return None

    async def before_run_callback(self, *, invocation_context: InvocationContext) -> None:
        """Takes the turn of a run without a new message: a resumed or a live one.

        Raises:
            TurnError: When it does not get its turn; ADK hands it on as the cause of a
                `RuntimeError`. Nothing was written.
        """
        await self._take(invocation_context)

    async def before_agent_callback(
        self, *, agent: BaseAgent, callback_context: CallbackContext
    ) -> None:
        """Binds the turn to the task that ADK runs the root agent in."""
        context = callback_context.get_invocation_context()
        turn = _turn_of(context)
        if turn is None or context.agent is None or agent.name != context.agent.name:
            return
        task = asyncio.current_task()
        if task is not None and task is not turn.runner:
            turn.enter()
            queue = _queue(context)
            task.add_done_callback(lambda done: queue.release(turn) if done.cancelled() else None)

    async def before_tool_callback(
        self,
        *,
        tool: BaseTool,  # noqa: ARG002  # ADK's interface
        tool_args: dict[str, Any],  # noqa: ARG002
        tool_context: ToolContext,
    ) -> None:
        """Marks the call, so that a run of the same session inside it is refused at once."""
        turn = _turn_of(tool_context.get_invocation_context())
        if turn is not None and asyncio.current_task() is not turn.runner:
            turn.enter()

    async def after_run_callback(self, *, invocation_context: InvocationContext) -> None:
        """Gives the turn back."""
        _release(invocation_context)

    async def on_run_error_callback(
        self,
        *,
        invocation_context: InvocationContext,
        error: Exception,  # noqa: ARG002  # ADK's interface
    ) -> None:
        """Gives the turn back."""
        _release(invocation_context)

    async def _take(self, context: InvocationContext) -> bool:
        """Takes the turn unless the invocation has it; whether the session had changed by then."""
        service = context.session_service
        if not isinstance(service, DurableSessionService):
            return False
        queue = service.turns
        if (known := queue.of(_identity(context), context.invocation_id)) is not None:
            if known.failure is not None:
                raise known.failure
            return False
        turn = Turn(
            _identity(context),
            context.invocation_id,
            hold_limit=self._hold_limit,
            abort=_abort(context),
            runner=asyncio.current_task(),
        )
        weakref.finalize(context, _forget, queue, turn).atexit = False
        await queue.take(turn, self._on_busy)
        if turn.runner is not None:
            turn.runner.add_done_callback(
                lambda done: queue.release(turn) if _ended_by_force(done) else None
            )
        try:
            config = context.run_config.get_session_config if context.run_config else None
            return await service.catch_up(context.session, config, whole=turn.waited)
        except BaseException:
            queue.release(turn)
            raise


def _abort(context: InvocationContext) -> Any:
    """Returns a function that aborts the invocation, and does not keep it alive."""
    method = weakref.WeakMethod(context.abort)

    def abort() -> None:
        if (bound := method()) is not None:
            bound()

    return abort


def _forget(queue: TurnQueue, turn: Turn) -> None:
    """Forgets the turn of an invocation that nobody can continue.

    The collector may call it in the middle of anything, also of the queue's own work.
    """
    with contextlib.suppress(RuntimeError):  # its loop was closed
        turn.loop.call_soon_threadsafe(queue.forget, turn)
        return
    queue.forget(turn)


def _identity(context: InvocationContext) -> SessionId:
    return SessionId.of(context.session)


def _queue(context: InvocationContext) -> TurnQueue:
    service = context.session_service
    return service.turns if isinstance(service, DurableSessionService) else TurnQueue()


def _turn_of(context: InvocationContext) -> Turn | None:
    """Returns the turn that the invocation holds."""
    turn = _queue(context).of(_identity(context), context.invocation_id)
    return turn if turn is not None and not turn.released else None


def _release(context: InvocationContext) -> None:
    queue = _queue(context)
    if (turn := queue.of(_identity(context), context.invocation_id)) is not None:
        queue.forget(turn)


def _ended_by_force(task: asyncio.Task[object]) -> bool:
    """Whether a task was cancelled or failed; else it may have left its run to another one."""
    return task.cancelled() or task.exception() is not None
