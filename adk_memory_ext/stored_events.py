"""Events between ADK's objects and the JSON text that is stored."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from google.adk.events.event import Event
from google.adk.sessions.state import State

from adk_memory_ext.json_values import Normaliser, OnBadValue, encode, is_suspicious
from adk_memory_ext.sql_events import REMOVED, Appended, NewEvent
from adk_memory_ext.state_changes import Put, StateChange

if TYPE_CHECKING:
    from collections.abc import Mapping

REPLACED: Final = "memext_replaced"
"""Where an event's `custom_metadata` lists the paths of values that were replaced."""

_SCOPES: Final = {State.APP_PREFIX: "app", State.USER_PREFIX: "user", State.TEMP_PREFIX: "temp"}


def decode_event(text: str) -> Event:
    """Returns the event that was stored as `text`."""
    return Event.model_validate_json(text)


def new_event(event: Event, on_bad_value: OnBadValue) -> NewEvent:
    """Returns the event made ready to be stored; `event` itself is not changed.

    Raises:
        StateRejectedError: When a value in the event or its delta cannot be kept.
    """
    normaliser = Normaliser(on_bad_value)
    changes = split_changes(event.actions.state_delta, normaliser)
    data = event.model_dump(
        mode="json",
        exclude_none=True,
        exclude={"timestamp": True, "actions": {"state_delta"}},
    )
    data = _checked(data, normaliser)
    if normaliser.replaced:
        metadata = data.get("custom_metadata") or {}
        data["custom_metadata"] = {**metadata, REPLACED: normaliser.replaced}
    actions = data.get("actions") or {}
    return NewEvent(
        id=event.id,
        invocation_id=event.invocation_id,
        timestamp=event.timestamp,
        data=data,
        app_changes=changes["app"],
        user_changes=changes["user"],
        session_changes=changes["session"],
        is_housekeeping=event.content is None or bool(actions.get("compaction")),
    )


def split_changes(
    delta: Mapping[str, Any], normaliser: Normaliser
) -> dict[str, dict[str, StateChange]]:
    """Returns the changes of each scope, keys without prefixes; `temp:` keys are left out."""
    changes: dict[str, dict[str, StateChange]] = {"app": {}, "user": {}, "session": {}}
    for key, value in delta.items():
        name = normaliser.key(key, str(key))
        prefix, colon, rest = name.partition(":")
        scope = _SCOPES.get(prefix + colon, "session")
        if scope == "temp":
            continue
        if isinstance(value, StateChange):
            change = value.normalised(partial(normaliser.value, path=name))
        else:
            change = Put(normaliser.value(value, name))
        changes[scope][rest if scope != "session" else name] = change
    return changes


def _checked(data: dict[str, Any], normaliser: Normaliser) -> dict[str, Any]:
    """Returns the event's data; walks through it only where a look at its text gives reason to."""
    try:
        text = encode(data)
    except (ValueError, TypeError, RecursionError):
        return {key: normaliser.value(value, key) for key, value in data.items()}
    if not is_suspicious(text):
        return data
    return {key: normaliser.value(value, key) for key, value in data.items()}


def is_same(stored: Mapping[str, Any], event: NewEvent) -> bool:
    """Whether a stored event (without its time) is this one.

    What a change such as `Increment` came to cannot be told from the event, so only its key counts.
    """
    actions = dict(stored.get("actions") or {})
    delta = actions.pop("state_delta", {})
    mine = json.loads(encode(event.data))
    theirs = {**stored, "actions": actions}
    for data in (mine, theirs):
        metadata = {
            k: v for k, v in (data.pop("custom_metadata", None) or {}).items() if k != REMOVED
        }
        data["custom_metadata"] = metadata
    changes = {
        prefix + key: change
        for prefix, scope in (
            (State.APP_PREFIX, event.app_changes),
            (State.USER_PREFIX, event.user_changes),
            ("", event.session_changes),
        )
        for key, change in scope.items()
    }
    return (
        mine == theirs
        and changes.keys() == delta.keys()
        and all(
            not isinstance(change, Put) or delta[key] == change.value
            for key, change in changes.items()
        )
    )


def match_stored(event: Event, appended: Appended) -> None:
    """Changes the event in memory into what a reload would give."""
    if REPLACED in (appended.data.get("custom_metadata") or {}):
        fresh = Event.model_validate({**appended.data, "timestamp": appended.timestamp})
        for name in Event.model_fields:
            setattr(event, name, getattr(fresh, name))
        return
    event.timestamp = appended.timestamp
    delta = appended.data["actions"]["state_delta"]
    if delta or event.actions.state_delta:
        event.actions.state_delta = delta
    if "custom_metadata" in appended.data:
        event.custom_metadata = appended.data["custom_metadata"]
