"""The `recovery` part of `MemoryPlugin`: settles what a crash left open before a turn begins."""

from __future__ import annotations

import json
import weakref
from contextlib import aclosing
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, TypeAlias, get_args

from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.plugins.base_plugin import BasePlugin

from adk_memory_ext.errors import ConfigurationError, RestoreHookError
from adk_memory_ext.finished_calls import keeping_event
from adk_memory_ext.interruptions import Recover, find_interruption, needs_fresh_facts
from adk_memory_ext.records import SessionId
from adk_memory_ext.service import DurableSessionService

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Container, Sequence

    from google.adk.agents import RunConfig
    from google.adk.agents.callback_context import CallbackContext
    from google.adk.agents.invocation_context import InvocationContext
    from google.adk.events.event import Event
    from google.adk.models.llm_request import LlmRequest
    from google.adk.runners import Runner
    from google.adk.tools.base_tool import BaseTool
    from google.adk.tools.tool_context import ToolContext
    from google.genai import types

    from adk_memory_ext.interruptions import Recovered

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
            tells where there is none; `resume` is for apps with ADK's resumability: answers of
            parallel calls are kept as they come, and put in when the invocation is resumed, so that
            only the others run again. A new message instead of that is told.
        on_restore: Functions that read live facts (an order's status, a balance, a stock) with
            their own service. They are run before the first model call after a recovery or a
            restore, and what they return is put before the model as fresh, under the function's
            name, in every request of that turn.
        on_report: Called with what was found and done, when something was found.

    Raises:
        ConfigurationError: When `how` is none of these.
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
        if how not in get_args(Recover):
            raise ConfigurationError(f"how must be one of {get_args(Recover)}, not {how!r}.")
        self._how: Recover = how
        self._on_restore = tuple(on_restore)
        self._on_report = on_report
        self._fresh: dict[str, str | None] = {}
        """What is put before the model, by invocation; None until the hooks have run."""
        self._answered: set[str] = set()
        """Invocations that began with a message."""

    async def on_user_message_callback(
        self, *, invocation_context: InvocationContext, user_message: types.Content
    ) -> types.Content | None:
        """Settles what the last process left open; the message stays as it is."""
        service, session = _alone(invocation_context), invocation_context.session
        if service is None:
            return None
        answers = [part.function_response for part in user_message.parts or []]
        answered = {answer.id for answer in answers if answer and answer.id}
        how = self._how
        if how == "resume" and not _is_interrupted(invocation_context, answered):
            how = "tell"
        await self._recover(service, invocation_context, how, answered)
        self._answered.add(invocation_context.invocation_id)
        _when_over(invocation_context, self._forget)
        if self._on_restore:
            is_restored = not session.events and await service.checkpoints.is_restored(session)
            if is_restored or needs_fresh_facts(session.events):
                self._read_facts(invocation_context)
        return None

    async def before_run_callback(self, *, invocation_context: InvocationContext) -> None:
        """Prepares an invocation that is resumed without a message."""
        service = _alone(invocation_context)
        if service is None or invocation_context.invocation_id in self._answered:
            return
        if _is_interrupted(invocation_context):
            if self._how == "resume":
                await self._recover(service, invocation_context, "resume")
            self._read_facts(invocation_context)

    async def after_tool_callback(
        self,
        *,
        tool: BaseTool,
        tool_args: dict[str, Any],  # noqa: ARG002  # ADK's interface
        tool_context: ToolContext,
        result: Any,
    ) -> None:
        """Keeps the answer of one of several calls, where the app can be resumed."""
        context = tool_context.get_invocation_context()
        service = _alone(context)
        if self._how != "resume" or not context.is_resumable or service is None:
            return
        if not tool.is_long_running and (event := keeping_event(tool_context, result)) is not None:
            await service.append_event(context.session, event)

    async def _recover(
        self,
        service: DurableSessionService,
        context: InvocationContext,
        how: Recover,
        answered: Container[str] = (),
    ) -> None:
        run = context.run_config
        config = run.get_session_config if run else None
        report = await service.checkpoints.recover_in_turn(context.session, how, answered, config)
        if report.did != "nothing" and self._on_report is not None:
            self._on_report(report)

    def _read_facts(self, context: InvocationContext) -> None:
        if self._on_restore:
            self._fresh[context.invocation_id] = None
            _when_over(context, self._forget)

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

    def _forget(self, invocation_id: str) -> None:
        self._fresh.pop(invocation_id, None)
        self._answered.discard(invocation_id)


def _when_over(context: InvocationContext, forget: Callable[[str], None]) -> None:
    """Has an invocation forgotten whatever ends it: ADK has no callback for a cancelled one."""
    weakref.finalize(context, forget, context.invocation_id).atexit = False


def _alone(context: InvocationContext) -> DurableSessionService | None:
    """Returns the service of an invocation that runs alone: what it finds open is not running."""
    service, session = context.session_service, context.session
    if not isinstance(service, DurableSessionService):
        return None
    identity = SessionId.of(session)
    turn = service.turns.of(identity, context.invocation_id)
    is_alone = turn is not None and turn.failure is None and not turn.released
    return service if is_alone else None


def _is_interrupted(context: InvocationContext, answered: Container[str] = ()) -> bool:
    """Whether the invocation itself is what was interrupted."""
    found = find_interruption(context.session.events, answered)
    return found.invocation_id == context.invocation_id


async def resume_interrupted(
    runner: Runner, *, user_id: str, session_id: str, run_config: RunConfig | None = None
) -> AsyncGenerator[Event]:
    """Runs what was interrupted in a session to its end, by ADK's resumability; yields its events.

    Nothing is yielded where nothing was interrupted. Tools that have no answer run again, with the
    same call id: those of parallel calls that had finished too, unless the `recovery` part is there
    with `how="resume"`.

    Args:
        runner: The runner of an app that has a `ResumabilityConfig(is_resumable=True)`.
        user_id: The user.
        session_id: The session.
        run_config: As in `Runner.run_async`.

    Raises:
        ConfigurationError: When the app is not resumable. Nothing was run.
        SessionNotFoundError: When there is no such session.
    """
    config = runner.resumability_config
    if config is None or not config.is_resumable:
        raise ConfigurationError("The app needs ResumabilityConfig(is_resumable=True) to resume.")
    session = await runner.session_service.get_session(
        app_name=runner.app_name,
        user_id=user_id,
        session_id=session_id,
        config=run_config.get_session_config if run_config else None,
    )
    if session is None:
        raise SessionNotFoundError(f"Session {session_id} not found.")
    found = find_interruption(session.events)
    if found.invocation_id is None:
        return
    run = runner.run_async(
        user_id=user_id,
        session_id=session_id,
        invocation_id=found.invocation_id,
        run_config=run_config,
    )
    async with aclosing(run):
        async for event in run:
            yield event


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
