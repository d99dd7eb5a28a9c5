"""Putting a checkpoint back in one transaction: verified first, nothing of the log rewritten."""

from __future__ import annotations

import json
import re
import time
import uuid
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions

from adk_memory_ext import sql_checkpoints, sql_events, sql_expiry, sql_store
from adk_memory_ext.checkpoint_records import Restored
from adk_memory_ext.errors import CapabilityError, CheckpointInconsistentError
from adk_memory_ext.interruptions import COPY_OF, FORKED, RESTORED, special_in
from adk_memory_ext.json_values import Normaliser
from adk_memory_ext.log_digests import Fault, first_fault
from adk_memory_ext.rewind_marks import Outline, UnhideableError, live_positions, plan_restore
from adk_memory_ext.rewinds import REMOVED, restoring_delta, restoring_scopes, session_scope
from adk_memory_ext.sql_events import NewEvent
from adk_memory_ext.state_changes import Remove
from adk_memory_ext.stored_events import ready_event, split_changes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from adk_memory_ext.checkpoint_records import CheckpointPolicy
    from adk_memory_ext.records import SessionId
    from adk_memory_ext.rewinds import Scope
    from adk_memory_ext.sql_checkpoints import StoredCheckpoint
    from adk_memory_ext.sql_store import Head
    from adk_memory_ext.statements import Row, Transaction

_READ_AT_ONCE: Final = 64


@dataclass(frozen=True, slots=True)
class _Log:
    """A session as it is now."""

    session: SessionId
    head: Head
    sequences: list[int]
    """Of all events, rising."""
    outline: Outline
    fault: Fault | None
    """The first one of those that were verified."""

    def count(self, sequence: int) -> int:
        """Returns how many events there are up to a sequence."""
        return bisect_right(self.sequences, sequence)

    def rows(self, tx: Transaction, positions: Iterable[int]) -> Iterator[Row]:
        """Yields sequence, id, invocation id and text of some events, in the order of the log."""
        wanted = {self.sequences[position] for position in positions}
        before = min(wanted, default=self.head.last_sequence + 1) - 1
        log = {**self.session.parameters(), "session_key": self.head.key, "after_sequence": before}
        return (row for row in tx.stream("new_events", log) if row[0] in wanted)


@dataclass(frozen=True, slots=True)
class _Target:
    """The state that a checkpoint stands for."""

    state: dict[str, Any]
    """Of the session's scope."""
    scoped: dict[str, Any]
    """The delta that brings user and app state back where that was asked for, with prefixes."""
    missing: tuple[str, ...]
    times: dict[str, int]
    """When those keys of it were written that expire."""


def restore(
    tx: Transaction,
    stored: StoredCheckpoint,
    policy: CheckpointPolicy,
    scopes: Sequence[Scope] = (),
) -> Restored:
    """Makes the session's state that of the checkpoint, and hides what came after it.

    User and app state too where `scopes` names them.

    Where the session is gone, a session of its id is made that has the state and no history.

    Raises:
        CheckpointInconsistentError: When the log is not the one that the checkpoint covers, or
            somebody else has made another session of that id.
        CapabilityError: When events to be hidden have no invocation id.
    """
    session = sql_checkpoints.identity_of(stored)
    head = sql_store.locked_head(tx, session)
    if head is None:
        return _restore_gone(tx, stored, session, _target(tx, stored, None, policy, scopes))
    is_there = head.incarnation == stored.incarnation
    if not is_there:
        line = sql_checkpoints.find_line(tx, session, head.incarnation)
        if line is None or line.parent != stored.checkpoint.id:
            raise CheckpointInconsistentError(
                f"Session {session.session_id} was deleted and created again after checkpoint"
                f" {stored.checkpoint.id} was made; fork the checkpoint instead."
            )
    # The session that an earlier restore made begins with the state alone.
    log = _verified(tx, stored, session, head) if is_there else _log(tx, session, head)
    covered = log.count(stored.checkpoint.sequence) if is_there else 0
    target = _target(tx, stored, log if is_there else None, policy, scopes)
    return _put_back(tx, stored, log, covered, target)


def _restore_gone(
    tx: Transaction, stored: StoredCheckpoint, session: SessionId, target: _Target
) -> Restored:
    _create(tx, session, stored, target)
    return Restored(
        checkpoint=stored.checkpoint,
        session_id=session.session_id,
        event_id=None,
        hidden=0,
        repeated=0,
        changed=(*target.state, *_put(target.scoped)),
        removed=_removed(target.scoped),
        missing=target.missing,
        state_only=True,
    )


def _put_back(
    tx: Transaction, stored: StoredCheckpoint, log: _Log, covered: int, target: _Target
) -> Restored:
    try:
        plan = plan_restore(log.outline, covered)
    except UnhideableError:
        raise CapabilityError(
            f"Session {log.session.session_id} has events without an invocation id after checkpoint"
            f" {stored.checkpoint.id}, which no mark can hide; fork it instead."
        ) from None
    delta = restoring_delta(sql_store.decode_state(log.head.state), target.state, can_remove=True)
    delta |= target.scoped
    note: NewEvent | None = None
    if delta or not plan.is_empty:
        note = _note(stored, plan.rewinds_before, delta)
        if plan.begin is not None:
            note = replace(note, hides_from=log.sequences[plan.begin])
        sql_events.append_event(tx, log.session, None, note)
        times = {key: written for key, written in target.times.items() if key in delta}
        sql_expiry.note_times(tx, log.session, times)
        rows = {row[0]: row for row in log.rows(tx, plan.copies)}
        for position in plan.copies:
            copy = _copied(rows[log.sequences[position]], str(uuid.uuid4()))
            sql_events.append_event(tx, log.session, None, copy)
    return Restored(
        checkpoint=stored.checkpoint,
        session_id=log.session.session_id,
        event_id=None if note is None else note.id,
        hidden=plan.hidden,
        repeated=len(plan.copies),
        changed=_put(delta),
        removed=_removed(delta),
        missing=target.missing,
        state_only=stored.incarnation != log.head.incarnation,
    )


def _put(delta: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(key for key, value in delta.items() if not isinstance(value, Remove))


def _removed(delta: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(key for key, value in delta.items() if isinstance(value, Remove))


def fork(
    tx: Transaction, stored: StoredCheckpoint, new: SessionId, policy: CheckpointPolicy
) -> Restored:
    """Stores a new session with the history and the state up to the checkpoint.

    Event ids are kept, and no delta is applied again: user and app state stay as they are.

    Raises:
        AlreadyExistsError: When there is a session of that id.
        CheckpointInconsistentError: When the log is not the one that the checkpoint covers.
    """
    if sql_store.session_exists(tx, new):
        raise AlreadyExistsError(f"Session with id {new.session_id} already exists.")
    session = sql_checkpoints.identity_of(stored)
    head = sql_store.locked_head(tx, session)
    log: _Log | None = None
    if head is not None and head.incarnation == stored.incarnation:
        log = _verified(tx, stored, session, head)
    target = _target(tx, stored, log, policy)
    _create(tx, new, stored, target)
    live: list[int] = []
    if log is not None:
        live = live_positions(log.outline, log.count(stored.checkpoint.sequence))
    for row in log.rows(tx, live) if log is not None else ():
        is_last = log is not None and row[0] == log.sequences[live[-1]]
        forked = stored.checkpoint.id if is_last else None
        sql_events.append_event(tx, new, None, _copied(row, row[1], forked=forked))
    return Restored(
        checkpoint=stored.checkpoint,
        session_id=new.session_id,
        event_id=None,
        hidden=0,
        repeated=len(live),
        changed=tuple(target.state),
        removed=(),
        missing=target.missing,
        state_only=log is None,
    )


def _create(tx: Transaction, session: SessionId, stored: StoredCheckpoint, target: _Target) -> None:
    changes = split_changes(target.scoped, Normaliser())
    sql_store.create_session(
        tx,
        session,
        app_changes=changes["app"],
        user_changes=changes["user"],
        session_state=target.state,
    )
    is_put = {*target.state, *_put(target.scoped)}
    times = {key: written for key, written in target.times.items() if key in is_put}
    sql_expiry.note_times(tx, session, times)
    head = sql_store.read_head(tx, session, lock=False)
    if head is not None:
        sql_checkpoints.begin_line(tx, session, head.incarnation, stored.checkpoint)


def parent_of(tx: Transaction, session: SessionId) -> str | None:
    """Returns the checkpoint that a session was made from; None if there is none."""
    head = sql_store.locked_head(tx, session)
    line = None if head is None else sql_checkpoints.find_line(tx, session, head.incarnation)
    return None if line is None else line.parent


# --- The log


def fault_in_log(tx: Transaction, stored: StoredCheckpoint) -> Fault | None:
    """Returns the first fault of the session's log; None without one, or without the session."""
    session = sql_checkpoints.identity_of(stored)
    head = sql_store.locked_head(tx, session)
    if head is None or head.incarnation != stored.incarnation:
        return None
    return _log(tx, session, head, stored, head.last_sequence).fault


def _verified(tx: Transaction, stored: StoredCheckpoint, session: SessionId, head: Head) -> _Log:
    """Returns the log, its order and digest verified up to the checkpoint.

    Raises:
        CheckpointInconsistentError: When they are not as they were.
    """
    log = _log(tx, session, head, stored, stored.checkpoint.sequence)
    if log.fault is None:
        return log
    raise sql_checkpoints.inconsistent(stored, log.fault)


def _log(
    tx: Transaction,
    session: SessionId,
    head: Head,
    stored: StoredCheckpoint | None = None,
    up_to: int = 0,
) -> _Log:
    """Reads the log once; with a checkpoint of it, verifies it up to a sequence on the way.

    The texts are not kept: a long log in memory costs more than reading it. Only what no checkpoint
    has covered is searched for marks.
    """
    specials, covered = sql_checkpoints.specials(tx, stored.line_key) if stored else ({}, 0)
    sequences: list[int] = []
    outline = Outline()

    def read() -> Iterator[tuple[int, str, str]]:
        stream = tx.stream("logged_events", {**session.parameters(), "session_key": head.key})
        # Some at a time, which takes less than reading and looking by turns.
        while rows := list(islice(stream, _READ_AT_ONCE)):
            sequences.extend([row[0] for row in rows])
            outline.ids.extend([row[1] for row in rows])
            outline.invocations.extend([row[2] for row in rows])
            for sequence, event_id, _invocation_id, text in rows:
                if sequence > covered and (special := special_in(text)):
                    specials[sequence] = special
                yield sequence, event_id, text or ""

    rows = read()
    fault = None
    if stored is not None:
        stretches = list(sql_checkpoints.stretches(tx, stored.line_key, up_to))
        fault = first_fault(stored.salt, stretches, rows)
    deque(rows, maxlen=0)
    if specials:
        positions = enumerate(sequences)
        outline.specials.update({at: specials[one] for at, one in positions if one in specials})
    return _Log(session, head, sequences, outline, fault)


# --- Events


def _note(
    stored: StoredCheckpoint, rewinds_before: str | None, delta: Mapping[str, Any]
) -> NewEvent:
    """Returns the event that says what was restored; who has not seen it is a stale writer."""
    event = Event(
        invocation_id=f"restore-{uuid.uuid4()}",
        author="user",
        actions=EventActions(rewind_before_invocation_id=rewinds_before),
        custom_metadata={RESTORED: stored.checkpoint.id},
    )
    changes = split_changes(delta, Normaliser())
    return replace(
        ready_event(event, "refuse").new,
        app_changes=changes["app"],
        user_changes=changes["user"],
        session_changes=changes["session"],
        is_housekeeping=False,
    )


def _copied(row: Row, new_id: str, *, forked: str | None = None) -> NewEvent:
    """Returns the same event without its delta; as a copy it has an id and a time of its own.

    `forked` is the checkpoint of a fork that begins with it and all before it.
    """
    _sequence, event_id, invocation_id, text = row
    data: dict[str, Any] = json.loads(text or "{}")
    timestamp = float(data.pop("timestamp", None) or time.time())
    data["id"] = new_id
    actions = dict(data.get("actions") or {})
    actions.pop("state_delta", None)
    metadata = dict(data.get("custom_metadata") or {})
    metadata.pop(REMOVED, None)
    if new_id != event_id:
        timestamp = time.time()
        metadata.setdefault(COPY_OF, event_id)
    if forked is not None:
        metadata[FORKED] = forked
    data |= {"actions": actions, "custom_metadata": metadata}
    if not metadata:
        del data["custom_metadata"]
    return NewEvent(
        id=new_id,
        invocation_id=invocation_id,
        timestamp=timestamp,
        data=data,
        app_changes={},
        user_changes={},
        session_changes={},
        is_housekeeping=not sql_store.has_content(data),
    )


# --- The state


def _target(
    tx: Transaction,
    stored: StoredCheckpoint,
    log: _Log | None,
    policy: CheckpointPolicy,
    scopes: Sequence[Scope] = (),
) -> _Target:
    """Returns the state as of the checkpoint, but what has expired; the log is None if gone."""
    held, by_reference = sql_checkpoints.state_at(tx, stored)
    known_by_log = list(session_scope(dict.fromkeys(by_reference)))
    found = {}
    if log is not None and known_by_log:
        rows = log.rows(tx, range(log.count(stored.checkpoint.sequence)))
        found = _replayed(sql_store.initial_state(tx, log.session), rows, known_by_log)
    missing = [key for key in known_by_log if key not in found]
    held |= found
    times, over = sql_expiry.times_back(tx, held, stored.times, policy.ttl)
    held = {key: value for key, value in held.items() if key not in over}
    scoped: dict[str, Any] = {}
    if scopes:
        session = sql_checkpoints.identity_of(stored)
        app, user = (sql_store.scope_state(tx, scope, session) for scope in ("app", "user"))
        now = sql_store.merged_state(app, user, {})
        # What is known by reference only has no log to be read from, and stays.
        left = {key: now[key] for key in by_reference if key in now}
        scoped = restoring_scopes(now, {**held, **left}, scopes, can_remove=True)
    gone = {
        *session_scope(dict.fromkeys(over)),
        *(k for k in over if k.partition(":")[0] in scopes),
    }
    return _Target(session_scope(held), scoped, (*missing, *sorted(gone)), times)


def _replayed(
    initial: Mapping[str, Any], rows: Iterable[Row], keys: Sequence[str]
) -> dict[str, Any]:
    """Returns what creation and log make of some keys."""
    state = {key: initial[key] for key in keys if key in initial}
    spelt = {
        json.dumps(key, ensure_ascii=ascii_only) for key in keys for ascii_only in (True, False)
    }
    mentions = re.compile("|".join(map(re.escape, spelt)))
    for _sequence, _event_id, _invocation, text in rows:
        if not text or not mentions.search(text):
            continue
        data = json.loads(text)
        delta = session_scope((data.get("actions") or {}).get("state_delta") or {})
        state.update({key: delta[key] for key in keys if key in delta})
        for key in (data.get("custom_metadata") or {}).get(REMOVED, ()):
            state.pop(key, None)
    return state
