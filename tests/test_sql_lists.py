"""Pages of sessions: each one once, in the order of the last update, at a flat cost."""

from __future__ import annotations

import itertools
import random
import sqlite3
from typing import TYPE_CHECKING, Any

import pytest
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.sessions.database_session_service import DatabaseSessionService
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from sqlalchemy import Engine, event

from adk_memory_ext import CapabilityError, ConfigurationError, DurableSessionService
from adk_memory_ext.errors import InvalidIdError
from conversation import said

if TYPE_CHECKING:
    from pathlib import Path

    from adk_memory_ext.records import SessionSummary

APP = "app"


async def make(sessions: DurableSessionService, users: int, count: int) -> list[tuple[str, str]]:
    """Creates sessions and updates them in a random order, which it returns, newest first."""
    names = [(f"user-{number % users}", f"session-{number:03}") for number in range(count)]
    for user, name in names:
        await sessions.create_session(app_name=APP, user_id=user, session_id=name)
    order = random.Random(count).sample(names, count)  # noqa: S311  # seeded, no secret
    for time, (user, name) in enumerate(order):
        session = await sessions.get_session(app_name=APP, user_id=user, session_id=name)
        assert session is not None
        await sessions.append_event(session, said("hello", at=1e9 + time))
    return order[::-1]


async def pages(
    sessions: DurableSessionService, limit: int, user: str | None = None
) -> list[list[SessionSummary]]:
    """Returns all pages."""
    found, after = [], None
    while True:
        page = await sessions.list_sessions_page(APP, user, limit=limit, after=after)
        found.append(list(page.sessions))
        if page.next is None:
            return found
        after = page.next


@pytest.mark.parametrize("limit", [1, 4, 15, 16, 50])
async def test_pages_hold_each_session_once_newest_update_first(
    sessions: DurableSessionService, limit: int
) -> None:
    """All pages together are all sessions in the order of their last update, none twice."""
    newest_first = await make(sessions, users=3, count=15)

    found = await pages(sessions, limit)

    entries = list(itertools.chain(*found))
    assert [(entry.user_id, entry.session_id) for entry in entries] == newest_first
    assert [len(page) for page in found[:-1]] == [limit] * (len(found) - 1)
    assert found[-1]


async def test_pages_of_a_user_hold_nobody_elses(sessions: DurableSessionService) -> None:
    """The pages of one user are that user's sessions in the same order."""
    newest_first = await make(sessions, users=3, count=12)

    found = itertools.chain(*await pages(sessions, 2, "user-1"))

    own = [name for user, name in newest_first if user == "user-1"]
    assert [entry.session_id for entry in found] == own


async def test_sessions_of_equal_time_keep_one_order(sessions: DurableSessionService) -> None:
    """Sessions that were updated at the same time are neither repeated nor skipped."""
    for number in range(9):
        session = await sessions.create_session(
            app_name=APP, user_id="user", session_id=f"{number}"
        )
        await sessions.append_event(session, said("hello", at=5.0))

    found = [entry.session_id for page in await pages(sessions, 2) for entry in page]

    assert found == [f"{number}" for number in reversed(range(9))]


async def test_an_update_between_two_pages_repeats_no_other(
    sessions: DurableSessionService,
) -> None:
    """While one session is updated, every other one is seen exactly once."""
    newest_first = await make(sessions, users=1, count=8)
    page = await sessions.list_sessions_page(APP, limit=3)
    user, moved = newest_first[-1]
    session = await sessions.get_session(app_name=APP, user_id=user, session_id=moved)
    assert session is not None
    await sessions.append_event(session, said("again", at=2e9))

    seen = [entry.session_id for entry in page.sessions]
    while page.next is not None:
        page = await sessions.list_sessions_page(APP, limit=3, after=page.next)
        seen += [entry.session_id for entry in page.sessions]

    assert seen == [name for _user, name in newest_first if name != moved]


async def test_a_page_has_state_and_titles_on_request(sessions: DurableSessionService) -> None:
    """Session-scope state is read only where it is asked for; a title is there once it is set."""
    own = {"app_name": APP, "user_id": "user", "session_id": "one"}
    await sessions.create_session(**own, state={"step": 1, "user:name": "Ada"})
    await sessions.set_session_title(**own, title="Résumé ✓")

    (plain,) = (await sessions.list_sessions_page(APP)).sessions
    (full,) = (await sessions.list_sessions_page(APP, with_state=True)).sessions
    await sessions.set_session_title(**own, title=None)
    (untitled,) = (await sessions.list_sessions_page(APP)).sessions

    assert (plain.title, plain.state) == ("Résumé ✓", None)
    assert (full.title, full.state) == ("Résumé ✓", {"step": 1})
    assert untitled.title is None


async def test_a_title_survives_later_events(sessions: DurableSessionService) -> None:
    """An append moves the session to the front and leaves its title."""
    own = {"app_name": APP, "user_id": "user", "session_id": "one"}
    session = await sessions.create_session(**own)
    await sessions.set_session_title(**own, title="first")
    await sessions.append_event(session, said("hello"))

    (entry,) = (await sessions.list_sessions_page(APP)).sessions

    assert entry.title == "first"
    assert entry.last_update_time == session.last_update_time


async def test_bad_requests_are_refused(sessions: DurableSessionService) -> None:
    """A limit below 1, a cursor of somebody else's and titles that cannot be kept are errors."""
    own = {"app_name": APP, "user_id": "user", "session_id": "one"}
    await sessions.create_session(**own)
    for after in ("x", "MTIz", "é", ""):
        with pytest.raises(ConfigurationError):
            await sessions.list_sessions_page(APP, after=after)
    with pytest.raises(ConfigurationError):
        await sessions.list_sessions_page(APP, limit=0)
    for title in ("x" * 257, "a\x00b", "\ud800", ""):
        with pytest.raises(InvalidIdError):
            await sessions.set_session_title(**own, title=title)
    with pytest.raises(SessionNotFoundError):
        await sessions.set_session_title(**own | {"session_id": "other"}, title="x")


async def test_a_service_without_pages_says_so() -> None:
    """Over a wrapped service that has no pages the error names it."""
    sessions = DurableSessionService(InMemorySessionService())
    with pytest.raises(CapabilityError, match="InMemorySessionService"):
        await sessions.list_sessions_page(APP)
    with pytest.raises(CapabilityError, match="InMemorySessionService"):
        await sessions.set_session_title(app_name=APP, user_id="u", session_id="s", title="x")


async def test_sessions_of_plain_adk_are_in_the_pages(tmp_path: Path) -> None:
    """A service that starts on a database of plain ADK's lists its sessions in their order."""
    url = f"sqlite+aiosqlite:///{tmp_path}/sessions.db"
    async with DatabaseSessionService(url) as adk:
        for number in (2, 0, 1):
            session = await adk.create_session(app_name=APP, user_id="user", session_id=f"{number}")
            await adk.append_event(session, said("hello", at=1e9 + number))
        async with DurableSessionService.from_url(url) as sessions:
            first = await sessions.list_sessions_page(APP)
            await adk.delete_session(app_name=APP, user_id="user", session_id="1")
            second = await sessions.list_sessions_page(APP)

    assert [entry.session_id for entry in first.sessions] == ["2", "1", "0"]
    assert [entry.session_id for entry in second.sessions] == ["2", "0"]


@pytest.mark.parametrize("user", [None, "user-1"])
async def test_a_page_reads_an_index_and_sorts_nothing(tmp_path: Path, user: str | None) -> None:
    """SQLite's plan walks our index in order, so that a page costs the same among many sessions."""
    statements: list[tuple[str, Any]] = []

    def note(*arguments: Any) -> None:
        _connection, _cursor, statement, parameters, _context, _many = arguments
        statements.append((statement, parameters))

    async with DurableSessionService.from_url(f"sqlite:///{tmp_path}/sessions.db") as sessions:
        await make(sessions, users=2, count=6)
        first = await sessions.list_sessions_page(APP, user, limit=2)
        event.listen(Engine, "before_cursor_execute", note)
        try:
            await sessions.list_sessions_page(APP, user, limit=2, after=first.next)
        finally:
            event.remove(Engine, "before_cursor_execute", note)
    connection = sqlite3.connect(tmp_path / "sessions.db")
    ((page, parameters),) = [each for each in statements if "LIMIT" in each[0]]
    plan = connection.execute(f"EXPLAIN QUERY PLAN {page}", parameters).fetchall()
    connection.close()

    text = "\n".join(str(row[-1]) for row in plan)
    assert ("memext_sessions_by_app" if user is None else "memext_sessions_by_user") in text
    assert "SCAN" not in text
    assert "TEMP B-TREE" not in text
