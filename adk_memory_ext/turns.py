"""The `turns` part of `MemoryPlugin`: takes a turn before the session is read, and gives it back.

ADK 2.13 calls no hook when a run is cancelled or its generator is dropped, so a turn is bound to
all that can end with it: the run's own callbacks, the tasks that carry it, and the invocation
context itself.
"""

from __future__ import annotations

import asyncio
import weakref
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from google.adk.plugins.base_plugin import BasePlugin

from adk_memory_ext.errors import ConfigurationError, TurnBusyError
from adk_memory_ext.records import SessionId
from adk_memory_ext.service import DurableSessionService
from adk_memory_ext.turn_queue import OnBusy, Turn, innermost, wait

if TYPE_CHECKING:
    from google.adk.agents.base_agent import BaseAgent
    from google.adk.agents.callback_context import CallbackContext
    from google.adk.agents.invocation_context import InvocationContext
    from google.genai import types

_HOLD_LIMIT: Final = timedelta(minutes=10)


class Turns(BasePlugin):
    """Runs one invocation of a session at a time.

    A second one waits and then sees the whole of the first: its events, its state, and the agent
    that it transferred to. In one process in order of arrival; between processes one after the
    other.

    Args:
        name: The plugin's name, unique within a Runner.
        on_busy: What to do when a turn is running: `wait()`, `reject()` or `supersede()`.
        hold_limit: How long a turn may be held without an append before others may go on; its own
            later appends fail with `TurnHeldTooLongError`.
    """

    def __init__(
        self,
        name: str = "turns",
        *,
        on_busy: OnBusy | None = None,
        hold_limit: timedelta = _HOLD_LIMIT,
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
        changed = await self._take(invocation_context)
        return user_message if changed else None

    async def before_run_callback(self, *, invocation_context: InvocationContext) -> None:
        """Takes the turn of a run without a new message: a resumed or a live one."""
        await self._take(invocation_context)

    async def before_agent_callback(
        self,
        *,
        agent: BaseAgent,  # noqa: ARG002  # ADK's interface
        callback_context: CallbackContext,
    ) -> None:
        """Binds the turn to the task that ADK runs the agent in."""
        turn = _running_turn(callback_context)
        task = asyncio.current_task()
        if turn is not None and task is not None:
            task.add_done_callback(lambda done: turn.release() if done.cancelled() else None)

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
        if not isinstance(service, DurableSessionService) or _holds(context):
            return False
        queue = service.turns
        abort = weakref.WeakMethod(context.abort)
        turn = Turn(
            _identity(context),
            context.invocation_id,
            queue,
            self._hold_limit,
            abort=lambda: method() if (method := abort()) else None,
        )
        try:
            await queue.take(turn, self._on_busy)
        except TurnBusyError as error:
            # ADK would hide it in a RuntimeError, which its servers answer with 500; the service
            # raises it at the append of the user's message instead.
            queue.refuse(turn, error)
            return False
        weakref.finalize(context, queue.forget, turn).atexit = False
        task = asyncio.current_task()
        if task is not None:
            task.add_done_callback(lambda done: turn.release() if _failed(done) else None)
        try:
            return await service.catch_up(context.session, context.run_config)
        except BaseException:
            turn.release()
            raise


def _identity(context: InvocationContext) -> SessionId:
    session = context.session
    return SessionId(session.app_name, session.user_id, session.id)


def _holds(context: InvocationContext) -> bool:
    service = context.session_service
    if not isinstance(service, DurableSessionService):
        return False
    return service.turns.knows(_identity(context), context.invocation_id)


def _release(context: InvocationContext) -> None:
    service = context.session_service
    if isinstance(service, DurableSessionService):
        turn = service.turns.holder(_identity(context))
        if turn is not None and turn.invocation_id == context.invocation_id:
            turn.release()


def _running_turn(context: CallbackContext) -> Turn | None:
    """Returns the turn that the code runs in, if it is that of the context's invocation."""
    turn = innermost()
    return turn if turn is not None and turn.invocation_id == context.invocation_id else None


def _failed(task: asyncio.Task[object]) -> bool:
    """Whether a task ended by force; one that ended well may have left its run to another."""
    return task.cancelled() or task.exception() is not None
