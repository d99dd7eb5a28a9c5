"""State values: which of them databases keep, which they do not, and how exact "kept" is."""

from __future__ import annotations

import dataclasses
import enum
import struct
from collections import OrderedDict, deque
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final, NamedTuple
from uuid import UUID

from hypothesis import strategies as st
from pydantic import BaseModel

from adk_memory_ext.json_values import MAX_DEPTH, MAX_DIGITS
from adk_memory_ext.state_changes import Increment
from adk_memory_ext.watched_state import WatchedState

SECRET: Final = "hunter2"  # noqa: S105  # no password of anything
"""Stands in every bad value that can hold it, and must stand in no error."""


def nested(depth: int, *innermost: Any) -> list[Any]:
    """Returns a list inside lists, `depth` of them."""
    value = list(innermost)
    for _level in range(depth - 1):
        value = [value]
    return value


def endless() -> list[Any]:
    """Returns a list that holds itself, twice."""
    value: list[Any] = [SECRET]
    value += [value, value]
    return value


class Opaque:
    """An object that no JSON text stands for."""

    def __repr__(self) -> str:
        return SECRET


@dataclass(frozen=True)
class Bad:
    """A value that cannot be kept."""

    value: Any
    where: str
    """What its path adds to the path of the value that it stands in."""
    reason: str
    """What the error says."""
    replacement: Any
    """What stands there instead on request."""


_ROOM: Final = MAX_DEPTH - 2
"""Levels that are left inside a list in an object."""
_NO_TEXT: Final = "holds a NUL character or a lone surrogate"

BAD: Final[dict[str, Bad]] = {
    "NaN": Bad(float("nan"), "", "is nan", None),
    "infinity": Bad([SECRET, float("inf")], "[1]", "is inf", [SECRET, None]),
    "minus infinity": Bad({"a": {"b": -float("inf")}}, ".a.b", "is -inf", {"a": {"b": None}}),
    "a NUL": Bad(f"{SECRET}\0b", "", _NO_TEXT, f"{SECRET}\ufffdb"),
    "a lone surrogate": Bad(
        [{"a": f"{SECRET}\udc80"}], "[0].a", _NO_TEXT, [{"a": SECRET + "\ufffd"}]
    ),
    "a NUL in a key": Bad({"a\0": SECRET}, ".a\ufffd", _NO_TEXT, {"a\ufffd": SECRET}),
    "a surrogate in a key": Bad({"b": {"\ud800": 1}}, ".b.\ufffd", _NO_TEXT, {"b": {"\ufffd": 1}}),
    "a number as key": Bad({1: SECRET}, ".1", "is a key of the type int", {"1": SECRET}),
    "None as key": Bad([{None: 1}], "[0].None", "is a key of the type NoneType", [{"None": 1}]),
    "a pair as key": Bad(
        {(SECRET, 1): 1}, ".<tuple>", "is a key of the type tuple", {"<tuple>": 1}
    ),
    "a number as key of another mapping": Bad(
        OrderedDict({2: SECRET}), ".2", "is a key of the type int", {"2": SECRET}
    ),
    "bytes": Bad(SECRET.encode(), "", "is bytes", "aHVudGVyMg=="),
    "bytes that are no text": Bad((b"\xff",), "[0]", "is bytes", ["/w=="]),
    "a byte array": Bad({"a": bytearray(b"\0")}, ".a", "is bytes", {"a": "AA=="}),
    "an endless list": Bad(endless(), "[1]", "contains itself", [SECRET, None, None]),
    "endless nesting": Bad(
        nested(_ROOM + 1), "[0]" * _ROOM, "is nested more than", nested(_ROOM, None)
    ),
    "a long integer": Bad(10**MAX_DIGITS, "", "has more than 4,000 digits", None),
    "an object": Bad([Opaque()], "[0]", "is of the type Opaque, which has no", ["Opaque"]),
    "a function": Bad(len, "", "is of the type builtin_function_or_method", len.__class__.__name__),
}
"""What is refused, or replaced on request, inside a list in an object, by the name of its fault."""

NEVER: Final[dict[str, Bad]] = {
    "a change inside a value": Bad(
        [Increment(1)], "[0]", "holds Increment.*stands for a whole value", ...
    ),
    "keys that become one": Bad({1: SECRET, "1": 2}, "", "keys that become the same text", ...),
}
"""What is refused even where other values are replaced."""

FLOATS: Final = (
    *(0.0, 1.0, -1.0, 0.1, 1 / 3, 1e-7, 1.5e-9, 123456789.125, 2.0**53, 5e-324, -5e-324),
    *(2.2250738585072014e-308, 1e15, 1e16, -1e16, 1e17, 123456789012345680.0, 1e22, 1e23),
    *(1.7976931348623157e308, -1.7976931348623157e308, 1e308, 9.999e-5, 1e100, 4.35e18),
)
PLANES: Final = "".join(chr(plane << 16 | low) for plane in range(17) for low in (0x41, 0xFFFD))
"""Two characters of each of Unicode's planes."""

GOOD: Final[dict[str, Any]] = {
    "nothing": None,
    "truths": [True, False],
    "whole numbers": [0, -1, 2**31, -(2**53) - 1, 2**63 - 1, -(2**63), 2**64, 10**30, -(10**300)],
    "the longest integers": [10**MAX_DIGITS - 1, 1 - 10**MAX_DIGITS],
    "floats": list(FLOATS),
    "whole floats beside integers": [1, 1.0, 10**16, 1e16, 10**22, 1e22],
    "texts": ["", " ", "\n\r\t\b\f", "\x01\x1f\x7f\x80", '"\\/', "\\u0000 \\ud800", "%s %% :x ?"],
    "texts that look like numbers": ["1e+16", "NaN", "null", '"1e+22', "1e+16\\", "e+"],
    "every plane": PLANES,
    "characters that change under normalisation": ["e\u0301", "\u00e9", "\ufb01", "\u212b"],
    "no members": [{}, [], {"": {}}],
    "empty keys": {"": {"": [{"": ""}]}},
    "keys that look like paths": {"/a~1b": 1, "$.a[0]": 2, "a.b": 3, "['x']": 4, "~0": 5, "#/": 6},
    "keys that look like others": {"1": 1, "01": 2, "True": 3, "null": 4, "user:x": 5, "temp:y": 6},
    "keys of every plane": dict.fromkeys(PLANES, 1),
    "the deepest list": nested(MAX_DEPTH),
    "the deepest object": {"a": nested(MAX_DEPTH - 1)},
}
"""What is kept exactly, by what is hard about it."""


class Colour(enum.Enum):
    """An enum over texts."""

    RED = "red"


class Word(enum.StrEnum):
    """An enum that is a text."""

    YES = "yes"


class Level(enum.IntEnum):
    """An enum that is a number."""

    HIGH = 3


class Count(int):
    """A number of an own kind."""


class Name(str):
    """A text of an own kind."""

    __slots__ = ()


class Share(float):
    """A float of an own kind."""


class Point(NamedTuple):
    """A named tuple."""

    x: int
    y: None


@dataclasses.dataclass
class Stop:
    """A dataclass with a field that is None."""

    city: str
    note: None = None


class Trip(BaseModel):
    """A model with fields that are None, and a model inside."""

    when: datetime
    price: Decimal | None = None
    next: Trip | None = None


_WHEN: Final = datetime(2026, 2, 28, 12, 30, 0, 1, tzinfo=UTC)

PYTHON: Final[dict[str, tuple[Any, Any]]] = {
    "a datetime": (_WHEN, "2026-02-28T12:30:00.000001Z"),
    "a date": (date(2026, 2, 28), "2026-02-28"),
    "a duration": (timedelta(hours=36), "P1DT12H"),
    "a decimal": (Decimal("1.10"), "1.10"),
    "a UUID": (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    "an enum": (Colour.RED, "red"),
    "an enum of texts": (Word.YES, "yes"),
    "an enum of numbers": (Level.HIGH, 3),
    "a kind of number": (Count(5), 5),
    "a kind of text": (Name("Ann"), "Ann"),
    "a kind of float": (Share(0.5), 0.5),
    "an enum as key": ({Word.YES: 1, Name("Ann"): 2}, {"yes": 1, "Ann": 2}),
    "a tuple": ((1, (2, None)), [1, [2, None]]),
    "a named tuple": (Point(1, None), [1, None]),
    "a set": ({3, 1, 2}, [1, 2, 3]),
    "a set of kinds": (frozenset({"b", "a"}), ["a", "b"]),
    "a queue": (deque([1, {2}]), [1, [2]]),
    "a dataclass": (Stop("Lisbon"), {"city": "Lisbon", "note": None}),
    "a model": (
        [Trip(when=_WHEN, next=Trip(when=_WHEN))],
        [
            {
                "when": "2026-02-28T12:30:00.000001Z",
                "price": None,
                "next": {"when": "2026-02-28T12:30:00.000001Z", "price": None, "next": None},
            }
        ],
    ),
}
"""Values of Python's types, and what a database gives back for them."""


def is_exactly(one: Any, other: Any) -> bool:
    """Whether two JSON values are the same in type and value, floats bit by bit.

    The state of a loaded session counts as the dict that it is to everybody.
    """
    if isinstance(one, WatchedState):
        one = dict(one)
    if isinstance(other, WatchedState):
        other = dict(other)
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(is_exactly(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(is_exactly, one, other))
    if isinstance(one, float):
        return struct.pack("d", one) == struct.pack("d", other)
    return bool(one == other)


TEXTS: Final = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
"""Any text that can be kept."""
_SCALARS: Final = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**70), 2**70),
    # PostgreSQL has no -0.0; `json_values` says so.
    st.floats(allow_nan=False, allow_infinity=False).map(lambda number: number or 0.0),
    st.sampled_from(FLOATS),
    TEXTS,
)
JSON: Final = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)
"""Any JSON value."""
OBJECTS: Final = st.dictionaries(TEXTS, JSON, max_size=4)
"""Any JSON object."""
