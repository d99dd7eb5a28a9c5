"""Brings a database to the schema version of this code, once, however many processes start.

A migration is a function that runs in one transaction with the record of its version. It names
what it creates itself, so that a released one never changes; a test compares the outcome of all
of them with `schema`.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from sqlalchemy import MetaData, func, insert, inspect, literal, select, text

from adk_memory_ext import adk_tables, schema
from adk_memory_ext.errors import ConfigurationError, SchemaVersionError
from adk_memory_ext.windows import references

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from sqlalchemy.engine import Connection

_EXACT_COLLATIONS: Final = ("utf8mb4_nopad_bin", "utf8mb4_0900_bin", "utf8mb4_bin")
"""Of MariaDB, of MySQL 8, and of older ones, which ignore trailing spaces."""
_ADK_KEY: Final = "schema_version"
_LOCK: Final = 0x6D656D657874  # "memext"; one number for every database of a PostgreSQL server


def prepare(connection: Connection) -> None:
    """Creates ADK's tables and ours where they are missing, and applies open migrations.

    Runs inside the caller's transaction, which must hold the database's write lock on SQLite.

    Raises:
        SchemaVersionError: When the tables are of ADK's schema v0, of `SqliteSessionService`, or
            of a newer version of this package. Nothing was written.
    """
    _lock(connection)
    _require_schema(connection)
    _refuse_foreign_layout(connection)
    version = applied_version(connection)
    _refuse_newer("memext tables", version, schema.VERSION)
    _refuse_newer("tables of ADK", adk_version(connection), adk_tables.SCHEMA_VERSION)
    _create_adk_tables(connection)
    schema.memext_migrations.create(connection, checkfirst=True)
    _record_adk_version(connection)
    for number in range(version + 1, schema.VERSION + 1):
        MIGRATIONS[number](connection)
        connection.execute(
            insert(schema.memext_migrations).values(
                version=number, applied_microseconds=time.time_ns() // 1000
            )
        )


def is_prepared(connection: Connection) -> bool:
    """Whether `prepare` has nothing to do; reads only."""
    inspector = inspect(connection)
    return (
        applied_version(connection) == schema.VERSION
        and adk_version(connection) == adk_tables.SCHEMA_VERSION
        and set(adk_tables.metadata.tables) <= set(inspector.get_table_names())
        and "event_data" in {column["name"] for column in inspector.get_columns("events")}
    )


def applied_version(connection: Connection) -> int:
    """Returns the version of the memext tables; 0 when there are none."""
    if not inspect(connection).has_table("memext_migrations"):
        return 0
    newest = connection.execute(select(func.max(schema.memext_migrations.c.version))).scalar()
    return int(newest or 0)


def adk_version(connection: Connection) -> int:
    """Returns the version of ADK's tables, as ADK left it; 0 when it left none."""
    table = adk_tables.adk_internal_metadata
    if not inspect(connection).has_table(table.name):
        return 0
    query = select(table.c.value).where(table.c.key == _ADK_KEY)
    return int(connection.execute(query).scalar() or 0)


def _refuse_newer(tables: str, version: int, known: int) -> None:
    if version > known:
        raise SchemaVersionError(
            f"The database has version {version} of the {tables} and this package knows {known};"
            " upgrade it with: pip install --upgrade adk-memory-ext"
        )


def _require_schema(connection: Connection) -> None:
    if connection.dialect.name != "postgresql":
        return
    if connection.execute(select(func.current_schema())).scalar() is None:
        raise ConfigurationError(
            "PostgreSQL has no schema of that name, or this user may not use it; create it with"
            " CREATE SCHEMA, or leave the option schema out."
        )


def _lock(connection: Connection) -> None:
    """Has a second process wait until this transaction ends; SQLite's write lock does so itself."""
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(literal(_LOCK))))
    elif connection.dialect.name == "mysql":
        connection.execute(select(func.get_lock("memext_migrations", 60)))


def unlock(connection: Connection) -> None:
    """Ends what `prepare` locked beyond its transaction: MySQL commits at each CREATE TABLE."""
    if connection.dialect.name == "mysql":
        connection.execute(select(func.release_lock("memext_migrations")))


def _refuse_foreign_layout(connection: Connection) -> None:
    url = connection.engine.url.set(query={})  # a password may be among the parameters
    adk_tables.refuse_foreign_layout(
        adk_tables.event_columns(connection), where=url.render_as_string(hide_password=True)
    )


def _create_adk_tables(connection: Connection) -> None:
    """Creates what ADK creates at its own start: also an index that earlier versions did not."""
    metadata = MetaData()
    for described in adk_tables.metadata.sorted_tables:
        described.to_metadata(metadata)
    if (collation := _collation(connection)) is not None:
        for table in metadata.tables.values():
            table.kwargs["mysql_collate"] = collation
    metadata.create_all(connection)
    for table in metadata.sorted_tables:
        for index in table.indexes:
            index.create(connection, checkfirst=True)


def _collation(connection: Connection) -> str | None:
    """Returns how MySQL and MariaDB are to compare ids; None on databases that do so exactly.

    Where ADK has made its tables already, in the same way as these: foreign keys and joins need it.
    """
    if connection.dialect.name != "mysql":
        return None
    of_sessions = (
        "SELECT collation_name FROM information_schema.columns WHERE table_schema = database()"
        " AND table_name = 'sessions' AND column_name = 'id'"
    )
    existing = connection.execute(text(of_sessions)).scalar()
    return _exact_collation(connection) if existing is None else str(existing)


def _exact_collation(connection: Connection) -> str:
    """Returns the collation of this MySQL or MariaDB that tells all ids apart."""
    known = "SELECT collation_name FROM information_schema.collations"
    names = set(connection.execute(text(known)).scalars())
    return next(name for name in _EXACT_COLLATIONS if name in names)


def _record_adk_version(connection: Connection) -> None:
    """Leaves the mark by which ADK tells its schema v1 from v0."""
    if not adk_version(connection):
        connection.execute(
            insert(adk_tables.adk_internal_metadata).values(
                key=_ADK_KEY, value=str(adk_tables.SCHEMA_VERSION)
            )
        )


class _Words(NamedTuple):
    """What a database calls the things that the tables are made of."""

    key: str
    """A number that the database gives."""
    number: str
    """A number that refers to such a key."""
    long_text: str
    without_rowid: str
    collate: str = ""
    """Compares ids as ADK's tables do."""
    exact: str = ""
    """Compares ids exactly: for tables that nothing joins with ADK's."""


def _words(connection: Connection) -> _Words:
    if connection.dialect.name == "sqlite":
        return _Words("INTEGER NOT NULL", "INTEGER", "TEXT", " WITHOUT ROWID")
    if connection.dialect.name == "postgresql":
        return _Words("BIGSERIAL NOT NULL", "BIGINT", "TEXT", "")
    collate, exact = _collation(connection), _exact_collation(connection)
    key = "BIGINT NOT NULL AUTO_INCREMENT"
    return _Words(key, "BIGINT", "LONGTEXT", "", f" COLLATE {collate}", f" COLLATE {exact}")


def _create(connection: Connection, *statements: str) -> None:
    """Creates tables and indexes; on MySQL anew.

    It commits at each CREATE TABLE, so that a start that broke off has left some.
    """
    for statement in statements:
        if connection.dialect.name == "mysql" and statement.startswith("CREATE TABLE "):
            connection.execute(text(f"DROP TABLE IF EXISTS {statement.split()[2]}"))
        connection.execute(text(statement))


def _add_column(connection: Connection, table: str, column: str, described: str) -> None:
    """Adds a column where it is missing: MySQL commits DDL, and a start may have broken off."""
    if column not in {known["name"] for known in inspect(connection).get_columns(table)}:
        connection.execute(text(f"ALTER TABLE {table} ADD COLUMN {column} {described}"))


_NUMBERED: Final = """FROM memext_events o JOIN memext_sessions s ON s.session_key = o.session_key
    JOIN events e ON e.app_name = s.app_name AND e.user_id = s.user_id
        AND e.session_id = s.session_id AND e.id = o.event_id"""
"""Events `e` with their sequence."""


def _create_sequences(connection: Connection) -> None:
    """Version 1: the order of events, and the order and titles of sessions."""
    words = _words(connection)
    _create(
        connection,
        f"""CREATE TABLE memext_sessions (
            session_key {words.key}, app_name VARCHAR(128) NOT NULL, user_id VARCHAR(128) NOT NULL,
            session_id VARCHAR(128) NOT NULL, incarnation BIGINT NOT NULL,
            last_sequence BIGINT NOT NULL, content_sequence BIGINT NOT NULL,
            newest_event_id VARCHAR(128), created_microseconds BIGINT NOT NULL,
            updated_microseconds BIGINT NOT NULL, title VARCHAR(256), PRIMARY KEY (session_key),
            CONSTRAINT memext_sessions_identity UNIQUE (app_name, user_id, session_id)
            ){words.collate}""",
        """CREATE INDEX memext_sessions_by_user
            ON memext_sessions (app_name, user_id, updated_microseconds, session_key)""",
        """CREATE INDEX memext_sessions_by_app
            ON memext_sessions (app_name, updated_microseconds, session_key)""",
        f"""CREATE TABLE memext_events (
            session_key {words.number} NOT NULL, sequence BIGINT NOT NULL,
            event_id VARCHAR(128) NOT NULL,
            PRIMARY KEY (session_key, sequence)){words.without_rowid}{words.collate}""",
    )


def _create_profiles(connection: Connection) -> None:
    """Version 2: profile facts, and the row that a profile's writers lock."""
    words = _words(connection)
    text_type = words.long_text.replace("LONG", "MEDIUM")
    owner = "app_name VARCHAR(128) NOT NULL, user_id VARCHAR(128) NOT NULL"
    _create(
        connection,
        f"""CREATE TABLE memext_profile_users (
            {owner}, incarnation BIGINT NOT NULL, revision BIGINT NOT NULL,
            written_microseconds BIGINT NOT NULL,
            PRIMARY KEY (app_name, user_id)){words.without_rowid}{words.exact}""",
        f"""CREATE TABLE memext_profile_facts (
            {owner}, retired_revision BIGINT NOT NULL, subject VARCHAR(64) NOT NULL,
            fact_key VARCHAR(64) NOT NULL, revision BIGINT NOT NULL, supersedes BIGINT,
            kind VARCHAR(16) NOT NULL, status VARCHAR(16) NOT NULL,
            sensitivity VARCHAR(16) NOT NULL, claims {text_type} NOT NULL,
            visible_to {text_type} NOT NULL, derived_from {text_type} NOT NULL,
            created_microseconds BIGINT NOT NULL, expires_microseconds BIGINT,
            retired_microseconds BIGINT,
            PRIMARY KEY (app_name, user_id, retired_revision, subject, fact_key)
            ){words.without_rowid}{words.exact}""",
    )


def _create_state_times(connection: Connection) -> None:
    """Version 3: when state that expires was last written."""
    _create(
        connection,
        f"""CREATE TABLE memext_state_times (
            app_name VARCHAR(128) NOT NULL, user_id VARCHAR(128) NOT NULL,
            session_id VARCHAR(128) NOT NULL, state_key VARCHAR(256) NOT NULL,
            written_microseconds BIGINT NOT NULL,
            PRIMARY KEY (app_name, user_id, session_id, state_key)){_words(connection).exact}""",
        """CREATE INDEX memext_state_times_by_time
            ON memext_state_times (written_microseconds)""",
    )


def _create_landmarks(connection: Connection) -> None:
    """Version 4: where the long-running calls and the compaction summaries are."""
    words = _words(connection)
    _create(
        connection,
        f"""CREATE TABLE memext_landmarks (
            session_key {words.number} NOT NULL, sequence BIGINT NOT NULL,
            call_digest VARCHAR(64) NOT NULL, answered_sequence BIGINT,
            PRIMARY KEY (session_key, sequence, call_digest)
            ){words.without_rowid}{words.collate}""",
    )
    _find_landmarks(connection)


def _find_landmarks(connection: Connection) -> None:
    """Notes those of the events that are stored already, in the order of their append."""
    kind = "CHAR" if connection.dialect.name == "mysql" else "TEXT"
    stored = f"""SELECT o.session_key, o.sequence, e.event_data {_NUMBERED}
        WHERE CAST(e.event_data AS {kind}) LIKE :call
            OR CAST(e.event_data AS {kind}) LIKE :answer
            OR CAST(e.event_data AS {kind}) LIKE :summary
        ORDER BY o.session_key, o.sequence"""
    patterns = {
        "call": "%long_running_tool_ids%",
        "answer": "%function_response%",
        "summary": "%compaction%",
    }
    insertion = text(
        "INSERT INTO memext_landmarks (session_key, sequence, call_digest)"
        " VALUES (:key, :sequence, :call)"
    )
    answering = text(
        "UPDATE memext_landmarks SET answered_sequence = :sequence WHERE session_key = :key"
        " AND call_digest = :call AND answered_sequence IS NULL"
    )
    for key, sequence, data in connection.execute(text(stored), patterns):
        event = json.loads(data) if isinstance(data, str) else data
        found = references(event)
        for call in found.answered:
            connection.execute(answering, {"key": key, "sequence": sequence, "call": call})
        for call in [*found.opened, *([""] if found.is_summary else ())]:
            connection.execute(insertion, {"key": key, "sequence": sequence, "call": call})


def _create_requests(connection: Connection) -> None:
    """Version 5: what was done to the history of each request."""
    words = _words(connection)
    _create(
        connection,
        f"""CREATE TABLE memext_requests (
            request_key {words.key}, session_key {words.number} NOT NULL,
            invocation_id VARCHAR(256) NOT NULL, agent VARCHAR(256) NOT NULL,
            recorded_microseconds BIGINT NOT NULL, report {words.long_text} NOT NULL,
            PRIMARY KEY (request_key)){words.collate}""",
        "CREATE INDEX memext_requests_by_session ON memext_requests (session_key)",
    )


def _create_erasures(connection: Connection) -> None:
    """Version 6: erasures that have begun, and receipts of those that have ended."""
    words = _words(connection)
    _create(
        connection,
        f"""CREATE TABLE memext_erasures (
            erasure_id VARCHAR(32) NOT NULL, begun_microseconds BIGINT NOT NULL,
            kind VARCHAR(16) NOT NULL, app_name VARCHAR(128), user_id VARCHAR(128),
            session_id VARCHAR(128), facts {words.long_text} NOT NULL,
            PRIMARY KEY (erasure_id)){words.collate}""",
        f"""CREATE TABLE memext_receipts (
            number BIGINT NOT NULL, digest VARCHAR(64) NOT NULL,
            receipt {words.long_text} NOT NULL, PRIMARY KEY (number)){words.collate}""",
    )


def _create_initial_state(connection: Connection) -> None:
    """Version 7: the state that sessions are created with."""
    words = _words(connection)
    _create(
        connection,
        f"""CREATE TABLE memext_initial_state (session_key {words.number} NOT NULL,
            state {words.long_text} NOT NULL, PRIMARY KEY (session_key)){words.collate}""",
    )


def _create_checkpoints(connection: Connection) -> None:
    """Version 8: checkpoints, which outlive their sessions."""
    key, number, long_text, without_rowid, collate, _ = _words(connection)
    _create(
        connection,
        f"""CREATE TABLE memext_checkpoint_lines (
            line_key {key}, app_name VARCHAR(128) NOT NULL, user_id VARCHAR(128) NOT NULL,
            session_id VARCHAR(128) NOT NULL, incarnation BIGINT NOT NULL,
            salt VARCHAR(32) NOT NULL, covered_sequence BIGINT NOT NULL,
            digest VARCHAR(32) NOT NULL, last_number BIGINT NOT NULL,
            manifest {long_text} NOT NULL, parent_checkpoint VARCHAR(128),
            PRIMARY KEY (line_key), CONSTRAINT memext_checkpoint_lines_identity
            UNIQUE (app_name, user_id, session_id, incarnation)){collate}""",
        f"""CREATE TABLE memext_checkpoints (
            line_key {number} NOT NULL, number BIGINT NOT NULL,
            checkpoint_id VARCHAR(32) NOT NULL, sequence BIGINT NOT NULL,
            step VARCHAR(256) NOT NULL, created_microseconds BIGINT NOT NULL,
            digest VARCHAR(32) NOT NULL, marks {long_text} NOT NULL, specials {long_text},
            is_snapshot INTEGER NOT NULL, manifest {long_text} NOT NULL,
            details {long_text} NOT NULL, PRIMARY KEY (line_key, number),
            CONSTRAINT memext_checkpoints_id UNIQUE (checkpoint_id)){without_rowid}{collate}""",
        f"""CREATE TABLE memext_checkpoint_values (
            line_key {number} NOT NULL, digest VARCHAR(32) NOT NULL, value {long_text} NOT NULL,
            PRIMARY KEY (line_key, digest)){without_rowid}{collate}""",
    )


def _find_rewinds(connection: Connection) -> None:
    """Version 9: where the rewinds are, so that no window holds what they hide."""
    kind = "CHAR" if connection.dialect.name == "mysql" else "TEXT"
    marks = text(
        f"""SELECT o.session_key, o.sequence, e.event_data {_NUMBERED}
        WHERE CAST(e.event_data AS {kind}) LIKE :mark"""  # constants
    )
    begin = text(
        f"""SELECT min(o.sequence) {_NUMBERED}
        WHERE o.session_key = :key AND e.invocation_id = :target"""
    )
    insertion = text(
        "INSERT INTO memext_landmarks (session_key, sequence, call_digest, answered_sequence)"
        " VALUES (:key, :sequence, '<', :first)"
    )
    rewinds = connection.execute(marks, {"mark": '%"rewind_before_invocation_id"%'}).fetchall()
    for key, sequence, data in rewinds:
        target = references(json.loads(data) if isinstance(data, str) else data).rewinds_before
        first = connection.execute(begin, {"key": key, "target": target}).scalar()
        if target and first is not None and first < sequence:
            connection.execute(insertion, {"key": key, "sequence": sequence, "first": first})


def _add_parent_sessions(connection: Connection) -> None:
    """Version 10: which session a fork was forked from; the checkpoint may be pruned."""
    described = f"VARCHAR(128){_words(connection).collate}"
    _add_column(connection, "memext_checkpoint_lines", "parent_session_id", described)
    known = """SELECT f.line_key, p.session_id FROM memext_checkpoint_lines f
        JOIN memext_checkpoints c ON c.checkpoint_id = f.parent_checkpoint
        JOIN memext_checkpoint_lines p ON p.line_key = c.line_key"""
    saving = text(
        "UPDATE memext_checkpoint_lines SET parent_session_id = :parent WHERE line_key = :key"
    )
    for key, parent in connection.execute(text(known)).all():
        connection.execute(saving, {"key": key, "parent": parent})


def _count_rewrites(connection: Connection) -> None:
    """Version 11: logs of which events are removed on purpose."""
    _add_column(connection, "memext_sessions", "rewrites", "BIGINT NOT NULL DEFAULT 0")


_CONTENT: Final = {
    "memext_sessions": ("title",),
    "memext_profile_facts": ("subject", "claims", "visible_to", "derived_from"),
    "memext_requests": ("report",),
    "memext_erasures": ("app_name", "user_id", "session_id", "facts"),
    "memext_initial_state": ("state",),
    "memext_checkpoint_lines": ("manifest",),
    "memext_checkpoints": ("step", "marks", "specials", "manifest", "details"),
    "memext_checkpoint_values": ("value",),
}
"""Columns of version 12 that hold what people said, and that no query plan needs to know about."""


def _keep_no_samples(connection: Connection) -> None:
    """Version 12: PostgreSQL's statistics hold no values of people, which erasures do not reach."""
    if connection.dialect.name != "postgresql":
        return
    for table, columns in _CONTENT.items():
        changes = ", ".join(f"ALTER COLUMN {column} SET STATISTICS 0" for column in columns)
        connection.execute(text(f"ALTER TABLE {table} {changes}"))


MIGRATIONS: Final[Mapping[int, Callable[[Connection], None]]] = {
    1: _create_sequences,
    2: _create_profiles,
    3: _create_state_times,
    4: _create_landmarks,
    5: _create_requests,
    6: _create_erasures,
    7: _create_initial_state,
    8: _create_checkpoints,
    9: _find_rewinds,
    10: _add_parent_sessions,
    11: _count_rewrites,
    12: _keep_no_samples,
}
"""What brings a database from the version before to each version."""
