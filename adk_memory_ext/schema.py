"""The tables that stand beside ADK's, all named `memext_*`.

`memext_sessions` gives each of ADK's sessions a short integer key, its place in lists and the
number of its last record; `memext_events` gives each event its sequence. Neither repeats what
ADK's tables hold, so that dropping them loses order by sequence and titles, and nothing else.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import BigInteger, Column, Index, Integer, MetaData, String, Table, UniqueConstraint

from adk_memory_ext.adk_tables import ID_LENGTH, NAME_LENGTH

VERSION: Final = 1
"""The schema version that this code writes; `migrations` brings a database to it."""

# SQLite's INTEGER PRIMARY KEY is the row's own key (https://www.sqlite.org/rowidtable.html).
_KEY: Final = BigInteger().with_variant(Integer(), "sqlite")

metadata: Final = MetaData()

memext_migrations: Final = Table(
    "memext_migrations",
    metadata,
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("applied_microseconds", BigInteger, nullable=False),
)

memext_sessions: Final = Table(
    "memext_sessions",
    metadata,
    Column("session_key", _KEY, primary_key=True, autoincrement=True),
    Column("app_name", String(ID_LENGTH), nullable=False),
    Column("user_id", String(ID_LENGTH), nullable=False),
    Column("session_id", String(ID_LENGTH), nullable=False),
    # A random number that tells a session from a later one of the same id.
    Column("incarnation", BigInteger, nullable=False),
    # The sequence of the newest event: also the session's revision.
    Column("last_sequence", BigInteger, nullable=False),
    # The sequence of the newest event with content: who has not seen it is a stale writer.
    Column("content_sequence", BigInteger, nullable=False),
    # The event that plain ADK reads last; another one there means that plain ADK wrote.
    Column("newest_event_id", String(ID_LENGTH), nullable=True),
    # ADK's create_time and update_time as last seen; another value in ADK's table means that
    # plain ADK wrote there.
    Column("created_microseconds", BigInteger, nullable=False),
    Column("updated_microseconds", BigInteger, nullable=False),
    Column("title", String(NAME_LENGTH), nullable=True),
    UniqueConstraint("app_name", "user_id", "session_id", name="memext_sessions_identity"),
)
Index(
    "memext_sessions_by_user",
    memext_sessions.c.app_name,
    memext_sessions.c.user_id,
    memext_sessions.c.updated_microseconds,
    memext_sessions.c.session_key,
)
Index(
    "memext_sessions_by_app",
    memext_sessions.c.app_name,
    memext_sessions.c.updated_microseconds,
    memext_sessions.c.session_key,
)

memext_events: Final = Table(
    "memext_events",
    metadata,
    Column("session_key", _KEY, primary_key=True, autoincrement=False),
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    Column("event_id", String(ID_LENGTH), nullable=False),
    sqlite_with_rowid=False,
)
