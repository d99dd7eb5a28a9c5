"""What was done to the history of each request, kept beside the sessions: ids and counts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from sqlalchemy import insert, select

from adk_memory_ext.exact_match import IsExactly
from adk_memory_ext.records import RecordedRequest, SessionId
from adk_memory_ext.schema import memext_requests, memext_sessions
from adk_memory_ext.sql_store import now_microseconds, read_head

if TYPE_CHECKING:
    from collections.abc import Mapping

    from adk_memory_ext.statements import Transaction


def record_request(
    tx: Transaction, session: SessionId, invocation_id: str, agent: str, report: Mapping[str, Any]
) -> None:
    """Keeps a report; does nothing if there is no such session."""
    head = read_head(tx, session, lock=False, check=False)
    if head is None:
        return
    tx.connection.execute(
        insert(memext_requests).values(
            session_key=head.key,
            invocation_id=invocation_id,
            agent=agent,
            recorded_microseconds=now_microseconds(),
            report=json.dumps(report),
        )
    )


def recorded_requests(tx: Transaction, session: SessionId) -> list[RecordedRequest]:
    """Returns the reports of a session, in the order of its requests."""
    rows = tx.connection.execute(
        select(
            memext_requests.c.invocation_id,
            memext_requests.c.agent,
            memext_requests.c.recorded_microseconds,
            memext_requests.c.report,
        )
        .join(memext_sessions, memext_sessions.c.session_key == memext_requests.c.session_key)
        .where(
            IsExactly(memext_sessions.c.app_name, session.app_name),
            IsExactly(memext_sessions.c.user_id, session.user_id),
            IsExactly(memext_sessions.c.session_id, session.session_id),
        )
        .order_by(memext_requests.c.request_key)
    )
    turns: dict[str, int] = {}
    return [
        RecordedRequest(
            turn=turns.setdefault(invocation_id, len(turns) + 1),
            invocation_id=invocation_id,
            agent=agent,
            recorded=microseconds / 1_000_000,
            report=json.loads(report),
        )
        for invocation_id, agent, microseconds, report in rows
    ]


def sessions_named(tx: Transaction, session_id: str) -> list[SessionId]:
    """Returns every session of an id, whoever's it is."""
    rows = tx.connection.execute(
        select(memext_sessions.c.app_name, memext_sessions.c.user_id)
        .where(IsExactly(memext_sessions.c.session_id, session_id))
        .order_by(memext_sessions.c.session_key)
    )
    return [SessionId(app_name, user_id, session_id) for app_name, user_id in rows]
