"""Database servers on loopback: an empty database for each test, and who is still connected.

Everything here is synchronous and may be called from a fixture, a test or a running event loop.
"""

from __future__ import annotations

import asyncio
import functools
import os
import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pytest
import redis
from sqlalchemy import make_url, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy.ext.asyncio import AsyncEngine

HANG_SECONDS: Final = 60
"""After this a wait is a failure. It only bounds a hang; no result depends on it."""


@dataclass(frozen=True, kw_only=True)
class SqlServer:
    """A server on which each pytest worker has a database of its own.

    `{name}` stands for the database's name.
    """

    label: str
    variable: str
    """The environment variable that names another server."""
    default_url: str
    create: str
    drop: str
    clear: tuple[str, ...]
    """Leaves the database as new."""
    connections: str
    """Counts the other connections to the database."""
    tables: str
    """Lists the names of the tables."""
    rows: str
    """Reads the table `name`."""

    @property
    def url(self) -> str:
        """Of a database in which the server can be asked to make another one."""
        return os.environ.get(self.variable, self.default_url)

    @contextmanager
    def database(self) -> Iterator[str]:
        """Makes a database, gives its URL and drops it again."""
        name = f"memext_{worker()}_{secrets.token_hex(4)}"
        try:
            execute(self.url, self.create.format(name=name))
        except (OSError, SQLAlchemyError) as error:
            absent(f"{self.label} ({self.variable})", error)
        yield make_url(self.url).set(database=name).render_as_string(hide_password=False)
        execute(self.url, self.drop.format(name=name))

    def empty(self, url: str) -> None:
        """Drops everything in the database at `url`."""
        name = make_url(url).database
        execute(url, *(statement.format(name=name) for statement in self.clear))

    def text(self, url: str) -> bytes:
        """Returns every row of every table of the database as text."""
        tables = [name for (name,) in execute(url, self.tables)]
        rows = [row for name in tables for row in execute(url, self.rows.format(name=name))]
        return "\n".join(str(value) for row in rows for value in row).encode()

    def wait_until_unused(self, url: str) -> None:
        """Fails the test if a connection to the database stays open."""
        deadline = time.monotonic() + HANG_SECONDS
        while (left := execute(url, self.connections)[0][0]) and time.monotonic() < deadline:
            time.sleep(0.01)  # a server notices a closed connection a little later
        if left:
            pytest.fail(f"{left} connection(s) to {self.label} were left open")


POSTGRESQL: Final = SqlServer(
    label="PostgreSQL",
    variable="ADK_MEMORY_TEST_POSTGRESQL",
    default_url="postgresql+asyncpg://postgres@127.0.0.1:5432/postgres",
    create='CREATE DATABASE "{name}"',
    drop='DROP DATABASE "{name}" WITH (FORCE)',
    # A transaction that somebody left open shows as an error here, not as a test that hangs.
    clear=("SET lock_timeout = '10s'", "DROP SCHEMA public CASCADE", "CREATE SCHEMA public"),
    connections="SELECT count(*) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid()",
    tables="SELECT tablename FROM pg_tables WHERE schemaname = 'public'",
    rows='SELECT t::text FROM "{name}" AS t',
)

MARIADB: Final = SqlServer(
    label="MariaDB",
    variable="ADK_MEMORY_TEST_MARIADB",
    default_url="mariadb+aiomysql://root@127.0.0.1:3306/mysql",
    create="CREATE DATABASE `{name}` CHARACTER SET utf8mb4",
    drop="DROP DATABASE IF EXISTS `{name}`",
    clear=("SET lock_wait_timeout = 10", "DROP DATABASE `{name}`", "CREATE DATABASE `{name}`"),
    connections="SELECT count(*) FROM information_schema.processlist"
    " WHERE db = DATABASE() AND id <> CONNECTION_ID()",
    tables="SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE()",
    rows="SELECT * FROM `{name}`",
)

SERVERS: Final = {"postgresql": POSTGRESQL, "mariadb": MARIADB}

_REDIS_VARIABLE: Final = "ADK_MEMORY_TEST_REDIS"
_REDIS_URL: Final = "redis://127.0.0.1:6379/0"


def worker() -> str:
    """Returns the id of this pytest-xdist worker; `main` without xdist."""
    return os.environ.get("PYTEST_XDIST_WORKER", "main")


def absent(what: str, error: Exception) -> None:
    """Skips the test for want of a server; on a CI machine (`CI=true`) fails it."""
    message = f"{what} cannot be reached ({type(error).__name__})"
    if os.environ.get("CI") == "true":
        pytest.fail(message)
    pytest.skip(message)


def execute(url: str, *statements: str) -> list[Any]:
    """Runs the statements, each committed by itself, and returns the rows of the last one."""
    with ThreadPoolExecutor(1) as thread:  # the caller may be inside an event loop
        return thread.submit(asyncio.run, _execute(url, statements)).result()


async def _execute(url: str, statements: tuple[str, ...]) -> list[Any]:
    rows: list[Any] = []
    async with asyncio.timeout(HANG_SECONDS), _engine(url).connect() as connection:
        for statement in statements:
            result = await connection.execute(text(statement))
            rows = list(result.all()) if result.returns_rows else []
    return rows


@functools.cache
def _engine(url: str) -> AsyncEngine:
    return create_async_engine(url, isolation_level="AUTOCOMMIT", poolclass=NullPool)


def redis_url() -> str:
    """Returns the URL of the Redis server, skipping the test if there is none."""
    url = os.environ.get(_REDIS_VARIABLE, _REDIS_URL)
    try:
        with redis.Redis.from_url(url) as client:
            client.ping()
    except (OSError, redis.RedisError) as error:
        absent(f"Redis ({_REDIS_VARIABLE})", error)
    return url


def redis_text(url: str, prefix: str) -> bytes:
    """Returns every key that begins with `prefix` and what stands under it."""
    with redis.Redis.from_url(url) as client:
        keys = list(client.scan_iter(f"{prefix}*"))
        return b"\n".join(part for key in keys for part in (key, client.get(key) or b""))


@contextmanager
def redis_keys(url: str) -> Iterator[str]:
    """Gives a prefix that nobody else uses and deletes every key that begins with it."""
    prefix = f"memext-test:{worker()}:{secrets.token_hex(8)}:"
    yield prefix
    with redis.Redis.from_url(url) as client:
        for key in client.scan_iter(f"{prefix}*"):
            client.delete(key)
