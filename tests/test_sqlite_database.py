"""The writing thread: whole functions, in their order, those that come together in one commit."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import make_url

from adk_memory_ext.database import DatabaseOptions
from adk_memory_ext.errors import StoreUnavailableError
from adk_memory_ext.sqlite_database import SqliteDatabase

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from adk_memory_ext.statements import Transaction

TASKS: Final = 32
PREPARING: Final = 0.000_5
"""Seconds; for all tasks longer than one thread keeps the interpreter to itself."""


def opened(path: Path) -> SqliteDatabase:
    """Returns a database in a new file."""
    return SqliteDatabase(make_url(f"sqlite:///{path}/memory.db"), DatabaseOptions())


def noting(done: list[int], number: int) -> Callable[[Transaction], None]:
    """Returns a write that notes that it was done."""
    return lambda _tx: done.append(number)


async def crowd(database: SqliteDatabase) -> None:
    """Has writes come together, so that those of a round are handed over together from now on."""
    begun, go_on = threading.Event(), threading.Event()

    def block(_tx: Transaction) -> None:
        begun.set()
        go_on.wait()

    async with asyncio.TaskGroup() as group:
        group.create_task(database.write(block))
        await asyncio.to_thread(begun.wait)
        for _ in range(4):
            group.create_task(database.write(lambda _tx: None))
        await asyncio.sleep(0)  # they are asked for
        go_on.set()


async def test_writes_of_a_crowd_begin_together(tmp_path: Path) -> None:
    """None is taken while the tasks of a round still prepare theirs."""
    database = opened(tmp_path)
    await crowd(database)
    asked = 0
    seen: list[int] = []

    async def write() -> None:
        nonlocal asked
        ready = time.perf_counter() + PREPARING
        while time.perf_counter() < ready:
            pass
        asked += 1
        await database.write(lambda _tx: seen.append(asked))

    async with asyncio.TaskGroup() as group:
        for _ in range(TASKS):
            group.create_task(write())
    await database.close()
    assert seen == [TASKS] * TASKS


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.booleans()),
        min_size=1,
        max_size=20,
    )
)
def test_one_loop_s_writes_are_done_in_the_order_in_which_they_were_asked_for(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, bool]]
) -> None:
    """Whether they are handed over one by one or together, and whoever waits in between."""
    asked: list[int] = []
    done: list[int] = []

    async def main() -> None:
        database = opened(tmp_path_factory.mktemp("order"))
        writes = []
        for number, (ticks, waits) in enumerate(steps):
            asked.append(number)
            write = asyncio.ensure_future(database.write(noting(done, number)))
            writes.append(write)
            for _ in range(ticks):
                await asyncio.sleep(0)
            if waits:
                await write
        await asyncio.gather(*writes)
        await database.close()

    asyncio.run(main())
    assert done == asked


@pytest.mark.parametrize("ticks", range(4))
async def test_what_was_gathered_is_done_before_the_end(tmp_path: Path, ticks: int) -> None:
    """A write that was asked for before `close` is stored; one after it is refused."""
    database = opened(tmp_path)
    await crowd(database)
    done: list[int] = []
    writes = [
        asyncio.ensure_future(database.write(noting(done, number))) for number in range(TASKS)
    ]
    for _ in range(ticks):
        await asyncio.sleep(0)
    await database.close()
    async with asyncio.timeout(10):
        outcomes = await asyncio.gather(*writes, return_exceptions=True)
    assert len(done) == outcomes.count(None)
    refused = [outcome for outcome in outcomes if outcome is not None]
    assert all(isinstance(outcome, StoreUnavailableError) for outcome in refused)
    assert not refused or ticks == 0  # by then no write had been asked for


async def test_settling_waits_for_what_was_gathered(tmp_path: Path) -> None:
    """Also for a write whose caller is gone."""
    database = opened(tmp_path)
    await crowd(database)
    done: list[str] = []
    write = asyncio.ensure_future(database.write(lambda _tx: done.append("work")))
    await asyncio.sleep(0)
    await database.settle()
    assert done == ["work"]
    await write
    await database.close()


async def test_a_write_that_is_cancelled_while_it_is_gathered_leaves_nothing(
    tmp_path: Path,
) -> None:
    """And those beside it are done."""
    database = opened(tmp_path)
    await crowd(database)
    done: list[int] = []
    writes = [asyncio.ensure_future(database.write(noting(done, number))) for number in range(4)]
    await asyncio.sleep(0)  # asked for, and not handed over yet
    writes[1].cancel()
    await asyncio.gather(*writes, return_exceptions=True)
    await database.close()
    assert done == [0, 2, 3]
