"""Values for every field of a pydantic model, also for those that a later ADK adds."""

from __future__ import annotations

import enum
import types
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel

_Model = TypeVar("_Model", bound=BaseModel)

_DEEPEST: Final = 6
"""Models may hold themselves, as a part does in a function's response."""

_PLAIN: Final[dict[object, Any]] = {
    str: "tëxt 履歷 🧭",
    int: 7,
    float: 0.1 + 0.2,
    bool: True,
    bytes: bytes(range(256)),
    datetime: datetime(2031, 5, 6, 7, 8, 9, 123456, tzinfo=UTC),
    Any: {"any": [1, 2.5, "three", None, True, {"nested": []}]},
}


def whole(model: type[_Model], *, depth: int = 0, **given: Any) -> _Model:
    """Returns an instance with a value in every field; the `given` ones are taken as they are."""
    values = {
        name: sample(field.annotation, depth + 1)
        for name, field in model.model_fields.items()
        if name not in given
    }
    return model(**{name: value for name, value in values.items() if value is not None}, **given)


def sample(annotation: Any, depth: int = 0) -> Any:  # noqa: PLR0911  # one for each kind
    """Returns a value of the annotated type; None where models are nested too deep."""
    if annotation in _PLAIN:
        return _PLAIN[annotation]
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return sample(next(item for item in arguments if item is not type(None)), depth)
    if origin is Literal:
        return arguments[0]
    if origin in (list, set):
        item = sample(arguments[0], depth)
        return None if item is None else origin([item])
    if origin is dict:
        value = sample(arguments[1], depth)
        return None if value is None else {"kéy": value}
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return list(annotation)[-1]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return None if depth > _DEEPEST else whole(annotation, depth=depth)
    raise NotImplementedError(f"no sample for {annotation!r}")
