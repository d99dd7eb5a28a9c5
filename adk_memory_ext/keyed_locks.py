"""A lock for each key, for tasks of any event loop."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable

K = TypeVar("K", bound="Hashable")


class KeyedLocks(Generic[K]):
    """Locks that are made when they are asked for, and forgotten when nobody holds them.

    First come, first served. `asyncio.Lock` serves one event loop only, and `Runner.run` of ADK
    starts a thread with a loop of its own at each call (google-adk 2.13.0).
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._waiting: dict[K, deque[asyncio.Future[None]]] = {}

    async def acquire(self, key: K) -> None:
        """Returns when the caller holds the lock of the key; a cancelled one does not hold it."""
        with self._guard:
            waiting = self._waiting.get(key)
            if waiting is None:
                self._waiting[key] = deque()
                return
            granted = asyncio.get_running_loop().create_future()
            waiting.append(granted)
        try:
            await granted
        except asyncio.CancelledError:
            with self._guard:
                was_waiting = granted in waiting
                if was_waiting:
                    waiting.remove(granted)
            if not was_waiting:  # it has just been granted
                self.release(key)
            raise

    def release(self, key: K) -> None:
        """Gives the lock to the one who has waited longest; only for who holds it."""
        while True:
            with self._guard:
                waiting = self._waiting[key]
                if not waiting:
                    del self._waiting[key]
                    return
                granted = waiting.popleft()
            try:
                granted.get_loop().call_soon_threadsafe(grant, granted)
            except RuntimeError:  # that loop was closed, and nobody waits there any more
                continue
            return


def grant(granted: asyncio.Future[None]) -> None:
    """Lets the one go on who waits for it, in its own event loop, and who may be gone by now."""
    if not granted.done():
        granted.set_result(None)
