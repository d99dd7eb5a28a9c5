"""Callers are answered in the order in which they came, however fast each answer was found."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Hashable


class Arrivals:
    """The callers that ask for one thing each, by its name."""

    def __init__(self) -> None:
        self._last: dict[tuple[int, Hashable], asyncio.Future[None]] = {}

    @asynccontextmanager
    async def in_order(self, name: Hashable) -> AsyncIterator[None]:
        """Leaves the block only after those who entered it before with the same name.

        Only callers in one event loop wait for each other; a cancelled one holds up nobody.
        """
        loop = asyncio.get_running_loop()
        key = (id(loop), name)
        before = self._last.get(key)
        mine = self._last[key] = loop.create_future()
        try:
            yield
            if before is not None and not before.done():
                await asyncio.wait([before])
        finally:
            mine.set_result(None)
            if self._last.get(key) is mine:
                del self._last[key]
