"""Several processes on one database at the same time."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from adk_memory_ext.cache_checks import EVERY_SECONDS
from adk_memory_ext.errors import ErasureIncompleteError
from adk_memory_ext.service import DurableSessionService
from backends import count
from conversation import texts
from restart.child import Child
from restart.children import APP, USER, load_and_wait, look_on, write_beside, write_slowly
from restart.found import found
from servers import HANG_SECONDS

if TYPE_CHECKING:
    from adk_memory_ext.erasure.receipts import Receipt


@pytest.mark.parametrize("url", ["sqlite", "postgresql"], indirect=True)
def test_a_reader_sees_one_moment_after_the_other(url: str) -> None:
    """A process that reads while another one writes sees whole events and a state that fits."""
    number = count(60, 600)
    with Child(look_on, (url, number)) as reader, Child(write_slowly, (url, number)) as writer:
        while reader.hear() < number // 2:
            pass
        writer.tell("go on")  # the reader has seen the first half before the second begins
        assert writer.end() == 0
        assert reader.end() == 0

    assert reader.heard[-1] == number
    session = found(url)["s"]
    assert texts(session.events) == [f"event {n}" for n in range(number)]
    session.assert_consistent()


@pytest.mark.parametrize("url", ["sqlite", "postgresql"], indirect=True)
@pytest.mark.parametrize("processes", [2, 4])
def test_processes_that_write_at_once_lose_nothing(url: str, processes: int) -> None:
    """Processes that open a new database together and write together keep every event and key."""
    number = count(25, 250)
    names = [f"p{n}" for n in range(processes)]
    with ExitStack() as stack:
        writers = [stack.enter_context(Child(write_beside, (url, n, number))) for n in names]
        assert [writer.hear() for writer in writers] == ["ready"] * processes
        for writer in writers:
            writer.tell("go")
        assert [writer.end() for writer in writers] == [0] * processes

    sessions = found(url)
    keys = {f"{name}-{n}": n for name in names for n in range(number)}
    keys |= {f"{name}-begun": 1 for name in names}
    assert sorted(sessions) == names
    for name, session in sessions.items():
        assert texts(session.events) == [f"{name} {n}" for n in range(number)]
        assert session.user_state == keys
        assert session.app_state == {f"app:{key}": value for key, value in keys.items()}


@pytest.mark.parametrize("url", ["sqlite", "postgresql"], indirect=True)
async def test_an_erasure_reaches_the_memory_of_another_process(url: str) -> None:
    """A process that has loaded a session holds nothing of it soon after another one erased it."""
    with Child(load_and_wait, (url,)) as child:
        assert child.hear() > 0
        async with DurableSessionService.from_url(url) as sessions:
            receipt = await erased(sessions)
        assert receipt.counts["events"] == 1
        child.tell("erased")
        seconds, left = child.hear(), child.hear()
        assert child.end() == 0
    assert left == 0
    assert seconds < EVERY_SECONDS + HANG_SECONDS


async def erased(sessions: DurableSessionService) -> Receipt:
    """Erases the person; on a server, of whose files nobody can tell, without their check."""
    try:
        return await sessions.erasure.erase_user(app_name=APP, user_id=USER)
    except ErasureIncompleteError as error:
        receipt: Receipt = error.receipt
        return receipt
