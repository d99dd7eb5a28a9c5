"""Removing stored events in SQL: a tombstone for each stretch, and all that refers to them mended.

Checkpoints accept a stretch that was removed here: what they know of the log is made anew, if the
log was the one that they covered.
"""

from __future__ import annotations

import json
import sys
import uuid
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions

from adk_memory_ext import sql_checkpoints, sql_store
from adk_memory_ext.errors import ConfigurationError, EventNotFoundError
from adk_memory_ext.event_times import microseconds
from adk_memory_ext.log_digests import Stretch, new_salt, next_digest, rebased
from adk_memory_ext.log_pruning import PRUNED, Log, LogEntry
from adk_memory_ext.media_references import media_names
from adk_memory_ext.rewinds import REMOVED
from adk_memory_ext.sql_events import text_of, with_delta
from adk_memory_ext.stored_events import ready_event

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from adk_memory_ext.log_pruning import Run
    from adk_memory_ext.records import SessionId
    from adk_memory_ext.retention import Pruning
    from adk_memory_ext.sql_store import Head
    from adk_memory_ext.statements import Transaction


@dataclass(frozen=True, slots=True)
class Removed:
    """What was removed from a log."""

    why: Mapping[str, int]
    """How many events went for each reason."""
    texts: list[str]
    """What they said, and their ids."""
    event_ids: frozenset[str] = frozenset()
    invocation_ids: frozenset[str] = frozenset()
    """Those of which nothing is left."""
    requests: int = 0
    """Reports on requests that went with them."""
    media: frozenset[str] = frozenset()
    """Artifacts to which no event refers any more."""


_NOTHING = Removed({}, [])


def prune(tx: Transaction, session: SessionId, pruning: Pruning, now: float) -> Removed:
    """Removes the events that a pruning covers, under the session's lock.

    Args:
        tx: The transaction.
        session: The session.
        pruning: The rules.
        now: UTC epoch seconds.

    Raises:
        SessionNotFoundError: When there is no such session.
    """

    def choose(log: Log, covered: int) -> dict[int, str]:
        return log.prunable(pruning, covered, now)

    return _remove(tx, session, choose, is_wanted=False)


def delete(
    tx: Transaction, session: SessionId, event_ids: Collection[str], invocation_id: str | None
) -> Removed:
    """Removes some events, or an invocation, with what belongs to them.

    Raises:
        SessionNotFoundError: When there is no such session.
        EventNotFoundError: When there is no such event or invocation. Nothing was written.
        ConfigurationError: When one is a rewind mark. Nothing was written.
    """

    def choose(log: Log, _covered: int) -> dict[int, str]:
        wanted = [
            position
            for position, entry in enumerate(log.entries)
            if entry.tombstone is None
            and (entry.id in event_ids or entry.invocation == invocation_id)
        ]
        found = {log.entries[position].id for position in wanted}
        missing = sorted(set(event_ids) - found)
        if missing or not wanted:
            what = f"event {missing[0]!r}" if missing else f"invocation {invocation_id!r}"
            raise EventNotFoundError(
                f"Session {session.session_id} has no {what}; nothing was deleted."
            )
        doomed = log.deletable(wanted)
        for position in doomed:
            special = log.entries[position].special
            if special is not None and special.rewinds_before:
                raise ConfigurationError(
                    f"Event {log.entries[position].id!r} is the mark of a rewind, without which"
                    " hidden events would be shown again; nothing was deleted."
                )
        return doomed

    return _remove(tx, session, choose, is_wanted=True)


def scrub(tx: Transaction, session: SessionId, keys: Collection[str]) -> list[str]:
    """Takes the values of some keys out of the log and the state at creation, wherever they stand.

    The events stay. A replay finds the keys absent, until an event that is appended later.

    Args:
        tx: The transaction.
        session: The session; one that is gone has nothing to be scrubbed.
        keys: With their prefixes.

    Returns:
        JSON texts of what the log held of these keys.
    """
    head = sql_store.locked_head(tx, session)
    if head is None:
        return []
    own = {**session.parameters(), "session_key": head.key}
    texts = _scrub_creation(tx, session, keys)
    before = _entries(tx, session, head)
    after = list(before)
    for at, entry in enumerate(before):
        delta = entry.actions.get("state_delta") or {}
        gone = {
            key: delta[key]
            for key in keys
            if key in delta and key not in entry.metadata.get(REMOVED, ())
        }
        if not gone:
            continue
        texts.append(json.dumps(gone))
        left = {key: value for key, value in delta.items() if key not in gone}
        data = {**entry.data, "actions": {**entry.actions, "state_delta": left}}
        timestamp = data.pop("timestamp", entry.time)
        parameters = {**own, "event_id": entry.id, "event_data": text_of(tx, data, timestamp)}
        tx.run("change_event", parameters)
        stored = tx.rows("event", parameters)[0][0]
        after[at] = LogEntry(entry.sequence, entry.id, entry.invocation, stored)
    if after != before:
        tx.run("note_rewrite", own)
        line = sql_checkpoints.find_line(tx, session, head.incarnation, lock=True)
        if line is not None:
            _rebase(tx, line, before, after)
    return texts


def _scrub_creation(tx: Transaction, session: SessionId, keys: Collection[str]) -> list[str]:
    initial = sql_store.initial_state(tx, session)
    gone = {key: initial.pop(key) for key in keys if key in initial}
    if not gone:
        return []
    tx.run("save_initial_state", {**session.parameters(), "state": tx.json(initial)})
    return [json.dumps(gone)]


def _remove(
    tx: Transaction,
    session: SessionId,
    choose: Callable[[Log, int], dict[int, str]],
    *,
    is_wanted: bool,
) -> Removed:
    head = sql_store.locked_head(tx, session)
    if head is None:
        raise SessionNotFoundError(f"Session {session.session_id} not found.")
    line = sql_checkpoints.find_line(tx, session, head.incarnation, lock=True)
    log = Log(_entries(tx, session, head))
    newest = 0
    if line is not None and line.last_number:
        newest = tx.rows("checkpoint_covered", {"line_key": line.key})[0][0] or 0
    doomed = choose(log, newest)
    if not doomed:
        return _NOTHING
    runs = list(log.runs(doomed, merge=not is_wanted))
    after = {entry.sequence: entry for entry in log.entries}
    own = {**session.parameters(), "session_key": head.key}
    for run in runs:
        tombstone = _tombstone(tx, run, with_digest=not is_wanted)
        for entry in run.entries:
            del after[entry.sequence]
        after[tombstone.sequence] = tombstone
        _replace(tx, own, run, tombstone)
        if tombstone.sequence == log.entries[-1].sequence:
            tx.run("save_newest_event", {**own, "event_id": tombstone.id})
    tx.run("note_rewrite", own)
    if line is not None:
        _rebase(tx, line, log.entries, [after[at] for at in sorted(after)])
    removed = _removed(tx, own, log, runs, doomed)
    media = set().union(*map(media_names, removed.texts))
    if media:
        media -= set().union(*(media_names(entry.text) for entry in after.values()))
    return replace(removed, media=frozenset(media))


def _entries(tx: Transaction, session: SessionId, head: Head) -> list[LogEntry]:
    rows = tx.rows("logged_events", {**session.parameters(), "session_key": head.key})
    return [LogEntry(at, id_, invocation or "", text or "") for at, id_, invocation, text in rows]


def _tombstone(tx: Transaction, run: Run, *, with_digest: bool) -> LogEntry:
    """Returns the event that stands for a run."""
    last = run.entries[-1]
    said: dict[str, Any] = {"count": sum(run.why.values()), "why": run.why, "first": run.first}
    if with_digest:
        salt = new_salt()
        said |= {"salt": salt, "digest": next_digest(salt, "", _rows(run.entries))}
    event = Event(
        invocation_id=run.entries[0].invocation,
        author="user",
        actions=EventActions(artifact_delta=dict(run.artifacts)),
        custom_metadata={PRUNED: said},
    )
    event.id = str(uuid.uuid4())
    data = with_delta(ready_event(event, "refuse").new.data, run.outcome)
    return LogEntry(last.sequence, event.id, event.invocation_id, text_of(tx, data, last.time))


def _replace(tx: Transaction, own: Mapping[str, Any], run: Run, tombstone: LogEntry) -> None:
    for entry in run.entries:
        at = {**own, "event_id": entry.id, "sequence": entry.sequence}
        for statement in ("delete_landmarks_at", "delete_sequence", "delete_event"):
            tx.run(statement, at)
    parameters = {
        **own,
        "event_id": tombstone.id,
        "sequence": tombstone.sequence,
        "invocation_id": tombstone.invocation,
        "time": tx.time(microseconds(tombstone.time)),
        "event_data": tombstone.text,
    }
    tx.run("insert_event", parameters)
    tx.run("insert_sequence", parameters)
    tombstone.text = tx.rows("event", parameters)[0][0]  # a server may store it in other words


def _removed(
    tx: Transaction,
    own: Mapping[str, Any],
    log: Log,
    runs: Iterable[Run],
    doomed: Mapping[int, str],
) -> Removed:
    gone = [log.entries[position] for position in sorted(doomed)]
    left = {entry.invocation for at, entry in enumerate(log.entries) if at not in doomed}
    invocations = frozenset(entry.invocation for entry in gone) - left
    requests = sum(
        tx.run("delete_requests_of_invocation", {**own, "invocation_id": one})
        for one in sorted(invocations)
    )
    rows = [entry for run in runs for entry in run.entries]
    return Removed(
        dict(Counter(doomed.values())),
        [text for entry in rows for text in (entry.text, entry.id)],
        frozenset(entry.id for entry in gone),
        invocations,
        requests,
    )


# --- What checkpoints know of the log


def _rows(entries: Iterable[LogEntry]) -> list[tuple[int, str, str]]:
    return [(entry.sequence, entry.id, entry.text) for entry in entries]


def _rebase(
    tx: Transaction,
    line: sql_checkpoints.Line,
    before: Iterable[LogEntry],
    after: Iterable[LogEntry],
) -> None:
    """Has the checkpoints of a session accept its log as it is now."""
    known = sql_checkpoints.stretches(tx, line.key, sys.maxsize)
    stretches, digest = rebased(line.salt, list(known), _rows(before), _rows(after))
    if not stretches:
        return
    there = {entry.sequence: entry for entry in after}
    made = iter(stretches)
    for row in tx.rows("checkpoint_numbers", {"line_key": line.key}):
        number, marks, specials = row[0], row[2], row[6]
        pruned = [next(made) for _ in range(marks.count(";"))]
        own: Stretch = next(made)
        kept = [
            special
            for special in json.loads(specials or "[]")
            if special[0] in there and there[special[0]].tombstone is None
        ]
        tombstones = "".join(f"{one.sequence},{one.digest},{one.marks};" for one in pruned)
        parameters = {
            "line_key": line.key,
            "number": number,
            "digest": own.digest,
            "marks": tombstones + own.marks,
            "specials": json.dumps(kept) if kept else None,
        }
        tx.run("save_checkpoint_log", parameters)
    if digest is not None and stretches[-1].sequence == line.covered:
        tx.run("save_line_digest", {"line_key": line.key, "digest": digest})
