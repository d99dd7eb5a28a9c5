"""Clauses about isolation: nothing of one app and user reaches another, whatever their ids are."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import pytest

from conversation import said, texts

if TYPE_CHECKING:
    from conformance.subject import Subject

IDS = {
    "special characters": ["a", "a_", "a%", "a*", "a'\"\\--;", "🧑‍🏫/../?a=b#c"],
    "likeness": ["ann", "an", "Ann", "ånn", "an n", "user_state"],
}
JOINED = [
    ("a:b", "c", "d"),
    ("a", "b:c", "d"),
    ("a", "b", "c:d"),
    ("a", "b", "c"),
    ("a", ":", "b"),
    ("a", "b", ":"),
]

Key = tuple[str, str, str]
"""App, user and session."""


async def _check_isolation(subject: Subject, keys: list[Key]) -> None:
    """Writes to every (app, user, session) and checks that each reads its own, and only that."""
    for key in keys:
        app, user, session_id = key
        state = {"own": list(key), "user:own": [app, user]}
        session = await subject.create(session_id, user=user, app=app, state=state)
        await subject.append(session, said(repr(key), state={"app:own": app}))
    for key in keys:
        app, user, session_id = key
        stored = await subject.find(session_id, user=user, app=app)
        assert stored is not None
        assert (stored.app_name, stored.user_id, stored.id) == (subject.app(app), user, session_id)
        assert texts(stored.events) == [repr(key)]
        assert stored.state == {"own": list(key), "user:own": [app, user], "app:own": app}
    for owner in {key[:2] for key in keys}:
        app, user = owner
        assert await subject.user_state(user=user, app=app) == {"own": [app, user]}
        assert await _listed(subject, app, user) == {key for key in keys if key[:2] == owner}
    for app in {key[0] for key in keys}:
        assert await _listed(subject, app, None) == {key for key in keys if key[0] == app}


async def _listed(subject: Subject, app: str, user: str | None) -> set[Key]:
    sessions = await subject.list(user=user, app=app)
    return {(app, session.user_id, session.id) for session in sessions}


@pytest.mark.parametrize("ids", IDS.values(), ids=IDS)
async def test_ids_of_any_characters_never_mix(subject: Subject, ids: list[str]) -> None:
    """Apps, users and sessions whose ids differ in any character share nothing."""
    one = ids[0]
    keys = chain.from_iterable([(i, one, one), (one, i, one), (one, one, i)] for i in ids)
    await _check_isolation(subject, list(dict.fromkeys(keys)))


@pytest.mark.parametrize("ids", IDS.values(), ids=IDS)
async def test_an_id_that_only_resembles_another_finds_nothing(
    subject: Subject, ids: list[str]
) -> None:
    """An app, a user or a session that was never there is not taken for one that resembles it."""
    one = ids[0]
    session = await subject.create(one, user=one, app=one, state={"user:own": 1, "app:own": 1})
    before = await subject.read(session)

    for other in ids[1:]:
        for app, user, session_id in ((other, one, one), (one, other, one), (one, one, other)):
            assert await subject.find(session_id, user=user, app=app) is None
            await subject.delete(session_id, user=user, app=app)
        assert await subject.list(user=other, app=one) == []
        assert await subject.list(user=None, app=other) == []
        assert await subject.user_state(user=other, app=one) == {}
        assert await subject.user_state(user=one, app=other) == {}

    assert await subject.read(session) == before


async def test_a_colon_in_an_id_is_no_separator(subject: Subject) -> None:
    """Ids that read the same when they are joined by colons are still different ones."""
    await _check_isolation(subject, JOINED)


async def test_a_deletion_by_a_stranger_deletes_nothing(subject: Subject) -> None:
    """A session is deleted by its own app and user only."""
    session = await subject.create("s", user="ann", app="app")
    await subject.append(session, said("hello"))
    before = await subject.read(session)

    for user, app in (("bob", "app"), ("ann", "other"), ("an_", "app"), ("%", "app")):
        await subject.delete("s", user=user, app=app)

    assert await subject.read(session) == before


async def test_a_stranger_appends_nothing(subject: Subject) -> None:
    """A session object under a stranger's name reaches nothing of the session's owner."""
    session = await subject.create("s", user="ann", app="app", state={"user:locale": "de"})
    before = await subject.read(session)

    for user, app in (("bob", "app"), ("ann", "other"), ("an_", "app")):
        stolen = session.model_copy(update={"user_id": user, "app_name": subject.app(app)})
        with pytest.raises(ValueError, match="not found"):
            await subject.append(stolen, said("mine now", state={"user:locale": "xx"}))

    assert await subject.read(session) == before
    assert await subject.list(user="bob") == []


async def test_a_stranger_lists_and_reads_nothing(subject: Subject) -> None:
    """Under another user or app there is no session, no event, no user state and no app state."""
    session = await subject.create("s", state={"step": 1, "user:locale": "de", "app:motd": "x"})
    await subject.append(session, said("secret"))

    assert await subject.find("s", user="bob") is None
    assert await subject.find("s", app="other") is None
    assert await subject.list(user="bob") == []
    assert await subject.list(user=None, app="other") == []
    assert await subject.user_state(user="bob") == {}
    assert await subject.user_state(app="other") == {}
    assert (await subject.create("mine", app="other")).state == {}
