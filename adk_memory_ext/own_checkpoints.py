"""Checkpoints of sessions that we store: each is made, found and put back in one transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from adk_memory_ext import sql_checkpoints, sql_events, sql_restores
from adk_memory_ext.stored_events import ready_event

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from google.adk.events.event import Event

    from adk_memory_ext.checkpoint_records import CheckpointPolicy, CheckpointRequest, Restored
    from adk_memory_ext.records import SessionId
    from adk_memory_ext.rewinds import Scope
    from adk_memory_ext.sql_checkpoints import StoredCheckpoint
    from adk_memory_ext.sql_sessions import Database
    from adk_memory_ext.statements import Transaction


class OwnCheckpoints:
    """Works on sessions and their checkpoints in the same database.

    Args:
        database: Where they are stored.
        policy: Which part of the state goes into a checkpoint.
    """

    def __init__(self, database: Database, policy: CheckpointPolicy) -> None:
        self._database = database
        self._policy = policy

    async def create(self, session: SessionId, request: CheckpointRequest) -> str:
        """Stores a checkpoint of the session as it is by now, and returns its id."""
        policy = self._policy
        return await self._database.write(
            lambda tx: sql_checkpoints.create(tx, session, request, policy)
        )

    async def settle(self, session: SessionId) -> None:
        """Does nothing: a checkpoint is there with the event that asked for it, or neither."""

    async def newest_good(
        self, session: SessionId, *, whole_user: bool, step: str | None
    ) -> StoredCheckpoint | None:
        """Returns the newest checkpoint whose log is as it was; None if there is none."""

        def work(tx: Transaction) -> StoredCheckpoint | None:
            found = sql_checkpoints.listed(tx, session, whole_user=whole_user, step=step)
            return _newest_good(tx, found)

        # A write, because what plain ADK wrote may have to be taken in first.
        return await self._database.write(work)

    async def restore(self, stored: StoredCheckpoint, scopes: Sequence[Scope] = ()) -> Restored:
        """Brings the session back to a checkpoint; the caller has the turn."""
        policy = self._policy
        return await self._database.write(
            lambda tx: sql_restores.restore(tx, stored, policy, scopes)
        )

    async def note(self, session: SessionId, event: Event) -> None:
        """Appends an event without content to the session, whoever has seen what of it."""
        ready = ready_event(event, "refuse").new
        await self._database.write(lambda tx: sql_events.append_event(tx, session, None, ready))

    async def fork(self, stored: StoredCheckpoint, new: SessionId) -> Restored:
        """Stores a new session with the history and the state up to a checkpoint."""
        policy = self._policy
        return await self._database.write(lambda tx: sql_restores.fork(tx, stored, new, policy))

    async def parent(self, session: SessionId) -> str | None:
        """Returns the checkpoint that a session was made from; None if there is none."""
        return await self._database.write(lambda tx: sql_restores.parent_of(tx, session))


def _newest_good(tx: Transaction, found: Iterable[StoredCheckpoint]) -> StoredCheckpoint | None:
    faults: dict[int, int | None] = {}
    for stored in found:
        if stored.line_key not in faults:
            fault = sql_restores.fault_in_log(tx, stored)
            faults[stored.line_key] = None if fault is None else fault.sequence
        first_bad = faults[stored.line_key]
        if first_bad is None or stored.checkpoint.sequence < first_bad:
            return stored
    return None
