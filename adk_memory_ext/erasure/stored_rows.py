"""The rows of a subject in each of the tables, ADK's and ours: reading, counting, deleting.

A new table is one line in `STORES`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sqlalchemy import and_, delete, exists, false, func, not_, select, update

from adk_memory_ext.adk_tables import events, sessions, user_states
from adk_memory_ext.erasure.subjects import Subject, Traces, text_of
from adk_memory_ext.exact_match import IsExactly
from adk_memory_ext.facts import Owner
from adk_memory_ext.schema import (
    memext_checkpoint_lines,
    memext_checkpoint_values,
    memext_checkpoints,
    memext_events,
    memext_initial_state,
    memext_landmarks,
    memext_profile_facts,
    memext_profile_users,
    memext_requests,
    memext_sessions,
    memext_state_times,
)
from adk_memory_ext.sql_facts import cut_sources

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from sqlalchemy import ColumnElement, Table

    from adk_memory_ext.erasure.subjects import Facts
    from adk_memory_ext.facts import Provenance
    from adk_memory_ext.statements import Transaction


@dataclass(frozen=True, slots=True)
class Store:
    """The rows of one table."""

    name: str
    """What a receipt calls it."""
    table: Table
    session_column: str | None
    """Which column holds the session's id; None when rows belong to a user only, and go with all
    that is the user's."""
    by_session_key: bool = False
    """Whether rows name their session by its key in `memext_sessions`."""
    by_line_key: bool = False
    """Whether rows name their session by its line of checkpoints."""

    def holds(self, subject: Subject) -> bool:
        """Whether the table has rows of such a subject."""
        return subject.session_id is None or self.session_column is not None

    def own(self, subject: Subject, *, left: bool = False) -> ColumnElement[bool]:
        """The condition that a row is the subject's.

        Args:
            subject: Whose.
            left: Only what is left of sessions that are gone.
        """
        if self.by_session_key:
            link = Store("", memext_sessions, "session_id")
            keys = select(memext_sessions.c.session_key).where(link.own(subject, left=left))
            return self.table.c.session_key.in_(keys)
        if self.by_line_key:
            line = Store("", memext_checkpoint_lines, "session_id")
            lines = select(memext_checkpoint_lines.c.line_key).where(line.own(subject))
            return self.table.c.line_key.in_(lines)
        columns = self.table.c
        conditions: list[ColumnElement[bool]] = [
            IsExactly(columns.app_name, subject.app_name),
            IsExactly(columns.user_id, subject.user_id),
        ]
        if subject.session_id is not None and self.session_column is not None:
            conditions.append(IsExactly(columns[self.session_column], subject.session_id))
        if left and self.table is memext_sessions:
            conditions.append(not_(_has_session()))
        return and_(*conditions)


STORES: Final = (
    Store("events", events, "session_id"),
    Store("order of events", memext_events, "session_id", by_session_key=True),
    Store("places of open calls", memext_landmarks, "session_id", by_session_key=True),
    Store("reports on requests", memext_requests, "session_id", by_session_key=True),
    Store("state at creation", memext_initial_state, "session_id", by_session_key=True),
    Store("times of state", memext_state_times, "session_id"),
    Store("values of checkpoints", memext_checkpoint_values, "session_id", by_line_key=True),
    Store("checkpoints", memext_checkpoints, "session_id", by_line_key=True),
    Store("lines of checkpoints", memext_checkpoint_lines, "session_id"),
    Store("order and titles of sessions", memext_sessions, "session_id"),
    Store("sessions with their state", sessions, "id"),
    Store("user state", user_states, None),
    Store("profile facts", memext_profile_facts, None),
    Store("profiles", memext_profile_users, None),
)
"""In the order of deletion: what others lead to goes last."""

OF_CHECKPOINTS: Final = tuple(
    store for store in STORES if store.by_line_key or store.table is memext_checkpoint_lines
)
OF_SESSIONS: Final = tuple(
    store for store in STORES if store.session_column and store not in OF_CHECKPOINTS
)
"""What ends with a session; its checkpoints outlive it."""


def count_rows(tx: Transaction, subject: Subject) -> dict[str, int]:
    """Returns how many rows each store holds of the subject."""
    return {
        store.name: tx.connection.execute(
            select(func.count()).select_from(store.table).where(store.own(subject))
        ).scalar_one()
        for store in STORES
        if store.holds(subject)
    }


def lock_rows(tx: Transaction, subject: Subject) -> None:
    """Has appends under way end before anything is read, and lets none begin.

    On SQLite the transaction itself does so.
    """
    if tx.dialect != "sqlite":
        order = (sessions.c.app_name, sessions.c.user_id, sessions.c.id)
        query = (
            select(sessions.c.id).where(_own(sessions, subject)).order_by(*order).with_for_update()
        )
        tx.connection.execute(query).all()


def texts_of(tx: Transaction, subject: Subject, stores: Iterable[Store] = STORES) -> Iterator[str]:
    """Gives every text of the subject's rows; the app's name is nobody's."""
    for rows in read_rows(tx, subject, stores).values():
        for row in rows:
            yield from (
                value
                for name, value in row.items()
                if isinstance(value, str) and name != "app_name"
            )


def read_rows(
    tx: Transaction, subject: Subject, stores: Iterable[Store] = STORES
) -> Mapping[str, list[Mapping[str, object]]]:
    """Returns the subject's rows of each store."""
    return {
        store.name: [
            dict(row)
            for row in tx.connection.execute(
                select(store.table).where(store.own(subject))
            ).mappings()
        ]
        for store in stores
        if store.holds(subject)
    }


def delete_rows(
    tx: Transaction, subject: Subject, stores: Iterable[Store] = STORES
) -> dict[str, int]:
    """Deletes the subject's rows and returns how many each store held.

    On a server somebody may make a session of the subject meanwhile: what is beside ADK's tables is
    deleted only where its session is gone, so that nobody is left with a half.
    """
    held = [store for store in stores if store.holds(subject)]
    alone = tx.dialect == "sqlite"
    if not alone:
        held.sort(key=lambda store: store.table not in (events, sessions))
    return {
        store.name: tx.connection.execute(
            delete(store.table).where(store.own(subject, left=not alone))
        ).rowcount
        for store in held
    }


def _has_session() -> ColumnElement[bool]:
    """The condition that the session of a row of `memext_sessions` is stored."""
    link = memext_sessions.c
    return exists().where(
        sessions.c.app_name == link.app_name,
        sessions.c.user_id == link.user_id,
        sessions.c.id == link.session_id,
    )


@dataclass(frozen=True, slots=True)
class Cut:
    """What went from a profile."""

    texts: Sequence[str] = ()
    values: int = 0
    """Values of facts, old ones too."""


def cut_profile(tx: Transaction, subject: Subject, facts: Facts = "keep") -> Cut:
    """Takes an erased session out of its user's profile.

    What the user asked to save stays, without its source, unless `facts` is `remove`; an inferred
    fact that only this session supports goes.
    """
    if subject.session_id is None:
        return Cut()
    owner = Owner(subject.app_name, subject.user_id)
    return cut_facts(tx, owner, lambda source: source.session_id == subject.session_id, facts)


def cut_facts(
    tx: Transaction, owner: Owner, is_gone: Callable[[Provenance], bool], facts: Facts = "keep"
) -> Cut:
    """Takes erased sources out of a profile, as `cut_profile` does."""
    before = tx.rows("all_facts", owner.parameters())
    if not before:
        return Cut()
    cut_sources(tx, owner, is_gone, facts)
    after = tx.rows("all_facts", owner.parameters())
    return Cut(sorted(_texts(before) - _texts(after)), len(before) - len(after))


def _texts(rows: Iterable[Iterable[object]]) -> set[str]:
    return {value for row in rows for value in row if isinstance(value, str)}


def with_forks(tx: Transaction, subject: Subject) -> list[Subject]:
    """Returns a session and all that was forked from it, forks of forks too.

    A user is alone: all forks of their sessions are theirs.
    """
    subjects = [subject]
    for one in subjects:  # which grows
        forks = memext_checkpoint_lines.c.session_id
        rows = tx.connection.execute(select(forks).where(_is_fork_of(one)).distinct())
        found = (Subject(one.app_name, one.user_id, session_id) for session_id in rows.scalars())
        subjects += [fork for fork in found if fork not in subjects]
    return subjects


def detach_forks(tx: Transaction, subject: Subject) -> int:
    """Has the forks of a session forget where they came from; returns how many there are."""
    nothing = {"parent_checkpoint": None, "parent_session_id": None}
    cut = update(memext_checkpoint_lines).where(_is_fork_of(subject)).values(nothing)
    return tx.connection.execute(cut).rowcount


def _is_fork_of(subject: Subject) -> ColumnElement[bool]:
    line = memext_checkpoint_lines.c
    if subject.session_id is None:
        return false()
    return and_(
        IsExactly(line.app_name, subject.app_name),
        IsExactly(line.user_id, subject.user_id),
        IsExactly(line.parent_session_id, subject.session_id),
        not_(IsExactly(line.session_id, subject.session_id)),  # which a restore made again
    )


def traces_of(tx: Transaction, subject: Subject) -> Traces:
    """Returns what leads to things of the subject that lie outside the database."""
    said = {
        row.id: text_of(json.loads(row.event_data or "{}").get("content"))
        for row in tx.connection.execute(
            select(events.c.id, events.c.event_data).where(_own(events, subject))
        ).all()
    }
    if subject.session_id is not None:
        whole = Subject(subject.app_name, subject.user_id)
        ids = tx.connection.execute(select(events.c.id).where(_own(events, whole))).scalars()
        return Traces([subject.session_id], said, frozenset(ids) - said.keys())
    own = select(sessions.c.id).where(_own(sessions, subject))
    return Traces(list(tx.connection.execute(own).scalars()), said)


def _own(table: Table, subject: Subject) -> ColumnElement[bool]:
    return next(store for store in STORES if store.table is table).own(subject)
