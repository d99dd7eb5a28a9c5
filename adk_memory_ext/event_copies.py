"""Copies of events that share nothing which anybody could change.

`model_copy(deep=True)` takes longer than decoding an event anew. Here an event is looked at once:
which of its fields hold something mutable, all the way down. A copy is then made of those, and
everything else (texts, numbers, `None`) is shared.
"""

from __future__ import annotations

import copy
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from pydantic import BaseModel

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

Copier: TypeAlias = "Callable[[Any], Any]"
"""Copies the one value that it was made for."""

_IMMUTABLE: Final = frozenset({type(None), str, int, float, bool, bytes})
_new: Final = object.__new__
_put: Final = object.__setattr__


def copier_of(value: Any) -> Copier | None:
    """Returns what copies `value`, as long as nobody changes it; None if nothing in it can change.

    A value of an unknown type is copied as `copy.deepcopy` does.
    """
    kind = type(value)
    if kind in _IMMUTABLE or isinstance(value, Enum):
        return None
    if kind is dict:
        return _holder_copier(value.items(), dict.copy)
    if kind is list:
        return _holder_copier(enumerate(value), list.copy)
    if kind is set and all(type(item) in _IMMUTABLE for item in value):
        return set.copy
    if isinstance(value, BaseModel):
        return model_copier(value)
    return copy.deepcopy


def _mutable(items: Any) -> tuple[tuple[Any, Copier], ...]:
    found = ((key, copier_of(item)) for key, item in items)
    return tuple((key, copier) for key, copier in found if copier is not None)


def _holder_copier(items: Any, shallow: Copier) -> Copier:
    """Returns what copies a dict or a list with these items."""
    inner = _mutable(items)
    if not inner:
        return shallow

    def copied(original: Any) -> Any:
        result = original.copy()
        for key, copier in inner:
            result[key] = copier(result[key])
        return result

    return copied


def model_copier(model: BaseModel) -> Copier:
    """Returns what copies a model as pydantic's own `__copy__` does, and what it holds too."""
    kind = type(model)
    inner = _mutable(model.__dict__.items())
    extra = copier_of(model.__pydantic_extra__)
    private = copier_of(model.__pydantic_private__)

    def copied(original: BaseModel) -> BaseModel:
        fields = original.__dict__.copy()
        for name, copier in inner:
            fields[name] = copier(fields[name])
        result = _new(kind)
        _put(result, "__dict__", fields)
        _put(result, "__pydantic_fields_set__", original.__pydantic_fields_set__.copy())
        held = original.__pydantic_extra__
        _put(result, "__pydantic_extra__", held if extra is None else extra(held))
        hidden = original.__pydantic_private__
        _put(result, "__pydantic_private__", hidden if private is None else private(hidden))
        return result

    return copied
