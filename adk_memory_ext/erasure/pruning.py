"""`sessions.history`: stored events of a session removed for good, by a rule or by name."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from adk_memory_ext.erasure.jobs import Deleted, rehearsed
from adk_memory_ext.errors import CapabilityError, ConfigurationError
from adk_memory_ext.event_times import MICROSECONDS
from adk_memory_ext.facts import Owner
from adk_memory_ext.log_pruning import DELETED
from adk_memory_ext.retention import Pruning
from adk_memory_ext.turn_queue import Turn, TurnQueue, wait

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from datetime import timedelta

    from google.adk.sessions.session import Session

    from adk_memory_ext.erasure.erasing import Erasure
    from adk_memory_ext.erasure.receipts import Receipt
    from adk_memory_ext.facts import Provenance
    from adk_memory_ext.records import SessionId
    from adk_memory_ext.sql_pruning import Removed
    from adk_memory_ext.sql_sessions import Database
    from adk_memory_ext.statements import Transaction


@dataclass(frozen=True, slots=True)
class Pruned:
    """What was removed from a session's log, or would be."""

    events: int
    why: Mapping[str, int]
    """How many of them for each reason: `summary`, `checkpoint`, `age`, `superseded`, `deleted`."""
    receipt: Receipt | None
    """How we know that the bytes are gone; None where nothing was removed, or where it is verified
    later."""


class StoredHistory:
    """Removes stored events, so that the rest of the log is valid and the state is as it was.

    A tombstone stands where removed events stood: an event without content that says how many went
    and why, with a digest of what was pruned, and what they came to in the state. Plain ADK reads
    the same. Windows, order and checkpoints go on; a session that was loaded before keeps its
    events until it is loaded again.

    Args:
        database: Where the sessions are stored; None over a service of somebody else.
        erasure: Removes the bytes.
        turns: Whose turn it is.
    """

    def __init__(self, database: Database | None, erasure: Erasure, turns: TurnQueue) -> None:
        self._database = database
        self._erasure = erasure
        self._turns = turns

    async def prune(
        self,
        session: Session,
        *,
        keep: int = 1,
        older_than: timedelta | None = None,
        superseded_tools: Collection[str] = (),
        summarised: bool = True,
        checkpointed: bool = False,
        dry_run: bool = False,
        now: float | None = None,
        in_background: bool = False,
    ) -> Pruned:
        """Removes stored events that a summary, a checkpoint or age covers, and their bytes.

        Whole invocations go, those that share calls and answers together; a call that waits for an
        answer from outside stays. A running turn is not disturbed.

        Args:
            session: Names the session.
            keep: The newest invocations, this many, stay whatever covers them; at least 1.
            older_than: Events of this age or more go.
            superseded_tools: Names of tools of which a call goes, with its answer, once the same
                call was made and answered again later.
            summarised: Whether events go for which a summary of ADK's stands.
            checkpointed: Whether events go that the newest checkpoint covers.
            dry_run: Count only. Changes nothing.
            now: UTC epoch seconds to count ages from; None for the database's clock.
            in_background: Verify the bytes later, together with others.

        Raises:
            SessionNotFoundError: When there is no such session.
            CapabilityError: When the sessions are stored by a service of somebody else.
            ConfigurationError: When `keep` is below 1, or `older_than` below 0.
            ErasureIncompleteError: When the events are gone and their bytes could not be verified.
        """
        pruning = Pruning(
            keep=keep,
            older_than=older_than,
            superseded_tools=frozenset(superseded_tools),
            summarised=summarised,
            checkpointed=checkpointed,
        )
        return await self.prune_by(
            pruning, session, dry_run=dry_run, now=now, in_background=in_background
        )

    async def prune_by(
        self,
        pruning: Pruning,
        session: Session,
        *,
        dry_run: bool = False,
        now: float | None = None,
        in_background: bool = False,
    ) -> Pruned:
        """Removes what a rule covers; see `prune`."""
        from adk_memory_ext import sql_expiry, sql_pruning
        from adk_memory_ext.ids import session_identity

        identity = session_identity(session.app_name, session.user_id, session.id)

        def work(tx: Transaction) -> Removed:
            moment = sql_expiry.clock(tx) / MICROSECONDS if now is None else now
            return sql_pruning.prune(tx, identity, pruning, moment)

        if dry_run:
            return await self._counted(work)
        return await self._erased("pruning", identity, work, in_background=in_background)

    async def delete(
        self,
        session: Session,
        event_ids: Collection[str] = (),
        *,
        invocation_id: str | None = None,
        requested_by: str | None = None,
    ) -> Pruned:
        """Removes single events, or one turn, and their bytes; waits for a running turn first.

        With them go the answers of their calls and the calls of their answers, calls that would no
        longer follow on anything, summaries that cover one of them, and inferred facts that only
        they support; what the person asked to save stays, its source cut. State stays as it is.

        Args:
            session: Names the session.
            event_ids: The events.
            invocation_id: The turn, with all its events.
            requested_by: Who asked, for the receipt.

        Raises:
            EventNotFoundError: When there is no such event or invocation. Nothing was deleted.
            ConfigurationError: When nothing is named, or the mark of a rewind. Nothing was deleted.
            SessionNotFoundError: When there is no such session.
            CapabilityError: When the sessions are stored by a service of somebody else.
            TurnBusyError: When a turn does not end in time. Nothing was deleted.
            ErasureIncompleteError: When the events are gone and their bytes could not be verified.
        """
        from adk_memory_ext import sql_pruning
        from adk_memory_ext.ids import session_identity

        if isinstance(event_ids, str):
            raise TypeError(f"`event_ids` is a list of ids; for one event write [{event_ids!r}].")
        if not event_ids and invocation_id is None:
            raise ConfigurationError("Name events or an invocation.")
        identity = session_identity(session.app_name, session.user_id, session.id)
        async with self._turns.held(Turn(identity, f"delete-{uuid.uuid4()}"), wait()):
            return await self._erased(
                "turn",
                identity,
                lambda tx: sql_pruning.delete(tx, identity, event_ids, invocation_id),
                requested_by=requested_by,
            )

    async def _erased(
        self,
        kind: str,
        identity: SessionId,
        work: Callable[[Transaction], Removed],
        *,
        requested_by: str | None = None,
        in_background: bool = False,
    ) -> Pruned:
        removed: Removed | None = None

        def deleting(tx: Transaction) -> Deleted:
            nonlocal removed
            removed = work(tx)
            return deleted_events(tx, identity, removed)

        self._store()
        receipt = await self._erasure.erase_rows(
            kind, deleting, requested_by=requested_by, in_background=in_background
        )
        why = {} if removed is None else removed.why
        return Pruned(sum(why.values()), why, receipt)

    async def _counted(self, work: Callable[[Transaction], Removed]) -> Pruned:
        why = (await rehearsed(self._store(), work)).why
        return Pruned(sum(why.values()), why, None)

    def _store(self) -> Database:
        if self._database is None:
            raise CapabilityError(
                "Stored events can be removed where DurableSessionService.from_url(…) stores them;"
                " the wrapped service has no way to do it."
            )
        return self._database


def deleted_events(tx: Transaction, session: SessionId, removed: Removed) -> Deleted:
    """Takes what was removed from a log out of the profile too, and says what went in all."""
    from adk_memory_ext.erasure import stored_rows

    texts = list(removed.texts)
    if DELETED in removed.why:

        def is_gone(source: Provenance) -> bool:
            return source.session_id == session.session_id and (
                source.event_id in removed.event_ids
                if source.event_id is not None
                else source.invocation_id in removed.invocation_ids
            )

        cut = stored_rows.cut_facts(tx, Owner(session.app_name, session.user_id), is_gone)
        texts += cut.texts
    counts = {"events": sum(removed.why.values()), "reports on requests": removed.requests}
    names = [session.app_name, session.user_id, session.session_id, *sorted(removed.event_ids)]
    counts = {name: count for name, count in counts.items() if count}
    media = [(session, removed.media)] if removed.media else []
    return Deleted(texts, counts, names, media=media)
