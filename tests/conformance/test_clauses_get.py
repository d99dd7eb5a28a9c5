"""Clauses about `get_session`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from google.adk.sessions.base_session_service import GetSessionConfig
from pydantic import ValidationError

from conversation import said, texts

if TYPE_CHECKING:
    from google.adk.sessions.session import Session

    from conformance.subject import Subject

NOON = 1_900_000_000.0
"""A time later than any clock that runs these tests, in UTC epoch seconds."""


async def _five_events(subject: Subject) -> Session:
    """Returns a session with events `0` to `4`, one second apart, and state."""
    session = await subject.create("s", state={"step": 0, "user:locale": "de"})
    await subject.append(
        session, *(said(str(n), at=NOON + n, state={"step": n, "seen": n}) for n in range(5))
    )
    return session


async def test_an_unknown_session_is_none(subject: Subject) -> None:
    """A session that was never created is None, also for an app and a user that nobody knows."""
    await subject.create("s")

    assert await subject.find("t") is None
    assert await subject.find("s", user="bob") is None
    assert await subject.find("s", app="other") is None
    assert await subject.find("s", user="bob", app="other") is None


async def test_events_come_back_in_the_order_of_their_append(subject: Subject) -> None:
    """A session is read with all its events, first appended first, and its whole state."""
    stored = await subject.read(await _five_events(subject))

    assert texts(stored.events) == ["0", "1", "2", "3", "4"]
    assert stored.state == {"step": 4, "seen": 4, "user:locale": "de"}


async def test_the_live_session_agrees_with_the_stored_one(subject: Subject) -> None:
    """The session that events were appended to is equal to the one that is read afterwards."""
    session = await _five_events(subject)

    stored = await subject.read(session)

    assert stored.events == session.events
    assert stored.state == session.state
    assert stored.last_update_time == session.last_update_time


async def test_a_number_of_recent_events_takes_the_last_ones(subject: Subject) -> None:
    """`num_recent_events` takes the last events, in order, and all if there are fewer."""
    session = await _five_events(subject)

    for number, expected in ((0, ""), (1, "4"), (3, "234"), (5, "01234"), (99, "01234")):
        stored = await subject.read(session, num_recent_events=number)
        assert texts(stored.events) == list(expected)


async def test_a_time_takes_the_events_since_then(subject: Subject) -> None:
    """`after_timestamp` takes the events of that time and later."""
    session = await _five_events(subject)

    for after, expected in ((-1, "01234"), (2, "234"), (2.5, "34"), (5, "")):
        stored = await subject.read(session, after_timestamp=NOON + after)
        assert texts(stored.events) == list(expected)


async def test_a_number_and_a_time_both_hold(subject: Subject) -> None:
    """With both, the last events are taken of those since that time."""
    session = await _five_events(subject)

    for number, after, expected in ((2, 1, "34"), (4, 3, "34"), (0, 1, ""), (2, 5, "")):
        stored = await subject.read(session, num_recent_events=number, after_timestamp=NOON + after)
        assert texts(stored.events) == list(expected)


async def test_a_window_leaves_the_rest_whole(subject: Subject) -> None:
    """A session read without its events has its whole state and the time of its last event."""
    session = await _five_events(subject)

    stored = await subject.read(session, num_recent_events=0)

    assert stored.state == {"step": 4, "seen": 4, "user:locale": "de"}
    assert stored.last_update_time == session.last_update_time


async def test_an_append_through_a_window_keeps_the_other_events(subject: Subject) -> None:
    """An event appended to a session that was read in part follows all the stored ones."""
    session = await _five_events(subject)

    for number, text in ((0, "5"), (2, "6")):
        window = await subject.read(session, num_recent_events=number)
        event = said(text, at=NOON + int(text), state={"step": int(text)})
        await subject.append(window, event)
        assert texts(window.events) == list("0123456")[int(text) - number : int(text) + 1]

    stored = await subject.read(session)
    assert texts(stored.events) == list("0123456")
    assert stored.state == {"step": 6, "seen": 4, "user:locale": "de"}


def test_a_negative_number_is_refused() -> None:
    """ADK's configuration takes no negative number of events."""
    with pytest.raises(ValidationError):
        GetSessionConfig(num_recent_events=-1)


async def test_a_returned_session_is_a_copy(subject: Subject) -> None:
    """Changing a session that was returned changes nothing that is stored."""
    created = await subject.create("s", state={"plan": {"weeks": [1]}, "user:likes": ["tea"]})
    await subject.append(created, said("hello"))
    before = await subject.read(created)

    read = await subject.read(created)
    for session in (created, read):
        session.state["plan"]["weeks"].append(2)
        session.state["user:likes"].append("milk")
        session.state["new"] = 1
        session.events.clear()

    assert await subject.read(created) == before
