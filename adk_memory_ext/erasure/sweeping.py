"""A sweep: what has expired is erased in batches, or only counted."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from adk_memory_ext import expired_state, sql_expiry, sql_lists
from adk_memory_ext.erasure import expired_rows
from adk_memory_ext.erasure.expired_rows import Rules
from adk_memory_ext.erasure.jobs import rehearsed
from adk_memory_ext.errors import ErasureIncompleteError
from adk_memory_ext.event_times import MICROSECONDS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from adk_memory_ext.erasure.jobs import Deleted
    from adk_memory_ext.erasure.receipts import Receipt
    from adk_memory_ext.retention import RetentionPolicy
    from adk_memory_ext.sql_expiry import Ttl
    from adk_memory_ext.sql_sessions import Database
    from adk_memory_ext.statements import Transaction

_PAGE: Final = 100
"""Sessions, or lines of checkpoints, that are looked at in one transaction."""
_KEYS: Final = 1000


@dataclass(frozen=True, slots=True)
class Sweeping:
    """How far a sweep has come."""

    stage: str
    """`sessions`, `state`, `profile`, `checkpoints` or `history`, in this order."""
    counts: Mapping[str, int]
    """Rows of each store that went so far, or would go."""


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep erased, or would erase."""

    counts: Mapping[str, int]
    """Rows of each store, by the name that receipts use."""
    receipts: tuple[Receipt, ...]
    """One for each batch, the first one first; none for a dry run. Those that are not verified are
    not stored yet."""

    @property
    def verified(self) -> bool:
        """Whether no byte of what went is left."""
        return all(receipt.verified for receipt in self.receipts)


class Sweep:
    """One sweep.

    Args:
        database: Where the rows are.
        erase_rows: `Erasure.erase_rows`.
        ttl: For how long state lives.
        progress: Called after each batch.
        requested_by: Who asked.
    """

    def __init__(
        self,
        database: Database,
        erase_rows: Callable[..., Awaitable[Receipt | None]],
        ttl: Ttl | None,
        progress: Callable[[Sweeping], None] | None,
        requested_by: str | None,
    ) -> None:
        self._database = database
        self._erase_rows = erase_rows
        self._ttl = ttl
        self._progress = progress
        self._requested_by = requested_by
        self._counts: Counter[str] = Counter()
        self._receipts: list[Receipt] = []
        self._dry_run = False

    async def run(self, policy: RetentionPolicy, now: float | None, *, dry_run: bool) -> Swept:
        """Erases what has expired; see `Erasure.sweep`."""
        self._dry_run = dry_run
        read = self._database.read
        clock = await read(sql_expiry.clock) if now is None else round(now * MICROSECONDS)
        rules = Rules(policy, clock)
        if policy.session_idle is not None or policy.session_age is not None:
            if await read(sql_lists.has_strange_sessions):
                await self._database.write(sql_lists.adopt_sessions)
            await self._paged(
                "sessions",
                partial(expired_rows.sessions_to_look_at, rules=rules),
                partial(expired_rows.delete_sessions, rules=rules),
            )
        await self._state()
        for owner in await read(lambda tx: expired_rows.profiles_to_look_at(tx, rules)):
            await self._erase(
                "profile", partial(expired_rows.delete_facts, rules=rules, owner=owner)
            )
        await self._paged(
            "checkpoints",
            partial(expired_rows.lines_to_look_at, rules=rules),
            partial(expired_rows.delete_checkpoints, rules=rules),
        )
        if policy.history is not None:
            delete = partial(expired_rows.delete_histories, rules=rules, pruning=policy.history)
            await self._paged("history", expired_rows.sessions_behind, delete, "pruning")
        return Swept(dict(self._counts), tuple(self._receipts))

    async def _state(self) -> None:
        if self._ttl is None:
            return
        ttl = self._ttl
        limit = sys.maxsize if self._dry_run else _KEYS
        before = -1
        # A value that is written again meanwhile is no longer found, or gone.
        while self._counts[expired_rows.STATE] > before:
            before = self._counts[expired_rows.STATE]
            found = await self._database.read(lambda tx: sql_expiry.all_expired(tx, ttl, limit))
            for rows in expired_state.by_owner(found):
                await self._erase("state", partial(expired_rows.delete_state, rows=rows, ttl=ttl))
            if self._dry_run:
                break

    async def _paged(
        self,
        stage: str,
        look: Callable[..., Sequence[Any]],
        delete: Callable[..., tuple[Deleted, int]],
        kind: str = "expiry",
    ) -> None:
        """Erases what `delete` does of each page that `look` finds behind the one before."""
        last = 0
        while found := await self._database.read(partial(look, after=last, limit=_PAGE)):

            def work(tx: Transaction) -> Deleted:
                nonlocal last
                deleted, last = delete(tx, found=found)
                return deleted

            await self._erase(stage, work, kind)

    async def _erase(
        self, stage: str, work: Callable[[Transaction], Deleted], kind: str = "expiry"
    ) -> None:
        """Erases one batch, or counts what it would erase."""
        counts: Mapping[str, int] = {}

        def noting(tx: Transaction) -> Deleted:
            nonlocal counts
            deleted = work(tx)
            counts = deleted.counts
            return deleted

        try:
            if self._dry_run:
                await rehearsed(self._database, noting)
            else:
                receipt = await self._erase_rows(kind, noting, requested_by=self._requested_by)
                if receipt is not None:
                    self._receipts.append(receipt)
        except ErasureIncompleteError as error:
            self._receipts.append(error.receipt)
        self._counts.update({name: count for name, count in counts.items() if count})
        if self._progress is not None:
            self._progress(Sweeping(stage, dict(self._counts)))
