"""When state was last written, by the database's clock, and what has expired since."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from google.adk.sessions.state import State

from adk_memory_ext import sql_events
from adk_memory_ext.records import SessionId
from adk_memory_ext.sql_store import change_scope, locked_head
from adk_memory_ext.state_changes import MISSING, Put, Remove, StateChange

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from adk_memory_ext.sql_events import Appended, NewEvent, Seen
    from adk_memory_ext.statements import Transaction

Ttl: TypeAlias = "Callable[[str], timedelta | None]"
"""How long after its last write a key (with its prefix) is returned; None: for ever."""

_MICROSECOND: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class ExpiredKey:
    """A key whose time is over."""

    app_name: str
    user_id: str
    """Empty for `app:`."""
    session_id: str
    """Empty for `app:` and `user:`."""
    key: str
    """With its prefix."""

    @property
    def owner(self) -> SessionId:
        """Whose state it is in."""
        return SessionId(self.app_name, self.user_id, self.session_id)

    @property
    def scope(self) -> str:
        """`session`, `user` or `app`."""
        return "session" if self.session_id else "user" if self.user_id else "app"


class Afresh(StateChange):
    """Applies a change as if nothing had been stored: what was has expired."""

    __slots__ = _holds = ("change",)

    def __init__(self, change: StateChange) -> None:
        super().__init__()
        self.change = change

    def apply(self, old: Any) -> Any:  # noqa: ARG002  # it has expired
        """Returns what the change makes of nothing."""
        return self.change.apply(MISSING)


def clock(tx: Transaction) -> int:
    """Returns the database's UTC epoch microseconds."""
    return int(tx.rows("clock", {})[0][0])


def append_event(
    tx: Transaction, session: SessionId, seen: Seen | None, event: NewEvent, ttl: Ttl | None
) -> Appended:
    """Appends an event as `sql_events` does, on what has not expired, and notes its time."""
    if ttl is not None:
        event = on_fresh_ground(tx, session, event, ttl)
    appended = sql_events.append_event(tx, session, seen, event)
    note(tx, session, appended.outcome, ttl)
    return appended


def change_scopes(
    tx: Transaction,
    session: SessionId,
    changes: Mapping[str, Mapping[str, StateChange]],
    ttl: Ttl | None,
) -> dict[str, Any]:
    """Applies changes of `app` and `user` state and returns what each key became, with prefixes."""
    outcome: dict[str, Any] = {}
    for scope in ("app", "user"):
        if not (own := changes[scope]):
            continue
        if ttl is not None:
            own = fresh_changes(tx, scope, session, own, ttl)
        state = change_scope(tx, scope, session, own)
        outcome |= {f"{scope}:{key}": state.get(key, MISSING) for key in own}
    note(tx, session, outcome, ttl)
    return outcome


def times_back(
    tx: Transaction, state: Iterable[str], written: Mapping[str, int], ttl: Ttl
) -> tuple[dict[str, int], set[str]]:
    """Returns when keys of an earlier state were written, and which of them have expired by now.

    Those of which no time was noted are written now: they come back.

    Args:
        tx: The transaction.
        state: The keys, also those that never expire.
        written: The times that were noted, in UTC epoch microseconds.
        ttl: For how long state lives.
    """
    expiring = [key for key in state if ttl(key) is not None]
    now = clock(tx) if expiring else 0
    times = {key: written.get(key, now) for key in expiring}
    over = {key for key, time in times.items() if _is_over(key, time, now, ttl)}
    return {key: time for key, time in times.items() if key not in over}, over


def note_times(tx: Transaction, session: SessionId, times: Mapping[str, int]) -> None:
    """Notes when keys were written that came back as they were."""
    for key, written in sorted(times.items()):
        tx.run("note_state_time", {**_owner(session, key), "written_microseconds": written})


def hide_expired(
    tx: Transaction, session: SessionId, state: dict[str, Any], ttl: Ttl | None, prefix: str = ""
) -> None:
    """Takes out of a state, keys without `prefix`, what has expired."""
    if ttl is not None:
        for key in expired(tx, session, ttl):
            if key.startswith(prefix):
                state.pop(key.removeprefix(prefix), None)


def note(tx: Transaction, session: SessionId, outcome: Mapping[str, Any], ttl: Ttl | None) -> None:
    """Notes that keys were written now; those that became `MISSING` are forgotten."""
    if ttl is None:
        return
    keys = sorted(key for key in outcome if ttl(key) is not None)
    if not keys:
        return
    now = clock(tx)
    for key in keys:
        owner = _owner(session, key)
        if outcome[key] is MISSING:
            tx.run("delete_state_time", owner)
        else:
            tx.run("note_state_time", {**owner, "written_microseconds": now})


def expired(tx: Transaction, session: SessionId, ttl: Ttl) -> set[str]:
    """Returns the expired keys that a session sees, with prefixes."""
    return {row.key for row in _expired(tx, tx.rows("state_times", session.parameters()), ttl)}


def expired_in_app(
    tx: Transaction, app_name: str, user_id: str | None, ttl: Ttl | None
) -> set[ExpiredKey]:
    """Returns the expired keys of an app, or of one of its users and of the app itself."""
    if ttl is None:
        return set()
    name = "state_times_of_app" if user_id is None else "state_times_of_user"
    rows = tx.rows(name, {"app_name": app_name, "user_id": user_id})
    return set(_expired(tx, rows, ttl))


def all_expired(tx: Transaction, ttl: Ttl, limit: int) -> list[ExpiredKey]:
    """Returns at most `limit` expired keys of the whole database, oldest write first."""
    rows = tx.rows("old_state_times", {"before": clock(tx)})
    return _expired(tx, rows, ttl)[:limit]


def hide(state: dict[str, Any], gone: Iterable[ExpiredKey], user_id: str, session_id: str) -> None:
    """Takes what has expired out of the state of one session, keys with prefixes."""
    for row in gone:
        if row.user_id in ("", user_id) and row.session_id in ("", session_id):
            state.pop(row.key, None)


def forget(tx: Transaction, row: ExpiredKey) -> None:
    """Removes the time of a key whose value is gone."""
    tx.run("delete_state_time", {**row.owner.parameters(), "state_key": row.key})


def on_fresh_ground(tx: Transaction, session: SessionId, event: NewEvent, ttl: Ttl) -> NewEvent:
    """Returns the event with changes that do not build on what has expired.

    Reads under the locks of the write, taken in the order of an append: a value that somebody
    writes meanwhile is no expired one.
    """
    if not any((event.session_changes, event.app_changes, event.user_changes)):
        return event
    return replace(
        event,
        session_changes=fresh_changes(tx, "session", session, event.session_changes, ttl),
        app_changes=fresh_changes(tx, "app", session, event.app_changes, ttl),
        user_changes=fresh_changes(tx, "user", session, event.user_changes, ttl),
    )


def fresh_changes(
    tx: Transaction, scope: str, session: SessionId, changes: Mapping[str, StateChange], ttl: Ttl
) -> dict[str, StateChange]:
    """Returns the changes of one scope, keys without prefix; see `on_fresh_ground`."""
    prefix = "" if scope == "session" else f"{scope}:"
    if not any(
        not isinstance(change, Put | Remove) and ttl(prefix + key) is not None
        for key, change in changes.items()
    ):
        return dict(changes)
    if scope == "session":
        locked_head(tx, session)
    else:
        tx.rows(f"locked_{scope}_state", session.parameters())
    gone = expired(tx, session, ttl)
    return {
        key: Afresh(change) if prefix + key in gone else change for key, change in changes.items()
    }


def _expired(tx: Transaction, rows: Iterable[tuple[Any, ...]], ttl: Ttl) -> list[ExpiredKey]:
    rows = list(rows)
    if not rows:
        return []
    now = clock(tx)
    return [ExpiredKey(*owner) for *owner, written in rows if _is_over(owner[3], written, now, ttl)]


def _is_over(key: str, written: int, now: int, ttl: Ttl) -> bool:
    life = ttl(key)
    return life is not None and written + life // _MICROSECOND <= now


def _owner(session: SessionId, key: str) -> dict[str, Any]:
    """Returns the parameters that name a key's place."""
    is_app, is_user = key.startswith(State.APP_PREFIX), key.startswith(State.USER_PREFIX)
    return {
        "app_name": session.app_name,
        "user_id": "" if is_app else session.user_id,
        "session_id": "" if is_app or is_user else session.session_id,
        "state_key": key,
    }
