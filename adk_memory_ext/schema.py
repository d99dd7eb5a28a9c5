"""The tables that stand beside ADK's, all named `memext_*`.

`memext_sessions` gives each of ADK's sessions a short integer key, its place in lists and the
number of its last record; `memext_events` gives each event its sequence; `memext_state_times` says
when a key that expires was last written; `memext_landmarks` says where the events are that a
windowed load needs from before its window. None repeats what ADK's tables hold, so that dropping
them loses order by sequence, titles and expiry, and nothing else.
`memext_profile_users` and `memext_profile_facts` hold what nothing else does: profiles.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    BigInteger,
    Column,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)
from sqlalchemy.dialects.mysql import LONGTEXT, MEDIUMTEXT

from adk_memory_ext.adk_tables import ID_LENGTH, NAME_LENGTH

VERSION: Final = 6
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

memext_landmarks: Final = Table(
    "memext_landmarks",
    metadata,
    Column("session_key", _KEY, primary_key=True, autoincrement=False),
    # Of the event that makes the call or is the summary.
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    # SHA-256 of a long-running call's id; empty for a compaction summary.
    Column("call_digest", String(64), primary_key=True),
    # Of the event with which somebody outside answered; null as long as nobody has.
    Column("answered_sequence", BigInteger, nullable=True),
    sqlite_with_rowid=False,
)
memext_profile_users: Final = Table(
    "memext_profile_users",
    metadata,
    Column("app_name", String(ID_LENGTH), primary_key=True),
    Column("user_id", String(ID_LENGTH), primary_key=True),
    # A random number that tells a profile from a later one of the same user.
    Column("incarnation", BigInteger, nullable=False),
    # Numbers the writes; whoever writes locks this row.
    Column("revision", BigInteger, nullable=False),
    # The time of the newest write: the next one is later, whatever the clock says.
    Column("written_microseconds", BigInteger, nullable=False),
    sqlite_with_rowid=False,
)

_FACT_NAME_LENGTH: Final = 64

memext_profile_facts: Final = Table(
    "memext_profile_facts",
    metadata,
    Column("app_name", String(ID_LENGTH), primary_key=True),
    Column("user_id", String(ID_LENGTH), primary_key=True),
    # 0 while the value is current, else the revision that replaced it: so the primary key holds
    # one current value a fact, and a profile's current values lie side by side.
    Column("retired_revision", BigInteger, primary_key=True, autoincrement=False),
    Column("subject", String(_FACT_NAME_LENGTH), primary_key=True),
    Column("fact_key", String(_FACT_NAME_LENGTH), primary_key=True),
    Column("revision", BigInteger, nullable=False),
    Column("supersedes", BigInteger, nullable=True),
    Column("kind", String(16), nullable=False),
    Column("status", String(16), nullable=False),
    Column("sensitivity", String(16), nullable=False),
    # JSON: values with confidence, times and sources; names of agents; keys.
    Column("claims", Text().with_variant(MEDIUMTEXT(), "mysql"), nullable=False),
    Column("visible_to", Text().with_variant(MEDIUMTEXT(), "mysql"), nullable=False),
    Column("derived_from", Text().with_variant(MEDIUMTEXT(), "mysql"), nullable=False),
    Column("created_microseconds", BigInteger, nullable=False),
    Column("expires_microseconds", BigInteger, nullable=True),
    Column("retired_microseconds", BigInteger, nullable=True),
    sqlite_with_rowid=False,
)

memext_state_times: Final = Table(
    "memext_state_times",
    metadata,
    Column("app_name", String(ID_LENGTH), primary_key=True),
    # Empty for `app:`.
    Column("user_id", String(ID_LENGTH), primary_key=True),
    # Empty for `app:` and `user:`.
    Column("session_id", String(ID_LENGTH), primary_key=True),
    # With its prefix.
    Column("state_key", String(NAME_LENGTH), primary_key=True),
    # Of the last write, by the database's clock.
    Column("written_microseconds", BigInteger, nullable=False),
)
Index("memext_state_times_by_time", memext_state_times.c.written_microseconds)


memext_requests: Final = Table(
    "memext_requests",
    metadata,
    Column("request_key", _KEY, primary_key=True, autoincrement=True),
    Column("session_key", _KEY, nullable=False),
    Column("invocation_id", String(NAME_LENGTH), nullable=False),
    Column("agent", String(NAME_LENGTH), nullable=False),
    Column("recorded_microseconds", BigInteger, nullable=False),
    # Ids and counts as JSON, never words.
    Column("report", Text().with_variant(LONGTEXT(), "mysql"), nullable=False),
)
Index("memext_requests_by_session", memext_requests.c.session_key)


# Erasures that have begun and not ended. Ids stand here only until the rows are gone.
memext_erasures: Final = Table(
    "memext_erasures",
    metadata,
    Column("erasure_id", String(32), primary_key=True),
    Column("begun_microseconds", BigInteger, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("app_name", String(ID_LENGTH), nullable=True),
    Column("user_id", String(ID_LENGTH), nullable=True),
    Column("session_id", String(ID_LENGTH), nullable=True),
    # What is known by now, as a JSON object for the receipt; nothing personal.
    Column("facts", Text().with_variant(LONGTEXT(), "mysql"), nullable=False),
)

memext_receipts: Final = Table(
    "memext_receipts",
    metadata,
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    # A digest over the receipt and the digest before it.
    Column("digest", String(64), nullable=False),
    Column("receipt", Text().with_variant(LONGTEXT(), "mysql"), nullable=False),
)
