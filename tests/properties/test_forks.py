"""A session and its fork have nothing in common: whatever happens to one, the other stays."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st

from adk_memory_ext import DurableSessionService
from backends import count
from people import SESSION
from properties.checkpoint_histories import (
    POLICY,
    History,
    checking,
    deleting,
    own,
    pruning,
    restoring,
    saying,
    states,
)

if TYPE_CHECKING:
    from google.adk.events.event import Event

    from adk_memory_ext import Checkpoint

_ending = st.tuples(st.sampled_from(["delete_session", "delete_checkpoints", "erase_session"]))
_steps = st.one_of(saying, deleting, checking, restoring, pruning)


async def everything_of(
    history: History,
) -> tuple[list[Event], dict[str, Any], list[Checkpoint]]:
    """Returns all that belongs to a session alone."""
    session = await history.found()
    points = await history.sessions.checkpoints.list(**history.identity)
    return session.events, own(session), points


async def end(history: History, how: str) -> None:
    """Ends a session, or what is kept beside it."""
    if how == "delete_session":
        await history.sessions.delete_session(**history.identity)
    elif how == "delete_checkpoints":
        await history.sessions.checkpoints.delete(**history.identity)
    else:
        await history.sessions.erasure.erase_session(**history.identity, forks="detach")


@settings(max_examples=count(40, 400))
@given(
    states,
    st.lists(st.one_of(saying, deleting, checking), max_size=6),
    st.lists(st.tuples(st.booleans(), _steps), min_size=1, max_size=10),
    st.tuples(st.booleans(), _ending),
)
def test_fork_and_parent_are_independent(
    created: dict[str, Any],
    before: list[tuple[Any, ...]],
    after: list[tuple[bool, tuple[Any, ...]]],
    ending: tuple[bool, tuple[str]],
) -> None:
    """Each goes its own way, restores its own checkpoints, and outlives the other one."""

    async def run() -> None:
        async with DurableSessionService.from_url("", checkpoint_policy=POLICY) as sessions:
            await sessions.create_session(**SESSION, state=created)
            parent = History(sessions, created)
            for step in [*before, ("checkpoint",)]:
                await parent.take(step)
            point = list(parent.expected)[-1]
            session_id = await parent.fork(point)
            fork = History(sessions, own(await parent.found(session_id)), session_id)
            for is_fork, step in after:
                one, other = (fork, parent) if is_fork else (parent, fork)
                untouched = await everything_of(other)
                await one.take(step)
                assert await everything_of(other) == untouched
            is_fork, (how,) = ending
            one, other = (fork, parent) if is_fork else (parent, fork)
            untouched = await everything_of(other)
            await end(one, how)
            assert await everything_of(other) == untouched
            for left in other.expected:
                await other.restore(left)
            await other.finish()

    asyncio.run(run())
