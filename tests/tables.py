"""What stands in a database: its tables as they are described, and every row of them.

For SQLite, PostgreSQL and MariaDB alike. Everything here is synchronous and may be called from a
fixture, a test or a running event loop.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sqlalchemy import inspect, make_url, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from servers import HANG_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest
    from sqlalchemy.engine import Connection

T = TypeVar("T")

STORAGES: Final = ("sqlite", "postgresql", "mariadb")
"""Where ADK's `DatabaseSessionService` and ours meet."""


def file_url(folder: Path) -> str:
    """Returns the URL of a SQLite file, which plain ADK takes as well as we do."""
    return f"sqlite+aiosqlite:///{folder}/sessions.db"


def url_of(storage: str, request: pytest.FixtureRequest, folder: Path) -> str:
    """Returns the URL of an empty database, which plain ADK takes as well as we do.

    MariaDB goes by the name of MySQL: under its own name ADK keeps whole seconds only and refuses
    its own appends (google-adk 2.13.0).
    """
    if storage == "sqlite":
        return file_url(folder)
    url: str = request.getfixturevalue(f"{storage}_url")
    parsed = make_url(url)
    if parsed.drivername.startswith("mariadb"):
        parsed = parsed.set(drivername=parsed.drivername.replace("mariadb", "mysql"))
    return parsed.render_as_string(hide_password=False)


def within(url: str, function: Callable[[Connection], T]) -> T:
    """Returns what `function` makes of a transaction, which is committed."""
    with ThreadPoolExecutor(1) as thread:  # the caller may be inside an event loop
        return thread.submit(asyncio.run, _within(url, function)).result()


async def _within(url: str, function: Callable[[Connection], T]) -> T:
    engine = create_async_engine(url, poolclass=NullPool)
    if engine.dialect.name == "sqlite":
        # The driver begins transactions late and not before a CREATE.
        engine = engine.execution_options(isolation_level="AUTOCOMMIT")
    async with asyncio.timeout(HANG_SECONDS), engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            await connection.exec_driver_sql("BEGIN IMMEDIATE")
        result = await connection.run_sync(function)
        if engine.dialect.name == "sqlite":
            await connection.exec_driver_sql("COMMIT")
        await connection.commit()
    return result


def run(url: str, *statements: str) -> None:
    """Runs the statements in one transaction."""

    def all_of_them(connection: Connection) -> None:
        for statement in statements:
            connection.execute(text(statement))

    within(url, all_of_them)


def contents(url: str, *, prefix: str = "") -> dict[str, list[str]]:
    """Returns every row of every table whose name begins with `prefix`, in a fixed order."""

    def read(connection: Connection) -> dict[str, list[str]]:
        quote = connection.dialect.identifier_preparer.quote
        return {
            name: sorted(
                repr(tuple(row))
                for row in connection.execute(text(f"SELECT * FROM {quote(name)}"))  # noqa: S608
            )
            for name in sorted(inspect(connection).get_table_names())
            if name.startswith(prefix)
        }

    return within(url, read)


def layout(url: str, *, prefix: str = "") -> dict[str, dict[str, Any]]:
    """Returns what the database says of each table whose name begins with `prefix`."""

    def read(connection: Connection) -> dict[str, dict[str, Any]]:
        names = sorted(inspect(connection).get_table_names())
        return {name: _table(connection, name) for name in names if name.startswith(prefix)}

    return within(url, read)


def _table(connection: Connection, name: str) -> dict[str, Any]:
    inspector = inspect(connection)
    columns = inspector.get_columns(name)
    described: dict[str, Any] = {
        "columns": [
            {key: str(value) for key, value in column.items() if value is not None}
            for column in columns
        ],
        "primary key": inspector.get_pk_constraint(name)["constrained_columns"],
        "foreign keys": _sorted(inspector.get_foreign_keys(name)),
        "unique": _sorted(inspector.get_unique_constraints(name)),
        "indexes": _sorted(inspector.get_indexes(name)),
        "options": {
            option: value
            for option, value in inspector.get_table_options(name).items()
            if option != "mysql_collate"  # ours keeps ids apart that ADK's takes for one
        },
    }
    if connection.dialect.name == "sqlite":
        query = text("SELECT wr, strict FROM pragma_table_list WHERE name = :name")
        described["without rowid, strict"] = connection.execute(query, {"name": name}).all()
    return described


def _sorted(items: Any) -> list[str]:
    return sorted(repr(sorted(item.items(), key=str)) for item in items)
