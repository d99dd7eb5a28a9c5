"""Clauses about order: what was appended last is read last, whatever the events' times are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backends import count
from conversation import said, texts

if TYPE_CHECKING:
    from google.adk.sessions.session import Session

    from conformance.subject import Subject

NOON = 1_900_000_000.0
HOUR = 3600.0

CLOCKS = {
    "stands still": [NOON] * 6,
    "runs backwards": [NOON - n for n in range(6)],
    "is set back once": [NOON + n - (HOUR if n > 2 else 0) for n in range(6)],
    "is ahead on one server": [NOON + n + (HOUR if n == 2 else 0) for n in range(6)],
    "is coarse": [NOON + n // 3 * 0.0156 for n in range(6)],
    "is finer than a microsecond": [NOON + n * 2.5e-7 for n in range(6)],
    "is before the session's creation": [1_000_000_000.0 + n for n in range(6)],
}


async def _append_at(subject: Subject, times: list[float]) -> Session:
    """Returns a session with the events `0`, `1`, …, appended with these times."""
    session = await subject.create()
    for n, at in enumerate(times):
        event = said(str(n), at=at)
        # ADK orders equal times by id; these ids make it take the last appended for the first.
        event.id = f"{len(times) - n:02}"
        await subject.append(session, event)
    return session


@pytest.mark.parametrize("times", CLOCKS.values(), ids=CLOCKS)
async def test_read_order_is_append_order(subject: Subject, times: list[float]) -> None:
    """Events are read in the order of their append, and the most recent are the last appended."""
    session = await _append_at(subject, times)

    assert texts((await subject.read(session)).events) == list("012345")
    assert texts((await subject.read(session, num_recent_events=4)).events) == list("2345")
    assert texts((await subject.read(session, num_recent_events=1)).events) == list("5")


@pytest.mark.needs("keeps_append_order")
@pytest.mark.parametrize("clock", ["stands still", "is set back once", "is ahead on one server"])
async def test_order_holds_through_two_instances(subject: Subject, clock: str) -> None:
    """Two instances that append in turn, each after a reload, leave one order."""
    session = await subject.create("s")
    for n, at in enumerate(CLOCKS[clock]):
        writer = (subject.service, subject.other)[n % 2]
        reloaded = await subject.read(session, num_recent_events=n % 3)
        await writer.append_event(reloaded, said(str(n), at=at))

    assert texts((await subject.read(session)).events) == list("012345")


@pytest.mark.needs("keeps_append_order")
async def test_events_since_the_time_of_one_are_that_one_and_the_later(subject: Subject) -> None:
    """The time of a returned event, given as `after_timestamp`, finds it and what followed."""
    session = await _append_at(subject, CLOCKS["is ahead on one server"])
    times = [event.timestamp for event in session.events]

    for n, time in enumerate(times):
        stored = await subject.read(session, after_timestamp=time)
        assert texts(stored.events) == list("012345")[n:]


@pytest.mark.needs("keeps_append_order")
@settings(
    max_examples=count(5, 200),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    times=st.lists(
        st.sampled_from([NOON, NOON + 1e-6, NOON + HOUR])
        | st.floats(NOON - 2e-6, NOON + 2e-6)
        | st.floats(0, 4e9),
        min_size=2,
        max_size=6,
    )
)
async def test_no_times_can_change_the_order(subject: Subject, times: list[float]) -> None:
    """Whatever times events carry, they are read in the order of their append, tail and all."""
    session = await _append_at(subject, times)

    expected = [str(n) for n in range(len(times))]
    assert texts((await subject.read(session)).events) == expected
    assert texts((await subject.read(session, num_recent_events=2)).events) == expected[-2:]
