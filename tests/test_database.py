"""Which driver a URL means, what SQLite is told, and what is refused without being touched."""

from __future__ import annotations

import asyncio
import errno
import os
import shlex
import shutil
import sqlite3
import stat
import subprocess
import sys
import threading
import traceback
from contextlib import closing, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest
from google.adk.sessions.database_session_service import DatabaseSessionService
from google.adk.sessions.schemas.v0 import Base as TablesOfVersion0
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from sqlalchemy import create_engine, event
from sqlalchemy.engine import URL
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import Pool

from adk_memory_ext.database import (
    DatabaseOptions,
    describe,
    parse_url,
    refuse_foreign_file,
    set_pragmas,
    sqlite_path,
)
from adk_memory_ext.errors import (
    ConfigurationError,
    MemoryExtError,
    SchemaVersionError,
    StoreUnavailableError,
)
from adk_memory_ext.service import DurableSessionService
from conversation import said, texts
from rivals import get_or_create, in_processes, refusal_without_privileges, run_adk
from servers import HANG_SECONDS, execute

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("nothing_left")

TABLES: Final = "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'"
OWNER: Final[dict[str, Any]] = {"app_name": "app", "user_id": "user"}


async def store(url: str, **options: Any) -> None:
    """Opens a service at `url`, says something in a new session and closes it."""
    async with DurableSessionService.from_url(url, **options) as sessions:
        session = await sessions.create_session(**OWNER, session_id="session")
        await sessions.append_event(session, said("kept"))


def snapshot(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Returns the bytes and the time of change of each file in a folder."""
    return {
        path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in sorted(folder.iterdir())
    }


def reason(code: int) -> str:
    """Returns what an error text says of an operating system's error."""
    return f"({os.strerror(code)})"


def listing(folder: Path) -> list[str]:
    """Returns the names of what lies in a folder."""
    return sorted(path.name for path in folder.iterdir())


def permissions(folder: Path) -> dict[str, int]:
    """Returns the permissions of everything below a folder."""
    return {
        path.relative_to(folder).as_posix(): stat.S_IMODE(path.stat().st_mode)
        for path in folder.rglob("*")
    }


# --- URLs


@pytest.mark.parametrize(
    ("url", "meaning"),
    [
        ("", "sqlite+aiosqlite://"),
        ("sqlite://", "sqlite+aiosqlite://"),
        ("sqlite:///:memory:", "sqlite+aiosqlite:///%3Amemory%3A"),
        ("sqlite:///folder/file.db", "sqlite+aiosqlite:///folder/file.db"),
        ("sqlite:////folder/file.db", "sqlite+aiosqlite:////folder/file.db"),
        ("sqlite+aiosqlite:///file.db", "sqlite+aiosqlite:///file.db"),
        ("SQLite:///File.db", "sqlite+aiosqlite:///File.db"),
        ("postgres://user@host/name", "postgresql+asyncpg://user@host/name"),
        ("postgresql://user@host:5433/name", "postgresql+asyncpg://user@host:5433/name"),
        ("postgresql+asyncpg://user@host/name", "postgresql+asyncpg://user@host/name"),
        ("postgresql://user:p%40ss@host/name", "postgresql+asyncpg://user:p%40ss@host/name"),
        ("postgresql://u@h/n?sslmode=require", "postgresql+asyncpg://u@h/n?ssl=require"),
        ("mysql://user@host/name", "mysql+aiomysql://user@host/name"),
        ("mysql+aiomysql://user@host/name", "mysql+aiomysql://user@host/name"),
        ("mariadb://user@host/name", "mysql+aiomysql://user@host/name"),
    ],
)
def test_a_url_gets_the_driver_of_this_package(url: str, meaning: str) -> None:
    """A URL without a driver gets an asynchronous one; one that names it stays as it is."""
    assert parse_url(url).render_as_string(hide_password=False) == meaning


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("sessions.db", "it looks like sqlite:///.sessions/sessions.db"),
        ("sqlite:/file.db", "it looks like sqlite:///.sessions/sessions.db"),
        ("postgresql://user:hunter2@host:port/name", "postgresql://user@host/database"),
        ("postgresql://user:hunter2", "postgresql://user@host/database"),
        ("postgresql://user:hunter2@[::1/name", "postgresql://user@host/database"),
        ("postgresql://user:hun@ter2@host/name", "it is %40"),
        ("sqlite://file.db", "three slashes before a relative path"),
        ("sqlite://user:hunter2@host/file.db", "three slashes before a relative path"),
        ("sqlite:///file.db?mode=ro", "takes no parameters"),
        ("sqlite:///what?.db", "a question mark in a file name is %3F"),
        ("sqlite:///nul\0.db", "NUL"),
        ("oracle://user:hunter2@host/name", "use one of sqlite, postgresql, mysql, mariadb"),
        (
            "postgresql+psycopg2://user:hunter2@host/name",
            "synchronous driver; use postgresql+async",
        ),
        ("mysql+pymysql://user:hunter2@host/name", "synchronous driver; use mysql+aiomysql://"),
        ("mariadb+pymysql://user:hunter2@host/name", "synchronous driver; use mysql+aiomysql://"),
        ("sqlite+pysqlite:///file.db", "synchronous driver; use sqlite+aiosqlite://"),
        ("postgresql+hunter://user:hunter2@host/name", "no driver 'postgresql+hunter'; use"),
        ("mysql+a+b://user:hunter2@host/name", "no driver 'mysql+a+b'; use mysql+aiomysql://"),
    ],
)
def test_a_url_that_cannot_work_is_refused_in_one_line(url: str, advice: str) -> None:
    """The error says what to write instead, and shows no password, not even in its causes."""
    with pytest.raises(ConfigurationError) as caught:
        DurableSessionService.from_url(url)
    assert advice in str(caught.value)
    assert "\n" not in str(caught.value)
    report = "".join(str(error) for error in _chain(caught.value))
    assert "hunter2" not in report
    assert "ter2" not in report


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yields an error and what a traceback would show as its causes."""
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


@pytest.mark.parametrize(
    ("package", "url", "command"),
    [
        ("aiosqlite", "sqlite:///file.db", "pip install 'adk-memory-ext'"),
        ("asyncpg", "postgresql://user@host/name", "pip install 'adk-memory-ext[postgresql]'"),
        ("aiomysql", "mysql://user@host/name", "pip install 'adk-memory-ext[mysql]'"),
        ("aiomysql", "mariadb://user@host/name", "pip install 'adk-memory-ext[mysql]'"),
        ("psycopg", "postgresql+psycopg_async://u@h/n", "install it, or use postgresql+asyncpg://"),
    ],
)
def test_a_missing_driver_is_named_with_the_command_that_installs_it(
    package: str, url: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the driver of its URL a service is refused in one line, and creates nothing."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, package, None)  # an import of it fails
    with pytest.raises(ConfigurationError) as caught:
        DurableSessionService.from_url(url)
    assert "is not installed; " in str(caught.value)
    assert command in str(caught.value)
    assert "\n" not in str(caught.value)
    assert listing(tmp_path) == []


@pytest.mark.parametrize("package", ["greenlet", "sqlalchemy"])
def test_a_missing_library_is_named_with_the_command_that_installs_it(
    package: str, tmp_path: Path
) -> None:
    """Without greenlet or SQLAlchemy the error is one line, where SQLAlchemy's would be obscure."""
    code = f"""
import sys
sys.modules[{package!r}] = None
from adk_memory_ext import ConfigurationError, DurableSessionService
try:
    DurableSessionService.from_url("sqlite:///sessions.db")
except ConfigurationError as error:
    print(error)
"""
    printed = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        text=True,
        capture_output=True,
        check=True,
        timeout=HANG_SECONDS,
    ).stdout
    assert printed == (
        f"{package} is not installed; install it with: pip install 'google-adk[db]'\n"
    )
    assert listing(tmp_path) == []


# --- Options


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"synchronous": "OFF"}, "synchronous must be 'FULL' or 'NORMAL', not 'OFF'"),
        ({"synchronous": "full"}, "not 'full'"),
        ({"busy_timeout": 5}, "busy_timeout must be a timedelta, not 5"),
        ({"busy_timeout": timedelta(microseconds=-1)}, "between 0 and 24 days"),
        ({"busy_timeout": timedelta.max}, "between 0 and 24 days"),
        ({"pool_timeout": 30}, "pool_timeout must be a timedelta, not 30"),
        ({"pool_size": 0}, "pool_size must be a whole number from 1 on, not 0"),
        ({"max_overflow": -1}, "max_overflow must be a whole number from 0 on, not -1"),
        ({"echo": True}, "Unknown option 'echo'; there are busy_timeout, "),
    ],
)
def test_an_option_without_meaning_is_refused(
    options: dict[str, Any], advice: str, tmp_path: Path
) -> None:
    """A wrong option is refused before anything is created, whatever the database."""
    for url in (f"sqlite:///{tmp_path}/folder/file.db", "postgresql://user@host/name"):
        with pytest.raises(ConfigurationError, match=advice):
            DurableSessionService.from_url(url, **options)
    assert listing(tmp_path) == []


# --- What SQLite is told


SAFE: Final = {
    "busy_timeout": 60_000,
    "foreign_keys": 1,
    "journal_mode": "wal",
    "secure_delete": 1,
    "synchronous": 2,
    "temp_store": 2,
}


@contextmanager
def connections_seen() -> Iterator[list[dict[str, Any]]]:
    """Yields a list of the pragmas of each connection to SQLite that is given back meanwhile."""
    seen: dict[int, dict[str, Any]] = {}
    found: list[dict[str, Any]] = []

    def look(connection: Any, record: object) -> None:
        if connection is not None and id(record) not in seen:
            cursor = connection.cursor()
            seen[id(record)] = {}
            for pragma in SAFE:
                cursor.execute(f"PRAGMA {pragma}")
                (seen[id(record)][pragma],) = cursor.fetchone()
            cursor.close()
            found.append(seen[id(record)])

    event.listen(Pool, "checkin", look)
    try:
        yield found
    finally:
        event.remove(Pool, "checkin", look)


async def use(url: str, **options: Any) -> None:
    """Opens a service and has many tasks write and read at once."""
    async with DurableSessionService.from_url(url, **options) as sessions:

        async def talk(number: int) -> None:
            name = f"session-{number}"
            session = await sessions.create_session(**OWNER, session_id=name)
            await sessions.append_event(session, said("kept"))
            assert await sessions.get_session(**OWNER, session_id=name) is not None

        await asyncio.gather(*map(talk, range(8)))


@pytest.mark.parametrize(("synchronous", "number"), [("FULL", 2), ("NORMAL", 1)])
async def test_every_connection_to_a_file_is_a_safe_one(
    synchronous: str, number: int, tmp_path: Path
) -> None:
    """WAL, foreign keys, secure deletion and the rest are set on each connection, not on one."""
    options = {"synchronous": synchronous, "busy_timeout": timedelta(seconds=7)}
    with connections_seen() as found:
        await use(f"sqlite:///{tmp_path}/file.db", **options)
    assert len(found) > 1
    assert found == [SAFE | {"synchronous": number, "busy_timeout": 7000}] * len(found)


async def test_a_connection_to_memory_is_a_safe_one_too() -> None:
    """In memory everything holds but the WAL, which SQLite has for files only."""
    with connections_seen() as found:
        await use("")
    assert found
    assert found == [SAFE | {"journal_mode": "memory"}] * len(found)


def test_a_pragma_that_sqlite_does_not_set_is_an_error() -> None:
    """SQLite is silent about a pragma that it cannot honour; such a connection is refused."""
    with (
        closing(sqlite3.connect(":memory:")) as connection,
        pytest.raises(ConfigurationError, match="set journal_mode to wal; it stays at memory"),
    ):
        set_pragmas(connection, DatabaseOptions(), in_memory=False)


# --- Databases in memory


@pytest.mark.parametrize("url", ["", "sqlite://", "sqlite:///:memory:"])
async def test_each_service_in_memory_has_a_database_of_its_own(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two services in memory share nothing, and neither writes a file."""
    monkeypatch.chdir(tmp_path)
    async with (
        DurableSessionService.from_url(url) as one,
        DurableSessionService.from_url(url) as two,
    ):
        await one.create_session(**OWNER, session_id="session")
        assert await one.get_session(**OWNER, session_id="session") is not None
        assert await two.get_session(**OWNER, session_id="session") is None
    assert listing(tmp_path) == []


async def test_a_database_in_memory_survives_cancelled_tasks() -> None:
    """A task that is cancelled while it waits for the database takes nothing with it."""
    async with DurableSessionService.from_url("") as sessions:
        await sessions.create_session(**OWNER, session_id="session")
        for steps in range(40):
            reading = asyncio.create_task(sessions.get_session(**OWNER, session_id="session"))
            for _ in range(steps):
                await asyncio.sleep(0)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            assert await sessions.get_session(**OWNER, session_id="session") is not None


# --- Files and folders


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_only_the_owner_can_read_what_is_created(umask: int, tmp_path: Path) -> None:
    """Each folder that is created is 0700 and each file 0600, whatever the umask is."""
    tmp_path.chmod(0o755)
    modes: dict[str, int] = {}

    async def look() -> None:
        async with DurableSessionService.from_url(f"sqlite:///{tmp_path}/a/b/file.db") as sessions:
            await sessions.create_session(**OWNER)
            modes.update(permissions(tmp_path))

    before = os.umask(umask)
    try:
        asyncio.run(look())
    finally:
        os.umask(before)
    assert modes == {
        "a": 0o700,
        "a/b": 0o700,
        "a/b/file.db": 0o600,
        "a/b/file.db-wal": 0o600,
        "a/b/file.db-shm": 0o600,
    }
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


@pytest.mark.parametrize(
    "name", ["sessions 1.db", "履歷.db", "what?.db", "a#b.db", "100%.db", "a%20b.db"]
)
async def test_a_file_may_have_any_name(name: str, tmp_path: Path) -> None:
    """The file that SQLite opens is the file that was looked at, and plain ADK finds it as well."""
    url = URL.create("sqlite+aiosqlite", database=str(tmp_path / name)).render_as_string()
    assert sqlite_path(parse_url(url)) == tmp_path / name
    await store(url)
    assert listing(tmp_path) == [name]
    async with DatabaseSessionService(url) as plain:
        session = await plain.get_session(**OWNER, session_id="session")
    assert session is not None
    assert texts(session.events) == ["kept"]
    assert (await describe(url))["events"] == "1"


async def test_a_percent_sign_in_a_url_is_sqlalchemys(tmp_path: Path) -> None:
    """What `%3F` in a URL means is what SQLAlchemy, and so plain ADK, makes of it."""
    url = f"sqlite+aiosqlite:///{tmp_path}/what%3F.db"
    await store(url)
    async with DatabaseSessionService(url) as plain:
        assert await plain.get_session(**OWNER, session_id="session") is not None
    assert len(listing(tmp_path)) == 1


@pytest.mark.parametrize(
    ("place", "advice"),
    [
        ("file/sessions.db", reason(errno.ENOTDIR)),
        ("file/folder/sessions.db", reason(errno.ENOTDIR)),
        ("folder", "is not a file; name one"),
        ("pipe", "is not a file; name one"),
        ("lost", reason(errno.ENOENT)),
        ("n" * 300, reason(errno.ENAMETOOLONG)),
        ("/proc/sessions.db", reason(errno.ENOENT)),
        ("/proc/folder/sessions.db", reason(errno.ENOENT)),
    ],
)
def test_a_place_that_cannot_hold_a_database_is_refused(
    place: str, advice: str, tmp_path: Path
) -> None:
    """The error names the place and the reason in one line, and nothing is created."""
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "folder").mkdir()
    (tmp_path / "lost").symlink_to("nowhere/sessions.db")
    os.mkfifo(tmp_path / "pipe")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigurationError) as caught:
        DurableSessionService.from_url(f"sqlite:///{tmp_path / place}")
    assert str(tmp_path / place) in str(caught.value)
    assert advice in str(caught.value)
    assert "\n" not in str(caught.value)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("folder_mode", "file_mode"),
    [(0o555, 0o666), (0o777, 0o444), (0o000, 0o666)],
    ids=["folder-unwritable", "file-unwritable", "folder-closed"],
)
def test_a_place_without_permission_is_refused(
    folder_mode: int, file_mode: int, tmp_path: Path
) -> None:
    """A folder or a file that may not be written to is refused when the service is opened."""
    folder = tmp_path / "folder"
    folder.mkdir()
    file = folder / "sessions.db"
    file.touch()
    file.chmod(file_mode)
    folder.chmod(folder_mode)
    for above in (tmp_path, *tmp_path.parents):
        if above.stat().st_uid == os.getuid() and not above.stat().st_mode & stat.S_IXOTH:
            above.chmod(above.stat().st_mode | stat.S_IXOTH)
    (message,) = in_processes(1, refusal_without_privileges, f"sqlite:///{file}")
    folder.chmod(0o777)
    assert message.startswith(f"ConfigurationError: The database {str(file)!r} cannot be ")
    assert reason(errno.EACCES) in message
    assert listing(folder) == ["sessions.db"]


# --- Files of somebody else


def make_v0(path: Path) -> None:
    """Makes the tables of ADK 1.x."""
    engine = create_engine(URL.create("sqlite", database=str(path)))
    TablesOfVersion0.metadata.create_all(engine)
    engine.dispose()


def make_sqlite_service(path: Path) -> None:
    """Makes the tables of ADK's `SqliteSessionService` by using it."""

    async def use() -> None:
        service = SqliteSessionService(str(path))
        await service.create_session(**OWNER)
        await service.close()

    asyncio.run(use())


def make_other(path: Path) -> None:
    """Makes the database of another application, which has events of its own."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE events (id INTEGER, title TEXT)")


def make_text(path: Path) -> None:
    """Makes a file that is no database."""
    path.write_text("These are not the sessions.\n" * 100)


def make_truncated(path: Path) -> None:
    """Makes a database of which only the first bytes are left."""
    make_v0(path)
    path.write_bytes(path.read_bytes()[:10])


def make_short(path: Path) -> None:
    """Makes a database whose header is cut off after its first words."""
    make_v0(path)
    path.write_bytes(path.read_bytes()[:50])


def make_garbage(path: Path) -> None:
    """Makes a file that begins as a database does and goes on as noise."""
    path.write_bytes(b"SQLite format 3\0" + bytes(range(256)) * 64)


NOT_OURS: Final[dict[str, tuple[Callable[[Path], None], type[MemoryExtError], str]]] = {
    "v0": (make_v0, SchemaVersionError, "adk migrate session --source_db_url="),
    "sqlite-service": (
        make_sqlite_service,
        SchemaVersionError,
        "DurableSessionService(SqliteSessionService(path))",
    ),
    "other": (make_other, SchemaVersionError, "has a table 'events' that is not ADK's; choose"),
    "text": (make_text, ConfigurationError, "is not a SQLite database; choose another"),
    "truncated": (make_truncated, ConfigurationError, "is not a SQLite database; choose another"),
    "short": (make_short, ConfigurationError, "choose another file"),
    "garbage": (make_garbage, ConfigurationError, "If it was one, restore it from a backup"),
}


@pytest.mark.parametrize("kind", NOT_OURS)
@pytest.mark.parametrize(
    "look", [DurableSessionService.from_url, lambda url: asyncio.run(describe(url))]
)
def test_a_file_that_is_not_ours_is_refused_untouched(
    kind: str, look: Callable[[str], object], tmp_path: Path
) -> None:
    """The error is one line that says what to do; the file and its folder stay as they were."""
    make, error, advice = NOT_OURS[kind]
    path = tmp_path / "sessions.db"
    make(path)
    before = snapshot(tmp_path)
    with pytest.raises(error) as caught:
        look(f"sqlite:///{path}")
    assert str(path) in str(caught.value)
    assert advice in str(caught.value)
    assert "\n" not in str(caught.value)
    assert snapshot(tmp_path) == before


def test_a_foreign_file_is_refused_untouched_beside_its_wal(tmp_path: Path) -> None:
    """A foreign file that a crash left with a WAL is refused, and the WAL stays as it was."""
    path = tmp_path / "sessions.db"
    make_v0(path)
    with closing(sqlite3.connect(path)) as writer:
        writer.execute("PRAGMA journal_mode=WAL")
        writer.execute("CREATE TABLE later (x)")
        crashed = tmp_path / "crashed"
        crashed.mkdir()
        for name in ("sessions.db", "sessions.db-wal"):
            shutil.copy(tmp_path / name, crashed / name)
    before = snapshot(crashed)
    with pytest.raises(SchemaVersionError, match="schema v0"):
        refuse_foreign_file(crashed / "sessions.db")
    assert snapshot(crashed) == before


def test_a_foreign_layout_is_seen_while_it_is_in_the_wal_only(tmp_path: Path) -> None:
    """Tables that no WAL checkpoint has brought into the main file are looked at as well."""
    path = tmp_path / "sessions.db"
    with closing(sqlite3.connect(path)) as writer:
        writer.execute("PRAGMA journal_mode=WAL")
        writer.execute("CREATE TABLE events (id TEXT, actions BLOB)")
        main = path.read_bytes()
        with pytest.raises(SchemaVersionError, match="schema v0"):
            refuse_foreign_file(path)
        assert path.read_bytes() == main


def test_the_command_against_v0_can_be_pasted_into_a_shell(tmp_path: Path) -> None:
    """ADK's migration reads the file that the error names, whatever its name, and ours opens it."""
    path = tmp_path / "it's 100% old?.db"
    make_v0(path)
    with pytest.raises(SchemaVersionError) as caught:
        refuse_foreign_file(path)
    command = shlex.split(str(caught.value).partition("with: ")[2])
    assert command[:3] == ["adk", "migrate", "session"]
    # In a process of its own: the command leaves its connections open.
    ((exit_code, output),) = in_processes(1, run_adk, command[1:])
    assert exit_code == 0, output
    refuse_foreign_file(tmp_path / "it's 100% old?.db.new")


async def test_looking_at_a_file_drops_no_lock_on_it(tmp_path: Path) -> None:
    """What this process holds on the file stays held when it is looked at and opened again.

    Otherwise the next process to leave would take the WAL of those who still use it with it.
    """
    url = f"sqlite:///{tmp_path}/sessions.db"
    async with DurableSessionService.from_url(url) as sessions:
        await sessions.create_session(**OWNER, session_id="session")
        DurableSessionService.from_url(url)
        await describe(url)
        in_processes(1, get_or_create, url, 1)
        assert (tmp_path / "sessions.db-wal").exists()
        await sessions.create_session(**OWNER, session_id="later")
    async with DurableSessionService.from_url(url) as sessions:
        assert await sessions.get_session(**OWNER, session_id="later") is not None


async def test_an_empty_file_becomes_a_database(tmp_path: Path) -> None:
    """A file that somebody created empty is used, and keeps its mode."""
    path = tmp_path / "sessions.db"
    path.touch(mode=0o640)
    await store(f"sqlite:///{path}")
    assert (await describe(f"sqlite:///{path}"))["sessions"] == "1"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


async def test_a_database_of_plain_adk_opens(tmp_path: Path) -> None:
    """What ADK's `DatabaseSessionService` stored is there, and goes on there."""
    url = f"sqlite+aiosqlite:///{tmp_path}/sessions.db"
    async with DatabaseSessionService(url) as plain:
        session = await plain.create_session(**OWNER, session_id="session", state={"user:a": 1})
        await plain.append_event(session, said("by plain ADK"))
    async with DurableSessionService.from_url(url) as sessions:
        found = await sessions.get_session(**OWNER, session_id="session")
        assert found is not None
        await sessions.append_event(found, said("by us"))
    async with DatabaseSessionService(url) as plain:
        read = await plain.get_session(**OWNER, session_id="session")
    assert read is not None
    assert texts(read.events) == ["by plain ADK", "by us"]
    assert read.state == {"user:a": 1}


async def test_a_database_opens_beside_the_wal_of_a_crash(tmp_path: Path) -> None:
    """A database whose last events are in the WAL only opens with all of them."""
    url = f"sqlite:///{tmp_path}/sessions.db"
    crashed = tmp_path / "crashed"
    crashed.mkdir()
    async with DurableSessionService.from_url(url) as sessions:
        session = await sessions.create_session(**OWNER, session_id="session")
        await sessions.append_event(session, said("in the WAL"))
        for name in ("sessions.db", "sessions.db-wal"):
            shutil.copy(tmp_path / name, crashed / name)
    assert (crashed / "sessions.db-wal").stat().st_size
    async with DurableSessionService.from_url(f"sqlite:///{crashed}/sessions.db") as sessions:
        found = await sessions.get_session(**OWNER, session_id="session")
    assert found is not None
    assert texts(found.events) == ["in the WAL"]


def tear(path: Path, start: int, end: int) -> None:
    """Overwrites some bytes of a file."""
    with path.open("r+b") as file:
        file.seek(start)
        file.write(b"\xff" * (end - start))


async def test_a_database_opens_beside_the_journal_of_a_crash(tmp_path: Path) -> None:
    """A write of plain ADK that a crash cut in two is rolled back by SQLite, and is no error."""
    url = f"sqlite+aiosqlite:///{tmp_path}/sessions.db"
    async with DatabaseSessionService(url) as plain:
        await plain.create_session(**OWNER, session_id="session", state={"text": "x" * 200_000})
    crashed = tmp_path / "crashed"
    crashed.mkdir()
    with closing(sqlite3.connect(tmp_path / "sessions.db")) as writer:
        writer.execute("PRAGMA cache_size=1")
        writer.execute("BEGIN")
        writer.execute("CREATE TABLE later (x)")
        writer.execute("UPDATE sessions SET state = zeroblob(300000)")
        for name in ("sessions.db", "sessions.db-journal"):
            shutil.copy(tmp_path / name, crashed / name)
        writer.rollback()
    # The first page, with the table definitions, was half written; the journal has it whole.
    tear(crashed / "sessions.db", start=100, end=4096)
    async with DurableSessionService.from_url(f"sqlite:///{crashed}/sessions.db") as sessions:
        found = await sessions.get_session(**OWNER, session_id="session")
    assert found is not None
    assert found.state == {"text": "x" * 200_000}


# --- describe


async def test_describing_changes_nothing(tmp_path: Path) -> None:
    """A look at a database of plain ADK leaves its journal mode and its folder alone."""
    url = f"sqlite+aiosqlite:///{tmp_path}/sessions.db"
    async with DatabaseSessionService(url) as plain:
        session = await plain.create_session(**OWNER)
        await plain.append_event(session, said("kept"))
    before = snapshot(tmp_path)
    report = await describe(url)
    assert report["sessions"] == report["events"] == "1"
    assert report["status"] == "ready"
    assert snapshot(tmp_path) == before


async def test_describing_sees_what_is_in_the_wal(tmp_path: Path) -> None:
    """A look while another service writes counts what was acknowledged."""
    url = f"sqlite:///{tmp_path}/sessions.db"
    async with DurableSessionService.from_url(url) as sessions:
        session = await sessions.create_session(**OWNER)
        for number in range(3):
            await sessions.append_event(session, said(str(number)))
        report = await describe(url)
    assert (report["sessions"], report["events"]) == ("1", "3")


async def test_describing_recovers_nothing(tmp_path: Path) -> None:
    """A look at what a crash left behind counts it and leaves the file and its WAL as they are."""
    crashed = tmp_path / "crashed"
    crashed.mkdir()
    async with DurableSessionService.from_url(f"sqlite:///{tmp_path}/sessions.db") as sessions:
        session = await sessions.create_session(**OWNER)
        await sessions.append_event(session, said("in the WAL"))
        for name in ("sessions.db", "sessions.db-wal"):
            shutil.copy(tmp_path / name, crashed / name)
    before = snapshot(crashed)
    report = await describe(f"sqlite:///{crashed}/sessions.db")
    assert (report["sessions"], report["events"]) == ("1", "1")
    assert {name: kept for name, kept in snapshot(crashed).items() if name in before} == before


async def test_tables_of_adk_1_on_a_server_are_refused(postgresql_url: str) -> None:
    """On a server as in a file, schema v0 is named by a look and by the first use, and is kept."""
    engine = create_async_engine(postgresql_url)
    async with engine.begin() as connection:
        await connection.run_sync(TablesOfVersion0.metadata.create_all)
    await engine.dispose()
    tables = execute(postgresql_url, TABLES)
    url = f"{postgresql_url}?application_name=hunter2"
    url = f"{postgresql_url}?password=hunter2"
    with pytest.raises(SchemaVersionError, match="schema v0") as looked:
        await describe(url)
    async with DurableSessionService.from_url(url) as sessions:
        with pytest.raises(SchemaVersionError, match="schema v0") as used:
            await sessions.create_session(**OWNER)
    assert "hunter2" not in f"{looked.value} {used.value}"
    assert execute(postgresql_url, TABLES) == tables


async def test_a_password_is_not_described(postgresql_url: str) -> None:
    """Neither a URL's password nor its parameters are in a report or an error."""
    url = URL.create(
        "postgresql+asyncpg", "user", "hunter2", "127.0.0.1", 1, "name", {"password": "hunter2"}
    )
    with pytest.raises(MemoryExtError) as caught:
        await describe(url.render_as_string(hide_password=False))
    assert "user:***@127.0.0.1:1/name cannot be reached" in str(caught.value)
    assert "hunter2" not in "".join(traceback.format_exception(caught.value))
    assert "password" not in (await describe(f"{postgresql_url}?password=hunter2"))["database"]


@contextmanager
def held_by_another(path: Path) -> Iterator[sqlite3.Connection]:
    """Another connection is in the middle of a write to a file that is not in WAL mode yet."""
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("CREATE TABLE being_made (id)")
        other.execute("BEGIN IMMEDIATE")
        yield other


async def test_a_start_waits_for_who_is_making_the_file(tmp_path: Path) -> None:
    """A service starts on a file that another process is writing, as soon as that one is done."""
    path = tmp_path / "sessions.db"
    with held_by_another(path) as other:
        release = threading.Timer(0.3, other.execute, ["COMMIT"])
        release.start()
        async with DurableSessionService.from_url(f"sqlite:///{path}") as sessions:
            session = await sessions.create_session(**OWNER)
        release.join()
    assert session.id


async def test_a_start_waits_no_longer_than_it_may(tmp_path: Path) -> None:
    """A file that stays locked past `busy_timeout` is named as locked."""
    path = tmp_path / "sessions.db"
    patience = timedelta(milliseconds=50)
    with held_by_another(path):
        service = DurableSessionService.from_url(f"sqlite:///{path}", busy_timeout=patience)
        with pytest.raises(StoreUnavailableError, match="locked"):
            async with service as sessions:
                await sessions.create_session(**OWNER)
