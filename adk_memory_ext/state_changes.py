"""Changes of a state key that depend on the value it has by then.

Put one into a state delta in place of a value (`tool_context.state["visits"] = Increment(1)`), and
the service applies it to the stored value at the append, under the lock of the write: what others
wrote in between is kept. The event then holds the outcome.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Missing:
    """The type of `MISSING`."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = Missing()
"""Stands for "no such key": as the old value of a change, and as the new one of a removal."""


class UnfitValueError(Exception):
    """The stored value is not of the kind that the change works on."""


@dataclass(frozen=True)
class StateChange:
    """Makes the new value of a key from the one stored by then."""

    def apply(self, old: Any) -> Any:
        """Returns the new value; `MISSING` removes the key.

        Raises:
            UnfitValueError: When `old` is of the wrong kind.
        """
        raise NotImplementedError

    def normalised(self, value: Callable[[Any], Any]) -> StateChange:
        """Returns the change with each value it holds as `value` gives it back."""
        changed = {field.name: value(getattr(self, field.name)) for field in fields(self)}
        return type(self)(**changed)


@dataclass(frozen=True, slots=True)
class Put(StateChange):
    """Sets a value, whatever was there."""

    value: Any

    def apply(self, old: Any) -> Any:  # noqa: ARG002  # the old value does not matter
        """Returns the value."""
        return self.value


@dataclass(frozen=True, slots=True)
class Remove(StateChange):
    """Removes the key; nothing happens if it is not there."""

    def apply(self, old: Any) -> Any:  # noqa: ARG002  # the old value does not matter
        """Returns `MISSING`."""
        return MISSING


@dataclass(frozen=True, slots=True)
class Increment(StateChange):
    """Adds `by` to a number; a missing key counts as 0."""

    by: float = 1

    def apply(self, old: Any) -> Any:
        """Returns the sum."""
        if old is MISSING:
            return self.by
        if isinstance(old, bool) or not isinstance(old, int | float):
            raise UnfitValueError(f"is a {type(old).__name__} and cannot be incremented")
        return old + self.by


@dataclass(frozen=True, slots=True)
class Extend(StateChange):
    """Appends `items` to a list; a missing key counts as an empty one."""

    items: Sequence[Any]

    def apply(self, old: Any) -> Any:
        """Returns the longer list."""
        return [*_as_list(old), *self.items]


@dataclass(frozen=True, slots=True)
class Union(StateChange):
    """Appends those of `items` that a list does not hold yet; a missing key counts as empty."""

    items: Sequence[Any]

    def apply(self, old: Any) -> Any:
        """Returns the list with the missing items behind, in their order."""
        merged = _as_list(old)
        for item in self.items:
            if item not in merged:
                merged.append(item)
        return merged


@dataclass(frozen=True, slots=True)
class Maximum(StateChange):
    """Keeps the larger of the stored value and `value`; a missing key takes `value`."""

    value: Any

    def apply(self, old: Any) -> Any:
        """Returns the larger one."""
        if old is MISSING:
            return self.value
        try:
            return max(old, self.value)
        except TypeError:
            raise UnfitValueError(
                f"is a {type(old).__name__} and cannot be compared with a"
                f" {type(self.value).__name__}"
            ) from None


def _as_list(old: Any) -> list[Any]:
    if old is MISSING:
        return []
    if not isinstance(old, list):
        raise UnfitValueError(f"is a {type(old).__name__} and no list")
    return list(old)
