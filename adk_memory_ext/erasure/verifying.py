"""How an erasure ends: bytes removed and looked for, and a receipt in the chain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from adk_memory_ext.erasure.jobs import receipt_of
from adk_memory_ext.erasure.physical import clean
from adk_memory_ext.errors import ErasureIncompleteError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from adk_memory_ext.erasure.jobs import Job
    from adk_memory_ext.erasure.receipts import Receipt
    from adk_memory_ext.sql_sessions import Database


@dataclass(frozen=True, slots=True)
class Verified:
    """What came of verifying some erasures."""

    is_done: bool
    """Whether they have ended, with stored receipts; else they stay pending."""
    receipts: list[Receipt]

    def last(self) -> Receipt:
        """Returns the last receipt.

        Raises:
            ErasureIncompleteError: When the erasure is pending, or left something elsewhere.
        """
        if not self.receipts[-1].verified:
            raise ErasureIncompleteError(self.receipts[-1])
        return self.receipts[-1]


async def verify(
    database: Database,
    jobs: Sequence[Job],
    subject_key: str | None,
    *,
    in_background: bool = False,
) -> Verified:
    """Verifies erasures together and ends them if that succeeds."""
    from adk_memory_ext.erasure import ledger

    known = [job.values for job in jobs if job.values is not None]
    values = sorted(set().union(*(item.values for item in known)))
    is_lost = len(known) < len(jobs)
    deep = any(job.deep for job in jobs)
    cleaned = await clean(database, values, deep=deep, is_lost=is_lost, in_background=in_background)
    receipts = [receipt_of(job, cleaned, subject_key) for job in jobs]
    if cleaned.verified:
        ending = [(job.id, receipt) for job, receipt in zip(jobs, receipts, strict=True)]
        receipts = await database.write(
            lambda tx: [ledger.finish(tx, erasure_id, receipt) for erasure_id, receipt in ending]
        )
    return Verified(cleaned.verified, receipts)
