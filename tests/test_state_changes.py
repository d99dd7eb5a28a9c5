"""Changes such as `Increment`: what they do, alone, in an event's delta and from a real tool."""

from __future__ import annotations

import asyncio
import copy
import pickle
from typing import TYPE_CHECKING, Any, Final

import pytest
from google.adk.agents.llm_agent import LlmAgent
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google.adk.tools.tool_context import ToolContext  # noqa: TC002  # ADK reads the signature
from google.genai import types
from hypothesis import given
from hypothesis import strategies as st

import adk_memory_ext
from adk_memory_ext import Extend, Increment, Maximum, Remove, Union
from adk_memory_ext.errors import CapabilityError, StateRejectedError
from adk_memory_ext.json_values import Normaliser
from adk_memory_ext.service import DurableSessionService
from adk_memory_ext.state_changes import (
    MISSING,
    Put,
    Several,
    StateChange,
    UnfitValueError,
    change_in,
)
from backends import OURS, OURS_MARIADB
from conversation import said
from values import JSON, is_exactly

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from google.adk.models.llm_request import LlmRequest
    from google.adk.sessions.session import Session

    from backends import Backend

KEY: Final[dict[str, Any]] = {"app_name": "app", "user_id": "ann", "session_id": "session"}
SCOPES: Final = ("", "user:", "app:")


@pytest.fixture(params=[*OURS, OURS_MARIADB], ids=lambda backend: backend.name)
def backend(request: pytest.FixtureRequest) -> Backend:
    """Each database that changes are applied in."""
    row: Backend = request.param
    return row


async def stored(sessions: DurableSessionService) -> Session:
    """Returns the session, which must be there."""
    session = await sessions.get_session(**KEY)
    assert session is not None
    return session


# --- Each change alone


@pytest.mark.parametrize(
    ("change", "old", "new"),
    [
        (Put(1), MISSING, 1),
        (Put(None), [1], None),
        (Remove(), 1, MISSING),
        (Remove(), MISSING, MISSING),
        (Increment(), MISSING, 1),
        (Increment(2), 3, 5),
        (Increment(-0.5), 3, 2.5),
        (Increment(1), 2**64, 2**64 + 1),
        (Increment(0), 1.5, 1.5),
        (Extend([1, [2]]), MISSING, [1, [2]]),
        (Extend([1]), [1, None], [1, None, 1]),
        (Extend(()), [1], [1]),
        (Extend(range(2)), MISSING, [0, 1]),
        (Union(["b", "c", "b"]), ["a", "b"], ["a", "b", "c"]),
        (Union([1, True, 1.0, "1", None]), [1], [1, True, 1.0, "1", None]),
        (Union([{"b": 1, "a": [2]}]), [{"a": [2], "b": 1}], [{"a": [2], "b": 1}]),
        (Union([]), MISSING, []),
        (Maximum(3), MISSING, 3),
        (Maximum(3), 5, 5),
        (Maximum(5), 3, 5),
        (Maximum("b"), "a", "b"),
        (Maximum(1.5), 1, 1.5),
        (Several([Increment(1), Increment(2), Maximum(9)]), 3, 9),
        (Several([Remove(), Increment(2)]), "a", 2),
        (Several([Extend([1]), Union([1, 2])]), MISSING, [1, 2]),
    ],
    ids=repr,
)
def test_a_change_makes_the_new_value_from_the_old(change: StateChange, old: Any, new: Any) -> None:
    """Each change does what it says, and leaves the old value as it was."""
    before = copy.deepcopy(old)
    outcome = change.apply(old)
    assert outcome is MISSING if new is MISSING else is_exactly(outcome, new)
    assert old is MISSING or is_exactly(old, before)


@pytest.mark.parametrize(
    ("change", "old", "reason"),
    [
        (Increment(1), "5", "is a str and cannot be incremented"),
        (Increment(1), None, "is a null and cannot be incremented"),
        (Increment(1), True, "is a bool and cannot be incremented"),
        (Increment(1e308), 1.7e308, "would become no finite number"),
        (Increment(0.5), 10**400, "would become no finite number"),
        (Extend([1]), {"a": 1}, "is a dict and no list"),
        (Extend([1]), "text", "is a str and no list"),
        (Union([1]), None, "is a null and no list"),
        (Maximum(1), "a", "is a str and cannot be compared with a int"),
        (Maximum(None), 1, "is a int and cannot be compared with a null"),
        (Maximum({}), {}, "is a dict and cannot be compared with a dict"),
    ],
    ids=repr,
)
def test_a_change_that_does_not_fit_says_so(change: StateChange, old: Any, reason: str) -> None:
    """The reason names the types and shows no value."""
    with pytest.raises(UnfitValueError) as caught:
        change.apply(old)
    assert str(caught.value) == reason


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Increment("1"), "Increment adds a number, not a str"),  # type: ignore[arg-type]
        (lambda: Increment(True), "Increment adds a number, not a bool"),
        (lambda: Increment(float("nan")), "Increment adds a finite number"),
        (lambda: Extend("abc"), "Extend adds a list of items, not a str"),
        (lambda: Union({"a": 1}), "Union adds a list of items, not a dict"),
        (lambda: Extend(5), "Extend adds a list of items, not a int"),  # type: ignore[arg-type]
    ],
)
def test_a_change_that_makes_no_sense_is_refused_where_it_is_made(make: Any, message: str) -> None:
    """The mistake shows in the tool that made it."""
    with pytest.raises((TypeError, ValueError), match=message):
        make()


CHANGES: Final = [Increment(2), Extend([1]), Union([[1]]), Maximum("a"), Remove(), Put({"a": 1})]


@pytest.mark.parametrize("change", CHANGES, ids=repr)
def test_a_change_can_be_copied_compared_and_printed(change: StateChange) -> None:
    """Copies and pickles are equal to it and still one change; others are not."""
    for other in (copy.copy(change), copy.deepcopy(change), pickle.loads(pickle.dumps(change))):  # noqa: S301
        assert other == change
        assert change_in(other) == change
        assert repr(other) == repr(change)
    assert [known for known in CHANGES if known == change] == [change]
    assert change != dict(change)
    assert repr(change) == f"{type(change).__name__}({', '.join(map(repr, change._fields()))})"
    assert copy.deepcopy(MISSING) is MISSING


@given(JSON)
def test_no_value_is_taken_for_a_change(value: Any) -> None:
    """Whatever JSON a person or a model sends, it is a value."""
    assert change_in(value) is None


@given(st.lists(st.integers(), max_size=5), st.lists(st.lists(st.integers(), max_size=3)))
def test_a_union_holds_each_item_once_whatever_the_order(
    old: list[int], added: list[list[int]]
) -> None:
    """Items join in the order of their coming, and joining again changes nothing."""
    merged: Any = old
    for items in added:
        merged = Union(items).apply(merged)
    assert merged[: len(old)] == old
    assert set(merged) == set(old).union(*added)
    assert len(merged) - len(old) == len(set().union(*added) - set(old))
    assert Union(merged).apply(merged) == merged


def test_the_values_of_a_change_are_checked_as_any() -> None:
    """What a change adds must be something that can be kept, and becomes what a reload gives."""
    normaliser = Normaliser()
    change = Extend([(1, 2), {3}]).normalised(lambda value: normaliser.value(value, "key"))
    assert change == Extend([[1, 2], [3]])


@pytest.mark.parametrize("name", ["Extend", "Increment", "Maximum", "Remove", "Union"])
def test_changes_are_public(name: str) -> None:
    """They are imported from the package itself."""
    assert name in adk_memory_ext.__all__
    assert issubclass(getattr(adk_memory_ext, name), StateChange)


# --- In an event's delta


async def test_changes_in_a_delta_are_applied_to_what_is_stored(
    sessions: DurableSessionService,
) -> None:
    """In each scope; the event, the live session and the reloaded session hold the outcome."""
    initial = {
        f"{scope}{key}": value
        for scope in SCOPES
        for key, value in {"n": 1, "list": [1], "set": [1], "max": 5, "gone": 0}.items()
    }
    session = await sessions.create_session(**KEY, state=initial)
    behind = await stored(sessions)
    changes: dict[str, Any] = {
        "n": Increment(2),
        "new": Increment(0.5),
        "list": Extend([(2,)]),
        "set": Union([1, 2]),
        "max": Maximum(4),
        "gone": Remove(),
        "never": Remove(),
        "plain": {"a": 1},
    }
    event = said("x", state={f"{scope}{key}": changes[key] for scope in SCOPES for key in changes})
    await sessions.append_event(session, event)

    outcome = {"n": 3, "new": 0.5, "list": [1, [2]], "set": [1, 2], "max": 5, "plain": {"a": 1}}
    expected = {f"{scope}{key}": value for scope in SCOPES for key, value in outcome.items()}
    gone = {f"{scope}{key}": None for scope in SCOPES for key in ("gone", "never")}
    assert event.actions.state_delta == expected | gone
    assert event.custom_metadata is not None
    assert set(event.custom_metadata["memext_removed"]) == set(gone)
    assert session.state == expected
    read = await stored(sessions)
    assert read == session

    # What others wrote in between is kept: this one knows none of it.
    state_only = Event(
        author="user",
        actions=EventActions(state_delta={"n": Increment(10), "user:set": Union([3])}),
    )
    await sessions.append_event(behind, state_only)
    assert behind.state["n"] == 13
    assert behind.state["user:set"] == [1, 2, 3]
    assert (await stored(sessions)).state == expected | {"n": 13, "user:set": [1, 2, 3]}


async def test_changes_in_the_state_of_a_new_session_begin_with_what_is_there(
    sessions: DurableSessionService,
) -> None:
    """`user:` and `app:` keys are changed, those of the session begin from nothing."""
    await sessions.create_session(**KEY, state={"user:visits": 1, "app:visits": 5})
    other = await sessions.create_session(
        app_name="app",
        user_id="ann",
        state={
            "user:visits": Increment(),
            "app:visits": Increment(),
            "own": Increment(),
            "none": Remove(),
        },
    )
    assert other.state == {"user:visits": 2, "app:visits": 6, "own": 1}
    assert (await stored(sessions)).state == {"user:visits": 2, "app:visits": 6}


@pytest.mark.parametrize("scope", SCOPES)
async def test_a_change_that_does_not_fit_is_refused_with_its_key(
    scope: str, sessions: DurableSessionService
) -> None:
    """Nothing of its event is written, in no scope, and nothing in memory changes."""
    session = await sessions.create_session(
        **KEY, state={f"{scope}name": "hunter2" for scope in SCOPES}
    )
    before = session.model_copy(deep=True)
    change = Increment(1)
    delta = {"good": 1, "user:good": 2, "app:good": 3, f"{scope}name": change}
    event = said("x", state=delta)
    with pytest.raises(StateRejectedError, match="is a str and cannot be incremented") as caught:
        await sessions.append_event(session, event)
    assert caught.value.key == f"{scope}name"
    assert caught.value.scope == (scope.removesuffix(":") or "session")
    assert "hunter2" not in str(caught.value)
    assert event.actions.state_delta[f"{scope}name"] is change
    assert session == before
    assert await stored(sessions) == before


async def test_a_change_of_a_temporary_key_is_refused(sessions: DurableSessionService) -> None:
    """`temp:` keys are never stored, so there is nothing that others could have changed."""
    session = await sessions.create_session(**KEY)
    with pytest.raises(StateRejectedError, match=r"'temp:n' is never stored") as caught:
        await sessions.append_event(session, said("x", state={"temp:n": Increment(1)}))
    assert caught.value.scope == "temp"
    assert session.events == []


async def test_a_second_delivery_applies_no_change_twice(sessions: DurableSessionService) -> None:
    """A retry of an event with changes, as given or as returned, by any copy, is one event."""
    session = await sessions.create_session(**KEY, state={"n": 1, "gone": 1, "user:list": [0]})
    copies = [await stored(sessions) for _ in range(3)]
    event = said("x", state={"n": Increment(2), "gone": Remove(), "user:list": Extend([1])})
    given_events = [event.model_copy(deep=True) for _ in copies]
    await sessions.append_event(session, event)
    await sessions.append_event(session, event)
    for behind, again in zip(copies, given_events, strict=True):
        await sessions.append_event(behind, again)
        assert again == event
        assert behind == session
    assert (await stored(sessions)) == session
    assert session.state == {"n": 3, "user:list": [0, 1]}

    other = event.model_copy(deep=True)
    other.actions.state_delta["m"] = Increment(1)
    with pytest.raises(AlreadyExistsError):
        await sessions.append_event(session, other)


async def test_an_event_that_removed_keys_removes_them_wherever_it_is_appended(
    sessions: DurableSessionService,
) -> None:
    """A copy of it in another session does to the state what it did in the first one."""
    session = await sessions.create_session(**KEY, state={"gone": 1, "none": 1})
    event = said("x", state={"gone": Remove(), "none": None})
    await sessions.append_event(session, event)
    assert event.actions.state_delta == {"gone": None, "none": None}
    other = await sessions.create_session(
        app_name="app", user_id="bob", state={"gone": 2, "none": 2}
    )
    again = event.model_copy(deep=True)
    await sessions.append_event(other, again)
    assert other.state == {"none": None}
    assert again == event.model_copy(update={"timestamp": again.timestamp})


async def test_twenty_increments_at_once_make_twenty(sessions: DurableSessionService) -> None:
    """Sessions that were read before one another's writes count together and lose none."""
    await sessions.create_session(**KEY, state={"n": 0})
    copies = await asyncio.gather(*(stored(sessions) for _ in range(20)))

    async def count(session: Session) -> None:
        event = Event(
            author="user",
            actions=EventActions(
                state_delta={"n": Increment(), "user:n": Increment(), "app:n": Increment()}
            ),
        )
        await sessions.append_event(session, event)

    await asyncio.gather(*map(count, copies))
    read = await stored(sessions)
    assert read.state == {"n": 20, "user:n": 20, "app:n": 20}
    for key in read.state:
        assert [event.actions.state_delta[key] for event in read.events] == list(range(1, 21))


# --- From a tool in a Runner


class Caller(BaseLlm):
    """A model that calls tools, all at once, and then says how it went."""

    calls: list[tuple[str, dict[str, Any]]]

    async def generate_content_async(
        self,
        llm_request: LlmRequest,
        stream: bool = False,  # noqa: ARG002  # ADK's interface
    ) -> AsyncGenerator[LlmResponse]:
        """Answers with the calls, or with a text once they are answered."""
        parts = (llm_request.contents[-1].parts or []) if llm_request.contents else []
        if any(part.function_response for part in parts):
            answer = [types.Part(text="done")]
        else:
            answer = [
                types.Part(function_call=types.FunctionCall(name=name, args=arguments))
                for name, arguments in self.calls
            ]
        yield LlmResponse(content=types.Content(role="model", parts=answer))


async def count_visit(by: int, tool_context: ToolContext) -> dict[str, Any]:
    """Counts."""
    tool_context.state["visits"] = Increment(by)
    tool_context.state["user:visits"] = Increment(by)
    return {"counted": by}


async def note(item: str, tool_context: ToolContext) -> dict[str, Any]:
    """Notes an item after a while, as tools that ask a server do."""
    await asyncio.sleep(0)
    tool_context.state["user:notes"] = Extend([item])
    tool_context.state["tags"] = Union([item, "all"])
    return {"noted": item}


async def forget(tool_context: ToolContext) -> dict[str, Any]:
    """Forgets."""
    tool_context.state["secret"] = Remove()
    return {}


async def turn(
    sessions: DurableSessionService, calls: list[tuple[str, dict[str, Any]]]
) -> list[Event]:
    """Runs one turn in which the model makes the calls, and returns its events."""
    agent = LlmAgent(
        name="agent", model=Caller(model="offline", calls=calls), tools=[count_visit, note, forget]
    )
    runner = Runner(app_name="app", agent=agent, session_service=sessions)
    message = types.Content(role="user", parts=[types.Part(text="go")])
    return [
        event
        async for event in runner.run_async(
            user_id="ann", session_id="session", new_message=message
        )
    ]


async def test_a_tool_changes_state_through_its_context(sessions: DurableSessionService) -> None:
    """`tool_context.state[key] = Increment(n)` counts in the log, the session and the user."""
    await sessions.create_session(**KEY, state={"visits": 40, "secret": 1})
    calls: list[tuple[str, dict[str, Any]]] = [("count_visit", {"by": 2}), ("forget", {})]
    for call in calls:
        events = await turn(sessions, [call])
        assert [event.author for event in events] == ["agent"] * 3
        read = await stored(sessions)
        assert read.events[-3:] == events
    assert read.state == {"visits": 42, "user:visits": 2}
    deltas = [event.actions.state_delta for event in read.events if event.actions.state_delta]
    assert deltas == [{"visits": 42, "user:visits": 2}, {"secret": None}]


async def test_tools_that_run_in_parallel_lose_no_change(sessions: DurableSessionService) -> None:
    """Calls of one step that change the same keys all count, though ADK merges their deltas."""
    await sessions.create_session(**KEY, state={"user:notes": ["zero"], "tags": ["all"]})
    await turn(
        sessions,
        [
            *(("count_visit", {"by": by}) for by in (1, 10, 100)),
            *(("note", {"item": item}) for item in ("one", "two", "three")),
        ],
    )
    read = await stored(sessions)
    assert read.state == {
        "visits": 111,
        "user:visits": 111,
        "user:notes": ["zero", "one", "two", "three"],
        "tags": ["all", "one", "two", "three"],
    }


# --- Over a service that cannot


async def test_a_service_that_cannot_apply_changes_is_named() -> None:
    """A change would be stored as if it were a value; it is refused and nothing is written."""
    sessions = DurableSessionService(InMemorySessionService())
    message = "InMemorySessionService cannot apply the Increment of 'user:n'"
    with pytest.raises(CapabilityError, match=message):
        await sessions.create_session(**KEY, state={"user:n": Increment(1)})
    session = await sessions.create_session(**KEY)
    with pytest.raises(CapabilityError, match=message):
        await sessions.append_event(session, said("x", state={"user:n": Increment(1)}))
    assert await stored(sessions) == session
    assert session.events == []
