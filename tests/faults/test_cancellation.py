"""A caller is cancelled at any moment: what it began is whole or absent, and nothing hangs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import pytest

from backends import OURS, OURS_MARIADB, count
from conversation import replay, said, texts
from servers import HANG_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from google.adk.sessions.session import Session

    from adk_memory_ext.service import DurableSessionService

pytestmark = pytest.mark.parametrize(
    "backend", [*OURS, OURS_MARIADB], ids=lambda backend: backend.name
)

OWN: Final[dict[str, Any]] = {"app_name": "app", "user_id": "user"}
SESSION: Final[dict[str, Any]] = {**OWN, "session_id": "session"}


async def cancelled_after(ticks: int, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Returns the task of what was begun and cancelled after so many ticks of the event loop."""
    task = asyncio.ensure_future(work)
    for _ in range(ticks):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    return task


async def settle(sessions: DurableSessionService) -> None:
    """Waits until what cancelled callers left under way has ended."""
    # On a server it goes on in tasks; on SQLite in the one thread that does the next write too.
    if others := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(others)
    await sessions.state.update_user({"settled": 1}, **OWN)


async def found(sessions: DurableSessionService) -> Session:
    """Returns the stored session."""
    session = await sessions.get_session(**SESSION)
    assert session is not None
    return session


async def test_an_append_cancelled_at_any_tick_is_whole_or_absent(
    sessions: DurableSessionService,
) -> None:
    """Cancelled after any number of loop ticks, the session object agrees with what is stored."""
    session = await sessions.create_session(**SESSION)
    for ticks in range(count(25, 120)):
        state = {"k": ticks, "user:k": ticks, "app:k": ticks}
        append = await cancelled_after(
            ticks, sessions.append_event(session, said(f"{ticks}", state=state))
        )
        await settle(sessions)
        stored = await found(sessions)
        assert texts(stored.events) == texts(session.events)
        own = {key: value for key, value in stored.state.items() if key != "user:settled"}
        assert own == session.state == replay(session.events)
        assert append.cancelled() or texts(session.events)[-1] == f"{ticks}"
    await sessions.append_event(session, said("last"))
    await sessions.close()


async def test_a_session_goes_on_at_once_after_a_cancelled_append(
    sessions: DurableSessionService,
) -> None:
    """The next append through the same object is not stale, whatever became of the cancelled one.

    What was cancelled and is still under way would else be an event that the object has not seen.
    """
    session = await sessions.create_session(**SESSION)
    kept = []
    for ticks in range(count(25, 120)):
        await cancelled_after(ticks, sessions.append_event(session, said(f"{ticks}")))
        await sessions.append_event(session, said(f"after {ticks}"))
        kept.append(f"after {ticks}")
    stored = texts((await found(sessions)).events)
    assert [text for text in stored if text.startswith("after")] == kept
    assert stored == texts(session.events)


async def test_nothing_arrives_late_after_a_cancelled_append(
    sessions: DurableSessionService,
) -> None:
    """A session that is loaded after the cancellation holds the event, or never will."""
    session = await sessions.create_session(**SESSION)
    for ticks in range(count(25, 120)):
        await cancelled_after(ticks, sessions.append_event(session, said(f"{ticks}")))
        session = await found(sessions)
        await settle(sessions)
        assert texts((await found(sessions)).events) == texts(session.events)


OPERATIONS: Final[dict[str, Callable[[DurableSessionService, int], Coroutine[Any, Any, Any]]]] = {
    "create": lambda sessions, number: sessions.create_session(
        **OWN, session_id=f"{number}", state={"k": number, f"user:{number}": number}
    ),
    "get": lambda sessions, _number: sessions.get_session(**SESSION),
    "list": lambda sessions, _number: sessions.list_sessions(**OWN),
    "page": lambda sessions, _number: sessions.list_sessions_page("app"),
    "user state": lambda sessions, _number: sessions.get_user_state(**OWN),
    "change state": lambda sessions, number: sessions.state.update_user({f"{number}": 1}, **OWN),
    "delete": lambda sessions, _number: sessions.delete_session(**OWN, session_id="other"),
}


@pytest.mark.parametrize("name", OPERATIONS)
async def test_any_operation_may_be_cancelled_at_any_tick(
    sessions: DurableSessionService, name: str
) -> None:
    """After it, everything else works, and what was created is whole."""
    for ticks in range(0, 24, count(2, 1)):
        await cancelled_after(ticks, OPERATIONS[name](sessions, ticks))
    async with asyncio.timeout(HANG_SECONDS):
        await settle(sessions)
        session = await sessions.create_session(**SESSION)
        await sessions.append_event(session, said("hello"))
        assert texts((await found(sessions)).events) == ["hello"]
        user = await sessions.get_user_state(**OWN)
        for one in (await sessions.list_sessions(**OWN)).sessions:
            if one.id != "session":
                assert one.state["k"] == int(one.id)
                assert user[one.id] == int(one.id)


async def test_cancelling_many_leaves_the_others(sessions: DurableSessionService) -> None:
    """Of writes that wait together, the cancelled ones take no other one with them."""
    await sessions.create_session(**SESSION)
    writes = [
        asyncio.ensure_future(sessions.state.increment(f"user:n{number}", **OWN))
        for number in range(30)
    ]
    await asyncio.sleep(0)
    for write in writes[::2]:
        write.cancel()
    await asyncio.wait(writes)

    await settle(sessions)
    state = await sessions.get_user_state(**OWN)
    assert {f"n{number}" for number in range(1, 30, 2)} <= set(state)
    assert set(state.values()) == {1}
