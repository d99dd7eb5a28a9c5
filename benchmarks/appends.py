"""What an append costs: one conversation at a time, and many at once."""

from __future__ import annotations

import asyncio
import sqlite3
import statistics
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import islice
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy.exc import SQLAlchemyError

from benchmarks.rounds import Measured, in_turns, percentile
from benchmarks.workload import messages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from benchmarks.contenders import Contender
    from benchmarks.effort import Effort
    from benchmarks.store import Conversation, Store
    from benchmarks.workload import Message

WARM_UP: Final = 2
"""Appends at the start of each turn that are not counted: another contender ran before."""
_MOST_APPENDS_A_TASK: Final = 60
_MILLISECONDS: Final = 1_000


async def time_appends(conversation: Conversation, stream: Iterator[Message], count: int) -> float:
    """Returns the median time in milliseconds of `count` appends, one after the other."""
    times = []
    for message in islice(stream, WARM_UP + count):
        prepared = conversation.prepare(message)
        start = perf_counter()
        await conversation.append(prepared)
        times.append(perf_counter() - start)
    return statistics.median(times[WARM_UP:]) * _MILLISECONDS


async def measure_appends(
    contenders: Sequence[Contender],
    url: Callable[[str], str],
    effort: Effort,
    step: Callable[[float], None],
) -> Measured:
    """Measures `append_ms`: the median append of each round, one conversation per contender.

    Args:
        contenders: Who takes turns.
        url: Returns a contender's own database by its name.
        effort: How long.
        step: Is told the part that is done, from 0 to 1.
    """
    measured = Measured()
    async with AsyncExitStack() as stack:
        conversations: dict[str, Conversation] = {}
        for contender in contenders:
            store = await stack.enter_async_context(contender.open(url(contender.name)))
            measured.note("durability", contender.name, store.durability)
            conversations[contender.name] = await store.conversation("one")
        streams = {name: messages("one") for name in conversations}
        for number, name in in_turns(list(conversations), effort.append_rounds):
            value = await time_appends(conversations[name], streams[name], effort.appends)
            measured.add("append_ms", name, value)
            step((number + 1) / effort.append_rounds)
    return measured


async def measure_concurrency(
    contenders: Sequence[Contender],
    url: Callable[[str], str],
    effort: Effort,
    step: Callable[[float], None],
) -> Measured:
    """Measures `appends_per_second` and `p99_ms` with many sessions at once.

    Each task appends to a session of its own, one event after the other, as many as the contender
    manages in about the same time; the first round finds out how many and is not counted. The
    arguments are those of `measure_appends`.
    """
    measured = Measured()
    async with AsyncExitStack() as stack:
        crowds: dict[str, _Crowd] = {}
        for contender in contenders:
            store = await stack.enter_async_context(contender.open(url(contender.name)))
            measured.note("durability", contender.name, store.durability)
            crowds[contender.name] = _Crowd(store, effort.sessions)
        for number, name in in_turns(list(crowds), effort.concurrent_rounds + 1):
            crowd = crowds[name]
            rate, p99 = await crowd.append(number)
            if number == 0:
                crowd.appends_a_task = _appends_a_task(rate, effort)
            else:
                measured.add("appends_per_second", name, rate)
                measured.add("p99_ms", name, p99)
            step((number + 1) / (effort.concurrent_rounds + 1))
        for name, crowd in crowds.items():
            measured.note("failures", name, crowd.failures_in_words())
    return measured


def _appends_a_task(rate: float, effort: Effort) -> int:
    """Returns how many appends of each task take about the time of a turn."""
    wanted = int(rate * effort.concurrent_seconds / effort.sessions)
    return min(max(wanted, 2), _MOST_APPENDS_A_TASK)


@dataclass
class _Crowd:
    """Tasks that append to one store at once."""

    store: Store
    sessions: int
    appends_a_task: int = 4
    appended: int = 0
    failures: dict[str, int] = field(default_factory=dict)

    async def append(self, number: int) -> tuple[float, float]:
        """Returns appends per second and the 99th percentile of their times in milliseconds.

        Sessions and events are new in every round and made beforehand.
        """
        talks = []
        for index in range(self.sessions):
            name = f"round-{number}-{index}"
            conversation = await self.store.conversation(name)
            stream = islice(messages(name), self.appends_a_task)
            talks.append((conversation, [conversation.prepare(message) for message in stream]))
        times: list[float] = []
        start = perf_counter()
        async with asyncio.TaskGroup() as tasks:
            for conversation, prepared in talks:
                tasks.create_task(self._talk(conversation, prepared, times))
        seconds = perf_counter() - start
        self.appended += len(times)
        return len(times) / seconds, percentile(times, 99) * _MILLISECONDS

    async def _talk(
        self, conversation: Conversation, prepared: list[Any], times: list[float]
    ) -> None:
        for one in prepared:
            start = perf_counter()
            try:
                await conversation.append(one)
            except (SQLAlchemyError, sqlite3.Error, OSError) as error:
                # A failed append takes time and stores nothing; the next event is tried.
                reason = f"{type(error).__name__}: {str(error).splitlines()[0]}"
                self.failures[reason] = self.failures.get(reason, 0) + 1
            else:
                times.append(perf_counter() - start)

    def failures_in_words(self) -> str:
        """Returns how many appends failed and why; empty if none did."""
        total = self.appended + sum(self.failures.values())
        return "; ".join(
            f"{count} of {total} failed ({reason})" for reason, count in self.failures.items()
        )
