"""Stored events removed by a rule or by name: the rest is valid, and the state as it was."""

from __future__ import annotations

import json
import sqlite3
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest
from google.adk.events._rewind_events import _apply_rewinds
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions, EventCompaction
from google.adk.sessions.database_session_service import DatabaseSessionService
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google.genai import types

from adk_memory_ext import (
    DurableSessionService,
    MemoryPlugin,
    NewFact,
    Provenance,
    PruneHistory,
    Pruning,
    RetentionPolicy,
    Window,
    live_events,
)
from adk_memory_ext.errors import (
    CapabilityError,
    ConfigurationError,
    EventNotFoundError,
    StoreUnavailableError,
)
from conversation import answered, called, exactly, replay, said, texts
from people import OWN, SESSION, echo, running, say
from residues import residue

if TYPE_CHECKING:
    from pathlib import Path

    from google.adk.sessions.session import Session

    from backends import Backend, Place

START: Final = time.time() - 100_000
CREATED: Final = {"created": "long ago", "a": 0}


async def found(sessions: DurableSessionService) -> Session:
    """Returns the session as it is stored."""
    session = await sessions.get_session(**SESSION)
    assert session is not None
    return session


async def talk(sessions: DurableSessionService, turns: int = 10) -> Session:
    """Stores a conversation of turns of four events; each changes the state."""
    session = await sessions.create_session(**SESSION, state=CREATED)
    for number in range(turns):
        name, at = f"i-{number}", START + number * 10
        delta = {"a": number, f"key-{number}": f"value of turn {number}"}
        events = [
            said(f"question {number}", invocation=name, at=at),
            called("look_up", {"n": number}, invocation=name),
            answered("look_up", {"found": f"answer {number}"}, invocation=name, state=delta),
            said(f"reply {number}", author="agent", invocation=name, at=at + 3),
        ]
        for offset, event in enumerate(events):
            event.timestamp = at + offset
            await sessions.append_event(session, event)
    return session


def summary(begin: int, end: int) -> Event:
    """Returns ADK's summary of the turns from `begin` to `end`."""
    compaction = EventCompaction(
        start_timestamp=START + begin * 10,
        end_timestamp=START + end * 10 + 3,
        compacted_content=types.Content(role="model", parts=[types.Part(text="in short")]),
    )
    return Event(author="user", actions=EventActions(compaction=compaction))


def own(state: dict[str, Any]) -> str:
    """Returns session-scope state as a text that can be compared."""
    return exactly({key: value for key, value in state.items() if ":" not in key})


def tombstones(session: Session) -> list[dict[str, Any]]:
    """Returns what the tombstones of a session say."""
    metadata = [event.custom_metadata or {} for event in session.events]
    return [one["memext_pruned"] for one in metadata if "memext_pruned" in one]


async def test_what_a_summary_covers_goes(sessions: DurableSessionService) -> None:
    """Whole invocations go, a tombstone says how many and why, and the state is as it was."""
    session = await talk(sessions)
    await sessions.append_event(session, summary(0, 6))
    before = await found(sessions)
    pruned = await sessions.history.prune(session, keep=2)
    after = await found(sessions)
    assert (pruned.events, pruned.why) == (28, {"summary": 28})
    assert pruned.receipt is not None
    assert (pruned.receipt.kind, pruned.receipt.verified) == ("pruning", True)
    assert texts(after.events) == ["", *texts(before.events[28:])]
    (tombstone,) = tombstones(after)
    assert (tombstone["count"], tombstone["why"], tombstone["first"]) == (28, {"summary": 28}, 1)
    assert len(tombstone["digest"]) == 32
    assert after.state == before.state
    assert own(replay(after.events, CREATED)) == own(after.state)


async def test_what_stays_can_be_appended_to(sessions: DurableSessionService) -> None:
    """A session that was loaded before goes on, as if nothing had been removed."""
    session = await talk(sessions)
    await sessions.history.prune(session, older_than=timedelta(0), keep=3)
    await sessions.append_event(session, said("one more", invocation="i-10", state={"z": 1}))
    after = await found(sessions)
    assert texts(after.events)[-1] == "one more"
    assert own(replay(after.events, CREATED)) == own(after.state)
    again = await sessions.history.prune(session, older_than=timedelta(0), keep=3)
    assert again.events == 4
    (tombstone,) = tombstones(await found(sessions))  # the earlier one has become part of it
    assert (tombstone["count"], tombstone["first"]) == (32, 1)


async def test_age_is_counted_from_the_last_event(sessions: DurableSessionService) -> None:
    """A turn goes when all of it is old, by the clock that is given."""
    session = await talk(sessions)
    day = timedelta(days=1)
    now = START + day.total_seconds() + 33  # turn 3 has just ended a day ago
    pruned = await sessions.history.prune(session, older_than=day, now=now, dry_run=True)
    assert (pruned.events, pruned.receipt) == (16, None)
    assert len((await found(sessions)).events) == 40
    pruned = await sessions.history.prune(session, older_than=day, now=now)
    assert texts((await found(sessions)).events)[1] == "question 4"


async def test_nothing_that_waits_for_an_answer_goes(sessions: DurableSessionService) -> None:
    """A long-running call that nobody has answered stays with its turn, until somebody does."""
    session = await sessions.create_session(**SESSION)
    call = called("approve", {}, invocation="i-0")
    call.long_running_tool_ids = {"call-approve"}
    for event in (said("please", invocation="i-0"), call, said("later", invocation="i-1")):
        await sessions.append_event(session, event)
    await sessions.append_event(session, said("last", invocation="i-2"))
    prune = sessions.history.prune
    assert (await prune(session, older_than=timedelta(0))).events == 1
    answer = answered("approve", {"ok": True}, invocation="i-3")
    answer.author = "user"
    await sessions.append_event(session, answer)
    # The answer is the newest turn, which stays, and so does what it answers.
    assert (await prune(session, older_than=timedelta(0))).events == 1
    await sessions.append_event(session, said("thanks", invocation="i-4"))
    assert (await prune(session, older_than=timedelta(0))).events == 3
    assert texts((await found(sessions)).events) == ["", "thanks"]


async def test_superseded_calls_go(sessions: DurableSessionService) -> None:
    """Of equal calls the newest stays with its answer; other arguments are another call."""
    session = await sessions.create_session(**SESSION)
    for number, city in enumerate(["Rome", "Oslo", "Rome", "Rome"]):
        name = f"i-{number}"
        call = types.FunctionCall(id=f"c-{number}", name="weather", args={"city": city})
        told = types.FunctionResponse(id=f"c-{number}", name="weather", response={"n": number})
        for event in (
            said(f"question {number}", invocation=name),
            Event(
                invocation_id=name,
                author="agent",
                content=types.Content(role="model", parts=[types.Part(function_call=call)]),
            ),
            Event(
                invocation_id=name,
                author="agent",
                content=types.Content(role="user", parts=[types.Part(function_response=told)]),
                actions=EventActions(state_delta={"n": number}),
            ),
            said(f"reply {number}", author="agent", invocation=name),
        ):
            await sessions.append_event(session, event)
    pruned = await sessions.history.prune(session, superseded_tools=["weather"])
    assert pruned.why == {"superseded": 4}
    after = await found(sessions)
    told_now = [
        (answer.response or {})["n"]
        for event in after.events
        for answer in event.get_function_responses()
    ]
    assert told_now == [1, 3]
    assert "question 0" in texts(after.events)
    assert own(replay(after.events)) == own(after.state)


async def test_a_rewind_hides_what_it_hid_before(sessions: DurableSessionService) -> None:
    """What a mark had hidden stays hidden when the first of it is removed."""
    session = await talk(sessions, 4)
    mark = Event(
        invocation_id="rewind",
        author="user",
        actions=EventActions(rewind_before_invocation_id="i-1"),
    )
    await sessions.append_event(session, mark)
    await sessions.append_event(session, said("anew", invocation="i-5"))
    now = START + 15  # old enough: turns 0 and 1
    await sessions.history.prune(session, older_than=timedelta(0), now=now)

    after = await found(sessions)
    assert len(tombstones(after)) == 2
    assert [text for text in texts(_apply_rewinds(after.events)) if text] == ["anew"]


async def test_checkpoints_accept_what_was_pruned(sessions: DurableSessionService) -> None:
    """Restores go on behind, at and inside a pruned stretch; a changed event is still noticed."""
    session = await sessions.create_session(**SESSION, state=CREATED)
    points = {}
    for number in range(8):
        name = f"i-{number}"
        event = said(f"m{number}", invocation=name, at=START + number, state={"a": number})
        await sessions.append_event(session, event)
        points[number] = await sessions.checkpoints.create(session, step=f"s{number}")
    await sessions.history.prune(session, older_than=timedelta(0), now=START + 4, keep=1)
    assert texts((await found(sessions)).events) == ["", "m5", "m6", "m7"]
    latest = await sessions.checkpoints.latest(**SESSION)
    assert latest is not None
    assert latest.id == points[7].id
    for number, left in ((6, ["m5", "m6"]), (4, []), (2, [])):
        restored = await sessions.checkpoints.restore(points[number].id)
        assert not restored.state_only
        after = await found(sessions)
        assert after.state["a"] == number
        assert [text for text in texts(live_events(after.events)) if text] == left
    await sessions.append_event(await found(sessions), said("on", invocation="i-9"))
    point = await sessions.checkpoints.create(session, step="on")
    assert (await sessions.checkpoints.fork(point.id, "fork")).session_id == "fork"


async def test_a_change_behind_a_pruned_stretch_is_noticed(tmp_path: Path) -> None:
    """Pruning is no amnesty: neither for a change before it nor for one after it."""
    for is_before in (True, False):
        folder = tmp_path / str(is_before)
        async with DurableSessionService.from_url(f"sqlite:///{folder}/sessions.db") as sessions:
            session = await sessions.create_session(**SESSION)
            for number in range(6):
                event = said(f"m{number}", invocation=f"i-{number}", at=START + number)
                await sessions.append_event(session, event)
                await sessions.checkpoints.create(session, step=f"s{number}")

            async def change(sessions: DurableSessionService = sessions) -> None:
                assert sessions.database is not None
                sql = "UPDATE events SET event_data = replace(event_data, 'm4', 'm9')"
                await sessions.database.write(
                    lambda tx: tx.connection.exec_driver_sql(sql).rowcount
                )

            if is_before:
                await change()
            await sessions.history.prune(session, older_than=timedelta(0), now=START + 2)
            if not is_before:
                await change()
            latest = await sessions.checkpoints.latest(**SESSION)
            assert latest is not None
            assert latest.step == "s3"


async def test_other_instances_and_plain_adk_see_it(backend: Backend, place: Place) -> None:
    """What another instance has in its cache is outdated; plain ADK reads the same events."""
    if not backend.durable:
        pytest.skip("nobody else can read it")
    async with (
        DurableSessionService.from_url(place.url) as sessions,
        DurableSessionService.from_url(place.url, window=Window(events=6)) as other,
    ):
        session = await talk(sessions)
        assert len((await found(sessions)).events) == 40
        assert await other.get_whole_session(**SESSION) is not None
        await sessions.history.prune(session, older_than=timedelta(0), keep=4)
        whole = await other.get_whole_session(**SESSION)
        assert whole is not None
        expected = [event.id for event in (await found(sessions)).events]
        assert [event.id for event in whole.events] == expected
        assert len(expected) == 17
        assert texts((await found(other)).events)[0] == "question 7"
        url = place.url.replace("postgresql://", "postgresql+asyncpg://")
        async with DatabaseSessionService(url) as plain:
            read = await plain.get_session(**SESSION)
            assert read is not None
            assert [event.id for event in read.events] == expected
            await plain.append_event(read, said("by plain ADK", invocation="i-99"))
        assert texts((await found(other)).events)[-1] == "by plain ADK"


async def test_a_rewind_behind_it_brings_back_the_right_state(
    sessions: DurableSessionService,
) -> None:
    """The state before each turn that stays can still be replayed, also by the log alone."""
    session = await talk(sessions)
    whole = (await found(sessions)).events
    await sessions.history.prune(session, older_than=timedelta(0), keep=4)
    events = (await found(sessions)).events
    for number in range(6, 10):
        after = next(i for i, e in enumerate(events) if e.invocation_id == f"i-{number}")
        before = next(i for i, e in enumerate(whole) if e.invocation_id == f"i-{number}")
        assert own(replay(events[:after], CREATED)) == own(replay(whole[:before], CREATED))


async def test_the_bytes_go_too(tmp_path: Path) -> None:
    """An independent scanner finds nothing of what pruned and deleted events said."""
    async with DurableSessionService.from_url(f"sqlite:///{tmp_path}/sessions.db") as sessions:
        session = await talk(sessions)
        await sessions.history.prune(session, older_than=timedelta(0), keep=4)
        deleted = await sessions.history.delete(session, invocation_id="i-8")
        assert deleted.receipt is not None
        assert deleted.receipt.kind == "turn"
        assert "i-8" not in deleted.receipt.stored()
    gone = ["question 2", '"found": "answer 3"', '"found": "answer 8"', "question 8"]
    assert residue(tmp_path / "sessions.db", gone, sqlite3) == []
    assert b"question 7" in (tmp_path / "sessions.db").read_bytes()


# --- One turn


async def test_a_turn_goes_with_what_came_of_it(sessions: DurableSessionService) -> None:
    """Its events, the summary that covers it and inferred facts go; what was asked for stays."""
    session = await talk(sessions)
    await sessions.append_event(session, summary(0, 6))
    save = sessions.profiles.save
    source = Provenance(session_id="session", invocation_id="i-3")
    await save(NewFact(key="hours", value=6, status="inferred", provenance=source), **OWN)
    await save(NewFact(key="dietary", value="vegetarian", provenance=source), **OWN)
    other = Provenance(session_id="session", invocation_id="i-4")
    await save(NewFact(key="city", value="Oslo", status="inferred", provenance=other), **OWN)
    before = await found(sessions)
    deleted = await sessions.history.delete(session, invocation_id="i-3", requested_by="ann")
    after = await found(sessions)
    assert deleted.why == {"deleted": 5}
    assert not any("3" in text for text in texts(after.events))
    assert not any(event.actions.compaction for event in after.events)
    assert after.state == before.state
    assert own(replay(after.events, CREATED)) == own(after.state)
    facts = (await sessions.profiles.recall(**OWN)).facts
    assert sorted(fact.key for fact in facts) == ["city", "dietary"]
    assert [one.get("digest") for one in tombstones(after)] == [None, None]


async def test_an_event_takes_its_pair_along(sessions: DurableSessionService) -> None:
    """A call goes with its answer and an answer with its call."""
    session = await talk(sessions, 3)
    events = (await found(sessions)).events
    deleted = await sessions.history.delete(session, [events[6].id])  # the answer of turn 1
    assert deleted.events == 2
    after = await found(sessions)
    assert texts(after.events)[4:7] == ["question 1", "", "reply 1"]
    assert not after.events[5].get_function_calls()
    deleted = await sessions.history.delete(session, [events[8].id])  # the question of turn 2
    # Its call would follow on a model's turn.
    assert deleted.events == 3
    assert after.state == (await found(sessions)).state


async def test_the_last_turn_can_go(sessions: DurableSessionService) -> None:
    """The session goes on behind it, in this and in another copy."""
    session = await talk(sessions, 3)
    await sessions.history.delete(session, invocation_id="i-2")
    await sessions.append_event(session, said("anew", invocation="i-3"))
    after = await found(sessions)
    assert texts(after.events)[-2:] == ["", "anew"]
    assert after.state["a"] == 2


async def test_what_is_not_there_is_told(sessions: DurableSessionService) -> None:
    """An unknown event, one of another session, no name at all, or the mark of a rewind."""
    session = await talk(sessions, 2)
    delete = sessions.history.delete
    with pytest.raises(EventNotFoundError, match="'nobody'"):
        await delete(session, [session.events[0].id, "nobody"])
    with pytest.raises(EventNotFoundError, match="'i-9'"):
        await delete(session, invocation_id="i-9")
    with pytest.raises(ConfigurationError):
        await delete(session)
    with pytest.raises(TypeError):
        await delete(session, "an-id")
    mark = EventActions(rewind_before_invocation_id="i-1")
    await sessions.append_event(session, Event(invocation_id="rewind", author="user", actions=mark))
    with pytest.raises(ConfigurationError, match="rewind"):
        await delete(session, invocation_id="rewind")
    assert len((await found(sessions)).events) == 9
    with pytest.raises(ConfigurationError):
        await sessions.history.prune(session, keep=0)


async def test_a_foreign_service_cannot_do_it() -> None:
    """Over a service of somebody else it is refused by name."""
    async with DurableSessionService(InMemorySessionService()) as sessions:
        session = await sessions.create_session(**SESSION)
        with pytest.raises(CapabilityError):
            await sessions.history.prune(session, older_than=timedelta(0))


async def test_a_sweep_prunes_too(sessions: DurableSessionService) -> None:
    """By policy, every session that stays is pruned, and the tombstones are exported."""
    session = await talk(sessions)
    policy = RetentionPolicy(history=Pruning(older_than=timedelta(0), keep=4))
    dry = await sessions.erasure.sweep(policy, dry_run=True)
    swept = await sessions.erasure.sweep(policy)
    assert dry.counts == swept.counts == {"events": 24}
    assert [receipt.kind for receipt in swept.receipts] == ["pruning"]
    assert (await sessions.history.prune(session, older_than=timedelta(0), keep=4)).events == 0
    document = await sessions.erasure.export_user(**OWN)
    assert len(document["stores"]["events"]) == 17
    assert "memext_pruned" in json.dumps(document)
    receipt = await sessions.erasure.erase_user(**OWN)
    assert {name: len(rows) for name, rows in document["stores"].items()} == receipt.counts


# --- At the end of a turn


async def test_a_session_is_pruned_at_the_end_of_a_turn(tmp_path: Path) -> None:
    """Every so many turns the log is pruned, and the bytes are verified by the time of the end."""
    part = PruneHistory(Pruning(older_than=timedelta(0), keep=2), every=3)
    plugins = [MemoryPlugin(pruning=part)]
    async with DurableSessionService.from_url(f"sqlite:///{tmp_path}/sessions.db") as sessions:
        async with running(sessions, echo(tools=[]), plugins=plugins) as runner:
            for number in range(7):
                await say(runner, f"a message of some length, number {number}")
                turns = len((await found(sessions)).events)
                assert turns == (5 if number in {2, 5} else {0: 2, 1: 4, 3: 7, 4: 9, 6: 7}[number])
            after = await found(sessions)
            assert [one["count"] for one in tombstones(after)] == [8]
        await sessions.erasure.settle()
        assert [receipt.kind for receipt in await sessions.erasure.receipts()] == ["pruning"] * 2
    gone = ["a message of some length, number 2"]
    assert residue(tmp_path / "sessions.db", gone, sqlite3) == []


async def test_pruning_that_fails_fails_no_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged, and tried again with the next turn."""
    part = PruneHistory(Pruning(older_than=timedelta(0)), every=1)
    async with (
        DurableSessionService.from_url(f"sqlite:///{tmp_path}/sessions.db") as sessions,
        running(sessions, echo(tools=[]), plugins=[MemoryPlugin(pruning=part)]) as runner,
    ):
        with monkeypatch.context() as broken:

            def refuse(*_arguments: object) -> None:
                raise StoreUnavailableError("the disk is full")

            broken.setattr("adk_memory_ext.sql_pruning.prune", refuse)
            await say(runner, "one")
            await say(runner, "two")
        assert "could not be pruned" in caplog.text
        assert len((await found(sessions)).events) == 4
        await say(runner, "three")
        assert len((await found(sessions)).events) == 3
    with pytest.raises(ConfigurationError):
        PruneHistory(Pruning(), every=0)
