"""State that no delta holds: kept, refused, or at least mentioned; and parallel tools."""

from __future__ import annotations

import asyncio
import copy
import gc
import json
import pickle
import threading
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import pytest
from google.adk.agents.llm_agent import LlmAgent
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions.state import State
from pydantic import BaseModel

from adk_memory_ext import ConfigurationError, DurableSessionService, StateRejectedError
from adk_memory_ext.watched_state import WatchedState
from backends import DATABASE_SQLITE, IN_MEMORY, OURS, WRAPPED
from conversation import replay, said
from people import SESSION, Echo, running, say
from values import BAD, NEVER, PYTHON, is_exactly

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from google.adk.agents.callback_context import CallbackContext
    from google.adk.sessions.session import Session
    from google.adk.tools.tool_context import ToolContext

    from backends import Backend, Place

over_every_service = pytest.mark.parametrize(
    "backend", [*OURS, *WRAPPED], ids=lambda backend: backend.name
)


async def begun(sessions: DurableSessionService, **state: Any) -> Session:
    """Returns a session that was loaded."""
    await sessions.create_session(**SESSION, state=state)
    return await found(sessions)


async def found(sessions: DurableSessionService) -> Session:
    """Returns the session as it is stored."""
    session = await sessions.get_session(**SESSION)
    assert session is not None
    return session


def removing(state: dict[str, Any]) -> None:
    """Removes a key."""
    del state["list"]


def each_list(values: Iterable[Any]) -> None:
    """Changes every list in place."""
    for value in values:
        if isinstance(value, list):
            value.append(3)


DIRECT: Final[dict[str, Callable[[dict[str, Any]], Any]]] = {
    "assignment": lambda state: state.__setitem__("new", 1),
    "update": lambda state: state.update(new=1, other=[2]),
    "or": lambda state: state.__ior__({"new": 1}),
    "setdefault": lambda state: state.setdefault("new", 1),
    "append in place": lambda state: state["list"].append(3),
    "change in place below": lambda state: state["dict"]["inner"].update(x=1),
    "in place through get": lambda state: each_list([state.get("list")]),
    "in place through values": lambda state: each_list(state.values()),
    "in place through items": lambda state: each_list(value for _key, value in state.items()),
    "user scope": lambda state: state.__setitem__("user:new", 1),
    "app scope": lambda state: state.__setitem__("app:new", {"a": 1}),
}
every_direct_write = pytest.mark.parametrize("how", DIRECT)
START: Final[dict[str, Any]] = {"list": [1, 2], "dict": {"inner": {}}, "text": "a"}


@over_every_service
@every_direct_write
async def test_a_direct_write_is_kept(sessions: DurableSessionService, how: str) -> None:
    """What was written to `session.state` is stored with the next event, as a part of its delta."""
    session = await begun(sessions, **START)
    DIRECT[how](session.state)
    wanted = dict(session.state)
    await sessions.append_event(session, said("next", state={"k": 1}))
    stored = await found(sessions)
    assert stored.state == session.state == wanted | {"k": 1}
    assert replay(stored.events, START) == stored.state
    await sessions.append_event(session, event := said("nothing more"))
    assert event.actions.state_delta == {}


@pytest.mark.parametrize("backend", OURS, ids=lambda backend: backend.name)
@pytest.mark.parametrize("remove", [removing, lambda state: state.pop("list"), dict.clear])
async def test_a_direct_removal_is_kept(
    sessions: DurableSessionService, remove: Callable[[dict[str, Any]], Any]
) -> None:
    """A key that was taken out of `session.state` is gone after the next event."""
    session = await begun(sessions, list=[1])
    if remove is dict.clear:
        session.state.clear()
    else:
        remove(session.state)
    await sessions.append_event(session, said("next"))
    assert (await found(sessions)).state == session.state == {}


def unlike_json(state: Any) -> None:
    """Changes values in place so that ADK 2.13.0 does not record it."""
    state["list"].append((3, 4))
    state["dict"]["inner"]["day"] = date(2026, 1, 2)
    state["user:tags"].append({"a"})


@over_every_service
@pytest.mark.parametrize("where", ["tool", "callback"])
async def test_a_change_in_place_that_adk_does_not_record_is_kept(
    sessions: DurableSessionService, where: str
) -> None:
    """A context records a list that is equal to its JSON form, and nothing of any other one."""

    def tool(text: str, tool_context: ToolContext) -> str:
        """Changes values in place."""
        unlike_json(tool_context.state)
        return text

    def before_agent(callback_context: CallbackContext) -> None:
        unlike_json(callback_context.state)

    agent = LlmAgent(name="agent", model=Echo())
    if where == "tool":
        agent.tools = [tool]
    else:
        agent.before_agent_callback = before_agent
    start = START | {"user:tags": [], "temp:list": []}
    await sessions.create_session(**SESSION, state=start)
    async with running(sessions, agent) as runner:
        await say(runner, "hello")
    stored = await found(sessions)
    assert stored.state == START | {
        "list": [1, 2, [3, 4]],
        "dict": {"inner": {"day": "2026-01-02"}},
        "user:tags": [["a"]],
    }
    assert replay(stored.events, start) == stored.state


class Odd:
    """Can be compared with nothing."""

    def __eq__(self, other: object) -> bool:
        raise TypeError

    def __hash__(self) -> int:
        return 0


async def test_a_value_that_cannot_be_copied_or_compared_can_be_read() -> None:
    """What one callback leaves in the state another one finds, as in plain ADK."""
    async with DurableSessionService.from_url("") as sessions:
        session = await begun(sessions)
        first, second = State(session.state, {}), State(session.state, {})
        for value in ([threading.Lock()], [Odd()]):
            first["k"] = value
            assert second["k"] is value
            assert session.state["k"] is value
        await sessions.append_event(session, said("next"))
        assert (await found(sessions)).state == {}


over_every_kind = pytest.mark.parametrize(
    "backend", [*OURS, IN_MEMORY, DATABASE_SQLITE], ids=lambda backend: backend.name
)


@pytest.fixture
async def strict(backend: Backend, place: Place) -> Any:
    """A service that refuses direct writes."""
    if backend in OURS:
        async with DurableSessionService.from_url(place.url, on_direct_write="refuse") as service:
            yield service
        return
    async with backend.open(place) as bare:
        yield DurableSessionService(bare, on_direct_write="refuse")


@over_every_kind
@every_direct_write
async def test_a_direct_write_is_refused(strict: DurableSessionService, how: str) -> None:
    """By option the next event is refused with the key and the right way, and the write undone."""
    session = await begun(strict, **START)
    DIRECT[how](session.state)
    with pytest.raises(StateRejectedError, match=r"in session\.state.*tool_context\.state"):
        await strict.append_event(session, said("next"))
    assert session.state == START
    assert session.events == (await found(strict)).events == []
    await strict.append_event(session, said("next"))
    assert (await found(strict)).state == START


@over_every_kind
async def test_a_change_in_place_that_adk_does_not_record_is_refused(
    strict: DurableSessionService,
) -> None:
    """By option, with the key; what ADK records and what is `temp:` is nobody's concern."""
    session = await begun(strict, **START, **{"user:tags": []})
    session.state.update({"temp:list": []})
    unlike_json(State(session.state, {}))
    with pytest.raises(StateRejectedError, match="in place, where no event records it; assign"):
        await strict.append_event(session, said("next"))
    assert session.state == START | {"user:tags": [], "temp:list": []}
    actions = EventActions()
    state = State(session.state, actions.state_delta)
    state["list"].append(3)
    session.state["temp:list"].append(3)
    state["temp:list"].append((3,))
    assert state.has_delta()
    await strict.append_event(session, said("another branch"))
    await strict.append_event(session, Event(author="agent", actions=actions))
    assert (await found(strict)).state["list"] == [1, 2, 3]


def test_the_option_is_checked() -> None:
    """Another word is a mistake."""
    with pytest.raises(ConfigurationError, match="'keep' or 'refuse', not 'ignore'"):
        DurableSessionService.from_url("", on_direct_write="ignore")  # type: ignore[arg-type]


@pytest.mark.parametrize("key", ["new", "list", 1])
async def test_what_was_put_back_is_no_write(key: Any) -> None:
    """A key that holds what it held before, or is gone as it was, is in no delta.

    Also one that no store could take, which would keep every later event from being appended.
    """
    async with DurableSessionService.from_url("") as sessions:
        session = await begun(sessions, **START)
        before = session.state.get(key)
        session.state[key] = "for a moment"
        if before is None:
            del session.state[key]
        else:
            session.state[key] = before
        await sessions.append_event(session, event := said("next"))
        assert event.actions.state_delta == {}
        assert event.custom_metadata is None
        assert (await found(sessions)).state == START


async def test_each_key_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    """The warning names the key, never the value."""
    async with DurableSessionService.from_url("") as sessions:
        session = await begun(sessions)
        for value in ("secret 1", "secret 2"):
            session.state["key"] = value
            await sessions.append_event(session, said("next"))
    warnings = [record.getMessage() for record in caplog.records if "'key'" in record.getMessage()]
    assert len(warnings) == 1
    assert "secret" not in caplog.text


async def test_a_session_dropped_with_direct_writes_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nobody appended an event through it, so that nothing was kept: the log has the keys."""
    async with DurableSessionService.from_url("") as sessions:
        session = await begun(sessions, inside=[])
        session.state["lost"] = "secret"
        session.state["inside"].append("secret")
        session.state["temp:lost"] = "nothing to keep"
        session.state["put back"] = "for a moment"
        del session.state["put back"]
        del session
        gc.collect()
    assert (
        "Session session was dropped with unsaved direct writes to its state: inside, lost."
    ) in caplog.text
    assert "secret" not in caplog.text
    assert "temp:" not in caplog.text


async def test_a_failing_append_owes_the_write_still() -> None:
    """When the event is refused for another reason, the direct write goes with the next one."""
    async with DurableSessionService.from_url("") as sessions:
        session = await begun(sessions)
        session.state["key"] = 1
        event = said("bad", state={"nan": float("nan")})
        with pytest.raises(StateRejectedError, match="nan"):
            await sessions.append_event(session, event)
        assert list(event.actions.state_delta) == ["nan"]
        await sessions.append_event(session, said("good"))
        assert (await found(sessions)).state == {"key": 1}


async def test_a_direct_write_in_a_tool_and_a_callback_is_kept() -> None:
    """Inside a run too, where people write it most."""

    def tool(text: str, tool_context: ToolContext) -> str:
        """Writes where nobody looks."""
        tool_context.session.state["from tool"] = text
        return "done"

    def before_agent(callback_context: CallbackContext) -> None:
        callback_context.session.state["from callback"] = True

    agent = LlmAgent(name="agent", model=Echo(), tools=[tool], before_agent_callback=before_agent)
    async with DurableSessionService.from_url("") as sessions:
        async with running(sessions, agent) as runner:
            await say(runner, "hello")
        assert (await found(sessions)).state == {"from tool": "hello", "from callback": True}


async def test_what_adk_records_is_not_owed(caplog: pytest.LogCaptureFixture) -> None:
    """Writes through a context, pending or recorded, are no direct writes: ADK's own code is known.

    Red when ADK moves its state to where we do not know it.
    """
    async with DurableSessionService.from_url("", on_direct_write="refuse") as sessions:
        session = await begun(sessions, **START)
        actions = EventActions()
        state = State(session.state, actions.state_delta)
        state["pending"] = 1
        state.update({"more": [1]})
        state.setdefault("other", 2)
        state["list"].append(3)
        assert state.has_delta()
        await sessions.append_event(session, said("another branch"))
        event = Event(author="agent", invocation_id="i", actions=actions)
        await sessions.append_event(session, event)
        assert (await found(sessions)).state == START | {
            "pending": 1,
            "more": [1],
            "other": 2,
            "list": [1, 2, 3],
        }
    assert "session.state" not in caplog.text


# --- Values that change type


@dataclass
class Point:
    """A dataclass."""

    x: int
    y: int


class Step(Enum):
    """An enum."""

    FIRST = "first"


class Person(BaseModel):
    """A model."""

    name: str
    age: int | None = None


@over_every_service
async def test_live_and_stored_values_agree(sessions: DurableSessionService) -> None:
    """What JSON cannot hold becomes what will be read back, in all three places at once."""
    session = await begun(sessions)
    event = said(
        "next",
        state={
            "when": datetime(2026, 1, 2, tzinfo=UTC),
            "amount": Decimal("1.10"),
            "tags": {"a"},
            "pair": (1, 2),
            "day": date(2026, 1, 2),
            "id": UUID(int=7),
            "point": Point(1, 2),
            "step": Step.FIRST,
            "model": Person(name="Ada"),
            "user:when": {"inside": [datetime(2026, 1, 2, tzinfo=UTC)]},
        },
    )
    returned = await sessions.append_event(session, event)
    stored = await found(sessions)
    assert session.state == stored.state == returned.actions.state_delta
    assert stored.state["pair"] == [1, 2]
    assert stored.state["tags"] == ["a"]
    assert stored.state["point"] == {"x": 1, "y": 2}
    assert stored.state["step"] == "first"
    assert stored.state["model"] == {"name": "Ada", "age": None}


@over_every_service
async def test_what_a_session_is_created_with_agrees_at_once(
    sessions: DurableSessionService,
) -> None:
    """In each scope the returned session holds what is read back; `temp:` values stay as given."""
    scopes = ("", "user:", "app:")
    given = {f"{scope}{name}": value for scope in scopes for name, (value, _) in PYTHON.items()}
    plain = {f"{scope}{name}": value for scope in scopes for name, (_, value) in PYTHON.items()}
    day = date(2026, 1, 2)
    created = await sessions.create_session(**SESSION, state=given | {"temp:day": day})
    assert created.state.pop("temp:day") is day
    assert is_exactly(created.state, plain)
    assert is_exactly((await found(sessions)).state, plain)


@over_every_service
async def test_a_session_is_not_created_with_what_cannot_be_kept(
    sessions: DurableSessionService,
) -> None:
    """The key and the reason are named, and there is no session."""
    for bad in (BAD | NEVER).values():
        with pytest.raises(StateRejectedError, match=r"^'user:bad\.list\[0\]"):
            await sessions.create_session(**SESSION, state={"user:bad": {"list": [bad.value]}})
    assert await sessions.get_session(**SESSION) is None
    await sessions.create_session(**SESSION)
    assert (await found(sessions)).state == {}


# --- As a dict


def test_it_is_a_dict_to_everybody() -> None:
    """It dumps, compares, copies and travels as one."""
    state = WatchedState({"a": [1]}, "session")
    assert state == {"a": [1]}
    assert json.dumps(state) == '{"a": [1]}'
    assert type(pickle.loads(pickle.dumps(state))) is dict  # noqa: S301
    twin = copy.deepcopy(state)
    twin["a"].append(2)
    assert state == {"a": [1]}
    assert copy.copy(state) == state
    assert state | {"b": 1} == {"a": [1], "b": 1}
    assert state.popitem() == ("a", [1])
    with pytest.raises(KeyError):
        state.pop("a")
    with pytest.raises(KeyError):
        del state["a"]
    assert state.pop("a", None) is None
    state.take_back()
    assert state == {"a": [1]}


# --- Tools at the same time


async def extend_by_copy(text: str, tool_context: ToolContext) -> str:
    """Reads, waits, and writes a new list."""
    number = len(tool_context.state.get("order", []))
    items = list(tool_context.state.get("items", []))
    counter = tool_context.state.get("counter", 0)
    tags = dict(tool_context.state.get("user:tags", {}))
    kinds = set(tool_context.state.get("kinds", ()))
    for _ in range(5 - number):
        await asyncio.sleep(0)
    mark = f"{text}-{id(tool_context)}"
    tool_context.state["kinds"] = {*kinds, mark}
    tool_context.state["items"] = [*items, mark]
    tool_context.state["counter"] = counter + 1
    tool_context.state["user:tags"] = {**tags, mark: True}
    return "done"


async def extend_in_place(text: str, tool_context: ToolContext) -> str:
    """Reads, waits, and changes the list that it was given; every other one writes a new one."""
    items = tool_context.state.get("items", [])
    kinds = tool_context.state.get("kinds", [])
    await asyncio.sleep(0)
    mark = f"{text}-{id(tool_context)}"
    tool_context.state["kinds"] = frozenset(kinds) | {mark}
    if id(tool_context) // 16 % 2:
        tool_context.state["items"] = [*items, mark]
    else:
        items.append(mark)
        tool_context.state["items"] = items
    tool_context.state["counter"] = tool_context.state.get("counter", 0) + 1
    tags = tool_context.state.get("user:tags", {})
    tool_context.state["user:tags"] = {**tags, mark: True}
    return "done"


@over_every_service
@pytest.mark.parametrize("tool", [extend_by_copy, extend_in_place])
async def test_parallel_tools_lose_nothing(sessions: DurableSessionService, tool: Any) -> None:
    """Tools of one step that each extend a list, a set, a dict and a counter add up."""
    agent = LlmAgent(name="agent", model=Echo(calls=6), tools=[tool])
    await sessions.create_session(**SESSION, state={"items": ["first"], "user:tags": {}})
    async with running(sessions, agent) as runner:
        await say(runner, "one")
        await say(runner, "two")
    state = (await found(sessions)).state
    assert len(set(state["items"])) == 13
    assert len(state["kinds"]) == 12
    assert state["counter"] == 12
    assert len(state["user:tags"]) == 12


async def test_a_tool_may_set_a_value_without_looking() -> None:
    """A value that was not read is written as it is."""

    async def reset(text: str, tool_context: ToolContext) -> str:
        """Sets the counter."""
        del text
        await asyncio.sleep(0)
        tool_context.state["counter"] = 10
        return "done"

    agent = LlmAgent(name="agent", model=Echo(calls=3), tools=[reset])
    async with DurableSessionService.from_url("") as sessions:
        await sessions.create_session(**SESSION, state={"counter": 3})
        async with running(sessions, agent) as runner:
            await say(runner, "one")
        assert (await found(sessions)).state["counter"] == 10
