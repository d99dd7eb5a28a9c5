"""Clauses about `list_sessions`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conversation import said

if TYPE_CHECKING:
    from google.adk.sessions.session import Session

    from conformance.subject import Subject

NOON = 1_900_000_000.0


def _keys(sessions: list[Session]) -> set[tuple[str, str]]:
    return {(session.user_id, session.id) for session in sessions}


async def test_a_user_s_sessions_are_listed(subject: Subject) -> None:
    """The list of a user holds each of the user's sessions of that app, and no other."""
    for user, session_id in (("ann", "s"), ("ann", "t"), ("bob", "s"), ("bob", "u")):
        await subject.create(session_id, user=user)
    await subject.create("elsewhere", app="other")

    sessions = await subject.list(user="ann")

    assert _keys(sessions) == {("ann", "s"), ("ann", "t")}
    assert len(sessions) == 2
    assert {session.app_name for session in sessions} == {subject.app("app")}


async def test_all_users_sessions_are_listed(subject: Subject) -> None:
    """Without a user the list holds the sessions of all users of that app."""
    for user, session_id in (("ann", "s"), ("ann", "t"), ("bob", "s")):
        await subject.create(session_id, user=user)
    await subject.create("elsewhere", app="other")

    assert _keys(await subject.list(user=None)) == {("ann", "s"), ("ann", "t"), ("bob", "s")}


async def test_a_list_of_nothing_is_empty(subject: Subject) -> None:
    """An app or a user that nobody knows has no sessions, which is no error."""
    await subject.create("s")

    assert await subject.list(user="bob") == []
    assert await subject.list(app="other") == []
    assert await subject.list(user=None, app="other") == []


async def test_the_oldest_update_comes_first(subject: Subject) -> None:
    """Sessions are listed by their last update; an append moves one to the end."""
    sessions = [await subject.create(session_id) for session_id in ("a", "b", "c")]
    assert [session.id for session in await subject.list()] == ["a", "b", "c"]

    await subject.append(sessions[0], said("hello", at=NOON))
    assert [session.id for session in await subject.list()] == ["b", "c", "a"]

    await subject.append(sessions[1], said("hello", at=NOON + 1))
    assert [session.id for session in await subject.list()] == ["c", "a", "b"]


async def test_the_oldest_update_comes_first_over_all_users(subject: Subject) -> None:
    """The list of all users is one list, by last update, whoever the sessions belong to."""
    first = await subject.create("a", user="ann")
    await subject.create("b", user="bob")
    await subject.create("c", user="ann")
    await subject.append(first, said("hello", at=NOON))

    listed = [(session.user_id, session.id) for session in await subject.list(user=None)]
    assert listed == [("bob", "b"), ("ann", "c"), ("ann", "a")]


async def test_a_list_holds_no_events(subject: Subject) -> None:
    """A listed session has no events, and the time of its last one."""
    session = await subject.create("s")
    await subject.append(session, said("hello", at=NOON))

    (listed,) = await subject.list()

    assert listed.events == []
    assert listed.last_update_time == session.last_update_time


async def test_a_listed_session_has_its_state(subject: Subject) -> None:
    """A listed session has its state, with the app's and its own user's merged in."""
    await subject.create("s", state={"step": 1, "user:locale": "de", "app:motd": "hello"})
    await subject.create("t", user="bob", state={"step": 2, "user:locale": "fr"})
    await subject.create("u", user="eve")

    states = {session.id: session.state for session in await subject.list(user=None)}

    assert states == {
        "s": {"step": 1, "user:locale": "de", "app:motd": "hello"},
        "t": {"step": 2, "user:locale": "fr", "app:motd": "hello"},
        "u": {"app:motd": "hello"},
    }
    assert [session.state for session in await subject.list(user="ann")] == [states["s"]]
