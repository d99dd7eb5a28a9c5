"""Lists of sessions: ADK's whole one, and pages in the order of the last update."""

from __future__ import annotations

import base64
import binascii
import secrets
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import and_, insert, literal, or_, select, update

from adk_memory_ext.adk_tables import app_states, sessions, user_states
from adk_memory_ext.errors import ConfigurationError
from adk_memory_ext.exact_match import IsExactly
from adk_memory_ext.records import Revision, SessionPage, SessionSummary
from adk_memory_ext.schema import memext_sessions
from adk_memory_ext.sql_store import decode_state, merged_state

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlalchemy import ColumnElement, Select

    from adk_memory_ext.statements import Transaction

_MICROSECONDS: Final = 1_000_000
_BEYOND_INTEGERS: Final = 2**63
"""What no database's integers reach."""
_MOST: Final = 2**31
"""Sessions of a page, whatever is asked for."""
_AT_ONCE: Final = 500
"""Sessions that one statement looks for."""


def all_sessions(
    tx: Transaction, app_name: str, user_id: str | None
) -> Iterator[tuple[dict[str, Any], Revision | None]]:
    """Yields each session's fields without events, oldest update first, as ADK orders them.

    The revision beside them is None where plain ADK wrote since the session was last seen.
    """
    link = memext_sessions.c
    query = (
        select(
            sessions.c.user_id,
            sessions.c.id,
            sessions.c.state,
            sessions.c.update_time,
            link.incarnation,
            link.last_sequence,
            link.updated_microseconds,
        )
        .outerjoin_from(sessions, memext_sessions, _same_session())
        .where(_own(sessions.c.app_name, sessions.c.user_id, app_name, user_id))
        .order_by(sessions.c.update_time, sessions.c.user_id, sessions.c.id)
    )
    app_state = _app_state(tx, app_name)
    user_states_by_id = _user_states(tx, app_name, user_id)
    for row in tx.connection.execute(query):
        updated = tx.microseconds(row.update_time)
        is_known = row.updated_microseconds == updated
        yield (
            {
                "app_name": app_name,
                "user_id": row.user_id,
                "id": row.id,
                "state": merged_state(
                    app_state, user_states_by_id.get(row.user_id, {}), decode_state(row.state)
                ),
                "events": [],
                "last_update_time": updated / _MICROSECONDS,
            },
            Revision(row.incarnation, row.last_sequence) if is_known else None,
        )


def _same_session() -> ColumnElement[bool]:
    """The condition that joins ADK's row of a session with ours."""
    link = memext_sessions.c
    return and_(
        sessions.c.app_name == link.app_name,
        sessions.c.user_id == link.user_id,
        sessions.c.id == link.session_id,
    )


def _own(
    app: ColumnElement[str], user: ColumnElement[str], app_name: str, user_id: str | None
) -> ColumnElement[bool]:
    own = IsExactly(app, app_name)
    return own if user_id is None else and_(own, IsExactly(user, user_id))


def _app_state(tx: Transaction, app_name: str) -> dict[str, Any]:
    query = select(app_states.c.state).where(IsExactly(app_states.c.app_name, app_name))
    text = tx.connection.execute(query).scalar()
    return {} if text is None else decode_state(text)


def _user_states(tx: Transaction, app_name: str, user_id: str | None) -> dict[str, dict[str, Any]]:
    query = select(user_states.c.user_id, user_states.c.state).where(
        _own(user_states.c.app_name, user_states.c.user_id, app_name, user_id)
    )
    return {row.user_id: decode_state(row.state) for row in tx.connection.execute(query)}


def page(
    tx: Transaction,
    app_name: str,
    user_id: str | None,
    limit: int,
    after: str | None,
    *,
    with_state: bool,
) -> SessionPage:
    """Returns a page of sessions, newest update first and newest session first among equals.

    Raises:
        ConfigurationError: When `limit` is below 1 or `after` is not what a page gave.
    """
    if not isinstance(limit, int) or limit < 1:
        raise ConfigurationError("A page holds at least 1 session.")
    link = memext_sessions.c
    query = (
        select(
            link.session_key,
            link.user_id,
            link.session_id,
            link.title,
            link.updated_microseconds,
            sessions.c.state if with_state else literal(None).label("state"),
        )
        .join_from(memext_sessions, sessions, _same_session())
        .where(_own(link.app_name, link.user_id, app_name, user_id))
        .order_by(link.updated_microseconds.desc(), link.session_key.desc())
        .limit(min(limit, _MOST) + 1)
    )
    if after is not None:
        updated, key = _decode_cursor(after)
        # Not a comparison of pairs: MySQL reads the whole index for one.
        query = query.where(
            link.updated_microseconds <= updated,
            or_(link.updated_microseconds < updated, link.session_key < key),
        )
    rows = tx.connection.execute(query).all()
    more = len(rows) > limit
    rows = rows[:limit]
    return SessionPage(
        sessions=tuple(
            SessionSummary(
                app_name=app_name,
                user_id=row.user_id,
                session_id=row.session_id,
                title=row.title,
                last_update_time=row.updated_microseconds / _MICROSECONDS,
                state=decode_state(row.state) if with_state else None,
            )
            for row in rows
        ),
        next=_encode_cursor(rows[-1].updated_microseconds, rows[-1].session_key) if more else None,
    )


def _encode_cursor(updated: int, key: int) -> str:
    return base64.urlsafe_b64encode(f"{updated}.{key}".encode()).decode()


def _decode_cursor(cursor: str) -> tuple[int, int]:
    try:
        updated, key = map(int, base64.urlsafe_b64decode(cursor.encode()).decode().split("."))
    except (AttributeError, ValueError, binascii.Error):
        updated = key = _BEYOND_INTEGERS
    if max(abs(updated), abs(key)) >= _BEYOND_INTEGERS:
        raise ConfigurationError("`after` is not what a page of sessions gave as `next`.")
    return updated, key


def set_title(tx: Transaction, session_key: int, title: str | None) -> None:
    """Sets the title of a session; None takes it away."""
    tx.connection.execute(
        update(memext_sessions)
        .where(memext_sessions.c.session_key == session_key)
        .values(title=title)
    )


def has_strange_sessions(tx: Transaction) -> bool:
    """Whether plain ADK created or changed a session unseen; reads a line of every session."""
    return any(
        row.session_key is None or row.updated_microseconds != tx.microseconds(row.update_time)
        for row in tx.connection.execute(_sessions_and_links())
    )


def adopt_sessions(tx: Transaction) -> None:
    """Takes sessions that plain ADK created or changed into the order of the lists.

    Reads every session once; their events are taken in when the session is used.
    """
    link = memext_sessions.c
    for row in tx.connection.execute(_sessions_and_links()).all():
        updated = tx.microseconds(row.update_time)
        if row.session_key is None:
            tx.connection.execute(
                insert(memext_sessions).values(
                    app_name=row.app_name,
                    user_id=row.user_id,
                    session_id=row.id,
                    incarnation=secrets.randbits(62),
                    last_sequence=0,
                    content_sequence=0,
                    newest_event_id=None,
                    created_microseconds=tx.microseconds(row.create_time),
                    updated_microseconds=updated,
                )
            )
        elif row.updated_microseconds != updated:
            # Its events are still unseen. No event has an empty id, so their own check notices.
            tx.connection.execute(
                update(memext_sessions)
                .where(
                    link.session_key == row.session_key,
                    link.updated_microseconds == row.updated_microseconds,
                )
                .values(updated_microseconds=updated, newest_event_id="")
            )


def _sessions_and_links() -> Select[Any]:
    link = memext_sessions.c
    return select(
        sessions.c.app_name,
        sessions.c.user_id,
        sessions.c.id,
        sessions.c.create_time,
        sessions.c.update_time,
        link.session_key,
        link.updated_microseconds,
    ).outerjoin_from(sessions, memext_sessions, _same_session())


def living(tx: Transaction, session_keys: Sequence[int]) -> set[int]:
    """Returns the log versions of those sessions of the given keys that are stored."""
    link = memext_sessions.c
    version = link.incarnation + link.rewrites  # as `sql_store.Head.log_version`
    query = select(version, link.created_microseconds, sessions.c.create_time).join_from(
        memext_sessions, sessions, _same_session()
    )
    found: set[int] = set()
    for start in range(0, len(session_keys), _AT_ONCE):
        of_these = link.session_key.in_(session_keys[start : start + _AT_ONCE])
        for log_version, created, create_time in tx.connection.execute(query.where(of_these)):
            if tx.microseconds(create_time) == created:  # else plain ADK has put another one there
                found.add(log_version)
    return found
