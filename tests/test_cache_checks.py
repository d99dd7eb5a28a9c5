"""What was erased, by whichever process, does not stay in the memory of another one."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import TYPE_CHECKING, Any, Final

import pytest
from google.adk.sessions.database_session_service import DatabaseSessionService

from adk_memory_ext import cache_checks, sql_lists
from adk_memory_ext.errors import StoreUnavailableError
from adk_memory_ext.service import DurableSessionService
from adk_memory_ext.sql_sessions import SqlSessionService
from conversation import said
from servers import HANG_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from adk_memory_ext.event_cache import EventCache
    from backends import Backend, Place

OWNER: Final[dict[str, Any]] = {"app_name": "app", "user_id": "ann"}
KEY: Final[dict[str, Any]] = OWNER | {"session_id": "session"}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks after a moment instead of after seconds."""
    monkeypatch.setattr(cache_checks, "EVERY_SECONDS", 0.02)


@pytest.fixture
def durable(backend: Backend) -> None:
    """Only where somebody else can reach what is stored."""
    if not backend.durable:
        pytest.skip("nobody else can delete it")


def cache_of(sessions: DurableSessionService) -> EventCache:
    """Returns the cache of our own service."""
    assert isinstance(sessions.wrapped, SqlSessionService)
    return sessions.wrapped.cache


async def kept(sessions: DurableSessionService, *names: str) -> EventCache:
    """Returns the cache with new sessions in it."""
    for name in names:
        session = await sessions.create_session(**OWNER, session_id=name)
        await sessions.append_event(session, said(f"the secret of {name}"))
        assert await sessions.get_session(**OWNER, session_id=name)
    assert len(cache_of(sessions)) == len(names)
    return cache_of(sessions)


async def until(is_so: Callable[[], bool]) -> None:
    """Returns when it is so; nobody calls the service meanwhile."""
    async with asyncio.timeout(HANG_SECONDS):
        while not is_so():
            await asyncio.sleep(0.01)


@pytest.mark.usefixtures("durable")
async def test_what_another_service_deletes_is_forgotten_without_a_load(place: Place) -> None:
    """Nobody asks for the session again, and it is gone from memory; its neighbour stays."""
    async with (
        DurableSessionService.from_url(place.url) as mine,
        DurableSessionService.from_url(place.url) as theirs,
    ):
        cache = await kept(mine, "gone", "stays")
        await theirs.delete_session(**OWNER, session_id="gone")
        await until(lambda: len(cache) == 1)
        await asyncio.sleep(0.1)
        assert len(cache) == 1
        await theirs.delete_session(**OWNER, session_id="stays")
        await until(lambda: len(cache) == 0)
        assert cache.size == 0


@pytest.mark.usefixtures("durable")
async def test_what_plain_adk_deletes_is_forgotten(place: Place) -> None:
    """Also where a session of the same id was created since."""
    async with (
        DurableSessionService.from_url(place.url) as mine,
        DatabaseSessionService(place.url) as plain,
    ):
        cache = await kept(mine, "gone", "again")
        await plain.delete_session(**OWNER, session_id="gone")
        await plain.delete_session(**OWNER, session_id="again")
        await plain.create_session(**OWNER, session_id="again")
        await until(lambda: len(cache) == 0)


async def test_an_erasure_here_empties_the_cache_at_once(sessions: DurableSessionService) -> None:
    """When it returns, nothing of the person is kept."""
    cache = await kept(sessions, "one", "two")
    await sessions.erasure.erase_user(**OWNER)
    assert (len(cache), cache.size) == (0, 0)


async def test_a_verified_deletion_empties_the_cache_at_once(place: Place) -> None:
    """When it returns, nothing of the session is kept."""
    async with DurableSessionService.from_url(place.url, verify_deletes=True) as sessions:
        cache = await kept(sessions, "one", "two")
        await sessions.delete_session(**OWNER, session_id="one")
        assert len(cache) == 1


async def test_what_nobody_has_asked_for_in_a_long_time_goes(
    sessions: DurableSessionService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An idle service keeps nothing, and asks the database nothing any more."""
    cache = await kept(sessions, "one")
    monkeypatch.setattr(cache_checks, "IDLE_SECONDS", 0.0)
    await until(lambda: len(cache) == 0)


async def test_where_nobody_can_tell_nothing_is_kept(
    sessions: DurableSessionService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database that does not answer may have lost the session: it is let go of."""
    cache = await kept(sessions, "one")
    assert isinstance(sessions.wrapped, SqlSessionService)

    async def no_answer(*_anything: object) -> object:
        raise StoreUnavailableError("The database did not answer; nothing was written.")

    with monkeypatch.context() as cut:
        cut.setattr(sessions.wrapped.database, "read", no_answer)
        await until(lambda: len(cache) == 0)
    assert await sessions.get_session(**OWNER, session_id="one")
    assert len(cache) == 1


async def test_an_error_of_any_kind_ends_no_checks(
    sessions: DurableSessionService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next look is taken all the same."""
    cache = await kept(sessions, "one")
    failures: list[BaseException | None] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _loop, context: failures.append(context.get("exception"))
    )

    async def broken(*_anything: object) -> object:
        raise ZeroDivisionError

    assert isinstance(sessions.wrapped, SqlSessionService)
    with monkeypatch.context() as cut:
        cut.setattr(sessions.wrapped.database, "read", broken)
        await until(lambda: bool(failures))
    assert {type(failure) for failure in failures} == {ZeroDivisionError}
    monkeypatch.setattr(cache_checks, "IDLE_SECONDS", 0.0)
    await until(lambda: len(cache) == 0)


async def test_many_sessions_are_looked_at_together(
    sessions: DurableSessionService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than one statement takes: each is judged by its own."""
    monkeypatch.setattr(sql_lists, "_AT_ONCE", 3)
    cache = await kept(sessions, *map(str, range(8)))
    await sessions.delete_session(**OWNER, session_id="5")
    assert isinstance(sessions.wrapped, SqlSessionService)
    await sessions.wrapped.forget_deleted()
    assert len(cache) == 7


async def test_a_service_that_is_dropped_unclosed_is_collected() -> None:
    """The next look keeps nothing alive."""
    sessions = DurableSessionService.from_url()
    await kept(sessions, "one")
    alive = weakref.ref(sessions)
    await sessions.wrapped.database.close()  # type: ignore[attr-defined]  # its threads end
    del sessions
    gc.collect()
    assert alive() is None
    await asyncio.sleep(0.05)
