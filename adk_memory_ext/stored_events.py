"""Events between ADK's objects and the JSON text that is stored."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache, partial
from operator import is_
from typing import TYPE_CHECKING, Any, Final, TypeVar, get_args

from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions.state import State
from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError

from adk_memory_ext.errors import CorruptRecordError, StateRejectedError
from adk_memory_ext.json_values import Normaliser, OnBadValue, encode, is_storable
from adk_memory_ext.rewinds import REMOVED
from adk_memory_ext.sql_events import Appended, NewEvent
from adk_memory_ext.state_changes import Put, Remove, StateChange, change_in

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

M = TypeVar("M", bound=BaseModel)

REPLACED: Final = "memext_replaced"
"""Where an event's `custom_metadata` lists the paths of values that were replaced."""

_SCOPES: Final = {State.APP_PREFIX: "app", State.USER_PREFIX: "user", State.TEMP_PREFIX: "temp"}
_HELD_MODELS: Final = frozenset({"requested_auth_configs"})
"""What ADK declares as `Any` only to spare itself an import (google-adk 2.13.0)."""
_CONVERTED: Final = ("content", "custom_metadata")
"""Where the event in memory takes the values that a reload gives. In its other fields the nodes of
a workflow hand each other live objects."""


@dataclass(frozen=True, slots=True)
class ReadyEvent:
    """An event made ready to be stored."""

    new: NewEvent
    """For the database."""
    kept: Event
    """As it will be read back, but for its time and its delta; the event itself where it is so."""
    was_replaced: bool
    """Whether it held a value that cannot be kept."""


def decode_event(text: str, session_id: str) -> Event:
    """Returns the event that was stored as `text`.

    Raises:
        CorruptRecordError: When it is none; names the session.
    """
    try:
        return Event.model_validate_json(text)
    except ValidationError:
        pass
    try:  # plain ADK stores lone surrogates and deeper nesting, and reads them in this way
        return Event.model_validate(json.loads(text))
    except (TypeError, ValueError, RecursionError) as error:
        # The cause is left out, because it quotes the event.
        raise CorruptRecordError(
            f"An event of session {session_id!r} cannot be read ({type(error).__name__})."
        ) from None


def ready_event(event: Event, on_bad_value: OnBadValue) -> ReadyEvent:
    """Returns the event made ready to be stored; `event` itself is not changed.

    Raises:
        StateRejectedError: When a value in the event or its delta cannot be kept.
    """
    normaliser = Normaliser(on_bad_value)
    changes = split_changes(event.actions.state_delta, normaliser, _removed(event))
    kept = _kept_model(event, "", normaliser)
    data = _dumped(kept)
    metadata = data.get("custom_metadata", {})
    metadata.pop(REMOVED, None)  # the append says it anew
    if normaliser.replaced:
        data["custom_metadata"] = {**metadata, REPLACED: normaliser.replaced}
    new = NewEvent(
        id=event.id,
        invocation_id=event.invocation_id,
        timestamp=_seconds(event.timestamp),
        data=data,
        app_changes=changes["app"],
        user_changes=changes["user"],
        session_changes=changes["session"],
        is_housekeeping=event.content is None or event.actions.compaction is not None,
    )
    return ReadyEvent(new, kept, bool(normaliser.replaced))


def _removed(event: Event) -> list[str]:
    """Returns the keys that the event removed when it was stored before."""
    metadata = event.custom_metadata
    listed = metadata.get(REMOVED) if isinstance(metadata, dict) else None
    return listed if isinstance(listed, list) else []


def _seconds(timestamp: Any) -> float:
    try:
        return float(timestamp)
    except (TypeError, ValueError, OverflowError):
        raise StateRejectedError("timestamp", "is no number of seconds") from None


def _dumped(event: Event) -> dict[str, Any]:
    """Returns the event's JSON form without its time and its delta.

    Nothing checks what is assigned to a field of an event, so that this is where it shows.

    Raises:
        StateRejectedError: When a field holds what could not be read back.
    """
    dump = partial(
        event.model_dump,
        mode="json",
        exclude_none=True,
        exclude={"timestamp": True, "actions": {"state_delta"}},
    )
    try:
        return dump(warnings="error")
    except PydanticSerializationError:  # a field is not of its declared type
        pass
    try:
        data = dump(warnings=False)
        Event.model_validate(data)
    except (PydanticSerializationError, ValidationError) as error:
        place = "event"
        if isinstance(error, ValidationError):
            place = ".".join(map(str, error.errors(include_input=False)[0]["loc"]))
        raise StateRejectedError(place, "is of a type that could not be read back") from None
    return data


def split_changes(
    delta: Mapping[str, Any], normaliser: Normaliser, removed: Container[str] = ()
) -> dict[str, dict[str, StateChange]]:
    """Returns the changes of each scope, keys without prefixes; `temp:` keys are left out.

    Args:
        delta: Values and changes, keys with prefixes.
        normaliser: Makes them what will be read back.
        removed: Keys whose None says that they were removed, as in an event that was stored before.

    Raises:
        StateRejectedError: When a key or a value cannot be kept.
    """
    changes: dict[str, dict[str, StateChange]] = {"app": {}, "user": {}, "session": {}}
    for key, value in delta.items():
        name = normaliser.key(key)
        prefix, colon, rest = name.partition(":")
        scope = _SCOPES.get(prefix + colon, "session")
        if scope != "temp":
            short = name if scope == "session" else rest
            if short in changes[scope]:
                raise StateRejectedError(name, "is the text of two keys")
            changes[scope][short] = _change(value, name, normaliser, removed)
        elif change_in(value) is not None:
            raise StateRejectedError(name, "is never stored, so there is nothing to change")
    return changes


def _change(value: Any, name: str, normaliser: Normaliser, removed: Container[str]) -> StateChange:
    if (change := change_in(value)) is not None:
        return change.normalised(partial(normaliser.value, path=name))
    if value is None and name in removed:
        return Remove()
    return Put(normaliser.value(value, name))


_EMPTY: Final = frozenset({dict, list})
"""Of which an empty one is read back as it is, and of which an event has many."""


def _kept_model(model: M, path: str, normaliser: Normaliser) -> M:
    """Returns the model as it will be read back: a copy where something had to change."""
    free = _free_fields(type(model))
    changed: dict[str, Any] = {}
    for name, value in model.__dict__.items():
        if value is None or name == "state_delta":
            continue
        kind = type(value)
        is_empty = kind in _EMPTY and not value
        if kind is bool or is_empty or (kind is str and is_storable(value)):
            continue
        place = f"{path}.{name}" if path else name
        kept = (
            _kept_free(value, place, normaliser)
            if name in free
            else _kept(value, place, normaliser)
        )
        if kept is not value:
            changed[name] = kept
    return model.model_copy(update=changed) if changed else model


def _kept(value: Any, path: str, normaliser: Normaliser) -> Any:
    """Returns a value of a declared type as it will be read back; itself if it is so."""
    if isinstance(value, BaseModel):
        return _kept_model(value, path, normaliser)
    if type(value) in (str, float):
        return _kept_free(value, path, normaliser)
    if isinstance(value, list | tuple | set):
        items = [_kept(item, f"{path}[{index}]", normaliser) for index, item in enumerate(value)]
        return value if all(map(is_, items, value)) else type(value)(items)
    if isinstance(value, dict):
        names = [normaliser.key(key) for key in value]
        items = [_kept(item, f"{path}.{key}", normaliser) for key, item in value.items()]
        is_same = all(map(is_, names, value)) and all(map(is_, items, value.values()))
        return value if is_same else dict(zip(names, items, strict=True))
    return value


def _kept_free(value: Any, path: str, normaliser: Normaliser) -> Any:
    """Returns a value of any type as it will be read back; itself if it is so."""
    before = normaliser.conversions
    kept = normaliser.value(value, path)
    return value if normaliser.conversions == before else kept


@cache
def _free_fields(kind: type[BaseModel]) -> frozenset[str]:
    """Returns the fields of a model that may hold anything."""
    fields = kind.model_fields.items()
    return frozenset(name for name, field in fields if _is_free(field.annotation)) - _HELD_MODELS


def _is_free(annotation: Any) -> bool:
    return annotation is Any or any(map(_is_free, get_args(annotation)))


def is_same(stored: Mapping[str, Any], event: NewEvent) -> bool:
    """Whether a stored event (without its time) is this one.

    What a change such as `Increment` came to cannot be told from the event, so only its key counts.
    """
    actions = dict(stored.get("actions") or {})
    delta = actions.pop("state_delta", {})
    mine = json.loads(encode(event.data))
    theirs = {**stored, "actions": actions}
    for data in (mine, theirs):
        data["custom_metadata"] = {
            key: value
            for key, value in (data.get("custom_metadata") or {}).items()
            if key != REMOVED
        }
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


def match_stored(event: Event, ready: ReadyEvent, appended: Appended) -> None:
    """Changes the event in memory into what a reload would give."""
    if ready.kept is not event:
        _take_over(event, ready.kept, Event.model_fields if ready.was_replaced else _CONVERTED)
    event.timestamp = appended.timestamp
    delta = appended.data["actions"]["state_delta"]
    if delta or event.actions.state_delta:
        event.actions.state_delta = delta
    if "custom_metadata" in appended.data:
        event.custom_metadata = appended.data["custom_metadata"]


def _take_over(event: Event, kept: Event, names: Iterable[str]) -> None:
    for name in names:
        if name != "actions":
            setattr(event, name, getattr(kept, name))
        elif kept.actions is not event.actions:  # which a tool's context may hold on to
            for field in EventActions.model_fields:
                setattr(event.actions, field, getattr(kept.actions, field))
