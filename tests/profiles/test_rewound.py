"""What was rewound or restored away reaches no memory through ours: it was taken back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from google.adk.memory.in_memory_memory_service import InMemoryMemoryService
from google.adk.sessions.in_memory_session_service import InMemorySessionService

from adk_memory_ext import DurableSessionService, NewFact, ProfileMemoryService, Window
from backends import OURS, WRAPPED
from conversation import said, texts
from people import OWN, SESSION, echo, running

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from google.adk.events.event import Event
    from google.adk.sessions.session import Session

over_every_service = pytest.mark.parametrize(
    "backend", [*OURS, *WRAPPED], ids=lambda backend: backend.name
)


class Remembering(InMemoryMemoryService):
    """Keeps what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[str] = []

    async def add_session_to_memory(self, session: Session) -> None:
        """Notes what was said in it."""
        self.given = [text for text in texts(session.events) if text]

    async def add_events_to_memory(self, *, events: Sequence[Event], **_rest: Any) -> None:
        """Notes what was said in them."""
        self.given = [text for text in texts(events) if text]


async def begin(sessions: DurableSessionService) -> Session:
    """Returns a session of three invocations."""
    session = await sessions.create_session(**SESSION)
    for number in range(3):
        event = said(f"wish {number}", invocation=f"i{number}")
        await sessions.append_event(session, event)
    return session


async def rewind(sessions: DurableSessionService, invocation: str) -> None:
    """Rewinds with ADK's Runner."""
    async with running(sessions, echo(tools=[])) as runner:
        await runner.rewind_async(
            user_id="user", session_id="session", rewind_before_invocation_id=invocation
        )


async def found(sessions: DurableSessionService) -> Session:
    """Returns the session as a reader gets it."""
    session = await sessions.get_session(**SESSION)
    assert session is not None
    return session


@over_every_service
async def test_a_memory_service_behind_ours_is_given_live_events(
    sessions: DurableSessionService,
) -> None:
    """Of a session, and of events by themselves, also when they were loaded before the rewind."""
    stale = await begin(sessions)
    await rewind(sessions, "i1")
    fresh = await found(sessions)
    await sessions.append_event(fresh, said("wish 3", invocation="i3"))
    behind = Remembering()
    memory = ProfileMemoryService(sessions, also=behind)

    await memory.add_session_to_memory(fresh)
    assert behind.given == ["wish 0", "wish 3"]
    await memory.add_session_to_memory(stale)
    assert behind.given == ["wish 0"]
    assert [text for text in texts(stale.events) if text] == ["wish 0", "wish 1", "wish 2"]
    for events, given in (
        (fresh.events[1:], ["wish 3"]),
        (stale.events, ["wish 0"]),
        (stale.events[1:2], []),
    ):
        await memory.add_events_to_memory(**OWN, session_id="session", events=events)
        assert behind.given == given


async def test_what_a_restore_has_copied_is_given_once(sessions: DurableSessionService) -> None:
    """Behind a restore into an invocation the copies count, and the originals do not."""
    session = await sessions.create_session(**SESSION)
    await sessions.append_event(session, said("wish 0", invocation="i0"))
    point = await sessions.checkpoints.create(session, step="a")
    await sessions.append_event(session, said("wish 1", invocation="i0"))
    await sessions.checkpoints.restore(point.id)
    behind = Remembering()
    memory = ProfileMemoryService(sessions, also=behind)
    await memory.add_session_to_memory(await found(sessions))
    assert behind.given == ["wish 0"]
    await memory.add_session_to_memory(session)
    assert behind.given == ["wish 0"]


async def test_a_window_does_not_bring_anything_back() -> None:
    """What was loaded without the rewind's mark is judged by the whole log."""
    async with DurableSessionService.from_url("", window=Window(events=2)) as sessions:
        await begin(sessions)
        await rewind(sessions, "i0")
        fresh = await found(sessions)
        await sessions.append_event(fresh, said("wish 3", invocation="i3"))
        await sessions.append_event(fresh, said("wish 4", invocation="i4"))
        behind = Remembering()
        whole = await sessions.get_whole_session(**SESSION)
        assert whole is not None
        events = [event for event in whole.events if "wish" in str(event.content)]
        memory = ProfileMemoryService(sessions, also=behind)
        await memory.add_events_to_memory(**OWN, session_id="session", events=events)
        assert behind.given == ["wish 3", "wish 4"]


async def test_a_session_that_is_gone_is_judged_by_itself() -> None:
    """Its own marks count."""
    sessions = DurableSessionService(InMemorySessionService())
    await begin(sessions)
    await rewind(sessions, "i1")
    fresh = await found(sessions)
    await sessions.delete_session(**SESSION)
    behind = Remembering()
    memory = ProfileMemoryService(sessions, also=behind)
    await memory.add_session_to_memory(fresh)
    assert behind.given == ["wish 0"]
    await memory.add_events_to_memory(**OWN, events=fresh.events)
    assert behind.given == ["wish 0"]


def wishes(events: Sequence[Event]) -> Iterable[NewFact]:
    """Finds the last wish."""
    said_last = [text for text in texts(events) if text][-1:]
    return [NewFact(key="wish", value=value) for value in said_last]


async def test_extractors_see_live_events_only(sessions: DurableSessionService) -> None:
    """A fact that follows from what was taken back goes with it."""
    sessions.profiles.register_extractor("wishes", wishes)
    await begin(sessions)
    await sessions.profiles.rebuild(**SESSION)
    assert [fact.value for fact in (await sessions.profiles.recall(**OWN)).facts] == ["wish 2"]
    await rewind(sessions, "i1")
    await sessions.profiles.rebuild(**SESSION)
    assert [fact.value for fact in (await sessions.profiles.recall(**OWN)).facts] == ["wish 0"]


async def test_extractors_see_the_whole_log() -> None:
    """A window is for turns: what was said before it counts."""
    async with DurableSessionService.from_url("", window=Window(events=1)) as sessions:
        counted: list[int] = []

        def count(events: Sequence[Event]) -> Iterable[NewFact]:
            counted.append(len(events))
            return []

        sessions.profiles.register_extractor("count", count)
        await begin(sessions)
        await sessions.profiles.rebuild(**SESSION)
        assert counted == [3]
