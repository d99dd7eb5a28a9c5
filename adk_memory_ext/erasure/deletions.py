"""What is left of deleted rows is looked for afterwards: in the background, much at once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from adk_memory_ext.erasure.jobs import size_of
from adk_memory_ext.erasure.verifying import verify
from adk_memory_ext.errors import StoreError

if TYPE_CHECKING:
    from adk_memory_ext.erasure.jobs import Job
    from adk_memory_ext.erasure.verifying import Verified
    from adk_memory_ext.sql_sessions import Database
    from adk_memory_ext.turn_queue import TurnLock

_logger: Final = logging.getLogger(__name__)
_PAUSE_SECONDS: Final = 30.0
"""Before a deletion that could not be verified is looked at again."""
_CHEAP_BYTES: Final = 16 << 20
"""A file that is searched in no time: who deletes a session waits for it."""
_CHEAP_SECONDS: Final = 1.0


@dataclass(slots=True, eq=False)
class Queued:
    """A deletion that waits for its verification."""

    job: Job
    lock: TurnLock | None
    """Tells other processes that this one sees to it."""
    tried: Future[None] = field(default_factory=Future)
    """Done when it was looked for next; of no event loop, as a service may be used from several."""

    def release(self) -> None:
        """Lets other processes finish it."""
        lock, self.lock = self.lock, None
        if lock is not None:
            lock.release()


class Deletions:
    """Verifies the deletions of a while together.

    What is not verified when the event loop or the process ends stays pending in the database.
    """

    def __init__(self, database: Database | None) -> None:
        self._database: Final = database
        self._queue: Final[list[Queued]] = []
        self._verifying: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._told: Final[set[str]] = set()

    def add(self, queued: Queued) -> None:
        """Has a deletion verified, together with others."""
        self._queue.append(queued)
        self._start()

    def has(self, queued: Queued) -> bool:
        """Whether a deletion is not verified yet."""
        return queued in self._queue

    async def wait_a_moment(self, queued: Queued) -> None:
        """Empties the WAL, and waits for the verification of a small file, a second at most."""
        if self._database is None:
            return
        with contextlib.suppress(StoreError):
            await self._database.empty_wal()
        file = self._database.file
        if file is None or size_of(file) <= _CHEAP_BYTES:
            await asyncio.wait({asyncio.wrap_future(queued.tried)}, timeout=_CHEAP_SECONDS)

    async def settle(self) -> None:
        """Returns when the deletions so far are verified, or have been tried once more."""
        if not self._queue:
            return
        for queued in self._queue:
            if queued.tried.done():
                queued.tried = Future()
        tried = [asyncio.wrap_future(queued.tried) for queued in self._queue]
        self._start()
        await asyncio.wait(tried)

    async def close(self) -> None:
        """Verifies what is queued, once, and leaves the rest pending."""
        await self.settle()
        task, self._verifying = self._verifying, None
        if task is not None and not task.done():
            if task.get_loop() is asyncio.get_running_loop():
                task.cancel()
                await asyncio.wait({task})
            elif task.get_loop().is_running():
                task.get_loop().call_soon_threadsafe(task.cancel)
        for queued in self._queue:
            queued.release()
        self._queue.clear()

    # -- in the background ------------------------------------------------------------------

    def _start(self) -> None:
        """Has the queue looked at: by the task that does so, or by a new one."""
        task = self._verifying
        if task is not None and not task.done():
            loop = task.get_loop()
            if loop is asyncio.get_running_loop():
                self._woken.set()
                return
            if loop.is_running():
                loop.call_soon_threadsafe(self._woken.set)
                return
        # The loop that the last one ran in has ended, perhaps in the middle of its work.
        self._woken = asyncio.Event()
        self._verifying = asyncio.create_task(self._verify_queue())

    async def _verify_queue(self) -> None:
        """Verifies what was deleted, until nothing is queued."""
        try:
            while self._queue:
                self._woken.clear()
                if not await self._verify_once(list(self._queue)):
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._woken.wait(), _PAUSE_SECONDS)
        finally:
            # Whoever comes next, here or in another process, may take over what is left.
            for queued in self._queue:
                queued.release()
                _note(queued)

    async def _verify_once(self, batch: list[Queued]) -> bool:
        """Verifies some together; returns whether they are done with."""
        assert self._database is not None  # noqa: S101  # something was deleted from it
        try:
            verified = await verify(
                self._database, [queued.job for queued in batch], None, in_background=True
            )
        except StoreError:
            _logger.warning("Deleted sessions could not be verified yet.", exc_info=True)
            is_done = False
        else:
            is_done = verified.is_done
            self._tell(verified)
        for queued in batch:
            if is_done:
                self._queue.remove(queued)
                queued.release()
            _note(queued)
        return is_done

    def _tell(self, verified: Verified) -> None:
        """Logs what is left of deleted sessions, once for each reason."""
        not_verified = [receipt for receipt in verified.receipts if not receipt.verified]
        reasons = {reason for receipt in not_verified for reason in receipt.not_checked}
        if not verified.is_done:
            _logger.warning(
                "The deletion of %s session(s) could not be verified yet: %s",
                len(not_verified),
                "; ".join(sorted(reasons)),
            )
        elif new := reasons - self._told:
            self._told.update(new)
            _logger.warning("Not all of a deleted session was erased: %s", "; ".join(sorted(new)))


def _note(queued: Queued) -> None:
    if not queued.tried.done():
        queued.tried.set_result(None)
