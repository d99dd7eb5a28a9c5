"""A caller is cancelled at any moment: the event is whole or absent, and nothing hangs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from backends import count
from conversation import replay, said, texts

if TYPE_CHECKING:
    from adk_memory_ext.service import DurableSessionService

OWN: Final[dict[str, Any]] = {"app_name": "app", "user_id": "user"}
SESSION: Final[dict[str, Any]] = {**OWN, "session_id": "session"}


async def settle(sessions: DurableSessionService) -> None:
    """Waits until what cancelled callers left under way has ended."""
    # On a server it goes on in tasks; on SQLite in the one thread that does the next write too.
    if others := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(others)
    await sessions.state.update_user({"settled": 1}, **OWN)


async def test_an_append_cancelled_at_any_tick_is_whole_or_absent(
    sessions: DurableSessionService,
) -> None:
    """Cancelled after any number of loop ticks, the session object agrees with what is stored."""
    session = await sessions.create_session(**SESSION)
    for ticks in range(count(25, 120)):
        state = {"k": ticks, "user:k": ticks, "app:k": ticks}
        append = asyncio.ensure_future(
            sessions.append_event(session, said(f"{ticks}", state=state))
        )
        for _ in range(ticks):
            await asyncio.sleep(0)
        append.cancel()
        await asyncio.wait([append])
        await settle(sessions)
        found = await sessions.get_session(**SESSION)
        assert found is not None
        assert texts(found.events) == texts(session.events)
        own = {key: value for key, value in found.state.items() if key != "user:settled"}
        assert own == session.state == replay(session.events)
        assert append.cancelled() or texts(session.events)[-1] == f"{ticks}"
    await sessions.append_event(session, said("last"))
    await sessions.close()


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
