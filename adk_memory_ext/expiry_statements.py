"""The statements over `memext_state_times`, in Core; `statements` compiles them with the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import delete, literal_column, or_, select, text
from sqlalchemy.dialects import mysql, postgresql, sqlite

from adk_memory_ext.parameters import given, is_given
from adk_memory_ext.schema import memext_state_times

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement
    from sqlalchemy.sql import ClauseElement

_CLOCKS = {
    "sqlite": "SELECT CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)",
    "postgresql": "SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000 AS BIGINT)",
    "mysql": "SELECT CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)",
}
"""The database's own clock, in UTC epoch microseconds."""

_OWNER = ("app_name", "user_id", "session_id", "state_key")


def expiry_clauses(dialect: str) -> dict[str, ClauseElement]:
    """Returns the statements by name."""
    table = memext_state_times
    columns = (*(table.c[name] for name in _OWNER), table.c.written_microseconds)
    nobody: ColumnElement[str] = literal_column("''")

    return {
        "clock": text(_CLOCKS[dialect]),
        "state_times": select(*columns).where(
            is_given(table, "app_name"),
            or_(is_given(table, "user_id"), table.c.user_id == nobody),
            or_(is_given(table, "session_id"), table.c.session_id == nobody),
        ),
        "state_times_of_user": select(*columns).where(
            is_given(table, "app_name"),
            or_(is_given(table, "user_id"), table.c.user_id == nobody),
        ),
        "state_times_of_app": select(*columns).where(is_given(table, "app_name")),
        "old_state_times": select(*columns)
        .where(table.c.written_microseconds <= given("before"))
        .order_by(table.c.written_microseconds),
        "note_state_time": _upsert(dialect),
        "delete_state_time": delete(table).where(is_given(table, *_OWNER)),
        "delete_state_times": delete(table).where(
            is_given(table, "app_name", "user_id", "session_id")
        ),
    }


def _upsert(dialect: str) -> ClauseElement:
    values = {name: given(name) for name in (*_OWNER, "written_microseconds")}
    written = {"written_microseconds": given("written_microseconds")}
    if dialect == "mysql":
        return mysql.insert(memext_state_times).values(values).on_duplicate_key_update(written)
    if dialect == "postgresql":
        return (
            postgresql.insert(memext_state_times)
            .values(values)
            .on_conflict_do_update(index_elements=_OWNER, set_=written)
        )
    return (
        sqlite.insert(memext_state_times)
        .values(values)
        .on_conflict_do_update(index_elements=_OWNER, set_=written)
    )
