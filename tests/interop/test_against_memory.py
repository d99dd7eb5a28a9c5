"""The same random operations on ADK's service in memory and on ours: what they show is the same.

`InMemorySessionService` is the oracle. Where ADK itself is wrong, a comment at the rule says so,
and the rule asserts what is right.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pytest
from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions, EventCompaction
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google.genai import types
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from adk_memory_ext import Increment, Remove
from adk_memory_ext.errors import InvalidIdError
from adk_memory_ext.service import DurableSessionService
from backends import count
from conversation import exactly
from interop.logs import assert_replays
from interop.machines import drive
from tables import file_url

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from pathlib import Path

    from google.adk.sessions.session import Session

pytestmark = pytest.mark.usefixtures("nothing_left")

USERS: Final = ("ann", "ann%")
IDS: Final = ("s", " s", "s:1")
FEW: Final = 4
"""Sessions at a time, so that a step often meets one that has a past."""
NOON: Final = 1_900_000_000

# Few and odd ones; that any value is kept is a matter of other tests.
values = st.sampled_from(
    [
        None,
        True,
        0,
        1,
        1.0,
        -(2**70),
        1e22,
        "",
        "naïve 日本",
        [],
        [None, [1, "a"], {"ü": False}],
        {},
        {"a": {"b": [1, 2.5, None]}, "c": None},
    ]
)
keys = st.sampled_from(["k", "K", "a.b", "app:k", "user:k", "user:l", "temp:k", "temp:l", "naïve"])
plain_deltas = st.dictionaries(keys, values, max_size=3)
removals = st.dictionaries(st.sampled_from(["k", "app:k", "user:k"]), st.just(Remove()), max_size=2)
additions = st.dictionaries(
    st.sampled_from(["n", "app:n", "user:n"]), st.builds(Increment, st.integers(-3, 3)), max_size=2
)
deltas = plain_deltas | removals | additions | st.builds(dict.__or__, plain_deltas, removals)
# In no order, with equal ones: a clock that stands still, is set back, or is ahead on one machine.
times = st.integers(-3, 3).map(lambda number: NOON + number / 1_000_000)
texts = st.sampled_from(["hello", "naïve 日本", ""])
owners = st.sampled_from(USERS)
ids = st.sampled_from(IDS)


_numbers = itertools.count()


@dataclass(eq=False, repr=False)
class Stored:
    """What the machine knows of a session in the store."""

    created: dict[str, Any]
    log: list[Event] = field(default_factory=list)
    """Its events as they were returned."""

    def has_content_after(self, seen: int) -> bool:
        """Whether a copy that has seen so many events has missed one that it must know."""
        return any(has_content(event) for event in self.log[seen:])


@dataclass(eq=False, repr=False)
class Copy:
    """One session, loaded from both services."""

    mine: Session
    theirs: Session
    stored: Stored
    seen: int
    """How many events of the log this copy knows of."""

    @property
    def key(self) -> tuple[str, str]:
        """Returns what names the session."""
        return self.mine.user_id, self.mine.id


def has_content(event: Event) -> bool:
    """Whether a stale writer must have seen the event."""
    return event.content is not None and event.actions.compaction is None


def shown(session: Session) -> str:
    """Returns what a caller sees of a session; the ids apart, which the oracle strips."""
    fields = session.model_dump(mode="json", exclude={"id"})
    fields["last_update_time"] = round(session.last_update_time * 1_000_000)
    return exactly(fields)


class Conversations(RuleBasedStateMachine):
    """Drives both services, ours over the database at `url`. Each walk has an app of its own."""

    url = ""

    copies: Bundle[Copy] = Bundle("copies")

    def __init__(self) -> None:
        super().__init__()
        self.app = f"app {next(_numbers)}"
        self.loop = asyncio.Runner()
        self.oracle = InMemorySessionService()
        self.ours = DurableSessionService.from_url(self.url, synchronous="NORMAL")
        self.sessions: dict[tuple[str, str], Stored] = {}

    def teardown(self) -> None:
        """Closes the service."""
        self.run(self.ours.close())
        self.loop.close()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Returns the outcome of an operation."""
        return self.loop.run(work)

    def key(self, user: str, session_id: str) -> dict[str, Any]:
        """Returns what names a session for our service."""
        return {"app_name": self.app, "user_id": user, "session_id": session_id}

    def oracles(self, user: str, session_id: str) -> dict[str, Any]:
        """Returns what names it for the oracle, which strips spaces from ids: " s" would be "s".

        An exclamation mark stands where a space does in the alphabet, for the order of lists.
        """
        return self.key(user, session_id.replace(" ", "!"))

    def pair(self, user: str, session_id: str, config: GetSessionConfig | None) -> Copy | None:
        """Loads a session from both, which must agree on what they show."""
        mine = self.run(self.ours.get_session(**self.key(user, session_id), config=config))
        theirs = self.run(self.oracle.get_session(**self.oracles(user, session_id), config=config))
        if mine is None or theirs is None:
            assert mine is theirs
            assert (user, session_id) not in self.sessions
            return None
        assert mine.id == session_id
        assert shown(mine) == shown(theirs)
        stored = self.sessions[user, session_id]
        return Copy(mine, theirs, stored, len(stored.log))

    # -- operations -------------------------------------------------------------------------

    @initialize(target=copies, state=plain_deltas)
    def begin(self, state: dict[str, Any]) -> Any:
        """Creates a session that is loaded twice, and refuses one without a name.

        For an empty id, ADK makes one up in memory and stores the empty one in its database.
        """
        with pytest.raises(InvalidIdError):
            self.run(self.ours.create_session(**self.key("ann", "")))
        copy_ = self.create_both("ann", "s", state)
        return multiple(copy_, self.pair("ann", "s", None))

    @precondition(lambda self: len(self.sessions) < FEW)
    @rule(target=copies, user=owners, session_id=ids | st.none(), state=plain_deltas)
    def create(self, user: str, session_id: str | None, state: dict[str, Any]) -> Any:
        """Creates a session, whose id may be taken."""
        if session_id is None or (user, session_id) not in self.sessions:
            return self.create_both(user, session_id, state)
        for attempt in (
            self.ours.create_session(**self.key(user, session_id), state=state),
            self.oracle.create_session(**self.oracles(user, session_id), state=state),
        ):
            with pytest.raises(AlreadyExistsError):
                self.run(attempt)
        return multiple()

    def create_both(self, user: str, session_id: str | None, state: dict[str, Any]) -> Copy:
        """Creates a session that is not there in both services."""
        mine = self.run(
            self.ours.create_session(
                app_name=self.app, user_id=user, session_id=session_id, state=copy.deepcopy(state)
            )
        )
        theirs = self.run(
            self.oracle.create_session(**self.oracles(user, mine.id), state=copy.deepcopy(state))
        )
        # ADK forgets `temp:` keys given at the creation; the agent's first turn should have them.
        temporary = {key: value for key, value in state.items() if key.startswith("temp:")}
        assert exactly(mine.state) == exactly(theirs.state | temporary)
        theirs.state.update(temporary)
        # Each has looked at the clock itself.
        key = self.oracles(user, mine.id)
        row = self.oracle.sessions[self.app][user][key["session_id"]]
        row.last_update_time = theirs.last_update_time = mine.last_update_time
        stored = self.sessions[user, mine.id] = Stored(state)
        return Copy(mine, theirs, stored, 0)

    @rule(
        target=copies,
        user=owners,
        session_id=ids,
        recent=st.none() | st.integers(0, 4),
        after=st.none() | st.just(0.0) | times,
    )
    def load(self, user: str, session_id: str, recent: int | None, after: float | None) -> Any:
        """Loads a session, or a window of it."""
        config = GetSessionConfig(num_recent_events=recent, after_timestamp=after)
        return self.pair(user, session_id, config) or multiple()

    @rule(copy_=copies, text=texts, delta=plain_deltas, at=times)
    def say(self, copy_: Copy, text: str, delta: dict[str, Any], at: float) -> None:
        """Appends content through a copy that may be of any age."""
        self.append(copy_, types.UserContent(text), delta, at)

    @rule(copy_=copies, delta=deltas, at=times)
    def patch(self, copy_: Copy, delta: dict[str, Any], at: float) -> None:
        """Changes state as ADK's PATCH of a session does."""
        self.append(copy_, None, delta, at)

    @rule(copy_=copies, delta=deltas, at=times, is_summary=st.booleans())
    def answer(self, copy_: Copy, delta: dict[str, Any], at: float, is_summary: bool) -> None:
        """Appends an answer, or what ADK's compaction appends."""
        self.append(copy_, types.ModelContent("fine"), delta, at, is_summary=is_summary)

    def append(
        self,
        copy_: Copy,
        content: types.Content | None,
        delta: dict[str, Any],
        at: float,
        *,
        is_summary: bool = False,
    ) -> None:
        """Appends an event to both services, or has it refused."""
        event = Event(
            author="user",
            invocation_id="i",
            timestamp=at,
            content=content,
            actions=EventActions(state_delta=copy.deepcopy(delta)),
        )
        if is_summary:
            event.actions.compaction = EventCompaction(
                start_timestamp=at, end_timestamp=at, compacted_content=types.UserContent("…")
            )
        before = (shown(copy_.mine), exactly(event.model_dump(mode="json", exclude={"actions"})))
        if refusal := self.expected_refusal(copy_, event):
            with pytest.raises(refusal):
                self.run(self.ours.append_event(copy_.mine, event))
            after = (shown(copy_.mine), exactly(event.model_dump(mode="json", exclude={"actions"})))
            assert after == before
            return
        is_stale = copy_.stored.has_content_after(copy_.seen)
        newest = copy_.stored.log[-1].timestamp if copy_.stored.log else None
        assert self.run(self.ours.append_event(copy_.mine, event)) is event
        # ADK reads equal times and a clock set back in another order than that of the appends.
        assert event.timestamp == at if newest is None or at > newest else event.timestamp > newest
        self.append_to_oracle(copy_, event, delta)
        copy_.stored.log.append(event.model_copy(deep=True))
        if not is_stale:
            copy_.seen = len(copy_.stored.log)
        assert exactly(copy_.mine.state) == exactly(copy_.theirs.state)
        assert texts_of(copy_.mine) == texts_of(copy_.theirs)

    def expected_refusal(self, copy_: Copy, event: Event) -> type[Exception] | None:
        """Returns how an append must fail, if it must."""
        stored = self.sessions.get(copy_.key)
        if stored is None:
            return SessionNotFoundError
        # ADK in memory appends to whatever has this id by now, and appends what is stale.
        if stored is not copy_.stored:
            return StaleSessionError
        if has_content(event) and stored.has_content_after(copy_.seen):
            return StaleSessionError
        return None

    def append_to_oracle(self, copy_: Copy, event: Event, delta: dict[str, Any]) -> None:
        """Appends what was stored; ADK knows no changes and no removal, so these are made here."""
        user, session_id = copy_.key
        oracles_id = self.oracles(user, session_id)["session_id"]
        scopes = {
            "app": self.oracle.app_state.setdefault(self.app, {}),
            "user": self.oracle.user_state.setdefault(self.app, {}).setdefault(user, {}),
            "": self.oracle.sessions[self.app][user][oracles_id].state,
        }

        def place(key: str) -> tuple[dict[str, Any], str]:
            prefix, colon, rest = key.partition(":")
            return (scopes[prefix], rest) if colon and prefix in scopes else (scopes[""], key)

        expected: dict[str, Any] = {}
        for key, value in delta.items():
            scope, name = place(key)
            if isinstance(value, Increment):
                expected[key] = scope.get(name, 0) + value.by
            elif isinstance(value, Remove):
                expected[key] = None
            elif not key.startswith("temp:"):
                expected[key] = value
        assert exactly(event.actions.state_delta) == exactly(expected)
        theirs = event.model_copy(deep=True)
        theirs.actions.state_delta |= {
            key: value for key, value in delta.items() if key.startswith("temp:")
        }
        self.run(self.oracle.append_event(copy_.theirs, theirs))
        for key in (event.custom_metadata or {}).get("memext_removed", []):
            assert isinstance(delta[key], Remove)
            scope, name = place(key)
            scope.pop(name, None)
            copy_.theirs.state.pop(key, None)

    @rule(copy_=copies, number=st.integers(0, 9))
    def append_again(self, copy_: Copy, number: int) -> None:
        """Delivers a part, which nobody stores, or a stored event once more, which stays one."""
        if self.sessions.get(copy_.key) is not copy_.stored or not copy_.stored.log:
            event = Event(author="agent", partial=True, content=types.ModelContent("hel"))
            before = shown(copy_.mine)
            assert self.run(self.ours.append_event(copy_.mine, event)) is event
            assert shown(copy_.mine) == before
            return
        log = copy_.stored.log
        event = log[number % len(log)].model_copy(deep=True)
        # A copy of the session that nobody goes on with.
        session = copy_.mine.model_copy(deep=True)
        self.run(self.ours.append_event(session, event))
        assert [one.id for one in session.events].count(event.id) == 1

    @rule(copy_=consumes(copies))
    def delete(self, copy_: Copy) -> None:
        """Deletes a session, which may be gone."""
        user, session_id = copy_.key
        self.run(self.ours.delete_session(**self.key(user, session_id)))
        self.run(self.oracle.delete_session(**self.oracles(user, session_id)))
        self.sessions.pop(copy_.key, None)

    @rule()
    def reopen(self) -> None:
        """Closes the service and opens another one over the same database."""
        self.run(self.ours.close())
        self.ours = DurableSessionService.from_url(self.url, synchronous="NORMAL")

    # -- what must hold after each ----------------------------------------------------------

    @invariant()
    def sessions_are_the_same(self) -> None:
        """Every session is what the oracle has, and its log gives its state."""
        for user, session_id in self.sessions:
            pair = self.pair(user, session_id, None)
            assert pair is not None
            assert_replays(pair.mine, pair.stored.created)
            if pair.stored.log:
                middle = pair.stored.log[len(pair.stored.log) // 2].timestamp
                self.pair(user, session_id, GetSessionConfig(after_timestamp=middle))

    @invariant()
    def lists_are_the_same(self) -> None:
        """Lists and state of users are what the oracle has."""
        for user in (None, *USERS):
            mine = self.run(self.ours.list_sessions(app_name=self.app, user_id=user)).sessions
            theirs = self.run(self.oracle.list_sessions(app_name=self.app, user_id=user)).sessions
            assert [one.id.replace(" ", "!") for one in mine] == [one.id for one in theirs]
            assert [shown(one) for one in mine] == [shown(one) for one in theirs]
        for user in USERS:
            owner = {"app_name": self.app, "user_id": user}
            assert exactly(self.run(self.ours.get_user_state(**owner))) == exactly(
                self.run(self.oracle.get_user_state(**owner))
            )


def texts_of(session: Session) -> list[tuple[str, str]]:
    """Returns id and content of each event of a session."""
    return [(event.id, exactly(event.model_dump(mode="json"))) for event in session.events]


def test_a_file_shows_what_memory_shows(tmp_path: Path) -> None:
    """Over SQLite every sequence of operations shows what ADK shows in memory, or what is right."""
    drive(Conversations, file_url(tmp_path), count(5, 120))


def test_a_server_shows_what_memory_shows(postgresql_url: str) -> None:
    """Over PostgreSQL every sequence of operations shows what ADK shows in memory too."""
    drive(Conversations, postgresql_url, count(1, 20))
