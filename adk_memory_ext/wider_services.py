"""What a session service may offer beyond ADK's interface."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from google.adk.sessions.session import Session

    from adk_memory_ext.checkpoint_records import CheckpointPolicy
    from adk_memory_ext.records import SessionId, SessionPage


@runtime_checkable
class ListsPages(Protocol):
    """A session service with pages and titles; see `DurableSessionService`."""

    async def list_sessions_page(
        self,
        app_name: str,
        user_id: str | None = None,
        *,
        limit: int = 50,
        after: str | None = None,
        with_state: bool = False,
    ) -> SessionPage:
        """Returns a page of sessions, newest update first."""

    async def set_session_title(
        self, *, app_name: str, user_id: str, session_id: str, title: str | None
    ) -> None:
        """Gives a session a title."""


@runtime_checkable
class SeesChanges(Protocol):
    """A session service that knows cheaply whether a loaded session is still the newest."""

    async def has_seen_all(self, session: Session) -> bool:
        """Whether `session` holds the newest event."""


@runtime_checkable
class ForgetsDeleted(Protocol):
    """A session service that keeps what it has loaded, and can be told to look whether it may."""

    async def forget_deleted(self) -> None:
        """Keeps nothing in memory of sessions that are stored no more."""


@runtime_checkable
class KeepsInitialState(Protocol):
    """A session service that keeps the state that sessions were created with."""

    async def initial_state(self, session: SessionId) -> dict[str, Any]:
        """Returns the session-scope state at creation, as far as it was kept."""


@runtime_checkable
class MakesCheckpoints(Protocol):
    """A session service that makes checkpoints in the transactions of events that ask for it."""

    checkpoint_policy: CheckpointPolicy
