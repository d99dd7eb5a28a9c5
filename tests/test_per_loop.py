"""A value for each event loop: made there, closed there, and not kept when the loop is gone."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING, Final

import pytest

from adk_memory_ext import per_loop
from adk_memory_ext.per_loop import PerLoop

if TYPE_CHECKING:
    from collections.abc import Iterator


class Line:
    """Notes in which loop it was made and closed."""

    made: Final[list[Line]] = []

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.closed_in: list[asyncio.AbstractEventLoop] = []
        self.made.append(self)

    async def close(self) -> None:
        """Takes a few ticks."""
        for _ in range(3):
            await asyncio.sleep(0)
        self.closed_in.append(asyncio.get_running_loop())


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[PerLoop[Line]]:
    """Lines by loop; each is closed in its own, and no loop complains at its end."""
    Line.made.clear()
    yield PerLoop(Line, Line.close)
    assert all(line.closed_in[:1] == [line.loop] for line in Line.made)
    assert not caplog.get_records("call")


def test_a_loop_has_one_and_closes_it_at_its_end(lines: PerLoop[Line]) -> None:
    """Nobody closes anything."""

    async def main() -> None:
        assert await lines.here() is (await asyncio.gather(lines.here(), lines.here()))[1]

    asyncio.run(main())
    asyncio.run(main())
    first, second = Line.made
    assert first.loop is not second.loop
    assert len(first.closed_in) == len(second.closed_in) == 1


def test_closing_ends_those_of_other_loops_there(lines: PerLoop[Line]) -> None:
    """Also while their threads go on."""
    ready, over = threading.Event(), threading.Event()

    async def elsewhere() -> None:
        await lines.here()
        ready.set()
        await asyncio.to_thread(over.wait)

    async def main() -> None:
        await lines.here()
        await lines.close()
        assert [len(line.closed_in) for line in Line.made] == [1, 1]

    thread = threading.Thread(target=asyncio.run, args=(elsewhere(),))
    thread.start()
    ready.wait()
    asyncio.run(main())
    over.set()
    thread.join()


def test_closing_leaves_a_blocked_loop_to_its_end(
    lines: PerLoop[Line], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for ever for who does not answer."""
    monkeypatch.setattr(per_loop, "PATIENCE_SECONDS", 0.05)
    ready, over = threading.Event(), threading.Event()

    async def elsewhere() -> None:
        await lines.here()
        ready.set()
        over.wait()  # blocks the loop

    thread = threading.Thread(target=asyncio.run, args=(elsewhere(),))
    thread.start()
    ready.wait()
    asyncio.run(lines.close())
    (line,) = Line.made
    assert not line.closed_in
    over.set()
    thread.join()
    assert len(line.closed_in) == 1


@pytest.mark.parametrize("ticks", range(6))
def test_a_cancelled_close_can_be_repeated(lines: PerLoop[Line], ticks: int) -> None:
    """What it had not closed by then is closed."""

    async def main() -> None:
        await lines.here()
        closing = asyncio.ensure_future(lines.close())
        for _ in range(ticks):
            await asyncio.sleep(0)
        closing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await closing
        await lines.close()
        assert len(Line.made[0].closed_in) == 1
        await lines.here()  # and it may go on

    asyncio.run(main())
    assert len(Line.made) == 2


def test_a_loop_that_ended_by_itself_is_not_kept(lines: PerLoop[Line]) -> None:
    """Whoever ends a loop without its generators leaves a value that nobody can close."""
    loop = asyncio.new_event_loop()
    loop.run_until_complete(lines.here())
    (left,) = Line.made

    async def main() -> None:
        await lines.here()
        assert len(lines._values) == 2
        loop.close()
        await lines.here()
        assert len(lines._values) == 1

    asyncio.run(main())
    assert not left.closed_in
    Line.made.remove(left)
