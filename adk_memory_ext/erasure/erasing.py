"""`sessions.erasure`: rows and bytes of a session or a person removed, verified, and a receipt."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import uuid
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, get_args

from adk_memory_ext.erasure.elsewhere import Elsewhere
from adk_memory_ext.erasure.jobs import (
    Deleted,
    Job,
    checked,
    delete_as,
    delete_rows,
    first_facts,
    has_content,
    lock_name,
    receipt_of,
    values_of,
)
from adk_memory_ext.erasure.physical import clean
from adk_memory_ext.erasure.searched_values import SearchedValues
from adk_memory_ext.erasure.subjects import Forks, Subject
from adk_memory_ext.errors import (
    CapabilityError,
    ConfigurationError,
    ErasureIncompleteError,
    MemoryExtError,
    StoreError,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from google.adk.artifacts.base_artifact_service import BaseArtifactService
    from google.adk.memory.base_memory_service import BaseMemoryService

    from adk_memory_ext.erasure.elsewhere import CountElsewhere, EraseElsewhere
    from adk_memory_ext.erasure.ledger import Pending
    from adk_memory_ext.erasure.receipts import Receipt
    from adk_memory_ext.erasure.sweeping import Sweeping, Swept
    from adk_memory_ext.retention import RetentionPolicy
    from adk_memory_ext.sql_expiry import Ttl
    from adk_memory_ext.sql_sessions import Database
    from adk_memory_ext.statements import Transaction

_logger: Final = logging.getLogger(__name__)
_PAUSE_SECONDS: Final = 30.0
"""Before a deletion that could not be verified is looked at again."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What an erasure would delete."""

    kind: str
    """`session` or `user`."""
    counts: dict[str, int]
    """Rows of each store; of stores that were registered, what they count."""
    not_reached: tuple[str, ...]
    """What it would not reach, and why."""
    forks: int = 0
    """Forks of the session, forks of forks too; their rows are in `counts` if they would go."""


class Erasure:
    """Erases what is stored of a session or a user.

    Args:
        database: Where the rows are; None when the wrapped service has no database of ours.
        ttl: For how long state lives; None: for ever.
        forget: Has the wrapped service keep nothing in memory of sessions that are gone; None
            where it keeps nothing.
    """

    def __init__(
        self,
        database: Database | None,
        ttl: Ttl | None = None,
        forget: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._database = database
        self._ttl = ttl
        self._forget = forget
        self._elsewhere: Final = Elsewhere()
        self._queue: list[tuple[Job, Any]] = []
        self._queued = asyncio.Event()
        self._verifying: asyncio.Task[None] | None = None
        self._closing = False
        self._resuming: asyncio.Task[None] | None = None

    def register(
        self,
        *,
        artifact_service: BaseArtifactService | None = None,
        memory_service: BaseMemoryService | None = None,
    ) -> None:
        """Has erasures reach the Runner's other services too."""
        self._elsewhere.register(artifact_service, memory_service)

    def register_erasure(
        self, name: str, erase: EraseElsewhere, count: CountElsewhere | None = None
    ) -> None:
        """Has erasures reach a store of the application's own.

        Args:
            name: What receipts call it; a second store of a name replaces the first.
            erase: Awaited with `app_name`, `user_id` and `session_id` (None: all of the user);
                returns how many things it erased.
            count: Awaited with the same, returns how many there are; for plans.
        """
        self._elsewhere.stores[name] = (erase, count)

    async def erase_session(
        self,
        *,
        app_name: str,
        user_id: str,
        session_id: str,
        requested_by: str | None = None,
        deep: bool = False,
        forks: Forks = "erase",
    ) -> Receipt:
        """Erases a session everywhere and verifies that its bytes are gone.

        User state and app state stay. A running or later append to the session is refused, in every
        process; its id may be used again. Sessions that were forked from it hold its words too.

        Args:
            app_name: The app.
            user_id: Whose session it is.
            session_id: The session; that there is none (any more) is no error.
            requested_by: Who asked, for the receipt; left out where it names who is erased.
            deep: Rewrite the file in any case, and overwrite the WAL with zeros before it is cut
                off. Below the file, an SSD, a copy-on-write file system, snapshots and backups
                may keep what was overwritten.
            forks: `erase` takes the session's forks along, and forks of these. `detach` leaves them
                as they are, with what they were forked with; nothing says any more where they came
                from. The receipt counts them.

        Raises:
            ConfigurationError: When `forks` is something else. Nothing was deleted.
            ErasureIncompleteError: When something is left or could not be verified. All that can
                be erased is gone; its `receipt` says what is not.
            CapabilityError: When the wrapped service has no database of ours. Nothing was deleted.
            StoreUnavailableError: When the database cannot be written. Nothing was deleted.
        """
        subject = Subject(app_name, user_id, session_id)
        return await self._erase(subject, requested_by, deep, _checked(forks))

    async def erase_user(
        self, *, app_name: str, user_id: str, requested_by: str | None = None, deep: bool = False
    ) -> Receipt:
        """Erases all that an app stores of a user; see `erase_session`.

        App state and other users stay as they are. Who returns later finds a new account.
        """
        return await self._erase(Subject(app_name, user_id), requested_by, deep, "detach")

    async def plan_user(self, *, app_name: str, user_id: str) -> Plan:
        """Returns what `erase_user` would delete, and changes nothing."""
        return await self._plan(Subject(app_name, user_id), "detach")

    async def plan_session(
        self, *, app_name: str, user_id: str, session_id: str, forks: Forks = "erase"
    ) -> Plan:
        """Returns what `erase_session` would delete, and changes nothing."""
        return await self._plan(Subject(app_name, user_id, session_id), _checked(forks))

    async def export_user(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        """Returns everything that the database holds of a user, as one JSON document.

        It has the rows that `erase_user` would delete, store by store: `stores` maps the name that
        a receipt uses to a list of rows, each a mapping of columns; JSON texts are read. What lies
        in artifacts, memory and registered stores is not in it.
        """
        from adk_memory_ext.erasure import stored_rows
        from adk_memory_ext.erasure.exports import document_of

        subject = checked(Subject(app_name, user_id))
        rows = await self._required().read(lambda tx: stored_rows.read_rows(tx, subject))
        return document_of(app_name, user_id, rows)

    async def sweep(
        self,
        policy: RetentionPolicy,
        *,
        dry_run: bool = False,
        now: float | None = None,
        requested_by: str | None = None,
        progress: Callable[[Sweeping], None] | None = None,
    ) -> Swept:
        """Erases what has expired, in batches, each of which is verified and has a receipt.

        Each rule removes what it covers and no more: an expired session leaves its user's state,
        facts and checkpoints to their rules, and artifacts, memory and registered stores alone.
        What somebody uses meanwhile stays. Several processes may sweep at once; a sweep that was
        interrupted is finished by the next one.

        Args:
            policy: What goes.
            dry_run: Count only, in transactions that are rolled back. Deletes nothing.
            now: UTC epoch seconds to count from; None for the database's clock. State that expires
                is judged by the database's clock in any case.
            requested_by: Who asked, for the receipts.
            progress: Called after each batch.

        Returns:
            What went. Rows that are gone and whose bytes could not be verified (somebody reads the
            file) make it not `verified`; their erasure stays pending, and `resume` finishes it.

        Raises:
            CapabilityError: When the wrapped service has no database of ours. Nothing was deleted.
            StoreUnavailableError: When the database cannot be written. Earlier batches are gone.
        """
        from adk_memory_ext.erasure.sweeping import Sweep

        sweep = Sweep(self._required(), self.erase_rows, self._ttl, progress, requested_by)
        return await sweep.run(policy, now, dry_run=dry_run)

    async def resume(self) -> list[Receipt]:
        """Finishes erasures that were interrupted; returns their receipts.

        Those of which the values to search for were lost with their process have the file
        rewritten instead, and the receipt says so. One that is under way elsewhere is left alone.

        Raises:
            ErasureIncompleteError: When one still cannot be verified; it stays pending.
        """
        from adk_memory_ext.erasure import ledger

        await self.settle()
        database = self._required()
        receipts = []
        for pending in await database.read(ledger.pending):
            async with self._alone(pending.id) as is_free:
                again = await database.read(partial(ledger.find, erasure_id=pending.id))
                if is_free and again is not None:
                    receipts.append(await self._resume(pending))
        return receipts

    async def receipts(self) -> list[Receipt]:
        """Returns the stored receipts, the oldest first."""
        from adk_memory_ext.erasure import ledger

        return await self._required().read(ledger.receipts)

    async def broken_receipts(self) -> list[int]:
        """Returns the numbers of stored receipts that were changed or follow a missing one."""
        from adk_memory_ext.erasure import ledger

        return await self._required().read(ledger.broken_links)

    async def erase_rows(
        self,
        kind: str,
        work: Callable[[Transaction], Deleted],
        *,
        requested_by: str | None = None,
        in_background: bool = False,
    ) -> Receipt | None:
        """Deletes rows as `work` does, in one transaction, and verifies that their bytes are gone.

        Args:
            kind: What the receipt calls it.
            work: Deletes, and says what.
            requested_by: Who asked, for the receipt; left out where it is among what was deleted.
            in_background: Verify it later, together with others.

        Returns:
            The receipt; None when there was nothing to delete, or when it comes later.

        Raises:
            ErasureIncompleteError: When it is not verified; it stays pending.
        """
        database = self._required()
        key = secrets.token_bytes(32)
        erasure_id = uuid.uuid4().hex
        facts = {"kind": kind, "requested_by": requested_by}
        locks = database.turn_locks
        lock = None if locks is None else await locks.try_lock(lock_name(erasure_id))
        try:
            deleted, begun = await database.write(
                lambda tx: delete_as(tx, erasure_id, facts, key, work)
            )
            if deleted.is_empty:
                return None
            await self._let_go()
            values = SearchedValues()
            await asyncio.to_thread(values.add_all, deleted.texts)
            if requested_by is not None and requested_by in values.values:
                facts["requested_by"] = None
            job = Job(erasure_id, begun, facts, values)
            if not in_background:
                return await self._verify([job], key.hex())
            self._queue.append((job, lock))
            lock = None
        finally:
            if lock is not None:
                lock.release()
        self._queued.set()
        self._start_verifying()
        return None

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> bool:
        """Deletes a session's rows and empties the WAL at once; verifies it afterwards.

        The verification runs in the background, one for all that were deleted meanwhile. While it
        does not succeed (a reader keeps the WAL) the erasure stays pending, and is tried again.

        Returns:
            False where there is no file to verify: nothing was done.
        """
        if self._database is None or self._database.file is None:
            return False
        subject = checked(Subject(app_name, user_id, session_id))
        job, lock = await self._delete_only(self._database, subject)
        if job is not None:
            with contextlib.suppress(StoreError):
                await self._database.empty_wal()
            self._queue.append((job, lock))
            self._queued.set()
            self._start_verifying()
            await self._let_go()
        return True

    async def begin(self) -> None:
        """Has erasures that an earlier process left finished in the background."""
        from adk_memory_ext.erasure import ledger

        file = None if self._database is None else self._database.file
        if self._database is None or file is None or not has_content(file):
            return
        with contextlib.suppress(MemoryExtError):  # the first use of the service says it
            if await self._database.read(ledger.pending):
                self._resuming = asyncio.create_task(self._resume_quietly())

    async def _resume_quietly(self) -> None:
        try:
            await self.resume()
        except MemoryExtError as error:
            _logger.warning("An erasure that was interrupted could not be finished: %s", error)

    async def settle(self) -> None:
        """Returns when the deletions so far are verified, or have been tried once more."""
        if not self._queue:
            return
        verifying = self._start_verifying()
        self._closing = True
        self._queued.set()
        try:
            await asyncio.shield(verifying)
        finally:
            self._closing = False

    async def close(self) -> None:
        """Ends the verification in the background; what is pending is noted in the database."""
        if self._resuming is not None:
            resuming, self._resuming = self._resuming, None
            await asyncio.wait([resuming])
        await self.settle()
        for _job, lock in self._queue:
            if lock is not None:
                lock.release()
        self._queue.clear()

    async def _let_go(self) -> None:
        """Lets go of what is in memory of sessions that were just deleted."""
        if self._forget is not None:
            await self._forget()

    # -- one erasure ------------------------------------------------------------------------

    def _required(self) -> Database:
        if self._database is None:
            raise CapabilityError(
                "The wrapped service has no database of this package, so that nothing can be"
                " verified; use delete_session, or DurableSessionService.from_url(…)."
            )
        return self._database

    @contextlib.asynccontextmanager
    async def _alone(self, erasure_id: str) -> AsyncIterator[bool]:
        """Keeps others from finishing the same erasure; gives False where one does."""
        locks = self._required().turn_locks
        lock = None if locks is None else await locks.try_lock(lock_name(erasure_id))
        try:
            yield locks is None or lock is not None
        finally:
            if lock is not None:
                lock.release()

    async def _plan(self, subject: Subject, forks: Forks) -> Plan:
        from adk_memory_ext.erasure import stored_rows

        database = self._required()
        subjects = await database.read(lambda tx: stored_rows.with_forks(tx, subject))
        planned = subjects if forks == "erase" else [subject]
        counts: Counter[str] = Counter()
        for one in planned:
            counts.update(await database.read(partial(stored_rows.count_rows, subject=one)))
        elsewhere, not_reached = await self._reach(self._elsewhere.count, planned)
        counts.update(elsewhere)
        return Plan(subject.kind, dict(counts), tuple(not_reached), len(subjects) - 1)

    async def _reach(
        self, visit: Callable[..., Awaitable[tuple[dict[str, int], list[str]]]], of: list[Subject]
    ) -> tuple[Counter[str], list[str]]:
        """Counts or erases what subjects have elsewhere; returns how much, and what not and why."""
        from adk_memory_ext.erasure import stored_rows

        counts: Counter[str] = Counter()
        reasons: dict[str, None] = {}
        for one in of:
            session_ids = partial(stored_rows.session_ids, subject=one)
            found, failed = await visit(one, await self._required().read(session_ids))
            counts.update(found)
            reasons |= dict.fromkeys(failed)
        return counts, [*reasons]

    async def _erase(
        self, subject: Subject, requested_by: str | None, deep: bool, forks: Forks
    ) -> Receipt:
        from adk_memory_ext.erasure import ledger

        database = self._required()
        checked(subject)
        key = secrets.token_bytes(32)
        facts = first_facts(subject, key, requested_by, forks)
        erasure_id = uuid.uuid4().hex
        async with self._alone(erasure_id):
            await database.write(lambda tx: ledger.begin(tx, erasure_id, subject, facts))
            job = await self._delete_everywhere(erasure_id, subject, facts, requested_by)
            job.deep = deep
            return await self._verify([job], key.hex())

    async def _resume(self, pending: Pending) -> Receipt:
        if pending.subject is None:
            job = Job(pending.id, pending.begun, pending.facts, None)
        else:
            job = await self._delete_everywhere(pending.id, pending.subject, pending.facts, None)
        return await self._verify([job], None)

    async def _delete_everywhere(
        self, erasure_id: str, subject: Subject, facts: dict[str, Any], requested_by: str | None
    ) -> Job:
        from adk_memory_ext.erasure import stored_rows

        database = self._required()
        subjects = [subject]
        if facts.get("forks") == "erase":
            subjects = await database.read(lambda tx: stored_rows.with_forks(tx, subject))
        counts, not_checked = await self._reach(self._elsewhere.erase, subjects)

        def work(tx: Transaction) -> tuple[list[str], int]:
            return delete_rows(tx, erasure_id, subject, facts, counts)

        texts, begun = await database.write(work)
        await self._let_go()
        values = await asyncio.to_thread(values_of, texts, subject)
        if requested_by is not None and requested_by in values.values:
            facts["requested_by"] = None
        return Job(erasure_id, begun, facts, values, not_checked=not_checked)

    async def _delete_only(self, database: Database, subject: Subject) -> tuple[Job | None, Any]:
        """Deletes rows in one transaction; returns no job if there were none."""
        from adk_memory_ext.erasure import ledger

        facts = first_facts(subject, secrets.token_bytes(32), None)
        erasure_id = uuid.uuid4().hex
        locks = database.turn_locks
        lock = None if locks is None else await locks.try_lock(lock_name(erasure_id))

        def work(tx: Transaction) -> tuple[list[str], int] | None:
            ledger.begin(tx, erasure_id, subject, facts)
            deleted = delete_rows(tx, erasure_id, subject, facts, {})
            if not any(facts["counts"].values()):
                ledger.forget(tx, erasure_id)
                return None
            return deleted

        deleted = None
        try:
            deleted = await database.write(work)
        finally:
            if deleted is None and lock is not None:
                lock.release()
        if deleted is None:
            return None, None
        values = await asyncio.to_thread(values_of, deleted[0], subject)
        return Job(erasure_id, deleted[1], facts, values), lock

    def _start_verifying(self) -> asyncio.Task[None]:
        if self._verifying is None or self._verifying.done():
            self._queued = asyncio.Event()  # of this loop
            self._verifying = asyncio.create_task(self._verify_queue())
        return self._verifying

    # -- verifying --------------------------------------------------------------------------

    async def _verify_queue(self) -> None:
        """Verifies what was deleted, until nothing is queued."""
        while self._queue:
            self._queued.clear()
            jobs = list(self._queue)
            try:
                await self._verify([job for job, _lock in jobs], None)
            except ErasureIncompleteError as error:
                _logger.warning(
                    "The deletion of %s session(s) could not be verified yet: %s",
                    len(jobs),
                    "; ".join(error.receipt.not_checked),
                )
            except StoreError:
                _logger.warning("Deleted sessions could not be verified yet.", exc_info=True)
            else:
                del self._queue[: len(jobs)]
                for _job, lock in jobs:
                    if lock is not None:
                        lock.release()
                continue
            if self._closing:
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._queued.wait(), _PAUSE_SECONDS)

    async def _verify(self, jobs: Sequence[Job], subject_key: str | None) -> Receipt:
        """Verifies erasures together, ends them, and returns the receipt of the last one.

        Raises:
            ErasureIncompleteError: When they are not verified; they stay pending.
        """
        from adk_memory_ext.erasure import ledger

        database = self._required()
        known = [job.values for job in jobs if job.values is not None]
        values = sorted(set().union(*(item.values for item in known)))
        is_lost = len(known) < len(jobs)
        deep = any(job.deep for job in jobs)
        cleaned = await clean(database, values, deep=deep, is_lost=is_lost)
        receipt: Receipt | None = None
        for job in jobs:
            receipt = receipt_of(job, cleaned, subject_key)
            if cleaned.verified:
                finish = partial(ledger.finish, erasure_id=job.id, receipt=receipt)
                receipt = await database.write(finish)
        assert receipt is not None  # noqa: S101  # there is a job
        if not receipt.verified:
            raise ErasureIncompleteError(receipt)
        return receipt


def _checked(forks: Forks) -> Forks:
    if forks not in get_args(Forks):
        raise ConfigurationError(f"forks must be 'erase' or 'detach', not {forks!r}.")
    return forks
