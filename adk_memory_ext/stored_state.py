"""All state that a database holds, read for a check and never changed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from sqlalchemy import inspect, select
from sqlalchemy.exc import DBAPIError

from adk_memory_ext.adk_tables import app_states, sessions, user_states
from adk_memory_ext.database import DatabaseOptions, open_engine, parse_url, sqlite_path
from adk_memory_ext.errors import StoreUnavailableError

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection


async def all_states(url: str) -> list[tuple[str, dict[str, Any]]]:
    """Returns each owner's ids and its state, keys with prefixes; empty if there is no database.

    Raises:
        ConfigurationError: When the database cannot be used.
        SchemaVersionError: When its tables are of another layout.
        StoreUnavailableError: When it cannot be reached.
    """
    parsed = parse_url(url)
    path = sqlite_path(parsed)
    if path is not None and not path.exists():
        return []
    engine = open_engine(parsed, DatabaseOptions())
    try:
        async with engine.connect() as connection:
            reading = await connection.execution_options(read_only=True)
            return await reading.run_sync(_states)
    except (DBAPIError, OSError) as error:
        raise StoreUnavailableError(
            f"{parsed.set(query={}).render_as_string(hide_password=True)} cannot be read"
            f" ({type(error).__name__}); is it there, and may this user read it?"
        ) from None
    finally:
        await engine.dispose()


def _states(connection: Connection) -> list[tuple[str, dict[str, Any]]]:
    found: list[tuple[str, dict[str, Any]]] = []
    tables = inspect(connection).get_table_names()
    for table, prefix, ids in (
        (app_states, "app:", ("app_name",)),
        (user_states, "user:", ("app_name", "user_id")),
        (sessions, "", ("app_name", "user_id", "id")),
    ):
        if table.name not in tables:
            continue
        for *owner, state in connection.execute(
            select(*(table.c[name] for name in ids), table.c.state)
        ):
            whole = json.loads(state) if isinstance(state, str) else state
            if isinstance(whole, dict):
                name = ", ".join(
                    f"{label} {value!r}"
                    for label, value in zip(("app", "user", "session"), owner, strict=False)
                )
                found.append((name, {prefix + key: value for key, value in whole.items()}))
    return found
