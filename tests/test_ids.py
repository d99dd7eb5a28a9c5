"""Ids: any Unicode text that fits ADK's columns names its own data, and nothing else is let in."""

from __future__ import annotations

import asyncio
import unicodedata
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pytest
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.sessions.database_session_service import DatabaseSessionService
from hypothesis import given, settings
from hypothesis import strategies as st

from adk_memory_ext import Increment
from adk_memory_ext.errors import InvalidIdError
from adk_memory_ext.service import DurableSessionService
from backends import OURS, OURS_MARIADB, count
from conversation import said, texts
from tables import contents
from values import PLANES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from google.adk.sessions.session import Session

    from backends import Backend, Place

KEY: Final[dict[str, Any]] = {"app_name": "app", "user_id": "ann", "session_id": "session"}

NASTY: Final = (
    *("a", "A", "\u00e1", "a\u0301", "\u00e5", "A\u030a", "\u212b", "\uff41"),  # the kinds of an a
    *("a ", " a", "a  ", "a\t", "a\n", "a\u00a0", "a\u200b", "\ufeffa"),  # spaces
    *("ab", "a%", "a_", "%", "_", "a*", "a?", "a[b]"),  # prefixes and patterns
    *("a:b", "a:", ":a", "a/b", "a.b", "a|b", "a,b", "user:a", "app:a"),  # separators
    *("a'", 'a"', "a`", "a\\", "a\\\\", "a\\'", "a--", "a;", "a' OR '1'='1", "%s", ":a", "{a}"),
    *("1", "01", "1.0", "1e0", "NULL", "null", "None", "-", "\x01", "\x7f"),
    *("\u00df", "ss", "SS", "\u1e9e", "i", "I", "\u0130", "\u0131", "\u03c3", "\u03c2"),  # case
    *("\u2460", "\u2160", "\ufb01", "fi", "\u1100\u1161", "\uac00"),  # normal forms
    *("\U0001f600", "\U0001f601", "\U0010ffff", "\U0001f468\u200d\U0001f469", "\ufffd"),
    *("x" * 128, "x" * 127 + "X", "x" * 127, "\u6f22" * 128, "\U0001f600" * 128, PLANES),
)
"""Ids that something somewhere takes for another one of them."""

BAD_IDS: Final[dict[str, Any]] = {
    "an empty id": "",
    "a long id": "x" * 129,
    "a long id of few bytes": "\u6f22" * 129,
    "a NUL": "a\0b",
    "a lone surrogate": "a\ud800",
    "a number": 5,
    "bytes": b"ann",
}


@pytest.fixture(params=[*OURS, OURS_MARIADB], ids=lambda backend: backend.name)
def backend(request: pytest.FixtureRequest) -> Backend:
    """Each database that compares ids."""
    row: Backend = request.param
    return row


async def create(
    sessions: DurableSessionService, app: str, user: str, session: str, mark: str
) -> Session:
    """Creates a session whose state says in each scope whose it is, and says it in an event."""
    created = await sessions.create_session(
        app_name=app,
        user_id=user,
        session_id=session,
        state={"mark": mark, f"user:{user}": mark, f"app:{app}": mark},
    )
    await sessions.append_event(created, said(mark))
    return created


# --- What is let in


async def test_ids_that_look_alike_never_mix(sessions: DurableSessionService) -> None:
    """Users of one app, and apps: each has its own state, events and lists."""
    names = set(NASTY)
    for nasty in names:
        await create(sessions, "app", nasty, nasty, nasty)
        await create(sessions, nasty, "ann", "session", nasty)
    for nasty in names:
        read = await sessions.get_session(app_name="app", user_id=nasty, session_id=nasty)
        assert read is not None
        assert (read.user_id, read.id, texts(read.events)) == (nasty, nasty, [nasty])
        assert read.state["mark"] == read.state[f"user:{nasty}"] == nasty
        assert {key for key in read.state if key.startswith("user:")} == {f"user:{nasty}"}
        assert await sessions.get_user_state(app_name="app", user_id=nasty) == {nasty: nasty}
        listed = await sessions.list_sessions(app_name="app", user_id=nasty)
        assert [session.id for session in listed.sessions] == [nasty]
        page = await sessions.list_sessions_page("app", nasty)
        assert [line.session_id for line in page.sessions] == [nasty]

        of_app = (await sessions.list_sessions(app_name=nasty)).sessions
        expected = {"mark": nasty, "user:ann": nasty, f"app:{nasty}": nasty}
        assert [session.state for session in of_app] == [expected]
    everyone = await sessions.list_sessions(app_name="app")
    assert {session.user_id for session in everyone.sessions} == names


async def test_deleting_one_deletes_no_other(sessions: DurableSessionService) -> None:
    """A session goes alone, though others look like it; a title is given to one alone."""
    for nasty in dict.fromkeys(NASTY):
        await create(sessions, "app", "ann", nasty, nasty)
    left = set(NASTY)
    for nasty in NASTY[:12]:
        await sessions.set_session_title(
            app_name="app", user_id="ann", session_id=nasty, title=f"title of {nasty}"
        )
        page = await sessions.list_sessions_page("app", limit=200)
        assert {line.session_id for line in page.sessions} == left
        titles = {line.session_id: line.title for line in page.sessions if line.title}
        assert titles == {nasty: f"title of {nasty}"}
        await sessions.delete_session(app_name="app", user_id="ann", session_id=nasty)
        left.discard(nasty)
    for nasty in NASTY:
        read = await sessions.get_session(app_name="app", user_id="ann", session_id=nasty)
        assert (read is not None) == (nasty in left)
        assert read is None or texts(read.events) == [nasty]


async def test_event_ids_that_look_alike_are_different_events(
    sessions: DurableSessionService,
) -> None:
    """Each is stored once; a second delivery is known by its id, and another one is an error."""
    session = await sessions.create_session(**KEY)
    events = []
    for nasty in dict.fromkeys(NASTY):
        event = said(nasty)
        event.id = nasty
        event.invocation_id = nasty * 2
        await sessions.append_event(session, event)
        events.append(event.model_copy(deep=True))
    for event in events[:10]:
        await sessions.append_event(session, event)
        other = event.model_copy(update={"author": "somebody else"})
        with pytest.raises(AlreadyExistsError):
            await sessions.append_event(session, other)
    read = await sessions.get_session(**KEY)
    assert read == session
    assert [event.id for event in session.events] == list(dict.fromkeys(NASTY))


IDS: Final = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=128
)


def alike(name: str) -> set[str]:
    """Returns ids that somebody might take for `name`, and `name` itself."""
    others = {
        *(name.upper(), name.lower(), name.swapcase(), name.strip(), name + " ", " " + name),
        *(name[:-1], name[1:], name + "%", "_" * len(name), name[::-1], name + name[-1]),
        *(unicodedata.normalize(form, name) for form in ("NFC", "NFD", "NFKC", "NFKD")),
    }
    return {name} | {other for other in others if 0 < len(other) <= 128}


def test_any_text_is_an_id_of_its_own(place: Place) -> None:
    """Whatever Unicode an id is made of, what looks like it is somebody else's."""

    async def check(sessions: DurableSessionService, number: int, name: str) -> None:
        app = f"app-{number}"
        names = alike(name)
        for other in names:
            await create(sessions, app, other, other, other)
        for other in names:
            read = await sessions.get_session(app_name=app, user_id=other, session_id=other)
            assert read is not None
            assert read.state["mark"] == other
            assert await sessions.get_user_state(app_name=app, user_id=other) == {other: other}
            listed = await sessions.list_sessions(app_name=app, user_id=other)
            assert [session.id for session in listed.sessions] == [other]
        page = await sessions.list_sessions_page(app, limit=100)
        assert {line.user_id for line in page.sessions} == names

    with asyncio.Runner() as runner:
        sessions = DurableSessionService.from_url(place.url)
        numbers = iter(range(10**9))

        @settings(max_examples=count(8, 300))
        @given(name=IDS)
        def property_(name: str) -> None:
            runner.run(check(sessions, next(numbers), name))

        try:
            property_()
        finally:
            runner.run(sessions.close())


# --- What is not


def _calls(
    sessions: DurableSessionService, session: Session, bad: Any
) -> dict[str, Callable[[], Coroutine[Any, Any, Any]]]:
    """Returns every way to give an id, each with `bad` in place of one of them."""
    state = sessions.state
    event = said("x", state={"x": 1, "user:x": 1})
    calls: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {}
    for part in KEY:
        key = {**KEY, part: bad}
        field = "id" if part == "session_id" else part
        calls |= {
            f"create_session {part}": partial(sessions.create_session, **key, state={"user:x": 1}),
            f"get_session {part}": partial(sessions.get_session, **key),
            f"get_or_create_session {part}": partial(sessions.get_or_create_session, **key),
            f"delete_session {part}": partial(sessions.delete_session, **key),
            f"set_session_title {part}": partial(sessions.set_session_title, **key, title="x"),
            f"update {part}": partial(state.update, {"user:x": 1}, **key),
            f"delete {part}": partial(state.delete, ["x", "user:x"], **key),
            f"increment {part}": partial(state.increment, "x", **key),
            f"append_event {part}": partial(
                sessions.append_event, session.model_copy(update={field: bad}), event
            ),
        }
    for part in ("app_name", "user_id"):
        owner = {"app_name": "app", "user_id": "ann", part: bad}
        calls |= {
            f"list_sessions {part}": partial(sessions.list_sessions, **owner),
            f"list_sessions_page {part}": partial(sessions.list_sessions_page, **owner),
            f"get_user_state {part}": partial(sessions.get_user_state, **owner),
            f"update_user {part}": partial(state.update_user, {"x": 1}, **owner),
        }
    return calls | {
        "list_sessions of all": partial(sessions.list_sessions, app_name=bad),
        "list_sessions_page of all": partial(sessions.list_sessions_page, bad),
        "update_app": partial(state.update_app, {"x": 1}, app_name=bad),
        "append_event id": partial(
            sessions.append_event, session, event.model_copy(update={"id": bad})
        ),
    }


async def test_a_bad_id_is_refused_by_every_method_and_nothing_is_written(
    sessions: DurableSessionService,
) -> None:
    """Empty, longer than ADK's columns or no text: an error of ours before the database sees it."""
    session = await create(sessions, "app", "ann", "session", "first")
    before = session.model_copy(deep=True)
    for fault, bad in BAD_IDS.items():
        for name, call in _calls(sessions, session, bad).items():
            try:
                await call()
            except InvalidIdError as error:
                assert "nothing was written" in str(error)  # noqa: PT017  # the call is named below
            else:
                pytest.fail(f"{name} took {fault}")
    assert session == before
    assert await sessions.get_session(**KEY) == before
    everything = await sessions.list_sessions(app_name="app")
    assert [listed.id for listed in everything.sessions] == ["session"]


async def test_an_invocation_id_and_a_title_have_limits_of_their_own(
    sessions: DurableSessionService,
) -> None:
    """256 characters, as in ADK's column; an event without an invocation is let in."""
    session = await sessions.create_session(**KEY)
    for bad in ("i" * 257, "i\0", "\udfff"):
        with pytest.raises(InvalidIdError, match="invocation id"):
            await sessions.append_event(session, said("x", invocation=bad))
        with pytest.raises(InvalidIdError, match="title"):
            await sessions.set_session_title(**KEY, title=bad)
    with pytest.raises(InvalidIdError, match="title is empty"):
        await sessions.set_session_title(**KEY, title="")
    for good in ("", "i" * 256, "\U0001f600" * 256):
        await sessions.append_event(session, said("x", invocation=good))
    assert await sessions.get_session(**KEY) == session
    await sessions.set_session_title(**KEY, title="\U0001f600" * 256)


# --- Tables that ADK made on MariaDB, with the database's own collation


@pytest.fixture
def adk_url(mariadb_url: str) -> str:
    """The URL of an empty MariaDB database, by the name under which ADK works on it."""
    return mariadb_url.replace("mariadb+", "mysql+")


@asynccontextmanager
async def tables_of_adk(url: str) -> AsyncIterator[DurableSessionService]:
    """Opens our service over tables in which ADK has stored a session of `Ann`."""
    async with DatabaseSessionService(url) as plain:
        session = await plain.create_session(
            app_name="App",
            user_id="Ann",
            session_id="Session",
            state={"mark": 1, "user:mark": 1, "app:mark": 1},
        )
        await plain.append_event(session, said("hello"))
    async with DurableSessionService.from_url(url) as sessions:
        yield sessions


ALIKE: Final = (
    ("app", "Ann", "Session"),
    ("App", "ann", "Session"),
    ("App", "Ann", "session"),
    ("App", "Ann ", "Session"),
    ("App", "\u00c0nn", "Session"),
    ("App", "Ann", "Session "),
)


async def test_a_collation_that_takes_two_ids_for_one_mixes_nothing(adk_url: str) -> None:
    """What another spelling asks for is not there, or is refused; nothing of Ann's is touched."""
    async with tables_of_adk(adk_url) as sessions:
        ann = await sessions.get_session(app_name="App", user_id="Ann", session_id="Session")
        assert ann is not None
        await sessions.list_sessions_page("App")
        rows = contents(adk_url)
        for app, user, session in ALIKE:
            key: dict[str, Any] = {"app_name": app, "user_id": user, "session_id": session}
            owner = {"app_name": app, "user_id": user}
            assert await sessions.get_session(**key) is None
            if (app, user) != ("App", "Ann"):
                assert await sessions.get_user_state(**owner) == {}
                assert (await sessions.list_sessions(**owner)).sessions == []
                assert (await sessions.list_sessions_page(app, user)).sessions == ()
                with pytest.raises(InvalidIdError, match="collation"):
                    await sessions.state.update_user({"mark": Increment()}, **owner)
            with pytest.raises(SessionNotFoundError):
                await sessions.set_session_title(**key, title="x")
            with pytest.raises(SessionNotFoundError):
                await sessions.state.update({"mark": 2}, **key)
            with pytest.raises(SessionNotFoundError):
                await sessions.append_event(
                    ann.model_copy(update={"app_name": app, "user_id": user, "id": session}),
                    said("not mine"),
                )
            with pytest.raises(InvalidIdError, match="collation"):
                await sessions.create_session(**key, state={"user:mark": 2})
            await sessions.delete_session(**key)
        with pytest.raises(InvalidIdError, match="collation"):
            await sessions.state.update_app({"mark": 2}, app_name="APP")
        assert contents(adk_url) == rows
        await sessions.append_event(ann, said("and on", state={"user:mark": 2}))


async def test_event_ids_that_such_a_collation_takes_for_one_are_refused(adk_url: str) -> None:
    """The second one is another event under a used id."""
    async with tables_of_adk(adk_url) as sessions:
        key: dict[str, Any] = {"app_name": "App", "user_id": "Ann", "session_id": "Session"}
        session = await sessions.get_session(**key)
        assert session is not None
        first = said("x").model_copy(update={"id": "E1"})
        await sessions.append_event(session, first)
        with pytest.raises(AlreadyExistsError):
            await sessions.append_event(session, said("x").model_copy(update={"id": "e1"}))
        await sessions.append_event(session, first.model_copy(deep=True))
        assert await sessions.get_session(**key) == session


async def test_tables_that_we_make_compare_exactly_and_plain_adk_uses_them(adk_url: str) -> None:
    """ADK finds each session under its own id only, and may make those that look alike."""
    async with DurableSessionService.from_url(adk_url) as sessions:
        await create(sessions, "app", "ann", "session", "ours")
    async with DatabaseSessionService(adk_url) as plain:
        for app, user, session in (("App", "ann", "session"), ("app", "Ann", "session ")):
            key: dict[str, Any] = {"app_name": app, "user_id": user, "session_id": session}
            assert await plain.get_session(**key) is None
            made = await plain.create_session(**key, state={"user:mark": app})
            await plain.append_event(made, said("theirs"))
        read = await plain.get_session(**KEY)
        assert read is not None
        assert read.state == {"mark": "ours", "user:ann": "ours", "app:app": "ours"}
