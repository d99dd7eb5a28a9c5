"""What the state of a session was at an earlier event, and the delta that brings it back.

`Runner.rewind_async` of ADK 2.13 replays the events only, so that it takes the state that a session
was created with for nothing, and it writes None where a key was not there yet.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from google.adk.sessions.state import State

from adk_memory_ext.json_values import Normaliser
from adk_memory_ext.state_changes import Remove

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from google.adk.events.event import Event
    from google.adk.sessions.session import Session

REMOVED: Final = "memext_removed"
"""Where an event's `custom_metadata` lists the keys that it removed. The delta itself says None for
them, which is as near as plain ADK comes to a removal."""
BEFORE: Final = "memext_before"
"""Where an event's `custom_metadata` keeps what keys held that no event had changed before it, over
a service that does not keep the state of the creation itself."""

Scope: TypeAlias = Literal["user", "app"]
"""A scope whose state is not the session's."""
_NOT_OF_THE_SESSION: Final = (State.APP_PREFIX, State.USER_PREFIX, State.TEMP_PREFIX)


def rewinding_delta(
    session: Session,
    invocation_id: str,
    kept: Mapping[str, Any] | None = None,
    *,
    can_remove: bool = False,
    has_expired: Callable[[str, float], bool] | None = None,
) -> dict[str, Any] | None:
    """Returns the delta that brings session-scope state back to before an invocation.

    Args:
        session: The session with all its events.
        invocation_id: The invocation.
        kept: What is known of the state at creation; the log says the rest.
        can_remove: Whether keys that were not there yet can be removed; else they become None.
        has_expired: Whether a key that was written at a time (UTC epoch seconds) has expired by
            now: it does not come back.

    Returns:
        The delta; None when the session has no such invocation.
    """
    events = session.events
    index = next((i for i, e in enumerate(events) if e.invocation_id == invocation_id), None)
    if index is None:
        return None
    initial = initial_state(session.state, events, kept)
    target = state_after(initial, events[:index])
    if has_expired is not None:
        times = _times_of_writes(events[:index])
        begun = events[0].timestamp
        target = {k: v for k, v in target.items() if not has_expired(k, times.get(k, begun))}
    return restoring_delta(session.state, target, can_remove)


def _times_of_writes(events: Iterable[Event]) -> dict[str, float]:
    """Returns when each key was last written, in UTC epoch seconds."""
    return {key: event.timestamp for event in events for key in event.actions.state_delta}


def initial_state(
    state: Mapping[str, Any], events: Sequence[Event], kept: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Returns the session-scope state at creation: what was kept of it, and what the log tells.

    Args:
        state: The state as it is after all of `events`.
        events: The whole log.
        kept: What was kept.
    """
    touched: set[str] = set()
    before: dict[str, Any] = {}
    for event in events:
        noted = _noted(event, BEFORE, {})
        before.update({key: value for key, value in noted.items() if key not in touched})
        touched.update(event.actions.state_delta)
    untouched = {key: value for key, value in session_scope(state).items() if key not in touched}
    return copy.deepcopy({**untouched, **before, **(kept or {})})


def state_after(initial: Mapping[str, Any], events: Iterable[Event]) -> dict[str, Any]:
    """Returns the session-scope state that events make of the one at creation."""
    state = dict(initial)
    for event in events:
        state.update(session_scope(event.actions.state_delta))
        for key in _noted(event, REMOVED, []):
            state.pop(key, None)
    return copy.deepcopy(state)


def restoring_delta(
    state: Mapping[str, Any], target: Mapping[str, Any], can_remove: bool
) -> dict[str, Any]:
    """Returns the delta that makes session-scope `state` the target."""
    current = session_scope(state)
    delta: dict[str, Any] = {
        key: value
        for key, value in target.items()
        if key not in current or not is_same(current[key], value)
    }
    for key in current.keys() - target.keys():
        if can_remove:
            delta[key] = Remove()
        elif current[key] is not None:
            delta[key] = None
    return delta


def restoring_scopes(
    state: Mapping[str, Any], target: Mapping[str, Any], scopes: Iterable[Scope], can_remove: bool
) -> dict[str, Any]:
    """Returns the delta that makes user or app `state` the target, keys with their prefixes."""
    delta: dict[str, Any] = {}
    for scope in scopes:
        current, wanted = (_without_prefix(one, f"{scope}:") for one in (state, target))
        changed = restoring_delta(current, wanted, can_remove)
        delta |= {f"{scope}:{key}": value for key, value in changed.items()}
    return delta


def _without_prefix(state: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {key[len(prefix) :]: v for key, v in state.items() if key.startswith(prefix)}


def session_scope(state: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the keys without a prefix."""
    return {key: value for key, value in state.items() if not key.startswith(_NOT_OF_THE_SESSION)}


def note_values_before(session: Session, event: Event) -> None:
    """Has the event keep what it overwrites and no event has written: it is of the creation."""
    state = dict(session.state)
    overwritten = [key for key in session_scope(event.actions.state_delta) if key in state]
    before = {key: state[key] for key in overwritten if not _is_touched(session.events, key)}
    if before:
        normaliser = Normaliser("replace")
        noted = {key: normaliser.value(value, key) for key, value in before.items()}
        event.custom_metadata = {**(event.custom_metadata or {}), BEFORE: noted}


def _is_touched(events: Sequence[Event], key: str) -> bool:
    # Newest first: what changes often is found at once.
    return any(key in event.actions.state_delta for event in reversed(events))


def _noted(event: Event, name: str, default: Any) -> Any:
    metadata = event.custom_metadata
    noted = metadata.get(name) if isinstance(metadata, dict) else None
    return noted if isinstance(noted, type(default)) else default


def is_same(one: Any, other: Any) -> bool:
    """Whether two JSON values are one: 1, 1.0 and True are three."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(is_same(one[k], other[k]) for k in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(is_same, one, other))
    return bool(one == other)
