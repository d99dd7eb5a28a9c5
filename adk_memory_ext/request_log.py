"""`sessions.requests`: what was done to the history of each request, for `adk-memory explain`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from adk_memory_ext.errors import CapabilityError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from adk_memory_ext.records import RecordedRequest, SessionId
    from adk_memory_ext.sql_sessions import Database


class RequestLog:
    """Keeps reports beside the sessions of a database; they go when their session goes.

    Args:
        database: Where; None over a service whose sessions are elsewhere.
    """

    def __init__(self, database: Database | None) -> None:
        self._database = database

    async def record(
        self, session: SessionId, *, invocation_id: str, agent: str, report: Mapping[str, Any]
    ) -> None:
        """Keeps the report of a request; does nothing if there is no such session.

        Raises:
            CapabilityError: When the sessions are in no database of ours.
            StoreUnavailableError: When it cannot be written. Nothing was.
        """
        from adk_memory_ext import sql_requests

        await self._opened().write(
            lambda tx: sql_requests.record_request(tx, session, invocation_id, agent, report)
        )

    async def of_session(self, session: SessionId) -> list[RecordedRequest]:
        """Returns the reports of a session, oldest first; empty if none was kept.

        Raises:
            CapabilityError: When the sessions are in no database of ours.
        """
        from adk_memory_ext import sql_requests

        return await self._opened().read(lambda tx: sql_requests.recorded_requests(tx, session))

    async def sessions_named(self, session_id: str) -> list[SessionId]:
        """Returns every session of an id, whoever's it is, for who looks after the database.

        Raises:
            CapabilityError: When the sessions are in no database of ours.
        """
        from adk_memory_ext import sql_requests

        return await self._opened().read(lambda tx: sql_requests.sessions_named(tx, session_id))

    def _opened(self) -> Database:
        if self._database is None:
            raise CapabilityError(
                "Reports are kept beside the sessions, in a database of"
                " DurableSessionService.from_url(…); the wrapped service has none."
            )
        return self._database
