"""A layer over the wrapped service where everything written and read meets the policy."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from google.adk.sessions.base_session_service import (
    BaseSessionService,
    GetSessionConfig,
    ListSessionsResponse,
)
from google.adk.sessions.state import State

from adk_memory_ext.errors import StateRejectedError
from adk_memory_ext.event_redaction import redacted_event
from adk_memory_ext.expiry import Expiry
from adk_memory_ext.policy import Accepted, StatePolicy, enforce
from adk_memory_ext.policy.key_check import scope_of
from adk_memory_ext.typed_state import TypedState
from adk_memory_ext.watched_state import WatchedState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from google.adk.events.event import Event
    from google.adk.sessions.session import Session

    from adk_memory_ext.sql_sessions import Database

REFUSED: Final = "memext_refused"
"""Where an event's `custom_metadata` lists the keys that were refused and dropped, with reasons."""

_logger: Final = logging.getLogger(__name__)


class PolicedSessions(BaseSessionService):
    """Stores what a policy accepts, and gives it back with types and defaults.

    Args:
        wrapped: The service that stores the sessions.
        policy: The policy.
        database: Where the times of writes are noted if a value may expire; None over a service
            that notes them itself.
    """

    def __init__(
        self, wrapped: BaseSessionService, policy: StatePolicy, database: Database | None
    ) -> None:
        self._wrapped = wrapped
        self.policy: Final = policy
        self.typed: Final = TypedState(policy)
        expires = policy.has_ttl and database is not None
        self._expiry = Expiry(database, policy.ttl) if expires and database else None

    async def create_session(
        self,
        *,
        app_name: str,
        user_id: str,
        state: dict[str, Any] | None = None,
        session_id: str | None = None,
    ) -> Session:
        """Creates a session with the state that is accepted.

        Raises:
            StateRejectedError: When a key is refused. Nothing was written.
        """
        accepted = self.judged(state or {})
        for refusal in accepted.refused:
            _logger.warning("State key %r was dropped: it %s.", refusal.key, refusal.reason)
        stored = _stored(accepted.delta)
        session = await self._wrapped.create_session(
            app_name=app_name, user_id=user_id, state=stored, session_id=session_id
        )
        if self._expiry is not None:
            await self._expiry.written(session, stored)
        session = await self._read(session)
        session.state.update({k: v for k, v in accepted.delta.items() if k not in stored})
        return session

    async def get_session(
        self,
        *,
        app_name: str,
        user_id: str,
        session_id: str,
        config: GetSessionConfig | None = None,
    ) -> Session | None:
        """Returns the session without what has expired or should not have been stored."""
        session = await self._wrapped.get_session(
            app_name=app_name, user_id=user_id, session_id=session_id, config=config
        )
        return None if session is None else await self._read(session)

    async def list_sessions(
        self, *, app_name: str, user_id: str | None = None
    ) -> ListSessionsResponse:
        """Returns the sessions with their state as `get_session` has it."""
        listed = await self._wrapped.list_sessions(app_name=app_name, user_id=user_id)
        if self._expiry is not None:
            await self._expiry.hide(listed.sessions)
        for session in listed.sessions:
            session.state = self.policy.shaped(_stored(session.state))
        return listed

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Deletes the session."""
        await self._wrapped.delete_session(
            app_name=app_name, user_id=user_id, session_id=session_id
        )

    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        """Returns the user's state with types and defaults, keys without `user:`."""
        state = await self._wrapped.get_user_state(app_name=app_name, user_id=user_id)
        if self._expiry is not None:
            state = await self._expiry.hidden_user_state(app_name, user_id, state)
        return self.shaped_scope(State.USER_PREFIX, state)

    async def flush(self) -> None:
        """Has the wrapped service write out what it buffers."""
        await self._wrapped.flush()

    async def append_event(self, session: Session, event: Event) -> Event:
        """Appends what is accepted of the event; neither is changed if that fails.

        The caller's event keeps its words; what is stored, and stands in `session.events`, is
        redacted.

        Raises:
            StateRejectedError: When a key is refused. Nothing of the event was stored.
        """
        if event.partial:
            return event  # some services store the delta of one
        accepted = self._judged_event(session, event)
        stored = _stored(accepted.delta)
        temporary = {key: accepted.delta[key] for key in accepted.delta if key not in stored}
        kept = self._redacted(session, event, temporary)
        live, before = dict(session.state), (event.actions.state_delta, event.custom_metadata)
        kept.actions.state_delta = stored
        _report(kept, accepted)
        try:
            if self._expiry is not None:
                # Before the append: a time without its value does no harm.
                await self._expiry.written(session, stored)
            appended = await self._wrapped.append_event(session, kept)
        except BaseException:
            event.actions.state_delta, event.custom_metadata = before
            raise
        if kept is not event:
            event.timestamp, event.custom_metadata = kept.timestamp, kept.custom_metadata
            event.actions.state_delta = kept.actions.state_delta
        session.state.update(temporary)
        self.typed.keep(session, live, stored)
        if accepted.refused:
            await self._restore(session, [refusal.key for refusal in accepted.refused])
        return appended

    def judged(self, delta: Mapping[str, Any], known: Mapping[str, Any] | None = None) -> Accepted:
        """Returns what is accepted of a delta.

        Raises:
            StateRejectedError: When a key is refused, unless the policy drops such keys.
        """
        accepted = enforce(self.policy, delta, known)
        if accepted.refused and self.policy.on_refused == "raise":
            raise accepted.refused[0].error()
        return accepted

    def _judged_event(self, session: Session, event: Event) -> Accepted:
        changed = self.typed.changed_in_place(session, event.actions.state_delta)
        try:
            return self.judged({**changed, **event.actions.state_delta}, dict(session.state))
        except StateRejectedError:
            self.typed.take_back(session)
            if isinstance(session.state, WatchedState):
                session.state.take_back()
            raise

    def _redacted(self, session: Session, event: Event, temporary: Mapping[str, Any]) -> Event:
        secrets = self.policy.secrets(dict(session.state), temporary)
        kept = redacted_event(event, partial(self.policy.redaction.value, secrets=secrets))
        if kept is not event and kept.actions is event.actions:
            kept.actions = event.actions.model_copy()
        return kept

    async def _restore(self, session: Session, keys: list[str]) -> None:
        """Puts what is stored in place of values that were refused and dropped."""
        fresh = await self.get_session(
            app_name=session.app_name,
            user_id=session.user_id,
            session_id=session.id,
            config=GetSessionConfig(num_recent_events=0),
        )
        stored = {} if fresh is None else fresh.state
        for key in keys:
            if key in stored:
                session.state.update({key: stored[key]})
            else:
                session.state.pop(key, None)
        if isinstance(session.state, WatchedState):
            session.state.saved(keys)
        self.typed.remember(session, keys)

    async def _read(self, session: Session) -> Session:
        if len(kept := _stored(session.state)) != len(session.state):
            session.state = kept
        if self._expiry is not None:
            await self._expiry.hide([session])
        self.typed.give(session)
        return session

    def shaped_scope(self, prefix: str, state: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the state of one scope, keys without its prefix, as a reader finds it."""
        whole = self.policy.shaped({prefix + key: value for key, value in state.items()})
        scope = prefix.removesuffix(":") or "session"
        return {
            key.removeprefix(prefix): value
            for key, value in whole.items()
            if scope_of(key) == scope
        }


def _stored(state: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a state without `temp:`, which is never stored."""
    return {key: value for key, value in state.items() if not key.startswith(State.TEMP_PREFIX)}


def _report(event: Event, accepted: Accepted) -> None:
    if accepted.refused:
        refused = [{"key": item.key, "reason": item.reason} for item in accepted.refused]
        event.custom_metadata = {**(event.custom_metadata or {}), REFUSED: refused}
