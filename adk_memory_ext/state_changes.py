"""Changes of a state key that depend on the value it has by then.

Put one into a state delta in place of a value (`tool_context.state["visits"] = Increment(1)`), and
the service applies it to the stored value at the append, under the lock of the write: what others
wrote in between is kept. The event then holds the outcome. Tools that the model calls in parallel
may each put one at the same key, and all of them are applied; one tool that puts two there replaces
the first. Until the append, who reads the key in the same turn sees the change itself.
"""

from __future__ import annotations

import itertools
import json
import math
from typing import TYPE_CHECKING, Any, ClassVar, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


class Missing:
    """The type of `MISSING`."""

    def __repr__(self) -> str:
        return "MISSING"

    def __reduce__(self) -> str:  # a copy is the same object
        return "MISSING"


MISSING: Final = Missing()
"""Stands for "no such key": as the old value of a change, and as the new one of a removal."""


_numbers: Final = itertools.count()
"""Tells changes apart that ADK puts into one dict; the tools of a step run in one process."""


class UnfitValueError(Exception):
    """The stored value is not of the kind that the change works on."""


class _Held:
    """Hides a change from everything that looks into objects, such as pydantic."""

    __slots__ = ("change",)

    def __init__(self, change: StateChange) -> None:
        self.change: Final = change


class StateChange(dict[str, _Held]):
    """Makes the new value of a key from the one stored by then.

    It is a dict of one member that holds the change itself, because of what ADK does with the
    deltas of tools that were called in parallel (google-adk 2.13.0): it dumps them, which makes
    plain objects of dataclasses, and merges them, which puts the members of two dicts into one but
    drops the first of two other values.
    """

    __slots__ = ()
    _holds: ClassVar[tuple[str, ...]] = ()
    """The attribute that the constructor takes; none if it takes nothing."""

    def __init__(self) -> None:
        super().__init__({f"change {next(_numbers)}": _Held(self)})

    def apply(self, old: Any) -> Any:
        """Returns the new value; `MISSING` removes the key.

        Raises:
            UnfitValueError: When `old` is of the wrong kind.
        """
        raise NotImplementedError

    def normalised(self, value: Callable[[Any], Any]) -> StateChange:
        """Returns the change with each value it holds as `value` gives it back."""
        return type(self)(*(value(field) for field in self._fields()))

    def _fields(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self._holds)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._fields() == other._fields()

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None  # it may hold a list

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self._fields()))})"


def change_in(value: Any) -> StateChange | None:
    """Returns the change that stands in place of a value; None if it is a value."""
    if isinstance(value, StateChange):
        return value
    if type(value) is dict and value and all(type(item) is _Held for item in value.values()):
        changes = [held.change for held in value.values()]
        return changes[0] if len(changes) == 1 else Several(changes)
    return None


def misplaced_change(value: Any) -> StateChange | None:
    """Returns the change that got inside a value, where nobody would apply it; None if it is none.

    As ADK merges the deltas of parallel tools, also where one put a change and the other an object.
    """
    return value.change if isinstance(value, _Held) else change_in(value)


class Several(StateChange):
    """Applies changes one after the other: those of tools that ran in parallel."""

    __slots__ = _holds = ("changes",)

    def __init__(self, changes: Sequence[StateChange]) -> None:
        super().__init__()
        self.changes: Final = changes

    def apply(self, old: Any) -> Any:
        """Returns what the last one makes of what the others made."""
        for change in self.changes:
            old = change.apply(old)
        return old

    def normalised(self, value: Callable[[Any], Any]) -> StateChange:
        """Returns the same with each value in each change as `value` gives it back."""
        return Several([change.normalised(value) for change in self.changes])


class Put(StateChange):
    """Sets a value, whatever was there."""

    __slots__ = _holds = ("value",)

    def __init__(self, value: Any) -> None:
        # Without the member that holds a change: this one is made of a delta, and stands in none.
        self.value: Final = value

    def apply(self, old: Any) -> Any:  # noqa: ARG002  # the old value does not matter
        """Returns the value."""
        return self.value


class Remove(StateChange):
    """Removes the key; nothing happens if it is not there."""

    __slots__ = ()

    def apply(self, old: Any) -> Any:  # noqa: ARG002  # the old value does not matter
        """Returns `MISSING`."""
        return MISSING


class Increment(StateChange):
    """Adds `by` to a number; a missing key counts as 0.

    Raises:
        TypeError: When `by` is no number.
        ValueError: When it is NaN or infinite.
    """

    __slots__ = _holds = ("by",)

    def __init__(self, by: float = 1) -> None:
        super().__init__()
        if isinstance(by, bool) or not isinstance(by, int | float):
            raise TypeError(f"Increment adds a number, not a {type(by).__name__}.")
        if isinstance(by, float) and not math.isfinite(by):
            raise ValueError("Increment adds a finite number.")
        self.by: Final = by

    def apply(self, old: Any) -> Any:
        """Returns the sum."""
        if old is MISSING:
            return self.by
        if isinstance(old, bool) or not isinstance(old, int | float):
            raise UnfitValueError(f"is a {_kind(old)} and cannot be incremented")
        try:
            total = old + self.by
        except OverflowError:  # an integer beyond the floats and a float
            total = math.inf
        if isinstance(total, float) and not math.isfinite(total):
            raise UnfitValueError("would become no finite number")
        return total


class _ListChange(StateChange):
    """Adds items to a list."""

    __slots__ = _holds = ("added",)

    def __init__(self, items: Iterable[Any]) -> None:
        super().__init__()
        if isinstance(items, str | bytes | dict) or not hasattr(items, "__iter__"):
            raise TypeError(
                f"{type(self).__name__} adds a list of items, not a {type(items).__name__}."
            )
        self.added: Final = list(items)


class Extend(_ListChange):
    """Appends `items` to a list; a missing key counts as an empty one.

    Raises:
        TypeError: When `items` is a text or no collection.
    """

    __slots__ = ()

    def apply(self, old: Any) -> Any:
        """Returns the longer list."""
        return [*_as_list(old), *self.added]


class Union(_ListChange):
    """Appends those of `items` that a list does not hold yet; a missing key counts as empty.

    Items are the same when their JSON texts are: 1 and true differ, 1 and 1.0 too.

    Raises:
        TypeError: When `items` is a text or no collection.
    """

    __slots__ = ()

    def apply(self, old: Any) -> Any:
        """Returns the list with the missing items behind, in their order."""
        merged = list(_as_list(old))
        known = {_text(item) for item in merged}
        for item in self.added:
            text = _text(item)
            if text not in known:
                known.add(text)
                merged.append(item)
        return merged


class Maximum(StateChange):
    """Keeps the larger of the stored value and `value`; a missing key takes `value`."""

    __slots__ = _holds = ("value",)

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value: Final = value

    def apply(self, old: Any) -> Any:
        """Returns the larger one; the stored one of two equal ones."""
        if old is MISSING:
            return self.value
        try:
            return max(old, self.value)
        except TypeError:
            raise UnfitValueError(
                f"is a {_kind(old)} and cannot be compared with a {_kind(self.value)}"
            ) from None


def _as_list(old: Any) -> list[Any]:
    if old is MISSING:
        return []
    if not isinstance(old, list):
        raise UnfitValueError(f"is a {_kind(old)} and no list")
    return old


def _text(item: Any) -> str:
    return json.dumps(item, sort_keys=True)


def _kind(value: Any) -> str:
    return "null" if value is None else type(value).__name__
