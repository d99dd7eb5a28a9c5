"""Times as databases keep them: rounded as ADK rounds them, and each after the one before."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from adk_memory_ext.errors import StateRejectedError
from adk_memory_ext.event_times import MICROSECONDS, in_order, microseconds

YEAR_1: Final = -62_135_596_800.0
YEAR_9999: Final = 253_402_300_799.0
CENTURIES: Final = st.floats(YEAR_1, YEAR_9999)
TODAY: Final = st.floats(1.6e9, 2.0e9)


@given(timestamp=CENTURIES | TODAY)
@example(1_700_000_000.0000005)
@example(-0.0000005)
def test_a_time_is_rounded_as_adk_rounds_it(timestamp: float) -> None:
    """The microseconds are those of `datetime.fromtimestamp`, by which ADK stores an event."""
    stored = datetime.fromtimestamp(timestamp, UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    assert microseconds(timestamp) == stored // timedelta(microseconds=1)


@given(timestamp=CENTURIES | TODAY, newest=CENTURIES | TODAY)
@example(0.0, 17_179_869_184.0)
@example(0.0, 253_402_300_000.0)
def test_a_time_comes_after_the_newest_one(timestamp: float, newest: float) -> None:
    """A later time stays as it is; another becomes the next one that a float can say."""
    before = microseconds(newest)
    seconds, stored = in_order(timestamp, before)
    assert stored == microseconds(seconds)
    if microseconds(timestamp) > before:
        assert seconds == timestamp
    else:
        assert before < stored <= before + 1 + math.ceil(math.ulp(newest) * MICROSECONDS)


@given(timestamp=CENTURIES)
def test_the_first_time_stays_as_it_is(timestamp: float) -> None:
    """Where nothing came before, there is no order to keep."""
    assert in_order(timestamp, None) == (timestamp, microseconds(timestamp))


@pytest.mark.parametrize(
    "timestamp",
    [math.nan, math.inf, -math.inf, 1e300, YEAR_9999 + 1, YEAR_1 - 1, 1_700_000_000_000.0],
)
def test_what_no_calendar_has_is_refused(timestamp: float) -> None:
    """Not a number, infinity and milliseconds taken for seconds are refused."""
    with pytest.raises(StateRejectedError, match="'timestamp' is no time between the years"):
        microseconds(timestamp)


def test_there_is_an_end_of_time() -> None:
    """Nothing comes after the last time of the year 9999 that a float can say."""
    last = microseconds(math.nextafter(YEAR_9999 + 1, 0))
    with pytest.raises(StateRejectedError):
        in_order(0.0, last)
