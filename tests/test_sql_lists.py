"""Lists of sessions: ADK's whole one, and pages by cursor in the order of the last update."""

from __future__ import annotations

import asyncio
import base64
from typing import TYPE_CHECKING, Any, Final

import pytest
from google.adk.errors import StaleSessionError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions.database_session_service import DatabaseSessionService
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import create_engine, event, text
from sqlalchemy.pool import NullPool

from adk_memory_ext import sql_lists
from adk_memory_ext.errors import CapabilityError, ConfigurationError
from adk_memory_ext.service import DurableSessionService
from adk_memory_ext.statements import SqliteTransaction
from backends import OURS, OURS_MARIADB, count
from conversation import said, texts
from tables import file_url

if TYPE_CHECKING:
    from pathlib import Path

    from adk_memory_ext.records import SessionPage, SessionSummary
    from backends import Backend, Place

NOW: Final = 1_790_000_000.0


@pytest.fixture(params=[*OURS, OURS_MARIADB], ids=lambda backend: backend.name)
def backend(request: pytest.FixtureRequest) -> Backend:
    """Each database that sessions are listed from."""
    row: Backend = request.param
    return row


def key(name: str, user: str = "ann", app: str = "app") -> dict[str, Any]:
    """Returns the ids of a session."""
    return {"app_name": app, "user_id": user, "session_id": name}


async def touch(
    sessions: DurableSessionService | DatabaseSessionService,
    name: str,
    at: float,
    user: str = "ann",
    **state: Any,
) -> None:
    """Appends an event of a time to a session, creating it first if it is unknown."""
    session = await sessions.get_session(**key(name, user))
    if session is None:
        session = await sessions.create_session(**key(name, user))
    await sessions.append_event(session, said(name, at=at, state=state))


async def pages(
    sessions: DurableSessionService, user: str | None = None, *, limit: int = 3
) -> list[SessionSummary]:
    """Returns every line of every page, checking that only the last page is short."""
    lines: list[SessionSummary] = []
    after = None
    while True:
        page = await sessions.list_sessions_page("app", user, limit=limit, after=after)
        lines += page.sessions
        if page.next is None:
            assert len(page.sessions) <= limit
            return lines
        assert len(page.sessions) == limit
        after = page.next


def names(page: SessionPage | list[SessionSummary]) -> list[str]:
    """Returns the ids of the sessions in their order."""
    return [line.session_id for line in (page if isinstance(page, list) else page.sessions)]


# --- ADK's whole list


async def test_a_list_holds_each_session_once_without_events(
    sessions: DurableSessionService,
) -> None:
    """Of a user or of all users, oldest update first, with the state of all scopes."""
    for number, (user, name) in enumerate(
        [("ann", "b"), ("bob", "a"), ("ann", "a"), ("bob", "c"), ("ann", "b")]
    ):
        await touch(sessions, name, NOW + number, user, **{"own": number, f"user:{user}": number})
    await touch(sessions, "never", NOW, "eve", **{"app:x": 1})
    await sessions.create_session(app_name="other", user_id="ann", state={"user:other": 1})

    listed = (await sessions.list_sessions(app_name="app")).sessions
    assert [(session.user_id, session.id) for session in listed] == [
        ("eve", "never"),
        ("bob", "a"),
        ("ann", "a"),
        ("bob", "c"),
        ("ann", "b"),
    ]
    assert listed[-1].state == {"own": 4, "user:ann": 4, "app:x": 1}
    assert listed[0].state == {"app:x": 1}
    assert all(session.events == [] for session in listed)
    assert [session.last_update_time for session in listed] == [NOW + n for n in (0, 1, 2, 3, 4)]
    of_bob = (await sessions.list_sessions(app_name="app", user_id="bob")).sessions
    assert of_bob == [listed[1], listed[3]]
    assert (await sessions.list_sessions(app_name="app", user_id="nobody")).sessions == []
    assert (await sessions.list_sessions(app_name="nothing")).sessions == []


async def test_a_listed_session_can_be_appended_to_until_others_have(
    sessions: DurableSessionService,
) -> None:
    """It knows its revision, so that it is stale by what was appended and not by the clock."""
    await sessions.create_session(**key("s"))
    first, second = [(await sessions.list_sessions(app_name="app")).sessions[0] for _ in range(2)]
    # Of a time long before the session was created.
    await sessions.append_event(first, said("one", at=1000.0))
    with pytest.raises(StaleSessionError):
        await sessions.append_event(second, said("two", at=1000.0))
    await sessions.append_event(first, said("three", at=1000.0))
    read = await sessions.get_session(**key("s"))
    assert read is not None
    assert texts(read.events) == ["one", "three"]


# --- Pages


async def test_pages_are_in_the_order_of_the_last_update(sessions: DurableSessionService) -> None:
    """Newest first; among equal times the session that was created last comes first."""
    for number in range(7):
        await touch(sessions, f"s{number}", NOW + number // 3)
    await touch(sessions, "s1", NOW + 9)
    await touch(sessions, "s5", NOW + 9)
    assert names(await pages(sessions)) == ["s5", "s1", "s6", "s4", "s3", "s2", "s0"]
    page = await sessions.list_sessions_page("app", limit=2)
    assert [line.last_update_time for line in page.sessions] == [NOW + 9, NOW + 9]
    assert {(line.app_name, line.user_id, line.title) for line in page.sessions} == {
        ("app", "ann", None)
    }


async def test_a_page_knows_whether_there_is_another(sessions: DurableSessionService) -> None:
    """`next` is None on the last page, be it full, short or empty."""
    assert (await sessions.list_sessions_page("app")).sessions == ()
    assert (await sessions.list_sessions_page("app", "ann")).next is None
    for number in range(4):
        await touch(sessions, f"s{number}", NOW + number)
    first = await sessions.list_sessions_page("app", limit=2)
    second = await sessions.list_sessions_page("app", limit=2, after=first.next)
    assert (names(first), names(second)) == (["s3", "s2"], ["s1", "s0"])
    assert second.next is None
    assert (await sessions.list_sessions_page("app", limit=4)).next is None
    assert (await sessions.list_sessions_page("app", limit=3)).next is not None
    for more in (10**6, 2**63 - 1, 10**30):
        page = await sessions.list_sessions_page("app", limit=more)
        assert (names(page), page.next) == (["s3", "s2", "s1", "s0"], None)


async def test_state_is_read_only_where_it_is_asked_for(sessions: DurableSessionService) -> None:
    """`with_state` brings the session's own state, and not a user's or an app's again."""
    await sessions.create_session(**key("s"), state={"own": [1], "user:u": 1, "app:a": 1})
    for user in (None, "ann"):
        (line,) = (await sessions.list_sessions_page("app", user)).sessions
        assert line.state is None
        (line,) = (await sessions.list_sessions_page("app", user, with_state=True)).sessions
        assert line.state == {"own": [1]}


async def test_a_title_is_shown_until_it_is_taken_away(sessions: DurableSessionService) -> None:
    """Any text; it changes neither order nor revision, and goes with its session."""
    for number in range(2):
        await touch(sessions, f"s{number}", NOW + number)
    session = await sessions.get_session(**key("s0"))
    assert session is not None
    for title in ("Two days in Lisbon", "\U0001f6b2 \u00e4 %s '", "Two days in Lisbon"):
        await sessions.set_session_title(**key("s0"), title=title)
        assert [line.title for line in await pages(sessions)] == [None, title]
    await sessions.append_event(session, said("on", at=NOW + 2))
    assert [line.title for line in await pages(sessions)] == ["Two days in Lisbon", None]
    await sessions.set_session_title(**key("s0"), title=None)
    assert [line.title for line in await pages(sessions)] == [None, None]
    await sessions.set_session_title(**key("s1"), title="x")
    await sessions.delete_session(**key("s1"))
    await sessions.create_session(**key("s1"))
    assert [line.title for line in await pages(sessions)] == [None, None]
    for unknown in (key("s2"), key("s0", "bob"), key("s0", app="other")):
        with pytest.raises(SessionNotFoundError):
            await sessions.set_session_title(**unknown, title="x")


@pytest.mark.parametrize("limit", [0, -1, 2.5, "3", None])
async def test_a_limit_without_meaning_is_refused(limit: Any) -> None:
    """A page holds one session at least."""
    async with DurableSessionService.from_url() as sessions:
        with pytest.raises(ConfigurationError, match="at least 1"):
            await sessions.list_sessions_page("app", limit=limit)


def encoded(words: str) -> str:
    """Returns words as a cursor is written."""
    return base64.urlsafe_b64encode(words.encode()).decode()


@pytest.mark.parametrize(
    "after",
    [
        *("", "x", "%%%%", "\u00e4", "\ud800", "a" * 10_000, 5, b"MS4x"),
        *map(encoded, ("", ".", "1", "1.", "1.2.3", "a.b", "nan.1", f"1.{10**30}", f"{2**63}.1")),
        encoded(f"{'9' * 5000}.1"),
    ],
)
async def test_a_cursor_that_no_page_gave_is_refused(after: Any) -> None:
    """Whatever a browser sends, it is an error that says which argument."""
    async with DurableSessionService.from_url() as sessions:
        await touch(sessions, "s", NOW)
        with pytest.raises(ConfigurationError, match="`after` is not what"):
            await sessions.list_sessions_page("app", after=after)


async def test_a_service_without_pages_is_named() -> None:
    """ADK's own services have neither pages nor titles."""
    sessions = DurableSessionService(InMemorySessionService())
    with pytest.raises(CapabilityError, match="InMemorySessionService has no pages"):
        await sessions.list_sessions_page("app")
    with pytest.raises(CapabilityError, match="InMemorySessionService has no titles"):
        await sessions.set_session_title(**key("s"), title="x")


# --- Any set of sessions

UPDATES: Final = st.lists(
    st.tuples(st.integers(0, 7), st.sampled_from(["ann", "bob"]), st.integers(0, 3)), max_size=14
)


def test_paging_visits_each_session_once_in_order(place: Place) -> None:
    """Whatever was updated in which order at which times, for one user and for all."""

    async def check(
        sessions: DurableSessionService, updates: list[tuple[int, str, int]], limit: int
    ) -> None:
        created: dict[tuple[str, str], int] = {}
        updated: dict[tuple[str, str], float] = {}
        for number, (name, user, second) in enumerate(updates):
            identity = (user, f"s{name}")
            created.setdefault(identity, number)
            # Stored times of one session rise; those of different ones may be equal.
            time = max(NOW + second, updated.get(identity, 0.0) + 1e-6)
            updated[identity] = round(time, 6)
            await touch(sessions, identity[1], time, user)
        expected = sorted(updated, key=lambda identity: (-updated[identity], -created[identity]))
        for user_id in (None, "ann", "bob"):
            lines = await pages(sessions, user_id, limit=limit)
            visited = [(line.user_id, line.session_id) for line in lines]
            assert visited == [one for one in expected if user_id in (None, one[0])]
        for user, session in created:
            await sessions.delete_session(**key(session, user))
        assert await pages(sessions) == []

    with asyncio.Runner() as runner:
        sessions = DurableSessionService.from_url(place.url)

        @settings(max_examples=count(12, 200))
        @given(updates=UPDATES, limit=st.integers(1, 5))
        def property_(updates: list[tuple[int, str, int]], limit: int) -> None:
            runner.run(check(sessions, updates, limit))

        try:
            property_()
        finally:
            runner.run(sessions.close())


async def test_sessions_that_change_meanwhile_repeat_no_other(
    sessions: DurableSessionService,
) -> None:
    """Who reads on sees every unchanged session once, and none twice that stays as it is."""
    for number in range(12):
        await touch(sessions, f"s{number:02}", NOW + number)
    seen: list[str] = []
    after = None
    for step in range(4):
        page = await sessions.list_sessions_page("app", limit=3, after=after)
        seen += names(page)
        after = page.next
        if step == 0:
            await touch(sessions, "s00", NOW + 100)  # not seen yet: goes to the front
            await touch(sessions, "s11", NOW + 101)  # seen: goes to the front again
            await touch(sessions, "new", NOW + 102)
            await sessions.delete_session(**key("s08"))  # the next one
            await sessions.delete_session(**key("s09"))  # the last one of the page
        if after is None:
            break
    assert seen == ["s11", "s10", "s09", *(f"s{number:02}" for number in (7, 6, 5, 4, 3, 2, 1))]
    assert after is None
    assert names(await pages(sessions))[:3] == ["new", "s11", "s00"]


# --- What plain ADK did to the same tables


@pytest.mark.parametrize("backend", [OURS[0], OURS[2], OURS_MARIADB], indirect=True)
async def test_pages_hold_what_plain_adk_stored(place: Place) -> None:
    """Sessions that ADK made before, updated, made again or deleted, in their right places."""
    url = place.url.replace("mariadb+", "mysql+")
    async with DatabaseSessionService(url) as plain:
        for number in range(4):
            await touch(plain, f"adk{number}", NOW + number)
    async with DurableSessionService.from_url(url) as sessions:
        assert names(await pages(sessions)) == ["adk3", "adk2", "adk1", "adk0"]
        await sessions.set_session_title(**key("adk2"), title="kept")
        await touch(sessions, "ours", NOW + 5)
        async with DatabaseSessionService(url) as plain:
            await touch(plain, "adk1", NOW + 6)
            await plain.delete_session(**key("adk0"))
            await plain.delete_session(**key("ours"))
            await touch(plain, "later", NOW + 7)
        assert names(await pages(sessions)) == ["adk3", "adk2", "adk1"]  # until they are used
        for name in ("later", "adk1"):
            read = await sessions.get_session(**key(name))
            assert read is not None
        assert names(await pages(sessions)) == ["later", "adk1", "adk3", "adk2"]
    async with DurableSessionService.from_url(url) as sessions:
        lines = await pages(sessions)
        assert names(lines) == ["later", "adk1", "adk3", "adk2"]
        assert [line.title for line in lines] == [None, None, None, "kept"]


async def test_an_older_event_of_plain_adk_is_not_lost_by_a_list(tmp_path: Path) -> None:
    """ADK sets the update time back with such an event; taking it into the list keeps it unread."""
    url = file_url(tmp_path)
    async with DurableSessionService.from_url(url) as sessions:
        await touch(sessions, "s", NOW)
    async with DatabaseSessionService(url) as plain:
        await touch(plain, "s", NOW - 50)
    async with DurableSessionService.from_url(url) as sessions:
        (line,) = await pages(sessions)
        assert line.last_update_time == NOW - 50
        read = await sessions.get_session(**key("s"))
        assert read is not None
        assert [event.timestamp for event in read.events] == [NOW, NOW - 50]


async def test_a_state_only_update_moves_its_session_to_the_front(
    sessions: DurableSessionService,
) -> None:
    """What ADK's PATCH appends is an update as any; a change of a user's state alone is none."""
    for number in range(3):
        await touch(sessions, f"s{number}", NOW + number)
    session = await sessions.get_session(**key("s0"))
    assert session is not None
    patch = Event(author="user", timestamp=NOW + 9, actions=EventActions(state_delta={"a": 1}))
    await sessions.append_event(session, patch)
    await sessions.state.update_user({"a": 1}, app_name="app", user_id="ann")
    assert names(await pages(sessions)) == ["s0", "s2", "s1"]
    await sessions.state.update({"b": 1}, **key("s1"))  # now: before NOW
    assert set(names(await pages(sessions))) == {"s0", "s1", "s2"}


# --- Cost


@pytest.mark.parametrize("user", [None, "ann"])
@pytest.mark.parametrize("is_first", [True, False])
async def test_a_page_is_read_by_its_index(
    user: str | None, is_first: bool, tmp_path: Path
) -> None:
    """SQLite seeks and sorts nothing, so that a page costs the same among a million sessions."""
    async with DurableSessionService.from_url(file_url(tmp_path)) as sessions:
        for number in range(3):
            await touch(sessions, f"s{number}", NOW + number)
        cursor = (await sessions.list_sessions_page("app", user, limit=1)).next
    plans: list[str] = []

    def explain(
        _connection: Any, driver: Any, statement: str, parameters: Any, *_others: object
    ) -> None:
        driver.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)
        plans.extend(row[3] for row in driver.fetchall())

    engine = create_engine(f"sqlite:///{tmp_path}/sessions.db", poolclass=NullPool)
    with engine.connect() as connection:
        connection.execute(text("SELECT 1"))
        event.listen(connection, "before_cursor_execute", explain)
        page = sql_lists.page(
            SqliteTransaction(connection, {}),
            "app",
            user,
            1,
            None if is_first else cursor,
            with_state=True,
        )
    engine.dispose()
    assert names(page) == ["s2" if is_first else "s1"]
    index = "memext_sessions_by_app" if user is None else "memext_sessions_by_user"
    assert any(index in step for step in plans)
    assert all(step.startswith("SEARCH") for step in plans), plans
