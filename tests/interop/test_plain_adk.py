"""Plain ADK and this package use one database, one after the other and in turn."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pytest
from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions.base_session_service import GetSessionConfig

from adk_memory_ext import Increment, Remove
from conversation import answered, called, exactly, said, texts
from interop.logs import assert_replays
from tables import contents, run

if TYPE_CHECKING:
    from collections.abc import Mapping

    from google.adk.sessions.database_session_service import DatabaseSessionService
    from google.adk.sessions.session import Session

    from adk_memory_ext.service import DurableSessionService

    Service: TypeAlias = DatabaseSessionService | DurableSessionService

OWNER: Final[dict[str, Any]] = {"app_name": "app", "user_id": "user"}
KEY: Final[dict[str, Any]] = OWNER | {"session_id": "session"}
pytestmark = pytest.mark.usefixtures("nothing_left")

NOON: Final = 1_900_000_000.0
MICROSECOND: Final = 0.000001
STATE: Final[dict[str, Any]] = {
    "app:name": "coach",
    "user:tags": ["a", {"b": None}],
    "step": 1,
    "texts": {"ü": "naïve 日本"},
}
CONFIGURATIONS: Final = (
    None,
    GetSessionConfig(num_recent_events=0),
    GetSessionConfig(num_recent_events=2),
    GetSessionConfig(after_timestamp=NOON + 1),
    GetSessionConfig(after_timestamp=NOON + 1, num_recent_events=1),
)


async def read(service: Service, config: GetSessionConfig | None = None, **key: Any) -> Session:
    """Returns the stored session, which must be there."""
    session = await service.get_session(**(KEY | key), config=config)
    assert session is not None
    return session


async def say(service: Service, text: str, **options: Any) -> Session:
    """Appends what is said to the session as it is now, and returns it."""
    session = await read(service)
    await service.append_event(session, said(text, **options))
    return session


def changed(delta: Mapping[str, Any], *, at: float | None = None) -> Event:
    """Returns an event without content, as ADK's PATCH of a session appends it."""
    event = Event(author="user", actions=EventActions(state_delta=dict(delta)))
    if at is not None:
        event.timestamp = at
    return event


async def converse(service: Service) -> None:
    """Leaves two sessions of one user and one of another, with events of every common kind."""
    session = await service.create_session(**KEY, state=STATE)
    for event in (
        said("hello", at=NOON, state={"step": 2, "temp:draft": "x", "user:seen": True}),
        called("find", {"query": "sql"}),
        answered("find", {"found": ["a", "b"]}, state={"found": ["a", "b"], "app:finds": 1}),
        changed({"step": None, "nested": {"deep": [1, 2.5, None]}}),
        said("goodbye", author="agent", invocation="invocation-2"),
    ):
        event.timestamp = NOON + len(session.events)
        await service.append_event(session, event)
    await service.create_session(**OWNER, session_id="empty")
    await service.create_session(app_name="app", user_id="other", session_id="session")


def shown(*sessions: Session) -> str:
    """Returns all that a caller sees of the sessions, 1 told from 1.0."""
    return exactly([session.model_dump(mode="json") for session in sessions])


async def assert_equal(ours: DurableSessionService, plain: DatabaseSessionService) -> None:
    """Fails unless both services say the same of everything that is stored."""
    for user in (None, "user", "other", "nobody"):
        listed = await ours.list_sessions(app_name="app", user_id=user)
        adks = await plain.list_sessions(app_name="app", user_id=user)
        assert shown(*listed.sessions) == shown(*adks.sessions)
    for session in (await plain.list_sessions(app_name="app")).sessions:
        key = {"app_name": "app", "user_id": session.user_id, "session_id": session.id}
        for config in CONFIGURATIONS:
            found, adks_own = [
                await service.get_session(**key, config=config) for service in (ours, plain)
            ]
            assert found is not None
            assert adks_own is not None
            assert shown(found) == shown(adks_own)
    for user in ("user", "other", "nobody"):
        assert await ours.get_user_state(
            app_name="app", user_id=user
        ) == await plain.get_user_state(app_name="app", user_id=user)


# --- One after the other


async def test_what_plain_adk_wrote_is_read_as_adk_reads_it(
    plain: DatabaseSessionService, ours: DurableSessionService
) -> None:
    """Sessions, windows, lists and state of a database of plain ADK are what plain ADK says."""
    await converse(plain)

    await assert_equal(ours, plain)
    assert_replays(await read(ours), STATE)


async def test_what_we_wrote_is_read_by_plain_adk(
    plain: DatabaseSessionService, ours: DurableSessionService
) -> None:
    """Sessions, windows, lists and state of our database are the same for plain ADK."""
    await converse(ours)

    await assert_equal(ours, plain)
    assert_replays(await read(plain), STATE)


async def test_changes_are_values_for_plain_adk(
    plain: DatabaseSessionService, ours: DurableSessionService
) -> None:
    """Plain ADK reads what a change came to, in the state and in the event."""
    await ours.create_session(**KEY, state={"visits": 1, "old": 1, "user:old": 1})
    await say(ours, "hello", state={"visits": Increment(2), "old": Remove(), "user:old": Remove()})

    session = await read(plain)
    assert session.state == {"visits": 3}
    assert session.events[0].actions.state_delta == {"visits": 3, "old": None, "user:old": None}
    await say(plain, "goodbye", state={"visits": 4})
    assert (await read(ours)).state == {"visits": 4}


async def test_state_of_all_scopes_is_one(
    plain: DatabaseSessionService, ours: DurableSessionService
) -> None:
    """What one writes in any scope the other reads, and neither takes back what it did not see."""
    await ours.create_session(**KEY, state={"app:0": 0, "user:0": 0, "0": 0})
    await plain.create_session(**OWNER, session_id="other", state={"app:1": 1, "user:1": 1, "1": 1})
    for number in range(2, 6):
        writer = (ours, plain)[number % 2]
        delta = {f"{scope}{number}": number for scope in ("app:", "user:", "")}
        await say(writer, str(number), state=delta)

    for service in (ours, plain):
        own = {str(number): number for number in (0, 2, 3, 4, 5)}
        shared = {f"{scope}{n}": n for scope in ("app:", "user:") for n in range(6)}
        assert (await read(service)).state == own | shared
        assert (await read(service, session_id="other")).state == {"1": 1} | shared


# --- Event by event


CLOCKS: Final = {
    "runs": [NOON + n for n in range(10)],
    "stands still": [NOON] * 10,
    "runs backwards": [NOON - n for n in range(10)],
    "is behind on the side of plain adk": [NOON + n - 100 * (n % 2) for n in range(10)],
    "is ahead on the side of plain adk": [NOON + n + 100 * (n % 2) for n in range(10)],
    "stands still and is behind on the side of plain adk": [
        NOON - 100 if n % 2 else NOON + n for n in range(10)
    ],
}


async def test_turn_by_turn_the_order_is_that_of_the_appends(
    plain: DatabaseSessionService, ours: DurableSessionService
) -> None:
    """Whoever appends, after a reload each, we read in the order of the appends, log and state."""
    words = [str(number) for number in range(10)]
    for (clock, times), first in product(CLOCKS.items(), (0, 1)):
        key: dict[str, Any] = {"session_id": f"{clock} {first}"}
        await (plain, ours)[first].create_session(**OWNER, **key, state={"last": "none"})
        for number, word in enumerate(words):
            service = (plain, ours)[(number + first) % 2]
            event = said(word, at=times[number], state={"last": word, word: number})
            await service.append_event(await read(service, **key), event)

        session = await read(ours, **key)
        assert texts(session.events) == words, key
        assert_replays(session, {"last": "none"})
        tail = await read(ours, GetSessionConfig(num_recent_events=3), **key)
        assert texts(tail.events) == words[-3:], key
        assert texts((await read(ours, **key)).events) == words, key


async def test_every_event_of_plain_adk_is_noticed(
    plain: DatabaseSessionService, ours: DurableSessionService
) -> None:
    """Events of plain ADK that are older than ours, and of one time, are seen as they come."""
    await ours.create_session(**KEY)
    await say(ours, "ours", at=NOON)
    said_so_far = ["ours"]
    for number in range(4):
        await say(plain, str(number), at=NOON - 100)
        said_so_far.append(str(number))
        assert texts((await read(ours)).events) == said_so_far


async def test_an_event_of_the_same_microsecond_is_noticed(
    plain: DatabaseSessionService, ours: DurableSessionService
) -> None:
    """An event of plain ADK with the time of our last one is an event like any other."""
    await ours.create_session(**KEY)
    await say(ours, "ours", at=NOON)
    copy = await read(ours)
    await say(plain, "theirs", at=NOON)

    with pytest.raises(StaleSessionError):
        await ours.append_event(copy, said("stale"))
    assert texts((await read(ours)).events) == ["ours", "theirs"]
    await say(ours, "ours again", at=NOON)
    assert texts((await read(ours)).events) == ["ours", "theirs", "ours again"]
    assert texts((await read(plain)).events)[-1] == "ours again"


async def test_unseen_events_keep_the_order_that_plain_adk_reads(
    plain: DatabaseSessionService, ours: DurableSessionService
) -> None:
    """Several events of plain ADK at once are taken in as plain ADK reads them, and stay so."""
    await ours.create_session(**KEY)
    await say(ours, "ours", at=NOON)
    for number in range(6):
        await say(plain, str(number), at=NOON + 1 + number // 3)
    in_adks_order = texts((await read(plain)).events)

    await say(ours, "ours again", at=NOON)

    assert texts((await read(ours)).events) == [*in_adks_order, "ours again"]
    assert texts((await read(plain)).events) == [*in_adks_order, "ours again"]


async def test_a_list_takes_no_event_away(
    plain: DatabaseSessionService, ours: DurableSessionService
) -> None:
    """A page of sessions shows what plain ADK did, and the session still shows its events."""
    await ours.create_session(**KEY)
    await say(ours, "ours", at=NOON)
    await say(plain, "theirs", at=NOON - 100)

    page = await ours.list_sessions_page("app")

    assert [one.last_update_time for one in page.sessions] == [NOON - 100]
    assert texts((await read(ours)).events) == ["ours", "theirs"]


# --- Loaded copies


async def test_our_stale_copy_is_refused(
    plain: DatabaseSessionService, ours: DurableSessionService
) -> None:
    """An append to a copy that has not seen plain ADK's event is refused and leaves nothing."""
    await ours.create_session(**KEY)
    copy = await say(ours, "ours")
    await say(plain, "theirs", state={"key": "theirs"})
    before = copy.model_copy(deep=True)
    stale = said("stale", state={"key": "stale", "user:key": "stale"})

    with pytest.raises(StaleSessionError):
        await ours.append_event(copy, stale)

    assert copy == before
    session = await read(plain)
    assert texts(session.events) == ["ours", "theirs"]
    assert session.state == {"key": "theirs"}


async def test_a_patch_by_plain_adk_makes_nobody_stale(
    plain: DatabaseSessionService, ours: DurableSessionService
) -> None:
    """State that plain ADK's PATCH changed is kept beside a turn that was under way."""
    await ours.create_session(**KEY)
    copy = await say(ours, "question")
    await plain.append_event(await read(plain), changed({"patched": 1}))

    await ours.append_event(copy, said("answer", state={"answered": 1}))

    session = await read(ours)
    assert texts(session.events) == ["question", "", "answer"]
    assert session.state == {"patched": 1, "answered": 1}
    assert_replays(session, {})


async def test_plain_adks_stale_copy_is_refused_by_plain_adk(
    plain: DatabaseSessionService, ours: DurableSessionService
) -> None:
    """Our append moves the mark by which plain ADK tells that its copy is stale."""
    await plain.create_session(**KEY)
    copy = await read(plain)
    await say(ours, "ours")

    with pytest.raises(StaleSessionError):
        await plain.append_event(copy, said("stale"))
    assert texts((await read(ours)).events) == ["ours"]


async def test_a_copy_may_pass_from_service_to_service(
    plain: DatabaseSessionService, ours: DurableSessionService
) -> None:
    """A copy loaded by one can be appended through the other, or is refused as stale."""
    theirs = await plain.create_session(**KEY)
    await ours.append_event(theirs, said("through ours"))
    mine = await read(ours)
    await plain.append_event(mine, said("through plain adk"))
    assert texts(mine.events) == ["through ours", "through plain adk"]

    for copy, service in ((theirs, plain), (mine, ours)):
        with pytest.raises(StaleSessionError):
            await service.append_event(copy, said("once more"))
    assert texts((await read(ours)).events) == ["through ours", "through plain adk"]


# --- Creating and deleting


async def test_both_create_and_delete(
    plain: DatabaseSessionService, ours: DurableSessionService
) -> None:
    """Each refuses an id that the other has given away, and deletes what the other created."""
    for creator, deleter in ((plain, ours), (ours, plain)):
        await creator.create_session(**KEY, state={"user:kept": 1, "gone": 1})
        with pytest.raises(AlreadyExistsError):
            await deleter.create_session(**KEY)
        await say(creator, "hello")
        await deleter.delete_session(**KEY)
        for service in (plain, ours):
            assert await service.get_session(**KEY) is None
            assert (await service.list_sessions(**OWNER)).sessions == []
            assert await service.get_user_state(**OWNER) == {"kept": 1}
        assert (await ours.list_sessions_page("app")).sessions == ()


@pytest.mark.parametrize("deleter", [0, 1], ids=["plain deletes", "ours deletes"])
@pytest.mark.parametrize("creator", [0, 1], ids=["plain creates", "ours creates"])
async def test_a_session_created_again_is_another_one(
    plain: DatabaseSessionService,
    ours: DurableSessionService,
    url: str,
    deleter: int,
    creator: int,
) -> None:
    """Nothing of a deleted session is left in a later one, and older copies are refused."""
    services = (plain, ours)
    await ours.create_session(**KEY, state={"old": True})
    await say(ours, "old question")
    copy = await say(ours, "old answer")
    await ours.set_session_title(**KEY, title="old title")
    await services[deleter].delete_session(**KEY)
    await services[creator].create_session(**KEY, state={"new": True})

    for event in (said("stale"), changed({"stale": True})):
        with pytest.raises(StaleSessionError):
            await ours.append_event(copy, event)

    session = await read(ours)
    assert (texts(session.events), session.state) == ([], {"new": True})
    await ours.append_event(session, said("new question"))
    assert texts((await read(plain)).events) == ["new question"]
    (summary,) = (await ours.list_sessions_page("app")).sessions
    assert summary.title is None
    assert len(contents(url)["memext_events"]) == len(contents(url)["events"]) == 1
    assert len(contents(url)["memext_sessions"]) == 1


async def test_a_session_that_plain_adk_deleted_is_gone(
    plain: DatabaseSessionService, ours: DurableSessionService
) -> None:
    """A copy of it cannot be appended to, titled or changed, and appears in no list."""
    await ours.create_session(**KEY)
    copy = await say(ours, "hello")
    await plain.delete_session(**KEY)

    for attempt in (
        ours.append_event(copy, said("late")),
        ours.append_event(copy, changed({"late": True})),
        ours.set_session_title(**KEY, title="late"),
        ours.state.update({"late": True}, **KEY),
    ):
        with pytest.raises(SessionNotFoundError):
            await attempt
    assert await ours.get_session(**KEY) is None
    assert (await ours.list_sessions_page("app")).sessions == ()
    assert texts(copy.events) == ["hello"]


async def test_missing_state_rows_are_empty_state(
    plain: DatabaseSessionService, ours: DurableSessionService, url: str
) -> None:
    """A row of state that somebody deleted counts as empty, and plain ADK can append again."""
    await plain.create_session(**KEY, state={"app:a": 1, "user:u": 1, "s": 1})
    run(url, "DELETE FROM user_states", "DELETE FROM app_states")

    assert (await read(ours)).state == {"s": 1}
    await say(ours, "hello", state={"user:v": 2, "app:b": 2})

    assert (await say(plain, "again")).state == {"s": 1, "user:v": 2, "app:b": 2}


async def test_titles_and_pages_know_what_plain_adk_wrote(
    plain: DatabaseSessionService, ours: DurableSessionService
) -> None:
    """Sessions of plain ADK stand in pages in the order of their last update, with titles."""
    for number in range(5):
        session = await plain.create_session(**OWNER, session_id=str(number))
        await plain.append_event(session, said("hello", at=NOON + number * (-1) ** number))
    await ours.set_session_title(**OWNER, session_id="3", title="three")

    first = await ours.list_sessions_page("app", limit=3)
    rest = await ours.list_sessions_page("app", limit=3, after=first.next)

    listed = (await plain.list_sessions(**OWNER)).sessions
    paged = [*first.sessions, *rest.sessions]
    assert [one.session_id for one in paged] == [one.id for one in reversed(listed)]
    assert [one.last_update_time for one in paged] == [one.last_update_time for one in listed[::-1]]
    assert {one.session_id: one.title for one in paged if one.title} == {"3": "three"}
