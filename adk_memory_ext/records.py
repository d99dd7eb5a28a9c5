"""Frozen values that pass between the parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from google.adk.sessions.session import Session


class SessionId(NamedTuple):
    """What names one session; a tuple, because it is hashed more often than anything else."""

    app_name: str
    user_id: str
    session_id: str

    @classmethod
    def of(cls, session: Session) -> SessionId:
        """Returns what names a session of ADK's."""
        return cls(session.app_name, session.user_id, session.id)

    def parameters(self) -> dict[str, Any]:
        """Returns the parameters of a statement over this session's rows."""
        return {
            "app_name": self.app_name,
            "user_id": self.user_id,
            "session_id": self.session_id,
        }


@dataclass(frozen=True, slots=True)
class Revision:
    """What a loaded session knows of the log: basis of optimistic concurrency."""

    incarnation: int
    """Tells a session from a later one of the same id."""
    sequence: int
    """The sequence of the newest event that was seen; 0 before the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRequest:
    """What was done to the history of one request."""

    turn: int
    """The number of its invocation among those recorded, from 1."""
    invocation_id: str
    agent: str
    recorded: float
    """UTC epoch seconds."""
    report: dict[str, Any]
    """As `RequestReport.to_json` gave it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSummary:
    """One line of a list of sessions."""

    app_name: str
    user_id: str
    session_id: str
    title: str | None
    """What the application called it; None until it does."""
    last_update_time: float
    """UTC epoch seconds of the newest event, or of the creation."""
    state: dict[str, Any] | None
    """Session-scope state; None unless it was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionPage:
    """A page of a list of sessions, newest update first."""

    sessions: tuple[SessionSummary, ...]
    """At most as many as were asked for."""
    next: str | None
    """Where the next page begins, for `after`; None on the last page."""
