"""Any log, pruned by any rule or robbed of any turn: what is left is valid and says the same."""

from __future__ import annotations

import asyncio
import random
import uuid
from contextlib import nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from google.adk.events.event_actions import EventActions, EventCompaction
from google.genai import types
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from adk_memory_ext import CheckpointPolicy, DurableSessionService, Pruning
from adk_memory_ext.errors import ConfigurationError
from backends import count
from conversation import exactly, replay
from histories import AGENT, TOOLS, Log, random_log, request_of
from model_input import faults
from people import OWN, SESSION

if TYPE_CHECKING:
    from google.adk.events.event import Event
    from google.adk.sessions.session import Session

CREATED = {"created": 1, "a": "first"}
_RULES = st.fixed_dictionaries(
    {
        "keep": st.integers(1, 6),
        "older_than": st.one_of(st.none(), st.integers(0, 80)),
        "superseded_tools": st.sets(st.sampled_from(TOOLS)),
        "summarised": st.booleans(),
        "checkpointed": st.booleans(),
    }
)


def own(state: dict[str, Any]) -> str:
    """Returns session-scope state as a text that can be compared."""
    return exactly({key: value for key, value in state.items() if ":" not in key})


class _Talk(Log):
    """A conversation in which every request is valid: turns are whole, and marks lie between."""

    def turn(self) -> None:
        """One message, tools one after the other, and an answer; sometimes a mark behind it."""
        self.invocation += 1
        if self.pending and self.chance.random() < 0.5:
            call = self.pending.pop(0)
            self.add("user", "user", [_answer(call)])
        else:
            self.add("user", "user", [types.Part(text=f"Question {self.invocation}")])
            for _ in range(self.chance.choice((0, 1, 1, 2))):
                self.use()
        self.add(AGENT, "model", [types.Part(text=self.text())])
        self.invocation += 1
        kind = self.chance.random()
        if kind < 0.1:
            self.mark(EventActions(compaction=self.compaction()))
        elif kind < 0.2 and self.invocation > 8:
            target = f"invocation-{self.invocation - self.chance.choice((1, 3, 5))}"
            self.mark(EventActions(rewind_before_invocation_id=target))
            self.pending.clear()
        elif kind < 0.3:
            self.mark(EventActions())

    def use(self) -> None:
        """Calls of tools and their answers; a long-running one is answered by somebody later."""
        made = []
        for _ in range(self.chance.choice((1, 1, 3))):
            self.calls += 1
            arguments = {"query": self.chance.choice("xyz")}
            name = self.chance.choice(TOOLS)
            made.append(types.FunctionCall(id=f"adk-{self.calls}", name=name, args=arguments))
        waits = self.chance.random() < 0.15
        options = {"long_running_tool_ids": {made[0].id}} if waits else {}
        self.pending += made[:1] if waits else []
        self.add(AGENT, "model", [types.Part(function_call=call) for call in made], **options)
        self.add(AGENT, "user", [_answer(call) for call in made])

    def mark(self, actions: EventActions) -> None:
        """Adds an event without content."""
        event = self.add("user", "user", [])
        event.content, event.actions = None, actions

    def compaction(self) -> EventCompaction:
        """Returns a summary of whole turns from the beginning."""
        ends = [one.timestamp for one in self.events if not one.get_function_calls()]
        begins = {self.events[i].invocation_id: i for i in range(len(self.events) - 1, -1, -1)}
        last = self.chance.choice(list(begins.values()))
        return EventCompaction(
            start_timestamp=ends[0],
            end_timestamp=self.events[last].timestamp - 1,
            compacted_content=types.Content(role="user", parts=[types.Part(text="In short.")]),
        )


def _answer(call: types.FunctionCall) -> types.Part:
    told = types.FunctionResponse(id=call.id, name=call.name, response={"n": 1})
    return types.Part(function_response=told)


def valid_log(seed: int) -> list[Event]:
    """Returns a log of which every request is valid, up to a question."""
    log = _Talk(chance=random.Random(seed))  # noqa: S311  # no cryptography
    while len(log.events) < 50:
        log.turn()
    log.invocation += 1
    log.add("user", "user", [types.Part(text="And now?")])
    return log.events


async def loaded(sessions: DurableSessionService, session_id: str = "session") -> Session:
    """Returns a session as it is stored."""
    session = await sessions.get_session(**OWN, session_id=session_id)
    assert session is not None
    return session


async def stored(sessions: DurableSessionService, log: list[Event], seed: int) -> list[str]:
    """Stores a log whose events change the state now and then; returns ids of checkpoints."""
    chance = random.Random(seed)  # noqa: S311  # no cryptography
    session = await sessions.create_session(**SESSION, state=CREATED)
    points = []
    for number, event in enumerate(log):
        if chance.random() < 0.3:
            event.actions.state_delta = {chance.choice("abc"): number, f"k{number % 4}": [number]}
        await sessions.append_event(session, event)
        if chance.random() < 0.1:
            points.append((await sessions.checkpoints.create(session, step=f"s{number}")).id)
    return points


async def contents_of(events: list[Event]) -> list[str]:
    """Returns what is wrong with the request that ADK makes of a log."""
    return faults((await request_of(events)).contents)


def run(seed: int, rules: dict[str, Any], victim: int, *, is_valid: bool) -> None:
    """Prunes a log and deletes a turn of it, and looks at what is left after each."""

    async def steps() -> None:
        log = valid_log(seed) if is_valid else random_log(seed, size=40)
        policy = CheckpointPolicy(keys=("a", "k*"))  # the others are known by reference
        async with DurableSessionService.from_url("", checkpoint_policy=policy) as sessions:
            points = await stored(sessions, log, seed)
            before = await loaded(sessions)
            # ADK itself makes no valid request of some, where a summary cuts off a waiting call.
            assume(not is_valid or await contents_of(before.events) == [])
            older = rules["older_than"]
            pruning = Pruning(
                **{**rules, "older_than": None if older is None else timedelta(seconds=older)}
            )
            now = log[-1].timestamp + 1
            pruned = await sessions.history.prune_by(pruning, before, now=now)
            after = await loaded(sessions)
            await look(sessions, before, after, points)
            gone = {event.id for event in before.events} - {event.id for event in after.events}
            assert len(gone - graves(before)) == pruned.events
            assert not is_valid or await contents_of(after.events) == []
            newest = before.events[-1].invocation_id
            assert not any(e.id in gone for e in before.events if e.invocation_id == newest)
            await rob(sessions, after, points, victim, is_valid=is_valid)

    asyncio.run(steps())


async def rob(
    sessions: DurableSessionService,
    before: Session,
    points: list[str],
    victim: int,
    *,
    is_valid: bool,
) -> None:
    """Deletes some turn, but the one that is to be answered."""
    newest = before.events[-1].invocation_id
    turns = [e.invocation_id for e in before.events if e.content and e.invocation_id != newest]
    if not turns:
        return
    chosen = turns[victim % len(turns)]
    has_mark = any(
        event.actions.rewind_before_invocation_id
        for event in before.events
        if event.invocation_id == chosen
    )
    with pytest.raises(ConfigurationError) if has_mark else nullcontext():
        await sessions.history.delete(before, invocation_id=chosen)
    after = await loaded(sessions)
    await look(sessions, before, after, points)
    assert has_mark or not any(e.invocation_id == chosen and e.content for e in after.events)
    assert not is_valid or await contents_of(after.events) == []


def graves(session: Session) -> set[str]:
    """Returns the ids of tombstones."""
    return {e.id for e in session.events if "memext_pruned" in (e.custom_metadata or {})}


async def look(
    sessions: DurableSessionService, before: Session, after: Session, points: list[str]
) -> None:
    """Checks that the state is as it was, that a replay says so, and that checkpoints restore."""
    assert after.state == before.state
    assert own(replay(after.events, CREATED)) == own(after.state)
    known = [event.id for event in before.events]
    left = [event.id for event in after.events if event.id in known]
    assert left == [one for one in known if one in left]
    times = [event.timestamp for event in after.events]
    assert times == sorted(times)
    latest = await sessions.checkpoints.latest(**SESSION)
    assert (latest is None) is (not points)
    if latest is not None:
        assert latest.id == points[-1]
        name = f"fork-{uuid.uuid4()}"
        await sessions.checkpoints.fork(latest.id, name)
        expected = await sessions.checkpoints.state(latest.id)
        state = (await loaded(sessions, name)).state
        assert {key: state[key] for key in expected} == expected


_EXAMPLES: dict[str, Any] = {"seed": st.integers(0, 10_000), "victim": st.integers(0, 1_000)}


@settings(max_examples=count(40, 600))
@given(**_EXAMPLES, rules=_RULES)
def test_a_valid_log_stays_valid(seed: int, rules: dict[str, Any], victim: int) -> None:
    """State, replay, order, pairs and checkpoints survive any pruning and any deletion."""
    run(seed, rules, victim, is_valid=True)


@settings(max_examples=count(30, 600))
@given(**_EXAMPLES, rules=_RULES)
def test_a_log_with_crashes_keeps_its_state(seed: int, rules: dict[str, Any], victim: int) -> None:
    """In logs that no model would accept too, but for what they say."""
    run(seed, rules, victim, is_valid=False)
