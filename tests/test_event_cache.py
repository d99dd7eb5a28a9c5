"""The cache of decoded events: what it hands out is stored, whole, and nobody else's."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING, Any, Final

import pytest
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.genai import types
from hypothesis import given
from pydantic import BaseModel
from sqlalchemy import text as sql_text

from adk_memory_ext.errors import ConfigurationError, CorruptRecordError
from adk_memory_ext.event_cache import EventCache
from adk_memory_ext.event_copies import copier_of
from adk_memory_ext.records import SessionId
from adk_memory_ext.service import DurableSessionService
from adk_memory_ext.sql_sessions import SqlSessionService
from adk_memory_ext.untouched_events import UntouchedEvent
from backends import count
from conversation import answered, called, said, texts
from tables import within
from values import JSON

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from google.adk.sessions.session import Session

    from backends import Backend, Place

KEY: Final[dict[str, Any]] = {"app_name": "app", "user_id": "user", "session_id": "session"}
SESSION: Final = SessionId("app", "user", "session")


def mutable_parts(value: object) -> Iterator[object]:
    """Yields everything below a value that somebody could change in place."""
    if isinstance(value, dict):
        yield value
        for item in value.values():
            yield from mutable_parts(item)
    elif isinstance(value, list | set | tuple):
        if not isinstance(value, tuple):
            yield value
        for item in value:
            yield from mutable_parts(item)
    elif isinstance(value, BaseModel):
        yield value
        yield value.__pydantic_fields_set__
        for inner in (value.__dict__, value.__pydantic_extra__, value.__pydantic_private__):
            yield from mutable_parts(inner)


def share_nothing(first: object, second: object) -> bool:
    """Whether no change of one value can be seen in the other."""
    ones, others = list(mutable_parts(first)), list(mutable_parts(second))
    return bool(ones) and not {id(part) for part in ones} & {id(part) for part in others}


def everything(value: Any) -> Event:
    """Returns an event that holds `value` wherever it can, and parts of every kind."""
    return Event(
        author="agent",
        content=types.Content(
            role="model",
            parts=[
                types.Part.from_function_call(name="tool", args={"value": value}),
                types.Part.from_bytes(data=b"picture", mime_type="image/png"),
            ],
        ),
        long_running_tool_ids={"one", "two"},
        custom_metadata={"value": value},
        actions=EventActions(state_delta={"value": value}, artifact_delta={"file": 1}),
    )


def cache_of(sessions: DurableSessionService) -> EventCache:
    """Returns the cache of our own service."""
    assert isinstance(sessions.wrapped, SqlSessionService)
    return sessions.wrapped.cache


async def loaded(sessions: DurableSessionService) -> Session:
    """Returns the session, which must exist."""
    session = await sessions.get_session(**KEY)
    assert session is not None
    return session


async def filled(sessions: DurableSessionService, events: int = 6) -> Session:
    """Returns a new session with events of several kinds."""
    session = await sessions.create_session(**KEY)
    for number in range(events // 3):
        await sessions.append_event(session, said(f"{number}", state={"at": [number]}))
        await sessions.append_event(session, called("look", {"deep": {"list": [number]}}))
        await sessions.append_event(session, answered("look", {"found": [{"at": number}]}))
    return session


# --- Copies


@given(JSON)
def test_a_copy_is_equal_and_shares_nothing(value: Any) -> None:
    """Whatever an event holds, its copy is equal, and no part that can change is in both."""
    event = everything(value)
    event = Event.model_validate_json(event.model_dump_json())
    copier = copier_of(event)
    assert copier is not None
    copy = copier(event)
    assert copy == event
    assert copy.model_dump_json() == event.model_dump_json()
    assert copy.model_fields_set == event.model_fields_set
    assert share_nothing(event, copy)


# --- Loads


async def test_the_garbage_collector_is_left_alone(
    sessions: DurableSessionService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No load switches off, even for a moment, what belongs to the whole process."""
    await filled(sessions)
    for name in ("disable", "enable", "freeze", "set_threshold"):
        monkeypatch.delattr(gc, name)
    for _number in range(2):
        assert [event.author for event in (await loaded(sessions)).events]


async def test_a_second_load_is_equal_and_shares_nothing(sessions: DurableSessionService) -> None:
    """Two loaded sessions have equal events, and none of their parts in common."""
    await filled(sessions)
    first, second = await loaded(sessions), await loaded(sessions)
    assert first.events == second.events
    assert len(first.events) == 6
    assert share_nothing(first.events, second.events)


async def test_what_a_caller_changes_nobody_else_sees(sessions: DurableSessionService) -> None:
    """A callback that changes an event of its session changes no later load."""
    await filled(sessions)
    before = (await loaded(sessions)).model_dump_json()
    spoiled = await loaded(sessions)
    for event in spoiled.events:
        event.actions.state_delta["spoiled"] = True
        assert event.content
        assert event.content.parts
        event.content.parts[0].text = "spoiled"
        for call in event.get_function_calls():
            assert call.args
            call.args["deep"]["list"].append("spoiled")
        event.content.parts.append(types.Part(text="spoiled"))
    spoiled.events.clear()
    assert (await loaded(sessions)).model_dump_json() == before


async def test_every_part_that_a_caller_spoils_is_whole_again(
    sessions: DurableSessionService,
) -> None:
    """Whatever is changed inside loaded events, at any depth, the next load does not have it."""
    session = await filled(sessions)
    await sessions.append_event(session, everything({"deep": [{"er": [1]}]}))
    await loaded(sessions)  # from here on the events are cached
    before = await loaded(sessions)
    told = before.model_dump_json()
    spoiled = await loaded(sessions)
    parts = [part for event in spoiled.events for part in mutable_parts(event)]
    assert {dict, list, set, Event, types.Content, types.Part, EventActions} <= set(
        map(type, parts)
    )
    for part in parts:
        if isinstance(part, dict):
            part.clear()
        elif isinstance(part, list):
            part.append("spoiled")
        elif isinstance(part, set):
            part.add("spoiled")
        else:
            assert isinstance(part, BaseModel)
            part.__dict__.clear()
    assert before.model_dump_json() == told
    assert (await loaded(sessions)).model_dump_json() == told


async def test_loads_leave_nothing_behind(sessions: DurableSessionService) -> None:
    """However often a session is loaded, read or not, there are as many events in memory."""

    def alive() -> int:
        gc.collect()
        return sum(type(one) in {Event, UntouchedEvent} for one in gc.get_objects())

    await filled(sessions, 30)
    counts = []
    for number in range(4):
        for _load in range(5):
            session = await loaded(sessions)
            assert len(session.events) == 30
            if number % 2:
                assert len(texts(session.events)) == 30
            del session
        counts.append(alive())
    assert len(set(counts[1:])) == 1


async def test_what_others_append_is_there_at_once(backend: Backend, place: Place) -> None:
    """A load sees every event that another service has appended since the last one."""
    if not backend.durable:
        pytest.skip("nobody else can append")
    async with (
        DurableSessionService.from_url(place.url) as mine,
        DurableSessionService.from_url(place.url) as theirs,
    ):
        session = await filled(mine)
        for number in range(5):
            assert len((await loaded(mine)).events) == 6 + number
            session = await loaded(theirs)
            await theirs.append_event(session, said(f"new {number}"))
            assert texts((await loaded(mine)).events)[-1] == f"new {number}"


async def test_loads_beside_appends_are_whole(sessions: DurableSessionService) -> None:
    """Loads that run beside appends see a beginning of the log without a gap, and its state."""
    session = await sessions.create_session(**KEY)

    async def append() -> None:
        for number in range(count(60, 600)):
            await sessions.append_event(session, said(f"{number}", state={"at": number}))

    async def look() -> None:
        for _ in range(count(30, 300)):
            seen = await loaded(sessions)
            assert texts(seen.events) == [f"{number}" for number in range(len(seen.events))]
            assert seen.state.get("at", -1) == len(seen.events) - 1

    await asyncio.gather(append(), look(), look(), look())


async def test_a_deleted_session_is_forgotten(backend: Backend, place: Place) -> None:
    """After a deletion by whomever, nothing is handed out and nothing is kept."""
    async with DurableSessionService.from_url(place.url) as mine:
        await filled(mine)
        assert len((await loaded(mine)).events) == 6
        assert cache_of(mine).size > 0
        if backend.durable:
            async with DurableSessionService.from_url(place.url) as theirs:
                await theirs.delete_session(**KEY)
        else:
            await mine.delete_session(**KEY)
        assert await mine.get_session(**KEY) is None
        assert (cache_of(mine).size, len(cache_of(mine))) == (0, 0)


async def test_a_session_of_the_same_id_begins_anew(backend: Backend, place: Place) -> None:
    """A session that others deleted and created again has its own events only."""
    if not backend.durable:
        pytest.skip("nobody else can delete it")
    async with (
        DurableSessionService.from_url(place.url) as mine,
        DurableSessionService.from_url(place.url) as theirs,
    ):
        await filled(mine)
        await loaded(mine)
        await theirs.delete_session(**KEY)
        again = await theirs.create_session(**KEY)
        for number in range(9):
            await theirs.append_event(again, said(f"other {number}"))
        found = texts((await loaded(mine)).events)
        assert found == [f"other {number}" for number in range(9)]


async def test_a_closed_service_keeps_nothing() -> None:
    """Closing the service empties its cache."""
    sessions = DurableSessionService.from_url()
    await filled(sessions)
    await loaded(sessions)
    cache = cache_of(sessions)
    assert len(cache) == 1
    await sessions.close()
    assert (len(cache), cache.size) == (0, 0)


async def test_without_a_cache_nothing_is_kept() -> None:
    """`cache_bytes=0` loads the same and keeps nothing; a negative number is refused."""
    with pytest.raises(ConfigurationError):
        DurableSessionService.from_url(cache_bytes=-1)
    async with DurableSessionService.from_url(cache_bytes=0) as sessions:
        session = await filled(sessions)
        one, other = await loaded(sessions), await loaded(sessions)
        assert one.events == other.events == session.events
        assert share_nothing(one.events, other.events)
        assert len(cache_of(sessions)) == 0


async def test_an_event_that_cannot_be_read_is_an_error_each_time(tmp_path: Path) -> None:
    """A corrupt record is no event at the first load and at the second."""
    url = f"sqlite+aiosqlite:///{tmp_path}/sessions.db"
    async with DurableSessionService.from_url(url) as sessions:
        await filled(sessions)
    spoil = sql_text("UPDATE events SET event_data = '{\"timestamp\": []}' WHERE id = :id")
    async with DurableSessionService.from_url(url) as sessions:
        last = (await loaded(sessions)).events[-1].id
    within(url, lambda connection: connection.execute(spoil, {"id": last}))
    async with DurableSessionService.from_url(url) as sessions:
        for _ in range(2):
            with pytest.raises(CorruptRecordError):
                await sessions.get_session(**KEY)


# --- Bounds


def rows(events: int, first: int = 1) -> list[tuple[int, str]]:
    """Returns stored events with their sequences."""
    return [
        (number, said("x" * 100).model_dump_json(exclude_none=True))
        for number in range(first, first + events)
    ]


def test_the_sessions_used_last_stay() -> None:
    """The cache stays inside its bytes; what goes is the session that was not used for longest."""
    cache = EventCache(100_000)
    names = [SessionId("app", "user", f"{number}") for number in range(5)]
    for name in names:
        cache.events(name, cache.entry(name, 1, 1), rows(4), known=0)
        cache.events(
            names[0], cache.entry(names[0], 1, 1), [], known=cache.entry(names[0], 1, 1).whole_up_to
        )
        assert 0 < cache.size <= 100_000
    assert cache.entry(names[0], 1, 1).whole_up_to == 4
    assert cache.entry(names[1], 1, 1).whole_up_to == 0
    assert cache.entry(names[4], 1, 1).whole_up_to == 4


def test_a_session_larger_than_the_cache_is_handed_out_and_not_kept() -> None:
    """One huge session empties nothing but itself."""
    cache = EventCache(50_000)
    small = SessionId("app", "user", "small")
    cache.events(small, cache.entry(small, 1, 1), rows(2), known=0)
    one, other = (
        cache.events(SESSION, cache.entry(SESSION, 1, 1), rows(50), known=0) for _load in range(2)
    )
    assert len(one) == len(other) == 50
    assert share_nothing(one, other)
    assert cache.entry(SESSION, 1, 1).whole_up_to == 0
    assert cache.entry(small, 1, 1).whole_up_to == 2


def test_a_session_that_outgrows_the_cache_is_shared_by_nobody() -> None:
    """Who had it while it was kept, and who has it since, hold nothing in common."""
    cache = EventCache(50_000)
    log = rows(50)
    entry = cache.entry(SESSION, 1, 1)
    kept = cache.events(SESSION, entry, log[:3], known=0)
    assert cache.entry(SESSION, 1, 1) is entry
    grown = cache.events(SESSION, entry, log[3:], known=3)
    assert cache.entry(SESSION, 1, 1).whole_up_to == 0
    late = cache.events(SESSION, entry, [], known=50)
    assert [len(kept), len(grown), len(late)] == [3, 50, 50]
    assert share_nothing(kept, grown)
    assert share_nothing(grown, late)
    assert share_nothing(kept, late)


def test_who_reads_an_earlier_moment_gets_no_later_event() -> None:
    """A transaction that began before others' appends hands out what was there when it began."""
    cache = EventCache(1_000_000)
    log = rows(6)
    cache.events(SESSION, cache.entry(SESSION, 1, 1), log, known=0)
    entry = cache.entry(SESSION, 1, 1)
    assert len(cache.events(SESSION, entry, [], known=4)) == 4
    assert len(cache.events(SESSION, entry, log[4:], known=4)) == 6


def test_a_part_of_the_log_is_not_taken_for_the_whole() -> None:
    """After a window was loaded, the whole log is read from its beginning."""
    cache = EventCache(1_000_000)
    log = rows(6)
    assert len(cache.events(SESSION, cache.entry(SESSION, 1, 1), log[4:])) == 2
    entry = cache.entry(SESSION, 1, 1)
    assert entry.whole_up_to == 0
    assert len(cache.events(SESSION, entry, log, known=0)) == 6
