"""The tables that stand beside ADK's, all named `memext_*`.

`memext_sessions` gives each of ADK's sessions a short integer key, its place in lists and the
number of its last record; `memext_events` gives each event its sequence; `memext_state_times` says
when a key that expires was last written; `memext_landmarks` says where the events are that a
windowed load needs from before its window. None repeats what ADK's tables hold, so that dropping
them loses order by sequence, titles and expiry, and nothing else.
`memext_initial_state` keeps the state that a session was created with, which no event holds;
`memext_profile_users` and `memext_profile_facts` profiles; `memext_checkpoint…` checkpoints.
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
    text,
)
from sqlalchemy.dialects.mysql import LONGTEXT, MEDIUMTEXT

from adk_memory_ext.adk_tables import ID_LENGTH, NAME_LENGTH

VERSION: Final = 12
"""The schema version that this code writes; `migrations` brings a database to it."""

# SQLite's INTEGER PRIMARY KEY is the row's own key (https://www.sqlite.org/rowidtable.html).
_KEY: Final = BigInteger().with_variant(Integer(), "sqlite")
_TEXT: Final = Text().with_variant(LONGTEXT(), "mysql", "mariadb")

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
    # How often stored events were removed or changed: what was read of them before is outdated.
    Column("rewrites", BigInteger, nullable=False, server_default=text("0")),
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
    # Of the event that makes the call, is the summary or rewinds.
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    # SHA-256 of a long-running call's id; empty for a compaction summary, "<" for a rewind.
    Column("call_digest", String(64), primary_key=True),
    # Of the event with which somebody outside answered, null as long as nobody has; of a rewind,
    # of the first event that it hides.
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

memext_initial_state: Final = Table(
    "memext_initial_state",
    metadata,
    Column("session_key", _KEY, primary_key=True, autoincrement=False),
    # Session-scope state, a JSON object; there is no row for an empty one.
    Column("state", _TEXT, nullable=False),
)

memext_checkpoint_lines: Final = Table(
    "memext_checkpoint_lines",
    metadata,
    Column("line_key", _KEY, primary_key=True, autoincrement=True),
    Column("app_name", String(ID_LENGTH), nullable=False),
    Column("user_id", String(ID_LENGTH), nullable=False),
    Column("session_id", String(ID_LENGTH), nullable=False),
    # Of memext_sessions: the checkpoints outlive their session, and a later one of its id.
    Column("incarnation", BigInteger, nullable=False),
    # Random; without it nobody can tell what a digest is of.
    Column("salt", String(32), nullable=False),
    # The newest event that a checkpoint covers, and the digest of the log up to there.
    Column("covered_sequence", BigInteger, nullable=False),
    Column("digest", String(32), nullable=False),
    Column("last_number", BigInteger, nullable=False),
    # The state and the artifacts as of the newest checkpoint: what the next one is compared with.
    Column("manifest", _TEXT, nullable=False),
    # The checkpoint that the session was made from.
    Column("parent_checkpoint", String(ID_LENGTH), nullable=True),
    # The session of that checkpoint, whose words a fork holds too; null once it was erased.
    Column("parent_session_id", String(ID_LENGTH), nullable=True),
    UniqueConstraint(
        "app_name", "user_id", "session_id", "incarnation", name="memext_checkpoint_lines_identity"
    ),
)

memext_checkpoints: Final = Table(
    "memext_checkpoints",
    metadata,
    Column("line_key", _KEY, primary_key=True, autoincrement=False),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("checkpoint_id", String(32), nullable=False),
    Column("sequence", BigInteger, nullable=False),
    Column("step", String(NAME_LENGTH), nullable=False),
    Column("created_microseconds", BigInteger, nullable=False),
    Column("digest", String(32), nullable=False),
    # A few bits of a digest of each event since the checkpoint before, which name a changed event;
    # in front of them sequence, digest and marks of the pruned checkpoints before this one.
    Column("marks", _TEXT, nullable=False),
    # Rewinds, restores and copies among these events, a JSON list; null for none.
    Column("specials", _TEXT, nullable=True),
    Column("is_snapshot", Integer, nullable=False),
    # The state as a whole, or what has changed since the checkpoint before.
    Column("manifest", _TEXT, nullable=False),
    Column("details", _TEXT, nullable=False),
    UniqueConstraint("checkpoint_id", name="memext_checkpoints_id"),
    sqlite_with_rowid=False,
)

memext_checkpoint_values: Final = Table(
    "memext_checkpoint_values",
    metadata,
    Column("line_key", _KEY, primary_key=True, autoincrement=False),
    # Salted: of a value's text.
    Column("digest", String(32), primary_key=True),
    Column("value", _TEXT, nullable=False),
    sqlite_with_rowid=False,
)
