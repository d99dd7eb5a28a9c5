"""Checkpoints over services of others: kept in a store beside them, and repaired after a crash."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.events._rewind_events import _apply_rewinds
from google.adk.sessions.in_memory_session_service import InMemorySessionService

from adk_memory_ext import (
    CapabilityError,
    CheckpointInconsistentError,
    CheckpointPolicy,
    CheckpointRetention,
    DurableSessionService,
    InvalidIdError,
    MemoryPlugin,
    Recovery,
    StoreUnavailableError,
    request_checkpoint,
)
from adk_memory_ext.checkpoint_steps import CheckpointSteps
from backends import BARE
from conversation import answered, called, exactly, said, texts
from people import OWN, SESSION, echo, running, say

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from google.adk.events.event import Event
    from google.adk.sessions.base_session_service import BaseSessionService
    from google.adk.sessions.session import Session
    from google.adk.tools.tool_context import ToolContext

    from adk_memory_ext import Checkpoint
    from backends import Backend, Place

over_every_service = pytest.mark.parametrize("backend", BARE, ids=lambda backend: backend.name)
CREATED: Final[dict[str, Any]] = {"locale": "de", "draft": {"履歷": [1]}, "user:u": 1}


@asynccontextmanager
async def over(
    bare: BaseSessionService, place: Place, **options: Any
) -> AsyncIterator[DurableSessionService]:
    """Yields our service over another one, with a store beside it."""
    store = f"sqlite:///{place.folder}/checkpoints.db"
    async with DurableSessionService(bare, store=store, **options) as sessions:
        yield sessions


@pytest.fixture
async def bare(backend: Backend, place: Place) -> AsyncIterator[BaseSessionService]:
    """The service of the row."""
    async with backend.open(place) as service:
        yield service


@pytest.fixture
async def durable(bare: BaseSessionService, place: Place) -> AsyncIterator[DurableSessionService]:
    """Our service over it."""
    async with over(bare, place) as service:
        yield service


async def found(sessions: BaseSessionService, session_id: str = "session") -> Session:
    """Returns a session as it is stored."""
    session = await sessions.get_session(**OWN, session_id=session_id)
    assert session is not None
    return session


def own(session: Session) -> dict[str, Any]:
    """Returns session-scope state, without what a removal leaves behind over such a service."""
    return {k: v for k, v in session.state.items() if ":" not in k and v is not None}


def seen(session: Session) -> list[str]:
    """Returns what the model is shown of the log, as ADK tells it."""
    return texts(event for event in _apply_rewinds(session.events) if event.content)


def asking(event: Event, *steps: str) -> Event:
    """Returns an event that asks for checkpoints, as a tool's answer does."""

    class Asker:
        agent_name, state = "agent", event.actions.state_delta

    for step in steps:
        request_checkpoint(Asker, step=step)  # type: ignore[arg-type]
    return event


async def begin(sessions: DurableSessionService) -> Session:
    """Returns a session with state and one message."""
    session = await sessions.create_session(**SESSION, state=dict(CREATED))
    await sessions.append_event(session, said("one", invocation="i1", state={"step": "a"}))
    return session


async def go_on(sessions: DurableSessionService) -> None:
    """Appends events that change every kind of key, the first of the same invocation."""
    session = await found(sessions)
    delta: dict[str, Any] = {"step": "b", "new": "x" * 100}
    await sessions.append_event(session, said("two", author="agent", invocation="i1", state=delta))
    delta = {"draft": {}, "user:u": 2}
    await sessions.append_event(session, said("three", invocation="i2", state=delta))


# --- The same as over our own service


@over_every_service
async def test_a_checkpoint_is_made_found_and_put_back(durable: DurableSessionService) -> None:
    """State and history are those of the checkpoint; again, nothing happens."""
    session = await begin(durable)
    point = await durable.checkpoints.create(session, step="collected", summary="profile")
    assert await durable.checkpoints.create(session, step="collected") == point
    await go_on(durable)
    later = await durable.checkpoints.create(session, step="later")
    assert await durable.checkpoints.list(**OWN) == [later, point]
    assert await durable.checkpoints.latest(**SESSION, step="collected") == point
    assert await durable.checkpoints.get(point.id) == point
    assert (later.sequence, point.sequence) == (3, 1)
    diff = await durable.checkpoints.diff(point.id, later.id)
    assert (set(diff.added), set(diff.changed), diff.events) == ({"new"}, {"step", "draft"}, 2)

    restored = await durable.checkpoints.restore(point.id)

    session = await found(durable)
    assert exactly(own(session)) == exactly({"locale": "de", "draft": {"履歷": [1]}, "step": "a"})
    assert session.state["user:u"] == 2
    assert seen(session) == ["one"]
    assert (restored.hidden, restored.repeated, restored.removed) == (2, 1, ("new",))
    again = await durable.checkpoints.restore(point.id)
    assert (again.event_id, again.hidden) == (None, 0)
    await durable.checkpoints.restore(later.id)
    assert seen(await found(durable)) == ["one", "two", "three"]
    assert own(await found(durable))["new"] == "x" * 100


@over_every_service
async def test_a_fork_has_history_and_state(durable: DurableSessionService) -> None:
    """Ids of events are kept, user state is not written again, and lineage is known."""
    session = await begin(durable)
    point = await durable.checkpoints.create(session, step="a")
    await go_on(durable)
    fork = await durable.checkpoints.fork(point.id, "copy")
    copy, parent = await found(durable, fork.session_id), await found(durable)
    assert [event.id for event in copy.events] == [parent.events[0].id]
    assert exactly(own(copy)) == exactly({"locale": "de", "draft": {"履歷": [1]}, "step": "a"})
    assert copy.state["user:u"] == 2
    assert await durable.checkpoints.parent(**OWN, session_id="copy") == point.id
    with pytest.raises(AlreadyExistsError):
        await durable.checkpoints.fork(point.id, "copy")
    inner = await durable.checkpoints.create(copy, step="inner")
    await durable.append_event(copy, said("four", invocation="i4", state={"step": "four"}))
    await durable.checkpoints.restore(inner.id)
    assert seen(await found(durable, "copy")) == ["one"]


@over_every_service
async def test_a_session_that_is_gone_gets_its_state_back(
    durable: DurableSessionService, bare: BaseSessionService
) -> None:
    """State alone; another session of that id is left alone, and can be told from it."""
    point = await durable.checkpoints.create(await begin(durable), step="a")
    await bare.delete_session(**SESSION)
    restored = await durable.checkpoints.restore(point.id)
    assert restored.state_only
    session = await found(durable)
    assert (session.events, own(session)["step"]) == ([], "a")
    assert await durable.checkpoints.parent(**SESSION) == point.id
    await durable.append_event(session, said("new", invocation="n", state={"step": "n"}))
    assert (await durable.checkpoints.restore(point.id)).hidden == 1
    assert own(await found(durable))["step"] == "a"
    await durable.checkpoints.create(await found(durable), step="b")
    await bare.delete_session(**SESSION)
    session = await durable.create_session(**SESSION)
    await durable.append_event(session, said("other", invocation="o"))
    other = await durable.checkpoints.create(session, step="c")
    with pytest.raises(CheckpointInconsistentError, match="fork"):
        await durable.checkpoints.restore(point.id)
    assert await durable.checkpoints.latest(**SESSION) == other
    assert (await durable.checkpoints.fork(point.id)).state_only


@over_every_service
async def test_a_deleted_session_takes_its_checkpoints_along(
    durable: DurableSessionService,
) -> None:
    """A later session of its id has none of them."""
    await durable.checkpoints.create(await begin(durable), step="a")
    await durable.delete_session(**SESSION)
    assert await durable.checkpoints.list(**OWN) == []
    point = await durable.checkpoints.create(await begin(durable), step="b")
    assert await durable.checkpoints.list(**SESSION) == [point]


@over_every_service
async def test_checkpoints_of_a_run(durable: DurableSessionService) -> None:
    """A tool asks for one, each invocation ends with one, and a rollback goes back to the last."""

    def look(text: str, tool_context: ToolContext) -> str:
        """Looks it up."""
        tool_context.state["looked"] = text
        request_checkpoint(tool_context, step="looked")
        return "found"

    plugin = MemoryPlugin(
        checkpoints=CheckpointSteps(at_end="turn"), recovery=Recovery(how="rollback")
    )
    async with running(durable, echo(tools=[look]), plugins=[plugin]) as runner:
        await say(runner, "one")
        points = await durable.checkpoints.list(**SESSION)
        assert [(point.step, point.agent) for point in points] == [
            ("turn", "echo"),
            ("looked", "echo"),
        ]
        assert await durable.checkpoints.state(points[1].id) == {"looked": "one"}
        session = await found(durable)
        await durable.append_event(session, called("look", {}, invocation="crashed"))
        await say(runner, "two")
    assert seen(await found(durable))[-1] == "echo two, message 2"
    assert "crashed" not in {event.invocation_id for event in _apply_rewinds(session.events)[:-1]}


@pytest.mark.parametrize("backend", BARE[:3], ids=lambda backend: backend.name)
async def test_long_logs_are_read_from_their_end(durable: DurableSessionService) -> None:
    """Behind a hundred events a checkpoint covers all of them, and the next one the new ones."""
    session = await begin(durable)
    for number in range(100):
        await durable.append_event(session, said(f"{number}", invocation=f"m{number}"))
    first = await durable.checkpoints.create(session, step="a")
    await durable.append_event(session, said("last", invocation="l", state={"step": "l"}))
    second = await durable.checkpoints.create(session, step="b")
    assert (first.sequence, second.sequence) == (101, 102)
    assert (await durable.checkpoints.restore(first.id)).hidden == 1
    kept = CheckpointRetention(last_of_each_step=False)
    assert await durable.checkpoints.prune(kept, **SESSION) == 1
    assert await durable.checkpoints.latest(**SESSION) == second


async def test_values_known_by_reference_come_from_the_log(place: Place) -> None:
    """They are not in the store, and come back as long as the session is there."""
    policy = CheckpointPolicy(personal=("resume",))
    async with over(InMemorySessionService(), place, checkpoint_policy=policy) as sessions:
        session = await sessions.create_session(**SESSION, state={"resume": "Ann", "step": 1})
        point = await sessions.checkpoints.create(session, step="a")
        assert await sessions.checkpoints.state(point.id) == {"step": 1}
        await sessions.append_event(session, said("x", invocation="i", state={"resume": "Bob"}))
        assert (await sessions.checkpoints.restore(point.id)).missing == ()
        assert own(await found(sessions))["resume"] == "Ann"
        await sessions.wrapped.delete_session(**SESSION)
        assert (await sessions.checkpoints.restore(point.id)).missing == ("resume",)
        assert own(await found(sessions)) == {"step": 1}


# --- Two stores, and a crash between them


class CrashError(Exception):
    """Ends what is under way."""


@over_every_service
async def test_a_checkpoint_that_a_crash_swallowed_is_made_from_the_log(
    bare: BaseSessionService, place: Place
) -> None:
    """Event stored, checkpoint not: another process makes each one once, with the state of then."""
    async with over(bare, place) as first:
        session = await begin(first)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(first.checkpoints._kept, "settle", crash)  # a crash there
            for number, steps in enumerate((["a", "b"], [], ["c"])):
                event = said("x", invocation=f"n{number}", state={"n": number, f"k{number}": "v"})
                with_requests = asking(event, *steps)
                if steps:
                    with pytest.raises(CrashError):
                        await first.append_event(session, with_requests)
                    session = await found(first)
                else:
                    await first.append_event(session, with_requests)
    async with over(bare, place) as second:
        await second.append_event(await found(second), said("on", invocation="on", state={"n": 9}))
        last = await second.checkpoints.create(await found(second), step="d")
        points = await second.checkpoints.list(**SESSION)
        assert [(point.step, point.sequence) for point in points][::-1] == [
            ("a", 2),
            ("b", 2),
            ("c", 4),
            ("d", 5),
        ]
        states = [await second.checkpoints.state(point.id) for point in points[::-1]]
        assert [(state["n"], "k2" in state) for state in states] == [
            (0, False),
            (0, False),
            (2, True),
            (9, True),
        ]
        assert await second.checkpoints.latest(**SESSION) == last
        await second.checkpoints.restore(points[2].id)
        assert own(await found(second))["n"] == 0


async def crash(*_arguments: object) -> None:
    """Stands for the end of the process."""
    raise CrashError


async def test_what_was_asked_for_is_made_when_somebody_asks(place: Place) -> None:
    """Finding checkpoints and recovering make them too, for the whole user as well."""
    bare = InMemorySessionService()
    async with over(bare, place) as sessions:
        session = await begin(sessions)
        await sessions.checkpoints.create(session, step="begun")
        settle = sessions.checkpoints._kept.settle  # fails as a full disk does
        for number, ask in enumerate(("latest", "list", "user")):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(sessions.checkpoints._kept, "settle", unavailable)
                event = asking(said("x", invocation=f"n{number}"), ask)
                await sessions.append_event(session, event)
            assert sessions.checkpoints._kept.settle == settle
            if ask == "latest":
                point = await sessions.checkpoints.latest(**SESSION)
            else:
                (point, *_rest) = await sessions.checkpoints.list(**(SESSION if number else OWN))
            assert point is not None
            assert (point.step, point.sequence) == (ask, number + 2)


async def unavailable(*_arguments: object) -> None:
    """Stands for a store that cannot be written."""
    raise StoreUnavailableError("locked; nothing was written.")


@pytest.mark.parametrize("backend", BARE[:3], ids=lambda backend: backend.name)
async def test_a_checkpoint_whose_event_never_came_to_be_is_dropped(
    bare: BaseSessionService, place: Place
) -> None:
    """Checkpoint stored, event lost: what comes next goes on from the last one that is true."""
    other = InMemorySessionService()
    async with over(bare, place) as first:
        good = await first.checkpoints.create(await begin(first), step="good")
    # The same session in a service that did not get the second event.
    async with over(other, place) as lost:
        copy = await other.create_session(**SESSION, state=dict(CREATED))
        for event in (await found(bare)).events:
            await other.append_event(copy, event)
        await lost.append_event(copy, asking(said("lost", invocation="l"), "lost"))
        assert [point.step for point in await lost.checkpoints.list(**SESSION)] == ["lost", "good"]
    async with over(bare, place) as second:
        assert await second.checkpoints.latest(**SESSION) == good
        session = await found(second)
        await second.append_event(session, asking(said("new", invocation="n"), "new"))
        points = await second.checkpoints.list(**SESSION)
        assert [(point.step, point.sequence) for point in points] == [("new", 2), ("good", 1)]
        for point in points:
            await second.checkpoints.restore(point.id)


async def test_a_log_that_was_changed_is_refused(place: Place) -> None:
    """The event is named, and the search for a consistent one passes it over."""
    bare = InMemorySessionService()
    async with over(bare, place) as sessions:
        session = await begin(sessions)
        good = await sessions.checkpoints.create(session, step="a")
        await go_on(sessions)
        bad = await sessions.checkpoints.create(session, step="b")
        stored = bare.sessions["app"]["user"]["session"].events
        content = stored[1].content
        assert content is not None
        assert content.parts is not None
        content.parts[0].text = "lies"
        with pytest.raises(CheckpointInconsistentError) as refusal:
            await sessions.checkpoints.restore(bad.id)
        assert refusal.value.event_id == stored[1].id
        with pytest.raises(CheckpointInconsistentError):
            await sessions.checkpoints.fork(bad.id)
        assert await sessions.checkpoints.latest(**SESSION) == good


async def test_processes_at_once_make_each_checkpoint_once(place: Place) -> None:
    """Two services over the same sessions and store lose nothing and double nothing."""
    bare = InMemorySessionService()
    async with over(bare, place) as one, over(bare, place) as other:
        await begin(one)

        async def make(step: str) -> list[Checkpoint]:
            return [
                await service.checkpoints.create(await found(service), step=step)
                for service in (one, other)
            ]

        made = await asyncio.gather(*(make(f"s{number % 3}") for number in range(9)))
        ids = {point.id for points in made for point in points}
        assert len(ids) == len(await one.checkpoints.list(**SESSION)) == 3


async def test_what_cannot_be_kept_is_refused_with_its_event(place: Place) -> None:
    """Nothing is written, neither here nor there; without a store nothing can be asked for."""
    async with over(InMemorySessionService(), place) as sessions:
        session = await begin(sessions)
        with pytest.raises(InvalidIdError):
            await sessions.append_event(session, asking(answered("look", {}), "x" * 300))
        assert len((await found(sessions)).events) == 1
        assert await sessions.checkpoints.list(**OWN) == []
    without = DurableSessionService(InMemorySessionService())
    session = await begin(without)
    with pytest.raises(CapabilityError, match="store"):
        await without.append_event(session, asking(answered("look", {}), "x"))
