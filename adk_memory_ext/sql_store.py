"""What a session service does with SQL: plain functions over one open transaction.

The same functions run on every database; who opens the transaction, in which thread, is
`database`'s business. All of them read ADK's rows under the lock of the transaction and write
ADK's rows and ours together, so that either can be read alone.
"""

from __future__ import annotations

import json
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from adk_memory_ext import sql_windows
from adk_memory_ext.errors import CorruptRecordError, InvalidIdError, StateRejectedError
from adk_memory_ext.json_values import decode
from adk_memory_ext.records import Revision
from adk_memory_ext.state_changes import MISSING, UnfitValueError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from adk_memory_ext.records import SessionId
    from adk_memory_ext.state_changes import StateChange
    from adk_memory_ext.statements import Transaction
    from adk_memory_ext.windows import Window


_OURS: Final = (
    "delete_initial_state",
    "delete_sequences",
    "delete_landmarks",
    "delete_state_times",
    "delete_requests",
    "delete_link",
)
"""What goes with a session of the tables beside ADK's; the link last, by which others are found."""


@dataclass(frozen=True, slots=True)
class Head:
    """What is stored of a session besides its events."""

    state: str
    """Session-scope state, a JSON object."""
    key: int
    """What names the session in our tables."""
    incarnation: int
    last_sequence: int
    content_sequence: int
    created: int
    """UTC epoch microseconds."""
    updated: int
    """UTC epoch microseconds, as plain ADK would read it."""
    newest: int | None
    """Time of the event that plain ADK reads last, in UTC epoch microseconds; None without one."""
    rewrites: int = 0
    """How often events were removed from the log on purpose, or changed."""

    @property
    def revision(self) -> Revision:
        """What who reads the session now has seen."""
        return Revision(self.incarnation, self.last_sequence)

    @property
    def log_version(self) -> int:
        """Tells this log from one of an earlier session, and from itself before a rewrite."""
        return self.incarnation + self.rewrites


@dataclass(frozen=True, slots=True)
class LoadedSession:
    """A session as it was at one moment."""

    head: Head
    app_state: dict[str, Any]
    user_state: dict[str, Any]
    events: list[tuple[int, str]]
    """Sequences and JSON texts, in the order of their append."""
    known: int | None = None
    """Of a whole log: the sequence behind which `events` go on."""

    def state(self) -> dict[str, Any]:
        """Returns the state of all scopes, with prefixes."""
        return merged_state(self.app_state, self.user_state, decode_state(self.head.state))


class ForeignRowsError(Exception):
    """Plain ADK wrote to this session since it was last seen: `adopt` it and try again."""


def merged_state(
    app_state: Mapping[str, Any], user_state: Mapping[str, Any], session_state: dict[str, Any]
) -> dict[str, Any]:
    """Returns one mapping with ADK's prefixes; changes and returns `session_state`."""
    for key, value in app_state.items():
        session_state["app:" + key] = value
    for key, value in user_state.items():
        session_state["user:" + key] = value
    return session_state


def decode_state(text: str) -> dict[str, Any]:
    """Returns a stored state.

    Raises:
        CorruptRecordError: When it is no JSON object.
    """
    try:
        state = decode(text)
    except ValueError as error:
        raise CorruptRecordError(f"A stored state is no JSON text ({error}).") from None
    if not isinstance(state, dict):
        raise CorruptRecordError("A stored state is no JSON object.")
    return state


def now_microseconds() -> int:
    """Returns this machine's UTC epoch microseconds."""
    return time.time_ns() // 1000


def read_head(
    tx: Transaction, session: SessionId, *, lock: bool, check: bool = True
) -> Head | None:
    """Returns the session's head; None if there is no such session.

    Args:
        tx: The transaction.
        session: The session.
        lock: Keep others from changing the session until the transaction ends.
        check: Look whether plain ADK wrote in between.

    Raises:
        ForeignRowsError: When it did.
    """
    parameters = session.parameters()
    rows = tx.rows("locked_head" if lock else "head", parameters)
    if not rows:
        if tx.rows("bare_head", parameters):
            raise ForeignRowsError
        return None
    (
        state,
        create_time,
        update_time,
        key,
        incarnation,
        last_sequence,
        content_sequence,
        newest_event_id,
        created,
        updated,
        rewrites,
        newest_id,
        newest_time,
        of_last_update,
    ) = rows[0]
    head = Head(
        state=state,
        key=key,
        incarnation=incarnation,
        last_sequence=last_sequence,
        content_sequence=content_sequence,
        created=tx.microseconds(create_time),
        updated=tx.microseconds(update_time),
        newest=None if newest_time is None else tx.microseconds(newest_time),
        rewrites=rewrites,
    )
    if check and (
        head.updated != updated
        or head.created != created
        or newest_id != newest_event_id
        or of_last_update > 1
    ):
        raise ForeignRowsError
    return head


def locked_head(tx: Transaction, session: SessionId) -> Head | None:
    """Returns the session's head, kept from others until the transaction ends; None without one.

    What plain ADK wrote in between is taken in first.
    """
    try:
        return read_head(tx, session, lock=True)
    except ForeignRowsError:
        pass
    try:
        # PostgreSQL and MySQL read locked rows anew when they had to wait, and the newest event as
        # it was before. Now that the lock is held, both are of one moment.
        return read_head(tx, session, lock=True)
    except ForeignRowsError:
        adopt(tx, session)
        return read_head(tx, session, lock=True, check=False)


def adopt(tx: Transaction, session: SessionId) -> None:
    """Takes in what plain ADK wrote: events get the next sequences, in the order ADK reads them.

    A session that ADK deleted and created again becomes a new one. Does nothing if the session is
    gone or nothing is new.
    """
    parameters = session.parameters()
    bare = tx.rows("locked_bare_head", parameters)
    if not bare:
        return
    created, updated = (tx.microseconds(value) for value in bare[0])
    link = tx.rows("link_key", parameters)
    if link and link[0][4] != created:
        _delete_ours(tx, parameters)
        link = ()
    is_new = not link
    if is_new:
        _insert_link(tx, session, created)
        link = tx.rows("link_key", parameters)
    key, incarnation, last, content, _created = link[0]
    touched: set[str] = set()
    for event_id, text in tx.rows("foreign_events", {**parameters, "session_key": key}):
        last += 1
        tx.run("insert_sequence", {"session_key": key, "sequence": last, "event_id": event_id})
        data = json.loads(text or "{}")
        touched.update((data.get("actions") or {}).get("state_delta") or {})
        if has_content(data):
            content = last
        sql_windows.note(tx, {**parameters, "session_key": key}, last, data)
    if is_new:
        state = decode_state(tx.rows("session_state", parameters)[0][0])
        _keep_initial_state(tx, session, {k: v for k, v in state.items() if k not in touched})
    newest = tx.rows("newest_event", parameters)
    tx.run(
        "save_link",
        {
            **parameters,
            "incarnation": incarnation,
            "last_sequence": last,
            "content_sequence": content,
            "newest_event_id": newest[0][0] if newest else None,
            "created_microseconds": created,
            "updated_microseconds": updated,
        },
    )


def has_content(event: Mapping[str, Any]) -> bool:
    """Whether a stored event is one that a stale writer must have seen.

    State-only events (what ADK's PATCH appends) and ADK's compaction events are housekeeping: they
    apply to whatever the session is by then.
    """
    actions = event.get("actions") or {}
    return event.get("content") is not None and not actions.get("compaction")


def _insert_link(tx: Transaction, session: SessionId, created: int) -> Revision:
    revision = Revision(secrets.randbits(62), 0)
    tx.run(
        "insert_link",
        {
            **session.parameters(),
            "incarnation": revision.incarnation,
            "last_sequence": 0,
            "content_sequence": 0,
            "newest_event_id": None,
            "created_microseconds": created,
            "updated_microseconds": created,
        },
    )
    return revision


def _keep_initial_state(tx: Transaction, session: SessionId, state: Mapping[str, Any]) -> None:
    if state:
        tx.run("insert_initial_state", {**session.parameters(), "state": tx.json(state)})


def initial_state(tx: Transaction, session: SessionId) -> dict[str, Any]:
    """Returns the session-scope state that the session was created with, as far as it was kept.

    Of a session that plain ADK created, what no event had changed when it was first seen here.
    """
    rows = tx.rows("initial_state", session.parameters())
    return decode_state(rows[0][0]) if rows else {}


def session_exists(tx: Transaction, session: SessionId) -> bool:
    """Whether there is such a session."""
    return bool(tx.rows("bare_head", session.parameters()))


def create_session(
    tx: Transaction,
    session: SessionId,
    *,
    app_changes: Mapping[str, StateChange],
    user_changes: Mapping[str, StateChange],
    session_state: Mapping[str, Any],
) -> LoadedSession:
    """Stores a session that does not exist yet, with its share of app and user state."""
    _refuse_confusable(tx, "session", session)
    now = now_microseconds()
    parameters = session.parameters()
    state = tx.json(session_state)
    # The session first, as in an append, so that these two cannot wait for each other for ever.
    tx.run("insert_session", {**parameters, "state": state, "time": tx.time(now)})
    # What is left of a session that plain ADK deleted.
    _delete_ours(tx, parameters)
    revision = _insert_link(tx, session, now)
    _keep_initial_state(tx, session, session_state)
    app_state = change_scope(tx, "app", session, app_changes)
    user_state = change_scope(tx, "user", session, user_changes)
    head = Head(state, 0, revision.incarnation, 0, 0, now, now, None)
    return LoadedSession(head, app_state, user_state, [])


def _refuse_confusable(
    tx: Transaction, what: Literal["session", "app_state", "user_state"], session: SessionId
) -> None:
    """Refuses a row whose key MySQL would take for that of another one.

    Raises:
        InvalidIdError: When there is one.
    """
    if tx.dialect != "mysql":
        return
    parameters = session.parameters()
    if not tx.rows(f"confusable_{what}", parameters):
        return
    if tx.rows("bare_head" if what == "session" else what, parameters):
        return  # somebody else has just made the row: the insert says so
    raise InvalidIdError(
        f"The database has a {what.replace('_', ' ')} whose ids differ only in what the collation"
        " of ADK's tables ignores (case, accents, trailing spaces); nothing was written. Tables"
        " that this package creates keep them apart."
    )


def change_scope(
    tx: Transaction, scope: str, session: SessionId, changes: Mapping[str, StateChange]
) -> dict[str, Any]:
    """Applies changes to `app` or `user` state under its lock and returns the whole new state.

    The row is created where it is missing, also without changes: plain ADK cannot append to a
    session whose user has none. Without changes nothing is locked, so that those who only begin a
    session need not wait for each other.
    """
    parameters = session.parameters()
    rows = tx.rows(f"locked_{scope}_state" if changes else f"{scope}_state", parameters)
    state = decode_state(rows[0][0]) if rows else {}
    apply_changes(state, changes, f"{scope}:")
    if changes or not rows:
        if not rows:
            _refuse_confusable(tx, "app_state" if scope == "app" else "user_state", session)
        values = {"state": tx.json(state, f"{scope}:"), "time": tx.time(now_microseconds())}
        verb = "save" if rows else "insert"
        tx.run(f"{verb}_{scope}_state", {**parameters, **values})
    return state


def apply_changes(
    state: dict[str, Any], changes: Mapping[str, StateChange], prefix: str = ""
) -> dict[str, Any]:
    """Changes `state` and returns what each key became; removed keys are `MISSING`.

    Raises:
        StateRejectedError: When a change does not fit the stored value.
    """
    outcome: dict[str, Any] = {}
    for key, change in changes.items():
        try:
            value = change.apply(state.get(key, MISSING))
        except UnfitValueError as error:
            raise StateRejectedError(prefix + key, str(error)) from None
        outcome[key] = value
        if value is MISSING:
            state.pop(key, None)
        else:
            state[key] = value
    return outcome


def load_session(
    tx: Transaction,
    session: SessionId,
    *,
    limit: int | None = None,
    after: int | None = None,
    window: Window | None = None,
    known: Callable[[Head], int] | None = None,
    check: bool = True,
) -> LoadedSession | None:
    """Returns the session with its events, or None.

    Args:
        tx: The transaction, which must see one moment of the database.
        session: The session.
        limit: At most this many of the newest events, and before them the invocations of calls
            that were open by then; None for all.
        after: Only events of this time (UTC epoch microseconds) or later; None for all.
        window: Only the events of this window; instead of `limit` and `after`.
        known: Says up to which sequence the caller has all events; those are not read where all
            are asked for.
        check: Look whether plain ADK wrote in between.

    Raises:
        ForeignRowsError: When it did.
    """
    head = read_head(tx, session, lock=False, check=check)
    if head is None:
        return None
    parameters = session.parameters()
    app_state, user_state = (
        decode_state(rows[0][0]) if (rows := tx.rows(name, parameters)) else {}
        for name in ("app_state", "user_state")
    )
    own = {**parameters, "session_key": head.key}
    if window is not None:
        events = sql_windows.load_window(tx, own, window, head.last_sequence)
    elif limit is None and after is None and known is not None:
        have = min(known(head), head.last_sequence)
        events = list(tx.rows("events_from", {**own, "sequence": have + 1}))
        return LoadedSession(head, app_state, user_state, events, have)
    else:
        events = _load_events(tx, own, limit, after, head.last_sequence)
    return LoadedSession(head, app_state, user_state, events)


def _load_events(
    tx: Transaction, parameters: dict[str, Any], limit: int | None, after: int | None, last: int
) -> list[tuple[int, str]]:
    name = "events" if limit is None else "last_events"
    if after is not None:
        name += "_since"
        parameters["after"] = tx.time(after)
    if limit is not None:
        parameters["limit"] = min(limit, last)  # no database takes any number
    rows: Sequence[Any] = tx.rows(name, parameters) if limit != 0 else ()
    if limit is None:
        return list(rows)
    if after is None:
        start = rows[-1][0] if rows else last + 1
        open_calls = sql_windows.open_calls(tx, parameters, start)
        return [*open_calls, *reversed(rows)]
    return list(reversed(rows))


def stored_event(tx: Transaction, session: SessionId, event_id: str) -> dict[str, Any] | None:
    """Returns the stored data of an event; None if there is none of that id."""
    rows = tx.rows("event", {**session.parameters(), "event_id": event_id})
    if not rows:
        return None
    data: dict[str, Any] = json.loads(rows[0][0] or "{}")
    return data


def delete_session(tx: Transaction, session: SessionId) -> None:
    """Deletes the session, its events and our rows beside them; user and app state stay."""
    parameters = session.parameters()
    if tx.dialect != "sqlite":  # so that an append under way has ended, and none begins
        tx.rows("locked_bare_head", parameters)
    tx.run("delete_events", parameters)
    _delete_ours(tx, parameters)
    tx.run("delete_session", parameters)


def _delete_ours(tx: Transaction, parameters: Mapping[str, Any]) -> None:
    for statement in _OURS:
        tx.run(statement, parameters)


def scope_state(
    tx: Transaction, scope: Literal["app", "user"], session: SessionId
) -> dict[str, Any]:
    """Returns the state of the app or of the user, keys without prefix; empty if there is none."""
    rows = tx.rows(f"{scope}_state", session.parameters())
    return decode_state(rows[0][0]) if rows else {}
