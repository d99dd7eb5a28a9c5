"""What a state value or an event may hold: any JSON value, kept exactly, and nothing else.

Values of Python types that pydantic can turn into JSON (datetime, enum, model, set, …) become what
will be read back. What no database keeps exactly (NaN, infinities, NUL, lone surrogates, bytes,
keys that are no strings, endless nesting) is refused with its key, or replaced on request.
"""

from __future__ import annotations

import base64
import json
import math
import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic_core import PydanticSerializationError, to_jsonable_python

from adk_memory_ext.errors import StateRejectedError

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_DEPTH: Final = 200
"""Lists and objects inside one another. pydantic stops at 255 and an event adds levels itself."""

_REPLACEMENT: Final = "\ufffd"
_SUSPICIOUS: Final = ("\\u0000", "\\ud")  # NUL and surrogates, as json.dumps writes them

_STRING_OR_LARGE_FLOAT: Final = re.compile(r'"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?e\+\d+')

OnBadValue = Literal["refuse", "replace"]


class Normaliser:
    """Turns values into what will be read back.

    Args:
        on_bad_value: `refuse` raises at the first value that cannot be kept; `replace` puts the
            nearest JSON value there (null for NaN and infinities, U+FFFD for NUL and lone
            surrogates, base64 for bytes, `str(key)` for keys) and notes its path in `replaced`.
    """

    def __init__(self, on_bad_value: OnBadValue = "refuse") -> None:
        self._replace = on_bad_value == "replace"
        self.replaced: list[str] = []
        """The paths of what was replaced, such as `scores[3]`."""

    def state(self, delta: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the delta with every value as it will be read back.

        Raises:
            StateRejectedError: When a value cannot be kept.
        """
        return {
            self.key(key, str(key)): self.value(value, str(key)) for key, value in delta.items()
        }

    def value(self, value: Any, path: str, depth: int = 0) -> Any:
        """Returns `value` as it will be read back; `path` names it in errors."""
        kind = type(value)
        if kind is str:
            return self._text(value, path)
        if kind is int or kind is bool or value is None:
            return value
        if kind is float:
            return value if math.isfinite(value) else self._bad(path, f"is {value}", None)
        if kind is dict or kind is list or kind is tuple:
            return self._container(value, path, depth)
        return self._other(value, path, depth)

    def _container(self, value: Any, path: str, depth: int) -> Any:
        if depth >= MAX_DEPTH:
            return self._bad(path, f"is nested more than {MAX_DEPTH} deep", None)
        if type(value) is dict:
            return {
                self.key(key, path): self.value(item, f"{path}.{key}", depth + 1)
                for key, item in value.items()
            }
        return [self.value(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(value)]

    def _other(self, value: Any, path: str, depth: int) -> Any:
        """Returns the JSON form that pydantic gives a value of another type."""
        if isinstance(value, bytes | bytearray | memoryview):
            encoded = base64.b64encode(bytes(value)).decode()
            return self._bad(path, "is bytes; store base64 text or an artifact", encoded)
        try:
            plain = to_jsonable_python(value, by_alias=False)
        except (PydanticSerializationError, ValueError, RecursionError):
            reason = f"is a {type(value).__name__}, which has no JSON form"
            return self._bad(path, reason, repr(type(value)))
        if type(plain) not in (str, int, bool, float, dict, list, type(None)):
            return self._bad(path, f"is a {type(value).__name__}, which has no JSON form", None)
        return self.value(plain, path, depth + 1)

    def key(self, key: Any, path: str) -> str:
        """Returns `key` as it will be read back; `path` names its place in errors."""
        if type(key) is not str:
            if isinstance(key, str):  # an enum of strings
                return self._text(str(key.value if hasattr(key, "value") else key), path)
            return str(self._bad(path, f"has the key {key!r}, which is no string", str(key)))
        return self._text(key, path)

    def _text(self, text: str, path: str) -> str:
        if is_storable(text):
            return text
        whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        whole = whole.replace("\x00", _REPLACEMENT)
        return str(self._bad(path, "holds a NUL character or a lone surrogate", whole))

    def _bad(self, path: str, reason: str, replacement: Any) -> Any:
        if not self._replace:
            raise StateRejectedError(path, reason)
        self.replaced.append(path)
        return replacement


def encode(value: Mapping[str, Any]) -> str:
    """Returns the text of a JSON object, written as ADK writes it."""
    return json.dumps(value, allow_nan=False)


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
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_suspicious(text: str) -> bool:
    """Whether an encoded text may hold NUL or a lone surrogate; a False is certain."""
    return any(mark in text for mark in _SUSPICIOUS)
