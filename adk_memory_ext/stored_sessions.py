"""ADK's session objects over what is stored: made from it, and kept up with it."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from google.adk.sessions.session import Session
from google.adk.sessions.state import State
from pydantic import PrivateAttr

from adk_memory_ext.event_times import MICROSECONDS, microseconds
from adk_memory_ext.state_changes import MISSING
from adk_memory_ext.stored_events import ReadyEvent, match_stored

if TYPE_CHECKING:
    from collections.abc import Mapping

    from google.adk.events.event import Event

    from adk_memory_ext.records import Revision, SessionId
    from adk_memory_ext.sql_events import Appended
    from adk_memory_ext.sql_store import LoadedSession


class StoredSession(Session):
    """ADK's session, with the revision that was loaded: kept by copies, never shown or dumped."""

    _revision: Revision | None = PrivateAttr(default=None)

    @property
    def revision(self) -> Revision | None:
        """What this copy has seen of the log."""
        return self._revision

    def see(self, revision: Revision | None) -> None:
        """Notes what this copy has seen of the log; None leaves it as it was."""
        if revision is not None:
            self._revision = revision


def loaded_session(
    identity: SessionId, loaded: LoadedSession, events: list[Event]
) -> StoredSession:
    """Returns ADK's object with these events."""
    session = StoredSession(
        app_name=identity.app_name,
        user_id=identity.user_id,
        id=identity.session_id,
        state=loaded.state(),
        last_update_time=loaded.head.updated / MICROSECONDS,
    )
    session.events = events
    session.see(loaded.head.revision)
    return session


def listed_session(fields: Mapping[str, Any], revision: Revision | None) -> StoredSession:
    """Returns a session of a list, without events."""
    session = StoredSession.model_construct(**fields)
    session.see(revision)
    return session


def temporary(delta: Mapping[Any, Any]) -> dict[str, Any]:
    """Returns the `temp:` part of a delta, which lives in the session object only."""
    return {
        key: value
        for key, value in delta.items()
        if isinstance(key, str) and key.startswith(State.TEMP_PREFIX)
    }


def commit(session: Session, event: Event, ready: ReadyEvent, appended: Appended) -> None:
    """Makes the objects in memory say what is stored."""
    values = temporary(event.actions.state_delta)
    match_stored(event, ready, appended)
    for key, value in appended.outcome.items():
        if value is MISSING:
            session.state.pop(key, None)
        else:
            # A container of its own, so that a change of the state in place leaves the event alone.
            values[key] = copy.deepcopy(value) if isinstance(value, dict | list) else value
    dict.update(session.state, values)  # what is stored is nobody's unsaved write
    session.events.append(event)
    if appended.revision is not None:
        session.last_update_time = microseconds(appended.timestamp) / MICROSECONDS
        if isinstance(session, StoredSession):
            session.see(appended.revision)
