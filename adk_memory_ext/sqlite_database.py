"""SQLite: one thread that writes, a few that read, one hop between them and the event loop.

Writes that wait together share a transaction, and each is acknowledged after its COMMIT. Every
write is a whole function that runs in the writing thread, so that a caller who is cancelled leaves
either nothing or all of it.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sqlalchemy import create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from adk_memory_ext import migrations
from adk_memory_ext.database import (
    DatabaseOptions,
    create_file,
    refuse_foreign_file,
    set_pragmas,
    sqlite_library,
    sqlite_path,
)
from adk_memory_ext.errors import CommitUnknownError, StoreError, StoreUnavailableError
from adk_memory_ext.statements import SqliteTransaction, Transaction, compile_statements
from adk_memory_ext.turn_locks import FileTurnLocks

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy.engine import URL, Connection

T = TypeVar("T")

_READERS: Final = 4
_LARGEST_BATCH: Final = 256
"""Writes in one transaction; beyond that the first ones would wait too long for the last."""


@dataclass(slots=True)
class _Write:
    """One function to run inside a transaction, and where its outcome goes."""

    work: Callable[[SqliteTransaction], Any]
    then: Callable[[Any], None] | None
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    in_transaction: bool = True
    """False for what SQLite does outside of transactions only."""
    result: Any = None
    error: BaseException | None = None

    def deliver(self) -> None:
        """Hands the outcome over; runs in the loop of the caller."""
        if self.error is None and self.then is not None:
            try:
                self.then(self.result)
            except Exception as error:  # noqa: BLE001  # the caller gets it, and nobody else
                self.error = error
        if self.future.cancelled():
            return
        if self.error is None:
            self.future.set_result(self.result)
        else:
            self.future.set_exception(self.error)


class SqliteDatabase:
    """A SQLite file, or a database in memory that lives as long as this object.

    Opened at the first use; the file is looked at and created at once.

    Raises:
        ConfigurationError: When the file or its folder cannot be used.
        SchemaVersionError: When the file has tables of another layout.
    """

    is_server: Final = False

    def __init__(self, url: URL, options: DatabaseOptions) -> None:
        options.connect_arguments("sqlite")  # refuses what is for servers only
        path = sqlite_path(url)
        self._sqlite: Final = sqlite_library(options.sqlite_module)
        if path is not None:
            refuse_foreign_file(path, self._sqlite)
            create_file(path)
        self._in_memory: Final = path is None
        self.file: Final = path
        """Where it lies; None in memory."""
        self.sqlite_module: Final = options.sqlite_module
        """The module that the file is used through."""
        self.turn_locks: Final = None if path is None else FileTurnLocks(path)
        self._options = options
        self._engine = create_engine(
            url.set(drivername="sqlite+pysqlite", database=url.database or ":memory:"),
            module=self._sqlite,
            poolclass=NullPool,
            connect_args={"check_same_thread": False, "timeout": 0},
            isolation_level="AUTOCOMMIT",  # transactions are begun and ended here, by hand
        )
        event.listen(self._engine, "connect", self._on_connect)
        self._statements = compile_statements(self._engine.dialect)
        self._writes: queue.SimpleQueue[_Write | None] = queue.SimpleQueue()
        self._gathered: dict[asyncio.AbstractEventLoop, list[_Write]] = {}
        # Whether the last writes came together: then those of one round of a loop are handed over
        # together, so that the thread does not take the first one alone and fight over the
        # interpreter with those who prepare the others.
        self._crowded = False
        self._prepared = False  # once for all threads: looking takes a millisecond or more
        self._lock = threading.Lock()
        self._writer: threading.Thread | None = None
        self._readers: Final = ThreadPoolExecutor(_READERS, "adk-memory-ext-reader")
        self._local = threading.local()
        self._reading: list[Connection] = []
        self._closed = False

    def _on_connect(self, connection: Any, _record: object) -> None:
        set_pragmas(connection, self._options, in_memory=self._in_memory)

    async def write(
        self, work: Callable[[Transaction], T], then: Callable[[T], None] | None = None
    ) -> T:
        """Runs `work` in a write transaction and returns its result after the commit.

        `then` gets the result after the commit, in the caller's loop, also when the caller was
        cancelled meanwhile.

        When `work` raises, nothing of it is kept and others that share the transaction are not
        touched. A cancelled caller leaves nothing if the work had not begun, and all of it else.

        Raises:
            StoreUnavailableError: When the file is locked past the limit, full or unreadable.
                Nothing was written.
        """
        return await self._in_writer(work, then)

    async def empty_wal(self) -> bool:
        """Moves what was committed into the file and cuts the WAL off; returns whether it did.

        Not while somebody reads what stands in it: then it waits for nobody, and changes nothing.
        """
        return self._in_memory or await self._in_writer(_empty_wal, in_transaction=False)

    def _in_writer(
        self,
        work: Callable[[SqliteTransaction], T],
        then: Callable[[T], None] | None = None,
        *,
        in_transaction: bool = True,
    ) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        write = _Write(work, then, loop, future, in_transaction)
        with self._lock:
            self._start()
            gathered = self._gathered.get(loop)
            if gathered is not None:
                gathered.append(write)
            elif self._crowded:
                self._gathered[loop] = [write]
                loop.call_soon(self._hand_over, loop)
            else:
                self._writes.put(write)
        return future

    def _hand_over(self, loop: asyncio.AbstractEventLoop) -> None:
        """Gives the thread the writes of one round of an event loop, in their order."""
        with self._lock:
            for write in self._gathered.pop(loop, ()):
                self._writes.put(write)

    async def read(self, work: Callable[[Transaction], T]) -> T:
        """Runs `work` over one moment of the database and returns its result."""
        if self._in_memory:  # which lives in the one connection of the writer
            return await self.write(work)
        loop = asyncio.get_running_loop()
        with self._lock:
            self._start()
            result = loop.run_in_executor(self._readers, self._read, work)
        return await result

    async def settle(self) -> None:
        """Returns when what was begun before has ended, also what cancelled callers left."""
        await self.write(lambda _tx: None)  # one thread does them in their order

    async def close(self) -> None:
        """Ends the threads after what waits for them, and closes the file. May be called twice."""
        with self._lock:
            if not self._closed:
                self._closed = True
                for write in chain.from_iterable(self._gathered.values()):
                    self._writes.put(write)
                self._gathered.clear()
                self._writes.put(None)
        if self._writer is not None:
            await asyncio.to_thread(self._writer.join)
        await asyncio.to_thread(self._readers.shutdown)
        if self.turn_locks is not None:
            await self.turn_locks.close()
        while self._reading:
            self._reading.pop().close()
        self._engine.dispose()

    def _start(self) -> None:
        """Starts the writing thread at the first use; the caller holds the lock."""
        if self._closed:
            raise StoreUnavailableError("The service is closed; nothing was written.")
        if self._writer is None:
            self._writer = threading.Thread(
                target=self._write_all, name="adk-memory-ext-writer", daemon=True
            )
            self._writer.start()

    # -- in the reading threads -------------------------------------------------------------

    def _read(self, work: Callable[[Transaction], T]) -> T:
        try:
            tx = self._reading_transaction()
            tx.execute("BEGIN")
            try:
                return work(tx)
            finally:
                self._end_reading(tx)
        except (self._sqlite.Error, DBAPIError) as error:
            raise self._translated(error) from error

    def _end_reading(self, tx: SqliteTransaction) -> None:
        try:
            if tx.in_transaction:
                tx.execute("ROLLBACK")
        except self._sqlite.Error:  # nothing was written; the next read opens another connection
            self._local.transaction = None
            self._reading.remove(tx.connection)
            tx.connection.close()

    def _reading_transaction(self) -> SqliteTransaction:
        tx: SqliteTransaction | None = getattr(self._local, "transaction", None)
        if tx is None:
            tx = self._local.transaction = self._open()
            self._reading.append(tx.connection)
        return tx

    # -- in the writing thread --------------------------------------------------------------

    def _write_all(self) -> None:
        tx: SqliteTransaction | None = None
        stop = False
        while not stop:
            # In a function, which lets go of what was written before the next write is waited for.
            tx, stop = self._write_next(tx)
        if tx is not None:
            tx.connection.close()

    def _write_next(self, tx: SqliteTransaction | None) -> tuple[SqliteTransaction | None, bool]:
        """Waits for writes and does them; returns the connection to go on with, if there is one."""
        batch, stop = self._next_batch()
        if not batch:
            return tx, stop
        self._crowded = len(batch) > 1
        try:
            if tx is None:
                tx = self._open()
            self._do_maintenance(tx, batch)
            if any(job.in_transaction for job in batch):
                self._write_batch(tx, batch)
        except Exception as error:  # noqa: BLE001  # each waiting caller gets it
            for job in batch:
                job.error = job.error or self._translated(error)
            if tx is not None and tx.in_transaction:  # not even the rollback went through
                tx.connection.close()
                tx = None
        _deliver(batch)
        return tx, stop

    def _next_batch(self) -> tuple[list[_Write], bool]:
        """Returns the writes that wait by now, at least one, and whether to stop after them."""
        batch: list[_Write] = []
        job = self._writes.get()
        while True:
            if job is None:
                return batch, True
            if not job.future.cancelled():
                batch.append(job)
            if len(batch) == _LARGEST_BATCH or self._writes.empty():  # nobody else takes any
                return batch, False
            job = self._writes.get()

    def _open(self) -> SqliteTransaction:
        connection = self._engine.connect()
        try:
            tx = SqliteTransaction(connection, self._statements)
            if not self._prepared and not migrations.is_prepared(connection):
                tx.execute("BEGIN IMMEDIATE")
                migrations.prepare(connection)
                tx.execute("COMMIT")
            self._prepared = True
        except BaseException:
            connection.close()
            raise
        return tx

    def _write_batch(self, tx: SqliteTransaction, batch: list[_Write]) -> None:
        """Runs the writes in one transaction; a failing one is undone alone.

        Takes those out of the batch whose callers are gone before their turn has come.
        """
        tx.execute("BEGIN IMMEDIATE")
        try:
            # Who was cancelled while another process held the lock has nothing begun yet.
            batch[:] = [job for job in batch if not job.future.cancelled()]
            jobs = [job for job in batch if job.in_transaction]
            if len(jobs) == 1:
                jobs[0].result = jobs[0].work(tx)
            else:
                for job in jobs:
                    self._write_beside(tx, job)
            self._commit(tx)
        except BaseException:
            if tx.in_transaction:
                tx.execute("ROLLBACK")
            raise

    def _write_beside(self, tx: SqliteTransaction, job: _Write) -> None:
        tx.execute("SAVEPOINT job")
        try:
            job.result = job.work(tx)
        except Exception as error:
            if not tx.in_transaction:  # SQLite gave the whole up: disk full, I/O error
                raise
            tx.execute("ROLLBACK TO job")
            job.error = self._translated(error)
        tx.execute("RELEASE job")

    def _do_maintenance(self, tx: SqliteTransaction, batch: list[_Write]) -> None:
        """Runs what goes outside of transactions."""
        for job in batch:
            if job.in_transaction:
                continue
            try:
                job.result = job.work(tx)
            except Exception as error:  # noqa: BLE001  # its caller gets it, and nobody else
                job.error = self._translated(error)

    def _commit(self, tx: SqliteTransaction) -> None:
        try:
            tx.execute("COMMIT")
        except self._sqlite.OperationalError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_IOERR_FSYNC:
                # It stands in the WAL, and whoever opens the file after a crash may find it there.
                raise CommitUnknownError(
                    "The disk did not confirm a COMMIT; load the session and look."
                ) from error
            raise

    def _translated(self, error: BaseException) -> BaseException:
        """Returns the error of ours that says what a driver's means; others as they are."""
        cause = error.orig if isinstance(error, DBAPIError) else error
        if not isinstance(cause, self._sqlite.Error):
            return error
        unavailable = isinstance(cause, self._sqlite.OperationalError)
        kind = StoreUnavailableError if unavailable else StoreError
        translation = kind(f"SQLite says: {cause}; nothing was written.")
        translation.__cause__ = error
        return translation


def _empty_wal(tx: SqliteTransaction) -> bool:
    (patience,) = tx.execute("PRAGMA busy_timeout").fetchone()
    tx.execute("PRAGMA busy_timeout=0").fetchall()
    try:
        # A reader that is in the way shows in the row; SQLite raises nothing.
        is_busy, _frames, _moved = tx.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    finally:
        tx.execute(f"PRAGMA busy_timeout={patience}").fetchall()
    return not is_busy


def _deliver(batch: list[_Write]) -> None:
    """Hands the outcomes over, with one wake-up for each event loop that waits."""
    for loop in {job.loop for job in batch}:
        jobs = [job for job in batch if job.loop is loop]
        try:
            loop.call_soon_threadsafe(_deliver_in_loop, jobs)
        except RuntimeError:  # the loop was closed; nobody waits there any more
            continue


def _deliver_in_loop(jobs: list[_Write]) -> None:
    for job in jobs:
        job.deliver()
