"""`sessions.state`: reading, writing and removing state from outside a turn."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import pytest
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.sessions.database_session_service import DatabaseSessionService
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google.adk.sessions.sqlite_session_service import SqliteSessionService

from adk_memory_ext import Extend, Increment, Maximum, Remove, StatePolicy, Union
from adk_memory_ext.errors import CapabilityError, InvalidIdError, StateRejectedError
from adk_memory_ext.service import DurableSessionService
from adk_memory_ext.sql_sessions import SqlSessionService
from backends import OURS, OURS_MARIADB
from conversation import replay, said
from tables import contents, file_url, run

if TYPE_CHECKING:
    from pathlib import Path

    from google.adk.sessions.session import Session

    from backends import Backend, Place

APP: Final[dict[str, Any]] = {"app_name": "app"}
OWNER: Final[dict[str, Any]] = APP | {"user_id": "ann"}
KEY: Final[dict[str, Any]] = OWNER | {"session_id": "session"}


@pytest.fixture(params=[*OURS, OURS_MARIADB], ids=lambda backend: backend.name)
def backend(request: pytest.FixtureRequest) -> Backend:
    """Each database that state is kept in."""
    row: Backend = request.param
    return row


async def stored(sessions: DurableSessionService, key: dict[str, Any] = KEY) -> Session:
    """Returns a session that must be there."""
    session = await sessions.get_session(**key)
    assert session is not None
    return session


async def test_state_of_a_user_and_an_app_is_written_without_a_session(
    sessions: DurableSessionService,
) -> None:
    """Keys go in and come out without their prefix; the first session of the user has them."""
    assert await sessions.state.update_user({"locale": "pt", "n": 1}, **OWNER) == {
        "locale": "pt",
        "n": 1,
    }
    assert await sessions.state.update_app({"motd": "hi"}, **APP) == {"motd": "hi"}
    assert await sessions.get_user_state(**OWNER) == {"locale": "pt", "n": 1}
    assert await sessions.get_user_state(app_name="app", user_id="bob") == {}
    assert (await sessions.list_sessions(**APP)).sessions == []
    session = await sessions.create_session(**KEY)
    assert session.state == {"user:locale": "pt", "user:n": 1, "app:motd": "hi"}
    assert session.events == []


async def test_update_changes_all_scopes_at_once_and_says_what_they_hold(
    sessions: DurableSessionService,
) -> None:
    """Values and changes side by side; removed keys are absent from what is returned."""
    await sessions.create_session(
        **KEY, state={"n": 1, "user:list": [1], "app:max": 5, "gone": 1, "user:gone": 1}
    )
    outcome = await sessions.state.update(
        {
            "n": Increment(2),
            "user:list": Extend([2]),
            "user:set": Union(["a", "a"]),
            "app:max": Maximum(3),
            "gone": Remove(),
            "user:gone": Remove(),
            "plain": {"a": (1,)},
        },
        **KEY,
    )
    expected = {
        "n": 3,
        "user:list": [1, 2],
        "user:set": ["a"],
        "app:max": 5,
        "plain": {"a": [1]},
    }
    assert outcome == expected
    assert (await stored(sessions)).state == expected


async def test_a_change_of_a_session_is_an_event_of_it(sessions: DurableSessionService) -> None:
    """The log replays to the state, removal included, and the event has no content."""
    initial = {"n": 1, "gone": 1, "kept": 1}
    session = await sessions.create_session(**KEY, state=initial)
    await sessions.append_event(session, said("hello", state={"n": 5, "later": 1}))
    await sessions.state.update({"n": Increment(), "user:x": 1}, **KEY)
    await sessions.state.delete(["gone", "later", "user:x", "never"], **KEY)
    await sessions.state.update({"later": 2}, **KEY)

    read = await stored(sessions)
    events = read.events[1:]
    assert all(event.content is None and event.author == "user" for event in events)
    assert [event.actions.state_delta for event in events] == [
        {"n": 6, "user:x": 1},
        {"gone": None, "later": None, "user:x": None, "never": None},
        {"later": 2},
    ]
    assert read.state == {"n": 6, "kept": 1, "later": 2}
    assert replay(read.events, initial) == read.state
    # A turn that loaded the session before goes on.
    await sessions.append_event(session, said("and now"))


async def test_without_a_session_the_log_is_left_alone(sessions: DurableSessionService) -> None:
    """Changes of a user's or an app's state are no events, and make no running turn stale."""
    session = await sessions.create_session(**KEY)
    await sessions.state.update({"user:a": 1, "app:b": 2}, **OWNER)
    await sessions.state.increment("app:b", **APP)
    await sessions.append_event(session, said("hello"))
    read = await stored(sessions)
    assert len(read.events) == 1
    assert read.state == {"user:a": 1, "app:b": 3}


async def test_removed_keys_are_gone_for_good(sessions: DurableSessionService) -> None:
    """From every scope, in every session of the user, after every reload and the next append."""
    initial = {f"{scope}{key}": 1 for scope in ("", "user:", "app:") for key in ("gone", "kept")}
    session = await sessions.create_session(**KEY, state=initial)
    other = await sessions.create_session(**OWNER, session_id="other")
    await sessions.state.delete(["gone", "user:gone", "app:gone"], **KEY)
    kept = {key: 1 for key in initial if key.endswith("kept")}
    assert (await stored(sessions)).state == kept
    assert (await stored(sessions, {**KEY, "session_id": "other"})).state.keys() == {
        "user:kept",
        "app:kept",
    }
    # This copy still has them; what it does not write does not come back.
    assert session.state == initial
    await sessions.append_event(session, said("next", state={"new": 1}))
    await sessions.append_event(other, said("next", state={"user:new": 1}))
    assert (await stored(sessions)).state == kept | {"new": 1, "user:new": 1}
    assert await sessions.get_user_state(**OWNER) == {"kept": 1, "new": 1}
    for entry in (await sessions.list_sessions(**APP)).sessions:
        assert not [key for key in entry.state if key.endswith("gone")]

    await sessions.state.delete(["user:kept"], **OWNER)
    await sessions.state.delete(["app:kept", "app:never"], **APP)
    assert (await stored(sessions)).state == {"kept": 1, "new": 1, "user:new": 1}


async def test_plain_adk_sees_no_removed_key(tmp_path: Path) -> None:
    """A database where keys were removed reads the same in ADK's own service, which goes on."""
    url = file_url(tmp_path)
    async with DurableSessionService.from_url(url) as sessions:
        await sessions.create_session(**KEY, state={"gone": 1, "user:gone": 1, "app:kept": 1})
        await sessions.state.delete(["gone"], **KEY)
        await sessions.state.update_user({"gone": Remove()}, **OWNER)
    async with DatabaseSessionService(url) as plain:
        session = await plain.get_session(**KEY)
        assert session is not None
        assert session.state == {"app:kept": 1}
        await plain.append_event(session, said("next", state={"user:new": 1}))
    async with DurableSessionService.from_url(url) as sessions:
        assert (await stored(sessions)).state == {"app:kept": 1, "user:new": 1}


async def test_increment_returns_the_sum(sessions: DurableSessionService) -> None:
    """A missing key counts as 0; with a session it is an event of it."""
    assert await sessions.state.increment("user:n", **OWNER) == 1
    assert await sessions.state.increment("user:n", 2.5, **OWNER) == 3.5
    assert await sessions.state.increment("app:n", -1, **APP) == -1
    await sessions.create_session(**KEY)
    assert await sessions.state.increment("n", 5, **KEY) == 5
    assert await sessions.state.increment("user:n", **KEY) == 4.5
    assert (await stored(sessions)).state == {"n": 5, "user:n": 4.5, "app:n": -1}


async def test_an_empty_change_does_nothing(sessions: DurableSessionService) -> None:
    """No event, no row."""
    await sessions.create_session(**KEY)
    assert await sessions.state.update({}, **KEY) == {}
    await sessions.state.delete([], **KEY)
    assert await sessions.state.update_user({}, app_name="app", user_id="bob") == {}
    assert (await stored(sessions)).events == []


REFUSED: Final[list[tuple[Any, dict[str, Any], type[Exception], str]]] = [
    ({"n": 1}, OWNER, StateRejectedError, "'n' needs a session_id"),
    ({"app:n": 1, "n": 1}, APP, StateRejectedError, "'n' needs a session_id"),
    ({"app:n": 1, "user:n": 1}, APP, StateRejectedError, "'user:n' needs a user_id"),
    ({"temp:n": 1}, KEY, StateRejectedError, "'temp:n' is never stored"),
    ({"temp:n": 1}, OWNER, StateRejectedError, "'temp:n' is never stored"),
    ({"n": 1}, APP | {"session_id": "session"}, InvalidIdError, "user id is empty"),
    ({"n": 1}, KEY | {"session_id": "other"}, SessionNotFoundError, "other"),
    ({"n": 1}, KEY | {"user_id": "bob"}, SessionNotFoundError, "session"),
    ({"app:n": 1}, {"app_name": ""}, InvalidIdError, "app name is empty"),
    ({"app:name": Increment()}, APP, StateRejectedError, "'app:name' is a str and cannot be"),
    ({"user:name": Extend([1])}, OWNER, StateRejectedError, "'user:name' is a str and no"),
    ({"name": Maximum(1)}, KEY, StateRejectedError, "'name' is a str and cannot be compared"),
    ({"n": 1, 1: 2}, KEY, StateRejectedError, "key of the type int"),
    ({"app:n": 1, None: 2}, APP, StateRejectedError, "key of the type NoneType"),
]


async def test_what_cannot_be_changed_is_refused_and_nothing_is_written(
    sessions: DurableSessionService,
) -> None:
    """The error says which key and why, or which session; no scope is touched."""
    name = {"name": "Ann", "user:name": "Ann", "app:name": "Ann"}
    session = await sessions.create_session(**KEY, state=name)
    for delta, key, error, message in REFUSED:
        with pytest.raises(error, match=message) as caught:
            await sessions.state.update({"app:first": 1, **delta}, **key)
        assert "Ann" not in str(caught.value)
    assert await stored(sessions) == session


@pytest.mark.parametrize("key", ["user:locale", "app:locale", "temp:x"])
async def test_a_prefix_where_none_is_meant_is_refused(key: str) -> None:
    """`update_user({"user:x": …})` would make a key `user:user:x`."""
    async with DurableSessionService.from_url() as sessions:
        with pytest.raises(StateRejectedError, match="leave the prefix out"):
            await sessions.state.update_user({key: 1}, **OWNER)
        with pytest.raises(StateRejectedError, match="leave the prefix out"):
            await sessions.state.update_app({key: 1}, **APP)
        assert await sessions.get_user_state(**OWNER) == {}


async def test_one_key_where_a_list_of_keys_is_meant_is_refused() -> None:
    """`delete("abc")` would delete the keys a, b and c."""
    async with DurableSessionService.from_url() as sessions:
        await sessions.create_session(**KEY, state={"a": 1})
        with pytest.raises(TypeError, match=r"\['abc'\]"):
            await sessions.state.delete("abc", **KEY)
        assert (await stored(sessions)).state == {"a": 1}


async def test_changes_at_once_lose_nothing(sessions: DurableSessionService) -> None:
    """Increments, unions and single keys from many callers are all there."""
    await sessions.create_session(**KEY)

    async def change(number: int) -> None:
        await sessions.state.increment("user:n", **OWNER)
        await sessions.state.update_app({"seen": Union([number % 5]), f"k{number}": number}, **APP)
        await sessions.state.update({"n": Increment(), f"k{number}": number}, **KEY)

    await asyncio.gather(*map(change, range(16)))
    read = await stored(sessions)
    assert read.state.pop("app:seen").sort() is None
    keys = {f"{scope}k{number}": number for scope in ("", "app:") for number in range(16)}
    assert read.state == {"n": 16, "user:n": 16} | keys
    assert replay(read.events).items() <= read.state.items()
    assert len(read.events) == 16


@pytest.mark.parametrize("policy", [None, StatePolicy()], ids=["plain", "policed"])
@pytest.mark.parametrize("storage", ["sqlite", "memory", "database"])
async def test_over_a_service_that_cannot_it_says_which(
    storage: str, policy: StatePolicy | None, tmp_path: Path
) -> None:
    """ADK's own services cannot change state atomically; the error names the service."""
    wrapped: Any
    match storage:
        case "memory":
            wrapped = InMemorySessionService()
        case "sqlite":
            wrapped = SqliteSessionService(file_url(tmp_path))
        case _:
            wrapped = DatabaseSessionService(file_url(tmp_path))
    sessions = DurableSessionService(wrapped, policy=policy)
    try:
        await sessions.create_session(**KEY, state={"user:n": 1})
        for change in (
            sessions.state.update({"a": 1}, **KEY),
            sessions.state.update_user({"a": 1}, **OWNER),
            sessions.state.update_app({"a": 1}, **APP),
            sessions.state.delete(["user:n"], **OWNER),
            sessions.state.increment("user:n", **OWNER),
        ):
            with pytest.raises(CapabilityError, match=f"{type(wrapped).__name__} cannot change"):
                await change
        assert (await stored(sessions)).state == {"user:n": 1}
    finally:
        if storage != "memory":
            await wrapped.close()


async def test_our_service_below_another_wrapper_can() -> None:
    """It is the ability that counts, not how the service was opened."""
    wrapped = SqlSessionService.from_url("")
    async with DurableSessionService(wrapped) as sessions:
        assert await sessions.state.increment("app:n", **APP) == 1
    await wrapped.close()


@pytest.mark.parametrize("backend", [OURS[0], OURS[2], OURS_MARIADB], indirect=True)
@pytest.mark.parametrize("table", ["user_states", "app_states"])
async def test_a_missing_row_of_state_is_an_empty_state(
    table: str, place: Place, sessions: DurableSessionService
) -> None:
    """A row that somebody deleted bricks no session (google/adk-python#6823): all goes on."""
    session = await sessions.create_session(**KEY, state={"user:a": 1, "app:a": 1, "own": 1})
    await sessions.append_event(session, said("first"))
    run(place.url, f"DELETE FROM {table}")  # noqa: S608  # of the two above

    left = {"own": 1, "user:a": 1, "app:a": 1}
    del left["user:a" if table == "user_states" else "app:a"]
    assert (await stored(sessions)).state == left
    assert (await sessions.list_sessions(**APP)).sessions[0].state == left
    user_state = {} if table == "user_states" else {"a": 1}
    assert await sessions.get_user_state(**OWNER) == user_state
    await sessions.append_event(session, said("no delta"))
    await sessions.append_event(session, said("own delta", state={"own": 2}))
    await sessions.state.delete(["user:never", "app:never"], **OWNER)
    await sessions.append_event(session, said("all", state={"user:b": 1, "app:b": 1}))
    assert (await stored(sessions)).state == left | {"own": 2, "user:b": 1, "app:b": 1}

    run(place.url, f"DELETE FROM {table}")  # noqa: S608  # of the two above
    await sessions.create_session(**OWNER, session_id="other")
    assert len(contents(place.url, prefix=table)[table]) == 1
    async with DatabaseSessionService(
        place.url.replace("mariadb+", "mysql+")
    ) as plain:  # which fails where the row is missing
        other = await plain.get_session(**KEY)
        assert other is not None
        await plain.append_event(other, said("plain", state={"user:c": 1}))
