"""What belongs to one event loop, such as a connection: one for each loop, gone when it ends."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

T = TypeVar("T")

PATIENCE_SECONDS: Final = 5.0
"""How long a close waits for another event loop."""


class PerLoop(Generic[T]):
    """Makes a value for each event loop that asks for one, and closes it in that loop.

    A network connection of asyncio works in the loop that opened it only, and `Runner.run` of ADK
    starts a thread with a new loop at each call (google-adk 2.13.0). `asyncio.run` ends with
    closing all asynchronous generators of its loop
    (https://docs.python.org/3/library/asyncio-eventloop.html#asyncio.loop.shutdown_asyncgens), so
    that one stands behind each value.

    Args:
        make: Makes a value; called in the running loop.
        close: Closes one, in its own loop.
    """

    def __init__(self, make: Callable[[], T], close: Callable[[T], Awaitable[None]]) -> None:
        self._make = make
        self._close = close
        self._values: dict[asyncio.AbstractEventLoop, tuple[T, AsyncGenerator[None]]] = {}

    async def here(self) -> T:
        """Returns the value of the running loop, which is made at the first call."""
        self._forget_closed()
        loop = asyncio.get_running_loop()
        known = self._values.get(loop)
        if known is None:
            known = self._values[loop] = self._make(), self._until_loop_ends(loop)
            await anext(known[1])  # from now on the loop knows of it
        return known[0]

    async def close(self) -> None:
        """Closes the values of all loops that run; may be called again, also when cancelled.

        A loop that does not answer, because something blocks it or it is ending, is left to its
        own end.
        """
        here = asyncio.get_running_loop()
        for loop in [*self._values]:
            if loop is here:
                await self._close_in(loop)
            elif loop.is_running():
                closing = self._close_in(loop)
                try:
                    there = asyncio.run_coroutine_threadsafe(closing, loop)
                except RuntimeError:  # it has just been closed
                    closing.close()
                else:
                    await asyncio.wait({asyncio.wrap_future(there)}, timeout=PATIENCE_SECONDS)

    async def _close_in(self, loop: asyncio.AbstractEventLoop) -> None:
        known = self._values.get(loop)
        if known is not None:
            await self._end(loop)
            await known[1].aclose()

    async def _until_loop_ends(self, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            await self._end(loop)

    async def _end(self, loop: asyncio.AbstractEventLoop) -> None:
        known = self._values.get(loop)
        if known is not None:
            await self._close(known[0])
            self._values.pop(loop, None)

    def _forget_closed(self) -> None:
        """Lets go of what loops that ended without closing it have left, sockets and locks."""
        for loop in [loop for loop in [*self._values] if loop.is_closed()]:
            self._values.pop(loop, None)


def of_this_loop(tasks: set[asyncio.Task[Any]]) -> set[asyncio.Task[Any]]:
    """Returns those tasks that the running loop can wait for."""
    loop = asyncio.get_running_loop()
    return {task for task in tasks.copy() if task.get_loop() is loop}
