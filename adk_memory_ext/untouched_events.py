"""Events that are copied when somebody first looks at them.

Most who load a session look at a few of its events. What they are handed is ADK's `Event` in every
respect but one: until its first use it holds nothing of its own, and its exact type is a subclass.
The first look at it, of whatever kind, makes it an `Event` with a copy that nobody else has.
"""

from __future__ import annotations

import inspect
import threading
from typing import TYPE_CHECKING, Any, Final, Protocol

from google.adk.events.event import Event

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_HELD: Final = ("__dict__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")
"""All that an instance of a pydantic model holds, and what pydantic's own `__copy__` copies."""
_ORIGINAL: Final = "__pydantic_private__"
"""Where an untouched event keeps what it will be a copy of."""

_new: Final = object.__new__
_get: Final = object.__getattribute__
_put: Final = object.__setattr__
# One for all: what is done under it takes microseconds.
_touching: Final = threading.RLock()


class Original(Protocol):
    """What an event can be copied from."""

    def copy(self) -> Event:
        """Returns an event that shares nothing with any other."""


class UntouchedEvent(Event):
    """An event that nobody has looked at; it becomes an `Event` when somebody does."""

    def __getattribute__(self, name: str) -> Any:
        """Becomes an event, and returns its attribute."""
        _touch(self)
        return getattr(self, name)


def untouched(originals: Sequence[Original]) -> list[Event]:
    """Returns events that are copied from `originals` when they are first used.

    Safe for threads. What an original says must not change meanwhile.
    """
    events: list[Event] = []
    for original in originals:
        event = _new(UntouchedEvent)
        _put(event, _ORIGINAL, original)
        events.append(event)
    return events


def _touch(event: Event) -> None:
    with _touching:
        if type(event) is not UntouchedEvent:
            return  # another thread was first
        copied = _get(event, _ORIGINAL).copy()
        for name in _HELD:
            _put(event, name, getattr(copied, name))
        # Last: from here on others look at it without asking.
        _put(event, "__class__", Event)


def _touching_first(name: str) -> Callable[..., Any]:
    def method(self: Event, *arguments: Any, **named: Any) -> Any:
        _touch(self)
        return getattr(Event, name)(self, *arguments, **named)

    return method


def _found_by_type() -> set[str]:
    """Returns the methods that Python and ADK look up on the type and not on the object."""
    named = {
        name
        for kind in Event.__mro__[:-1]
        for name, value in vars(kind).items()
        if name.startswith("__") and inspect.isfunction(value)
    }
    return (named | {"__reduce__", "__reduce_ex__"}) - {"__init__", "__getattr__"}


for _name in _found_by_type():
    setattr(UntouchedEvent, _name, _touching_first(_name))
