"""Tables are made once, beside ADK's, and those of another layout are refused untouched."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import pytest
from google.adk.sessions.database_session_service import DatabaseSessionService
from google.adk.sessions.schemas.v0 import Base as TablesOfVersion0
from google.adk.sessions.schemas.v1 import Base as TablesOfVersion1
from sqlalchemy import event, text
from sqlalchemy.ext.asyncio import create_async_engine

from adk_memory_ext import migrations, schema
from adk_memory_ext.errors import SchemaVersionError
from adk_memory_ext.service import DurableSessionService
from conversation import said, texts
from rivals import in_processes
from servers import HANG_SECONDS, execute
from tables import STORAGES, contents, file_url, layout, run, url_of, within

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from google.adk.sessions.session import Session
    from sqlalchemy.engine import Connection

pytestmark = pytest.mark.usefixtures("nothing_left")

OWNER: Final[dict[str, Any]] = {"app_name": "app", "user_id": "user"}
KEY: Final[dict[str, Any]] = OWNER | {"session_id": "session"}
PROCESSES: Final = 4
OURS: Final = "memext_"

# The tables of ADK's SqliteSessionService, which keeps times as numbers; on a server nobody but a
# copying tool makes them.
SQLITE_SESSION_SERVICE: Final = (
    """CREATE TABLE sessions (app_name VARCHAR(128), user_id VARCHAR(128), id VARCHAR(128),
    state TEXT, create_time REAL, update_time REAL, PRIMARY KEY (app_name, user_id, id))""",
    """CREATE TABLE events (id VARCHAR(128), app_name VARCHAR(128), user_id VARCHAR(128),
    session_id VARCHAR(128), invocation_id VARCHAR(128), timestamp REAL, event_data TEXT,
    PRIMARY KEY (app_name, user_id, session_id, id))""",
)
SOMEBODY_ELSES: Final = (
    "CREATE TABLE events (id INTEGER PRIMARY KEY, starts VARCHAR(20), venue VARCHAR(80))",
)


@pytest.fixture(params=STORAGES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database."""
    return url_of(request.param, request, tmp_path)


@pytest.fixture(params=("postgresql", "mariadb"))
def server_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database behind a server."""
    return url_of(request.param, request, tmp_path)


async def talk(service: DurableSessionService | DatabaseSessionService, *words: str) -> Session:
    """Says the words in the session, which is created if it is not there, and returns it."""
    session = await service.get_session(**KEY) or await service.create_session(
        **KEY, state={"app:a": 1, "user:u": 2, "s": 3}
    )
    for word in words:
        await service.append_event(session, said(word, state={word: True}))
    return session


async def read(service: DurableSessionService | DatabaseSessionService) -> Session:
    """Returns the session, which must be there."""
    session = await service.get_session(**KEY)
    assert session is not None
    return session


# --- Making the tables


def test_every_version_has_a_migration() -> None:
    """There is one migration from each version to the next, up to the one that is written."""
    assert sorted(migrations.MIGRATIONS) == list(range(1, schema.VERSION + 1))


def test_migrated_tables_are_the_described_ones(url: str) -> None:
    """Migrations and `schema` make the same tables: columns, types, keys, indexes, options."""
    within(url, migrations.prepare)
    migrated = layout(url, prefix=OURS)
    within(url, schema.metadata.drop_all)
    assert layout(url, prefix=OURS) == {}

    within(url, schema.metadata.create_all)

    assert layout(url, prefix=OURS) == migrated
    assert migrated.keys() == schema.metadata.tables.keys()


def test_adks_tables_are_made_as_adk_makes_them(url: str) -> None:
    """A database that we begin is the one that plain ADK would have begun."""
    within(url, migrations.prepare)
    ours = {name: table for name, table in layout(url).items() if not name.startswith(OURS)}
    within(url, schema.metadata.drop_all)
    within(url, TablesOfVersion1.metadata.drop_all)
    assert layout(url) == {}

    within(url, TablesOfVersion1.metadata.create_all)

    assert layout(url) == ours


async def test_preparing_again_does_nothing(url: str) -> None:
    """A database that is up to date is left as it is."""
    async with DurableSessionService.from_url(url) as sessions:
        await talk(sessions, "hello")
    before = layout(url), contents(url)
    assert within(url, migrations.is_prepared)

    within(url, migrations.prepare)

    assert (layout(url), contents(url)) == before


class BrokenOffError(Exception):
    """Stands for the end of the process."""


def broken_off(writes: int) -> Callable[[Connection], None]:
    """Returns `prepare` as it is when it ends before its write number `writes` (from 0)."""

    def prepare(connection: Connection) -> None:
        left = writes

        def count(_connection: Connection, _cursor: object, statement: str, *_rest: object) -> None:
            nonlocal left
            if statement.lstrip().partition(" ")[0] in ("CREATE", "INSERT", "DROP"):
                left -= 1
                if left < 0:
                    raise BrokenOffError

        event.listen(connection, "before_cursor_execute", count)
        migrations.prepare(connection)

    return prepare


def test_a_start_that_breaks_off_can_be_repeated(url: str) -> None:
    """Wherever a start ends, the next one makes the whole; also on MySQL, which commits DDL."""
    within(url, migrations.prepare)
    whole = layout(url)
    # On MySQL each write stays; elsewhere all of them are undone together.
    for writes in range(0, 100, 1 if "mysql" in url else 5):
        within(url, schema.metadata.drop_all)
        within(url, TablesOfVersion1.metadata.drop_all)
        try:
            within(url, broken_off(writes))
        except BrokenOffError:
            within(url, migrations.prepare)
            assert layout(url) == whole, writes
        else:
            assert writes > len(whole)
            return
    pytest.fail("`prepare` never came to its end")


# --- Beside plain ADK


async def test_our_tables_stand_beside_adks(url: str) -> None:
    """A database of plain ADK gets our tables, and nothing of ADK's is altered."""
    async with DatabaseSessionService(url) as plain:
        await talk(plain, "hello", "goodbye")
    before, rows = layout(url), contents(url)
    statements = created(url)

    async with DurableSessionService.from_url(url) as sessions:
        assert texts((await read(sessions)).events) == ["hello", "goodbye"]

    after = layout(url)
    assert {name: after[name] for name in before} == before
    assert after.keys() - before.keys() == schema.metadata.tables.keys()
    assert {name: contents(url)[name] for name in rows} == rows
    assert [line for line in created(url) if OURS not in line] == statements


def created(url: str) -> list[str]:
    """Returns the statements that made a SQLite database, as they stand in the file."""
    if "sqlite" not in url:
        return []
    query = text("SELECT coalesce(sql, name) FROM sqlite_master ORDER BY name")
    return within(url, lambda connection: list(connection.execute(query).scalars()))


async def test_an_index_that_earlier_versions_of_adk_did_not_make_is_made(url: str) -> None:
    """A database of an earlier ADK gets the index that plain ADK would make at its next start."""
    within(url, TablesOfVersion1.metadata.create_all)
    (index,) = TablesOfVersion1.metadata.tables["events"].indexes
    whole = layout(url, prefix="events")
    if "mysql" in url:  # where the foreign key needs one like it
        run(url, "CREATE INDEX earlier ON events (app_name, user_id, session_id)")
    within(url, index.drop)

    async with DurableSessionService.from_url(url) as sessions:
        await talk(sessions, "hello")

    if "mysql" in url:
        run(url, "DROP INDEX earlier ON events")
    assert layout(url, prefix="events") == whole


async def test_plain_adk_works_on_our_database(url: str) -> None:
    """Plain ADK starts on a database that we made, reads it, appends, lists and deletes."""
    async with DurableSessionService.from_url(url) as sessions:
        await talk(sessions, "ours")

    async with DatabaseSessionService(url) as plain:
        session = await talk(plain, "theirs")
        assert texts(session.events) == ["ours", "theirs"]
        assert session.state == {"app:a": 1, "user:u": 2, "s": 3, "ours": True, "theirs": True}
        listed = (await plain.list_sessions(**OWNER)).sessions
        assert [one.id for one in listed] == ["session"]
        await plain.delete_session(**KEY)
        assert await plain.get_session(**KEY) is None


async def test_our_tables_can_be_dropped(url: str) -> None:
    """Without our tables order falls back to the one that ADK reads; nothing else is lost."""
    async with DurableSessionService.from_url(url) as sessions:
        session = await talk(sessions, "one", "two", "three")
    async with DatabaseSessionService(url) as plain:
        adks_order = texts((await read(plain)).events)
    within(url, schema.metadata.drop_all)

    async with DurableSessionService.from_url(url) as sessions:
        reloaded = await talk(sessions, "four")
        assert texts(reloaded.events) == [*adks_order, "four"]
        assert texts((await read(sessions)).events) == ["one", "two", "three", "four"]
        assert reloaded.state == session.state | {"four": True}


# --- Starting at once


def start(number: int, url: str) -> list[str]:
    """Opens a service, talks in a session of its own and returns what it reads there."""

    async def work() -> list[str]:
        key = OWNER | {"session_id": f"session-{number}"}
        async with DurableSessionService.from_url(url) as sessions:
            session = await sessions.create_session(**key, state={f"user:{number}": number})
            await sessions.append_event(session, said(f"hello {number}"))
            reloaded = await sessions.get_session(**key)
        return [] if reloaded is None else texts(reloaded.events)

    return asyncio.run(work())


def test_processes_that_start_at_once_migrate_once(url: str) -> None:
    """Whoever comes second waits, and all of them work."""
    assert in_processes(PROCESSES, start, url) == [[f"hello {n}"] for n in range(PROCESSES)]

    assert len(contents(url)["memext_migrations"]) == schema.VERSION
    assert len(contents(url)["events"]) == PROCESSES


async def test_readers_that_start_at_once_migrate_once(url: str) -> None:
    """The first use may be many reads at the same time."""
    async with DurableSessionService.from_url(url) as sessions:
        found = await asyncio.gather(*(sessions.get_session(**KEY) for _ in range(20)))
        assert found == [None] * 20
        await talk(sessions, "hello")
    assert len(contents(url)["memext_migrations"]) == schema.VERSION


async def test_plain_adk_may_start_at_the_same_moment(postgresql_url: str) -> None:
    """Where plain ADK makes its tables while we look, we go on with the tables that it made."""
    engine = create_async_engine(postgresql_url)
    async with engine.connect() as theirs:
        await theirs.run_sync(TablesOfVersion1.metadata.create_all)
        async with DurableSessionService.from_url(postgresql_url) as sessions:
            start = asyncio.create_task(talk(sessions, "hello"))
            await waits_for_a_lock(postgresql_url, start)
            await theirs.commit()
            async with asyncio.timeout(HANG_SECONDS):
                assert texts((await start).events) == ["hello"]
    await engine.dispose()


async def waits_for_a_lock(url: str, task: asyncio.Task[Any]) -> None:
    """Returns when another connection to the database waits for a lock."""
    query = text(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        " AND datname = current_database()"
    )
    async with asyncio.timeout(HANG_SECONDS):
        while not await asyncio.to_thread(
            within, url, lambda connection: connection.execute(query).scalar_one()
        ):
            assert not task.done(), task
            await asyncio.sleep(0.01)


# --- Refusals


async def refusals(url: str) -> list[str]:
    """Returns the refusal of every operation, tried twice each, on one service."""
    messages = []
    async with DurableSessionService.from_url(url) as sessions, asyncio.timeout(HANG_SECONDS):
        for _ in range(2):
            for operation in (
                sessions.get_session(**KEY),
                sessions.create_session(**KEY),
                sessions.list_sessions(**OWNER),
                sessions.list_sessions_page("app"),
                sessions.delete_session(**KEY),
                sessions.get_user_state(**OWNER),
                sessions.state.update_user({"u": 1}, **OWNER),
            ):
                with pytest.raises(SchemaVersionError) as refusal:
                    await operation
                messages.append(str(refusal.value))
        # Nobody else is kept out meanwhile.
        await asyncio.to_thread(
            run, url, "CREATE TABLE of_somebody_else (id INTEGER)", "DROP TABLE of_somebody_else"
        )
        if "mysql" in url:
            # The lock is the server's: a test beside this one may hold it for a moment.
            async with asyncio.timeout(HANG_SECONDS):
                while execute(url, "SELECT is_free_lock('memext_migrations')") != [(1,)]:
                    await asyncio.sleep(0.05)
    return messages


async def test_a_newer_database_is_refused_untouched(url: str) -> None:
    """What a newer version of this package wrote is left to it, with the command to run."""
    async with DurableSessionService.from_url(url) as sessions:
        await talk(sessions, "hello")
    newer = schema.VERSION + 1
    run(url, f"INSERT INTO memext_migrations VALUES ({newer}, 0)")  # noqa: S608
    before = layout(url), contents(url)

    messages = await refusals(url)

    (message,) = set(messages)
    assert message == (
        f"The database has version {newer} of the memext tables and this package knows"
        f" {schema.VERSION}; upgrade it with: pip install --upgrade adk-memory-ext"
    )
    assert (layout(url), contents(url)) == before


async def test_tables_of_adk_1_are_refused_untouched(server_url: str) -> None:
    """Behind a server too, tables of ADK 1.x are refused with the command that migrates them."""
    within(server_url, TablesOfVersion0.metadata.create_all)
    run(
        server_url,
        "INSERT INTO app_states (app_name, state, update_time)"
        " VALUES ('app', '{}', '2026-01-01 00:00:00')",
    )

    await assert_refused(server_url, "adk migrate session --source_db_url=")


async def test_tables_of_sqlite_session_service_are_refused_untouched(server_url: str) -> None:
    """Times as numbers mean ADK's SqliteSessionService, wherever they were copied to."""
    run(server_url, *SQLITE_SESSION_SERVICE)

    await assert_refused(server_url, "SqliteSessionService")


async def test_tables_of_somebody_else_are_refused_untouched(server_url: str) -> None:
    """A table of ADK's name that is not ADK's is refused instead of failing at the first event."""
    run(server_url, *SOMEBODY_ELSES)

    await assert_refused(server_url, "has a table 'events' that is not ADK's")


async def assert_refused(url: str, advice: str) -> None:
    """Fails unless every operation is refused with this advice and the database left as it is."""
    before = layout(url), contents(url)
    messages = await refusals(url)
    assert all(advice in message for message in messages), messages
    assert (layout(url), contents(url)) == before


async def test_a_table_that_appears_later_is_refused(tmp_path: Path) -> None:
    """A file is looked at again at the first use: another service may have made it meanwhile."""
    url = file_url(tmp_path)
    async with DurableSessionService.from_url(url) as sessions:
        run(url, *SQLITE_SESSION_SERVICE)
        with pytest.raises(SchemaVersionError, match="SqliteSessionService"):
            await sessions.create_session(**KEY)
