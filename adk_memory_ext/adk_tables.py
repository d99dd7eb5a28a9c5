"""The tables of ADK's `DatabaseSessionService` (schema v1), described as ADK describes them.

They are created where they are missing and never altered. A test compares this description with
ADK's own, so that a change there turns the suite red.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sqlalchemy import (
    Column,
    DateTime,
    ForeignKeyConstraint,
    Index,
    MetaData,
    String,
    Table,
    Text,
    func,
    inspect,
)
from sqlalchemy.dialects.mysql import DATETIME, LONGTEXT
from sqlalchemy.dialects.postgresql import JSONB

from adk_memory_ext.errors import SchemaVersionError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy.engine import Connection

ID_LENGTH: Final = 128
"""Characters in an app name, user id, session id or event id."""
NAME_LENGTH: Final = 256
"""Characters in an invocation id."""
SCHEMA_VERSION: Final = 1

JSON_TEXT: Final = Text().with_variant(JSONB(), "postgresql").with_variant(LONGTEXT(), "mysql")
PRECISE_TIME: Final = DateTime().with_variant(DATETIME(fsp=6), "mysql")

metadata: Final = MetaData()

adk_internal_metadata: Final = Table(
    "adk_internal_metadata",
    metadata,
    Column("key", String(ID_LENGTH), primary_key=True),
    Column("value", String(NAME_LENGTH), nullable=False),
)

sessions: Final = Table(
    "sessions",
    metadata,
    Column("app_name", String(ID_LENGTH), primary_key=True),
    Column("user_id", String(ID_LENGTH), primary_key=True),
    Column("id", String(ID_LENGTH), primary_key=True),
    Column("state", JSON_TEXT, nullable=False),
    Column("create_time", PRECISE_TIME, nullable=False, default=func.now()),
    Column("update_time", PRECISE_TIME, nullable=False, default=func.now()),
)

events: Final = Table(
    "events",
    metadata,
    Column("id", String(ID_LENGTH), primary_key=True),
    Column("app_name", String(ID_LENGTH), primary_key=True),
    Column("user_id", String(ID_LENGTH), primary_key=True),
    Column("session_id", String(ID_LENGTH), primary_key=True),
    Column("invocation_id", String(NAME_LENGTH), nullable=False),
    Column("timestamp", PRECISE_TIME, nullable=False, default=func.now()),
    Column("event_data", JSON_TEXT, nullable=True),
    ForeignKeyConstraint(
        ["app_name", "user_id", "session_id"],
        ["sessions.app_name", "sessions.user_id", "sessions.id"],
        ondelete="CASCADE",
    ),
)
Index(
    "idx_events_app_user_session_ts_id",
    events.c.app_name,
    events.c.user_id,
    events.c.session_id,
    events.c.timestamp.desc(),
    events.c.id.desc(),
)

app_states: Final = Table(
    "app_states",
    metadata,
    Column("app_name", String(ID_LENGTH), primary_key=True),
    Column("state", JSON_TEXT, nullable=False),
    Column("update_time", PRECISE_TIME, nullable=False, default=func.now()),
)

user_states: Final = Table(
    "user_states",
    metadata,
    Column("app_name", String(ID_LENGTH), primary_key=True),
    Column("user_id", String(ID_LENGTH), primary_key=True),
    Column("state", JSON_TEXT, nullable=False),
    Column("update_time", PRECISE_TIME, nullable=False, default=func.now()),
)


def event_columns(connection: Connection) -> dict[str, str]:
    """Returns {name: SQL type} of the columns of the table `events`; empty when there is none."""
    inspector = inspect(connection)
    if not inspector.has_table(events.name):
        return {}
    return {column["name"]: str(column["type"]) for column in inspector.get_columns(events.name)}


def refuse_foreign_layout(
    event_columns: Mapping[str, str], *, where: str, source: str = "…", target: str = "…"
) -> None:
    """Does nothing if a table `events` with these columns is of ADK's schema v1.

    Args:
        event_columns: {name: SQL type} of the table; empty when there is none.
        where: The database's name for the error.
        source: Its URL for the command that copies it.
        target: The URL that the copy may have.

    Raises:
        SchemaVersionError: When ADK 1.x (schema v0), ADK's `SqliteSessionService` or somebody else
            made the table.
    """
    if not event_columns:
        return
    if "actions" in event_columns and "event_data" not in event_columns:
        raise SchemaVersionError(
            f"{where} has the tables of ADK 1.x (schema v0); copy it into a new database with:"
            f" adk migrate session --source_db_url={source} --dest_db_url={target}"
        )
    if not set(events.columns.keys()) <= event_columns.keys():
        raise SchemaVersionError(
            f"{where} has a table 'events' that is not ADK's; choose another database"
            " (or, on PostgreSQL, another schema with the option schema)."
        )
    # A number of seconds, by whatever name a database calls such a type.
    if event_columns["timestamp"].upper().startswith(("REAL", "DOUBLE", "FLOAT")):
        raise SchemaVersionError(
            f"{where} has the tables of ADK's SqliteSessionService, which differ from those of"
            " DatabaseSessionService; choose another file, or keep this one with"
            " DurableSessionService(SqliteSessionService(path))."
        )
