"""Closing: what was begun is finished, what comes later is refused, and nothing is left open."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import pytest

from adk_memory_ext.errors import StoreUnavailableError
from backends import OURS, OURS_MARIADB
from conversation import said, texts

if TYPE_CHECKING:
    from adk_memory_ext.service import DurableSessionService
    from backends import Backend, Place

pytestmark = pytest.mark.parametrize(
    "backend", [*OURS, OURS_MARIADB], ids=lambda backend: backend.name
)

OWN: Final[dict[str, Any]] = {"app_name": "app", "user_id": "user"}
SESSION: Final[dict[str, Any]] = {**OWN, "session_id": "session"}
WAITING: Final = 50


async def test_what_waits_is_finished(
    sessions: DurableSessionService, backend: Backend, place: Place
) -> None:
    """Writes and reads that were begun before `close` succeed, and are stored when it returns."""
    session = await sessions.create_session(**SESSION)
    appends = [asyncio.ensure_future(sessions.append_event(session, said("hello")))]
    writes = [
        asyncio.ensure_future(sessions.state.increment("user:n", **OWN)) for _ in range(WAITING)
    ]
    reads = [asyncio.ensure_future(sessions.get_session(**SESSION)) for _ in range(WAITING)]
    await asyncio.sleep(0)

    await sessions.close()

    assert sorted(await asyncio.gather(*writes)) == list(range(1, WAITING + 1))
    assert all(await asyncio.gather(*reads))
    await asyncio.gather(*appends)
    assert texts(session.events) == ["hello"]
    if backend.durable:
        async with backend.open(place) as again:
            assert await again.get_user_state(**OWN) == {"n": WAITING}
            stored = await again.get_session(**SESSION)
            assert stored is not None
            assert texts(stored.events) == ["hello"]


async def test_the_first_use_is_finished_too(
    sessions: DurableSessionService, backend: Backend, place: Place
) -> None:
    """A write that has yet to make the tables is finished as well."""
    creation = asyncio.ensure_future(sessions.create_session(**SESSION))
    await asyncio.sleep(0)
    await sessions.close()
    await creation
    if backend.durable:
        async with backend.open(place) as again:
            assert await again.get_session(**SESSION) is not None


async def test_a_closed_service_says_so(sessions: DurableSessionService) -> None:
    """Every operation of a closed service is refused in one line, as often as it is asked for."""
    session = await sessions.create_session(**SESSION)
    await sessions.close()
    await sessions.close()
    for _ in range(2):
        for operation in (
            sessions.create_session(**OWN),
            sessions.get_session(**SESSION),
            sessions.get_or_create_session(**SESSION),
            sessions.append_event(session, said("late")),
            sessions.list_sessions(**OWN),
            sessions.list_sessions_page("app"),
            sessions.set_session_title(**SESSION, title="late"),
            sessions.delete_session(**SESSION),
            sessions.get_user_state(**OWN),
            sessions.state.update_user({"late": 1}, **OWN),
        ):
            with pytest.raises(StoreUnavailableError) as refusal:
                await operation
            assert str(refusal.value) == "The service is closed; nothing was written."
    assert session.events == []


async def test_closing_may_be_asked_for_at_any_time(sessions: DurableSessionService) -> None:
    """A service that was never used, and one that several tasks close at once, is closed."""
    wrapped = sessions.wrapped
    assert hasattr(wrapped, "close")
    await asyncio.gather(*(wrapped.close() for _ in range(5)))
    with pytest.raises(StoreUnavailableError):
        await sessions.get_session(**SESSION)


async def test_closing_twice_at_once_waits_for_the_same(sessions: DurableSessionService) -> None:
    """Whoever closes second waits for what is under way as well."""
    wrapped = sessions.wrapped
    assert hasattr(wrapped, "close")
    await sessions.create_session(**SESSION)
    work = [
        asyncio.ensure_future(task)
        for _ in range(WAITING)
        for task in (sessions.state.increment("user:n", **OWN), wrapped.get_session(**SESSION))
    ]
    await asyncio.sleep(0)

    async def close() -> bool:
        await wrapped.close()
        return all(task.done() for task in work)

    assert await asyncio.gather(*(close() for _ in range(3))) == [True] * 3
    assert None not in await asyncio.gather(*work)


async def test_a_cancelled_close_can_be_repeated(sessions: DurableSessionService) -> None:
    """Whoever gives up waiting for `close` may call it again."""
    wrapped = sessions.wrapped
    assert hasattr(wrapped, "close")
    await sessions.create_session(**SESSION)
    for ticks in range(6):
        work = asyncio.ensure_future(sessions.get_user_state(**OWN))
        closing = asyncio.ensure_future(wrapped.close())
        for _ in range(ticks):
            await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait([closing, work])
        work.exception()
    await wrapped.close()
