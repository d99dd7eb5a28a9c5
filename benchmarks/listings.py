"""What a list of a user's sessions costs: all of them, as ADK lists them, or a page."""

from __future__ import annotations

import asyncio
import statistics
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from google.adk.sessions.database_session_service import DatabaseSessionService
from google.adk.sessions.schemas.v1 import StorageSession
from sqlalchemy import insert

from benchmarks.adk_stores import APP, AdkStore, open_adk, open_ours
from benchmarks.contenders import ADK, OURS
from benchmarks.rounds import Measured, in_turns
from benchmarks.workload import padded_state

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from google.adk.sessions.base_session_service import BaseSessionService

    from adk_memory_ext import DurableSessionService
    from benchmarks.effort import Effort

PAGE: Final = 50
"""Sessions on a page."""
STATE_BYTES: Final = 2_000
"""State of each listed session, as JSON."""
_USER: Final = "reader"
_AT_ONCE: Final = 256
_PAGES_A_TURN: Final = 20
_MILLISECONDS: Final = 1_000


async def seed_sessions(service: BaseSessionService, count: int) -> None:
    """Stores `count` sessions of one user.

    Ours by many `create_session` at once. ADK's `DatabaseSessionService` would take minutes, so it
    gets the rows that its `create_session` writes, made by its own table model, in one transaction.
    """
    state = padded_state(STATE_BYTES)

    async def create(number: int) -> None:
        await service.create_session(
            app_name=APP, user_id=_USER, session_id=f"session-{number}", state=dict(state)
        )

    await create(0)
    if isinstance(service, DatabaseSessionService):
        await _insert_sessions(service, range(1, count), state)
        return
    for first in range(1, count, _AT_ONCE):
        async with asyncio.TaskGroup() as tasks:
            for number in range(first, min(first + _AT_ONCE, count)):
                tasks.create_task(create(number))


async def _insert_sessions(
    service: DatabaseSessionService, numbers: range, state: dict[str, Any]
) -> None:
    now = datetime.now(UTC).replace(tzinfo=None)  # naive UTC, as the service stores it in SQLite
    rows: list[dict[str, Any]] = []
    for number in numbers:
        time = now + timedelta(milliseconds=number)
        row = {"app_name": APP, "user_id": _USER, "id": f"session-{number}", "state": state}
        rows.append(row | {"create_time": time, "update_time": time})
    async with service.database_session_factory.begin() as database:
        await database.execute(insert(StorageSession), rows)


@dataclass
class _Pages:
    """Pages of one user's sessions, each after the one before; from the start after the last."""

    service: DurableSessionService
    cursor: str | None = None

    async def turn(self) -> float:
        """Returns the median time of a page in milliseconds."""
        times = []
        for _ in range(_PAGES_A_TURN):
            start = perf_counter()
            page = await self.service.list_sessions_page(APP, _USER, limit=PAGE, after=self.cursor)
            times.append(perf_counter() - start)
            if not page.sessions:
                raise AssertionError("an empty page")
            self.cursor = page.next
        return statistics.median(times) * _MILLISECONDS


async def _time_list(service: BaseSessionService, count: int) -> float:
    """Returns the milliseconds that one `list_sessions` takes."""
    start = perf_counter()
    response = await service.list_sessions(app_name=APP, user_id=_USER)
    elapsed = perf_counter() - start
    if len(response.sessions) != count:
        raise AssertionError(f"{len(response.sessions)} of {count} sessions listed")
    return elapsed * _MILLISECONDS


async def measure_listings(
    url: Callable[[str], str], effort: Effort, step: Callable[[float], None]
) -> Measured:
    """Measures `list_ms/<sessions>` of ADK and `page_ms/<sessions>` of ours.

    Args:
        url: Returns a database of that name.
        effort: How long.
        step: Is told the part that is done, from 0 to 1.
    """
    measured = Measured()
    async with AsyncExitStack() as stack:

        async def seeded(store: AbstractAsyncContextManager[AdkStore], count: int) -> Any:
            service = (await stack.enter_async_context(store)).service
            await seed_sessions(service, count)
            step(0.9 * count / effort.listed_many)
            return service

        few, many = effort.listed, effort.listed_many
        listing = await seeded(open_adk(url(ADK.name)), few)
        pages = {
            f"page_ms/{count}": _Pages(await seeded(open_ours(url(f"{OURS.name}-{count}")), count))
            for count in (few, many)
        }
        for _number, turn in in_turns(["list", *pages], effort.list_rounds):
            if turn == "list":
                value = await _time_list(listing, few)
                measured.add(f"list_ms/{few}", ADK.name, value)
            else:
                measured.add(turn, OURS.name, await pages[turn].turn())
        step(1)
    return measured
