"""After a rewind the state is what it was: what creation gave is there, later keys are not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest
from google.adk.sessions.database_session_service import DatabaseSessionService
from hypothesis import given, settings
from hypothesis import strategies as st

from adk_memory_ext import DurableSessionService, MemoryPlugin, Recovery, Remove
from adk_memory_ext.rewinds import initial_state, restoring_delta, state_after
from backends import OURS, OURS_MARIADB, WRAPPED
from conversation import exactly, said, texts
from people import SESSION, echo, running, say

if TYPE_CHECKING:
    from google.adk.agents.callback_context import CallbackContext
    from google.adk.sessions.session import Session

    from backends import Backend, Place

SERVICES: Final = (*OURS, OURS_MARIADB, *WRAPPED)
over_every_service = pytest.mark.parametrize("backend", SERVICES, ids=lambda backend: backend.name)
CREATED: Final[dict[str, Any]] = {"kept": 1, "changed": [1], "none": None, "user:u": 1, "app:a": 1}


async def found(sessions: DurableSessionService) -> Session:
    """Returns the session as it is stored."""
    session = await sessions.get_session(**SESSION)
    assert session is not None
    return session


async def begin(sessions: DurableSessionService) -> None:
    """Creates the session with state and appends three invocations that change it."""
    session = await sessions.create_session(**SESSION, state=dict(CREATED))
    deltas: list[dict[str, Any]] = [
        {"first": 1},
        {"changed": [1, 2], "later": 1, "user:u": 2},
        {"changed": [1, 2, 3], "first": 2, "none": 3},
    ]
    for number, delta in enumerate(deltas):
        event = said(f"message {number}", invocation=f"i{number}", state=delta)
        await sessions.append_event(session, event)


async def rewind(sessions: DurableSessionService, invocation: str) -> Session:
    """Rewinds with ADK's Runner and returns the session as it is stored."""
    async with running(sessions, echo(tools=[])) as runner:
        await runner.rewind_async(
            user_id=SESSION["user_id"],
            session_id=SESSION["session_id"],
            rewind_before_invocation_id=invocation,
        )
    return await found(sessions)


@over_every_service
async def test_a_rewind_brings_back_the_state_of_the_creation(
    sessions: DurableSessionService, backend: Backend
) -> None:
    """Keys that `create_session` was given have their values, and user and app state stay."""
    await begin(sessions)
    state = dict((await rewind(sessions, "i1")).state)
    gone = {} if sessions.removes_keys else {"later": None}
    assert exactly(state) == exactly({**CREATED, "first": 1, "user:u": 2, **gone}), backend.name
    state = dict((await rewind(sessions, "i0")).state)
    gone = {} if sessions.removes_keys else {"later": None, "first": None}
    assert exactly(state) == exactly({**CREATED, "user:u": 2, **gone})


# ADK's SqliteSessionService leaves the closing of its file to the collector.
@pytest.mark.parametrize(
    "backend",
    [b for b in SERVICES if b.durable and b.name != "durable-sqlite"],
    ids=lambda b: b.name,
)
async def test_another_process_knows_the_state_of_the_creation(
    backend: Backend, place: Place
) -> None:
    """What is needed for a rewind is stored, not remembered."""
    async with backend.open(place) as sessions:
        assert isinstance(sessions, DurableSessionService)
        await begin(sessions)
    async with backend.open(place) as sessions:
        assert isinstance(sessions, DurableSessionService)
        state = (await rewind(sessions, "i0")).state
        assert (state["kept"], state["changed"], state["none"]) == (1, [1], None)


async def test_removed_keys_come_back_with_a_rewind(sessions: DurableSessionService) -> None:
    """A key that was removed after the rewind point has its value again, one removed before not."""
    await begin(sessions)
    identity = {"app_name": "app", "user_id": "user", "session_id": "session"}
    await sessions.state.delete(["first", "kept"], **identity)
    session = await found(sessions)
    await sessions.append_event(session, said("more", invocation="i4", state={"kept": 4}))
    assert dict((await rewind(sessions, "i4")).state) == {
        "changed": [1, 2, 3],
        "none": 3,
        "later": 1,
        "user:u": 2,
        "app:a": 1,
    }
    assert (await rewind(sessions, "i2")).state["kept"] == 1


async def test_a_rewind_of_a_session_that_plain_adk_began(tmp_path: Any) -> None:
    """What no event of plain ADK had changed is known to be of the creation."""
    url = f"sqlite+aiosqlite:///{tmp_path}/sessions.db"
    async with DatabaseSessionService(url) as plain:
        session = await plain.create_session(**SESSION, state={"a": 1, "b": 1})
        await plain.append_event(session, said("plain", invocation="i0", state={"b": 2}))
    async with DurableSessionService.from_url(url) as sessions:
        session = await found(sessions)
        await sessions.append_event(session, said("ours", invocation="i1", state={"a": 2, "b": 3}))
        assert dict((await rewind(sessions, "i1")).state) == {"a": 1, "b": 2}


async def test_a_session_of_the_same_id_has_its_own_creation(
    sessions: DurableSessionService,
) -> None:
    """Nothing of a deleted session comes back through a rewind of a later one."""
    await begin(sessions)
    await sessions.delete_session(**SESSION)
    session = await sessions.create_session(**SESSION)
    await sessions.append_event(session, said("new", invocation="i0", state={"x": 1}))
    state = (await rewind(sessions, "i0")).state
    assert {key for key in state if ":" not in key} == set()


_VALUES = st.one_of(st.none(), st.booleans(), st.integers(0, 1), st.lists(st.integers(0, 1)))
_STATES = st.dictionaries(st.sampled_from("abcd"), _VALUES)


@settings(max_examples=200)
@given(_STATES, st.lists(_STATES, max_size=6), st.data())
def test_the_delta_back_gives_the_state_of_any_earlier_event(
    created: dict[str, Any], deltas: list[dict[str, Any]], data: st.DataObject
) -> None:
    """The creation found by the log and what was kept, replayed, then the delta: exactly that."""
    events = [said("x", state=delta) for delta in deltas]
    now = state_after(created, events)
    assert exactly(initial_state(now, events, created)) == exactly(created)
    index = data.draw(st.integers(0, len(events)))
    target = state_after(created, events[:index])
    for key, value in restoring_delta(now, target, can_remove=True).items():
        now.pop(key, None)
        if not isinstance(value, Remove):
            now[key] = value
    assert exactly(now) == exactly(target)


# --- Hidden from `get_session`


@over_every_service
async def test_rewound_events_are_hidden_where_that_is_asked_for(
    sessions: DurableSessionService,
) -> None:
    """A load has what the model sees; the whole log is there, and turns and rewinds go on."""
    hiding = DurableSessionService(sessions.wrapped, hide_rewound=True)
    await begin(hiding)
    assert texts((await rewind(hiding, "i1")).events) == ["message 0"]
    assert texts((await whole(hiding)).events)[:3] == [f"message {number}" for number in range(3)]
    assert len((await found(sessions)).events) == 4
    async with running(hiding, echo(tools=[])) as runner:
        assert texts(await say(runner, "one")) == ["echo one, message 2"]
        assert texts(await say(runner, "two")) == ["echo two, message 3"]
    events = (await found(hiding)).events
    assert texts(events) == [
        "message 0",
        "one",
        "echo one, message 2",
        "two",
        "echo two, message 3",
    ]
    await rewind(hiding, "i0")
    assert [event for event in (await found(hiding)).events if event.content] == []
    loaded = await found(hiding)
    assert not await hiding.catch_up(loaded, whole=True)
    assert loaded.events == (await found(hiding)).events


async def whole(sessions: DurableSessionService) -> Session:
    """Returns the session with all its events."""
    session = await sessions.get_whole_session(**SESSION)
    assert session is not None
    return session


@pytest.mark.parametrize("backend", OURS, ids=lambda backend: backend.name)
async def test_facts_are_read_afresh_behind_a_restore_that_is_hidden(
    sessions: DurableSessionService,
) -> None:
    """The note of the restore says so, and stays in the load, without what it has hidden."""
    hiding = DurableSessionService(sessions.wrapped, hide_rewound=True)
    await begin(hiding)
    session = await found(hiding)
    await hiding.append_event(session, said("part", author="agent", invocation="i2"))
    point = await hiding.checkpoints.create(session, step="a")
    await hiding.append_event(session, said("rest", author="agent", invocation="i2"))
    await hiding.checkpoints.restore(point.id)
    read: list[str] = []

    async def stock(context: CallbackContext) -> str:
        read.append(context.invocation_id)
        return "7"

    shown = ["message 0", "message 1", "message 2", "part"]
    assert texts(e for e in (await found(hiding)).events if e.content) == shown
    plugin = MemoryPlugin(recovery=Recovery(on_restore=[stock]))
    async with running(hiding, echo(tools=[]), plugins=[plugin]) as runner:
        await say(runner, "one")
        await say(runner, "two")
    assert len(read) == 1
