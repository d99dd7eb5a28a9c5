"""Backends: how each session service under test is opened, and what it can do.

A test takes the fixtures `backend` (a row of this module), `place` (where it keeps its data) and
`sessions` (the row, opened there); see `conftest.py`. A further service is one more row.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import redis.asyncio
from google.adk.integrations.redis import RedisSessionService, RedisSessionServiceConfig
from google.adk.sessions.database_session_service import DatabaseSessionService
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google.adk.sessions.sqlite_session_service import SqliteSessionService

from adk_memory_ext.service import DurableSessionService
from servers import SERVERS, redis_text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    from google.adk.sessions.base_session_service import BaseSessionService

    _Opening: TypeAlias = Callable[["Place"], AbstractAsyncContextManager[BaseSessionService]]

Storage: TypeAlias = Literal["memory", "sqlite", "postgresql", "mariadb", "redis"]

SOAK: Final = os.environ.get("SOAK") == "1"
"""Whether randomised and repeated tests run their full counts (`make soak`)."""


def count(normal: int, soak: int) -> int:
    """Returns how often to repeat something: `soak` under `make soak`, else `normal`."""
    return soak if SOAK else normal


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where one test keeps its data; empty when the test begins."""

    folder: Path
    """For files; a SQLite database is `sessions.db` in it."""
    url: str = ""
    """Of the database; empty for memory."""
    key_prefix: str = ""
    """Redis: what every key of this test begins with."""


@dataclass(frozen=True, kw_only=True)
class Backend:
    """A session service: how it is opened at a place, and what it claims.

    What a row claims is tested; what it does not claim is left alone.
    """

    name: str
    storage: Storage
    open: _Opening
    """Opens an instance; several may be open at one place at once, also in several processes."""
    refuses_stale: bool = True
    """An append on a session that somebody else has appended to since is a StaleSessionError."""
    keeps_append_order: bool = True
    """What was appended last is read last, whatever the events' times are."""
    keeps_parallel_appends: bool = False
    """Appends to several sessions at once lose no `user:` and no `app:` key."""
    keeps_parallel_creates: bool = False
    """Sessions created at once lose no `user:` and no `app:` key."""
    erases: bool = False
    """It has `sessions.erasure`."""

    @property
    def durable(self) -> bool:
        """Whether another instance, in this process or in another one, sees what was stored."""
        return self.storage != "memory"

    def stored_bytes(self, place: Place) -> bytes:
        """Returns everything that the backend has stored at `place`, deleted rows and all.

        From a server only the live rows can be asked for.
        """
        if self.storage == "sqlite":
            # From another process: closing a file of the database drops this process's locks on it.
            # Not the folder of the turns' locks, whose files are empty.
            files = sorted(p for p in place.folder.glob("sessions.db*") if p.is_file())
            return subprocess.run(["cat", *files], check=True, capture_output=True).stdout
        if self.storage == "redis":
            return redis_text(place.url, place.key_prefix)
        return SERVERS[self.storage].text(place.url)


def open_files(folder: Path) -> list[str]:
    """Returns the files in `folder` that this process has open; none where there is no /proc."""
    paths = []
    for descriptor in Path("/proc/self/fd").glob("*"):
        try:
            paths.append(str(descriptor.readlink()))
        except FileNotFoundError:  # the descriptor of this very listing
            continue
    return sorted(path for path in paths if path.startswith(f"{folder}/"))


@asynccontextmanager
async def _in_memory(_place: Place) -> AsyncIterator[BaseSessionService]:
    yield InMemorySessionService()


@asynccontextmanager
async def _sqlite(place: Place) -> AsyncIterator[BaseSessionService]:
    service = SqliteSessionService(place.url)
    try:
        yield service
    finally:
        await service.close()


@asynccontextmanager
async def _database(place: Place) -> AsyncIterator[BaseSessionService]:
    async with DatabaseSessionService(place.url) as service:
        yield service


@asynccontextmanager
async def _redis(place: Place) -> AsyncIterator[BaseSessionService]:
    config = RedisSessionServiceConfig(key_prefix=place.key_prefix)
    async with redis.asyncio.Redis.from_url(place.url, decode_responses=True) as client:
        yield RedisSessionService(config, client)


@asynccontextmanager
async def _from_url(place: Place) -> AsyncIterator[BaseSessionService]:
    # A server takes some 100 connections, and other tests run beside this one.
    async with DurableSessionService.from_url(place.url, pool_size=4, max_overflow=4) as service:
        yield service


def wrapped(bare: Backend) -> Backend:
    """Returns `DurableSessionService` over a bare service."""

    @asynccontextmanager
    async def opening(place: Place) -> AsyncIterator[BaseSessionService]:
        async with bare.open(place) as service, DurableSessionService(service) as durable:
            yield durable

    name = f"durable-{bare.name}"
    return replace(bare, name=name, open=opening, keeps_append_order=True, erases=True)


IN_MEMORY: Final = Backend(name="in_memory", storage="memory", open=_in_memory, refuses_stale=False)
SQLITE: Final = Backend(name="sqlite", storage="sqlite", open=_sqlite, keeps_append_order=False)
DATABASE_SQLITE: Final = Backend(
    name="database-sqlite", storage="sqlite", open=_database, keeps_append_order=False
)
DATABASE_POSTGRESQL: Final = Backend(
    name="database-postgresql", storage="postgresql", open=_database, keeps_append_order=False
)
REDIS: Final = Backend(name="redis", storage="redis", open=_redis, refuses_stale=False)

BARE: Final = (IN_MEMORY, SQLITE, DATABASE_SQLITE, DATABASE_POSTGRESQL, REDIS)
"""ADK's own services, as they come."""

WRAPPED: Final = tuple(wrapped(bare) for bare in BARE)
"""`DurableSessionService` over each of them."""

_OURS: Final = Backend(
    name="ours",
    storage="memory",
    open=_from_url,
    keeps_parallel_appends=True,
    keeps_parallel_creates=True,
    erases=True,
)

OURS: Final = (
    replace(_OURS, name="ours-sqlite", storage="sqlite"),
    replace(_OURS, name="ours-memory", storage="memory"),
    replace(_OURS, name="ours-postgresql", storage="postgresql"),
)
"""`DurableSessionService.from_url`: what an application uses."""

OURS_MARIADB: Final = replace(_OURS, name="ours-mariadb", storage="mariadb")
"""The same on MariaDB."""
