"""What has expired by a policy, found and deleted: sessions, state, facts and checkpoints.

Each function deletes a part in the caller's transaction, after it has looked again: what somebody
has used or deleted meanwhile is left alone.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import or_, select

from adk_memory_ext import (
    checkpoint_pruning,
    expired_state,
    sql_checkpoints,
    sql_expiry,
    sql_facts,
    sql_pruning,
    sql_store,
)
from adk_memory_ext.erasure import stored_rows
from adk_memory_ext.erasure.jobs import Deleted
from adk_memory_ext.erasure.pruning import deleted_events
from adk_memory_ext.erasure.subjects import Subject
from adk_memory_ext.event_times import MICROSECONDS
from adk_memory_ext.exact_match import IsExactly
from adk_memory_ext.facts import Owner
from adk_memory_ext.records import SessionId
from adk_memory_ext.schema import (
    memext_checkpoint_lines,
    memext_profile_facts,
    memext_sessions,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import timedelta

    from sqlalchemy import ColumnElement

    from adk_memory_ext.retention import Pruning, RetentionPolicy
    from adk_memory_ext.sql_expiry import ExpiredKey, Ttl
    from adk_memory_ext.sql_store import Head
    from adk_memory_ext.statements import Transaction

STATE: Final = "values of state"
FACTS: Final = "values of facts"
_MOST_CHARACTERS: Final = 8_000_000
"""Of texts that one transaction deletes and one verification holds in memory."""


@dataclass(frozen=True, slots=True)
class Rules:
    """A policy as of one moment."""

    policy: RetentionPolicy
    now: int
    """UTC epoch microseconds."""

    def before(self, duration: timedelta | None) -> int | None:
        """Returns the time so long ago, in UTC epoch microseconds; None for no duration."""
        return None if duration is None else self.now - round(duration.total_seconds() * 1e6)

    def is_expired(self, head: Head) -> bool:
        """Whether a session is idle or old."""
        idle = self.before(self.policy.session_idle)
        old = self.before(self.policy.session_age)
        return (idle is not None and head.updated <= idle) or (
            old is not None and head.created <= old
        )


# --- Sessions


def sessions_to_look_at(
    tx: Transaction, rules: Rules, after: int, limit: int
) -> list[tuple[int, SessionId]]:
    """Returns sessions that seem expired, with their keys, behind a key and in its order."""
    link = memext_sessions.c
    idle = rules.before(rules.policy.session_idle)
    old = rules.before(rules.policy.session_age)
    conditions = [
        column <= bound
        for column, bound in ((link.updated_microseconds, idle), (link.created_microseconds, old))
        if bound is not None
    ]
    return sessions_behind(tx, after, limit, or_(*conditions)) if conditions else []


def sessions_behind(
    tx: Transaction, after: int, limit: int, *conditions: ColumnElement[bool]
) -> list[tuple[int, SessionId]]:
    """Returns sessions with their keys, behind a key and in its order."""
    link = memext_sessions.c
    rows = tx.connection.execute(
        select(link.session_key, link.app_name, link.user_id, link.session_id)
        .where(link.session_key > after, *conditions)
        .order_by(link.session_key)
        .limit(limit)
    )
    return [(key, SessionId(*owner)) for key, *owner in rows]


def delete_sessions(
    tx: Transaction, rules: Rules, found: Sequence[tuple[int, SessionId]]
) -> tuple[Deleted, int]:
    """Deletes those of the sessions that are expired, until there is a good deal of text.

    Returns:
        What was deleted, and the key of the last session that was looked at.
    """

    def delete(session: SessionId, head: Head) -> Deleted | None:
        if not rules.is_expired(head):
            return None
        subject = Subject(session.app_name, session.user_id, session.session_id)
        texts = list(stored_rows.texts_of(tx, subject, stored_rows.OF_SESSIONS))
        counts = stored_rows.delete_rows(tx, subject, stored_rows.OF_SESSIONS)
        return Deleted(texts, counts, [subject.app_name, *subject.ids])

    return _deleted(tx, found, delete)


def delete_histories(
    tx: Transaction, rules: Rules, found: Sequence[tuple[int, SessionId]], pruning: Pruning
) -> tuple[Deleted, int]:
    """Deletes the events of sessions that a pruning covers, until there is a good deal of text.

    Those that are expired themselves are passed over.

    Returns:
        What was deleted, and the key of the last session that was looked at.
    """

    def delete(session: SessionId, head: Head) -> Deleted | None:
        if rules.is_expired(head):
            return None
        removed = sql_pruning.prune(tx, session, pruning, rules.now / MICROSECONDS)
        deleted = deleted_events(tx, session, removed)
        return deleted if deleted.counts else None

    return _deleted(tx, found, delete)


def _deleted(
    tx: Transaction,
    found: Sequence[tuple[int, SessionId]],
    delete: Callable[[SessionId, Head], Deleted | None],
) -> tuple[Deleted, int]:
    texts: list[str] = []
    names: list[str] = []
    counts: Counter[str] = Counter()
    media: list[tuple[SessionId, frozenset[str]]] = []
    size, last = 0, 0
    for key, session in found:
        last = key
        head = sql_store.locked_head(tx, session)
        deleted = None if head is None else delete(session, head)
        if deleted is None:
            continue
        texts += deleted.texts
        names += deleted.names
        media += deleted.media
        counts.update(deleted.counts)
        size += sum(map(len, deleted.texts))
        if size > _MOST_CHARACTERS:
            break
    return Deleted(texts, dict(counts), names, media=media), last


# --- State


def delete_state(tx: Transaction, rows: list[ExpiredKey], ttl: Ttl) -> Deleted:
    """Deletes expired values of one owner from its state, and from the logs that set them.

    What an app's state held stays in the logs of its users, and what was written again meanwhile
    everywhere.
    """
    session, scope = rows[0].owner, rows[0].scope
    logs = [session] if scope == "session" else []
    if scope == "user":
        logs = _sessions_of(tx, session)
    for one in logs:  # first, as everywhere
        sql_store.locked_head(tx, one)
    if scope != "session":
        tx.rows(f"locked_{scope}_state", session.parameters())
    still = sql_expiry.expired(tx, session, ttl)  # nobody writes one of them any more
    rows = [row for row in rows if row.key in still]
    if not rows:
        return Deleted([], {}, [])
    keys = [row.key for row in rows]
    texts = [text for one in logs for text in sql_pruning.scrub(tx, one, keys)]
    before = _state(tx, scope, session)
    removed = expired_state.remove(tx, rows, ttl)
    after = _state(tx, scope, session)
    gone = {key: value for key, value in before.items() if key not in after}
    return Deleted(
        [*texts, json.dumps(gone)],
        {STATE: removed},
        [session.app_name, session.user_id, session.session_id, *gone],
    )


def _sessions_of(tx: Transaction, owner: SessionId) -> list[SessionId]:
    """Returns the sessions of a user, in the order in which others lock them."""
    link = memext_sessions.c
    rows = tx.connection.execute(
        select(link.app_name, link.user_id, link.session_id)
        .where(IsExactly(link.app_name, owner.app_name), IsExactly(link.user_id, owner.user_id))
        .order_by(link.session_id)
    )
    return [SessionId(*row) for row in rows]


def _state(tx: Transaction, scope: str, session: SessionId) -> dict[str, Any]:
    """Returns the state of one scope, keys as they are stored."""
    rows = tx.rows(f"{scope}_state", session.parameters())
    return sql_store.decode_state(rows[0][0]) if rows else {}


# --- Facts


def profiles_to_look_at(tx: Transaction, rules: Rules) -> list[Owner]:
    """Returns whose profile holds a value whose time is over."""
    facts = memext_profile_facts.c
    is_over = facts.expires_microseconds <= rules.now
    replaced = rules.before(rules.policy.profile)
    if replaced is not None:
        is_over = or_(is_over, facts.retired_microseconds <= replaced)
    rows = tx.connection.execute(select(facts.app_name, facts.user_id).where(is_over).distinct())
    return [Owner(*row) for row in rows]


def delete_facts(tx: Transaction, rules: Rules, owner: Owner) -> Deleted:
    """Deletes the values of a profile whose time is over."""
    replaced = rules.before(rules.policy.profile)
    texts, count = sql_facts.delete_expired(tx, owner, rules.now, replaced)
    return Deleted(texts, {FACTS: count}, [owner.app_name, owner.user_id])


# --- Checkpoints


@dataclass(frozen=True, slots=True)
class Line:
    """The checkpoints of one session."""

    key: int
    session: SessionId
    incarnation: int


def lines_to_look_at(tx: Transaction, rules: Rules, after: int, limit: int) -> list[Line]:
    """Returns lines of checkpoints behind a key, in its order."""
    if rules.policy.checkpoints is None and rules.policy.orphaned_checkpoints is None:
        return []
    line = memext_checkpoint_lines.c
    rows = tx.connection.execute(
        select(line.line_key, line.app_name, line.user_id, line.session_id, line.incarnation)
        .where(line.line_key > after)
        .order_by(line.line_key)
        .limit(limit)
    )
    return [Line(key, SessionId(*owner), incarnation) for key, *owner, incarnation in rows]


def delete_checkpoints(tx: Transaction, rules: Rules, found: Sequence[Line]) -> tuple[Deleted, int]:
    """Deletes the checkpoints that the rules do not keep; the others restore as before.

    Returns:
        What was deleted, and the key of the last line that was looked at.
    """
    texts: list[str] = []
    names: list[str] = []
    counts: Counter[str] = Counter()
    for line in found:
        numbers, is_all = _doomed(tx, rules, line)
        if not numbers and not is_all:
            continue
        before = _texts_of_line(tx, line.key)
        if is_all:
            checkpoint_pruning.delete_line(tx, line.key)
        else:
            checkpoint_pruning.prune(tx, line.key, numbers)
        texts += before - _texts_of_line(tx, line.key)
        names += list(line.session.parameters().values())
        counts["checkpoints"] += len(numbers)
        counts["lines of checkpoints"] += is_all
    return Deleted(texts, dict(counts), names), found[-1].key


def _doomed(tx: Transaction, rules: Rules, line: Line) -> tuple[list[int], bool]:
    """Returns the numbers of the checkpoints that go, and whether nothing is to be left."""
    head = sql_store.locked_head(tx, line.session)
    is_there = head is not None and head.incarnation == line.incarnation
    found = [
        stored
        for stored in sql_checkpoints.listed(tx, line.session, whole_user=False)
        if stored.line_key == line.key
    ]
    numbers: set[int] = set()
    if rules.policy.checkpoints is not None:
        seconds = rules.now / MICROSECONDS
        gone = checkpoint_pruning.doomed(found, rules.policy.checkpoints, seconds)
        numbers.update(gone.get(line.key, ()))
    orphaned = rules.before(rules.policy.orphaned_checkpoints)
    is_orphan = not is_there or (head is not None and rules.is_expired(head))
    if orphaned is None or not is_orphan:
        return sorted(numbers), False
    numbers.update(s.number for s in found if s.checkpoint.created_at * MICROSECONDS <= orphaned)
    return sorted(numbers), len(numbers) == len(found)


def _texts_of_line(tx: Transaction, line_key: int) -> set[str]:
    texts: set[str] = set()
    for store in stored_rows.OF_CHECKPOINTS:
        rows = tx.connection.execute(
            select(store.table).where(store.table.c.line_key == line_key)
        ).mappings()
        texts.update(
            value
            for row in rows
            for name, value in row.items()
            if isinstance(value, str) and name != "app_name"
        )
    return texts
