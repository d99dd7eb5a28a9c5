"""The statements that remove or change stored events; compiled with all others by `statements`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import and_, delete, update

from adk_memory_ext.adk_tables import events
from adk_memory_ext.exact_match import IsExactly
from adk_memory_ext.parameters import given, is_given
from adk_memory_ext.schema import (
    memext_events,
    memext_landmarks,
    memext_requests,
    memext_sessions,
)

if TYPE_CHECKING:
    from sqlalchemy.sql import ClauseElement


def log_clauses() -> dict[str, ClauseElement]:
    """Returns the statements by name."""
    numbered, places, reports = memext_events.c, memext_landmarks.c, memext_requests.c
    link = memext_sessions.c.session_key == given("session_key")
    event = and_(
        is_given(events, "app_name", "user_id", "session_id"),
        IsExactly(events.c.id, given("event_id")),
    )
    return {
        "delete_event": delete(events).where(event),
        "change_event": update(events).where(event).values(event_data=given("event_data")),
        "delete_sequence": delete(memext_events).where(
            numbered.session_key == given("session_key"), numbered.sequence == given("sequence")
        ),
        "delete_landmarks_at": delete(memext_landmarks).where(
            places.session_key == given("session_key"), places.sequence == given("sequence")
        ),
        "delete_requests_of_invocation": delete(memext_requests).where(
            reports.session_key == given("session_key"),
            is_given(memext_requests, "invocation_id"),
        ),
        "note_rewrite": update(memext_sessions)
        .where(link)
        .values(rewrites=memext_sessions.c.rewrites + 1),
        "save_newest_event": update(memext_sessions)
        .where(link)
        .values(newest_event_id=given("event_id")),
    }
