"""Any history of a session with checkpoints, and what each of them should bring back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from google.adk.events._rewind_events import _apply_rewinds
from hypothesis import strategies as st

from adk_memory_ext import CheckpointPolicy, CheckpointRetention
from conversation import exactly, replay, said, texts
from people import OWN

if TYPE_CHECKING:
    from google.adk.sessions.session import Session

    from adk_memory_ext import DurableSessionService

PERSONAL: Final = ("personal", "履")
POLICY: Final = CheckpointPolicy(personal=PERSONAL)
_KEYS: Final = ["a", "b", *PERSONAL, 'q"']

_values = st.one_of(
    st.none(), st.booleans(), st.integers(0, 2), st.text("xy", max_size=80), st.lists(st.integers())
)
states = st.dictionaries(st.sampled_from(_KEYS), _values)
saying = st.tuples(st.just("say"), st.sampled_from("ijkl"), states)
deleting = st.tuples(st.just("delete"), st.sampled_from(_KEYS))
checking = st.tuples(st.just("checkpoint"))
restoring = st.tuples(st.just("restore"), st.integers(0, 9))
forking = st.tuples(st.just("fork"), st.integers(0, 9))
pruning = st.tuples(st.just("prune"), st.integers(1, 3))
removing = st.one_of(
    st.tuples(st.just("prune_events"), st.integers(1, 3)),
    st.tuples(st.just("delete_turn"), st.integers(0, 9)),
)


def own(session: Session) -> dict[str, Any]:
    """Returns session-scope state."""
    return {key: value for key, value in session.state.items() if ":" not in key}


def seen(session: Session) -> list[str]:
    """Returns what the model is shown, as ADK tells it."""
    return texts(event for event in _apply_rewinds(session.events) if event.content)


class History:
    """A session that exists, and what each of its checkpoints should bring back.

    Args:
        sessions: The service.
        created: The state that the session was created with.
        session_id: The session.
    """

    def __init__(
        self,
        sessions: DurableSessionService,
        created: dict[str, Any],
        session_id: str = "session",
    ) -> None:
        self.sessions = sessions
        self.created = created
        self.identity: dict[str, Any] = {**OWN, "session_id": session_id}
        self.expected: dict[str, tuple[dict[str, Any], list[str]]] = {}
        self.said = 0

    async def found(self, session_id: str | None = None) -> Session:
        """Returns the session as it is stored, or another one of the user."""
        identity = self.identity if session_id is None else {**OWN, "session_id": session_id}
        session = await self.sessions.get_session(**identity)
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
            await self.sessions.state.delete(arguments, **self.identity)
        elif kind == "checkpoint":
            session = await self.found()
            point = await self.sessions.checkpoints.create(session, step=f"s{len(points)}")
            self.expected[point.id] = own(session), seen(session)
            await self.finish()
        elif kind == "prune":
            retention = CheckpointRetention(last=arguments[0], last_of_each_step=False)
            await self.sessions.checkpoints.prune(retention, **self.identity)
            left = {point.id for point in await self.sessions.checkpoints.list(**self.identity)}
            self.expected = {id_: what for id_, what in self.expected.items() if id_ in left}
        elif kind in {"prune_events", "delete_turn"}:
            await self._remove(kind, arguments[0])
        elif points:
            await getattr(self, kind)(points[arguments[0] % len(points)])

    async def _remove(self, kind: str, number: int) -> None:
        """Removes events on purpose: state stays, and no checkpoint brings them back."""
        session = await self.found()
        turns = [event.invocation_id for event in session.events if event.content]
        if kind == "prune_events":
            await self.sessions.history.prune(session, keep=number, checkpointed=True)
        elif turns:
            turn = turns[number % len(turns)]
            await self.sessions.history.delete(session, invocation_id=turn)
        left = await self.found()
        assert exactly(own(left)) == exactly(own(session))
        there = set(texts(left.events))
        for point, (state, history) in self.expected.items():
            self.expected[point] = state, [text for text in history if text in there]

    async def restore(self, point: str) -> None:
        """State and history become those of the checkpoint; again, nothing happens."""
        await self.sessions.checkpoints.restore(point)
        self.check(await self.found(), point)
        assert (await self.sessions.checkpoints.restore(point)).event_id is None

    async def fork(self, point: str) -> str:
        """Another session has the checkpoint's state and history, and this one stays."""
        before = await self.found()
        fork = (await self.sessions.checkpoints.fork(point)).session_id
        assert (await self.found()).events == before.events
        self.check(await self.found(fork), point)
        return fork

    def check(self, session: Session, point: str) -> None:
        """A session is what the checkpoint was made of."""
        state, history = self.expected[point]
        assert (exactly(own(session)), seen(session)) == (exactly(state), history)

    async def finish(self) -> None:
        """The state is what the whole log makes of the creation."""
        session = await self.found()
        assert exactly(own(session)) == exactly(replay(session.events, self.created))
