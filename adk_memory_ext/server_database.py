"""PostgreSQL, MySQL and MariaDB: the same functions, run through `AsyncConnection.run_sync`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sqlalchemy.exc import DBAPIError, IntegrityError, InterfaceError, OperationalError
from sqlalchemy.ext.asyncio import create_async_engine

from adk_memory_ext import migrations
from adk_memory_ext.errors import CommitUnknownError, StoreError, StoreUnavailableError
from adk_memory_ext.statements import Transaction, compile_statements

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from sqlalchemy.engine import URL, Connection
    from sqlalchemy.ext.asyncio import AsyncConnection

    from adk_memory_ext.database import DatabaseOptions

T = TypeVar("T")

_PAUSES: Final = (0.002, 0.004, 0.008, 0.016, 0.032)
"""Seconds before a transaction is tried again that lost against another one (deadlock,
serialization, two inserts of one row)."""
_RETRY_CODES: Final = frozenset({"40001", "40P01", "1213", "1205", "1020"})


class ServerDatabase:
    """A database behind a network connection; connects at the first use."""

    def __init__(self, url: URL, options: DatabaseOptions) -> None:
        is_postgresql = url.get_backend_name() == "postgresql"
        # JSON goes in and out as text, which is where every other database has it.
        as_text = {"json_serializer": str, "json_deserializer": str} if is_postgresql else {}
        self._engine = create_async_engine(
            url,
            **as_text,
            pool_size=options.pool_size,
            max_overflow=options.max_overflow,
            pool_timeout=options.pool_timeout.total_seconds(),
            connect_args=options.connect_arguments(url.get_backend_name()),
        )
        self._statements = compile_statements(self._engine.dialect)
        self._prepared = False
        self._preparing = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()

    async def write(
        self, work: Callable[[Transaction], T], then: Callable[[T], None] | None = None
    ) -> T:
        """Runs `work` in a transaction and returns its result after the commit.

        A cancelled caller leaves all of it or nothing: the work goes on to its end.

        Raises:
            StoreUnavailableError: When the server cannot be reached. Nothing was written.
            CommitUnknownError: When the connection broke during COMMIT.
        """
        return await self._shielded(self._write(work, then))

    async def read(self, work: Callable[[Transaction], T]) -> T:
        """Runs `work` over one moment of the database and returns its result."""
        await self._prepare()
        try:
            return await self._attempt(work, isolation_level="REPEATABLE READ")
        except (DBAPIError, OSError) as error:
            raise _translated(error) from error

    async def close(self) -> None:
        """Waits for writes under way and closes the connections. May be called twice."""
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._engine.dispose()

    async def _shielded(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    async def _write(self, work: Callable[[Transaction], T], then: Callable[[T], None] | None) -> T:
        await self._prepare()
        for pause in (*_PAUSES, None):
            try:
                result = await self._attempt(work)
                break
            except (DBAPIError, OSError) as error:
                if pause is None or not _is_lost_race(error):
                    raise _translated(error) from error
                await asyncio.sleep(pause)
        if then is not None:
            then(result)
        return result

    async def _attempt(
        self, work: Callable[[Transaction], T], isolation_level: str | None = None
    ) -> T:
        connection: AsyncConnection
        async with self._engine.connect() as connection:
            if isolation_level is not None:
                await connection.execution_options(isolation_level=isolation_level)
            result = await connection.run_sync(self._work, work)
            try:
                await connection.commit()
            except DBAPIError as error:
                if error.connection_invalidated:
                    raise CommitUnknownError(
                        "The connection broke during COMMIT; load the session and look."
                    ) from error
                raise
            return result

    def _work(self, connection: Connection, work: Callable[[Transaction], T]) -> T:
        return work(Transaction(connection, self._statements))

    async def _prepare(self) -> None:
        """Brings the tables up to date, once."""
        if self._prepared:
            return
        async with self._preparing:
            try:
                await self._prepare_tables()
            except (DBAPIError, OSError) as error:
                raise _translated(error) from error
            self._prepared = True

    async def _prepare_tables(self) -> None:
        async with self._engine.connect() as connection:
            if await connection.run_sync(migrations.is_prepared):
                return
        async with self._engine.begin() as connection:
            try:
                await connection.run_sync(migrations.prepare)
            finally:
                await connection.run_sync(migrations.unlock)


def _is_lost_race(error: Exception) -> bool:
    if isinstance(error, IntegrityError):
        return True
    if not isinstance(error, DBAPIError) or error.orig is None:
        return False
    code = getattr(error.orig, "sqlstate", None) or (error.orig.args or ("",))[0]
    return str(code) in _RETRY_CODES


def _translated(error: Exception) -> Exception:
    """Returns the error of ours that says what a driver's error means."""
    name = type(getattr(error, "orig", None) or error).__name__
    if isinstance(error, (OperationalError, InterfaceError, OSError)):
        return StoreUnavailableError(f"The database did not answer ({name}); nothing was written.")
    return StoreError(f"The database refused ({name}); nothing was written.")
