"""State that expires: hidden from every read, and removed for good on request."""

from __future__ import annotations

import itertools
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from sqlalchemy import update

from adk_memory_ext import DurableSessionService, Increment, Remove, StatePolicy, StateRule
from adk_memory_ext.errors import CapabilityError, ConfigurationError, StateRejectedError
from adk_memory_ext.schema import memext_state_times
from backends import BARE, OURS, OURS_MARIADB, Backend, Place
from conversation import said

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from google.adk.sessions.session import Session

    from adk_memory_ext.statements import Transaction

OWNER: Final[dict[str, Any]] = {"app_name": "app", "user_id": "ann"}
DAY: Final = timedelta(days=1)
POLICY: Final = StatePolicy(
    rules=[
        StateRule("draft", ttl=DAY),
        StateRule("user:locale", type=str, ttl=DAY, default="en"),
        StateRule("user:visits", ttl=DAY),
        StateRule("app:notice", ttl=DAY),
        StateRule("user:name"),
    ]
)
STATE: Final = {
    "draft": 1,
    "user:locale": "nl",
    "user:visits": 5,
    "app:notice": 2,
    "user:name": "Ann",
    "kept": 3,
}
LEFT: Final = {"user:locale": "en", "user:name": "Ann", "kept": 3}

over_ours = pytest.mark.parametrize(
    "backend", [*OURS, OURS_MARIADB], ids=lambda row: row.name, indirect=True
)
over_every_service = pytest.mark.parametrize(
    "backend", [*OURS, OURS_MARIADB, *BARE], ids=lambda row: row.name, indirect=True
)


@asynccontextmanager
async def opened(
    backend: Backend, place: Place, policy: StatePolicy = POLICY
) -> AsyncIterator[DurableSessionService]:
    """Yields a service with a policy; over a foreign one with a database beside it."""
    if backend.name.startswith("ours"):
        async with DurableSessionService.from_url(place.url, policy=policy) as service:
            yield service
        return
    async with (
        backend.open(place) as bare,
        DurableSessionService(bare, policy=policy, store="sqlite://") as service,
    ):
        yield service


async def age(service: DurableSessionService, by: timedelta) -> None:
    """Has the database believe that everything was written earlier."""

    def work(tx: Transaction) -> None:
        microseconds = by // timedelta(microseconds=1)
        times = memext_state_times.c.written_microseconds
        tx.connection.execute(
            update(memext_state_times).values(written_microseconds=times - microseconds)
        )

    assert service.database is not None
    await service.database.write(work)


async def times(service: DurableSessionService) -> int:
    """Returns for how many keys the time of the last write is noted."""
    assert service.database is not None
    query = "SELECT COUNT(*) FROM memext_state_times"
    return int(
        await service.database.read(lambda tx: tx.connection.exec_driver_sql(query).scalar_one())
    )


async def reloaded(service: DurableSessionService, session: Session) -> dict[str, Any]:
    """Returns the state as it is read."""
    found = await service.get_session(**OWNER, session_id=session.id)
    assert found is not None
    return dict(found.state)


@over_every_service
async def test_an_expired_value_is_in_no_read(backend: Backend, place: Place) -> None:
    """Not in the session, not in lists, not in the user's state, not in another session."""
    async with opened(backend, place) as service:
        session = await service.create_session(**OWNER, state=STATE)
        await age(service, DAY / 2)
        assert await reloaded(service, session) == STATE
        await age(service, DAY / 2)
        assert await reloaded(service, session) == LEFT
        assert await service.get_user_state(**OWNER) == {"locale": "en", "name": "Ann"}
        for listed in (await service.list_sessions(**OWNER)).sessions:
            assert not {"draft", "user:visits", "app:notice"} & listed.state.keys()
            assert listed.state.get("user:locale") == "en"
        other = await service.create_session(**OWNER)
        assert dict(other.state) == {"user:locale": "en", "user:name": "Ann"}


@over_every_service
async def test_each_write_begins_the_time_anew(backend: Backend, place: Place) -> None:
    """By an append as by a creation, and only for the keys that it writes."""
    async with opened(backend, place) as service:
        session = await service.create_session(**OWNER, state=STATE)
        await age(service, DAY / 2)
        await service.append_event(session, said("x", state={"draft": 9, "user:visits": 9}))
        await age(service, DAY / 2)
        assert await reloaded(service, session) == LEFT | {"draft": 9, "user:visits": 9}


@over_ours
async def test_pages_hide_what_has_expired(backend: Backend, place: Place) -> None:
    """Session-scope state on a page is that of `get_session`."""
    async with opened(backend, place) as service:
        await service.create_session(**OWNER, state=STATE)
        await age(service, DAY)
        (line,) = (await service.list_sessions_page("app", with_state=True)).sessions
        assert line.state == {"kept": 3}


@over_ours
async def test_a_change_does_not_build_on_what_has_expired(backend: Backend, place: Place) -> None:
    """`Increment` counts a value that is over as missing, with a turn and without one."""
    async with opened(backend, place) as service:
        session = await service.create_session(**OWNER, state=STATE)
        await age(service, DAY)
        await service.append_event(
            session, said("x", state={"user:visits": Increment(1), "draft": Increment(7)})
        )
        assert await reloaded(service, session) == LEFT | {"user:visits": 1, "draft": 7}
        await age(service, DAY)
        assert await service.state.update({"user:visits": Increment(3)}, **OWNER) == {
            "user:visits": 3
        }
        assert await service.state.update({"user:visits": Increment(3)}, **OWNER) == {
            "user:visits": 6
        }


@over_ours
async def test_what_has_expired_is_removed_for_good_in_batches(
    backend: Backend, place: Place
) -> None:
    """No value of it is in a state any more; in a session the removal is an event of its log."""
    async with opened(backend, place) as service:
        session = await service.create_session(**OWNER, state=STATE | {"draft": "draft-7c1f"})
        other = await service.create_session(**OWNER, state={"draft": 1})
        assert await service.state.remove_expired() == 0
        await age(service, DAY)
        await service.append_event(other, said("x", state={"draft": 2}))
        removed = [await service.state.remove_expired(limit=2) for _ in range(4)]
        assert removed == [2, 2, 0, 0]
        assert await times(service) == 1
        found = await service.get_session(**OWNER, session_id=session.id)
        assert found is not None
        assert [(event.custom_metadata or {}).get("memext_removed") for event in found.events] == [
            ["draft"]
        ]
        assert await reloaded(service, other) == {
            "draft": 2,
            "user:locale": "en",
            "user:name": "Ann",
        }
    async with DurableSessionService.from_url(place.url) as plain:
        if backend.durable:
            assert await plain.get_user_state(**OWNER) == {"name": "Ann"}


@over_ours
async def test_removal_and_deletion_leave_no_time_behind(backend: Backend, place: Place) -> None:
    """A removed key and a deleted session are forgotten here too."""
    async with opened(backend, place) as service:
        session = await service.create_session(**OWNER, state=STATE)
        assert await times(service) == 4
        await service.append_event(session, said("x", state={"user:visits": Remove()}))
        assert await times(service) == 3
        await service.delete_session(**OWNER, session_id=session.id)
        assert await times(service) == 2


async def test_a_refused_append_leaves_the_time_as_it_was(backend: Backend, place: Place) -> None:
    """The time is noted in the transaction of the write."""
    async with opened(backend, place) as service:
        session = await service.create_session(**OWNER, state=STATE)
        await age(service, DAY)
        with pytest.raises(StateRejectedError):
            await service.append_event(
                session, said("x", state={"user:visits": 1, "user:name": float("nan")})
            )
        assert await reloaded(service, session) == LEFT


@pytest.mark.parametrize(
    "backend", [row for row in OURS if row.durable], ids=lambda row: row.name, indirect=True
)
async def test_a_changed_ttl_counts_for_what_is_stored(backend: Backend, place: Place) -> None:
    """What is noted is when a value was written; how long it lives is asked at each read."""
    longer = StatePolicy(rules=[StateRule("draft", ttl=3 * DAY)])
    async with opened(backend, place) as service:
        session = await service.create_session(**OWNER, state={"draft": 1})
        await age(service, 2 * DAY)
        assert "draft" not in await reloaded(service, session)
    async with opened(backend, place, longer) as service:
        assert (await reloaded(service, session))["draft"] == 1


async def test_a_policy_without_a_ttl_costs_no_statement(place: Place) -> None:
    """Nothing is noted where nothing expires."""
    policy = StatePolicy(rules=[StateRule("draft")])
    async with DurableSessionService.from_url(place.url, policy=policy) as service:
        await service.create_session(**OWNER, state=STATE)
        assert await times(service) == 0
        assert await service.state.remove_expired() == 0


async def test_a_key_too_long_for_an_index_cannot_expire() -> None:
    """It is refused by the rule that would have it expire."""
    policy = StatePolicy(rules=[StateRule("draft_*", ttl=DAY)])
    async with DurableSessionService.from_url("", policy=policy) as service:
        with pytest.raises(StateRejectedError, match="longer than the 256 characters"):
            await service.create_session(**OWNER, state={"draft_" + "x" * 300: 1})


async def test_a_foreign_service_needs_a_place_for_the_times() -> None:
    """The error names the service and the option; removal is beyond what it can do."""
    with pytest.raises(ConfigurationError, match=r"InMemorySessionService has no place.*store="):
        DurableSessionService(InMemorySessionService(), policy=POLICY)
    async with DurableSessionService(
        InMemorySessionService(), policy=POLICY, store="sqlite://"
    ) as service:
        with pytest.raises(CapabilityError):
            await service.state.remove_expired()


async def test_keys_of_others_are_left_alone(backend: Backend, place: Place) -> None:
    """Expiry of one owner's key hides nobody else's of the same name."""
    async with opened(backend, place) as service:
        made = [
            await service.create_session(app_name=app, user_id=user, state={"draft": 1})
            for app, user in itertools.product(("app", "App", "a"), ("ann", "bob"))
        ]
        await age(service, DAY)
        await service.append_event(made[0], said("x", state={"draft": 2, "user:visits": 1}))
        for session in made:
            found = await service.get_session(
                app_name=session.app_name, user_id=session.user_id, session_id=session.id
            )
            assert found is not None
            assert found.state.get("draft") == (2 if session is made[0] else None)
            assert ("user:visits" in found.state) == (session is made[0])
