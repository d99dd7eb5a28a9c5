"""PostgreSQL, MySQL and MariaDB: the same functions, run through `AsyncConnection.run_sync`."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from adk_memory_ext import migrations
from adk_memory_ext.errors import CommitUnknownError, StoreError, StoreUnavailableError
from adk_memory_ext.keyed_locks import KeyedLocks
from adk_memory_ext.per_loop import PerLoop, of_this_loop
from adk_memory_ext.statements import Transaction, compile_statements
from adk_memory_ext.turn_locks import AdvisoryTurnLocks

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from sqlalchemy.engine import URL, Connection
    from sqlalchemy.ext.asyncio import AsyncConnection

    from adk_memory_ext.database import DatabaseOptions

T = TypeVar("T")

_PAUSES: Final = (0.002, 0.004, 0.008, 0.016, 0.032)
"""Seconds before a transaction is tried again that lost against another one."""
_LOST_RACES: Final = frozenset(
    {
        *("40001", "40P01", "1213", "1020"),  # serialization, deadlock; two inserts of one row
        *("42P07", "42710", "1050", "1061"),  # plain ADK made the same table or index meanwhile
    }
)
_NEXT_READS_ONE_MOMENT: Final = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"
_UNAVAILABLE: Final = ("08", "53", "57", "55P03", "25006")
"""SQLSTATEs and their classes: connection, resources, intervention, lock, read-only server."""


class ServerDatabase:
    """A database behind a network connection; connects at the first use."""

    file: Final = None
    is_server: Final = True

    def __init__(self, url: URL, options: DatabaseOptions) -> None:
        self.is_postgresql: Final = url.get_backend_name() == "postgresql"
        # JSON goes in and out as text, which is where every other database has it.
        as_text = {"json_serializer": str, "json_deserializer": str} if self.is_postgresql else {}
        open_engine = partial(
            create_async_engine,
            url,
            **as_text,
            # Whoever waited for a row lock must see what the one before it wrote.
            isolation_level="READ COMMITTED",
            pool_size=options.pool_size,
            max_overflow=options.max_overflow,
            pool_timeout=options.pool_timeout.total_seconds(),
            connect_args=options.connect_arguments(url.get_backend_name()),
        )
        self._engines: Final = PerLoop(open_engine, AsyncEngine.dispose)
        self._statements = compile_statements(open_engine().dialect)
        self._prepared = False
        self._preparing: Final[KeyedLocks[None]] = KeyedLocks()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False
        self.turn_locks: Final = AdvisoryTurnLocks(
            url, options.connect_arguments(url.get_backend_name())
        )

    async def write(
        self, work: Callable[[Transaction], T], then: Callable[[T], None] | None = None
    ) -> T:
        """Runs `work` in a transaction and returns its result after the commit.

        A cancelled caller leaves all of it or nothing: the work goes on to its end.

        Raises:
            StoreUnavailableError: When the server cannot be reached. Nothing was written.
            CommitUnknownError: When the connection broke during COMMIT.
        """
        return await asyncio.shield(self._begin(self._write(work, then)))

    async def read(self, work: Callable[[Transaction], T]) -> T:
        """Runs `work` over one moment of the database and returns its result."""
        return await self._begin(self._read(work))

    async def empty_wal(self) -> bool:
        """Does nothing: a server looks after its own log."""
        return True

    async def run_alone(self, *statements: str) -> None:
        """Runs statements that must stand outside of transactions, one after the other.

        Raises:
            StoreError: When one failed; those before it were done.
        """
        await asyncio.shield(self._begin(self._run_alone(statements)))

    async def _run_alone(self, statements: tuple[str, ...]) -> None:
        engine = await self._engines.here()
        try:
            async with engine.connect() as connection:
                alone = await connection.execution_options(isolation_level="AUTOCOMMIT")
                try:
                    for statement in statements:
                        await alone.exec_driver_sql(statement)
                finally:
                    await connection.invalidate()  # with whatever was set in it
        except (DBAPIError, PoolTimeoutError, OSError) as error:
            raise _translated(error) from error

    async def settle(self) -> None:
        """Returns when what was begun before has ended, also what cancelled callers left."""
        if tasks := of_this_loop(self._tasks):
            await asyncio.wait(tasks)

    async def close(self) -> None:
        """Waits for what is under way and closes the connections. May be called twice."""
        self._closed = True
        while tasks := of_this_loop(self._tasks):  # one may begin another
            await asyncio.wait(tasks)
        await self.turn_locks.close()
        await self._engines.close()

    def _begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Starts the task of one operation."""
        if self._closed:
            work.close()
            raise StoreUnavailableError("The service is closed; nothing was written.")
        return self._started(work)

    def _started(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Starts a task that `close` waits for."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # seen, also where the caller was cancelled and nobody asks

    async def _write(self, work: Callable[[Transaction], T], then: Callable[[T], None] | None) -> T:
        await self._prepare()
        result = await _repeated(lambda: self._attempt(work))
        if then is not None:
            then(result)
        return result

    async def _read(self, work: Callable[[Transaction], T]) -> T:
        await self._prepare()
        return await _repeated(lambda: self._look(work))

    async def _attempt(self, work: Callable[[Transaction], T]) -> T:
        connection: AsyncConnection
        engine = await self._engines.here()
        async with engine.connect() as connection:
            result = await connection.run_sync(self._work, work)
            try:
                await connection.commit()
            except (DBAPIError, OSError) as error:
                if isinstance(error, DBAPIError) and not error.connection_invalidated:
                    raise  # the server said no
                raise CommitUnknownError(
                    "The connection broke during COMMIT; load the session and look."
                ) from error
            return result

    async def _look(self, work: Callable[[Transaction], T]) -> T:
        connection: AsyncConnection
        engine = await self._engines.here()
        async with engine.connect() as connection:
            if self.is_postgresql:  # which says it at the next BEGIN
                await connection.execution_options(isolation_level="REPEATABLE READ")
            else:  # SQLAlchemy sends a statement at once, and its error as the driver's own
                await connection.exec_driver_sql(_NEXT_READS_ONE_MOMENT)
            return await connection.run_sync(self._work, work)

    def _work(self, connection: Connection, work: Callable[[Transaction], T]) -> T:
        return work(Transaction(connection, self._statements))

    async def _prepare(self) -> None:
        """Brings the tables up to date, once; goes on to its end when the caller is cancelled."""
        if self._prepared:
            return
        await self._preparing.acquire(None)
        try:
            if not self._prepared:
                await asyncio.shield(self._started(_repeated(self._prepare_tables)))
        finally:
            self._preparing.release(None)

    async def _prepare_tables(self) -> None:
        engine = await self._engines.here()
        async with engine.connect() as connection:
            is_prepared = await connection.run_sync(migrations.is_prepared)
        if not is_prepared:
            async with engine.begin() as connection:
                try:
                    await connection.run_sync(migrations.prepare)
                finally:
                    if not connection.invalidated:  # else the server has freed the lock itself
                        await connection.run_sync(migrations.unlock)
        self._prepared = True


async def _repeated(attempt: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Runs a transaction, and again if it lost a race or its connection was dead.

    Before COMMIT nothing is written, so that running it again does no harm. A dead connection is
    replaced once: what waits in a pool for hours is cut by the network or by a restarted server.

    Raises:
        StoreError: What the driver's error means.
    """
    pauses = iter(_PAUSES)
    was_dead = False
    while True:
        try:
            return await attempt()
        except (DBAPIError, PoolTimeoutError, OSError) as error:
            if _is_dead(error) and not was_dead:
                was_dead = True
                continue
            pause = next(pauses, None) if _is_lost_race(error) else None
            if pause is None:
                raise _translated(error) from error
        await asyncio.sleep(pause)


def _is_dead(error: Exception) -> bool:
    return isinstance(error, DBAPIError) and error.connection_invalidated


def _is_lost_race(error: Exception) -> bool:
    return isinstance(error, IntegrityError) or _code(error) in _LOST_RACES


def _code(error: Exception) -> str:
    """Returns PostgreSQL's SQLSTATE or MySQL's number; empty when the error has none."""
    cause = getattr(error, "orig", None)
    if cause is None:
        return ""
    return str(getattr(cause, "sqlstate", None) or (cause.args or ("",))[0])


def _translated(error: Exception) -> StoreError:
    """Returns the error of ours that says what a driver's error means."""
    cause: BaseException = getattr(error, "orig", None) or error
    while cause.__cause__ is not None:  # SQLAlchemy's names for asyncpg's errors say less
        cause = cause.__cause__
    name = type(cause).__name__
    if (
        isinstance(error, OperationalError | PoolTimeoutError | OSError)
        or _is_dead(error)
        or _code(error).startswith(_UNAVAILABLE)
    ):
        return StoreUnavailableError(f"The database did not answer ({name}); nothing was written.")
    return StoreError(f"The database refused ({name}); nothing was written.")
