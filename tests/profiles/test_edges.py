"""Where a profile could lose, leak or bring back a fact without anybody's wish."""

from __future__ import annotations

import asyncio
import itertools
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from google.adk.sessions.in_memory_session_service import InMemorySessionService

from adk_memory_ext import (
    ConfigurationError,
    CorruptRecordError,
    DurableSessionService,
    FactRejectedError,
    NewFact,
    ProfileLimits,
    ProfileMemoryService,
)
from adk_memory_ext.profile_rules import save
from conversation import said
from profiles.facts_of import OWNER, START, inferred, stated, values
from profiles.planner import app, responses, say
from profiles.test_agents import DONE, PERSON, SAVE, Script, call

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from google.adk.events.event import Event

    from adk_memory_ext.facts import Fact
    from backends import Backend, Place


# --- Which value wins


@pytest.mark.parametrize(
    "said_values", [("short", "long", "short"), ("a", "b", "a", "b"), ("a", "a", "b", "a")]
)
def test_a_value_said_again_is_newer_than_what_was_said_between(
    said_values: tuple[str, ...],
) -> None:
    """In whatever order they arrive, the value that was said last is the one that is known."""
    facts = [stated("style", value, at=at) for at, value in enumerate(said_values)]
    for order in itertools.permutations(facts):
        profile: dict[tuple[str, str], Fact] = {}
        for fact in order:
            _outcome, profile = save(profile, fact, START)
        assert profile["user", "style"].value == said_values[-1]


async def test_a_correction_counts_when_a_clock_is_behind(
    sessions: DurableSessionService,
) -> None:
    """A fact without a time of observation is newer than what is stored, on any clock."""
    ahead = round(time.time() + 200, 3)
    await sessions.profiles.save(NewFact(key="a", value=1, observed_at=ahead), **OWNER)
    saved = await sessions.profiles.save(NewFact(key="a", value=2), **OWNER)
    assert (saved.outcome, saved.fact.value) == ("updated", 2)
    assert saved.fact.observed_at >= ahead


async def test_a_session_from_before_the_clock_was_set_back_takes_saves(
    sessions: DurableSessionService,
) -> None:
    """Its events are ahead of the clock, so that what is said there counts as said now."""
    session = await sessions.create_session(**PERSON, session_id="s")
    await sessions.append_event(session, said("a day ahead", at=time.time() + 86_400))
    for value, outcome in (("vegan", "created"), ("vegetarian", "updated")):
        part = call("save_profile", key="dietary", value=value)
        (told,) = responses(await say(sessions, "s", "now", of=app(Script(parts=[part, DONE]))))
        assert told.get("outcome") == outcome, told


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_a_conflict_is_as_guarded_as_its_most_guarded_value(
    sessions: DurableSessionService, order: tuple[int, int]
) -> None:
    """Sensitivity, visibility, expiry and derivation hold for each value, whichever came first."""
    far = round(time.time() + 1e6, 3)
    await sessions.profiles.save(stated("base", 1), **OWNER)
    claims = [
        inferred("x", 1, at=1, visible_to=("a", "b"), expires_at=far + 1),
        inferred(
            "x",
            2,
            at=2,
            sensitivity="sensitive",
            visible_to=("b", "c"),
            expires_at=far,
            derived_from=("base",),
        ),
    ]
    for index in order:
        saved = await sessions.profiles.save(claims[index], **OWNER)
    assert saved.outcome == "conflict"
    fact = saved.fact
    assert (fact.sensitivity, fact.visible_to, fact.expires_at) == ("sensitive", ("b",), far)
    assert (await sessions.profiles.save(stated("base", 2, at=9), **OWNER)).removed == ("x",)


async def test_values_for_different_agents_are_shown_to_none_of_them(
    sessions: DurableSessionService,
) -> None:
    """Two conclusions that no agent may see both of are left to the application."""
    await sessions.profiles.save(inferred("x", 1, visible_to=("a",)), **OWNER)
    await sessions.profiles.save(inferred("x", 2, visible_to=("b",)), **OWNER)
    for agent in ("a", "b", ""):
        assert values(await sessions.profiles.recall(**OWNER, agent=agent)) == {}
    assert len((await sessions.profiles.recall(**OWNER)).facts) == 1


# --- Who may see it


async def test_a_correction_keeps_who_may_see_a_fact(sessions: DurableSessionService) -> None:
    """Sensitivity and visibility stay with a fact until somebody says otherwise."""
    guarded: dict[str, Any] = {"sensitivity": "sensitive", "visible_to": ("doctor",)}
    await sessions.profiles.save(stated("illness", "flu", **guarded), **OWNER)
    for value in ("flu", "cold"):
        fact = (await sessions.profiles.save(stated("illness", value, at=1), **OWNER)).fact
        assert (fact.sensitivity, fact.visible_to) == ("sensitive", ("doctor",))
    opened = stated("illness", "none", at=2, sensitivity="normal", visible_to=())
    fact = (await sessions.profiles.save(opened, **OWNER)).fact
    assert (fact.sensitivity, fact.visible_to) == ("normal", ())


@pytest.mark.parametrize("value", ["flu", "cold"])
async def test_an_agent_cannot_change_or_sound_out_what_it_may_not_see(
    sessions: DurableSessionService, value: str
) -> None:
    """A save gets the same refusal whether it guessed the hidden value or not."""
    await sessions.profiles.save(stated("illness", "flu", visible_to=("doctor",)), **PERSON)
    parts: list[Any] = [
        call("save_profile", key="illness", value=value),
        call("forget_profile", key="illness"),
        DONE,
    ]
    told = responses(await say(sessions, "s", "hello", of=app(Script(parts=parts))))
    assert ["other agents" in answer["error"] for answer in told] == [True, True]
    assert "flu" not in str(told).replace(value, "")
    assert values(await sessions.profiles.recall(**PERSON)) == {"illness": "flu"}


async def test_an_agent_is_not_told_names_that_it_may_not_see(
    sessions: DurableSessionService,
) -> None:
    """What a correction or a forgetting takes along goes, and hidden names are not listed."""
    hidden: dict[str, Any] = {"visible_to": ("doctor",), "derived_from": ("dietary",)}
    for last in (call("forget_profile", key="dietary"), SAVE):
        await sessions.profiles.save(stated("dietary", "meat"), **PERSON)
        await sessions.profiles.save(inferred("risk", "X", **hidden), **PERSON)
        (told,) = responses(await say(sessions, "s", "now", of=app(Script(parts=[last, DONE]))))
        assert "risk" not in str(told)
        assert "risk" not in values(await sessions.profiles.recall(**PERSON))


# --- Forgetting


async def test_forgetting_leaves_what_the_user_said_in_place_of_a_conclusion(
    sessions: DurableSessionService,
) -> None:
    """Only values that were derived from the forgotten fact go, not those that replaced them."""
    await sessions.profiles.save(stated("dietary", "vegan"), **OWNER)
    await sessions.profiles.save(inferred("menu", "tofu", derived_from=("dietary",)), **OWNER)
    await sessions.profiles.save(stated("menu", "soup", at=1), **OWNER)
    await sessions.profiles.save(inferred("shop", "corner", derived_from=("menu",)), **OWNER)
    assert await sessions.profiles.forget("dietary", **OWNER) == ("dietary",)
    assert values(await sessions.profiles.recall(**OWNER)) == {"menu": "soup", "shop": "corner"}
    history = await sessions.profiles.history("menu", **OWNER)
    assert [fact.value for fact in history] == ["soup"]


async def test_an_erased_session_takes_the_history_that_was_derived_along(
    sessions: DurableSessionService,
) -> None:
    """A value that followed from a removed one goes from history as well."""
    await sessions.profiles.save(inferred("city", "Porto", session="a"), **OWNER)
    await sessions.profiles.save(inferred("hotel", "Ribeira", derived_from=("city",)), **OWNER)
    await sessions.profiles.save(stated("hotel", "Baixa", at=1), **OWNER)
    assert await sessions.profiles.cut_session(**OWNER, session_id="a") == ("city",)
    assert [fact.value for fact in await sessions.profiles.history("hotel", **OWNER)] == ["Baixa"]


async def test_what_is_forgotten_within_its_turn_is_not_saved_at_the_end(
    sessions: DurableSessionService,
) -> None:
    """A save that waits for the end of the turn is taken back by a forgetting after it."""
    parts: list[Any] = [SAVE, call("forget_profile", key="dietary"), DONE]
    told = responses(await say(sessions, "s", "no", of=app(Script(parts=parts), commit="turn_end")))
    assert told[-1]["forgotten"] == ["dietary"]
    assert values(await sessions.profiles.recall(**PERSON)) == {}


@pytest.mark.parametrize("wish", ["forget", "forget_all", "delete_user"])
async def test_what_is_forgotten_meanwhile_is_not_saved_at_the_end_of_a_turn(wish: str) -> None:
    """A save that waits in another turn is taken back too; other facts and users keep theirs."""
    async with DurableSessionService.from_url() as sessions:
        profiles, other = sessions.profiles, OWNER | {"user_id": "other"}
        for turn, owner in (("a", OWNER), ("b", other)):
            profiles.begin_turn(turn)
            for key in ("dietary", "pace"):
                profiles.save_at_end(stated(key, 1), invocation_id=turn, **owner)
        if wish == "forget":
            assert await profiles.forget("dietary", **OWNER) == ("dietary",)
        else:
            await getattr(profiles, wish)(**OWNER)
        await profiles.end_turn("a")
        await profiles.end_turn("b")
        left = {"pace": 1} if wish == "forget" else {}
        assert values(await profiles.recall(**OWNER)) == left
        assert values(await profiles.recall(**other)) == {"dietary": 1, "pace": 1}


@pytest.mark.parametrize("foreign", [False, True])
async def test_no_memory_of_this_process_holds_what_was_erased(
    tmp_path: Path, *, foreign: bool
) -> None:
    """What was recalled before an erasure is no answer afterwards, also from a closed database."""
    url = f"sqlite:///{tmp_path}/sessions.db"
    service = DurableSessionService.from_url(url)
    if foreign:
        await service.close()
        service = DurableSessionService(InMemorySessionService(), store=url)
    async with service as sessions:
        await sessions.profiles.save(stated("a", 1), **OWNER)
        await sessions.profiles.recall(**OWNER)
        await sessions.erasure.erase_user(**OWNER)
    recalled = await sessions.profiles.recall(**OWNER)
    assert (recalled.facts, recalled.partial) == ((), True)


async def test_a_save_refused_at_the_end_costs_the_turn_nothing_else() -> None:
    """The other saves of the turn are kept, and the turn ends well."""
    limits = ProfileLimits(keys_per_user=1)
    async with DurableSessionService.from_url(profile_limits=limits) as sessions:
        second = call("save_profile", key="pace", value="slow")
        of = app(Script(parts=[SAVE, second, DONE]), commit="turn_end")
        await say(sessions, "s", "remember both", of=of)
        assert values(await sessions.profiles.recall(**PERSON)) == {"dietary": "vegetarian"}


async def test_forgetting_while_others_save_ends_one_way_or_the_other(
    sessions: DurableSessionService,
) -> None:
    """Each save is either forgotten whole or stands whole, with the history since."""
    await asyncio.gather(
        *(
            sessions.profiles.save(NewFact(key="a", value=number), **OWNER)
            if number % 2
            else sessions.profiles.forget("a", **OWNER)
            for number in range(40)
        )
    )
    history = await sessions.profiles.history("a", **OWNER)
    assert [fact.supersedes for fact in history[1:]] == [fact.revision for fact in history[:-1]]
    current = {fact.key: fact.value for fact in history if fact.retired_at is None}
    assert values(await sessions.profiles.recall(**OWNER)) == current
    assert bool(await sessions.profiles.forget("a", **OWNER)) == bool(current)
    assert await sessions.profiles.history("a", **OWNER) == ()


# --- What follows from the log


def always(city: str, _events: Sequence[Event]) -> list[NewFact]:
    """Finds the same city in every log."""
    return [NewFact(key="city", value=city)]


async def test_a_wrong_projection_is_made_again(backend: Backend, place: Place) -> None:
    """What an earlier version of an extractor had found goes, with what was derived from it."""
    if not backend.durable:
        pytest.skip("the next version needs what the last one left")
    for city in ("Porto", "Lisbon"):
        async with backend.open(place) as sessions:
            assert isinstance(sessions, DurableSessionService)
            await sessions.get_or_create_session(**OWNER, session_id="s")
            sessions.profiles.register_extractor("trips", partial(always, city))
            await sessions.profiles.rebuild(**OWNER, session_id="s")
            known = await sessions.profiles.recall(**OWNER)
            if city == "Porto":
                hotel = inferred("hotel", "Ribeira", derived_from=("city",))
                await sessions.profiles.save(hotel, **OWNER)
    (fact,) = known.facts
    assert (fact.value, fact.is_conflict) == ("Lisbon", False)


async def test_a_rebuild_removes_what_was_derived_from_a_wrong_value(
    sessions: DurableSessionService,
) -> None:
    """When the log says otherwise, what followed from the old conclusion goes with it."""
    session = await sessions.create_session(**OWNER, session_id="s")
    await sessions.append_event(session, said("Porto"))
    sessions.profiles.register_extractor(
        "trips",
        lambda events: [
            NewFact(key="city", value=len(events)),
            NewFact(key="country", value="Portugal", derived_from=("city",)),
        ],
    )
    await sessions.profiles.rebuild(**OWNER, session_id="s")
    await sessions.profiles.save(inferred("hotel", "Ribeira", derived_from=("city",)), **OWNER)
    await sessions.profiles.rebuild(**OWNER, session_id="s")
    assert set(values(await sessions.profiles.recall(**OWNER))) == {"city", "country", "hotel"}
    await sessions.append_event(session, said("Lisbon"))
    await sessions.profiles.rebuild(**OWNER, session_id="s")
    known = values(await sessions.profiles.recall(**OWNER))
    assert known == {"city": 2, "country": "Portugal"}


# --- Limits and damage


async def test_a_time_is_answered_as_it_will_be_read_back(sessions: DurableSessionService) -> None:
    """Times are kept to the microsecond, in the answer of a save as in a recall."""
    fact = NewFact(key="a", value=1, expires_at=START + 1e9 + 1 / 3, observed_at=START + 1 / 3)
    saved = await sessions.profiles.save(fact, **OWNER)
    assert (await sessions.profiles.recall(**OWNER)).facts == (saved.fact,)


async def test_an_expired_key_does_not_open_a_full_profile() -> None:
    """A key whose fact has expired counts as a new one."""
    limits = ProfileLimits(keys_per_user=1)
    async with DurableSessionService.from_url(profile_limits=limits) as sessions:
        await sessions.profiles.save(stated("old", 1, expires_at=START + 1), **OWNER)
        await sessions.profiles.save(stated("new", 1), **OWNER)
        with pytest.raises(FactRejectedError, match="holds 1 facts"):
            await sessions.profiles.save(stated("old", 2, at=2), **OWNER)


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (ProfileLimits(text_characters=9), "one may have 9"),
        (ProfileLimits(value_bytes=11), "a value holds 11"),
    ],
)
async def test_an_app_sets_its_own_limits(limits: ProfileLimits, reason: str) -> None:
    """Up to its limit a value is kept, and one character more is refused."""
    async with DurableSessionService.from_url(profile_limits=limits) as sessions:
        await sessions.profiles.save(stated("note", "x" * 9), **OWNER)
        with pytest.raises(FactRejectedError, match=reason):
            await sessions.profiles.save(stated("note", "x" * 10, at=1), **OWNER)
        assert values(await sessions.profiles.recall(**OWNER)) == {"note": "x" * 9}


async def test_a_value_is_measured_as_utf8() -> None:
    """A value of Chinese text may be as long in bytes as one of English."""
    async with DurableSessionService.from_url() as sessions:
        await sessions.profiles.save(stated("a", ["茶" * 200] * 3), **OWNER)
        with pytest.raises(FactRejectedError, match="bytes of JSON"):
            await sessions.profiles.save(stated("b", ["茶" * 200] * 4), **OWNER)


async def test_a_damaged_record_refuses_no_save_but_its_own(
    sessions: DurableSessionService,
) -> None:
    """Other facts can still be saved and corrected; the damaged one asks to be forgotten."""
    for key in ("bad", "good"):
        await sessions.profiles.save(stated(key, 1), **OWNER)
    database = sessions.database
    assert database is not None
    await database.write(
        lambda tx: (
            tx.connection.exec_driver_sql(
                "UPDATE memext_profile_facts SET claims = '[{' WHERE fact_key = 'bad'"
            ).rowcount
        )
    )
    await sessions.profiles.save(stated("good", 2, at=1), **OWNER)
    await sessions.profiles.save(stated("new", 3), **OWNER)
    with pytest.raises(CorruptRecordError, match="'bad'"):
        await sessions.profiles.save(stated("bad", 2, at=1), **OWNER)
    assert await sessions.profiles.forget("bad", **OWNER) == ("bad",)
    await sessions.profiles.save(stated("bad", 4, at=1), **OWNER)
    expected = {"good": 2, "new": 3, "bad": 4}
    assert values(await sessions.profiles.recall(**OWNER)) == expected


@pytest.mark.parametrize("as_of", [float("nan"), float("inf"), "yesterday", True])
async def test_a_moment_without_meaning_is_refused(as_of: Any) -> None:
    """`as_of` is a time; what is none never answers as if nothing were known."""
    async with DurableSessionService.from_url() as sessions:
        with pytest.raises(ConfigurationError, match="as_of"):
            await sessions.profiles.recall(as_of=as_of, **OWNER)


@pytest.mark.parametrize(
    "asked", [{"kinds": [["fact"]]}, {"kinds": "fact"}, {"on_unavailable": "never"}]
)
async def test_a_recall_without_meaning_is_refused(asked: dict[str, Any]) -> None:
    """A misspelled wish is an error, never an answer that looks like an empty profile."""
    async with DurableSessionService.from_url() as sessions:
        with pytest.raises(ConfigurationError, match=r"kind|on_unavailable"):
            await sessions.profiles.recall(**asked, **OWNER)


async def test_keys_and_kinds_may_be_given_once(sessions: DurableSessionService) -> None:
    """What can be read one time only is asked for all the same."""
    await sessions.profiles.save(stated("a", 1), **OWNER)
    keys, kinds = (key for key in ("a", "b")), iter(("fact", "insight"))
    recalled = await sessions.profiles.recall(keys, kinds, **OWNER)  # type: ignore[arg-type]
    assert values(recalled) == {"a": 1}


# --- ADK's memory


@pytest.mark.parametrize(
    ("value", "query", "is_found"),
    [
        ("綠茶", "茶", True),
        ("茶", "我喝茶嗎", True),
        ("綠茶", "咖啡", False),
        ("𠮷野家", "𠮷野", True),
        ("tea", "t", False),
    ],
)
async def test_a_single_character_of_a_wide_script_is_a_word(
    value: str, query: str, *, is_found: bool
) -> None:
    """One character finds the words that hold it, and is found in a sentence."""
    async with DurableSessionService.from_url() as sessions:
        await sessions.profiles.save(stated("drink", value), **OWNER)
        found = await ProfileMemoryService(sessions).search_memory(**OWNER, query=query)
        assert bool(found.memories) is is_found
