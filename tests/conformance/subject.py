"""The service that a clause is about, asked for everything through two instances."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from google.adk.sessions.base_session_service import GetSessionConfig

if TYPE_CHECKING:
    from google.adk.events.event import Event
    from google.adk.sessions.base_session_service import BaseSessionService
    from google.adk.sessions.session import Session

APP = "app"
USER = "ann"

_numbers = itertools.count()


class Subject:
    """A session service under test, with short names for what a clause does.

    Writes go through one instance. Reads go through that one and a second one, which must agree:
    what only the writing instance knows is not stored.

    Each subject's apps are its own: `app` in a clause is another app in every run of it.

    Args:
        service: Writes and reads.
        other: Another instance over the same data; the same one where a backend has only one.
    """

    def __init__(self, service: BaseSessionService, other: BaseSessionService) -> None:
        self.service = service
        self.other = other
        self._prefix = f"{next(_numbers)}."

    def app(self, name: str) -> str:
        """Returns the name under which the service knows the clause's app `name`."""
        return self._prefix + name

    async def create(
        self,
        session_id: str | None = None,
        *,
        user: str = USER,
        app: str = APP,
        state: dict[str, Any] | None = None,
    ) -> Session:
        """Creates a session."""
        return await self.service.create_session(
            app_name=self.app(app), user_id=user, session_id=session_id, state=state
        )

    async def append(self, session: Session, *events: Event) -> list[Event]:
        """Appends the events one after the other and returns what the service returned."""
        return [await self.service.append_event(session, event) for event in events]

    async def find(
        self, session_id: str, *, user: str = USER, app: str = APP, **config: Any
    ) -> Session | None:
        """Returns the stored session or None; `config` as for `GetSessionConfig`."""
        first, second = [
            await service.get_session(
                app_name=self.app(app),
                user_id=user,
                session_id=session_id,
                config=GetSessionConfig(**config) if config else None,
            )
            for service in (self.service, self.other)
        ]
        assert first == second
        return first

    async def read(self, session: Session, **config: Any) -> Session:
        """Returns what is stored of a session that must be there."""
        app = session.app_name.removeprefix(self._prefix)
        stored = await self.find(session.id, user=session.user_id, app=app, **config)
        assert stored is not None
        return stored

    async def list(self, *, user: str | None = USER, app: str = APP) -> list[Session]:
        """Returns the listed sessions of a user; of all users for None."""
        first, second = [
            (await service.list_sessions(app_name=self.app(app), user_id=user)).sessions
            for service in (self.service, self.other)
        ]
        assert first == second
        return first

    async def delete(self, session_id: str, *, user: str = USER, app: str = APP) -> None:
        """Deletes a session."""
        await self.service.delete_session(
            app_name=self.app(app), user_id=user, session_id=session_id
        )

    async def user_state(self, *, user: str = USER, app: str = APP) -> dict[str, Any]:
        """Returns the state of a user."""
        first, second = [
            await service.get_user_state(app_name=self.app(app), user_id=user)
            for service in (self.service, self.other)
        ]
        assert first == second
        return first
