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

from adk_memory_ext.erasure.deletions import Deletions, Queued
from adk_memory_ext.erasure.elsewhere import Elsewhere
from adk_memory_ext.erasure.jobs import (
    Deleted,
    Job,
    checked,
    delete_as,
    delete_rows,
    delete_subject,
    first_facts,
    size_of,
)
from adk_memory_ext.erasure.searched_values import SearchedValues
from adk_memory_ext.erasure.subjects import Facts, Forks, Subject
from adk_memory_ext.erasure.verifying import Verified, verify
from adk_memory_ext.errors import CapabilityError, ConfigurationError, MemoryExtError
from adk_memory_ext.records import SessionId

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from google.adk.artifacts.base_artifact_service import BaseArtifactService
    from google.adk.memory.base_memory_service import BaseMemoryService

    from adk_memory_ext.erasure.elsewhere import CountElsewhere, EraseElsewhere
    from adk_memory_ext.erasure.foreign import ForeignErasure
    from adk_memory_ext.erasure.ledger import Pending
    from adk_memory_ext.erasure.receipts import Receipt
    from adk_memory_ext.erasure.sweeping import Sweeping, Swept
    from adk_memory_ext.retention import RetentionPolicy
    from adk_memory_ext.sql_expiry import Ttl
    from adk_memory_ext.sql_sessions import Database
    from adk_memory_ext.statements import Transaction
    from adk_memory_ext.turn_queue import TurnLock

_logger: Final = logging.getLogger(__name__)


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
        forget: Has the service keep nothing in memory of what is gone; None where it keeps nothing.
        foreign: Erases over a wrapped service without a database of ours.
    """

    def __init__(
        self,
        database: Database | None,
        ttl: Ttl | None = None,
        forget: Callable[[], Awaitable[None]] | None = None,
        foreign: ForeignErasure | None = None,
    ) -> None:
        self._database = database
        self._foreign = foreign
        self._ttl = ttl
        self._forget = forget
        self._elsewhere: Final = Elsewhere()
        self._deletions: Final = Deletions(database)
        self._has_begun = False
        self._resuming: asyncio.Task[None] | None = None

    def register(
        self,
        *,
        artifact_service: BaseArtifactService | None = None,
        memory_service: BaseMemoryService | None = None,
    ) -> None:
        """Has erasures reach these services too, instead of those that a Runner has.

        Those of the Runner are known once `MemoryPlugin` has seen a run of it.
        """
        self._elsewhere.register(artifact_service, memory_service)

    def see_runner(
        self,
        artifact_service: BaseArtifactService | None,
        memory_service: BaseMemoryService | None,
    ) -> None:
        """Has erasures reach the services of a Runner, unless others were registered."""
        self._elsewhere.see(artifact_service, memory_service)

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
        facts: Facts = "keep",
    ) -> Receipt:
        """Erases a session everywhere and verifies that its bytes are gone.

        Over a foreign service it goes through that service's own interface: rows only, level
        `logical`; the receipt is stored where there is a `store=`.

        User state and app state stay. A running or later append to the session is refused, in every
        process; its id may be used again. Sessions that were forked from it hold its words too.

        Args:
            app_name: The app.
            user_id: Whose session it is.
            session_id: The session; that there is none (any more) is no error.
            requested_by: Who asked, for the receipt; left out where it names who is erased.
            deep: Rewrite the file in any case, and overwrite the WAL with zeros before it is cut
                off. Below the file, an SSD, a copy-on-write file system, snapshots and backups
                may keep what was overwritten. On PostgreSQL: `VACUUM (FULL)`, which locks each
                table meanwhile, and a look at every page, as far as the role's rights allow;
                without it a plain `VACUUM`, which leaves bytes until their room is used again.
            forks: `erase` takes the session's forks along, and forks of these. `detach` leaves them
                as they are, with what they were forked with; nothing says any more where they came
                from. The receipt counts them.
            facts: `keep` leaves in the profile what the user asked to save, its provenance cut.
                `remove` takes along what only this session supports. The receipt counts what went.

        Raises:
            ConfigurationError: When `forks` or `facts` is something else. Nothing was deleted.
            ErasureIncompleteError: When something is left or could not be verified. All that can
                be erased is gone; its `receipt` says what is not.
            StoreUnavailableError: When the database cannot be written. Nothing was deleted.
        """
        subject = Subject(app_name, user_id, session_id)
        _check(forks, facts)
        return await self._erase(subject, requested_by, deep, forks, facts)

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
        _check(forks)
        return await self._plan(Subject(app_name, user_id, session_id), forks)

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

        return await self._with_receipts().read(ledger.receipts)

    async def broken_receipts(self) -> list[int]:
        """Returns the numbers of stored receipts that were changed or follow a missing one."""
        from adk_memory_ext.erasure import ledger

        return await self._with_receipts().read(ledger.broken_links)

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
        async with self._deleted(kind, work, key, requested_by) as queued:
            if queued is None:
                return None
            if not in_background:
                # A sweep has many batches; a server vacuums its tables by itself.
                verified = await verify(database, [queued.job], key.hex(), in_background=True)
                return verified.last()
            self._deletions.add(queued)
        return None

    async def delete_session(
        self, *, app_name: str, user_id: str, session_id: str, verified: bool = True
    ) -> bool:
        """Deletes all that is stored of a session, and verifies that its bytes go.

        In a SQLite file the WAL is emptied at once. A small file is verified before the call
        returns; else that happens in the background, once for all that were deleted meanwhile.
        While it does not succeed (a reader keeps the WAL) the erasure stays pending, is logged, and
        is tried again.

        Args:
            app_name: The app.
            user_id: Whose session it is.
            session_id: The session; that there is none is no error.
            verified: False to delete rows and do nothing else.

        Returns:
            False over a service without a database of ours: nothing was done.
        """
        if self._database is None:
            return False
        subject = checked(Subject(app_name, user_id, session_id))
        counts, not_checked = await self._reach(self._elsewhere.erase, [subject])

        def work(tx: Transaction) -> Deleted:
            return delete_subject(tx, subject, counts)

        if not verified:
            await self._database.write(work)
            await self._let_go()
            return True
        async with self._deleted(subject.kind, work, secrets.token_bytes(32), None) as queued:
            if queued is not None:
                queued.job.not_checked += not_checked
                queued.job.unknown = self._elsewhere.unknown
                self._deletions.add(queued)
        if queued is not None:
            await self._deletions.wait_a_moment(queued)
        return True

    async def begin(self) -> None:
        """Has erasures that an earlier process left finished in the background; once.

        A file is asked for them at once, a server in the background: it may take its time.
        """
        if self._has_begun:
            return
        self._has_begun = True
        database = self._database
        if database is None:
            return
        if database.is_server or (
            database.file is not None
            and size_of(database.file) > 0
            and await self._is_any_pending(database)
        ):
            self._resuming = asyncio.create_task(self._resume_quietly(database))

    async def _is_any_pending(self, database: Database) -> bool:
        from adk_memory_ext.erasure import ledger

        try:
            return bool(await database.read(ledger.pending))
        except MemoryExtError:
            return False  # the first use of the service says it

    async def _resume_quietly(self, database: Database) -> None:
        if not await self._is_any_pending(database):
            return
        try:
            await self.resume()
        except MemoryExtError as error:
            _logger.warning("An erasure that was interrupted could not be finished: %s", error)

    async def settle(self) -> None:
        """Returns when the deletions so far are verified, or have been tried once more."""
        await self._deletions.settle()

    async def close(self) -> None:
        """Ends the verification in the background; what is pending is noted in the database."""
        resuming, self._resuming = self._resuming, None
        if resuming is not None and resuming.get_loop() is asyncio.get_running_loop():
            await asyncio.wait([resuming])
        await self._deletions.close()

    async def _let_go(self) -> None:
        """Lets go of what is in memory of what was just deleted."""
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

    def _with_receipts(self) -> Database:
        store = None if self._foreign is None else self._foreign.store
        return store or self._required()

    @contextlib.asynccontextmanager
    async def _deleted(
        self,
        kind: str,
        work: Callable[[Transaction], Deleted],
        key: bytes,
        requested_by: str | None,
    ) -> AsyncIterator[Queued | None]:
        """Deletes rows as `work` does; gives what is to be verified, or None if there was nothing.

        Nobody else finishes it before the context ends, or its verification if it was queued.
        """
        database = self._required()
        erasure_id = uuid.uuid4().hex
        facts = {"kind": kind, "requested_by": requested_by}
        lock = await self._lock(erasure_id)
        queued: Queued | None = None
        try:
            deleted, begun = await database.write(
                lambda tx: delete_as(tx, erasure_id, facts, key, work)
            )
            for session, names in deleted.media:
                await self._elsewhere.erase_artifacts(session, names)
            if not deleted.is_empty:
                job = await self._job(erasure_id, begun, facts, deleted.texts)
                queued = Queued(job, lock)
            yield queued
        finally:
            if lock is not None and not (queued and self._deletions.has(queued)):
                lock.release()

    @contextlib.asynccontextmanager
    async def _alone(self, erasure_id: str) -> AsyncIterator[bool]:
        """Keeps others from finishing the same erasure; gives False where one does."""
        lock = await self._lock(erasure_id)
        try:
            yield lock is not None or self._required().turn_locks is None
        finally:
            if lock is not None:
                lock.release()

    async def _lock(self, erasure_id: str) -> TurnLock | None:
        """Returns the lock of an erasure, among those of turns; None where somebody else has it."""
        locks = self._required().turn_locks
        name = SessionId("memext", "erasure", erasure_id)
        return None if locks is None else await locks.try_lock(name)

    async def _job(
        self, erasure_id: str, begun: int, facts: dict[str, Any], texts: Sequence[str]
    ) -> Job:
        """Returns an erasure whose rows are gone, and of which nothing is in memory."""
        await self._let_go()
        values = SearchedValues()
        await asyncio.to_thread(values.add_all, texts)
        if facts["requested_by"] in values.values:
            facts["requested_by"] = None
        return Job(erasure_id, begun, facts, values)

    async def _plan(self, subject: Subject, forks: Forks) -> Plan:
        from adk_memory_ext.erasure import stored_rows

        if self._foreign is not None:
            found, out_of_reach = await self._foreign.count(subject, self._elsewhere)
            out_of_reach += self._elsewhere.unknown
            return Plan(subject.kind, dict(found), tuple(out_of_reach))
        database = self._required()
        subjects = await database.read(lambda tx: stored_rows.with_forks(tx, subject))
        planned = subjects if forks == "erase" else [subject]
        counts: Counter[str] = Counter()
        for one in planned:
            counts.update(await database.read(partial(stored_rows.count_rows, subject=one)))
        elsewhere, not_reached = await self._reach(self._elsewhere.count, planned)
        counts.update(elsewhere)
        not_reached += self._elsewhere.unknown
        return Plan(subject.kind, dict(counts), tuple(not_reached), len(subjects) - 1)

    async def _reach(
        self, visit: Callable[..., Awaitable[tuple[dict[str, int], list[str]]]], of: list[Subject]
    ) -> tuple[Counter[str], list[str]]:
        """Counts or erases what subjects have elsewhere; returns how much, and what not and why."""
        from adk_memory_ext.erasure import stored_rows

        counts: Counter[str] = Counter()
        reasons: dict[str, None] = {}
        for one in of if self._elsewhere.is_anywhere else ():
            traces = partial(stored_rows.traces_of, subject=one)
            found, failed = await visit(one, await self._required().read(traces))
            counts.update(found)
            reasons |= dict.fromkeys(failed)
        return counts, [*reasons]

    async def _erase(
        self,
        subject: Subject,
        requested_by: str | None,
        deep: bool,
        forks: Forks,
        facts: Facts = "keep",
    ) -> Receipt:
        from adk_memory_ext.erasure import ledger

        if self._foreign is not None:
            key = secrets.token_bytes(32)
            receipt = await self._foreign.erase(
                checked(subject), self._elsewhere, key, requested_by, facts
            )
            await self._let_go()
            return Verified(is_done=True, receipts=[receipt]).last()
        database = self._required()
        checked(subject)
        key = secrets.token_bytes(32)
        noted = first_facts(subject, key, requested_by, forks, facts, deep=deep)
        erasure_id = uuid.uuid4().hex
        async with self._alone(erasure_id):
            await database.write(lambda tx: ledger.begin(tx, erasure_id, subject, noted))
            job = await self._delete_everywhere(erasure_id, subject, noted)
            return (await verify(database, [job], key.hex())).last()

    async def _resume(self, pending: Pending) -> Receipt:
        if pending.subject is None:
            job = Job(pending.id, pending.begun, pending.facts, None)
        else:
            job = await self._delete_everywhere(pending.id, pending.subject, pending.facts)
        return (await verify(self._required(), [job], None)).last()

    async def _delete_everywhere(
        self, erasure_id: str, subject: Subject, facts: dict[str, Any]
    ) -> Job:
        from adk_memory_ext.erasure import stored_rows

        database = self._required()
        subjects = [subject]
        if facts.get("forks") == "erase":
            subjects = await database.read(lambda tx: stored_rows.with_forks(tx, subject))
        counts, not_checked = await self._reach(self._elsewhere.erase, subjects)

        def work(tx: Transaction) -> tuple[Sequence[str], int]:
            return delete_rows(tx, erasure_id, subject, facts, counts)

        texts, begun = await database.write(work)
        job = await self._job(erasure_id, begun, facts, texts)
        job.not_checked, job.unknown = not_checked, self._elsewhere.unknown
        return job


def _check(forks: Forks, facts: Facts = "keep") -> None:
    if forks not in get_args(Forks):
        raise ConfigurationError(f"forks must be 'erase' or 'detach', not {forks!r}.")
    if facts not in get_args(Facts):
        raise ConfigurationError(f"facts must be 'keep' or 'remove', not {facts!r}.")
