"""Database engines: which driver a URL means, and the pragmas that make SQLite safe.

Every SQLite connection is opened with WAL, `BEGIN IMMEDIATE` for writes, a busy timeout,
`foreign_keys`, `secure_delete` and temporary tables in memory; each is read back, because SQLite
ignores a pragma that it cannot honour (https://www.sqlite.org/pragma.html).
"""

from __future__ import annotations

import errno
import importlib
import os
import shlex
import sqlite3
import time
from contextlib import closing, suppress
from dataclasses import dataclass, fields
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal
from uuid import uuid4

from adk_memory_ext.errors import ConfigurationError, StoreUnavailableError

try:
    importlib.import_module("greenlet")  # SQLAlchemy's asyncio extension fails obscurely without
    from sqlalchemy import event, func, inspect, select, table
    from sqlalchemy.engine import URL, Connection, make_url
    from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
    from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
    from sqlalchemy.pool import AsyncAdaptedQueuePool

    from adk_memory_ext import adk_tables
except ImportError as error:
    raise ConfigurationError(
        f"{error.name} is not installed; install it with: pip install 'google-adk[db]'"
    ) from error

if TYPE_CHECKING:
    from collections.abc import Mapping

_ASYNC_DRIVERS: Final[Mapping[str, str]] = {
    "sqlite": "aiosqlite",
    "postgresql": "asyncpg",
    "mysql": "aiomysql",
    "mariadb": "aiomysql",
}
_EXTRAS: Final[Mapping[str, str]] = {
    "sqlite": "",
    "postgresql": "[postgresql]",
    "mysql": "[mysql]",
    "mariadb": "[mysql]",
}
# ADK keeps microseconds on the dialect that is called mysql, but whole seconds on the same server
# as mariadb: then every append after a load is refused as stale (google-adk 2.13.0).
_DIALECT_ALIASES: Final[Mapping[str, str]] = {"postgres": "postgresql", "mariadb": "mysql"}
_COUNTED: Final = ("sessions", "events")
_BETWEEN_TRIES: Final = timedelta(milliseconds=5)
_LONGEST_TIMEOUT: Final = timedelta(milliseconds=2**31 - 1)  # what SQLite can count to


@dataclass(frozen=True, kw_only=True)
class DatabaseOptions:
    """How a database is opened.

    Raises:
        ConfigurationError: When an option has no meaning; nothing was opened.
    """

    synchronous: Literal["FULL", "NORMAL"] = "FULL"
    """SQLite: `FULL` syncs the WAL at every commit, so that what was acknowledged survives a power
    cut. `NORMAL` gives that up for speed: a killed process still loses nothing, but a power cut may
    lose the last commits (never the file). Ignored on other databases."""
    busy_timeout: timedelta = timedelta(seconds=60)
    """SQLite: how long a write waits for another process's write before it fails."""
    sqlite_module: str = "sqlite3"
    """SQLite: the module to use the file through, and to verify erasures with, such as `pysqlite3`.
    Two libraries on one file in one process drop each other's locks: whatever else in the process
    uses the file has to use the same one."""
    pool_size: int = 5
    """Servers: connections that are kept open."""
    max_overflow: int = 10
    """Servers: connections that may be opened beyond these under load."""
    pool_timeout: timedelta = timedelta(seconds=30)
    """Servers: how long an operation waits for a connection."""
    schema: str | None = None
    """PostgreSQL: the schema that holds the tables, ADK's and ours; it must exist. None: the
    user's default one."""

    @classmethod
    def from_mapping(cls, options: Mapping[str, Any]) -> DatabaseOptions:
        """Returns the options, naming an unknown one and those that exist."""
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(options) - known):
            raise ConfigurationError(
                f"Unknown option {unknown[0]!r}; there are {', '.join(sorted(known))}."
            )
        return cls(**options)

    def connect_arguments(self, dialect: str) -> dict[str, Any]:
        """Returns what the driver of a server is given at each connect."""
        if self.schema is None:
            return {}
        if dialect != "postgresql":
            raise ConfigurationError("The option schema is for PostgreSQL only.")
        quoted = self.schema.replace('"', '""')
        return {"server_settings": {"search_path": f'"{quoted}"'}}

    def __post_init__(self) -> None:
        if self.synchronous not in ("FULL", "NORMAL"):
            raise ConfigurationError(
                f"synchronous must be 'FULL' or 'NORMAL', not {self.synchronous!r}."
            )
        for name in ("busy_timeout", "pool_timeout"):
            timeout = getattr(self, name)
            if not isinstance(timeout, timedelta):
                raise ConfigurationError(f"{name} must be a timedelta, not {timeout!r}.")
            if not timedelta(0) <= timeout <= _LONGEST_TIMEOUT:
                raise ConfigurationError(
                    f"{name} must be between 0 and {_LONGEST_TIMEOUT.days} days."
                )
        for name, least in (("pool_size", 1), ("max_overflow", 0)):
            number = getattr(self, name)
            if not isinstance(number, int) or number < least:
                raise ConfigurationError(
                    f"{name} must be a whole number from {least} on, not {number!r}."
                )


def parse_url(url: str) -> URL:
    """Returns the SQLAlchemy URL that `url` means, with an asynchronous driver.

    An empty URL means a database in memory that lives as long as its service. `sqlite:///`,
    `postgresql://`, `postgres://`, `mysql://` and `mariadb://` get the driver that this package
    uses; a relative SQLite path is relative to the working directory, as everywhere in SQLAlchemy.

    Raises:
        ConfigurationError: When the URL cannot be read, names a synchronous driver or one that is
            not installed; nothing was opened.
    """
    url = url or "sqlite://"
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        # The cause is left out: SQLAlchemy quotes what it took for the port, perhaps a password.
        raise ConfigurationError(
            "The database URL cannot be read; it looks like"
            " sqlite:///.sessions/sessions.db or postgresql://user@host/database."
        ) from None
    dialect, _, driver = parsed.drivername.lower().partition("+")
    dialect = _DIALECT_ALIASES.get(dialect, dialect)
    if dialect not in _ASYNC_DRIVERS:
        raise ConfigurationError(
            f"No support for {dialect!r} databases; use one of {', '.join(_ASYNC_DRIVERS)}."
        )
    driver = driver or _ASYNC_DRIVERS[dialect]
    parsed = parsed.set(drivername=f"{dialect}+{driver}")
    _require_async_driver(parsed, dialect)
    if dialect == "sqlite":
        _refuse_more_than_a_path(parsed, has_query="?" in url)
    elif "@" in (parsed.host or ""):
        raise ConfigurationError("The URL has two @; in a user name or a password it is %40.")
    if driver == "asyncpg" and "sslmode" in parsed.query:
        # What libpq calls `sslmode`, with the same values, asyncpg's connect() calls `ssl`.
        mode = parsed.query["sslmode"]
        parsed = parsed.difference_update_query(["sslmode"]).update_query_dict({"ssl": mode})
    return parsed


def _require_async_driver(url: URL, dialect: str) -> None:
    """Raises ConfigurationError unless the driver of `url` is installed and asynchronous."""
    ours = f"{dialect}+{_ASYNC_DRIVERS[dialect]}"
    try:
        is_async = url.get_dialect().is_async
        if is_async:
            url.get_dialect().import_dbapi()
    except (NoSuchModuleError, ValueError) as error:
        raise ConfigurationError(
            f"SQLAlchemy knows no driver {url.drivername!r}; use {ours}://"
        ) from error
    except ImportError as error:
        raise ConfigurationError(
            f"The driver of {url.drivername}:// is not installed; "
            + (
                f"install it with: pip install 'adk-memory-ext{_EXTRAS[dialect]}'"
                if url.drivername == ours
                else f"install it, or use {ours}://"
            )
        ) from error
    if not is_async:
        raise ConfigurationError(f"{url.drivername}:// names a synchronous driver; use {ours}://")


def _refuse_more_than_a_path(url: URL, *, has_query: bool) -> None:
    """Raises ConfigurationError for a SQLite URL that says more than where the file is."""
    if url.host or url.username or url.password or url.port:
        raise ConfigurationError(
            "A SQLite URL has three slashes before a relative path and four before an absolute"
            " one: sqlite:///folder/file.db, sqlite:////folder/file.db"
        )
    if has_query:
        raise ConfigurationError(
            "A SQLite URL takes no parameters (give them as options, as in busy_timeout=…);"
            " a question mark in a file name is %3F."
        )
    if "\0" in (url.database or ""):
        raise ConfigurationError("A file name cannot hold a NUL character.")


def sqlite_path(url: URL) -> Path | None:
    """Returns the file that a SQLite URL names; None for memory and for other databases."""
    if url.get_backend_name() != "sqlite" or url.database in (None, "", ":memory:"):
        return None
    return Path(str(url.database))


def open_engine(url: URL, options: DatabaseOptions) -> AsyncEngine:
    """Returns an engine over `url`; the caller disposes of it.

    On SQLite the parent folder is created (mode 0700) and the file too (0600), after a look at
    what an existing file is.

    Raises:
        ConfigurationError: When the folder cannot be written or the file is no database.
        SchemaVersionError: When the tables in the file are of another layout; nothing was touched.
    """
    if url.get_backend_name() != "sqlite":
        return create_async_engine(url, pool_pre_ping=True)
    path = sqlite_path(url)
    if path is not None:
        refuse_foreign_file(path)
        create_file(path)
        engine = create_async_engine(url, poolclass=AsyncAdaptedQueuePool)
    else:
        engine = _open_memory()
    event.listen(
        engine.sync_engine,
        "connect",
        lambda connection, _record: set_pragmas(connection, options, in_memory=path is None),
    )
    event.listen(engine.sync_engine, "begin", _begin)
    return engine


def _open_memory() -> AsyncEngine:
    """Returns an engine over a database in memory that lives until the engine is disposed of.

    SQLAlchemy closes the connection of a task that is cancelled, and a database that lived in it
    would be lost; so it lives in one that no task uses (https://www.sqlite.org/src/file/src/memdb.c).
    """
    if sqlite3.sqlite_version_info < (3, 36):
        raise ConfigurationError(
            f"A database in memory needs SQLite 3.36; this Python has {sqlite3.sqlite_version}."
        )
    name, query = f"file:/memext-{uuid4().hex}", {"vfs": "memdb", "uri": "true"}
    owner = sqlite3.connect(f"{name}?vfs=memdb", uri=True, check_same_thread=False)
    engine = create_async_engine(
        URL.create("sqlite+aiosqlite", database=name, query=query),
        poolclass=AsyncAdaptedQueuePool,
        # One connection: readers and writers of such a database cannot pass each other.
        pool_size=1,
        max_overflow=0,
        pool_timeout=None,
    )
    event.listen(engine.sync_engine, "engine_disposed", lambda _engine: owner.close())
    return engine


def _begin(connection: Connection) -> None:
    """Begins a transaction that takes the write lock first, unless it is marked as read-only.

    A deferred transaction that reads and then writes fails at once, without waiting, when another
    one wrote in between (https://www.sqlite.org/isolation.html).
    """
    read_only = connection.get_execution_options().get("read_only", False)
    connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")


def set_pragmas(connection: Any, options: DatabaseOptions, *, in_memory: bool) -> None:
    """Sets what makes a connection safe and reads each pragma back.

    Raises:
        ConfigurationError: When SQLite will not have one of them.
    """
    connection.isolation_level = None  # no implicit BEGIN; `_begin` says which one
    wanted: dict[str, str | int] = {
        "busy_timeout": int(options.busy_timeout.total_seconds() * 1000),
        "foreign_keys": 1,
        "journal_mode": "memory" if in_memory else "wal",
        "secure_delete": 1,
        "synchronous": {"NORMAL": 1, "FULL": 2}[options.synchronous],
        "temp_store": 2,
    }
    cursor = connection.cursor()
    try:
        for pragma, value in wanted.items():
            _set_pragma(cursor, f"PRAGMA {pragma}={value}", options.busy_timeout)
            cursor.execute(f"PRAGMA {pragma}")
            (actual,) = cursor.fetchone()
            if actual != value:
                raise ConfigurationError(
                    f"SQLite would not set {pragma} to {value}; it stays at {actual}."
                )
    finally:
        cursor.close()


def _set_pragma(cursor: Any, statement: str, patience: timedelta) -> None:
    """Runs the statement, waiting for other connections as long as a write may wait.

    The change to WAL asks no busy handler: it fails at once while another connection writes or
    makes the file (https://www.sqlite.org/wal.html, "Activating And Configuring WAL Mode").
    """
    until = time.monotonic() + patience.total_seconds()
    while True:
        try:
            cursor.execute(statement)
            cursor.fetchall()
        except Exception as error:
            code = getattr(error, "sqlite_errorcode", None)
            if code != sqlite3.SQLITE_BUSY or time.monotonic() >= until:
                raise
            time.sleep(_BETWEEN_TRIES.total_seconds())
        else:
            return


def sqlite_library(name: str) -> Any:
    """Returns the module of that name, which is used like `sqlite3`.

    Raises:
        ConfigurationError: When it is not installed, or no such module.
    """
    try:
        library = importlib.import_module(name)
    except (ImportError, ValueError) as error:
        raise ConfigurationError(
            f"sqlite_module={name!r} is not installed; with pip the module pysqlite3 is called"
            " pysqlite3-binary."
        ) from error
    if not hasattr(library, "sqlite_version_info"):
        raise ConfigurationError(f"sqlite_module={name!r} is no module of SQLite's.")
    return library


def create_file(path: Path) -> None:
    """Creates the file (0600) and the folders that are missing (0700), whatever the umask adds."""
    try:
        folders = (path.parent, *path.parent.parents)
        for folder in reversed([folder for folder in folders if not folder.exists()]):
            folder.mkdir(mode=0o700, exist_ok=True)
        # Not opened where it exists: closing it again would drop all locks that connections of this
        # process hold on it, and with them the WAL (https://sqlite.org/howtocorrupt.html).
        with suppress(FileExistsError):
            path.resolve().touch(0o600, exist_ok=False)
        _require_access(path, os.R_OK | os.W_OK)
        # SQLite writes its WAL beside the file that a link leads to.
        _require_access(path.resolve().parent, os.W_OK | os.X_OK)
    except OSError as error:
        raise ConfigurationError(
            f"The database {str(path)!r} cannot be written ({error.strerror});"
            " choose a folder that this process may write to."
        ) from error


def _require_access(path: Path, mode: int) -> None:
    if not os.access(path, mode):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def refuse_foreign_file(path: Path, library: Any = sqlite3) -> None:
    """Does nothing if `path` is missing, empty or holds tables that this package can use.

    It is read through `library`, which must be the one that others in this process use it with.

    Raises:
        ConfigurationError: When it is a folder, unreadable or no SQLite database.
        SchemaVersionError: When its tables were made by ADK 1.x (schema v0) or by ADK's
            `SqliteSessionService`. The file was only read.
    """
    try:
        if not path.exists():
            return
        if not path.is_file():
            raise ConfigurationError(
                f"{str(path)!r} is not a file; name one, as in sqlite:///folder/file.db"
            )
        _require_access(path, os.R_OK)
        if not path.stat().st_size:
            return
    except OSError as error:
        raise ConfigurationError(
            f"The database {str(path)!r} cannot be read ({error.strerror});"
            " choose a file that this process may read."
        ) from error
    _refuse_foreign_tables(path, library)


def _refuse_foreign_tables(path: Path, library: Any) -> None:
    source, target = (
        shlex.quote(URL.create("sqlite", database=name).render_as_string())
        for name in (str(path), f"{path}.new")
    )
    adk_tables.refuse_foreign_layout(
        _column_types(path, library).get("events", {}),
        where=repr(str(path)),
        source=source,
        target=target,
    )


def _column_types(path: Path, library: Any = sqlite3) -> dict[str, dict[str, str]]:
    """Returns {table: {column: declared type}} of a SQLite file, without writing to it."""
    sql = (
        "SELECT m.name, p.name, upper(p.type) FROM sqlite_master AS m"
        " JOIN pragma_table_info(m.name) AS p WHERE m.type = 'table'"
    )
    wal, journal = (_beside(path, suffix).exists() for suffix in ("-wal", "-journal"))
    columns: dict[str, dict[str, str]] = {}
    # `immutable` makes no -shm file, but sees the main file only (https://www.sqlite.org/uri.html):
    # with a journal beside it, that may be half of a transaction, which SQLite recovers later.
    for mode in ("immutable=1", "mode=ro") if wal else ("immutable=1",):
        try:
            for name, column, declared in _query(path, sql, mode, library):
                columns.setdefault(name, {})[column] = declared
        except library.DatabaseError as error:
            if mode == "mode=ro" or not (wal or journal):
                if error.sqlite_errorcode == sqlite3.SQLITE_NOTADB:
                    raise ConfigurationError(
                        f"{str(path)!r} is not a SQLite database; choose another file name."
                        " If it was one, restore it from a backup."
                    ) from error
                raise ConfigurationError(
                    f"{str(path)!r} cannot be read as a SQLite database ({error}); restore it"
                    " from a backup or choose another file."
                ) from error
        if "events" in columns:
            break
    return columns


def _beside(path: Path, suffix: str) -> Path:
    real = path.resolve()
    return real.with_name(real.name + suffix)


def _query(path: Path, sql: str, mode: str, library: Any = sqlite3) -> list[Any]:
    with closing(library.connect(f"{path.resolve().as_uri()}?{mode}", uri=True)) as connection:
        rows: list[Any] = connection.execute(sql).fetchall()
    return rows


async def describe(url: str) -> dict[str, str]:
    """Returns what a person wants to know of a database, in the order in which to print it.

    A SQLite file that does not exist is not created.

    Raises:
        ConfigurationError: When the database cannot be used.
        SchemaVersionError: When its tables are of another layout.
        StoreUnavailableError: When it cannot be reached.
    """
    parsed = parse_url(url)
    # Drivers take passwords as parameters too, so none is shown.
    report = {"database": parsed.set(query={}).render_as_string(hide_password=True)}
    path = sqlite_path(parsed)
    if path is not None:
        return report | _describe_file(path)
    engine = open_engine(parsed, DatabaseOptions())
    try:
        async with engine.connect() as connection:
            event_columns = await connection.run_sync(adk_tables.event_columns)
            adk_tables.refuse_foreign_layout(event_columns, where=report["database"])
            report |= await connection.run_sync(_describe)
    except (DBAPIError, OSError, TypeError) as error:
        raise StoreUnavailableError(
            f"{report['database']} cannot be reached ({_first_cause(error)});"
            " is the server running, and are host, user, database and parameters right?"
        ) from error
    finally:
        await engine.dispose()
    return report | {"status": "ready"}


def _first_cause(error: BaseException) -> str:
    """Returns the name of the driver's own error; its text may hold what was connected with."""
    while error.__cause__ is not None:
        error = error.__cause__
    return type(error).__name__


def _describe(connection: Connection) -> dict[str, str]:
    inspector = inspect(connection)
    version = ".".join(str(part) for part in connection.dialect.server_version_info or ())
    report = {"server": f"{connection.dialect.name} {version}"}
    for name in _COUNTED:
        if inspector.has_table(name):
            count = connection.execute(select(func.count()).select_from(table(name))).scalar_one()
            report[name] = f"{count:,}"
    return report


def _describe_file(path: Path) -> dict[str, str]:
    """Describes a file without an engine, whose connections would turn it into WAL mode."""
    refuse_foreign_file(path)
    if not path.exists():
        return {"status": "not there yet; the first session creates it"}
    report = {"server": f"sqlite {sqlite3.sqlite_version}"}
    mode = "mode=ro" if _beside(path, "-wal").exists() else "immutable=1"
    for name in _COUNTED:
        if name in _column_types(path):
            ((count,),) = _query(path, f"SELECT count(*) FROM {name}", mode)  # noqa: S608
            report[name] = f"{count:,}"
    return report | {"status": "ready"}
