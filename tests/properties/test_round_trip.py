"""Any JSON value and any text comes back as it went in, on every database, whatever came before."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from google.adk.errors.already_exists_error import AlreadyExistsError
from hypothesis import given, settings
from hypothesis import strategies as st

from adk_memory_ext.errors import StateRejectedError
from adk_memory_ext.service import DurableSessionService
from backends import OURS, OURS_MARIADB, count
from conversation import answered, called, said
from values import BAD, JSON, NEVER, OBJECTS, TEXTS, is_exactly

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from google.adk.events.event import Event
    from google.adk.sessions.session import Session

    from backends import Backend, Place

SCOPES = ("", "user:", "app:")
USERS = ("ann", "bob")


@pytest.fixture(params=[*OURS, OURS_MARIADB], ids=lambda backend: backend.name)
def backend(request: pytest.FixtureRequest) -> Backend:
    """Each database that values are kept in."""
    row: Backend = request.param
    return row


def on(
    place: Place, check: Callable[[Callable[[Awaitable[Any]], Any], DurableSessionService], None]
) -> None:
    """Runs a property with one open service and a way to wait for what it does."""
    with asyncio.Runner() as runner:
        sessions = DurableSessionService.from_url(place.url)

        async def waiting(step: Awaitable[Any]) -> Any:
            return await step

        try:
            check(lambda step: runner.run(waiting(step)), sessions)
        finally:
            runner.run(sessions.close())


async def _exchange(
    sessions: DurableSessionService, initial: dict[str, Any], event: Event
) -> tuple[Session, Session]:
    """Creates a session, appends an event, and returns the live and the reloaded session."""
    session = await sessions.create_session(app_name="app", user_id="ann", state=initial)
    await sessions.append_event(session, event)
    read = await sessions.get_session(app_name="app", user_id="ann", session_id=session.id)
    assert read is not None
    return session, read


def test_any_state_comes_back_as_it_went_in(place: Place) -> None:
    """In each scope, by creation and by append: the same types and values, to the last bit."""

    def check(wait: Callable[[Awaitable[Any]], Any], sessions: DurableSessionService) -> None:
        @settings(max_examples=count(40, 1000))
        @given(initial=st.dictionaries(TEXTS, JSON, max_size=3), later=OBJECTS)
        def property_(initial: dict[str, Any], later: dict[str, Any]) -> None:
            created = {f"{scope}k{key}": initial[key] for scope in SCOPES for key in initial}
            appended = {f"{scope}k{key}": later[key] for scope in SCOPES for key in later}
            live, read = wait(_exchange(sessions, created, said("x", state=appended)))
            expected = created | appended
            assert is_exactly({key: read.state[key] for key in expected}, expected)
            assert is_exactly(live.state, read.state)
            assert is_exactly(read.events[0].actions.state_delta, appended)
            assert live == read

        property_()

    on(place, check)


def test_any_event_comes_back_as_it_went_in(place: Place) -> None:
    """Texts, arguments, answers and metadata of any content."""

    def check(wait: Callable[[Awaitable[Any]], Any], sessions: DurableSessionService) -> None:
        @settings(max_examples=count(40, 1000))
        @given(
            event=st.one_of(
                TEXTS.map(said),
                OBJECTS.map(lambda arguments: called("tool", arguments)),
                OBJECTS.map(lambda response: answered("tool", response)),
            ),
            metadata=st.none() | OBJECTS,
            author=TEXTS,
        )
        def property_(event: Event, metadata: dict[str, Any] | None, author: str) -> None:
            given_event = event.model_copy(deep=True)
            given_event.custom_metadata, given_event.author = metadata, author
            given_event.id = type(event).new_id()
            before = given_event.model_copy(deep=True)
            live, read = wait(_exchange(sessions, {}, given_event))
            assert live == read
            assert live.events == [before]
            for one, other in zip(read.events, [before], strict=True):
                assert is_exactly(one.model_dump(), other.model_dump())

        property_()

    on(place, check)


WRITES = st.lists(
    st.tuples(
        st.sampled_from(["append", "create", "update"]),
        st.integers(0, 3),
        st.sampled_from(SCOPES),
        st.one_of(
            JSON,
            st.sampled_from([bad.value for bad in (BAD | NEVER).values()]),
        ),
    ),
    max_size=12,
)


async def _write(
    sessions: DurableSessionService, written: set[int], what: str, number: int, delta: Any
) -> None:
    """Writes in one of three ways; a refusal is as good as an acceptance here."""
    user = USERS[number % 2]
    key: dict[str, Any] = {"app_name": "app", "user_id": user, "session_id": str(number)}
    try:
        if what == "create" or number not in written:
            await sessions.create_session(**key, state=delta)
            written.add(number)
        elif what == "append":
            session = await sessions.get_session(**key)
            assert session is not None
            await sessions.append_event(session, said("x", state=delta))
        else:
            await sessions.state.update(delta, **key)
    except (StateRejectedError, AlreadyExistsError):
        pass


async def _erase(sessions: DurableSessionService, written: set[int]) -> None:
    for number in written:
        await sessions.delete_session(
            app_name="app", user_id=USERS[number % 2], session_id=str(number)
        )


def test_every_session_stays_readable_after_any_writes(place: Place) -> None:
    """Good values and bad ones in any order and scope: every session loads, lists and goes on."""

    def check(wait: Callable[[Awaitable[Any]], Any], sessions: DurableSessionService) -> None:
        @settings(max_examples=count(20, 300))
        @given(writes=WRITES)
        def property_(writes: list[tuple[str, int, str, Any]]) -> None:
            written: set[int] = set()
            for what, number, scope, value in writes:
                wait(_write(sessions, written, what, number, {f"{scope}key": [value]}))
            listed = wait(sessions.list_sessions(app_name="app")).sessions
            assert {session.id for session in listed} == set(map(str, written))
            for session in listed:
                read = wait(
                    sessions.get_session(
                        app_name="app", user_id=session.user_id, session_id=session.id
                    )
                )
                assert is_exactly(read.state, session.state)
                wait(sessions.append_event(read, said("still here", state={"more": 1})))
            wait(_erase(sessions, written))

        property_()

    on(place, check)
