"""Checkpoints in SQL: made in the transaction of the event that they cover, small, pruned whole.

A checkpoint holds what has changed of the state since the one before it, every so often the whole
state; long values are stored once under a salted digest of their text. The size of a checkpoint is
that of the changes, and the work of making one does not grow with the log.
"""

from __future__ import annotations

import json
import re
import secrets
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from google.adk.errors.session_not_found_error import SessionNotFoundError

from adk_memory_ext.checkpoint_records import FORMAT_VERSION, Checkpoint, CheckpointRequest
from adk_memory_ext.errors import CheckpointInconsistentError, CorruptRecordError
from adk_memory_ext.event_times import MICROSECONDS
from adk_memory_ext.ids import check_title
from adk_memory_ext.interruptions import special_in
from adk_memory_ext.json_values import Normaliser, encode
from adk_memory_ext.log_digests import (
    Stretch,
    beginning,
    marks_of,
    new_salt,
    next_digest,
    value_digest,
)
from adk_memory_ext.records import SessionId
from adk_memory_ext.rewind_marks import Special
from adk_memory_ext.sql_store import (
    decode_state,
    locked_head,
    merged_state,
    now_microseconds,
    scope_state,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from adk_memory_ext.checkpoint_records import CheckpointPolicy, KnowsKeys
    from adk_memory_ext.log_digests import Fault
    from adk_memory_ext.statements import Row, Transaction

_SAID: Final = ("summary", "workflow", "references")
"""What an app says of a step in its own words and ids; the rest names code."""
SNAPSHOT_EVERY: Final = 32
"""Checkpoints from one whole state to the next."""
_LONGEST_INLINE: Final = 48
"""Characters of a value that stands in the checkpoint itself: a digest is not much shorter."""
_ARTIFACTS: Final = re.compile(r'"artifact_delta":\s*\{\s*"')

Entry: TypeAlias = "str | list[Any] | None"
"""What a checkpoint says of one key: the digest of a stored value, a list of the short value
itself, or None for one that only the log holds."""


@dataclass(frozen=True, slots=True)
class Line:
    """The checkpoints of one session: what the next one continues."""

    key: int
    incarnation: int
    salt: str
    covered: int
    digest: str
    last_number: int
    state: dict[str, Entry]
    artifacts: dict[str, int]
    parent: str | None


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """A checkpoint and what its restore needs."""

    checkpoint: Checkpoint
    line_key: int
    number: int
    incarnation: int
    salt: str
    times: dict[str, int]
    """When keys that expire were written, in UTC epoch microseconds."""


def identity_of(stored: StoredCheckpoint) -> SessionId:
    """Returns the session that a checkpoint is of."""
    checkpoint = stored.checkpoint
    return SessionId(checkpoint.app_name, checkpoint.user_id, checkpoint.session_id)


def inconsistent(stored: StoredCheckpoint, fault: Fault) -> CheckpointInconsistentError:
    """Returns the error that names the event at which a log is not what a checkpoint says."""
    name = "is missing" if fault.event_id is None else f"({fault.event_id}) was changed"
    return CheckpointInconsistentError(
        f"Event {fault.sequence} of session {stored.checkpoint.session_id} {name} since checkpoint"
        f" {stored.checkpoint.id} was made; nothing was restored.",
        fault.event_id,
    )


def checked(request: CheckpointRequest) -> CheckpointRequest:
    """Returns a request as it can be stored.

    Raises:
        InvalidIdError: When the step is empty, longer than 256 characters or no text.
        StateRejectedError: When a reference cannot be kept.
    """
    check_title(request.step)
    value: Callable[[Any, str], Any] = Normaliser().value
    return CheckpointRequest(
        step=request.step,
        workflow=value(request.workflow, "workflow"),
        summary=value(request.summary, "summary"),
        agent=value(request.agent, "agent"),
        agent_version=value(request.agent_version, "agent_version"),
        references=value(request.references, "references"),
    )


def find_line(
    tx: Transaction, session: SessionId, incarnation: int, *, lock: bool = False
) -> Line | None:
    """Returns the checkpoints' line of a session; None when it never had one."""
    name = "locked_checkpoint_line" if lock else "checkpoint_line"
    return _line(tx.rows(name, {**session.parameters(), "incarnation": incarnation}))


def newest_line(tx: Transaction, session: SessionId, *, lock: bool = False) -> Line | None:
    """Returns the line that was begun last for sessions of this id; None if there is none.

    For sessions of a service that does not tell them from later ones of their id: their lines are
    counted from 1.
    """
    rows = tx.rows("newest_checkpoint_line", session.parameters())
    return find_line(tx, session, rows[0][0], lock=lock) if rows else None


def _line(rows: Sequence[Row]) -> Line | None:
    if not rows:
        return None
    key, incarnation, salt, covered, digest, last_number, manifest, parent = rows[0]
    content = decode_state(manifest)
    progress = covered, digest, last_number, content["state"], content["artifacts"]
    return Line(key, incarnation, salt, *progress, parent)


def begin_line(
    tx: Transaction, session: SessionId, incarnation: int, parent: Checkpoint | None = None
) -> Line:
    """Stores an empty line of checkpoints for a session and returns it.

    `parent` is the checkpoint that the session was made from.
    """
    salt = new_salt()
    parameters = {
        **session.parameters(),
        "incarnation": incarnation,
        "salt": salt,
        "covered_sequence": 0,
        "digest": beginning(salt),
        "last_number": 0,
        "manifest": encode({"state": {}, "artifacts": {}}),
        "parent_checkpoint": parent and parent.id,
        "parent_session_id": parent and parent.session_id,
    }
    tx.run("insert_checkpoint_line", parameters)
    line = find_line(tx, session, incarnation, lock=True)
    if line is None:
        raise CorruptRecordError(f"The checkpoints of {session.session_id} cannot be found.")
    return line


def create(
    tx: Transaction, session: SessionId, request: CheckpointRequest, policy: CheckpointPolicy
) -> str:
    """Stores a checkpoint of the session as it is in this transaction, and returns its id.

    For the same event and step there is one checkpoint, however often it is asked for.

    Raises:
        SessionNotFoundError: When there is no such session.
    """
    head = locked_head(tx, session)
    if head is None:
        raise SessionNotFoundError(f"Session {session.session_id} not found.")
    line = find_line(tx, session, head.incarnation, lock=True)
    line = line or begin_line(tx, session, head.incarnation)
    unseen = {**session.parameters(), "session_key": head.key, "after_sequence": line.covered}
    rows = tx.rows("new_events", unseen)
    values = decode_state(head.state)

    def whole_state() -> dict[str, Any]:
        app, user = (scope_state(tx, scope, session) for scope in ("app", "user"))
        return merged_state(app, user, dict(values))

    return add(tx, session, line, request, policy, Moment(rows, values, whole_state))


@dataclass(frozen=True, slots=True)
class Moment:
    """What a checkpoint is made of."""

    rows: Sequence[Row]
    """Sequence, id, invocation id and text of the events that no checkpoint has covered."""
    state: Mapping[str, Any]
    """Of the session's scope."""
    whole_state: Callable[[], Mapping[str, Any]]
    """Returns that of all scopes, with prefixes."""


def add(  # noqa: PLR0917
    tx: Transaction,
    session: SessionId,
    line: Line,
    request: CheckpointRequest,
    policy: CheckpointPolicy,
    moment: Moment,
) -> str:
    """Stores the next checkpoint of a line that is locked, and returns its id.

    Where no event is new and the step has a checkpoint, that is the one.
    """
    if line.last_number and not moment.rows:
        # Of the checkpoints of one event the newest ones are looked at: it has a few at most.
        begin = line.last_number - SNAPSHOT_EVERY
        at = {"line_key": line.key, "sequence": line.covered, "step": request.step, "from": begin}
        if rows := tx.rows("checkpoint_at", at):
            return str(rows[0][0])
    stretch, artifacts, specials = _stretch_of(line, moment.rows)
    last = (moment.rows[-1][1], moment.rows[-1][2] or "") if moment.rows else last_event(tx, line)
    if policy.state_policy is not None:
        request = _without_personal(request, policy.state_policy, moment)
    values = moment.whole_state() if policy.scoped else moment.state
    state = _entries(values, line.salt, policy)
    _store_values(tx, line, state, values)
    number = line.last_number + 1
    progress = {
        "line_key": line.key,
        "covered_sequence": stretch.sequence,
        "digest": stretch.digest,
        "last_number": number,
        "manifest": encode({"state": state, "artifacts": artifacts}),
    }
    tx.run("save_checkpoint_line", progress)
    is_snapshot = number % SNAPSHOT_EVERY == 1
    checkpoint_id = secrets.token_hex(12)
    parameters = {
        **progress,
        "number": number,
        "checkpoint_id": checkpoint_id,
        "sequence": stretch.sequence,
        "step": request.step,
        "created_microseconds": now_microseconds(),
        "marks": stretch.marks,
        "specials": json.dumps(specials) if specials else None,
        "is_snapshot": int(is_snapshot),
        "manifest": encode({"set": state} if is_snapshot else _delta(line.state, state)),
        "details": encode(
            _details(request, artifacts, last, scoped=policy.scoped)
            | _times(tx, session, values, policy)
        ),
    }
    tx.run("insert_checkpoint", parameters)
    return checkpoint_id


def _without_personal(
    request: CheckpointRequest, keys: KnowsKeys, moment: Moment
) -> CheckpointRequest:
    """Returns a request that says nothing personal; reads the other scopes if it says anything."""
    said = {name: value for name in _SAID if (value := getattr(request, name))}
    if not said:
        return request
    clean = keys.without_personal(moment.whole_state())
    return replace(request, **{name: clean(value) for name, value in said.items()})


def _stretch_of(line: Line, rows: Sequence[Row]) -> tuple[Stretch, dict[str, int], list[list[Any]]]:
    """Returns what is new in the log: digest and marks, artifacts, specials."""
    log = [(sequence, event_id, text or "") for sequence, event_id, _invocation_id, text in rows]
    digest = next_digest(line.salt, line.digest, log) if log else line.digest
    artifacts = dict(line.artifacts)
    for _sequence, _event_id, text in log:
        if _ARTIFACTS.search(text):
            artifacts.update(json.loads(text)["actions"]["artifact_delta"])
    sequence = rows[-1][0] if rows else line.covered
    special = [(row[0], special_in(row[3])) for row in rows]
    specials = [[number, *what] for number, what in special if what is not None]
    return Stretch(sequence, digest, marks_of(line.salt, log)), artifacts, specials


def last_event(tx: Transaction, line: Line) -> tuple[str, str] | None:
    """Returns id and invocation id of the newest event that a line covers; None without one."""
    at = {"line_key": line.key, "number": line.last_number}
    for (text,) in tx.rows("checkpoint_details", at):
        details = decode_state(text)
        if details["event"]:
            return details["event"], details["invocation"]
    return None


def _details(
    request: CheckpointRequest,
    artifacts: Mapping[str, int],
    last: tuple[str, str] | None,
    *,
    scoped: bool,
) -> dict[str, Any]:
    event_id, invocation_id = last or (None, "")
    said = {name: value for name, value in asdict(request).items() if value and name != "step"}
    details = {**said, "event": event_id, "invocation": invocation_id, "format": FORMAT_VERSION}
    if artifacts:
        details["artifacts"] = dict(artifacts)
    return {**details, "scoped": 1} if scoped else details


def _times(
    tx: Transaction, session: SessionId, state: Mapping[str, Any], policy: CheckpointPolicy
) -> dict[str, Any]:
    """Returns when those keys of a state were written that expire, as far as it is noted."""
    if all(policy.ttl(key) is None for key in state):
        return {}
    rows = tx.rows("state_times", session.parameters())
    times = {key: written for *_owner, key, written in rows if key in state}
    return {"times": times} if times else {}


def _entries(state: Mapping[str, Any], salt: str, policy: CheckpointPolicy) -> dict[str, Entry]:
    entries: dict[str, Entry] = {}
    for key, value in state.items():
        if not policy.is_stored(key):
            entries[key] = None
            continue
        text = _text(value)
        entries[key] = [value] if len(text) <= _LONGEST_INLINE else value_digest(salt, text)
    return entries


def _text(value: Any) -> str:
    return json.dumps(value)


def _store_values(
    tx: Transaction, line: Line, entries: Mapping[str, Entry], state: Mapping[str, Any]
) -> None:
    known = set(map(str, line.state.values()))
    for key, entry in entries.items():
        if not isinstance(entry, str) or entry in known:
            continue
        known.add(entry)
        parameters = {"line_key": line.key, "value_digest": entry, "value": _text(state[key])}
        if not tx.rows("checkpoint_value", parameters):
            tx.run("insert_checkpoint_value", parameters)


def _delta(before: Mapping[str, Entry], after: Mapping[str, Entry]) -> dict[str, Any]:
    changed = {
        key: entry
        for key, entry in after.items()
        if key not in before or _text(before[key]) != _text(entry)
    }
    gone = [key for key in before if key not in after]
    return {"set": changed, "gone": gone} if gone else {"set": changed}


# --- Reading

_STEP: Final = 4
"""Where the step stands in a row of the statements `checkpoint…`."""


def read_row(row: Row) -> StoredCheckpoint:
    """Returns the checkpoint of a row of the statements `checkpoint…`."""
    (id_, line_key, number, sequence, step, created, digest, details, *rest) = row
    app_name, user_id, session_id, incarnation, salt = rest
    said = decode_state(details)
    checkpoint = Checkpoint(
        id=id_,
        app_name=app_name,
        user_id=user_id,
        session_id=session_id,
        invocation_id=said["invocation"],
        step=step,
        workflow=said.get("workflow", ""),
        summary=said.get("summary", ""),
        agent=said.get("agent", ""),
        agent_version=said.get("agent_version", ""),
        sequence=sequence,
        event_id=said["event"],
        digest=digest,
        references=said.get("references", {}),
        artifacts=said.get("artifacts", {}),
        created_at=created / MICROSECONDS,
        format_version=said["format"],
        scoped="scoped" in said,
    )
    times = said.get("times", {})
    return StoredCheckpoint(checkpoint, line_key, number, incarnation, salt, times)


def find(tx: Transaction, checkpoint_id: str) -> StoredCheckpoint | None:
    """Returns the checkpoint of an id."""
    rows = tx.rows("checkpoint", {"checkpoint_id": checkpoint_id})
    return read_row(rows[0]) if rows else None


def listed(
    tx: Transaction, session: SessionId, *, whole_user: bool, step: str | None = None
) -> Iterator[StoredCheckpoint]:
    """Yields the checkpoints of a session, or of all sessions of its user, newest first.

    Args:
        tx: The transaction.
        session: The session.
        whole_user: Whether those of all sessions are meant.
        step: Only those of this step; None for all.
    """
    name = "checkpoints_of_user" if whole_user else "checkpoints_of_session"
    rows = tx.stream(name, session.parameters())
    return (read_row(row) for row in rows if step is None or row[_STEP] == step)


def sessions_of(tx: Transaction, owner: SessionId) -> list[str]:
    """Returns the ids of the sessions of a user that have checkpoints."""
    return [row[0] for row in tx.rows("checkpointed_sessions", owner.parameters())]


def stretches(tx: Transaction, line_key: int, up_to: int) -> Iterator[Stretch]:
    """Yields what the checkpoints of a line up to a sequence know of the log, pruned ones too."""
    at = {"line_key": line_key, "sequence": up_to}
    for row in tx.stream("checkpoint_marks", at):
        stretch = Stretch._make(row)
        if ";" in stretch.marks:
            *pruned, marks = stretch.marks.split(";")
            for tombstone in pruned:
                pruned_sequence, pruned_digest, pruned_marks = tombstone.split(",")
                yield Stretch(int(pruned_sequence), pruned_digest, pruned_marks)
            stretch = stretch._replace(marks=marks)
        yield stretch


def specials(tx: Transaction, line_key: int) -> tuple[dict[int, Special], int]:
    """Returns the rewinds, copies and restores by sequence, and up to where all are known."""
    of_line = {"line_key": line_key}
    found = {
        sequence: Special(*what)
        for (text,) in tx.rows("checkpoint_specials", of_line)
        for sequence, *what in json.loads(text)
    }
    return found, tx.rows("checkpoint_covered", of_line)[0][0] or 0


def forks_of(tx: Transaction, session: SessionId) -> tuple[str, ...]:
    """Returns the ids of the sessions that were forked from a session, the oldest fork first."""
    return tuple(row[0] for row in tx.rows("forks_of_session", session.parameters()))


def entries_at(tx: Transaction, line_key: int, number: int) -> dict[str, Entry]:
    """Returns what a checkpoint says of each key of the state.

    Raises:
        CorruptRecordError: When a part of it is not there.
    """
    window = {"line_key": line_key, "number": number, "from": number - SNAPSHOT_EVERY}
    rows = tx.rows("checkpoint_manifests", window)
    begin = max((i for i, row in enumerate(rows) if row[1]), default=None)
    if begin is None or len(rows) - begin != number - rows[begin][0] + 1:
        raise CorruptRecordError(f"A part of checkpoint number {number} is missing.")
    entries: dict[str, Entry] = {}
    for _number, _is_snapshot, text in rows[begin:]:
        manifest = decode_state(text)
        entries.update(manifest["set"])
        for key in manifest.get("gone", ()):
            entries.pop(key, None)
    return entries


def state_at(tx: Transaction, stored: StoredCheckpoint) -> tuple[dict[str, Any], list[str]]:
    """Returns the state that a checkpoint holds, and the keys that only the log holds.

    Raises:
        CorruptRecordError: When a part of it is not there.
    """
    state: dict[str, Any] = {}
    by_reference: list[str] = []
    for key, entry in entries_at(tx, stored.line_key, stored.number).items():
        if entry is None:
            by_reference.append(key)
        elif isinstance(entry, str):
            at = {"line_key": stored.line_key, "value_digest": entry}
            rows = tx.rows("checkpoint_value", at)
            if not rows or value_digest(stored.salt, rows[0][0]) != entry:
                raise CorruptRecordError(
                    f"The value of {key!r} in checkpoint {stored.checkpoint.id} cannot be read."
                )
            state[key] = json.loads(rows[0][0])
        else:
            state[key] = entry[0]
    return state, by_reference
