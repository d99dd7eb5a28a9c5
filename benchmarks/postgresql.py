"""A PostgreSQL server: databases of our own on it, and what it is."""

from __future__ import annotations

import os
import secrets
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from sqlalchemy import make_url, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

DEFAULT_URL: Final = "postgresql+asyncpg://postgres@127.0.0.1:5432/postgres"
VARIABLE: Final = "ADK_MEMORY_TEST_POSTGRESQL"
"""The environment variable that names another server, as for the tests."""


def server_url() -> str:
    """Returns the URL at which the server can be asked to make a database."""
    return os.environ.get(VARIABLE, DEFAULT_URL)


async def server_version(url: str) -> str:
    """Returns the server's version; empty when it cannot be reached."""
    try:
        return str(await _execute(url, "SHOW server_version"))
    except (OSError, SQLAlchemyError):
        return ""


@asynccontextmanager
async def databases(url: str) -> AsyncIterator[Callable[[str], str]]:
    """Yields a function that returns the URL of the contender's empty database; drops them all."""
    prefix = f"memext_bench_{secrets.token_hex(4)}"
    names = {"adk": f"{prefix}_adk", "ours": f"{prefix}_ours"}
    try:
        for name in names.values():
            await _execute(url, f'CREATE DATABASE "{name}"')
        yield (
            lambda contender: (
                make_url(url).set(database=names[contender]).render_as_string(hide_password=False)
            )
        )
    finally:
        for name in names.values():
            await _execute(url, f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


async def _execute(url: str, statement: str) -> object:
    """Runs one statement and returns the first value of its first row, if it has one."""
    engine = create_async_engine(url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
    async with engine.connect() as connection:
        result = await connection.execute(text(statement))
        return result.scalar() if result.returns_rows else None
