"""Locks of turns that other processes see, and that die with the process that holds them."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from adk_memory_ext.errors import StoreUnavailableError
from adk_memory_ext.per_loop import PerLoop, of_this_loop

if sys.platform != "win32":
    import fcntl

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy.engine import URL
    from sqlalchemy.ext.asyncio import AsyncConnection

    from adk_memory_ext.records import SessionId


def _digest(session: SessionId) -> bytes:
    """Returns a short name for a session that says nothing of who it belongs to."""
    parts = (session.app_name, session.user_id, session.session_id)
    # Lengths first, so that ids that run into each other differ.
    text_form = "".join(f"{len(part)}:{part}" for part in parts)
    # Foreign services take ids that no text can be made of.
    return hashlib.sha256(text_form.encode("utf-8", "surrogatepass")).digest()


class FileTurnLocks:
    """Locks files in a folder beside the database; the system unlocks them when a process ends.

    A file lives as long as its lock, so that the folder is empty when nothing runs. On Windows
    there are no such locks, and turns queue within a process only.

    Args:
        database: The path of the database file.
    """

    def __init__(self, database: Path) -> None:
        path = database.resolve()
        self._folder: Final = path.with_name(path.name + "-turns")

    async def try_lock(self, session: SessionId) -> FileTurnLock | None:
        """Returns the lock, or None while another one, here or in another process, is held.

        Raises:
            StoreUnavailableError: When the folder cannot be written.
        """
        path = self._folder / _digest(session).hex()[:40]
        try:
            return self._try_lock(path)
        except OSError as error:
            raise StoreUnavailableError(
                f"The folder {str(self._folder)!r} cannot be written ({error.strerror});"
                " turns are locked there."
            ) from error

    def _try_lock(self, path: Path) -> FileTurnLock | None:
        while True:
            try:
                file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            except FileNotFoundError:
                self._folder.mkdir(mode=0o700, exist_ok=True)
                continue
            try:
                if sys.platform != "win32":
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_same_file(file, path):
                    return FileTurnLock(path, file)
            except BlockingIOError:
                os.close(file)
                return None
            except BaseException:
                os.close(file)
                raise
            os.close(file)  # its last holder removed it meanwhile

    async def close(self) -> None:
        """Removes the folder if nothing runs."""
        with contextlib.suppress(OSError):
            self._folder.rmdir()


def _is_same_file(file: int, path: Path) -> bool:
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    here = os.fstat(file)
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)


class FileTurnLock:
    """One locked file."""

    def __init__(self, path: Path, file: int) -> None:
        self._path = path
        self._file = file

    def release(self) -> None:
        """Removes the file and closes it, which unlocks it."""
        with contextlib.suppress(OSError):
            self._path.unlink()
        os.close(self._file)


@dataclass(slots=True)
class _Line:
    """The connection to a server that holds the locks of one event loop."""

    one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)
    connection: AsyncConnection | None = None

    async def close(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            await connection.close()


class AdvisoryTurnLocks:
    """Holds the advisory locks of a server in one connection a loop; they end with it.

    Args:
        url: The server.
        connect_arguments: What its driver is given at a connect.
    """

    def __init__(self, url: URL, connect_arguments: dict[str, Any]) -> None:
        # Beside the pool, whose last connection it might take else.
        self._engine = create_async_engine(
            url, poolclass=NullPool, isolation_level="AUTOCOMMIT", connect_args=connect_arguments
        )
        self._is_postgresql: Final = url.get_backend_name() == "postgresql"
        lock, unlock = (
            ("SELECT pg_try_advisory_lock(:name)", "SELECT pg_advisory_unlock(:name)")
            if self._is_postgresql
            else ("SELECT GET_LOCK(:name, 0)", "SELECT RELEASE_LOCK(:name)")
        )
        self._lock_sql: Final = text(lock)
        self._unlock_sql: Final = text(unlock)
        self._lines: Final = PerLoop(_Line, _Line.close)
        self._releases: set[asyncio.Task[Any]] = set()
        self._closed = False

    def _name(self, session: SessionId) -> int | str:
        digest = _digest(session)
        if self._is_postgresql:
            return int.from_bytes(digest[:8], "big", signed=True)
        return "memext_" + digest.hex()[:40]

    async def try_lock(self, session: SessionId) -> AdvisoryTurnLock | None:
        """Returns the lock, or None while somebody else holds it.

        Raises:
            StoreUnavailableError: When the server cannot be reached.
        """
        name = self._name(session)
        # In a task of its own: cancelling a statement would close the connection of all locks.
        attempt = asyncio.ensure_future(self._run(self._lock_sql, name))
        try:
            is_locked = await asyncio.shield(attempt)
        except asyncio.CancelledError:
            attempt.add_done_callback(lambda done: self._give_back(done, name))
            raise
        return AdvisoryTurnLock(self, name) if is_locked else None

    def release(self, name: int | str) -> None:
        """Gives a lock up, a moment later."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return  # the loop of the connection has ended, and with it the lock
        if self._closed:
            return
        task = loop.create_task(self._unlock(name))
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)

    async def close(self) -> None:
        """Gives everything up by closing the connection."""
        self._closed = True
        if releases := of_this_loop(self._releases):
            await asyncio.wait(releases)
        await self._lines.close()
        await self._engine.dispose()

    def _give_back(self, attempt: asyncio.Task[bool], name: int | str) -> None:
        """Gives up a lock that nobody waits for any more."""
        if not attempt.cancelled() and attempt.exception() is None and attempt.result():
            self.release(name)

    async def _unlock(self, name: int | str) -> None:
        with contextlib.suppress(StoreUnavailableError):
            await self._run(self._unlock_sql, name)

    async def _run(self, sql: Any, name: int | str) -> bool:
        line = await self._lines.here()
        async with line.one_at_a_time:
            if self._closed:
                raise StoreUnavailableError("The service is closed; nothing was written.")
            try:
                if line.connection is None or line.connection.invalidated:
                    line.connection = await self._engine.connect()
                result = await line.connection.execute(sql, {"name": name})
                return bool(result.scalar())
            except (DBAPIError, OSError) as error:
                with contextlib.suppress(DBAPIError, OSError):
                    await line.close()
                raise StoreUnavailableError(
                    f"The database did not answer ({type(error).__name__}); no turn was taken."
                ) from error


class AdvisoryTurnLock:
    """One advisory lock."""

    def __init__(self, locks: AdvisoryTurnLocks, name: int | str) -> None:
        self._locks = locks
        self._name = name
        self._loop = asyncio.get_running_loop()

    def release(self) -> None:
        """Gives the lock up, a moment later; a loop that was closed takes it along."""
        if not self._loop.is_closed():
            self._locks.release(self._name)
