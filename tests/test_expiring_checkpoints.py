"""A value that comes back with a checkpoint or a rewind is as old as it was: expiry goes on."""

from __future__ import annotations

from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest
from sqlalchemy import select

from adk_memory_ext import DurableSessionService, StatePolicy, StateRule
from adk_memory_ext.adk_tables import sessions as session_rows
from adk_memory_ext.schema import memext_state_times
from backends import OURS, OURS_MARIADB, WRAPPED
from conversation import said
from people import OWN, SESSION, echo, running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from google.adk.sessions.session import Session

    from backends import Backend, Place

durable = pytest.mark.parametrize(
    "backend", [row for row in (*OURS, OURS_MARIADB) if row.durable], ids=lambda row: row.name
)
CREATED: Final = {"quote": "1.08 at ten", "order": "o1"}


def living(ttl: timedelta) -> StatePolicy:
    """Returns a policy under which the quote lives for so long."""
    return StatePolicy(rules=[StateRule("quote", ttl=ttl), StateRule("order")])


DAY: Final = living(timedelta(days=1))
OVER: Final = living(timedelta(microseconds=1))
"""Under which every quote that was ever written has expired."""


async def found(sessions: DurableSessionService, session_id: str = "session") -> Session:
    """Returns the session as it is stored."""
    session = await sessions.get_session(**OWN, session_id=session_id)
    assert session is not None
    return session


async def begin(sessions: DurableSessionService) -> str:
    """Returns the id of a checkpoint with a quote, which the session has no more."""
    session = await sessions.create_session(**SESSION, state=CREATED)
    await sessions.append_event(session, said("one", invocation="i1"))
    point = await sessions.checkpoints.create(session, step="quoted")
    await sessions.state.delete(["quote"], **SESSION)
    return point.id


async def written(sessions: DurableSessionService) -> dict[str, int]:
    """Returns when each session's quote was written, in microseconds, as it is noted."""
    assert sessions.database is not None
    times = memext_state_times.c
    query = select(times.session_id, times.written_microseconds).where(times.state_key == "quote")
    rows = await sessions.database.read(lambda tx: tx.connection.execute(query).all())
    return {row[0]: row[1] for row in rows}


async def stored(sessions: DurableSessionService) -> str:
    """Returns the state of all sessions as it stands in the database."""
    assert sessions.database is not None
    query = select(session_rows.c.state)
    return str(await sessions.database.read(lambda tx: tx.connection.execute(query).all()))


@durable
@pytest.mark.parametrize("is_gone", [False, True], ids=["there", "gone"])
async def test_what_has_expired_does_not_come_back(
    is_gone: bool, backend: Backend, place: Place
) -> None:
    """A restore and a fork are without it, in the database too, and say that it is missing."""
    async with DurableSessionService.from_url(place.url, policy=DAY) as sessions:
        point = await begin(sessions)
        if is_gone:
            await sessions.wrapped.delete_session(**SESSION)  # as its expiry does
    async with DurableSessionService.from_url(place.url, policy=OVER) as sessions:
        restored = await sessions.checkpoints.restore(point)
        fork = await sessions.checkpoints.fork(point, "fork")
        assert (restored.missing, fork.missing) == (("quote",), ("quote",)), backend.name
        for session_id in ("session", "fork"):
            assert dict((await found(sessions, session_id)).state) == {"order": "o1"}
        assert "quote" not in restored.changed
        assert "1.08" not in await stored(sessions)


@durable
async def test_what_lives_on_is_as_old_as_it_was(backend: Backend, place: Place) -> None:
    """The time of its write is that of the value, in the session and in a fork."""
    async with DurableSessionService.from_url(place.url, policy=DAY) as sessions:
        session = await sessions.create_session(**SESSION, state=CREATED)
        first = (await written(sessions))["session"]
        point = await sessions.checkpoints.create(session, step="quoted")
        later = said("later", invocation="i1", state={"quote": "1.09 at noon"})
        await sessions.append_event(session, later)
        assert (await written(sessions))["session"] > first, backend.name

        await sessions.checkpoints.restore(point.id)
        await sessions.checkpoints.fork(point.id, "fork")

        assert await written(sessions) == {"session": first, "fork": first}
        assert (await found(sessions, "fork")).state["quote"] == "1.08 at ten"


async def test_without_a_policy_it_lives_for_ever() -> None:
    """Nothing is noted where nothing expires."""
    async with DurableSessionService.from_url("") as sessions:
        point = await begin(sessions)
        restored = await sessions.checkpoints.restore(point)
        assert restored.missing == ()
        assert (await found(sessions)).state["quote"] == "1.08 at ten"
        assert await written(sessions) == {}


over_every_service = pytest.mark.parametrize(
    "backend",
    [b for b in (*OURS, OURS_MARIADB, *WRAPPED) if b.durable and b.name != "durable-sqlite"],
    ids=lambda row: row.name,
)


@asynccontextmanager
async def opened(
    backend: Backend, place: Place, policy: StatePolicy
) -> AsyncIterator[DurableSessionService]:
    """Yields a service with a policy; over a foreign one with a database beside it."""
    if backend.name.startswith("ours"):
        async with DurableSessionService.from_url(place.url, policy=policy) as service:
            yield service
        return
    async with backend.open(place) as durable_one:
        assert isinstance(durable_one, DurableSessionService)
        store = f"sqlite:///{place.folder}/store.db"
        async with DurableSessionService(
            durable_one.wrapped, policy=policy, store=store
        ) as service:
            yield service


async def test_what_was_written_before_the_policy_comes_back(tmp_path: Path) -> None:
    """It has no time, and its next write is the restore."""
    url = f"sqlite:///{tmp_path}/sessions.db"
    async with DurableSessionService.from_url(url) as sessions:
        point = await begin(sessions)
    async with DurableSessionService.from_url(url, policy=DAY) as sessions:
        assert (await sessions.checkpoints.restore(point)).missing == ()
        assert (await found(sessions)).state["quote"] == "1.08 at ten"
        assert set(await written(sessions)) == {"session"}


@over_every_service
@pytest.mark.parametrize("wrote", ["creation", "event"])
async def test_a_rewind_brings_back_nothing_that_has_expired(
    wrote: str, backend: Backend, place: Place
) -> None:
    """Over every service: neither what the creation gave nor what an event wrote."""
    async with opened(backend, place, DAY) as sessions:
        is_event = wrote == "event"
        state = {"order": "o1"} if is_event else CREATED
        session = await sessions.create_session(**SESSION, state=state)
        event = said("one", invocation="i1", state=CREATED if is_event else {})
        await sessions.append_event(session, event)
        gone: dict[str, Any] = {"order": "o2", "quote": None}
        await sessions.append_event(session, said("two", invocation="i2", state=gone))
    async with opened(backend, place, OVER) as sessions:
        async with running(sessions, echo(tools=[])) as runner:
            await runner.rewind_async(
                user_id="user", session_id="session", rewind_before_invocation_id="i2"
            )
        event = (await found(sessions)).events[-1]
        assert event.actions.rewind_before_invocation_id == "i2"
        assert event.actions.state_delta["order"] == "o1"
        assert event.actions.state_delta.get("quote") is None


@pytest.mark.parametrize(
    "backend",
    [b for b in WRAPPED if b.durable and b.name != "durable-sqlite"],
    ids=lambda row: row.name,
)
async def test_over_a_foreign_service_too(backend: Backend, place: Place) -> None:
    """What expires is as old as it was, and what has expired is missing."""
    async with opened(backend, place, DAY) as sessions:
        session = await sessions.create_session(**SESSION, state=CREATED)
        await sessions.append_event(session, said("one", invocation="i1"))
        first = (await written(sessions))["session"]
        point = await sessions.checkpoints.create(session, step="quoted")
        await sessions.append_event(session, said("two", invocation="i2", state={"quote": "1.09"}))
        await sessions.checkpoints.restore(point.id)
        await sessions.checkpoints.fork(point.id, "fork")
        assert await written(sessions) == {"session": first, "fork": first}
        assert (await found(sessions, "fork")).state["quote"] == "1.08 at ten"
    async with opened(backend, place, OVER) as sessions:
        again = await sessions.checkpoints.fork(point.id, "again")
        assert again.missing == ("quote",)
        assert dict((await found(sessions, "again")).state) == {"order": "o1"}
