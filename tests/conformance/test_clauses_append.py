"""Clauses about `append_event`."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from google.adk.errors import StaleSessionError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.sessions.session import Session
from google.genai import types

from conversation import said, texts

if TYPE_CHECKING:
    from conformance.subject import Subject

NOON = 1_900_000_000.0


async def test_the_appended_event_is_returned(subject: Subject) -> None:
    """The event is returned, stands last in the session object, and is read back equal."""
    session = await subject.create("s")

    for text in ("one", "two"):
        event = said(text, state={"step": text})
        (returned,) = await subject.append(session, event)

        assert returned.id == event.id
        assert session.events[-1] == returned
        assert session.state == {"step": text}
        assert (await subject.read(session)).events[-1] == returned


async def test_the_returned_event_carries_its_stored_time(subject: Subject) -> None:
    """The returned event and the session object carry the time under which it is read back."""
    session = await subject.create("s")

    for at in (None, NOON, NOON, NOON - 60, None):
        (returned,) = await subject.append(session, said("hello", at=at))
        stored = (await subject.read(session)).events
        assert returned.timestamp == {e.id: e.timestamp for e in stored}[returned.id]
        assert session.last_update_time == (await subject.read(session)).last_update_time


async def test_a_partial_event_is_returned_and_not_stored(subject: Subject) -> None:
    """A fragment of a streamed answer leaves no trace, neither in storage nor in the session."""
    session = await subject.create("s", state={"step": 0})
    event = said("hel", author="agent", state={"step": 1, "user:seen": 1, "temp:x": 1})
    event.partial = True
    time = event.timestamp

    (returned,) = await subject.append(session, event)

    assert returned is event
    assert returned.timestamp == time
    assert session.events == []
    assert session.state == {"step": 0}
    stored = await subject.read(session)
    assert (stored.events, stored.state) == ([], {"step": 0})
    assert await subject.user_state() == {}


async def test_a_state_delta_goes_to_the_scope_of_its_prefix(subject: Subject) -> None:
    """A delta's keys reach the session, the user or the app, as their prefix says."""
    session = await subject.create("s")

    await subject.append(session, said("x", state={"a": 1, "user:b": 2, "app:c": 3}))

    assert session.state == {"a": 1, "user:b": 2, "app:c": 3}
    assert (await subject.read(session)).state == {"a": 1, "user:b": 2, "app:c": 3}
    assert (await subject.read(await subject.create("t"))).state == {"user:b": 2, "app:c": 3}
    assert (await subject.read(await subject.create("u", user="bob"))).state == {"app:c": 3}


async def test_temp_state_lives_in_the_session_object_only(subject: Subject) -> None:
    """A `temp:` key is in the live session's state, and in nothing that is stored."""
    session = await subject.create("s")

    await subject.append(session, said("x", state={"temp:otp": "123456", "step": 1}))
    await subject.append(session, said("y", state={"step": 2}))

    assert session.state == {"temp:otp": "123456", "step": 2}
    stored = await subject.read(session)
    assert stored.state == {"step": 2}
    assert [event.actions.state_delta for event in stored.events] == [{"step": 1}, {"step": 2}]


async def test_an_event_needs_neither_content_nor_state(subject: Subject) -> None:
    """An event without content, or with state only, is stored like any other."""
    session = await subject.create("s")
    bare = Event(invocation_id="i", author="agent")
    state_only = said("", state={"step": 1})
    state_only.content = None

    await subject.append(session, bare, state_only)

    stored = await subject.read(session)
    assert [event.id for event in stored.events] == [bare.id, state_only.id]
    assert stored.state == {"step": 1}


@pytest.mark.parametrize(
    ("user", "app", "session_id"),
    [("ann", "app", "unknown"), ("bob", "app", "s"), ("ann", "other", "s")],
)
async def test_an_unknown_session_takes_no_event(
    subject: Subject, user: str, app: str, session_id: str
) -> None:
    """An append to a session that the app and user do not have is refused; nothing is written."""
    known = await subject.create("s")
    before = await subject.read(known)
    session = Session(id=session_id, app_name=subject.app(app), user_id=user)

    with pytest.raises(SessionNotFoundError):
        await subject.append(session, said("x", state={"user:a": 1, "app:b": 2, "c": 3}))

    assert await subject.find(session_id, user=user, app=app) is None
    assert await subject.read(known) == before
    assert await subject.user_state(user=user, app=app) == {}


@pytest.mark.needs("refuses_stale")
async def test_a_stale_session_is_refused(subject: Subject) -> None:
    """An append to a session that another caller has appended to since is refused whole."""
    session = await subject.create("s")
    stale = await subject.read(session)
    await subject.append(session, said("first", state={"step": 1}))

    with pytest.raises(StaleSessionError):
        await subject.append(stale, said("late", state={"step": 2, "user:a": 1, "app:b": 1}))

    stored = await subject.read(session)
    assert texts(stored.events) == ["first"]
    assert stored.state == {"step": 1}
    await subject.append(stored, said("after a reload"))
    assert texts((await subject.read(session)).events) == ["first", "after a reload"]


@pytest.mark.needs("refuses_stale")
@pytest.mark.parametrize("behind", [0, 60])
async def test_a_stale_session_is_refused_whatever_the_clock_says(
    subject: Subject, behind: float
) -> None:
    """An append in the meantime is noticed also if its time is the last one's, or before it."""
    session = await subject.create("s")
    await subject.append(session, said("first", at=NOON))
    stale = await subject.read(session)
    await subject.append(session, said("second", at=NOON - behind))

    with pytest.raises(StaleSessionError):
        await subject.append(stale, said("late", at=NOON + 1))

    assert texts((await subject.read(session)).events) == ["first", "second"]


async def test_two_writers_lose_nothing_that_was_acknowledged(subject: Subject) -> None:
    """Of two callers that hold one session, the second is refused or both events are stored."""
    mine = await subject.create("s")
    theirs = await subject.read(mine)
    await subject.append(mine, said("mine", state={"mine": 1}))
    acknowledged = ["mine"]

    with suppress(StaleSessionError):
        await subject.append(theirs, said("theirs", state={"theirs": 1}))
        acknowledged.append("theirs")

    stored = await subject.read(mine)
    assert texts(stored.events) == acknowledged
    assert stored.state == dict.fromkeys(acknowledged, 1)


async def test_a_session_that_went_through_json_takes_events(subject: Subject) -> None:
    """A session object that was written as JSON and read again can be appended to."""
    session = await subject.create("s")
    await subject.append(session, said("one"))
    copied = Session.model_validate_json((await subject.read(session)).model_dump_json())

    await subject.append(copied, said("two"))

    assert texts((await subject.read(session)).events) == ["one", "two"]


async def test_a_new_value_replaces_the_old_one_whole(subject: Subject) -> None:
    """A key of a delta replaces the key's value; dictionaries are not merged, None is a value."""
    session = await subject.create("s", state={"plan": {"a": 1}, "user:plan": {"a": 1}, "gone": 1})

    delta = {"plan": {"b": 2}, "user:plan": {"b": 2}, "app:plan": {"b": 2}, "gone": None}
    await subject.append(session, said("x", state=delta))

    assert (await subject.read(session)).state == delta


@pytest.mark.parametrize("how", ["the same object", "a copy"])
async def test_an_event_appended_again_is_stored_once(subject: Subject, how: str) -> None:
    """An event that is delivered again, after a retry, is refused or ignored; it never doubles."""
    session = await subject.create("s")
    event = said("hello", at=NOON, state={"step": 1})
    again = event if how == "the same object" else event.model_copy(deep=True)
    await subject.append(session, event)

    with suppress(Exception):  # a service may refuse in its own words
        await subject.append(await subject.read(session), again)

    stored = await subject.read(session)
    assert texts(stored.events) == ["hello"]
    assert stored.state == {"step": 1}


async def test_a_stored_event_does_not_change_with_the_given_one(subject: Subject) -> None:
    """Changing an event object after its append changes nothing that is stored."""
    session = await subject.create("s")
    event = said("hello", state={"plan": {"weeks": [1]}})
    (returned,) = await subject.append(session, event)
    before = await subject.read(session)

    for changed in (event, returned):
        changed.content = types.Content(role="user", parts=[types.Part(text="changed")])
        changed.custom_metadata = {"changed": True}
    event.actions.state_delta["plan"]["weeks"].append(2)

    assert await subject.read(session) == before


async def test_flush_changes_nothing(subject: Subject) -> None:
    """After a flush, as before it, everything that was appended is there."""
    session = await subject.create("s")
    await subject.append(session, said("hello", state={"step": 1}))
    before = await subject.read(session)

    await subject.service.flush()

    assert texts(before.events) == ["hello"]
    assert await subject.read(session) == before
