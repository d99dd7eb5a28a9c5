"""Removing expired state for good from our own tables, a few keys a transaction."""

from __future__ import annotations

import itertools
import uuid
from typing import TYPE_CHECKING

from google.adk.events.event import Event
from google.adk.sessions.state import State

from adk_memory_ext import sql_events, sql_expiry, sql_store
from adk_memory_ext.event_times import MICROSECONDS
from adk_memory_ext.state_changes import Remove
from adk_memory_ext.stored_events import ready_event

if TYPE_CHECKING:
    from adk_memory_ext.sql_expiry import ExpiredKey, Ttl
    from adk_memory_ext.statements import Transaction


def by_owner(found: list[ExpiredKey]) -> list[list[ExpiredKey]]:
    """Returns expired keys by app, user and session, each of which has a transaction of its own."""
    groups = itertools.groupby(sorted(found, key=_order), key=lambda row: _order(row)[:3])
    return [list(rows) for _, rows in groups]


def _order(row: ExpiredKey) -> tuple[str, str, str, str]:
    return row.app_name, row.user_id, row.session_id, row.key


def remove(tx: Transaction, rows: list[ExpiredKey], ttl: Ttl) -> int:
    """Removes expired values of one owner and returns how many are gone.

    In a session it is an event, as every change of its state. What was written again meanwhile
    stays.
    """
    session, scope = rows[0].owner, rows[0].scope
    head = None
    if scope != "session":
        tx.rows(f"locked_{scope}_state", session.parameters())
    elif (head := sql_store.locked_head(tx, session)) is None:
        tx.run("delete_state_times", session.parameters())
        return 0
    still = sql_expiry.expired(tx, session, ttl)
    keys = [row.key for row in rows if row.key in still]
    if not keys:
        return 0
    if head is not None:
        # Of the time of the last use: that something expires is no use of a session.
        moment = head.updated / MICROSECONDS
        event = Event(invocation_id=f"p-{uuid.uuid4()}", author="user", timestamp=moment)
        event.actions.state_delta = {key: Remove() for key in keys}
        sql_events.append_event(tx, session, None, ready_event(event, "refuse").new)
    else:
        prefix = State.USER_PREFIX if scope == "user" else State.APP_PREFIX
        changes = {key.removeprefix(prefix): Remove() for key in keys}
        sql_store.change_scope(tx, scope, session, changes)
    for row in rows:
        if row.key in still:
            sql_expiry.forget(tx, row)
    return len(keys)
