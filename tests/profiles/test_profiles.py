"""Profiles on every backend: what wins, what is recalled, what is left of what was forgotten."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import pytest
from google.adk.sessions.in_memory_session_service import InMemorySessionService

from adk_memory_ext import (
    CapabilityError,
    ConfigurationError,
    DurableSessionService,
    FactRejectedError,
    NewFact,
    ProfileLimits,
    Provenance,
    RevisionConflictError,
    StoreError,
    StoreUnavailableError,
)
from adk_memory_ext.schema import memext_profile_facts
from backends import OURS, OURS_MARIADB, count
from conversation import said
from profiles.facts_of import OWNER, START, inferred, stated, values
from rivals import in_processes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from google.adk.events.event import Event

    from backends import Backend, Place

PROCESSES: Final = 8


# --- Saving


async def test_a_saved_fact_is_recalled_with_all_that_is_known_of_it(
    sessions: DurableSessionService,
) -> None:
    """Value, kind, status, confidence, visibility, provenance and times come back as given."""
    source = Provenance(session_id="s", invocation_id="i", event_id="e", author="coach")
    value = {"hours": 6, "days": ["mon", "tue"], "Größe": 1.5, "ok": True}
    new = NewFact(
        key="weekly-hours",
        value=value,
        kind="constraint",
        confidence=0.9,
        sensitivity="sensitive",
        visible_to=("coach",),
        provenance=source,
        observed_at=START,
        expires_at=START + 1e9,
    )
    saved = await sessions.profiles.save(new, **OWNER)
    (fact,) = (await sessions.profiles.recall(**OWNER)).facts
    assert saved.outcome == "created"
    assert fact == saved.fact
    assert repr(fact.value) == repr(value)
    assert (fact.kind, fact.status, fact.confidence) == ("constraint", "stated", 0.9)
    assert (fact.provenance, fact.visible_to) == (source, ("coach",))
    assert (fact.observed_at, fact.expires_at) == (START, START + 1e9)
    assert fact.created_at == pytest.approx(time.time(), abs=3600)


async def test_an_equal_value_only_confirms(sessions: DurableSessionService) -> None:
    """The fact keeps its revision and its times; `last_confirmed` alone moves."""
    first = await sessions.profiles.save(stated("dietary", "vegetarian"), **OWNER)
    again = await sessions.profiles.save(stated("dietary", "vegetarian", at=60), **OWNER)
    assert again.outcome == "confirmed"
    assert again.fact.revision == first.fact.revision
    assert again.fact.observed_at == START
    assert again.fact.last_confirmed == START + 60
    assert len(await sessions.profiles.history("dietary", **OWNER)) == 1
    (recalled,) = (await sessions.profiles.recall(**OWNER)).facts
    assert recalled == again.fact


async def test_an_inferred_value_never_replaces_a_stated_one(
    sessions: DurableSessionService,
) -> None:
    """What the user said stays, however sure and however new the conclusion is."""
    await sessions.profiles.save(stated("dietary", "vegetarian"), **OWNER)
    outcome = await sessions.profiles.save(inferred("dietary", "meat", at=9), **OWNER)
    assert (outcome.outcome, outcome.fact.value) == ("kept_stated", "vegetarian")
    assert values(await sessions.profiles.recall(**OWNER)) == {"dietary": "vegetarian"}


async def test_a_late_arrival_never_replaces_what_was_observed_later(
    sessions: DurableSessionService,
) -> None:
    """The answer says `kept_newer`, and nothing changes."""
    await sessions.profiles.save(stated("style", "short", at=60), **OWNER)
    late = await sessions.profiles.save(stated("style", "long", at=59), **OWNER)
    assert (late.outcome, late.fact.value) == ("kept_newer", "short")
    assert len(await sessions.profiles.history("style", **OWNER)) == 1


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_contradicting_conclusions_stay_side_by_side(
    sessions: DurableSessionService, order: tuple[int, int]
) -> None:
    """Two inferred values are recalled as a conflict, the same one whichever came first."""
    claims = [inferred("city", "Lisbon", at=1), inferred("city", "Porto", at=2)]
    outcomes = [(await sessions.profiles.save(claims[index], **OWNER)).outcome for index in order]
    (fact,) = (await sessions.profiles.recall(**OWNER)).facts
    assert outcomes == ["created", "conflict"]
    assert fact.is_conflict
    assert [claim.value for claim in fact.claims] == ["Porto", "Lisbon"]
    settled = await sessions.profiles.save(stated("city", "Lisbon", at=3), **OWNER)
    assert (settled.outcome, settled.fact.is_conflict) == ("updated", False)


@pytest.mark.parametrize("value", [1, True, 1.0, "1", [1]])
async def test_values_of_another_type_are_other_values(
    sessions: DurableSessionService, value: Any
) -> None:
    """1, 1.0, true, "1" and [1] are five values."""
    await sessions.profiles.save(stated("number", 0), **OWNER)
    for one in (1, True, 1.0, "1", [1]):
        if repr(one) != repr(value):
            await sessions.profiles.save(stated("number", one, at=1), **OWNER)
    saved = await sessions.profiles.save(stated("number", value, at=1), **OWNER)
    (fact,) = (await sessions.profiles.recall(**OWNER)).facts
    assert saved.outcome == "updated"
    assert repr(fact.value) == repr(value)


async def test_a_writer_who_has_not_seen_the_revision_is_refused(
    sessions: DurableSessionService,
) -> None:
    """With an expected revision a save is refused when another one came first."""
    first = await sessions.profiles.save(stated("a", 1), **OWNER, expected_revision=0)
    await sessions.profiles.save(stated("a", 2), **OWNER, expected_revision=first.fact.revision)
    with pytest.raises(RevisionConflictError) as refusal:
        await sessions.profiles.save(stated("a", 3), **OWNER, expected_revision=first.fact.revision)
    assert refusal.value.expected == first.fact.revision
    assert refusal.value.actual > first.fact.revision
    assert values(await sessions.profiles.recall(**OWNER)) == {"a": 2}


async def test_a_correction_removes_what_was_derived(sessions: DurableSessionService) -> None:
    """What followed from the old value goes with it, also through another fact."""
    await sessions.profiles.save(stated("dietary", "vegetarian"), **OWNER)
    await sessions.profiles.save(inferred("menu", "tofu", derived_from=("dietary",)), **OWNER)
    await sessions.profiles.save(inferred("shop", "green", derived_from=("menu",)), **OWNER)
    await sessions.profiles.save(stated("other", 1), **OWNER)
    saved = await sessions.profiles.save(stated("dietary", "vegan", at=1), **OWNER)
    assert saved.removed == ("menu", "shop")
    assert values(await sessions.profiles.recall(**OWNER)) == {"dietary": "vegan", "other": 1}


# --- Recalling


async def test_recall_bounds_the_most_certain_and_newest_first(
    sessions: DurableSessionService,
) -> None:
    """The order is stated, certain, new; what a budget has no room for is named."""
    await sessions.profiles.save(inferred("guess", 1, confidence=0.5, at=9), **OWNER)
    await sessions.profiles.save(inferred("surer", 1, confidence=0.8), **OWNER)
    await sessions.profiles.save(stated("old", 1), **OWNER)
    await sessions.profiles.save(stated("new", 1, at=5), **OWNER)
    whole = await sessions.profiles.recall(**OWNER)
    bounded = await sessions.profiles.recall(**OWNER, budget_tokens=60)
    assert list(values(whole)) == ["new", "old", "surer", "guess"]
    assert list(values(bounded)) == ["new", "old"]
    assert bounded.left_out == ("surer", "guess")
    assert not bounded.partial


async def test_recall_filters_by_key_kind_subject_agent_and_sensitivity(
    sessions: DurableSessionService,
) -> None:
    """Only what was asked for comes, and nothing names what an agent may not see."""
    await sessions.profiles.save(stated("a", 1, kind="preference"), **OWNER)
    await sessions.profiles.save(stated("a", 2, subject="ann"), **OWNER)
    await sessions.profiles.save(stated("b", 3, visible_to=("doctor",)), **OWNER)
    await sessions.profiles.save(stated("c", 4, sensitivity="sensitive"), **OWNER)

    async def found(**filters: Any) -> set[Any]:
        recalled = await sessions.profiles.recall(**OWNER, **filters)
        assert recalled.left_out == ()
        return {fact.value for fact in recalled.facts}

    assert await found() == {1, 2, 3, 4}
    assert await found(keys=["a"]) == {1, 2}
    assert await found(kinds=["preference"]) == {1}
    assert await found(subject="ann") == {2}
    assert await found(agent="coach") == {1, 2, 4}
    assert await found(agent="doctor", include_sensitive=False) == {1, 2, 3}


async def test_an_expired_fact_is_not_recalled(sessions: DurableSessionService) -> None:
    """From `expires_at` on a fact is gone from recall, and the same value can be saved anew."""
    await sessions.profiles.save(stated("trip", "Rome", expires_at=START + 10), **OWNER)
    assert values(await sessions.profiles.recall(**OWNER)) == {}
    again = await sessions.profiles.save(stated("trip", "Rome", at=20), **OWNER)
    assert again.outcome == "updated"
    assert values(await sessions.profiles.recall(**OWNER)) == {"trip": "Rome"}


async def test_as_of_answers_from_history(sessions: DurableSessionService) -> None:
    """A recall as of an earlier time gives what a recall at that time gave."""
    first = await sessions.profiles.save(stated("goal", 5000), **OWNER)
    second = await sessions.profiles.save(stated("goal", 3000, at=1), **OWNER)
    assert second.fact.supersedes == first.fact.revision
    for moment, expected in (
        (first.fact.created_at - 1, {}),
        (first.fact.created_at, {"goal": 5000}),
        (second.fact.created_at, {"goal": 3000}),
    ):
        assert values(await sessions.profiles.recall(as_of=moment, **OWNER)) == expected
    history = await sessions.profiles.history("goal", **OWNER)
    assert [fact.value for fact in history] == [5000, 3000]


async def test_as_of_tells_what_held_then(sessions: DurableSessionService) -> None:
    """Before everything nothing was known; what expired or was removed since held until then."""
    soon = round(time.time() + 3600, 3)
    await sessions.profiles.save(stated("trip", "Rome", expires_at=soon), **OWNER)
    await sessions.profiles.save(stated("dietary", "vegetarian"), **OWNER)
    menu = await sessions.profiles.save(
        inferred("menu", "tofu", derived_from=("dietary",)), **OWNER
    )
    corrected = await sessions.profiles.save(stated("dietary", "vegan", at=1), **OWNER)
    assert corrected.removed == ("menu",)

    async def known(moment: datetime | float) -> dict[str, Any]:
        return values(await sessions.profiles.recall(as_of=moment, **OWNER))

    assert await known(0) == await known(datetime(1, 1, 1, tzinfo=UTC)) == {}
    before = {"trip": "Rome", "dietary": "vegetarian", "menu": "tofu"}
    assert await known(menu.fact.created_at) == before
    assert await known(datetime.fromtimestamp(soon - 1, UTC)) == {
        "trip": "Rome",
        "dietary": "vegan",
    }
    assert await known(soon) == {"dietary": "vegan"}


async def test_the_database_holds_one_current_value_a_key(sessions: DurableSessionService) -> None:
    """A second one is refused by its own key, whoever writes it; history is no second one."""
    for at in range(3):
        await sessions.profiles.save(stated("a", at, at=at), **OWNER)
    database = sessions.database
    assert database is not None
    columns = [column.name for column in memext_profile_facts.c if column.name != "claims"]
    copy = f"INSERT INTO memext_profile_facts (claims, {', '.join(columns)}) SELECT '[]', "
    rows = f"{', '.join(columns)} FROM memext_profile_facts WHERE retired_revision = 0"
    with pytest.raises(StoreError):
        await database.write(lambda tx: tx.connection.exec_driver_sql(copy + rows).rowcount)
    assert values(await sessions.profiles.recall(**OWNER)) == {"a": 2}


async def test_what_a_caller_does_to_a_value_stays_with_the_caller(
    sessions: DurableSessionService,
) -> None:
    """A recalled list can be changed without changing the next recall."""
    await sessions.profiles.save(stated("days", ["mon"]), **OWNER)
    (await sessions.profiles.recall(**OWNER)).facts[0].value.append("tue")
    assert values(await sessions.profiles.recall(**OWNER)) == {"days": ["mon"]}


async def test_another_instance_sees_each_change_at_once(backend: Backend, place: Place) -> None:
    """What is cached is used only while the database holds nothing newer."""
    if not backend.durable:
        pytest.skip("an instance in memory is alone")
    async with backend.open(place) as one, backend.open(place) as other:
        assert isinstance(one, DurableSessionService)
        assert isinstance(other, DurableSessionService)
        assert values(await other.profiles.recall(**OWNER)) == {}
        for value in (1, 2):
            await one.profiles.save(stated("a", value, at=value), **OWNER)
            assert values(await other.profiles.recall(**OWNER)) == {"a": value}
        await one.profiles.forget("a", **OWNER)
        assert values(await other.profiles.recall(**OWNER)) == {}
        await one.profiles.save(stated("a", 3), **OWNER)
        assert values(await other.profiles.recall(**OWNER)) == {"a": 3}
        await one.profiles.delete_user(**OWNER)
        await one.profiles.save(stated("a", 4), **OWNER)
        assert values(await other.profiles.recall(**OWNER)) == {"a": 4}


# --- Forgetting


async def test_a_forgotten_fact_leaves_no_row(
    sessions: DurableSessionService, backend: Backend, place: Place
) -> None:
    """The value, its earlier values and what was derived from them are gone from the tables."""
    await sessions.profiles.save(stated("dietary", "PESCETARIAN-1"), **OWNER)
    await sessions.profiles.save(inferred("menu", "SALMON-1", derived_from=("dietary",)), **OWNER)
    await sessions.profiles.save(stated("dietary", "VEGETARIAN-1", at=1), **OWNER)
    await sessions.profiles.save(stated("other", "KEPT-1"), **OWNER)
    assert await sessions.profiles.forget("dietary", **OWNER) == ("dietary", "menu")
    assert await sessions.profiles.forget("dietary", **OWNER) == ()
    assert await sessions.profiles.history("dietary", **OWNER) == ()
    assert values(await sessions.profiles.recall(as_of=time.time() + 1, **OWNER)) == {
        "other": "KEPT-1"
    }
    if backend.storage == "postgresql":  # live rows only
        stored = backend.stored_bytes(place)
        assert b"KEPT-1" in stored
        assert not any(word in stored for word in (b"PESCETARIAN-1", b"SALMON-1"))


async def test_forget_all_and_delete_user_leave_other_users_alone(
    sessions: DurableSessionService,
) -> None:
    """Both take one user's facts in one app, with history; the second the user's row as well."""
    other = OWNER | {"user_id": "other"}
    for owner in (OWNER, other):
        await sessions.profiles.save(stated("a", 1), **owner)
        await sessions.profiles.save(stated("a", 2, at=1), **owner)
    assert await sessions.profiles.forget_all(**OWNER) == ("a",)
    await sessions.profiles.save(stated("b", 1), **OWNER)
    assert await sessions.profiles.delete_user(**OWNER) == 1
    assert await sessions.profiles.history("b", **OWNER) == ()
    assert values(await sessions.profiles.recall(**other)) == {"a": 2}


async def test_an_erased_session_leaves_what_the_user_asked_to_save(
    sessions: DurableSessionService,
) -> None:
    """Stated facts stay with their provenance cut; conclusions from that session alone go."""
    from_a = Provenance(session_id="a", event_id="e")
    await sessions.profiles.save(stated("old", 0, provenance=from_a), **OWNER)
    await sessions.profiles.save(stated("old", 1, at=1, provenance=from_a), **OWNER)
    await sessions.profiles.save(inferred("alone", 1, session="a"), **OWNER)
    await sessions.profiles.save(inferred("both", 1, session="a"), **OWNER)
    await sessions.profiles.save(inferred("both", 1, session="b"), **OWNER)
    await sessions.profiles.save(inferred("after", 1, derived_from=("alone",)), **OWNER)
    gone = await sessions.profiles.cut_session(**OWNER, session_id="a")
    assert gone == ("after", "alone")
    recalled = await sessions.profiles.recall(**OWNER)
    assert values(recalled) == {"old": 1, "both": 1}
    sources = {fact.key: fact.provenance for fact in recalled.facts}
    assert sources == {"old": None, "both": Provenance(session_id="b")}
    history = await sessions.profiles.history("old", **OWNER)
    assert [(fact.value, fact.provenance) for fact in history] == [(0, None), (1, None)]


async def test_an_erased_session_takes_its_facts_along_on_request(
    sessions: DurableSessionService,
) -> None:
    """With `facts="remove"` nothing stays that only that session supports, history included."""
    from_a = Provenance(session_id="a")
    await sessions.profiles.save(stated("said", 0, provenance=from_a), **OWNER)
    await sessions.profiles.save(stated("said", 1, at=1, provenance=from_a), **OWNER)
    await sessions.profiles.save(stated("elsewhere", 1), **OWNER)
    gone = await sessions.profiles.cut_session(**OWNER, session_id="a", facts="remove")
    assert gone == ("said",)
    assert await sessions.profiles.history("said", **OWNER) == ()
    assert values(await sessions.profiles.recall(**OWNER)) == {"elsewhere": 1}


# --- What follows from the log


def cities(events: Sequence[Event]) -> list[NewFact]:
    """Finds the city that was last named."""
    words = [
        part.text for event in events for part in (event.content and event.content.parts) or []
    ]
    named = [word for word in words if word in ("Lisbon", "Porto")]
    return [NewFact(key="city", value=named[-1], kind="insight", confidence=0.6)] if named else []


async def test_rebuild_gives_the_same_facts(sessions: DurableSessionService) -> None:
    """A lost or wrong projection is made again from the log; a second time nothing is written."""
    session = await sessions.create_session(**OWNER, session_id="s")
    await sessions.append_event(session, said("Lisbon"))
    await sessions.append_event(session, said("Porto"))
    sessions.profiles.register_extractor("cities", cities)
    await sessions.profiles.save(stated("said", 1), **OWNER)

    async def rebuilt() -> dict[str, Any]:
        await sessions.profiles.rebuild(**OWNER, session_id="s")
        return values(await sessions.profiles.recall(**OWNER))

    assert await rebuilt() == {"said": 1, "city": "Porto"}
    (before,) = (await sessions.profiles.recall(["city"], **OWNER)).facts
    assert await rebuilt() == {"said": 1, "city": "Porto"}
    assert (await sessions.profiles.recall(["city"], **OWNER)).facts == (before,)
    await sessions.profiles.forget("city", **OWNER)
    assert await rebuilt() == {"said": 1, "city": "Porto"}
    await sessions.append_event(session, said("Lisbon"))
    assert await rebuilt() == {"said": 1, "city": "Lisbon"}
    (fact,) = (await sessions.profiles.recall(["city"], **OWNER)).facts
    assert (fact.status, fact.is_conflict) == ("inferred", False)
    with pytest.raises(ConfigurationError, match="'cities' already"):
        sessions.profiles.register_extractor("cities", cities)


# --- Limits


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"key": "Two Words"}, "no slug"),
        ({"key": ""}, "no slug"),
        ({"key": "a" * 65}, "no slug"),
        ({"key": "k\ud800"}, "no slug"),
        ({"key": "user_id"}, "reserved"),
        ({"key": "house"}, "reserved"),
        ({"key": "bank-password"}, "secret"),
        ({"value": "x" * 201}, "a text of 201 characters"),
        ({"value": ["x" * 150] * 20}, "bytes of JSON"),
        ({"value": float("nan")}, "is nan"),
        ({"value": "a\0b"}, "NUL"),
        ({"value": None}, "has no value"),
        ({"confidence": 1.5}, "from 0 to 1"),
        ({"kind": "diary"}, "unknown kind"),
        ({"status": "guessed"}, "unknown status"),
        ({"observed_at": time.time() + 86_400}, "in the future"),
        ({"expires_at": START - 1, "observed_at": START}, "expires before"),
        ({"derived_from": ("key",)}, "derived from itself"),
        ({"subject": "Ann!"}, "subject that is no slug"),
    ],
)
async def test_what_cannot_be_kept_is_refused(fields: dict[str, Any], reason: str) -> None:
    """The error names the key and the reason, not the value, and nothing is written."""
    limits = ProfileLimits(reserved_keys=frozenset({"house"}))
    async with DurableSessionService.from_url(profile_limits=limits) as sessions:
        with pytest.raises(FactRejectedError, match=reason) as refusal:
            await sessions.profiles.save(NewFact(**{"key": "key", "value": "v"} | fields), **OWNER)
        assert "x" * 100 not in str(refusal.value)
        assert (await sessions.profiles.recall(**OWNER)).facts == ()


async def test_a_profile_holds_a_hundred_facts(sessions: DurableSessionService) -> None:
    """That is the limit unless the app sets another one."""
    for number in range(100):
        await sessions.profiles.save(stated(f"k{number}", number), **OWNER)
    with pytest.raises(FactRejectedError, match="holds 100 facts"):
        await sessions.profiles.save(stated("one-more", 1), **OWNER)
    assert len((await sessions.profiles.recall(**OWNER, budget_tokens=None)).facts) == 100


async def test_a_full_profile_takes_no_new_key() -> None:
    """Known keys can still be corrected, and a forgotten one makes room."""
    async with DurableSessionService.from_url(
        profile_limits=ProfileLimits(keys_per_user=2)
    ) as sessions:
        await sessions.profiles.save(stated("a", 1), **OWNER)
        await sessions.profiles.save(stated("b", 1), **OWNER)
        with pytest.raises(FactRejectedError, match="holds 2 facts"):
            await sessions.profiles.save(stated("c", 1), **OWNER)
        await sessions.profiles.save(stated("a", 2), **OWNER)
        await sessions.profiles.forget("b", **OWNER)
        await sessions.profiles.save(stated("c", 1), **OWNER)
        assert values(await sessions.profiles.recall(**OWNER)) == {"a": 2, "c": 1}


@pytest.mark.parametrize("name", ["keys_per_user", "value_bytes", "text_characters"])
async def test_a_limit_without_meaning_is_refused(name: str) -> None:
    """A limit is a whole number from 1 on."""
    fields: dict[str, Any] = {name: 0}
    limits = ProfileLimits(**fields)
    with pytest.raises(ConfigurationError, match=name):
        DurableSessionService.from_url(profile_limits=limits)


# --- Isolation, processes, failures

HOSTILE: Final = ("user", "USER", "user ", "üser", "user'; --", "%", "_", "用户", "user:1", "a/b")


@pytest.mark.parametrize("row", [*OURS, OURS_MARIADB], ids=lambda row: row.name)
async def test_users_and_apps_never_meet(
    row: Backend, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Whatever characters an id holds, nobody else's facts are recalled, changed or forgotten."""
    url = ""
    if row.storage == "sqlite":
        url = f"sqlite:///{tmp_path}/sessions.db"
    elif row.storage != "memory":
        url = request.getfixturevalue(f"{row.storage}_url")
    owners: list[dict[str, Any]] = [
        {"app_name": app, "user_id": user} for app in ("app", "App") for user in HOSTILE
    ]
    async with DurableSessionService.from_url(url) as sessions:
        for number, owner in enumerate(owners):
            await sessions.profiles.save(stated("a", number), **owner)
        await sessions.profiles.forget_all(**owners[0])
        for number, owner in enumerate(owners):
            expected = {} if number == 0 else {"a": number}
            assert values(await sessions.profiles.recall(**owner)) == expected


def write_facts(number: int, url: str, facts: int) -> list[int]:
    """Saves facts of its own and one that all write; returns the revisions."""

    async def run() -> list[int]:
        async with DurableSessionService.from_url(url, pool_size=2, max_overflow=2) as sessions:
            revisions = []
            for fact in range(facts):
                own = await sessions.profiles.save(stated(f"k{number}-{fact}", fact), **OWNER)
                shared = await sessions.profiles.save(
                    NewFact(key="shared", value=f"{number}-{fact}", observed_at=START), **OWNER
                )
                revisions += [own.fact.revision, shared.fact.revision]
            return revisions

    return asyncio.run(run())


async def test_processes_that_write_one_profile_lose_nothing(
    backend: Backend, place: Place
) -> None:
    """Of eight processes every fact is there, and each write has a revision of its own."""
    if not backend.durable:
        pytest.skip("an instance in memory is alone")
    facts = count(6, 12)
    written = await asyncio.to_thread(in_processes, PROCESSES, write_facts, place.url, facts)
    assert all(revisions == sorted(revisions) for revisions in written)
    every = [revision for revisions in written for revision in revisions]
    assert len(set(every)) == len(every) == PROCESSES * facts * 2
    async with backend.open(place) as sessions:
        assert isinstance(sessions, DurableSessionService)
        recalled = await sessions.profiles.recall(**OWNER, budget_tokens=None)
        assert len(recalled.facts) == PROCESSES * facts + 1
        history = await sessions.profiles.history("shared", **OWNER)
        revisions = [fact.revision for fact in history]
        assert len(history) == PROCESSES * facts
        assert revisions == sorted(revisions)
        assert [fact.supersedes for fact in history] == [None, *revisions[:-1]]
        assert [fact.retired_at is None for fact in history].count(True) == 1


async def test_an_unreadable_database_never_looks_like_an_empty_profile(
    backend: Backend, place: Place
) -> None:
    """A recall answers what was read before and says what is missing, or raises on request."""
    async with backend.open(place) as sessions:
        assert isinstance(sessions, DurableSessionService)
        await sessions.profiles.save(stated("a", 1), **OWNER)
        await sessions.profiles.recall(**OWNER)
        profiles = sessions.profiles
    known = await profiles.recall(**OWNER)
    assert known.partial
    assert values(known) == {"a": 1}
    assert "changes since" in known.missing[0]
    unknown = await profiles.recall(**OWNER | {"user_id": "nobody"})
    assert unknown.partial
    assert "not an empty one" in unknown.missing[0]
    with pytest.raises(StoreUnavailableError):
        await profiles.recall(**OWNER, on_unavailable="raise")


async def test_a_damaged_record_is_named_and_the_others_are_recalled(tmp_path: Path) -> None:
    """One bad row costs its own fact only, and can be forgotten."""
    url = f"sqlite:///{tmp_path}/sessions.db"
    async with DurableSessionService.from_url(url) as sessions:
        await sessions.profiles.save(stated("bad", 1), **OWNER)
        await sessions.profiles.save(stated("good", 1), **OWNER)
        database = sessions.database
        assert database is not None
        await database.write(
            lambda tx: (
                tx.connection.exec_driver_sql(
                    "UPDATE memext_profile_facts SET claims = '[{' WHERE fact_key = 'bad'"
                ).rowcount
            )
        )
    async with DurableSessionService.from_url(url) as sessions:
        recalled = await sessions.profiles.recall(**OWNER)
        assert (values(recalled), recalled.partial) == ({"good": 1}, True)
        assert recalled.missing == ("bad",)
        assert await sessions.profiles.forget("bad", **OWNER) == ("bad",)
        assert not (await sessions.profiles.recall(**OWNER)).partial


async def test_profiles_stand_beside_any_service_with_a_store(tmp_path: Path) -> None:
    """A foreign service has profiles in a database of its own; without one it names `store`."""
    url = f"sqlite:///{tmp_path}/memory.db"
    async with DurableSessionService(InMemorySessionService(), store=url) as sessions:
        await sessions.profiles.save(stated("a", 1), **OWNER)
        assert values(await sessions.profiles.recall(**OWNER)) == {"a": 1}
    async with DurableSessionService(InMemorySessionService()) as sessions:
        with pytest.raises(CapabilityError, match=r"^InMemorySessionService .* store="):
            await sessions.profiles.recall(**OWNER)
        assert not sessions.profiles.available
