"""The option `schema`: PostgreSQL keeps all tables, ADK's and ours, where it says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from adk_memory_ext import ConfigurationError, DurableSessionService, SchemaVersionError
from conversation import said, texts

if TYPE_CHECKING:
    from pathlib import Path

SESSION: Final[dict[str, Any]] = {"app_name": "app", "user_id": "user", "session_id": "session"}


async def run(url: str, *statements: str) -> list[str]:
    """Runs SQL and returns the first column of the last one's rows."""
    engine = create_async_engine(url)
    try:
        async with engine.begin() as connection:
            for statement in statements:
                result = await connection.execute(text(statement))
            return [str(row[0]) for row in result] if result.returns_rows else []
    finally:
        await engine.dispose()


@pytest.mark.parametrize("schema", ["agents", "Team A", 'a"b', "ü"])
async def test_every_table_lies_in_the_schema(postgresql_url: str, schema: str) -> None:
    """A schema of any name holds all tables, and a second service finds the conversation there."""
    quoted = schema.replace('"', '""')
    await run(postgresql_url, f'CREATE SCHEMA "{quoted}"')
    try:
        async with DurableSessionService.from_url(postgresql_url, schema=schema) as sessions:
            session = await sessions.create_session(**SESSION)
            await sessions.append_event(session, said("hello"))
        async with DurableSessionService.from_url(postgresql_url, schema=schema) as sessions:
            found = await sessions.get_session(**SESSION)
        assert found is not None
        assert texts(found.events) == ["hello"]
        where = "SELECT DISTINCT table_schema FROM information_schema.tables WHERE table_name"
        schemas = await run(
            postgresql_url, f"{where} IN ('sessions', 'events', 'memext_sessions', 'user_states')"
        )
        assert schemas == [schema]
    finally:
        await run(postgresql_url, f'DROP SCHEMA "{quoted}" CASCADE')


async def test_a_schema_that_does_not_exist_is_named_as_the_fault(postgresql_url: str) -> None:
    """Without the schema the error says how to make it, and no table is made elsewhere."""
    async with DurableSessionService.from_url(postgresql_url, schema="nowhere") as sessions:
        with pytest.raises(ConfigurationError, match="CREATE SCHEMA"):
            await sessions.create_session(**SESSION)
    tables = "SELECT table_name FROM information_schema.tables WHERE table_name = 'sessions'"
    assert await run(postgresql_url, tables) == []


@pytest.mark.parametrize("url", ["sqlite:///{folder}/sessions.db", "mysql://root@127.0.0.1/x"])
def test_other_databases_have_no_such_option(url: str, tmp_path: Path) -> None:
    """The option is refused where it would be ignored, before a file is made."""
    with pytest.raises(ConfigurationError, match="PostgreSQL"):
        DurableSessionService.from_url(url.format(folder=tmp_path), schema="agents")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("prepared_by_us", [True, False])
async def test_tables_of_a_newer_adk_are_refused(
    postgresql_url: str,
    prepared_by_us: bool,
) -> None:
    """A database whose ADK tables have a later version is left alone, with the way out."""
    if prepared_by_us:
        async with DurableSessionService.from_url(postgresql_url) as sessions:
            await sessions.create_session(**SESSION)
        await run(postgresql_url, "UPDATE adk_internal_metadata SET value = '2'")
    else:
        await run(
            postgresql_url,
            "CREATE TABLE adk_internal_metadata (key VARCHAR(128) PRIMARY KEY, value VARCHAR(256))",
            "INSERT INTO adk_internal_metadata VALUES ('schema_version', '2')",
        )
    async with DurableSessionService.from_url(postgresql_url) as sessions:
        with pytest.raises(SchemaVersionError, match="upgrade"):
            await sessions.create_session(**SESSION)
