"""The policy over our own service, which can do more than ADK's interface asks for."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from google.adk.sessions.base_session_service import BaseSessionService, GetSessionConfig
from google.adk.sessions.state import State

from adk_memory_ext.errors import ConfigurationError
from adk_memory_ext.policed_sessions import PolicedSessions
from adk_memory_ext.policy import enforce
from adk_memory_ext.sql_sessions import SqlSessionService

if TYPE_CHECKING:
    from collections.abc import Mapping

    from google.adk.sessions.session import Session

    from adk_memory_ext.policy import StatePolicy
    from adk_memory_ext.records import SessionPage
    from adk_memory_ext.sql_sessions import Database


class PolicedSqlSessions(PolicedSessions):
    """As `PolicedSessions`; times of writes are noted in the transaction of the write.

    Args:
        wrapped: Our own service.
        policy: The policy.
    """

    keeps_order: Final = True

    def __init__(self, wrapped: SqlSessionService, policy: StatePolicy) -> None:
        super().__init__(wrapped, policy, None)
        self._sql = wrapped
        if policy.has_ttl:
            wrapped.expire(policy.ttl)

    async def has_seen_all(self, session: Session) -> bool:
        """Whether `session` holds the newest event."""
        return await self._sql.has_seen_all(session)

    async def list_sessions_page(
        self,
        app_name: str,
        user_id: str | None = None,
        *,
        limit: int = 50,
        after: str | None = None,
        with_state: bool = False,
    ) -> SessionPage:
        """Returns a page of sessions, with session-scope state as `get_session` has it."""
        page = await self._sql.list_sessions_page(
            app_name, user_id, limit=limit, after=after, with_state=with_state
        )
        if not with_state:
            return page
        lines = (
            replace(line, state=self.shaped_scope("", line.state or {})) for line in page.sessions
        )
        return replace(page, sessions=tuple(lines))

    async def set_session_title(
        self, *, app_name: str, user_id: str, session_id: str, title: str | None
    ) -> None:
        """Gives a session a title."""
        await self._sql.set_session_title(
            app_name=app_name, user_id=user_id, session_id=session_id, title=title
        )

    async def change_state(
        self,
        delta: Mapping[str, Any],
        *,
        app_name: str,
        user_id: str | None,
        session_id: str | None,
    ) -> dict[str, Any]:
        """Applies a delta without a turn; see `ScopedState.update`.

        Raises:
            StateRejectedError: When a key is refused, also where a policy drops such keys: there is
                no event to read about it in. Nothing was written.
        """
        known = await self._known(app_name, user_id, session_id)
        accepted = enforce(self.policy, delta, known)
        if accepted.refused:
            raise accepted.refused[0].error()
        outcome = await self._sql.change_state(
            accepted.delta, app_name=app_name, user_id=user_id, session_id=session_id
        )
        shaped = self.policy.shaped(outcome)
        return {key: shaped[key] for key in outcome}

    async def remove_expired(self, limit: int) -> int:
        """Removes at most `limit` expired values for good."""
        return await self._sql.remove_expired(limit)

    async def _known(
        self, app_name: str, user_id: str | None, session_id: str | None
    ) -> dict[str, Any]:
        """Returns the state before, where the policy has limits for whole scopes."""
        if not self.policy.has_totals or user_id is None:
            return {}
        if session_id is not None:
            session = await self._sql.get_session(
                app_name=app_name,
                user_id=user_id,
                session_id=session_id,
                config=GetSessionConfig(num_recent_events=0),
            )
            return {} if session is None else dict(session.state)
        state = await self._sql.get_user_state(app_name=app_name, user_id=user_id)
        return {State.USER_PREFIX + key: value for key, value in state.items()}


def policed(
    wrapped: BaseSessionService, policy: StatePolicy, database: Database | None
) -> PolicedSessions:
    """Returns the layer for a wrapped service.

    Raises:
        ConfigurationError: When a value may expire and there is no place for the times of writes.
    """
    if isinstance(wrapped, SqlSessionService):
        return PolicedSqlSessions(wrapped, policy)
    if policy.has_ttl and database is None:
        raise ConfigurationError(
            f"The policy has a ttl, and {type(wrapped).__name__} has no place for the times of"
            " writes; name a database: DurableSessionService(…, store='sqlite:///…')."
        )
    return PolicedSessions(wrapped, policy, database)
