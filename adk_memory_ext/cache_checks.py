"""Looks from time to time whether what is kept in memory is still stored.

A load notices by itself that its session is gone. What nobody loads again must not stay either:
an erasure in another process ends when this one has let go of the words too.
"""

from __future__ import annotations

import asyncio
import weakref
from typing import TYPE_CHECKING, Final

from adk_memory_ext.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Sequence

    from adk_memory_ext.event_cache import EventCache

EVERY_SECONDS: Final = 5.0
"""How long a session that is stored no more may stay in memory, while the event loop runs."""
IDLE_SECONDS: Final = 600.0
"""After this time without a load a session is kept no longer: an idle service asks nothing."""


class CacheChecks:
    """Has a cache forget the sessions that are stored no more, or of which events were removed.

    Args:
        cache: The cache.
        living: Returns which of some sessions are stored: the log versions of those of the given
            session keys.
    """

    def __init__(
        self, cache: EventCache, living: Callable[[Sequence[int]], Awaitable[Collection[int]]]
    ) -> None:
        self._cache = cache
        self._living = living
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None

    def go_on(self) -> None:
        """Looks again in a few seconds, and so on until nothing is kept. Called at each load."""
        loop = asyncio.get_running_loop()
        if self._loop is loop or not len(self._cache):
            return
        self._loop = loop
        # A service that nobody closed and nobody holds is not kept alive by this.
        begin = weakref.WeakMethod(self._begin)
        self._timer = loop.call_later(
            EVERY_SECONDS, lambda: (method := begin()) is not None and method()
        )

    def _begin(self) -> None:
        self._task = asyncio.ensure_future(self._check_and_go_on())

    async def _check_and_go_on(self) -> None:
        try:
            await self.check()
        finally:
            self._loop = None
            self.go_on()

    async def check(self) -> None:
        """Keeps nothing of sessions that are stored no more; nothing at all if nobody can tell."""
        self._cache.forget_idle(IDLE_SECONDS)
        kept = self._cache.kept()
        if not kept:
            return
        try:
            living = await self._living(list(kept.values()))
        except StoreError:
            self._cache.clear()
            return
        self._cache.forget_versions(kept.keys() - set(living))

    async def close(self) -> None:
        """Looks no more."""
        task, self._task = self._task, None
        if task is not None and task.get_loop() is asyncio.get_running_loop() and not task.done():
            task.cancel()
            await asyncio.wait([task])
        if self._timer is not None:  # last: what was cancelled has set it anew
            self._timer.cancel()
        self._timer = self._loop = None
