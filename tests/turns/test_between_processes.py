"""Turns in several processes: one after the other, and a dead holder holds up nobody."""

from __future__ import annotations

import asyncio
import gc
from typing import Any, Final

import pytest
from google.adk.errors import StaleSessionError

from adk_memory_ext.errors import TurnBusyError
from adk_memory_ext.records import SessionId
from adk_memory_ext.service import DurableSessionService
from adk_memory_ext.turn_queue import Turn, reject, wait
from backends import OURS, OURS_MARIADB, Place, count
from conversation import said, texts
from forks import context
from people import OWN, SESSION, echo, hold_for_ever, log, running, say, send_pairs, turns
from rivals import in_processes
from servers import HANG_SECONDS

PROCESSES: Final = 4
KEY: Final = SessionId("app", "user", "session")
SHARED: Final = [backend for backend in (*OURS, OURS_MARIADB) if backend.durable]

pytestmark = pytest.mark.parametrize("backend", SHARED, ids=lambda backend: backend.name)


async def test_double_sent_messages_are_each_answered_once(place: Place) -> None:
    """Pairs of messages from four processes: whole turns, pairs in order, and nothing left behind.

    200 messages over 20 sessions on SQLite, fewer on servers; 2,000 under soak.
    """
    messages = count(200 if place.url.startswith("sqlite") else 64, 2000)
    in_processes(PROCESSES, send_pairs, place.url, messages // PROCESSES // 2, 20)

    answered: list[str] = []
    async with DurableSessionService.from_url(place.url) as sessions:
        for session in (await sessions.list_sessions(**OWN)).sessions:
            events = await log(sessions, session.id)
            stored = await sessions.get_session(**OWN, session_id=session.id)
            assert stored is not None
            said = turns(events) if events else []
            for number, turn in enumerate(said, start=1):
                assert turn == [turn[0], f"echo {turn[0]}, message {number}"]
            asked = [turn[0] for turn in said]
            assert stored.state.get("notes", []) == asked
            for name in asked:
                if name.endswith("a"):  # sent before the other one of its pair
                    assert asked.index(name) < asked.index(f"{name[:-1]}b")
            answered += asked
        assert sorted(answered) == sorted(
            f"{number}-{pair}-{which}"
            for number in range(PROCESSES)
            for pair in range(messages // PROCESSES // 2)
            for which in "ab"
        )
    assert list(place.folder.glob("*-turns/*")) == []


async def test_a_killed_holder_holds_up_nobody(place: Place) -> None:
    """After `kill -9` of the process whose turn it was, the next turn begins."""
    receiver, sender = context().Pipe(duplex=False)
    holder = context().Process(target=hold_for_ever, args=(place.url, sender))
    holder.start()
    sender.close()
    try:
        assert receiver.poll(HANG_SECONDS)
        async with (
            DurableSessionService.from_url(place.url) as sessions,
            running(sessions, echo(tools=[])) as runner,
        ):
            waiting = asyncio.ensure_future(say(runner, "next"))
            await asyncio.sleep(0.1)
            assert texts(await log(sessions)) == ["killed"]
            holder.kill()
            await asyncio.wait_for(waiting, HANG_SECONDS)
            assert texts(await log(sessions)) == ["killed", "next", "echo next, message 2"]
    finally:
        holder.kill()
        holder.join(HANG_SECONDS)
        receiver.close()


@pytest.fixture
async def databases(place: Place) -> Any:
    """Two services over one database, as two processes have them."""
    async with (
        DurableSessionService.from_url(place.url) as one,
        DurableSessionService.from_url(place.url) as two,
    ):
        await one.create_session(**SESSION)
        yield one, two


async def test_a_turn_cancelled_at_any_tick_leaves_no_lock(
    databases: tuple[DurableSessionService, DurableSessionService],
) -> None:
    """Another process gets the turn, wherever this one was cancelled."""
    one, two = databases
    async with running(one) as runner:
        for ticks in range(0, 200, count(15, 1)):
            turn = asyncio.ensure_future(say(runner, "cancelled"))
            for _ in range(ticks):
                await asyncio.sleep(0)
            turn.cancel()
            await asyncio.wait([turn])
            del turn
            gc.collect()
            taken = Turn(KEY, "other")
            await asyncio.wait_for(two.turns.take(taken, wait()), HANG_SECONDS)
            two.turns.release(taken)


async def test_the_first_to_lock_is_the_only_one(
    databases: tuple[DurableSessionService, DurableSessionService],
) -> None:
    """Another service is refused while one holds the turn, and gets it afterwards."""
    one, two = databases
    first, second, third = Turn(KEY, "1"), Turn(KEY, "2"), Turn(KEY, "3")
    await one.turns.take(first, reject())
    with pytest.raises(TurnBusyError):
        await two.turns.take(second, reject())
    await two.turns.take(other := Turn(SessionId("app", "user", "other"), "4"), reject())
    two.turns.release(other)
    one.turns.release(first)
    await asyncio.wait_for(two.turns.take(third, wait()), HANG_SECONDS)
    two.turns.release(third)


async def test_hostile_ids_have_locks_of_their_own(
    databases: tuple[DurableSessionService, DurableSessionService],
) -> None:
    """Ids with slashes, dots, or each other's characters share no lock and leave no folder."""
    one, two = databases
    names = ["\ud800", "../x", "a/b", ".", "a" * 128, "😀", "a:b", "a'; --", "A", "a", "a "]
    held = [
        Turn(SessionId(app, user, name), "1")
        for name in names
        for app, user in (("app", "user"), ("appu", "ser"))
    ]
    for turn in held:
        await one.turns.take(turn, reject())
    for turn in held:
        with pytest.raises(TurnBusyError):
            await two.turns.take(Turn(turn.session, "2"), reject())
    for turn in held:
        one.turns.release(turn)


async def test_close_gives_up_what_is_held(place: Place) -> None:
    """A service that is closed in the middle of a turn holds up no other process."""
    async with DurableSessionService.from_url(place.url) as two:
        async with DurableSessionService.from_url(place.url) as one:
            await one.turns.take(turn := Turn(KEY, "1"), reject())
        one.turns.release(turn)
        await asyncio.wait_for(two.turns.take(other := Turn(KEY, "2"), wait()), HANG_SECONDS)
        two.turns.release(other)


async def test_who_lost_its_lock_unnoticed_cannot_append(
    databases: tuple[DurableSessionService, DurableSessionService], place: Place
) -> None:
    """The revision is what fences it off: another turn has appended meanwhile."""
    one, two = databases
    lost, next_one = Turn(KEY, "lost"), Turn(KEY, "next")
    await one.turns.take(lost, reject())
    mine = await one.get_session(**SESSION)
    assert mine is not None
    await one.append_event(mine, said("mine", invocation="lost"))
    if place.url.startswith("sqlite"):
        for path in place.folder.glob("*-turns/*"):
            path.unlink()
    else:
        # What the server does when it takes the connection of the locks for dead.
        assert lost.lock is not None
        lost.lock.release()
    await asyncio.wait_for(two.turns.take(next_one, wait()), HANG_SECONDS)
    theirs = await two.get_session(**SESSION)
    assert theirs is not None
    await two.append_event(theirs, said("theirs", invocation="next"))
    with pytest.raises(StaleSessionError):
        await one.append_event(mine, said("more of mine", invocation="lost"))
    one.turns.release(lost)
    two.turns.release(next_one)
    assert texts(await log(two)) == ["mine", "theirs"]
