"""The connection to a server is cut at every message: all or nothing, and the service works on."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest

from adk_memory_ext import Increment, Remove, adk_tables, schema
from adk_memory_ext.errors import CommitUnknownError, StoreUnavailableError
from adk_memory_ext.service import DurableSessionService
from backends import count
from conversation import said, texts
from faults.wire import Wire
from interop.logs import assert_replays
from servers import HANG_SECONDS
from tables import contents, url_of, within

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine
    from pathlib import Path

    from google.adk.sessions.session import Session

OWN: Final[dict[str, Any]] = {"app_name": "app", "user_id": "user"}
KEY: Final[dict[str, Any]] = {**OWN, "session_id": "session"}
STATE: Final[dict[str, Any]] = {"n": 0, "user:n": 0, "app:n": 0}


@pytest.fixture(params=("postgresql", "mariadb"))
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database behind a server."""
    return url_of(request.param, request, tmp_path)


@asynccontextmanager
async def cuttable(url: str) -> AsyncIterator[tuple[DurableSessionService, Wire]]:
    """Opens a service over a wire, with one connection, so that messages come in one order."""
    async with (
        Wire.to(url) as (wire, near),
        DurableSessionService.from_url(near, pool_size=1, max_overflow=0) as sessions,
    ):
        try:
            yield sessions, wire
        finally:
            wire.mend()


async def outcome(work: Coroutine[Any, Any, Any]) -> Any:
    """Returns what came of an operation: its result, or what it raised."""
    async with asyncio.timeout(HANG_SECONDS):
        return (await asyncio.gather(work, return_exceptions=True))[0]


async def found(sessions: DurableSessionService) -> Session:
    """Returns the stored session."""
    session = await sessions.get_session(**KEY)
    assert session is not None
    return session


@pytest.mark.parametrize("for_good", [False, True], ids=["once", "for a while"])
@pytest.mark.parametrize("arrives", [False, True], ids=["unsent", "unanswered"])
async def test_an_append_cut_at_any_message_is_whole_or_absent(
    url: str, arrives: bool, for_good: bool
) -> None:
    """Event, state of three scopes and order are stored together, and the error says the truth.

    Sent again under its id after the error, the event is there once.
    """
    outcomes: Counter[tuple[str, bool]] = Counter()
    async with cuttable(url) as (sessions, wire), DurableSessionService.from_url(url) as others:
        session = await sessions.create_session(**KEY, state=STATE)
        await sessions.append_event(session, said("warm", state={"k": 0}))
        wire.arrives, wire.for_good = arrives, for_good
        for messages in itertools.count():
            event = said(
                f"{messages}",
                state={
                    "n": Increment(),
                    "user:n": Increment(),
                    "app:n": Increment(),
                    "k": Remove(),
                },
            )
            before, copy = await found(others), session.model_copy(deep=True)
            wire.set(messages)
            result = await outcome(sessions.append_event(session, event))
            wire.mend()
            after = await found(others)
            is_whole = texts(after.events) == [*texts(before.events), f"{messages}"]
            assert is_whole or after == before
            assert_replays(after, STATE)
            assert after.state["n"] == after.state["user:n"] == after.state["app:n"]
            outcomes[type(result).__name__, is_whole] += 1
            if result is event:
                assert is_whole
            else:
                assert isinstance(result, StoreUnavailableError | CommitUnknownError)
                assert isinstance(result, CommitUnknownError) or not is_whole
                assert session == copy
                await sessions.append_event(session, event)
            again = await found(others)
            assert texts(again.events) == texts(session.events)
            assert texts(again.events)[-1] == f"{messages}"
            assert again.state == session.state
            if not wire.was_cut:
                break
    assert messages > 4
    assert outcomes["CommitUnknownError", arrives] == 1
    assert len(contents(url)["memext_events"]) == messages + 2
    if for_good:
        assert outcomes["StoreUnavailableError", False] > 2
    else:
        # A connection that dies before COMMIT is replaced once, and the append begins again.
        assert outcomes["StoreUnavailableError", False] == 0


@pytest.mark.parametrize("arrives", [False, True], ids=["unsent", "unanswered"])
async def test_a_creation_cut_at_any_message_is_whole_or_absent(url: str, arrives: bool) -> None:
    """A session and its share of user and app state are stored together or not at all."""
    async with cuttable(url) as (sessions, wire), DurableSessionService.from_url(url) as others:
        await sessions.create_session(**OWN, session_id="warm")
        wire.arrives = arrives
        unknown = 0
        for messages in itertools.count():
            key = OWN | {"session_id": f"{messages}"}
            wire.set(messages)
            result = await outcome(
                sessions.create_session(**key, state={"user:n": messages, "app:n": messages})
            )
            wire.mend()
            stored = await others.get_session(**key)
            state = await others.get_user_state(**OWN)
            assert (state.get("n") == messages) == (stored is not None)
            if isinstance(result, CommitUnknownError):
                unknown += 1
                assert (stored is not None) == arrives
            else:
                assert stored is not None
                assert stored.state == result.state
            if not wire.was_cut:
                break
    assert unknown == 1
    assert messages > 4


async def test_a_read_cut_at_any_message_is_read_again(url: str) -> None:
    """A read whose connection is cut once is made over another one; nobody notices."""
    async with cuttable(url) as (sessions, wire):
        session = await sessions.create_session(**KEY, state=STATE)
        await sessions.append_event(session, said("hello"))
        for read in (
            lambda: sessions.get_session(**KEY),
            lambda: sessions.list_sessions(**OWN),
            lambda: sessions.list_sessions_page("app"),
            lambda: sessions.get_user_state(**OWN),
        ):
            expected = await read()
            for messages in itertools.count():
                wire.set(messages)
                assert await outcome(read()) == expected
                if not wire.was_cut:
                    break
                wire.mend()
            wire.mend()
            assert messages > 1


async def test_a_first_use_cut_at_any_message_is_made_up_for(url: str) -> None:
    """Wherever the first use is cut for a while, the next one makes the tables and works."""
    async with Wire.to(url) as (wire, near):
        wire.for_good = True
        for messages in itertools.count(0, count(7, 1)):
            within(url, schema.metadata.drop_all)
            within(url, adk_tables.metadata.drop_all)
            wire.set(messages)
            async with DurableSessionService.from_url(near) as sessions:
                result = await outcome(sessions.create_session(**KEY))
                wire.mend()
                if wire.was_cut:
                    assert isinstance(result, StoreUnavailableError | CommitUnknownError), result
                    await sessions.create_session(**KEY)
                assert await sessions.get_session(**KEY) is not None
            if not wire.was_cut:
                break
    assert messages > 30


async def test_neighbours_of_a_cut_connection_are_served(url: str) -> None:
    """Of many appends at once, the one whose connection is cut is made again like the others."""
    async with Wire.to(url) as (wire, near), DurableSessionService.from_url(near) as sessions:
        copies = [
            await sessions.create_session(**OWN, session_id=f"{number}") for number in range(20)
        ]
        wire.set(50)
        await asyncio.gather(
            *(
                sessions.append_event(copy, said("hello", state={"user:n": Increment()}))
                for copy in copies
            )
        )
        assert wire.was_cut
        assert await sessions.get_user_state(**OWN) == {"n": 20}
        for copy in copies:
            stored = await sessions.get_session(**OWN, session_id=copy.id)
            assert stored is not None
            assert texts(stored.events) == ["hello"]
