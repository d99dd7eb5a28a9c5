"""Checkpoints: made once, found, put back exactly, forked, pruned, refused when the log lies."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest
from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.events._rewind_events import _apply_rewinds
from google.adk.sessions.database_session_service import DatabaseSessionService
from google.adk.sessions.in_memory_session_service import InMemorySessionService

from adk_memory_ext import (
    CapabilityError,
    CheckpointInconsistentError,
    CheckpointNotFoundError,
    CheckpointPolicy,
    CheckpointRetention,
    ConfigurationError,
    DurableSessionService,
    InvalidIdError,
    StateRejectedError,
    live_events,
)
from backends import OURS, OURS_MARIADB
from conversation import answered, called, exactly, replay, said, texts
from people import OWN, SESSION, echo, running, say
from servers import execute
from tables import run

if TYPE_CHECKING:
    from pathlib import Path

    from google.adk.events.event import Event
    from google.adk.sessions.session import Session

    from adk_memory_ext import Checkpoint, Restored
    from backends import Backend, Place

everywhere = pytest.mark.parametrize("backend", [*OURS, OURS_MARIADB], ids=lambda b: b.name)
durable = pytest.mark.parametrize(
    "backend", [row for row in OURS if row.durable], ids=lambda row: row.name
)
CREATED: Final[dict[str, Any]] = {"locale": "de", "draft": {"履歷": [1]}, "none": None, "user:u": 1}


async def found(sessions: DurableSessionService, session_id: str = "session") -> Session:
    """Returns a session as it is stored."""
    session = await sessions.get_session(**OWN, session_id=session_id)
    assert session is not None
    return session


async def expire(sessions: DurableSessionService) -> None:
    """Ends the session as its expiry does, which leaves the checkpoints to their own rule."""
    await sessions.wrapped.delete_session(**SESSION)


def seen(session: Session) -> list[str]:
    """Returns what the model is shown of the log, as ADK tells it."""
    return texts(event for event in _apply_rewinds(session.events) if event.content)


def own(session: Session) -> dict[str, Any]:
    """Returns session-scope state."""
    return {key: value for key, value in session.state.items() if ":" not in key}


async def begin(sessions: DurableSessionService) -> Session:
    """Returns a session with state and one message."""
    session = await sessions.create_session(**SESSION, state=dict(CREATED))
    await sessions.append_event(session, said("one", invocation="i1", state={"step": "a"}))
    return session


async def on(sessions: DurableSessionService, *events: Event) -> None:
    """Appends events to the session as it is stored."""
    session = await found(sessions)
    for event in events:
        await sessions.append_event(session, event)


def later() -> list[Event]:
    """Returns events that change every kind of key, two of them of the same invocation."""
    return [
        said("two", author="agent", invocation="i1", state={"step": "b", "new": "x" * 100}),
        said("three", invocation="i2", state={"draft": None, "none": 1, "user:u": 2}),
    ]


@everywhere
async def test_a_restore_brings_back_state_and_history(sessions: DurableSessionService) -> None:
    """State is exactly that of the checkpoint; later events, of its invocation too, are hidden."""
    session = await begin(sessions)
    point = await sessions.checkpoints.create(session, step="collected", summary="profile")
    await on(sessions, *later())
    await sessions.state.delete(["locale"], **SESSION)
    before = [event.id for event in (await found(sessions)).events]

    restored = await sessions.checkpoints.restore(point.id)

    session = await found(sessions)
    assert exactly(own(session)) == exactly(
        {"locale": "de", "draft": {"履歷": [1]}, "none": None, "step": "a"}
    )
    assert session.state["user:u"] == 2
    assert seen(session) == ["one"]
    assert [event.id for event in session.events[: len(before)]] == before
    assert restored.removed == ("new",)
    assert (restored.hidden, restored.repeated, restored.state_only) == (3, 1, False)
    note = next(event for event in session.events if event.id == restored.event_id)
    assert note.custom_metadata is not None
    assert note.custom_metadata["memext_restored"] == point.id
    assert exactly(replay(session.events, CREATED) | {"user:u": 2}) == exactly(dict(session.state))


@everywhere
async def test_restoring_again_does_nothing(sessions: DurableSessionService) -> None:
    """A second restore of the same checkpoint writes nothing."""
    point = await sessions.checkpoints.create(await begin(sessions), step="a")
    await on(sessions, *later())
    await sessions.checkpoints.restore(point.id)
    before = (await found(sessions)).events

    again = await sessions.checkpoints.restore(point.id)

    assert again.event_id is None
    assert (again.hidden, again.repeated, again.changed, again.removed) == (0, 0, (), ())
    assert (await found(sessions)).events == before


async def test_a_restore_goes_back_and_forth(sessions: DurableSessionService) -> None:
    """A later checkpoint can be restored after an earlier one, and the other way round."""
    first = await sessions.checkpoints.create(await begin(sessions), step="a")
    await on(sessions, *later())
    second = await sessions.checkpoints.create(await found(sessions), step="b")
    whole = own(await found(sessions))
    for _ in range(2):
        await sessions.checkpoints.restore(first.id)
        assert seen(await found(sessions)) == ["one"]
        await sessions.checkpoints.restore(second.id)
        assert seen(await found(sessions)) == ["one", "two", "three"]
        assert exactly(own(await found(sessions))) == exactly(whole)


async def test_a_call_is_never_parted_from_its_answer(sessions: DurableSessionService) -> None:
    """A checkpoint after a tool's answer keeps the call and the answer, and the ids of both."""
    session = await begin(sessions)
    await sessions.append_event(session, called("look", {}, invocation="i1"))
    await sessions.append_event(session, answered("look", {"x": 1}, invocation="i1"))
    point = await sessions.checkpoints.create(session, step="looked")
    await on(sessions, said("done", author="agent", invocation="i1"))
    await sessions.checkpoints.restore(point.id)
    events = (await found(sessions)).events[-2:]
    call, answer = events[0].get_function_calls()[0], events[1].get_function_responses()[0]
    assert (call.id, answer.id) == ("call-look", "call-look")
    assert [event.invocation_id for event in events] == ["i1", "i1"]


async def test_a_conversation_goes_on_from_a_restore(sessions: DurableSessionService) -> None:
    """The model sees what was said until the checkpoint, and the new message."""
    async with running(sessions, echo(tools=[])) as runner:
        await say(runner, "one")
        point = await sessions.checkpoints.create(await found(sessions), step="a")
        await say(runner, "two")
        await sessions.checkpoints.restore(point.id)
        answer = (await say(runner, "three"))[-1]
        assert answer.content is not None
        assert texts([answer]) == ["echo three, message 2"]


@durable
async def test_plain_adk_sees_the_restored_history(backend: Backend, place: Place) -> None:
    """The mark is ADK's own: its own service shows the model the same events."""
    async with backend.open(place) as sessions:
        assert isinstance(sessions, DurableSessionService)
        point = await sessions.checkpoints.create(await begin(sessions), step="a")
        await on(sessions, *later())
        await sessions.checkpoints.restore(point.id)
    async with DatabaseSessionService(place.url) as plain:
        session = await plain.get_session(**SESSION)
        assert session is not None
        assert seen(session) == ["one"]


@durable
async def test_another_process_restores_it(backend: Backend, place: Place) -> None:
    """Nothing that a restore needs is only in memory."""
    async with backend.open(place) as sessions:
        assert isinstance(sessions, DurableSessionService)
        await sessions.checkpoints.create(await begin(sessions), step="a")
        await on(sessions, *later())
    async with backend.open(place) as sessions:
        assert isinstance(sessions, DurableSessionService)
        point = await sessions.checkpoints.latest(**OWN)
        assert point is not None
        await sessions.checkpoints.restore(point.id)
        assert own(await found(sessions))["step"] == "a"


async def test_who_loaded_the_session_before_a_restore_is_stale(
    sessions: DurableSessionService,
) -> None:
    """An answer to what is hidden by now is refused."""
    session = await begin(sessions)
    point = await sessions.checkpoints.create(session, step="a")
    await on(sessions, *later())
    stale = await found(sessions)
    await sessions.checkpoints.restore(point.id)
    with pytest.raises(StaleSessionError):
        await sessions.append_event(stale, said("answer", author="agent", invocation="i2"))


async def test_live_events_are_those_that_the_model_sees(sessions: DurableSessionService) -> None:
    """What is handed to a memory service holds nothing that a restore or a rewind has hidden."""
    point = await sessions.checkpoints.create(await begin(sessions), step="a")
    await on(sessions, *later())
    await sessions.checkpoints.restore(point.id)
    await on(sessions, said("four", invocation="i4"))
    session = await found(sessions)
    assert texts(live_events(session.events)) == seen(session) == ["one", "four"]


# --- What a checkpoint holds


async def test_a_checkpoint_says_what_it_covers(sessions: DurableSessionService) -> None:
    """Ids, names, sequence, references, and nothing of what was said."""
    session = await begin(sessions)
    point = await sessions.checkpoints.create(
        session,
        step="filtered",
        workflow="gifts",
        summary="three candidates",
        agent="finder",
        agent_version="7",
        references={"candidates": [3, 5]},
    )
    assert (point.app_name, point.user_id, point.session_id) == ("app", "user", "session")
    assert (point.sequence, point.event_id) == (1, session.events[-1].id)
    assert (point.invocation_id, point.step, point.workflow) == ("i1", "filtered", "gifts")
    assert (point.summary, point.agent, point.agent_version) == ("three candidates", "finder", "7")
    assert point.references == {"candidates": [3, 5]}
    assert await sessions.checkpoints.get(point.id) == point
    assert await sessions.checkpoints.state(point.id) == own(session)


async def test_the_same_step_of_an_event_has_one_checkpoint(
    sessions: DurableSessionService,
) -> None:
    """Asking again gives the same one; another step of the same event gets its own."""
    session = await begin(sessions)
    first = await sessions.checkpoints.create(session, step="a")
    assert await sessions.checkpoints.create(session, step="a") == first
    other = await sessions.checkpoints.create(session, step="b")
    assert other.id != first.id
    assert (other.event_id, other.invocation_id) == (first.event_id, first.invocation_id)
    assert await sessions.checkpoints.list(**SESSION) == [other, first]
    at_once = await asyncio.gather(
        *(sessions.checkpoints.create(session, step="c") for _ in range(5))
    )
    assert len({point.id for point in at_once}) == 1


@durable
async def test_values_that_are_personal_stay_in_the_session(backend: Backend, place: Place) -> None:
    """They come back while the session is there; else they are absent and reported."""
    policy = CheckpointPolicy(personal=("resume*",))
    async with DurableSessionService.from_url(place.url, checkpoint_policy=policy) as sessions:
        created = {"resume_text": "Ann, born 1990", "resume 履": 1, "step": "a"}
        session = await sessions.create_session(**SESSION, state=created)
        await sessions.append_event(session, said("x", invocation="i", state={"resume 履": 2}))
        point = await sessions.checkpoints.create(session, step="a")
        assert await sessions.checkpoints.state(point.id) == {"step": "a"}
        if backend.storage == "postgresql":
            query = "SELECT value FROM memext_checkpoint_values UNION SELECT manifest FROM"
            rows = execute(place.url, query + " memext_checkpoints")
            assert "Ann" not in str(rows)
        await on(sessions, said("y", invocation="j", state={"resume_text": "", "resume 履": 3}))
        restored = await sessions.checkpoints.restore(point.id)
        assert restored.missing == ()
        assert own(await found(sessions)) == {**created, "resume 履": 2}
        await expire(sessions)
        restored = await sessions.checkpoints.restore(point.id)
        assert set(restored.missing) == {"resume_text", "resume 履"}
        assert restored.state_only
        assert own(await found(sessions)) == {"step": "a"}


async def test_a_checkpoint_of_an_empty_session(sessions: DurableSessionService) -> None:
    """Before the first event it covers the creation alone."""
    session = await sessions.create_session(**SESSION, state={"a": 1})
    point = await sessions.checkpoints.create(session, step="begun")
    assert (point.sequence, point.event_id, point.invocation_id) == (0, None, "")
    await sessions.append_event(session, said("one", invocation="i", state={"a": 2, "b": 1}))
    await sessions.checkpoints.restore(point.id)
    assert own(await found(sessions)) == {"a": 1}
    assert seen(await found(sessions)) == []


# --- A session that is gone


@everywhere
async def test_a_session_that_is_gone_gets_its_state_back(sessions: DurableSessionService) -> None:
    """The report says that there is no history; doing it again changes nothing."""
    point = await sessions.checkpoints.create(await begin(sessions), step="a")
    await expire(sessions)
    restored = await sessions.checkpoints.restore(point.id)
    assert restored.state_only
    session = await found(sessions)
    assert session.events == []
    assert exactly(own(session)) == exactly(
        {"locale": "de", "draft": {"履歷": [1]}, "none": None, "step": "a"}
    )
    assert session.state["user:u"] == 1
    assert await sessions.checkpoints.parent(**SESSION) == point.id
    await on(sessions, said("more", invocation="k", state={"more": 1}))
    restored = await sessions.checkpoints.restore(point.id)
    assert (restored.hidden, restored.removed) == (1, ("more",))
    assert own(await found(sessions)) == own(session)


async def test_the_log_of_a_restored_session_is_its_own(sessions: DurableSessionService) -> None:
    """What the checkpoint knows of the log that is gone says nothing of the new one."""
    await begin(sessions)
    await on(sessions, *later())
    point = await sessions.checkpoints.create(await found(sessions), step="a")
    await expire(sessions)
    await sessions.checkpoints.restore(point.id)
    for word in ("four", "five"):
        await on(sessions, said(word, invocation=word, state={"step": word}))
        assert (await sessions.checkpoints.restore(point.id)).hidden == 1


async def test_another_session_of_that_id_is_left_alone(sessions: DurableSessionService) -> None:
    """What somebody else has begun under the id is not overwritten."""
    point = await sessions.checkpoints.create(await begin(sessions), step="a")
    await expire(sessions)
    await sessions.create_session(**SESSION, state={"of": "another"})
    with pytest.raises(CheckpointInconsistentError, match="fork"):
        await sessions.checkpoints.restore(point.id)
    assert own(await found(sessions)) == {"of": "another"}
    fork = await sessions.checkpoints.fork(point.id, "other")
    assert fork.state_only


# --- Forks


@everywhere
async def test_a_fork_has_history_and_state_of_the_checkpoint(
    sessions: DurableSessionService,
) -> None:
    """Events keep ids and times, user state is not written again, and lineage is known."""
    await begin(sessions)
    await on(sessions, later()[0])
    parent = await found(sessions)
    point = await sessions.checkpoints.create(parent, step="a")
    await on(sessions, later()[1])

    fork = await sessions.checkpoints.fork(point.id, "copy")

    copy = await found(sessions, "copy")
    assert fork.session_id == "copy"
    assert [event.id for event in copy.events] == [event.id for event in parent.events]
    assert [event.timestamp for event in copy.events] == [e.timestamp for e in parent.events]
    assert all(event.actions.state_delta == {} for event in copy.events)
    assert exactly(own(copy)) == exactly(own(parent))
    assert copy.state["user:u"] == 2
    assert await sessions.checkpoints.parent(**OWN, session_id="copy") == point.id
    with pytest.raises(AlreadyExistsError):
        await sessions.checkpoints.fork(point.id, "copy")
    with pytest.raises(InvalidIdError):
        await sessions.checkpoints.fork(point.id, "")


async def test_a_fork_and_its_parent_are_independent(sessions: DurableSessionService) -> None:
    """What happens to one, its end too, does not reach the other."""
    point = await sessions.checkpoints.create(await begin(sessions), step="a")
    fork = await sessions.checkpoints.fork(point.id)
    copy = await found(sessions, fork.session_id)
    await sessions.append_event(copy, said("fork", invocation="f", state={"step": "fork"}))
    assert own(await found(sessions))["step"] == "a"
    inner = await sessions.checkpoints.create(copy, step="inner")
    await sessions.append_event(copy, said("on", invocation="g", state={"step": "on"}))
    await sessions.delete_session(**SESSION)
    await sessions.checkpoints.delete(**SESSION)
    await sessions.checkpoints.restore(inner.id)
    copy = await found(sessions, fork.session_id)
    assert (own(copy)["step"], seen(copy)) == ("fork", ["one", "fork"])


async def test_a_fork_leaves_out_what_was_rewound(sessions: DurableSessionService) -> None:
    """The new session's log is the history that the model saw."""
    first = await sessions.checkpoints.create(await begin(sessions), step="a")
    await on(sessions, *later())
    await sessions.checkpoints.restore(first.id)
    await on(sessions, said("four", invocation="i4"))
    point = await sessions.checkpoints.create(await found(sessions), step="b")
    fork = await sessions.checkpoints.fork(point.id)
    assert texts((await found(sessions, fork.session_id)).events) == ["one", "four"]


# --- Finding


async def test_the_latest_of_a_user_a_session_and_a_step(sessions: DurableSessionService) -> None:
    """Newest first, over all sessions of the user, and never those of somebody else."""
    session = await begin(sessions)
    first = await sessions.checkpoints.create(session, step="a")
    other = await sessions.create_session(**OWN, session_id="other")
    second = await sessions.checkpoints.create(other, step="b")
    stranger = await sessions.create_session(app_name="app", user_id="bob", session_id="session")
    await sessions.checkpoints.create(stranger, step="a")
    assert await sessions.checkpoints.latest(**OWN) == second
    assert await sessions.checkpoints.latest(**OWN, step="a") == first
    assert await sessions.checkpoints.latest(**SESSION) == first
    assert await sessions.checkpoints.latest(**SESSION, step="b") is None
    assert await sessions.checkpoints.list(**OWN) == [second, first]


async def test_a_checkpoint_of_somebody_else_is_not_there(sessions: DurableSessionService) -> None:
    """Where the ids of app and user are given, the id of a checkpoint alone opens nothing."""
    point = await sessions.checkpoints.create(await begin(sessions), step="a")
    owners: list[dict[str, Any]] = [{"user_id": "bob"}, {"app_name": "other"}]
    for owner in owners:
        for call in (
            sessions.checkpoints.get(point.id, **owner),
            sessions.checkpoints.state(point.id, **owner),
            sessions.checkpoints.restore(point.id, **owner),
            sessions.checkpoints.fork(point.id, **owner),
            sessions.checkpoints.diff(point.id, point.id, **owner),
        ):
            with pytest.raises(CheckpointNotFoundError):
                await call
    with pytest.raises(CheckpointNotFoundError):
        await sessions.checkpoints.get("nothing")


async def test_a_diff_tells_what_changed(sessions: DurableSessionService) -> None:
    """Keys added, changed and removed, and the events between; backwards too."""
    first = await sessions.checkpoints.create(await begin(sessions), step="a")
    await on(sessions, *later())
    await sessions.state.delete(["locale"], **SESSION)
    second = await sessions.checkpoints.create(await found(sessions), step="b")
    diff = await sessions.checkpoints.diff(first.id, second.id)
    assert diff.added == {"new": "x" * 100}
    assert diff.changed == {
        "step": ("a", "b"),
        "draft": ({"履歷": [1]}, None),
        "none": (None, 1),
    }
    assert (diff.removed, diff.events) == ({"locale": "de"}, 3)
    back = await sessions.checkpoints.diff(second.id, first.id)
    assert (back.removed, back.events) == (diff.added, -3)
    other = await sessions.checkpoints.create(
        await sessions.create_session(**OWN, session_id="other"), step="a"
    )
    with pytest.raises(ConfigurationError):
        await sessions.checkpoints.diff(first.id, other.id)


# --- Integrity


@durable
@pytest.mark.parametrize("harm", ["changed", "missing", "swapped"])
async def test_a_log_that_was_tampered_with_is_refused(
    harm: str, backend: Backend, place: Place
) -> None:
    """The event is named, nothing is written, and `latest` walks back to the last good one."""
    async with backend.open(place) as sessions:
        assert isinstance(sessions, DurableSessionService)
        session = await begin(sessions)
        good = await sessions.checkpoints.create(session, step="a")
        for number in range(4):
            event = said(f"more {number}", invocation=f"m{number}", state={"n": number})
            await sessions.append_event(session, event)
        bad = await sessions.checkpoints.create(session, step="b")
        ids = [event.id for event in session.events]
        spoil(place.url, harm, ids[2], ids[3])
        with pytest.raises(CheckpointInconsistentError) as refusal:
            await sessions.checkpoints.restore(bad.id)
        assert (
            refusal.value.event_id == {"changed": ids[2], "missing": None, "swapped": ids[3]}[harm]
        )
        assert "Event 3 " in str(refusal.value)
        with pytest.raises(CheckpointInconsistentError):
            await sessions.checkpoints.fork(bad.id)
        assert await sessions.checkpoints.latest(**SESSION) == good
        assert await sessions.checkpoints.latest(**SESSION, consistent=False) == bad
        restored = await sessions.checkpoints.restore(good.id)
        assert restored.hidden in (3, 4)


def spoil(url: str, harm: str, third: str, fourth: str) -> None:
    """Changes, deletes or swaps stored events as somebody with the database could."""
    if harm == "changed":
        data = "replace(CAST(event_data AS TEXT), 'more 1', 'lies 1')"
        data = f"CAST({data} AS JSONB)" if url.startswith("postgresql") else data
        run(url, f"UPDATE events SET event_data = {data} WHERE id = '{third}'")  # noqa: S608
    elif harm == "missing":
        run(
            url,
            f"DELETE FROM memext_events WHERE event_id = '{third}'",  # noqa: S608
            f"DELETE FROM events WHERE id = '{third}'",  # noqa: S608
        )
    else:
        for one, other in ((third, "swap"), (fourth, third), ("swap", fourth)):
            run(url, f"UPDATE memext_events SET event_id = '{other}' WHERE event_id = '{one}'")  # noqa: S608


async def test_a_log_that_plain_adk_went_on_with_is_covered(tmp_path: Path) -> None:
    """Events that plain ADK wrote are in the digest of the next checkpoint."""
    url = f"sqlite+aiosqlite:///{tmp_path}/sessions.db"
    async with DurableSessionService.from_url(url) as sessions:
        first = await sessions.checkpoints.create(await begin(sessions), step="a")
    async with DatabaseSessionService(url) as plain:
        session = await plain.get_session(**SESSION)
        assert session is not None
        await plain.append_event(session, said("plain", invocation="p", state={"step": "p"}))
    async with DurableSessionService.from_url(url) as sessions:
        second = await sessions.checkpoints.create(await found(sessions), step="b")
        assert (second.sequence, second.digest) != (first.sequence, first.digest)
        await sessions.checkpoints.restore(first.id)
        await sessions.checkpoints.restore(second.id)
        assert own(await found(sessions))["step"] == "p"
        assert seen(await found(sessions)) == ["one", "plain"]


# --- Retention


async def test_pruned_checkpoints_leave_the_others_whole(sessions: DurableSessionService) -> None:
    """Over several snapshots: each that stays gives its state, and its log is still verified."""
    session = await begin(sessions)
    points: list[tuple[Checkpoint, dict[str, Any]]] = []
    for number in range(70):
        delta = {f"k{number % 7}": "v" * 60 + str(number), "n": number}
        await sessions.append_event(session, said("x", invocation=f"i{number}", state=delta))
        step = "rare" if number == 12 else "often"
        points.append((await sessions.checkpoints.create(session, step=step), own(session)))
    kept = CheckpointRetention(last=40)
    assert await sessions.checkpoints.prune(kept, **SESSION) == 29
    assert await sessions.checkpoints.prune(kept, **SESSION) == 0
    left = {point.id for point in await sessions.checkpoints.list(**SESSION)}
    assert left == {points[12][0].id, *(point.id for point, _state in points[30:])}
    for point, state in (points[12], points[31], points[69], points[40], points[12]):
        await sessions.checkpoints.restore(point.id)
        assert exactly(own(await found(sessions))) == exactly(state)
    await sessions.checkpoints.prune(CheckpointRetention(last_of_each_step=False), **SESSION)
    assert await sessions.checkpoints.latest(**SESSION) == points[69][0]
    assert await sessions.checkpoints.state(points[69][0].id) == points[69][1]


async def test_checkpoints_are_kept_for_their_age(sessions: DurableSessionService) -> None:
    """Those younger than a time stay, counted from a clock that is given."""
    session = await begin(sessions)
    points = []
    for number in range(3):
        await sessions.append_event(session, said("x", invocation=f"i{number}"))
        points.append(await sessions.checkpoints.create(session, step="a"))
    week = CheckpointRetention(last_of_each_step=False, younger_than=timedelta(days=7))
    now = points[-1].created_at
    assert await sessions.checkpoints.prune(week, **OWN, now=now + 3600) == 0
    assert await sessions.checkpoints.prune(week, **OWN, now=now + 8 * 86400) == 2
    assert await sessions.checkpoints.list(**OWN) == [points[-1]]
    with pytest.raises(ConfigurationError):
        await sessions.checkpoints.prune(CheckpointRetention(last=0), **OWN)


@pytest.mark.parametrize("backend", OURS[:1], ids=lambda row: row.name)
async def test_deleted_checkpoints_leave_nothing(backend: Backend, place: Place) -> None:
    """`delete` takes the values and the salt along."""
    async with backend.open(place) as sessions:
        assert isinstance(sessions, DurableSessionService)
        await sessions.checkpoints.create(await begin(sessions), step="a")
        await sessions.checkpoints.delete(**SESSION)
        assert await sessions.checkpoints.list(**SESSION) == []
        for table in ("lines", "values"):
            query = f"SELECT count(*) FROM memext_checkpoint_{table}"  # noqa: S608
            assert execute(place.url, query) == [(0,)]


# --- What is refused


async def test_a_service_without_a_place_for_checkpoints_says_so() -> None:
    """Over somebody else's service every call is refused by name."""
    sessions = DurableSessionService(InMemorySessionService())
    session = await sessions.create_session(**SESSION)
    with pytest.raises(CapabilityError, match="from_url"):
        await sessions.checkpoints.create(session, step="a")
    with pytest.raises(CapabilityError):
        await sessions.checkpoints.list(**OWN)


async def test_what_a_checkpoint_cannot_keep_is_refused(sessions: DurableSessionService) -> None:
    """A step without a name, references that are no JSON: nothing is written."""
    session = await begin(sessions)
    for step in ("", "x" * 300, "a\0b"):
        with pytest.raises(InvalidIdError):
            await sessions.checkpoints.create(session, step=step)
    with pytest.raises(StateRejectedError):
        await sessions.checkpoints.create(session, step="a", references={"x": float("nan")})
    with pytest.raises(StateRejectedError):
        await sessions.checkpoints.create(session, step="a", summary="\ud800")
    assert await sessions.checkpoints.list(**OWN) == []


async def restore_many(sessions: DurableSessionService, point: Checkpoint) -> list[Restored]:
    """Restores the same checkpoint several times at once."""
    return list(await asyncio.gather(*(sessions.checkpoints.restore(point.id) for _ in range(4))))


async def test_restores_at_once_do_it_once(sessions: DurableSessionService) -> None:
    """Of several callers one restores, and the others find it done."""
    point = await sessions.checkpoints.create(await begin(sessions), step="a")
    await on(sessions, *later())
    done = await restore_many(sessions, point)
    assert len([one for one in done if one.event_id is not None]) == 1
    assert seen(await found(sessions)) == ["one"]
