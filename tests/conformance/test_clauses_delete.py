"""Clauses about `delete_session`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from google.adk.errors.session_not_found_error import SessionNotFoundError

from conversation import said, texts

if TYPE_CHECKING:
    from conformance.subject import Subject


async def test_a_deleted_session_is_gone(subject: Subject) -> None:
    """A deleted session is neither found nor listed."""
    session = await subject.create("s")
    await subject.append(session, said("hello"))

    await subject.delete("s")

    assert await subject.find("s") is None
    assert await subject.list() == []
    assert await subject.list(user=None) == []


async def test_deleting_nothing_is_no_error(subject: Subject) -> None:
    """Deleting a session twice, or one that nobody knows, does nothing."""
    await subject.create("s")
    await subject.create("t")

    await subject.delete("s")
    await subject.delete("s")
    await subject.delete("unknown")
    await subject.delete("t", user="nobody")
    await subject.delete("t", app="nothing")

    assert [session.id for session in await subject.list()] == ["t"]


async def test_other_sessions_stay(subject: Subject) -> None:
    """A deletion leaves the user's other sessions and equal ids elsewhere as they were."""
    for session_id, user, app in (
        ("s", "ann", "app"),
        ("t", "ann", "app"),
        ("s", "bob", "app"),
        ("s", "ann", "other"),
    ):
        session = await subject.create(session_id, user=user, app=app, state={"step": 1})
        await subject.append(session, said(f"{session_id} of {user} in {app}"))

    await subject.delete("s", user="ann", app="app")

    stored = [
        await subject.find("t", user="ann", app="app"),
        await subject.find("s", user="bob", app="app"),
        await subject.find("s", user="ann", app="other"),
    ]
    assert [texts(session.events) for session in stored if session] == [
        ["t of ann in app"],
        ["s of bob in app"],
        ["s of ann in other"],
    ]
    assert [session.state for session in stored if session] == [{"step": 1}] * 3


async def test_user_and_app_state_stay(subject: Subject) -> None:
    """The state of the user and of the app outlives their last session."""
    session = await subject.create("s", state={"user:locale": "de", "app:motd": "hello"})
    await subject.append(session, said("tea", state={"user:likes": "tea"}))

    await subject.delete("s")

    assert await subject.user_state() == {"locale": "de", "likes": "tea"}
    assert (await subject.read(await subject.create("t"))).state == {
        "user:locale": "de",
        "user:likes": "tea",
        "app:motd": "hello",
    }


async def test_a_deleted_session_takes_no_event(subject: Subject) -> None:
    """An append to a session that was deleted is refused and brings nothing back."""
    session = await subject.create("s")
    await subject.append(session, said("hello"))
    await subject.delete("s")

    with pytest.raises(SessionNotFoundError):
        await subject.append(session, said("again", state={"step": 1, "user:locale": "de"}))

    assert await subject.find("s") is None
    assert await subject.user_state() == {}


async def test_an_id_can_be_used_again(subject: Subject) -> None:
    """A session created under a deleted one's id begins anew, without its events and state."""
    session = await subject.create("s", state={"step": 1})
    await subject.append(session, said("old", state={"old": True}))
    await subject.delete("s")

    created = await subject.create("s", state={"fresh": True})
    await subject.append(created, said("new"))

    stored = await subject.read(created)
    assert texts(stored.events) == ["new"]
    assert stored.state == {"fresh": True}
