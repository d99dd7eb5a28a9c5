"""What a recall of a user's facts costs, by the number of facts in the database."""

from __future__ import annotations

import json
import random
import statistics
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from adk_memory_ext import DurableSessionService
from benchmarks.adk_stores import APP, open_ours
from benchmarks.contenders import OURS
from benchmarks.rounds import Measured, in_turns
from benchmarks.workload import SEED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from adk_memory_ext.statements import Transaction
    from benchmarks.effort import Effort

FACTS_A_USER: Final = 10
_RECALLS_A_TURN: Final = 50
_USERS_AT_ONCE: Final = 1_000
_START: Final = 1_767_225_600
_MILLISECONDS: Final = 1_000


async def seed_facts(service: DurableSessionService, facts: int) -> None:
    """Stores facts of many users, as rows like those that `save` writes."""
    database = service.database
    if database is None:
        raise AssertionError("ours has a database")
    users = facts // FACTS_A_USER
    for first in range(0, users, _USERS_AT_ONCE):
        numbers = range(first, min(first + _USERS_AT_ONCE, users))

        def work(tx: Transaction, numbers: range = numbers) -> None:
            for number in numbers:
                _seed_user(tx, number)

        await database.write(work)


def _seed_user(tx: Transaction, number: int) -> None:
    owner = {"app_name": APP, "user_id": f"user-{number}"}
    written = _START * 1_000_000 + FACTS_A_USER
    head = {"incarnation": number + 1, "revision": FACTS_A_USER, "written_microseconds": written}
    tx.run("insert_profile_user", owner | head)
    for row in _rows(number):
        tx.run("insert_fact", owner | row)


def _rows(number: int) -> Iterator[dict[str, Any]]:
    for fact in range(FACTS_A_USER):
        claim = {
            "value": f"value {number} {fact}",
            "confidence": 1.0,
            "observed_at": float(_START + fact),
            "last_confirmed": float(_START + fact),
            "sources": [{"session_id": f"session-{number}", "author": "coach"}],
        }
        yield {
            "retired_revision": 0,
            "subject": "user",
            "fact_key": f"fact-{fact}",
            "revision": fact + 1,
            "supersedes": None,
            "kind": "fact",
            "status": "stated",
            "sensitivity": "normal",
            "claims": json.dumps([claim]),
            "visible_to": "[]",
            "derived_from": "[]",
            "created_microseconds": _START * 1_000_000 + fact,
            "expires_microseconds": None,
            "retired_microseconds": None,
        }


async def _time_recalls(service: DurableSessionService, users: int, source: random.Random) -> float:
    """Returns the median milliseconds of recalls of users drawn at random."""
    times = []
    for _ in range(_RECALLS_A_TURN):
        user = f"user-{source.randrange(users)}"
        start = perf_counter()
        recalled = await service.profiles.recall(app_name=APP, user_id=user)
        times.append(perf_counter() - start)
        if len(recalled.facts) != FACTS_A_USER:
            raise AssertionError(f"{len(recalled.facts)} of {FACTS_A_USER} facts recalled")
    return statistics.median(times) * _MILLISECONDS


async def measure_profile_facts(
    url: Callable[[str], str], effort: Effort, step: Callable[[float], None]
) -> Measured:
    """Measures `recall_ms/<facts>` of ours over a small and a large database.

    Args:
        url: Returns a database of that name.
        effort: How long.
        step: Is told the part that is done, from 0 to 1.
    """
    measured = Measured()
    few, many = effort.facts, effort.facts_many
    for count in (few, many):
        # Closed behind it, which empties the WAL that so many facts have filled.
        async with open_ours(url(f"{OURS.name}-{count}")) as store:
            if isinstance(store.service, DurableSessionService):
                await seed_facts(store.service, count)
        step(0.9 * count / many)
    async with (
        open_ours(url(f"{OURS.name}-{few}")) as small,
        open_ours(url(f"{OURS.name}-{many}")) as large,
    ):
        services = {
            count: store.service
            for count, store in ((few, small), (many, large))
            if isinstance(store.service, DurableSessionService)
        }
        sources = {count: random.Random(SEED) for count in services}
        names = {f"recall_ms/{count}": count for count in services}
        for _number, name in in_turns(list(names), effort.list_rounds):
            count = names[name]
            users = count // FACTS_A_USER
            value = await _time_recalls(services[count], users, sources[count])
            measured.add(name, OURS.name, value)
        step(1)
    return measured
