"""Any history of messages, changes, restores, forks, pruning and deletion: restores are exact."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from google.adk.events._rewind_events import _apply_rewinds
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import update

from adk_memory_ext import (
    CheckpointInconsistentError,
    CheckpointRetention,
    DurableSessionService,
)
from adk_memory_ext.adk_tables import events as event_rows
from adk_memory_ext.rewind_marks import Outline, Special, live_positions, plan_restore
from adk_memory_ext.schema import memext_checkpoints
from backends import count
from conversation import exactly, said
from people import OWN, SESSION
from properties.checkpoint_histories import (
    PERSONAL,
    POLICY,
    History,
    checking,
    deleting,
    forking,
    own,
    pruning,
    removing,
    restoring,
    saying,
    seen,
    states,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from adk_memory_ext import Checkpoint
    from adk_memory_ext.statements import Transaction

_STEPS = st.lists(
    st.one_of(saying, deleting, checking, restoring, forking, pruning, removing),
    min_size=3,
    max_size=14,
)


@settings(max_examples=count(60, 600))
@given(states, _STEPS)
def test_a_restore_is_the_replay_up_to_the_checkpoint(
    created: dict[str, Any], steps: list[tuple[Any, ...]]
) -> None:
    """State and history are those of the checkpoint; again, nothing happens; forks stand alone.

    Events that were removed on purpose are in none of them, and the digests go on.
    """

    async def run() -> None:
        async with DurableSessionService.from_url("", checkpoint_policy=POLICY) as sessions:
            await sessions.create_session(**SESSION, state=created)
            history = History(sessions, created)
            for step in steps:
                await history.take(step)
            await history.finish()

    asyncio.run(run())


@settings(max_examples=count(40, 400))
@given(states, st.lists(st.one_of(saying, deleting, checking), min_size=3, max_size=10), st.data())
def test_what_only_the_log_knew_is_missing_when_it_is_gone(
    created: dict[str, Any], steps: list[tuple[Any, ...]], data: st.DataObject
) -> None:
    """Without the session a restore gives the other keys, no history, and what is lost by name."""

    async def run() -> None:
        async with DurableSessionService.from_url("", checkpoint_policy=POLICY) as sessions:
            await sessions.create_session(**SESSION, state=created)
            history = History(sessions, created)
            for step in [*steps, ("checkpoint",)]:
                await history.take(step)
            point = data.draw(st.sampled_from(list(history.expected)))
            state, _history = history.expected[point]
            await sessions.wrapped.delete_session(**SESSION)  # as its expiry does

            restored = await sessions.checkpoints.restore(point)

            session = await history.found()
            left = {key: value for key, value in state.items() if key not in PERSONAL}
            assert exactly(own(session)) == exactly(left)
            assert set(restored.missing) == state.keys() & set(PERSONAL)
            assert (restored.state_only, seen(session)) == (True, [])

    asyncio.run(run())


# --- Logs that were changed


async def write(sessions: DurableSessionService, work: Callable[[Transaction], Any]) -> None:
    """Changes the database behind the service's back."""
    assert sessions.database is not None
    await sessions.database.write(work)


@settings(max_examples=count(40, 400))
@given(st.lists(st.booleans(), min_size=2, max_size=12), st.data())
def test_latest_walks_back_past_a_changed_event(is_point: list[bool], data: st.DataObject) -> None:
    """Checkpoints before it are good and restore; those that cover it are passed over, refused."""

    async def run() -> None:
        async with DurableSessionService.from_url("", cache_bytes=0) as sessions:
            session = await sessions.create_session(**SESSION, state={"n": 0})
            points: list[Checkpoint] = []
            for number, has_point in enumerate(is_point, start=1):
                event = said(f"m{number}", invocation=f"i{number}", state={"n": number})
                await sessions.append_event(session, event)
                if has_point:
                    points.append(await sessions.checkpoints.create(session, step=f"s{number}"))
            changed = data.draw(st.integers(1, len(is_point)))
            lie = said("lies", invocation=f"i{changed}").model_dump_json(exclude_none=True)
            own_row = event_rows.c.id == session.events[changed - 1].id
            await write(
                sessions,
                lambda tx: tx.connection.execute(
                    update(event_rows).where(own_row).values(event_data=lie)
                ),
            )
            good = [point for point in points if point.sequence < changed]
            latest = await sessions.checkpoints.latest(**SESSION)
            assert latest == (good[-1] if good else None)
            assert (await sessions.checkpoints.latest(**SESSION, consistent=False)) == (
                points[-1] if points else None
            )
            for point in points:
                if point not in good:
                    with pytest.raises(CheckpointInconsistentError) as refusal:
                        await sessions.checkpoints.restore(point.id)
                    assert f"Event {changed} " in str(refusal.value)
            if latest is not None:
                await sessions.checkpoints.restore(latest.id)
                restored = await sessions.get_session(**SESSION)
                assert restored is not None
                assert restored.state["n"] == latest.sequence

    asyncio.run(run())


# --- Retention


_RETENTIONS = st.builds(
    CheckpointRetention,
    last=st.integers(1, 4),
    last_of_each_step=st.booleans(),
    younger_than=st.none() | st.integers(0, 12).map(lambda hours: timedelta(hours=hours)),
)


def staying(points: Sequence[Checkpoint], retention: CheckpointRetention, now: float) -> set[str]:
    """Returns the ids of those that a retention keeps; `points` are newest first."""
    stays = {point.id for point in points[: retention.last]}
    if retention.last_of_each_step:
        stays |= {next(p for p in points if p.step == step).id for step in {p.step for p in points}}
    if retention.younger_than is not None:
        youngest = now - retention.younger_than.total_seconds()
        stays |= {point.id for point in points if point.created_at >= youngest}
    return stays


@settings(max_examples=count(40, 400))
@given(
    states,
    st.lists(st.tuples(saying, st.sampled_from("xyz")), min_size=2, max_size=12),
    st.lists(_RETENTIONS, min_size=1, max_size=3),
    st.booleans(),
)
def test_a_retention_never_leaves_one_that_cannot_be_restored(
    created: dict[str, Any],
    said_and_step: list[tuple[tuple[Any, ...], str]],
    retentions: list[CheckpointRetention],
    expires: bool,
) -> None:
    """What stays is what the rule says, and each restores exactly; without its session too."""

    async def run() -> None:
        async with DurableSessionService.from_url("") as sessions:
            await sessions.create_session(**SESSION, state=created)
            history = History(sessions, created)
            for hour, (saying_something, step) in enumerate(said_and_step):
                await history.take(saying_something)
                session = await history.found()
                point = await sessions.checkpoints.create(session, step=step)
                history.expected[point.id] = own(session), seen(session)
                await write(sessions, partial(grow_old, checkpoint_id=point.id, hour=hour))
            if expires:
                await sessions.wrapped.delete_session(**SESSION)  # as its expiry does
            now = len(said_and_step) * 3600.0
            for retention in retentions:
                before = await sessions.checkpoints.list(**OWN)
                stays = staying(before, retention, now)
                pruned = await sessions.checkpoints.prune(retention, **OWN, now=now)
                left = await sessions.checkpoints.list(**OWN)
                assert {point.id for point in left} == stays
                assert pruned == len(before) - len(left)
            for point in left:
                fork = await sessions.checkpoints.fork(point.id)
                state, shown = history.expected[point.id]
                forked = await history.found(fork.session_id)
                assert exactly(own(forked)) == exactly(state)
                assert seen(forked) == ([] if expires else shown)
                if not expires:
                    await history.restore(point.id)

    asyncio.run(run())


def grow_old(tx: Transaction, checkpoint_id: str, hour: int) -> None:
    """Has a checkpoint be made at an hour after the epoch."""
    point = memext_checkpoints.c.checkpoint_id == checkpoint_id
    made = {"created_microseconds": hour * 3_600_000_000}
    tx.connection.execute(update(memext_checkpoints).where(point).values(made))


# --- Marks


_LOGS = st.lists(
    st.tuples(st.sampled_from("ijkl"), st.one_of(st.none(), st.sampled_from("ijklm"))), max_size=12
)


def _event(number: int, invocation: str, rewinds_before: str | None) -> Event:
    actions = EventActions(rewind_before_invocation_id=rewinds_before)
    return Event(id=str(number), author="user", invocation_id=invocation, actions=actions)


@settings(max_examples=count(300, 3000))
@given(_LOGS, st.data())
def test_marks_mean_what_adk_takes_them_for(
    log: list[tuple[str, str | None]], data: st.DataObject
) -> None:
    """The live events are ADK's, before a restore and after it."""
    events = Outline()
    for n, (invocation, mark) in enumerate(log):
        events.add(str(n), invocation, Special(mark) if mark else None)
    theirs = [_event(n, invocation, mark) for n, (invocation, mark) in enumerate(log)]
    live = live_positions(events)
    assert [events.ids[n] for n in live] == [event.id for event in _apply_rewinds(theirs)]

    covered = data.draw(st.integers(0, len(log)))
    plan = plan_restore(events, covered)

    if plan.rewinds_before is not None:
        theirs.append(_event(100, "restore", plan.rewinds_before))
    theirs += [_event(n, events.invocations[n], None) for n in plan.copies]
    wanted = [events.ids[n] for n in live_positions(events, covered)]
    assert [event.id for event in _apply_rewinds(theirs)] == wanted
