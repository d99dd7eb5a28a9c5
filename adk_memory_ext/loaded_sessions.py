"""Sessions in memory: brought up to what is stored without becoming another object."""

from __future__ import annotations

from typing import TYPE_CHECKING

from adk_memory_ext.watched_state import WatchedState

if TYPE_CHECKING:
    from google.adk.events.event import Event
    from google.adk.sessions.session import Session

    from adk_memory_ext.policy import StatePolicy


def watched(session: Session, policy: StatePolicy | None) -> Session:
    """Has a session that was just loaded notice direct writes to its state; returns it.

    Changes inside the typed values of a policy are noticed where these are given.
    """
    if not isinstance(session.state, WatchedState):
        has_type = (lambda _key: False) if policy is None else policy.has_type
        session.state = WatchedState(session.state, session.id, has_type)
    return session


def unseen(session: Session, fresh: Session) -> list[Event] | None:
    """Returns the events that `fresh` has beyond those of `session`, which may be a part of it.

    None when they cannot be told: the newest event of `session` is not in `fresh`.
    """
    if not session.events:
        return list(fresh.events)
    newest = session.events[-1].id
    for index in range(len(fresh.events) - 1, -1, -1):
        if fresh.events[index].id == newest:
            return fresh.events[index + 1 :]
    return None


def take_over(session: Session, fresh: Session, events: list[Event]) -> None:
    """Makes `session` what is stored, in place: state, time, and `events` for its events.

    Values of `temp:` keys stay. What services keep of a session in private attributes, such as the
    marker by which ADK 2.13 refuses stale writers, is taken over too.
    """
    if isinstance(session.state, WatchedState):
        session.state.reload(fresh.state)
    else:
        kept = {key: value for key, value in session.state.items() if key.startswith("temp:")}
        session.state.clear()
        session.state.update(fresh.state | kept)
    session.events[:] = events
    session.last_update_time = fresh.last_update_time
    if type(session) is type(fresh):
        # https://docs.pydantic.dev/latest/api/base_model/ names the attribute.
        session.__pydantic_private__ = fresh.__pydantic_private__
