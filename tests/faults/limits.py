"""What a process does that may not write as much as it wants."""

from __future__ import annotations

import asyncio
import resource
from pathlib import Path
from typing import Any, Final

from adk_memory_ext.errors import StoreUnavailableError
from adk_memory_ext.service import DurableSessionService
from conversation import said, texts
from tables import file_url

KEY: Final[dict[str, Any]] = {"app_name": "app", "user_id": "user", "session_id": "session"}
ROOM: Final = 100_000
"""Bytes by which each file may still grow."""


def write_past_the_limit(_number: int, folder: str) -> tuple[list[str], list[str]]:
    """Appends while files may not grow and again afterwards; returns errors and what is stored."""

    def may_grow_by(size: int) -> None:
        largest = max(path.stat().st_size for path in Path(folder).iterdir())
        _soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest + size, hard))

    async def work() -> tuple[list[str], list[str]]:
        errors = []
        async with DurableSessionService.from_url(file_url(Path(folder))) as sessions:
            session = await sessions.create_session(**KEY)
            await sessions.append_event(session, said("first"))
            may_grow_by(ROOM)
            for size in (4 * ROOM, 2 * ROOM):
                try:
                    await sessions.append_event(session, said("x" * size, state={"size": size}))
                except StoreUnavailableError as error:
                    errors.append(str(error))
            await sessions.append_event(session, said("small"))
            may_grow_by(100 * ROOM)
            await sessions.append_event(session, said("x" * 2 * ROOM))
            found = await sessions.get_session(**KEY)
        return errors, [] if found is None else [text[:5] for text in texts(found.events)]

    return asyncio.run(work())
