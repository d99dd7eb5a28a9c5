"""Appending one event: the log, the state of three scopes and the revision, in one transaction."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from google.adk.errors import StaleSessionError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from sqlalchemy.exc import IntegrityError as AnyIntegrityError

from adk_memory_ext import sql_windows
from adk_memory_ext.event_times import in_order, microseconds
from adk_memory_ext.records import Revision
from adk_memory_ext.rewinds import REMOVED
from adk_memory_ext.sql_store import (
    Head,
    apply_changes,
    change_scope,
    decode_state,
    has_content,
    locked_head,
    read_head,
    stored_event,
)
from adk_memory_ext.state_changes import MISSING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from adk_memory_ext.records import SessionId
    from adk_memory_ext.state_changes import StateChange
    from adk_memory_ext.statements import Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEvent:
    """An event made ready for its transaction."""

    id: str
    invocation_id: str
    timestamp: float
    """UTC epoch seconds, before it is put in order."""
    data: dict[str, Any]
    """Its JSON form without `timestamp` and `actions.state_delta`."""
    app_changes: Mapping[str, StateChange]
    user_changes: Mapping[str, StateChange]
    session_changes: Mapping[str, StateChange]
    """What it does to each scope, keys without prefixes."""
    is_housekeeping: bool
    """Whether it applies to a session that has moved on: it has no content, or is a summary."""
    hides_from: int | None = None
    """Of a rewind, the first sequence that it hides; None where it has to be looked for."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What the writer knew of the log."""

    revision: Revision | None
    """As loaded from this store; None for a session object from elsewhere."""
    last_event_id: str | None
    last_update_time: float
    """What a session object from elsewhere says instead."""


@dataclass(frozen=True, slots=True)
class Appended:
    """What came of an append."""

    timestamp: float
    """The event's time as stored."""
    revision: Revision | None
    """What the writer has seen now; None if it stays as it was, behind the others."""
    outcome: dict[str, Any]
    """What each key of the delta became, with prefixes; removed keys are `MISSING`."""
    data: dict[str, Any]
    """The stored JSON form, without `timestamp`."""


class DuplicateEventError(Exception):
    """There is an event of this id in the session; the transaction must be rolled back."""


def append_event(
    tx: Transaction, session: SessionId, seen: Seen | None, event: NewEvent
) -> Appended:
    """Appends the event to the log and applies its changes.

    Args:
        tx: The transaction.
        session: The session.
        seen: What the writer knew of the log; None when it does not matter.
        event: The event.

    Raises:
        SessionNotFoundError: When there is no such session.
        StaleSessionError: When the writer has not seen all content of the log, or has seen that of
            an earlier session of the same id.
        DuplicateEventError: When the event's id is taken.
    """
    head = locked_head(tx, session)
    if head is None:
        raise SessionNotFoundError(f"Session {session.session_id} not found.")
    is_stale = seen is not None and _is_stale(tx, head, seen)
    if is_stale and stored_event(tx, session, event.id) is not None:
        raise DuplicateEventError
    known = None if seen is None else seen.revision
    if known is not None and known.incarnation != head.incarnation:
        raise StaleSessionError(
            f"Session {session.session_id} was deleted and created again since it was loaded."
        )
    if is_stale and not event.is_housekeeping:
        raise StaleSessionError(
            f"Session {session.session_id} has events that this copy has not seen; load it again."
        )
    timestamp, time = in_order(event.timestamp, head.newest)
    parameters = {
        **session.parameters(),
        "session_key": head.key,
        "sequence": head.last_sequence + 1,
        "content_sequence": (
            head.content_sequence if event.is_housekeeping else head.last_sequence + 1
        ),
        "event_id": event.id,
        "newest_event_id": event.id,
        "invocation_id": event.invocation_id,
        "time": tx.time(time),
        "microseconds": time,
    }
    outcome = _change_scopes(tx, session, event)
    if event.session_changes:
        state = decode_state(head.state)
        outcome.update(apply_changes(state, event.session_changes))
        parameters["state"] = tx.json(state)
    data = with_delta(event.data, outcome)
    parameters["event_data"] = text_of(tx, data, timestamp)
    _write(tx, parameters)
    sql_windows.note(tx, parameters, head.last_sequence + 1, data, event.hides_from)
    revision = None if is_stale else Revision(head.incarnation, head.last_sequence + 1)
    return Appended(timestamp, revision, outcome, data)


def text_of(tx: Transaction, data: Mapping[str, Any], timestamp: float) -> str:
    """Returns the JSON text of an event as it is stored."""
    return f'{tx.json(data)[:-1]}, "timestamp": {timestamp!r}}}'


def stored_append(
    tx: Transaction, session: SessionId, seen: Seen, event_id: str
) -> Appended | None:
    """Returns what came of the append of an event that is stored; None if it is not.

    Its `revision` is None unless the writer has seen all content before the event.

    Raises:
        SessionNotFoundError: When there is no such session.
    """
    head = read_head(tx, session, lock=False, check=False)
    if head is None:
        raise SessionNotFoundError(f"Session {session.session_id} not found.")
    data = stored_event(tx, session, event_id)
    if data is None:
        return None
    timestamp = float(data.pop("timestamp"))
    removed = (data.get("custom_metadata") or {}).get(REMOVED, [])
    outcome = data["actions"]["state_delta"] | dict.fromkeys(removed, MISSING)
    return Appended(timestamp, _caught_up(tx, session, head, seen, event_id), outcome, data)


def _caught_up(
    tx: Transaction, session: SessionId, head: Head, seen: Seen, event_id: str
) -> Revision | None:
    """Returns the revision at an event if the writer has seen all content before it."""
    known = seen.revision
    if known is None or known.incarnation != head.incarnation:
        return None
    unseen = {
        **session.parameters(),
        "session_key": head.key,
        "after_sequence": known.sequence,
    }
    for sequence, unseen_id, data in tx.rows("unseen_events", unseen):
        if unseen_id == event_id:
            return Revision(head.incarnation, sequence)
        if has_content(json.loads(data or "{}")):
            break
    return None


def with_delta(data: Mapping[str, Any], outcome: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an event's JSON form with what its changes came to."""
    delta = {key: None if value is MISSING else value for key, value in outcome.items()}
    whole = {**data, "actions": {**data.get("actions", {}), "state_delta": delta}}
    removed = [key for key, value in outcome.items() if value is MISSING]
    if removed:
        whole["custom_metadata"] = {**(data.get("custom_metadata") or {}), REMOVED: removed}
    return whole


def _is_stale(tx: Transaction, head: Head, seen: Seen) -> bool:
    """Whether the log holds content that the writer has not seen."""
    if seen.revision is not None:
        return seen.revision.sequence < head.content_sequence
    # A session object that this store did not make (rebuilt from JSON, say) is judged as ADK does.
    # But a later time is no sign of knowing more: an event may be older than its session.
    if microseconds(seen.last_update_time) == head.updated:
        return False
    last = tx.rows("last_event_id", {"session_key": head.key})
    return (last[0][0] if last else None) != seen.last_event_id


def _change_scopes(tx: Transaction, session: SessionId, event: NewEvent) -> dict[str, Any]:
    outcome: dict[str, Any] = {}
    for scope, changes in (("app", event.app_changes), ("user", event.user_changes)):
        if changes:
            state = change_scope(tx, scope, session, changes)
            outcome |= {f"{scope}:{key}": state.get(key, MISSING) for key in changes}
    return outcome


def _write(tx: Transaction, parameters: dict[str, Any]) -> None:
    """Writes the rows of the append: in one statement on PostgreSQL, in four elsewhere."""
    change = "save" if "state" in parameters else "touch"
    if tx.dialect == "postgresql":
        if not tx.run(f"append_{change}", parameters):
            raise DuplicateEventError
        return
    try:
        tx.run("insert_event", parameters)
    except (AnyIntegrityError, tx.integrity_error) as error:
        raise DuplicateEventError from error
    tx.run("insert_sequence", parameters)
    tx.run(f"{change}_session", parameters)
    tx.run("update_link", parameters)
