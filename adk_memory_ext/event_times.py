"""When events happened, as databases keep it: whole microseconds, in the order of their append."""

from __future__ import annotations

import math
from typing import Final

from adk_memory_ext.errors import StateRejectedError

MICROSECONDS: Final = 1_000_000
"""In a second."""
_FIRST: Final = -62_135_596_800 * MICROSECONDS
_LAST: Final = 253_402_300_800 * MICROSECONDS - 1


def microseconds(timestamp: float) -> int:
    """Returns UTC epoch seconds as microseconds, rounded as Python's `datetime` and ADK do.

    Raises:
        StateRejectedError: When it is no number or of no year from 1 to 9999.
    """
    try:
        fraction, whole = math.modf(timestamp)
        time = int(whole) * MICROSECONDS + round(fraction * MICROSECONDS)
    except (ValueError, OverflowError):
        time = _LAST + 1
    if not _FIRST <= time <= _LAST:
        raise StateRejectedError("timestamp", "is no time between the years 1 and 9999")
    return time


def in_order(timestamp: float, newest: int | None) -> tuple[float, int]:
    """Returns the time to store, in seconds and in microseconds, raised where needed.

    Plain ADK reads events by their time and equal ones in random order, so each comes after the
    `newest` one, which is in microseconds; None if there is none.

    Raises:
        StateRejectedError: When it is no time, or the newest one was the last that there is.
    """
    time = microseconds(timestamp)
    if newest is None or time > newest:
        return timestamp, time
    later = (newest + 1) / MICROSECONDS
    if microseconds(later) <= newest:
        # From the year 2242 on, the next float is more than a microsecond away.
        later = math.nextafter(later, math.inf)
    return later, microseconds(later)
