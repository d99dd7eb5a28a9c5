"""Clauses about `create_session`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from google.adk.errors.already_exists_error import AlreadyExistsError

from conversation import said

if TYPE_CHECKING:
    from conformance.subject import Subject


async def test_a_given_id_is_kept(subject: Subject) -> None:
    """A session gets the id, the app and the user that it was created with."""
    created = await subject.create("s-1", user="ann", app="shop")

    assert (created.id, created.user_id, created.app_name) == (
        "s-1",
        "ann",
        subject.app("shop"),
    )
    assert await subject.find("s-1", user="ann", app="shop") is not None


async def test_an_id_is_generated(subject: Subject) -> None:
    """Without an id each session gets one of its own, under which it is found."""
    created = [await subject.create() for _ in range(5)]

    assert len({session.id for session in created}) == 5
    for session in created:
        assert (await subject.read(session)).id == session.id


async def test_a_new_session_is_stored_as_returned(subject: Subject) -> None:
    """What `create_session` returns is what a reader gets: no events, the state, the time."""
    created = await subject.create("s", state={"step": "start", "user:locale": "de"})

    stored = await subject.read(created)

    assert created.events == []
    assert created.state == {"step": "start", "user:locale": "de"}
    assert created.last_update_time > 0
    assert stored == created


async def test_a_session_without_state_is_empty(subject: Subject) -> None:
    """A session that is created without state has none."""
    assert (await subject.read(await subject.create("none"))).state == {}
    assert (await subject.read(await subject.create("empty", state={}))).state == {}


async def test_a_used_id_is_refused(subject: Subject) -> None:
    """A second session of the same app, user and id is refused; the first one stays as it is."""
    first = await subject.create("s", state={"step": 1})
    await subject.append(first, said("hello"))
    before = await subject.read(first)

    with pytest.raises(AlreadyExistsError):
        await subject.create("s", state={"step": 2})

    assert await subject.read(first) == before


async def test_a_refused_creation_writes_no_scoped_state(subject: Subject) -> None:
    """A creation that is refused leaves user and app state as they were."""
    first = await subject.create("s", state={"user:locale": "de", "app:motd": "hello"})

    with pytest.raises(AlreadyExistsError):
        await subject.create("s", state={"user:locale": "fr", "app:motd": "bye", "user:new": 1})

    assert (await subject.read(first)).state == {"user:locale": "de", "app:motd": "hello"}


async def test_an_id_belongs_to_its_app_and_user(subject: Subject) -> None:
    """The same id under another user or another app is another session."""
    await subject.create("s", user="ann", app="one", state={"owner": "ann"})
    await subject.create("s", user="bob", app="one", state={"owner": "bob"})
    await subject.create("s", user="ann", app="two", state={"owner": "ann in two"})

    owners = [
        stored.state["owner"]
        for user, app in (("ann", "one"), ("bob", "one"), ("ann", "two"))
        if (stored := await subject.find("s", user=user, app=app))
    ]
    assert owners == ["ann", "bob", "ann in two"]


async def test_initial_state_goes_to_the_scope_of_its_prefix(subject: Subject) -> None:
    """A key with `user:` reaches the user's other sessions, one with `app:` all, others none."""
    await subject.create("s", state={"step": 1, "user:locale": "de", "app:motd": "hello"})

    of_the_user = await subject.read(await subject.create("t"))
    of_another_user = await subject.read(await subject.create("t", user="bob"))

    assert of_the_user.state == {"user:locale": "de", "app:motd": "hello"}
    assert of_another_user.state == {"app:motd": "hello"}


async def test_initial_scoped_state_joins_what_is_there(subject: Subject) -> None:
    """Scoped keys given at creation replace keys of the same name and leave the others alone."""
    await subject.create("s", state={"user:a": 1, "user:b": 1, "app:a": 1, "app:b": 1})

    created = await subject.create("t", state={"user:b": 2, "user:c": 2, "app:b": 2, "app:c": 2})

    expected = {"user:a": 1, "user:b": 2, "user:c": 2, "app:a": 1, "app:b": 2, "app:c": 2}
    assert created.state == expected
    assert (await subject.read(created)).state == expected


async def test_temp_state_given_at_creation_is_not_stored(subject: Subject) -> None:
    """A `temp:` key given at creation is in no session that is read later."""
    created = await subject.create("s", state={"temp:otp": "123456", "step": 1})

    assert (await subject.read(created)).state == {"step": 1}
    assert (await subject.read(await subject.create("t"))).state == {}
    assert await subject.user_state() == {}


async def test_temp_state_given_at_creation_is_returned(subject: Subject) -> None:
    """A `temp:` key given at creation is in the session that `create_session` returns."""
    created = await subject.create("s", state={"temp:otp": "123456", "step": 1})

    assert created.state == {"temp:otp": "123456", "step": 1}


async def test_the_given_state_is_copied(subject: Subject) -> None:
    """Changing the dictionary after the creation changes nothing that is stored."""
    weeks, likes = [1, 2], ["tea"]
    created = await subject.create("s", state={"plan": {"weeks": weeks}, "user:likes": likes})

    weeks.append(3)
    likes.append("milk")

    assert (await subject.read(created)).state == {
        "plan": {"weeks": [1, 2]},
        "user:likes": ["tea"],
    }


async def test_spaces_around_an_id_belong_to_it(subject: Subject) -> None:
    """An id with spaces around it is not the id without them."""
    ids = ["s", " s", "s ", "\ts\n"]

    assert [(await subject.create(session_id)).id for session_id in ids] == ids
    assert {session.id for session in await subject.list()} == set(ids)
