"""What it costs to erase a person from a large database, and to delete one long session."""

from __future__ import annotations

import random
import shutil
import sqlite3
import uuid
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from google.adk.sessions.database_session_service import DatabaseSessionService

from adk_memory_ext import DurableSessionService
from adk_memory_ext.records import SessionId
from adk_memory_ext.sql_events import append_event
from adk_memory_ext.sql_store import create_session
from adk_memory_ext.stored_events import ready_event
from benchmarks.adk_stores import APP
from benchmarks.contenders import ADK, OURS
from benchmarks.rounds import Measured, in_turns
from benchmarks.store import sqlite_file
from benchmarks.workload import SEED, messages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from adk_memory_ext.sql_events import NewEvent
    from adk_memory_ext.statements import Transaction
    from benchmarks.effort import Effort

ERASE: Final = "erase_user_ms"
"""Quantity: a user of one hundredth of the database, verified, without residue."""
ERASE_WITH_HIT: Final = "erase_user_with_hit_ms"
"""The same where plain ADK had deleted something of the user earlier: the file is rewritten."""
REINDEXED: Final = "erase_user_reindexed_ms"
"""The same where the rebalancing of an index had kept a piece: the indexes are rewritten."""
DELETE: Final = "delete_session_ms"
"""A session, until the call returns."""
USERS: Final = 100
_MOST_TRIES: Final = 4
"""Users erased for each that an index has kept nothing of."""
_A_TRANSACTION: Final = 2_000
_MILLISECONDS: Final = 1_000
_BYTES_AN_EVENT: Final = 2_300
"""In the file: the event with its rows in indexes and in the tables beside it."""


@dataclass
class _Erasures:
    """A large database with many users, and a smaller one with long sessions."""

    url: Callable[[str], str]
    effort: Effort
    measured: Measured
    _next_user: int = 0

    async def seed(self) -> None:
        """Writes both databases through our own functions, sessions side by side."""
        await _seed(self.url("large"), self.effort.erasure_bytes, self.effort.session_events)
        await _seed(self.url("long"), self.effort.erasure_bytes // 10, self.effort.session_events)
        shutil.copyfile(sqlite_file(self.url("long")), sqlite_file(self.url("plain")))

    async def erase(self) -> None:
        """Measures `erase_user_ms`, and `erase_user_reindexed_ms` where an index kept something."""
        wanted = self.effort.erase_rounds
        async with DurableSessionService.from_url(self.url("large")) as sessions:
            for number in range(_MOST_TRIES * wanted):
                receipt, elapsed = await _erased(sessions, number)
                self._next_user = number + 1
                quantity = ERASE if not receipt.residue_found else REINDEXED
                self.measured.add(quantity, OURS.name, elapsed)
                words = f"{receipt.counts['events']:,} events, {receipt.values_searched:,} values"
                size = receipt.files["database"]["bytes"] / 1_000_000
                self.measured.note(quantity, OURS.name, f"{words}, {size:,.0f} MB")
                wanted -= quantity == ERASE
                if not wanted:
                    return

    async def erase_with_hit(self) -> None:
        """Measures `erase_user_with_hit_ms`, of one user."""
        number = self._next_user
        with closing(sqlite3.connect(sqlite_file(self.url("large")))) as connection:
            connection.execute("PRAGMA secure_delete=OFF").fetchall()
            some = "SELECT id FROM events WHERE user_id = ?1 ORDER BY id LIMIT ?2"
            connection.execute(
                f"DELETE FROM events WHERE user_id = ?1 AND id IN ({some})",  # noqa: S608
                (_user(number), self.effort.session_events // 2),
            )
            connection.commit()
        async with DurableSessionService.from_url(self.url("large")) as sessions:
            receipt, elapsed = await _erased(sessions, number)
            if not receipt.residue_found:
                raise AssertionError("no residue")
            self.measured.add(ERASE_WITH_HIT, OURS.name, elapsed)

    async def delete(self) -> None:
        """Measures `delete_session_ms` of ours and of plain ADK, on copies of one database."""
        plain = f"sqlite+aiosqlite:///{sqlite_file(self.url('plain'))}"
        async with (
            DurableSessionService.from_url(self.url("long")) as ours,
            DatabaseSessionService(plain) as adk,
        ):
            services: dict[str, Any] = {OURS.name: ours, ADK.name: adk}
            for number, name in in_turns(list(services), self.effort.erase_rounds):
                owner = {"app_name": APP, "user_id": _user(number), "session_id": "0"}
                if await services[name].get_session(**owner) is None:
                    raise AssertionError("the session is gone")
                start = perf_counter()
                await services[name].delete_session(**owner)
                elapsed = perf_counter() - start
                self.measured.add(DELETE, name, elapsed * _MILLISECONDS)
                await ours.erasure.settle()  # the verification must not slow the next one


async def _erased(sessions: DurableSessionService, number: int) -> tuple[Any, float]:
    start = perf_counter()
    receipt = await sessions.erasure.erase_user(app_name=APP, user_id=_user(number))
    elapsed = perf_counter() - start
    return receipt, elapsed * _MILLISECONDS


def _user(number: int) -> str:
    return f"somebody-{number:04}"


async def _seed(url: str, size: int, session_events: int) -> None:
    """Writes about so many bytes: users of equal size, whose sessions grow side by side."""
    count = size // _BYTES_AN_EVENT // session_events
    users = min(count, USERS)
    identities = [SessionId(APP, _user(at % users), str(at // users)) for at in range(count)]
    async with DurableSessionService.from_url(url, synchronous="NORMAL") as service:
        database = service.database
        if database is None:
            raise AssertionError("ours has a database")
        await database.write(lambda tx: _create(tx, identities))
        log = _events(identities, session_events)
        while batch := list(islice(log, _A_TRANSACTION)):
            await database.write(partial(_append, batch=batch))


def _create(tx: Transaction, identities: list[SessionId]) -> None:
    for identity in identities:
        create_session(tx, identity, app_changes={}, user_changes={}, session_state={"step": 0})


def _append(tx: Transaction, batch: list[tuple[SessionId, NewEvent]]) -> None:
    for identity, event in batch:
        append_event(tx, identity, None, event)


def _events(
    identities: list[SessionId], session_events: int
) -> Iterator[tuple[SessionId, NewEvent]]:
    """Gives the events of all sessions, one of each in turn, each with words of its own."""
    chance = random.Random(SEED)
    message = next(iter(messages("erasures")))
    ready = ready_event(message.to_event(), "refuse").new
    words = [f"{chance.randrange(16**6):x}" for _ in range(5_000)] + message.text.split()
    for number in range(session_events):
        for identity in identities:
            event_id = str(uuid.UUID(int=chance.getrandbits(128), version=4))
            text = " ".join(chance.choices(words, k=190))
            content = {"parts": [{"text": text}], "role": "model"}
            data = {**ready.data, "id": event_id, "content": content}
            yield (
                identity,
                replace(
                    ready,
                    id=event_id,
                    timestamp=message.time + number,
                    data={**data, "invocation_id": f"e-{event_id}"},
                    invocation_id=f"e-{event_id}",
                    session_changes={},
                ),
            )


async def measure_erasures(
    url: Callable[[str], str], effort: Effort, step: Callable[[float], None]
) -> Measured:
    """Measures erasing a user of a large database, and deleting a long session.

    Args:
        url: Returns a database by its name.
        effort: How large, and how often.
        step: Is told the part that is done, from 0 to 1.
    """
    measured = Measured()
    erasures = _Erasures(url, effort, measured)
    phases = (erasures.seed, erasures.erase, erasures.erase_with_hit, erasures.delete)
    for number, phase in enumerate(phases, 1):
        await phase()
        step(number / len(phases))
    return measured
