"""Blacking out what an event says before it is stored: its text, tool arguments and answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

from pydantic import BaseModel

if TYPE_CHECKING:
    from collections.abc import Callable

    from google.adk.events.event import Event

M = TypeVar("M", bound=BaseModel)

_NAMES: Final = frozenset(
    {
        "id",
        "invocation_id",
        "author",
        "branch",
        "name",
        "role",
        "mime_type",
        "long_running_tool_ids",
        "transfer_to_agent",
        "rewind_before_invocation_id",
        "live_session_id",
        "interaction_id",
        "state_delta",  # judged key by key
    }
)
"""Fields that name something and say nothing; a call finds its answer by them."""


def redacted_event(event: Event, redact: Callable[[Any], Any]) -> Event:
    """Returns the event as it may be stored: a copy where something had to change, else itself.

    Bytes (attachments, signatures of thoughts) are not looked into.
    """
    return _model(event, redact)


def _model(model: M, redact: Callable[[Any], Any]) -> M:
    changed: dict[str, Any] = {}
    for name, value in model.__dict__.items():
        if value is None or name in _NAMES:
            continue
        redacted = _value(value, redact)
        if redacted is not value:
            changed[name] = redacted
    return model.model_copy(update=changed) if changed else model


def _value(value: Any, redact: Callable[[Any], Any]) -> Any:
    if isinstance(value, BaseModel):
        return _model(value, redact)
    if isinstance(value, list):
        items = [_value(item, redact) for item in value]
        return value if all(a is b for a, b in zip(items, value, strict=True)) else items
    if isinstance(value, dict):
        if any(isinstance(item, BaseModel) for item in value.values()):
            models = {key: _value(item, redact) for key, item in value.items()}
            return value if all(models[key] is value[key] for key in value) else models
        return redact(value)
    return redact(value) if isinstance(value, str) else value
