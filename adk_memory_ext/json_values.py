"""What a state value or an event may hold: any JSON value, kept exactly, and nothing else.

Values of Python types that pydantic can turn into JSON (datetime, enum, model, set, …) become what
will be read back. What no database keeps exactly (NaN, infinities, NUL, lone surrogates, bytes,
keys that are no strings, endless nesting) is refused with its key, or replaced on request. Of the
floats, PostgreSQL reads -0.0 back as 0.0, which Python holds for equal; all others keep their bits.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections import deque
from decimal import Decimal
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from pydantic_core import PydanticSerializationError, from_json, to_jsonable_python

from adk_memory_ext.errors import StateRejectedError
from adk_memory_ext.state_changes import misplaced_change

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

MAX_DEPTH: Final = 150
"""Lists and objects inside one another. pydantic reads no JSON text of more than 200 levels, and an
event adds some of its own."""
MAX_DIGITS: Final = 4_000
"""Of an integer. Python reads no more than 4,300 (https://docs.python.org/3/library/stdtypes.html,
"Integer string conversion length limitation")."""

_TOO_LARGE: Final = 10**MAX_DIGITS
_REPLACEMENT: Final = "\ufffd"
_LONGEST_LABEL: Final = 64
"""Characters of a key in a path."""

# Possessive, and from the first digit on: an integer of 4,000 digits must not be tried 4,000 times.
_STRING_OR_LARGE_FLOAT: Final = re.compile(
    r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|(?<![\d.])\d++(?:\.\d++)?e\+\d+'
)

OnBadValue = Literal["refuse", "replace"]

_Place: TypeAlias = "tuple[Any, _Place | None, object]"
"""Where a value is: its key or index, the place of its container, and the container. Written out
as a path only for an error."""


class Normaliser:
    """Turns values into what will be read back.

    Args:
        on_bad_value: `refuse` raises at the first value that cannot be kept; `replace` puts the
            nearest JSON value there (null for NaN, infinities and what is nested too deep, U+FFFD
            for NUL and lone surrogates, base64 for bytes, the text of a key that is none, the
            name of the type for an object without a JSON form) and notes its path in `replaced`.
    """

    def __init__(self, on_bad_value: OnBadValue = "refuse") -> None:
        self._replace = on_bad_value == "replace"
        self.replaced: list[str] = []
        """The paths of what was replaced, such as `scores[3]`."""
        self.conversions = 0
        """How many values were not yet as they will be read back."""

    def value(self, value: Any, path: str) -> Any:
        """Returns `value` as it will be read back, sharing nothing that can change.

        Raises:
            StateRejectedError: When it, or a value inside it, cannot be kept; `path` begins the
                path in the error.
        """
        return self._value(value, (path, None, None))

    def key(self, key: Any) -> str:
        """Returns a key of a state delta as it will be read back.

        Raises:
            StateRejectedError: When it is no text, or cannot be kept.
        """
        if type(key) is str and is_storable(key):
            return key
        return self._key(key, (_label(key), None, None))

    def _value(self, value: Any, place: _Place) -> Any:
        kind = type(value)
        if kind is str:
            is_kept = is_storable(value)
        elif kind is int:
            is_kept = -_TOO_LARGE < value < _TOO_LARGE
        elif kind is float:
            is_kept = math.isfinite(value)
        elif kind is bool or value is None:
            is_kept = True
        elif kind is dict:
            return self._object(value, place)
        elif kind is list:
            return self._list(value, value, place)
        else:
            self.conversions += 1
            return self._other(value, place)
        return value if is_kept else self._scalar(value, place)

    def _scalar(self, value: Any, place: _Place) -> Any:
        if isinstance(value, str):
            return self._text(value, place)
        if isinstance(value, float):
            return self._bad(place, f"is {value}", None)
        return self._bad(place, f"has more than {MAX_DIGITS:,} digits", None)

    def _object(self, value: dict[Any, Any], place: _Place) -> Any:
        if (reason := _refusal(value, place)) is not None:
            return self._bad(place, reason, None)
        items: dict[str, Any] = {}
        for key, item in value.items():
            below = (key, place, value)
            items[self._key(key, below)] = self._value(item, below)
        if len(items) != len(value):
            raise StateRejectedError(_path(place), "has keys that become the same text")
        return items

    def _list(self, value: Any, items: Iterable[Any], place: _Place) -> Any:
        if (reason := _refusal(value, place)) is not None:
            return self._bad(place, reason, None)
        return [self._value(item, (index, place, value)) for index, item in enumerate(items)]

    def _other(self, value: Any, place: _Place) -> Any:
        """Returns the JSON form of a value of another type."""
        if (change := misplaced_change(value)) is not None:
            raise StateRejectedError(
                _path(place),
                f"holds {type(change).__name__}(…), which stands for a whole value and not inside"
                " one",
            )
        if isinstance(value, dict):
            return self._object(value, place)
        if isinstance(value, tuple | list | deque):
            return self._list(value, value, place)
        if isinstance(value, set | frozenset):
            return self._list(value, _in_order(value), place)
        if isinstance(value, bytes | bytearray | memoryview):
            encoded = base64.b64encode(bytes(value)).decode()
            return self._bad(place, "is bytes; store base64 text or an artifact", encoded)
        name = type(value).__name__
        try:
            plain = to_jsonable_python(value, by_alias=False)
        except (PydanticSerializationError, ValueError, RecursionError):
            plain = value
        if type(plain) not in (str, int, bool, float, dict, list, type(None)):
            return self._bad(place, f"is of the type {name}, which has no JSON form", name)
        return self._value(plain, place)

    def _key(self, key: Any, place: _Place) -> str:
        if type(key) is str:
            return key if is_storable(key) else self._text(key, place)
        self.conversions += 1
        if isinstance(key, str):  # an enum of strings, or another kind of text
            return self._text(str.__str__(key), place)
        return str(self._bad(place, f"is a key of the type {type(key).__name__}", _label(key)))

    def _text(self, text: str, place: _Place) -> str:
        if is_storable(text):
            return text
        return str(self._bad(place, "holds a NUL character or a lone surrogate", _storable(text)))

    def _bad(self, place: _Place, reason: str, replacement: Any) -> Any:
        path = _path(place)
        if not self._replace:
            raise StateRejectedError(path, reason)
        self.conversions += 1
        self.replaced.append(path)
        return replacement


def _refusal(container: object, place: _Place) -> str | None:
    """Returns why a container cannot stand at a place; None if it can."""
    depth = 0
    above: _Place | None = place
    while above is not None:
        if above[2] is container:
            return "contains itself"
        above = above[1]
        depth += 1
    return f"is nested more than {MAX_DEPTH} deep" if depth > MAX_DEPTH else None


def _path(place: _Place) -> str:
    """Returns a place as errors name it."""
    label, above, container = place
    if above is None:
        return str(label)
    if isinstance(container, dict):
        return f"{_path(above)}.{_label(label)}"
    return f"{_path(above)}[{label}]"


def _in_order(values: set[Any] | frozenset[Any]) -> list[Any]:
    """Returns the members in an order that is the same in every process."""
    try:
        return sorted(values)
    except TypeError:
        return sorted(values, key=repr)


def _label(key: Any) -> str:
    """Returns a key as it stands in a path: short, and always a text that can be kept."""
    if not isinstance(key, str | int | float | NoneType):
        return f"<{type(key).__name__}>"
    text = _storable(str(key))
    return text if len(text) <= _LONGEST_LABEL else text[:_LONGEST_LABEL] + "…"


def _storable(text: str) -> str:
    """Returns the text with U+FFFD in place of NUL and of lone surrogates."""
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return whole.replace("\x00", _REPLACEMENT)


encode: Final[Callable[[Mapping[str, Any]], str]] = json.JSONEncoder().encode
"""Returns the text of a JSON object, written as ADK writes it. Our values have come through the
door; NaN that plain ADK stored in a state stays there."""


def decode(text: str) -> Any:
    """Returns what `json.loads` reads in a JSON text, and faster.

    Raises:
        ValueError: When it is none.
    """
    try:
        return from_json(text, cache_strings=False)
    except ValueError:  # plain ADK stores lone surrogates and deeper nesting
        return json.loads(text)


def exact_for_jsonb(text: str) -> str:
    """Returns a JSON text whose floats PostgreSQL's `jsonb` gives back as floats.

    It keeps numbers as decimals and writes 1e+22 as an integer, which Python reads as an int.
    """
    return _STRING_OR_LARGE_FLOAT.sub(_with_fraction, text) if "e+" in text else text


def _with_fraction(match: re.Match[str]) -> str:
    found = match.group()
    return found if found.startswith('"') else f"{Decimal(found):f}.0"


def is_storable(text: str) -> bool:
    """Whether a text is free of NUL and of lone surrogates."""
    if "\x00" in text:
        return False
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
