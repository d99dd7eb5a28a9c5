"""Expiry over a service that is not ours: the times of writes lie in a database beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from google.adk.sessions.state import State

from adk_memory_ext import sql_expiry
from adk_memory_ext.records import SessionId
from adk_memory_ext.state_changes import MISSING, Remove, change_in

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from google.adk.sessions.session import Session

    from adk_memory_ext.sql_expiry import Ttl
    from adk_memory_ext.sql_sessions import Database


class Expiry:
    """Notes when values were written and hides those that have expired.

    Args:
        database: Where the times lie.
        ttl: How long each key lives.
    """

    def __init__(self, database: Database, ttl: Ttl) -> None:
        self._database: Final = database
        self._ttl: Final = ttl

    async def written(self, session: Session, delta: Mapping[str, Any]) -> None:
        """Notes that a delta is written now; costs nothing where none of its keys expires."""
        outcome = {
            key: MISSING if value is None or isinstance(change_in(value), Remove) else value
            for key, value in delta.items()
            if self._ttl(key) is not None
        }
        if outcome:
            identity = SessionId.of(session)
            await self._database.write(lambda tx: sql_expiry.note(tx, identity, outcome, self._ttl))

    async def hide(self, sessions: Sequence[Session]) -> None:
        """Takes what has expired out of sessions of one app."""
        if not sessions:
            return
        app_name = sessions[0].app_name
        users = {session.user_id for session in sessions}
        user_id = users.pop() if len(users) == 1 else None
        gone = await self._database.read(
            lambda tx: sql_expiry.expired_in_app(tx, app_name, user_id, self._ttl)
        )
        if gone:
            for session in sessions:
                session.state = dict(session.state)
                sql_expiry.hide(session.state, gone, session.user_id, session.id)

    async def hidden_user_state(
        self, app_name: str, user_id: str, state: dict[str, Any]
    ) -> dict[str, Any]:
        """Returns a user's state, keys without `user:`, without what has expired."""
        identity = SessionId(app_name, user_id, "")
        gone = await self._database.read(lambda tx: sql_expiry.expired(tx, identity, self._ttl))
        return {key: state[key] for key in state if State.USER_PREFIX + key not in gone}
