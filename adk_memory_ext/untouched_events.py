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

from adk_memory_ext.event_copies import without_collection

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_HELD: Final = ("__dict__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")
"""All that an instance of a pydantic model holds, and what pydantic's own `__copy__` copies."""
_COPIES: Final = "__pydantic_private__"
_INDEX: Final = "__pydantic_extra__"
"""Where an untouched event keeps which copy of which load it will be."""
_MOST_AHEAD: Final = 256

_new: Final = object.__new__
_get: Final = object.__getattribute__
_put: Final = object.__setattr__
# One for all: what is done under it takes microseconds.
_touching: Final = threading.RLock()


class Original(Protocol):
    """What an event can be copied from."""

    def copy(self) -> Event:
        """Returns an event that shares nothing with any other."""


class _Copies:
    """Copies of the events of one load; whoever reads on, either way, finds the next ones made.

    Made many at a time, because Python looks for cycles after every few events otherwise, and goes
    over all that was made so far: that takes longer than the copies.
    """

    def __init__(self, originals: Sequence[Original]) -> None:
        self._originals = originals
        self._made: dict[int, Event] = {}
        self._last = -2
        self._ahead = 1

    def take(self, index: int) -> Event:
        copied = self._made.pop(index, None) or self._make(index)
        self._last = index
        return copied

    def _make(self, index: int) -> Event:
        way = index - self._last
        if abs(way) != 1:
            self._ahead = 1
            return self._originals[index].copy()
        self._ahead = min(2 * self._ahead, _MOST_AHEAD)
        end = max(-1, min(index + way * self._ahead, len(self._originals)))
        with without_collection():
            for place in range(index + way, end, way):
                self._made[place] = self._originals[place].copy()
            return self._originals[index].copy()


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
    copies = _Copies(originals)
    events: list[Event] = []
    for index in range(len(originals)):
        event = _new(UntouchedEvent)
        _put(event, _COPIES, copies)
        _put(event, _INDEX, index)
        events.append(event)
    return events


def _touch(event: Event) -> None:
    with _touching:
        if type(event) is not UntouchedEvent:
            return  # another thread was first
        copied = _get(event, _COPIES).take(_get(event, _INDEX))
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
