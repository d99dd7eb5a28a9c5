"""Any history of messages, changes, rewinds, restores, forks and pruning: restores are exact."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from google.adk.events._rewind_events import _apply_rewinds
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from hypothesis import given, settings
from hypothesis import strategies as st

from adk_memory_ext import CheckpointPolicy, CheckpointRetention, DurableSessionService
from adk_memory_ext.rewind_marks import Outline, Special, live_positions, plan_restore
from backends import count
from conversation import exactly, replay, said, texts
from people import OWN, SESSION

if TYPE_CHECKING:
    from google.adk.sessions.session import Session

_VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(0, 2), st.text("xy", max_size=80), st.lists(st.integers())
)
_STATES = st.dictionaries(st.sampled_from(["a", "b", "personal", "履", 'q"']), _VALUES)
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("say"), st.sampled_from("ijkl"), _STATES),
        st.tuples(st.just("delete"), st.sampled_from(["a", "b", "personal"])),
        st.tuples(st.just("checkpoint")),
        st.tuples(st.just("restore"), st.integers(0, 9)),
        st.tuples(st.just("fork"), st.integers(0, 9)),
        st.tuples(st.just("prune"), st.integers(1, 3)),
    ),
    min_size=3,
    max_size=14,
)


def own(session: Session) -> dict[str, Any]:
    """Returns session-scope state."""
    return {key: value for key, value in session.state.items() if ":" not in key}


def seen(session: Session) -> list[str]:
    """Returns what the model is shown, as ADK tells it."""
    return texts(event for event in _apply_rewinds(session.events) if event.content)


class _History:
    """A session, and what each of its checkpoints should bring back."""

    def __init__(self, sessions: DurableSessionService, created: dict[str, Any]) -> None:
        self.sessions = sessions
        self.created = created
        self.expected: dict[str, tuple[str, list[str]]] = {}
        self.said = 0

    async def found(self, session_id: str = "session") -> Session:
        session = await self.sessions.get_session(**OWN, session_id=session_id)
        assert session is not None
        return session

    async def take(self, step: tuple[Any, ...]) -> None:
        """Does one step and checks what it must have done."""
        kind, *arguments = step
        points = list(self.expected)
        if kind == "say":
            self.said += 1
            invocation, delta = arguments
            event = said(f"m{self.said}", invocation=invocation, state=delta)
            await self.sessions.append_event(await self.found(), event)
        elif kind == "delete":
            await self.sessions.state.delete(arguments, **SESSION)
        elif kind == "checkpoint":
            session = await self.found()
            point = await self.sessions.checkpoints.create(session, step=f"s{len(points)}")
            self.expected[point.id] = exactly(own(session)), seen(session)
        elif kind == "prune":
            retention = CheckpointRetention(last=arguments[0], last_of_each_step=False)
            await self.sessions.checkpoints.prune(retention, **SESSION)
            left = {point.id for point in await self.sessions.checkpoints.list(**SESSION)}
            self.expected = {id_: what for id_, what in self.expected.items() if id_ in left}
        elif points:
            await self._go_back(kind, points[arguments[0] % len(points)])

    async def _go_back(self, kind: str, point: str) -> None:
        session_id = "session"
        if kind == "fork":
            before = await self.found()
            session_id = (await self.sessions.checkpoints.fork(point)).session_id
            assert (await self.found()).events == before.events
        else:
            await self.sessions.checkpoints.restore(point)
        session = await self.found(session_id)
        assert (exactly(own(session)), seen(session)) == self.expected[point]
        again = None if kind == "fork" else await self.sessions.checkpoints.restore(point)
        assert again is None or again.event_id is None

    async def finish(self) -> None:
        """The state is what the whole log makes of the creation."""
        session = await self.found()
        assert exactly(own(session)) == exactly(replay(session.events, self.created))


@settings(max_examples=count(60, 600))
@given(_STATES, _STEPS)
def test_a_restore_is_the_replay_up_to_the_checkpoint(
    created: dict[str, Any], steps: list[tuple[Any, ...]]
) -> None:
    """State and history are those of the checkpoint; again, nothing happens; forks stand alone."""

    async def run() -> None:
        policy = CheckpointPolicy(personal=("personal", "履"))
        async with DurableSessionService.from_url("", checkpoint_policy=policy) as sessions:
            await sessions.create_session(**SESSION, state=created)
            history = _History(sessions, created)
            for step in steps:
                await history.take(step)
            await history.finish()

    asyncio.run(run())


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
