"""Events as a conversation has them, and what a reader makes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions.state import State
from google.genai import types

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def said(
    text: str,
    *,
    author: str = "user",
    invocation: str = "invocation-1",
    at: float | None = None,
    state: Mapping[str, Any] | None = None,
) -> Event:
    """Returns an event in which `author` says `text`, at the time `at` (default: now)."""
    role = "user" if author == "user" else "model"
    return _event(types.Part(text=text), role, author, invocation, state, at)


def called(tool: str, arguments: Mapping[str, Any], *, invocation: str = "invocation-1") -> Event:
    """Returns the event of a tool call by the agent; the call's id is `call-<tool>`."""
    call = types.FunctionCall(id=f"call-{tool}", name=tool, args=dict(arguments))
    return _event(types.Part(function_call=call), "model", "agent", invocation, None)


def answered(
    tool: str,
    response: Mapping[str, Any],
    *,
    invocation: str = "invocation-1",
    state: Mapping[str, Any] | None = None,
) -> Event:
    """Returns the event of a tool's answer, with the state that the tool changed."""
    answer = types.FunctionResponse(id=f"call-{tool}", name=tool, response=dict(response))
    return _event(types.Part(function_response=answer), "user", "agent", invocation, state)


def _event(  # noqa: PLR0917
    part: types.Part,
    role: str,
    author: str,
    invocation: str,
    state: Mapping[str, Any] | None,
    at: float | None = None,
) -> Event:
    event = Event(
        invocation_id=invocation,
        author=author,
        content=types.Content(role=role, parts=[part]),
        actions=EventActions(state_delta=dict(state or {})),
    )
    if at is not None:
        event.timestamp = at
    return event


def texts(events: Iterable[Event]) -> list[str]:
    """Returns what was said, an empty text for an event that says nothing."""
    return [
        "".join(part.text or "" for part in (event.content and event.content.parts) or [])
        for event in events
    ]


def replay(events: Iterable[Event], initial: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Returns the state that the events' deltas make of `initial`, without `temp:`."""
    state = dict(initial or {})
    for event in events:
        state |= event.actions.state_delta
        for key in (event.custom_metadata or {}).get("memext_removed", ()):
            del state[key]
    return {key: value for key, value in state.items() if not key.startswith(State.TEMP_PREFIX)}


def exactly(value: Any) -> str:
    """Returns a text that tells 1 from 1.0 and True, and that key order does not change."""
    if isinstance(value, dict):
        return repr(sorted((key, exactly(item)) for key, item in value.items()))
    if isinstance(value, list):
        return repr([exactly(item) for item in value])
    return repr(value)
