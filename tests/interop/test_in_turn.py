"""Plain ADK and ours work on one database at random: nothing is lost, and the log gives the state.

The clocks of both may differ as they like and stand still; that of plain ADK does not go back, for
then not even plain ADK knows in which order its events were appended.
"""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pytest
from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.sessions.database_session_service import DatabaseSessionService
from google.genai import types
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    multiple,
    rule,
)

from adk_memory_ext import Increment, Remove
from adk_memory_ext.service import DurableSessionService
from backends import count
from conversation import exactly
from interop.logs import assert_replays
from interop.machines import drive

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from google.adk.sessions.session import Session

pytestmark = pytest.mark.usefixtures("nothing_left")

NOON: Final = 1_900_000_000
IDS: Final = ("s", "t")
RUNS: Final = {"sqlite": (8, 100), "postgresql": (2, 20), "mysql": (2, 20)}

ids = st.sampled_from([*IDS, "s", "s"])
values = st.none() | st.integers(0, 3) | st.sampled_from(["a", ["b"], {"c": [1, None]}])
keys = st.sampled_from(["k", "l", "app:k", "user:k", "user:l"])
deltas = st.dictionaries(keys, values, max_size=3)
changes = st.dictionaries(
    st.sampled_from(["k", "user:k", "app:k"]), st.just(Remove()), max_size=2
) | st.dictionaries(st.sampled_from(["n", "user:n", "app:n"]), st.just(Increment(1)), max_size=2)
contents = st.none() | st.just("hello")
steps = st.sampled_from([0, 0, 0, 1, 3, 1_000_000])
clocks = st.sampled_from([-3_600_000_000, -3_600_000_000, -2, 0, 2, 3_600_000_000])


_numbers = itertools.count()


@dataclass(eq=False, repr=False)
class Stored:
    """What the machine knows of a session in the database."""

    created: dict[str, Any]
    state: dict[str, Any]
    events: list[tuple[str, bool]] = field(default_factory=list)
    """Id of each event, in the order of the appends, and whether it has content."""


@dataclass(eq=False, repr=False)
class Copy:
    """A session as our service loaded it at some time."""

    session: Session
    stored: Stored
    seen: int


class InTurn(RuleBasedStateMachine):
    """Drives both services over the database at `url`, which the test sets."""

    url = ""

    copies: Bundle[Copy] = Bundle("copies")

    def __init__(self) -> None:
        super().__init__()
        self.app = f"app {next(_numbers)}"
        self.loop = asyncio.Runner()
        self.plain = DatabaseSessionService(self.url)
        self.ours = DurableSessionService.from_url(self.url, synchronous="NORMAL")
        self.sessions: dict[str, Stored] = {}
        self.scopes: dict[str, dict[str, Any]] = {"app:": {}, "user:": {}}
        self.time = NOON * 1_000_000
        """Microseconds on the clock of plain ADK."""
        self.number = 0

    def teardown(self) -> None:
        """Looks at everything once more and closes both services."""
        for session_id in IDS:
            self.look(session_id, recent=None)
        self.loop.run(self.ours.close())
        self.loop.run(self.plain.close())
        self.loop.close()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Returns the outcome of an operation."""
        return self.loop.run(work)

    def key(self, session_id: str) -> dict[str, Any]:
        """Returns what names a session."""
        return {"app_name": self.app, "user_id": "user", "session_id": session_id}

    def apply(self, stored: Stored, delta: dict[str, Any]) -> None:
        """Changes what the machine knows as the delta says."""
        for key, value in delta.items():
            prefix = key[: key.find(":") + 1]
            scope, name = self.scopes.get(prefix, stored.state), key[len(prefix) :]
            if isinstance(value, Remove):
                scope.pop(name, None)
            else:
                by = value.by if isinstance(value, Increment) else None
                scope[name] = value if by is None else scope.get(name, 0) + by

    def state(self, stored: Stored) -> dict[str, Any]:
        """Returns the state of a session in all scopes."""
        return stored.state | {
            prefix + key: value
            for prefix, scope in self.scopes.items()
            for key, value in scope.items()
        }

    def event(self, text: str | None, delta: dict[str, Any], microseconds: int) -> Event:
        """Returns an event; its id is later in the alphabet than those of earlier ones."""
        self.number += 1
        return Event(
            id=f"event {self.number:06}",
            author="user",
            invocation_id="i",
            timestamp=microseconds / 1_000_000,
            content=None if text is None else types.UserContent(text),
            actions=EventActions(state_delta=dict(delta)),
        )

    # -- operations -------------------------------------------------------------------------

    @initialize(target=copies, step=clocks)
    def begin(self, step: int) -> Any:
        """There is a session that both know, loaded before and after plain ADK wrote to it.

        The clock of plain ADK is behind ours, or ahead, or right.
        """
        self.time += step
        self.create("s", {"k": 0}, by_adk=step < 0)
        self.we_load_and_append("s", "hello", {"k": 1}, 0)
        before = self.look("s", recent=None)
        self.plain_adk_appends("s", "hello", {"k": 2}, 0, 1)
        return multiple(before, self.look("s", recent=None))

    def create(self, session_id: str, state: dict[str, Any], by_adk: bool) -> None:
        """One of both creates a session, whose id may be taken."""
        creator = self.plain if by_adk else self.ours
        work = creator.create_session(**self.key(session_id), state=dict(state))
        if session_id in self.sessions:
            with pytest.raises(AlreadyExistsError):
                self.run(work)
            return
        self.run(work)
        stored = self.sessions[session_id] = Stored(state, {})
        self.apply(stored, state)

    @rule(session_id=ids, text=contents, delta=deltas, step=steps, number=st.integers(1, 3))
    def plain_adk_appends(
        self, session_id: str, text: str | None, delta: dict[str, Any], step: int, number: int
    ) -> None:
        """Plain ADK loads the session and appends, more than once perhaps."""
        for _ in range(number):
            self.plain_adk_appends_one(session_id, text, delta, step)

    def plain_adk_appends_one(
        self, session_id: str, text: str | None, delta: dict[str, Any], step: int
    ) -> None:
        """Plain ADK loads the session, if it is there, and appends."""
        stored = self.sessions.get(session_id)
        session = self.run(self.plain.get_session(**self.key(session_id)))
        assert (session is None) == (stored is None)
        if stored is None:
            return
        self.time += step
        event = self.event(text, delta, self.time)
        self.run(self.plain.append_event(session, event))
        self.apply(stored, delta)
        stored.events.append((event.id, text is not None))

    @rule(target=copies, session_id=ids, recent=st.none() | st.integers(0, 3))
    def look(self, session_id: str, recent: int | None) -> Any:
        """Our service shows every event in the order of the appends, and the state they make."""
        config = GetSessionConfig(num_recent_events=recent)
        session = self.run(self.ours.get_session(**self.key(session_id), config=config))
        stored = self.sessions.get(session_id)
        assert (session is None) == (stored is None)
        if session is None or stored is None:
            return multiple()
        in_order = [event_id for event_id, _has_content in stored.events]
        expected = in_order if recent is None else in_order[len(in_order) - recent :]
        if recent is not None and recent > len(in_order):
            expected = in_order
        assert [event.id for event in session.events] == expected
        assert exactly(session.state) == exactly(self.state(stored))
        if recent is None:
            assert_replays(session, stored.created)
        return Copy(session, stored, len(in_order))

    @rule(session_id=ids, text=contents, delta=deltas | changes, offset=st.integers(-3, 3))
    def we_load_and_append(
        self, session_id: str, text: str | None, delta: dict[str, Any], offset: int
    ) -> None:
        """Our service loads the session, if it is there, and appends."""
        if session_id in self.sessions:
            self.we_append(self.look(session_id, recent=1), text, delta, offset)

    @rule(copy_=copies, text=contents, delta=deltas | changes, offset=st.integers(-3, 3))
    def we_append(self, copy_: Copy, text: str | None, delta: dict[str, Any], offset: int) -> None:
        """Our service appends through a copy of any age, or refuses it."""
        event = self.event(text, delta, NOON * 1_000_000 + offset)
        stored = self.sessions.get(copy_.session.id)
        unseen = any(has_content for _id, has_content in copy_.stored.events[copy_.seen :])
        refusal: type[Exception] | None = None
        if stored is None:
            refusal = SessionNotFoundError
        elif stored is not copy_.stored or (unseen and text is not None):
            refusal = StaleSessionError
        work = self.ours.append_event(copy_.session, event)
        if refusal is not None:
            with pytest.raises(refusal):
                self.run(work)
            return
        self.run(work)
        self.apply(copy_.stored, delta)
        copy_.stored.events.append((event.id, text is not None))
        if not unseen:
            copy_.seen = len(copy_.stored.events)

    @rule(
        session_id=ids,
        deleter=st.sampled_from([None, None, True, False]),
        state=deltas,
        creator=st.sampled_from([None, True, False]),
    )
    def replace(
        self, session_id: str, deleter: bool | None, state: dict[str, Any], creator: bool | None
    ) -> None:
        """One of both deletes a session, and one of both creates another one of the same id."""
        if deleter is not None:
            service = self.plain if deleter else self.ours
            self.run(service.delete_session(**self.key(session_id)))
            self.sessions.pop(session_id, None)
        if creator is not None:
            self.create(session_id, state, by_adk=creator)

    @rule(restart=st.booleans())
    def list_both(self, restart: bool) -> None:
        """Both list the same, and pages hold the same sessions; also after a restart of ours."""
        if restart:
            self.run(self.ours.close())
            self.ours = DurableSessionService.from_url(self.url, synchronous="NORMAL")
        page = self.run(self.ours.list_sessions_page(self.app))
        assert {one.session_id for one in page.sessions} <= self.sessions.keys()
        if restart:
            assert len(page.sessions) == len(self.sessions)
        mine, theirs = (
            self.run(service.list_sessions(app_name=self.app)).sessions
            for service in (self.ours, self.plain)
        )
        assert [one.model_dump() for one in mine] == [one.model_dump() for one in theirs]
        assert {one.id for one in mine} == self.sessions.keys()


def test_in_turn_nothing_is_lost(url: str) -> None:
    """However both work on one database, our service shows all of it, in order, log and state."""
    drive(InTurn, url, count(*RUNS[url.partition("+")[0]]))
