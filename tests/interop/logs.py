"""What the log of a session says of its state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from conversation import exactly

if TYPE_CHECKING:
    from collections.abc import Mapping

    from google.adk.sessions.session import Session


def replayed(session: Session, created: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the session-scope state that the log makes of the one given at the creation."""
    state = session_scope(created)
    for event in session.events:
        state |= session_scope(event.actions.state_delta)
        for key in (event.custom_metadata or {}).get("memext_removed", []):
            state.pop(key, None)
    return state


def session_scope(state: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the part of a state that belongs to one session and is stored."""
    return {
        key: value for key, value in state.items() if not key.startswith(("app:", "user:", "temp:"))
    }


def assert_replays(session: Session, created: Mapping[str, Any]) -> None:
    """Fails unless log and state of a session, loaded with all events, agree."""
    assert exactly(session_scope(session.state)) == exactly(replayed(session, created))
