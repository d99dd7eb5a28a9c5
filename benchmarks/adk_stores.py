"""What has ADK's interface: its own services, and ours."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from google.adk.sessions.database_session_service import DatabaseSessionService
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from sqlalchemy import event, make_url

from adk_memory_ext import DurableSessionService
from benchmarks.store import Synchronous, library_durability, sqlite_durability, sqlite_file

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from google.adk.events.event import Event
    from google.adk.sessions.base_session_service import BaseSessionService
    from google.adk.sessions.session import Session

    from benchmarks.workload import Message

APP: Final = "benchmark"


@dataclass
class AdkConversation:
    """A session of an ADK session service."""

    service: BaseSessionService
    session: Session

    def prepare(self, message: Message) -> Event:
        """Returns the message as an event."""
        return message.to_event()

    async def append(self, prepared: Event) -> None:
        """Appends the event."""
        await self.service.append_event(self.session, prepared)


@dataclass
class AdkStore:
    """An ADK session service."""

    service: BaseSessionService
    durability: str

    async def conversation(self, name: str) -> AdkConversation:
        """Creates a session of a user of its own."""
        session = await self.service.create_session(app_name=APP, user_id=name, session_id=name)
        return AdkConversation(self.service, session)


@asynccontextmanager
async def open_adk(url: str, *, wal: bool = False) -> AsyncIterator[AdkStore]:
    """Opens ADK's `DatabaseSessionService` as its URL opens it, on SQLite also with WAL."""
    async with DatabaseSessionService(url) as service:
        if wal:
            event.listen(service.db_engine.sync_engine, "connect", _set_wal)
        async with service.db_engine.connect() as connection:
            if make_url(url).get_backend_name() == "sqlite":
                pragmas = [
                    (await connection.exec_driver_sql(f"PRAGMA {name}")).scalar_one()
                    for name in ("journal_mode", "synchronous")
                ]
                durability = sqlite_durability(*pragmas)
            else:
                commit = (await connection.exec_driver_sql("SHOW synchronous_commit")).scalar_one()
                sync = (await connection.exec_driver_sql("SHOW fsync")).scalar_one()
                durability = f"synchronous_commit={commit}, fsync={sync}"
        yield AdkStore(service, durability)


def _set_wal(connection: Any, _record: object) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.close()


@asynccontextmanager
async def open_adk_sqlite(url: str) -> AsyncIterator[AdkStore]:
    """Opens ADK's `SqliteSessionService`."""
    path = sqlite_file(url)
    service = SqliteSessionService(path)
    try:
        await service.get_session(app_name=APP, user_id="nobody", session_id="nothing")
        yield AdkStore(service, library_durability(path))
    finally:
        await service.close()


@asynccontextmanager
async def open_ours(url: str, *, synchronous: Synchronous = "FULL") -> AsyncIterator[AdkStore]:
    """Opens `DurableSessionService.from_url`."""
    if make_url(url).get_backend_name() == "sqlite":
        async with DurableSessionService.from_url(url, synchronous=synchronous) as service:
            yield AdkStore(service, sqlite_durability("wal", synchronous))
    else:
        async with DurableSessionService.from_url(url) as service:
            yield AdkStore(service, "the server's default")
