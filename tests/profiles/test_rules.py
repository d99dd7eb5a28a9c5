"""Random histories of a profile, judged by what was written down beside them."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
import unicodedata
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from hypothesis import given, settings
from hypothesis import strategies as st

from adk_memory_ext import DurableSessionService, NewFact
from adk_memory_ext.fact_lines import line
from adk_memory_ext.profile_rules import (
    derived_names,
    in_recall_order,
    is_visible,
    save,
    within_budget,
)
from backends import count
from profiles.facts_of import OWNER, START, values

if TYPE_CHECKING:
    from pathlib import Path

    from adk_memory_ext import Recalled
    from adk_memory_ext.facts import Fact

KEYS: Final = ("a", "b", "c")
STEPS: Final = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(KEYS),
            st.sampled_from((1, 2, "x", [1])),
            st.sampled_from(("stated", "inferred")),
            st.integers(0, 5),
            st.sampled_from(KEYS),
        ),
        st.sampled_from(KEYS),
    ),
    max_size=12,
)
"""Saves (key, value, status, time observed, a key to derive from), and keys to forget."""


def new_fact(step: tuple[Any, ...]) -> NewFact:
    """Returns the fact of a step."""
    key, value, status, at, source = step
    derived = (source,) if source != key and status == "inferred" else ()
    return NewFact(
        key=key, value=value, status=status, observed_at=START + at, derived_from=derived
    )


@settings(max_examples=count(1_000, 10_000))
@given(STEPS)
def test_no_update_breaks_the_order_of_authority(steps: list[Any]) -> None:
    """Stated is never replaced by inferred, nor later by earlier; confirming changes no value."""
    profile: dict[tuple[str, str], Fact] = {}
    for step in steps:
        if isinstance(step, str):
            profile.pop(("user", step), None)
            continue
        new = new_fact(step)
        before = profile.get(("user", new.key))
        outcome, profile = save(profile, new, START)
        after = profile["user", new.key]
        if before is None:
            assert outcome == "created"
            continue
        assert not (before.status == "stated" and after.status == "inferred")
        assert after.observed_at >= before.observed_at
        if outcome in ("confirmed", "kept_newer", "kept_stated"):
            assert [claim.value for claim in after.claims] == [
                claim.value for claim in before.claims
            ]
        if outcome == "conflict":
            assert {before.status, after.status} == {"inferred"}
            assert len({repr(claim.value) for claim in after.claims}) == len(after.claims)
        if outcome == "updated":
            assert repr(after.value) == repr(new.value)
            assert not after.is_conflict


@settings(max_examples=count(1_000, 10_000))
@given(st.permutations([1, 2, 3, 4]))
def test_stated_facts_end_the_same_in_any_order_of_arrival(times: list[int]) -> None:
    """However late each arrives, what was observed last is what is known."""
    profile: dict[tuple[str, str], Fact] = {}
    for at in times:
        _outcome, profile = save(profile, NewFact(key="a", value=at, observed_at=at), START)
    assert profile["user", "a"].value == 4


@settings(max_examples=count(200, 2_000))
@given(STEPS, st.integers(0, 200))
def test_the_order_of_recall_is_that_of_the_facts_alone(steps: list[Any], tokens: int) -> None:
    """The order of arrival does not matter, and what is kept and left out is the whole."""
    profile: dict[tuple[str, str], Fact] = {}
    for step in steps:
        if not isinstance(step, str):
            _outcome, profile = save(profile, new_fact(step), START)
    facts = list(profile.values())
    ordered = in_recall_order(facts)
    assert ordered == in_recall_order(reversed(facts))
    kept, left_out = within_budget(ordered, tokens)
    assert in_recall_order([*kept, *left_out]) == ordered
    assert within_budget(ordered, None) == (ordered, [])
    assert all(is_visible(fact, "anybody") for fact in facts)


@settings(max_examples=count(1_000, 10_000))
@given(st.text(max_size=20), st.sampled_from(("NFC", "NFD", "NFKC", "NFKD")))
def test_no_text_breaks_out_of_its_line(
    text: str, form: Literal["NFC", "NFD", "NFKC", "NFKD"]
) -> None:
    """Any text is read back from its line, and ends none in any form of Unicode."""
    _outcome, profile = save({}, NewFact(key="a", value=text), START)
    written = line(profile["user", "a"])
    assert json.loads(written)["value"] == text
    normalised = unicodedata.normalize(form, written)
    assert isinstance(json.loads(normalised)["value"], str)
    assert not set("<>&`\n") & set(normalised)


@dataclass
class Kept:
    """What a test writes down beside a profile."""

    facts: dict[tuple[str, str], Fact] = field(default_factory=dict)
    """What the rules alone make of the steps so far."""
    moments: list[tuple[float, dict[str, Fact]]] = field(default_factory=list)
    """When each write was, and what was known from then on."""
    forgotten: dict[str, int] = field(default_factory=dict)
    """How many writes there were when a key was forgotten last, or what it was derived from."""

    def check(self, number: int, known: dict[str, Fact], recalled: Recalled) -> None:
        """Compares history with what was known after a write; what was forgotten since is gone."""
        answered = {fact.key: fact for fact in recalled.facts}
        left = {key for key in known if self.forgotten.get(key, 0) <= number}
        assert answered.keys() <= left
        for key in left:
            if key in answered:
                assert repr(answered[key].value) == repr(known[key].value)
            else:
                assert known[key].derived_from  # and went with what it was derived from


async def take(step: Any, writer: DurableSessionService, owner: dict[str, Any], kept: Kept) -> None:
    """Saves or forgets, and looks whether the answer is that of the rules."""
    if isinstance(step, str):
        await writer.profiles.forget(step, **owner)
        assert await writer.profiles.history(step, **owner) == ()
        name = ("user", step)
        gone = {name} | derived_names(kept.facts.values(), [name])
        kept.facts = {name: fact for name, fact in kept.facts.items() if name not in gone}
        kept.forgotten |= {key: len(kept.moments) for _subject, key in gone}
        return
    new = new_fact(step)
    outcome, kept.facts = save(kept.facts, new, time.time())
    saved = await writer.profiles.save(new, **owner)
    assert saved.outcome == outcome
    if outcome in ("created", "updated", "conflict"):
        known = {fact.key: fact for fact in kept.facts.values()}
        kept.moments.append((saved.fact.created_at, known))


async def judge(
    writer: DurableSessionService, reader: DurableSessionService, user: str, steps: list[Any]
) -> None:
    """Takes the steps; looks at the profile after each, and at its history at the end."""
    owner = OWNER | {"user_id": user}
    kept = Kept()
    for step in steps:
        await take(step, writer, owner, kept)
        now = {key: fact.value for (_subject, key), fact in kept.facts.items()}
        for service in (writer, reader):
            assert values(await service.profiles.recall(**owner)) == now
    known: dict[str, Fact] = {}
    for number, (moment, after) in enumerate(kept.moments):
        before = await reader.profiles.recall(as_of=moment - 5e-7, **owner)
        kept.check(number - 1, known, before)
        kept.check(number, after, await reader.profiles.recall(as_of=moment, **owner))
        known = after
    for key in KEYS:
        history = await reader.profiles.history(key, **owner)
        current = [fact.value for fact in history if fact.retired_at is None]
        assert current == [fact.value for fact in kept.facts.values() if fact.key == key]
        revisions = [fact.revision for fact in history]
        assert all(one < other for one, other in itertools.pairwise(revisions))


def test_no_sequence_of_updates_makes_two_current_values_or_a_stale_recall(tmp_path: Path) -> None:
    """The database agrees with the rules after each step, and its history with every moment.

    What one instance writes another one, with a cache of its own, recalls at once.
    """
    users = itertools.count()
    with asyncio.Runner() as loop:
        writer, reader = (
            DurableSessionService.from_url(f"sqlite:///{tmp_path}/sessions.db") for _ in range(2)
        )

        @settings(max_examples=count(1_000, 10_000))
        @given(STEPS)
        def every(steps: list[Any]) -> None:
            loop.run(judge(writer, reader, f"user-{next(users)}", steps))

        try:
            every()
        finally:
            for service in (writer, reader):
                loop.run(service.close())
    assert next(users) >= count(1_000, 10_000)
