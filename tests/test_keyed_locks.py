"""Locks by key: one holder at a time, in order, on any event loop, and nothing is kept."""

from __future__ import annotations

import asyncio
import threading
from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from adk_memory_ext.keyed_locks import KeyedLocks

_STEPS: Final = 12


async def _ticks(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@given(
    st.lists(
        st.tuples(
            st.sampled_from("ab"),
            st.integers(0, 3),
            st.integers(0, 3),
            st.none() | st.integers(0, 6),
        ),
        max_size=_STEPS,
    )
)
def test_one_holds_a_key_at_a_time_in_the_order_of_arrival(
    tasks: list[tuple[str, int, int, int | None]],
) -> None:
    """Whoever is cancelled, at whatever moment, holds nothing and stands in nobody's way."""

    async def main() -> None:
        locks: KeyedLocks[str] = KeyedLocks()
        held: dict[str, int] = {}
        asked: dict[str, list[int]] = {"a": [], "b": []}
        granted: dict[str, list[int]] = {"a": [], "b": []}

        async def work(number: int, key: str, before: int, during: int) -> None:
            await _ticks(before)
            asked[key].append(number)
            await locks.acquire(key)
            try:
                granted[key].append(number)
                assert key not in held
                held[key] = number
                await _ticks(during)
                del held[key]
            finally:
                held.pop(key, None)
                locks.release(key)

        async def cancel(task: asyncio.Task[None], after: int) -> None:
            await _ticks(after)
            task.cancel()

        running = [
            asyncio.create_task(work(number, *task[:3])) for number, task in enumerate(tasks)
        ]
        cancelling = [
            asyncio.create_task(cancel(running[number], task[3]))
            for number, task in enumerate(tasks)
            if task[3] is not None
        ]
        async with asyncio.timeout(2):
            outcomes = await asyncio.gather(*running, return_exceptions=True)
            await asyncio.gather(*cancelling)
        assert all(
            outcome is None or isinstance(outcome, asyncio.CancelledError) for outcome in outcomes
        )
        for key in "ab":
            assert granted[key] == [number for number in asked[key] if number in granted[key]]
            async with asyncio.timeout(1):
                await locks.acquire(key)  # free again
            locks.release(key)
        assert not locks._waiting  # what a key leaves behind shows nowhere else

    asyncio.run(main())


def test_tasks_of_several_event_loops_share_a_lock() -> None:
    """Each loop is woken by the one before it."""
    locks: KeyedLocks[str] = KeyedLocks()
    counter = 0

    async def count() -> None:
        nonlocal counter
        for _ in range(50):
            await locks.acquire("key")
            seen = counter
            await _ticks(1)
            counter = seen + 1
            locks.release("key")

    async def main() -> None:
        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(count())

    threads = [threading.Thread(target=asyncio.run, args=(main(),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counter == len(threads) * 3 * 50


def test_a_loop_that_was_closed_is_passed_over() -> None:
    """Who waited there waits no more."""
    locks: KeyedLocks[str] = KeyedLocks()

    async def main() -> None:
        await locks.acquire("key")
        loop = asyncio.new_event_loop()
        waiting = loop.create_task(locks.acquire("key"))
        await asyncio.to_thread(loop.run_until_complete, _ticks(2))
        assert not waiting.done()
        loop.close()
        locks.release("key")
        async with asyncio.timeout(1):
            await locks.acquire("key")
        locks.release("key")

    asyncio.run(main())
