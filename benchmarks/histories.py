"""What the length of a session's history costs: loading all of it, its tail, and an append."""

from __future__ import annotations

import asyncio
import gc
import resource
import statistics
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.sessions.database_session_service import DatabaseSessionService
from google.adk.sessions.schemas.v1 import StorageEvent, StorageSession
from sqlalchemy import update

from adk_memory_ext import DurableSessionService
from benchmarks.adk_stores import APP, AdkConversation, open_adk, open_ours
from benchmarks.appends import time_appends
from benchmarks.contenders import ADK, OURS
from benchmarks.rounds import Measured, in_turns
from benchmarks.workload import messages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from google.adk.sessions.base_session_service import BaseSessionService
    from google.adk.sessions.session import Session

    from benchmarks.effort import Effort
    from benchmarks.workload import Message

TAIL: Final = 20
"""Events that an application loads when it does not want them all."""
_TAIL_CONFIG: Final = GetSessionConfig(num_recent_events=TAIL)
_TAILS_A_TURN: Final = 5
_APPENDS_A_TURN: Final = 10
_SHORT: Final = 100
"""Sessions up to this length would grow visibly while they are measured; each round has its own."""
_MILLISECONDS: Final = 1_000
_FIRST: Final = "first"
_STATM: Final = Path("/proc/self/statm")


async def seed_history(service: BaseSessionService, name: str, length: int) -> None:
    """Stores a session with `length` events.

    Ours by `append_event`. ADK's `DatabaseSessionService` would take a minute for 10,000 events, so
    it gets the very rows that its `append_event` writes, made by its own table models, in one
    transaction.
    """
    session = await service.create_session(app_name=APP, user_id=name, session_id=name)
    events = [message.to_event() for message in islice(messages(name), length)]
    if not isinstance(service, DatabaseSessionService):
        for event in events:
            await service.append_event(session, event)
        return
    rows = [StorageEvent.from_event(session, event) for event in events]
    row = (StorageSession.app_name == APP, StorageSession.user_id == name)
    async with service.database_session_factory.begin() as database:
        database.add_all(rows)
        await database.execute(
            update(StorageSession)
            .where(*row, StorageSession.id == name)
            .values(state=dict(events[-1].actions.state_delta), update_time=rows[-1].timestamp)
        )


@dataclass
class _Histories:
    """Sessions of every length, in one database of each contender."""

    services: dict[str, BaseSessionService]
    forgetful: BaseSessionService
    """Ours over the same database, without a cache."""
    effort: Effort
    measured: Measured

    async def seed(self) -> None:
        """Stores the sessions."""
        for service in self.services.values():
            for length in sorted({*self.effort.lengths, TAIL}):
                await seed_history(service, f"history-{length}", length)
                if length <= _SHORT:
                    for number in range(self.effort.history_rounds):
                        await seed_history(service, f"history-{length}-{number}", length)

    async def load(self) -> None:
        """Measures `get_session` with all events, each session loaded before by each contender.

        `load_ms/<length>` is the call alone, `read_ms/<length>` the call and a look at the text of
        every event, and `first_load_ms/<length>` what ours takes where it has loaded nothing.
        """
        for length, rounds in self.effort.loads:
            name = f"history-{length}"
            for service in self.services.values():
                await _time_load(service, name, None)
            for _number, contender in in_turns([*self.services, _FIRST], rounds):
                if contender == _FIRST:
                    value = await _time_load(self.forgetful, name, None)
                    self.measured.add(f"first_load_ms/{length}", OURS.name, value)
                    continue
                for quantity, read in (("load_ms", False), ("read_ms", True)):
                    value = await _time_load(self.services[contender], name, None, read=read)
                    self.measured.add(f"{quantity}/{length}", contender, value)

    async def grow(self) -> None:
        """Measures `growth_kib`: by how much a load of all events leaves the process larger."""
        length, rounds = self.effort.loads[-1]
        for name, service in self.services.items():
            before = 0.0
            for number in range(2 * rounds):
                if number == rounds:  # by now everything that is kept has been
                    before = _resident_kib()
                await _time_load(service, f"history-{length}", None, read=True)
            self.measured.add("growth_kib", name, (_resident_kib() - before) / rounds)

    async def load_tail(self) -> None:
        """Measures `tail_ms/<length>`: `get_session` with the last 20 events."""
        lengths = sorted({*self.effort.lengths, TAIL})
        turns = [f"{name}/{length}" for name in self.services for length in lengths]
        for _number, turn in in_turns(turns, self.effort.tail_rounds):
            name, _, length = turn.partition("/")
            values = [
                await _time_load(self.services[name], f"history-{length}", _TAIL_CONFIG)
                for _ in range(_TAILS_A_TURN)
            ]
            self.measured.add(f"tail_ms/{length}", name, statistics.median(values[1:]))

    async def append(self) -> None:
        """Measures `append_ms/<length>`: appends to a session loaded with all its events."""
        long: dict[str, _Talk] = {}
        turns = [f"{name}/{length}" for name in self.services for length in self.effort.lengths]
        for number, turn in in_turns(turns, self.effort.history_rounds):
            name, _, length = turn.partition("/")
            if int(length) <= _SHORT:
                talk = await _talk(self.services[name], f"history-{length}-{number}", int(length))
            else:
                if turn not in long:
                    long[turn] = await _talk(self.services[name], f"history-{length}", int(length))
                talk = long[turn]
            value = await time_appends(*talk, _APPENDS_A_TURN)
            self.measured.add(f"append_ms/{length}", name, value)


_Talk = tuple[AdkConversation, "Iterator[Message]"]


async def _talk(service: BaseSessionService, name: str, length: int) -> _Talk:
    """Returns the loaded session and the messages that come after those it has."""
    session = await _load(service, name, None)
    if len(session.events) != length:
        raise AssertionError(f"{name} has {len(session.events)} events")
    return AdkConversation(service, session), islice(messages(name), length, None)


async def _time_load(
    service: BaseSessionService, name: str, config: GetSessionConfig | None, *, read: bool = False
) -> float:
    """Returns the milliseconds that one `get_session` takes, with Python's collector as it is.

    With `read`, a look at the text of every event is part of it. After a load of many events, what
    it has left is collected; a few events leave too little to be worth it.
    """
    start = perf_counter()
    session = await _load(service, name, config)
    if read and not all(event.content and event.content.parts for event in session.events):
        raise AssertionError(f"{name} came back without its texts")
    elapsed = perf_counter() - start
    if not session.events:
        raise AssertionError(f"{name} came back empty")
    is_long = len(session.events) > _SHORT
    del session
    if is_long:
        # The event loop holds the result that woke this task until the task waits once more.
        await asyncio.sleep(0)
        gc.collect()
    return elapsed * _MILLISECONDS


def _resident_kib() -> float:
    """Returns how much memory the process has, garbage collected; 0 where there is no /proc."""
    gc.collect()
    if not _STATM.exists():
        return 0
    pages = int(_STATM.read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / 1024


async def _load(service: BaseSessionService, name: str, config: Any) -> Session:
    session = await service.get_session(app_name=APP, user_id=name, session_id=name, config=config)
    if session is None:
        raise AssertionError(f"there is no {name}")
    return session


async def measure_histories(
    url: Callable[[str], str], effort: Effort, step: Callable[[float], None]
) -> Measured:
    """Measures loading, loading the tail, and appending, for every length of history.

    Loading comes first: the sessions that the appends keep in memory would slow the collector.

    Args:
        url: Returns a contender's own database by its name.
        effort: How long.
        step: Is told the part that is done, from 0 to 1.
    """
    measured = Measured()
    async with AsyncExitStack() as stack:
        adk = await stack.enter_async_context(open_adk(url(ADK.name)))
        ours = await stack.enter_async_context(open_ours(url(OURS.name)))
        services = {ADK.name: adk.service, OURS.name: ours.service}
        forgetful = await stack.enter_async_context(
            DurableSessionService.from_url(url(OURS.name), cache_bytes=0)
        )
        histories = _Histories(services, forgetful, effort, measured)
        phases = (
            *(histories.seed, histories.load, histories.grow),
            *(histories.load_tail, histories.append),
        )
        for number, phase in enumerate(phases, 1):
            await phase()
            step(number / len(phases))
    return measured
