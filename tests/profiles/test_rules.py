"""Random histories of a profile, judged by what was written down beside them."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
import unicodedata
from typing import TYPE_CHECKING, Any, Final, Literal

from hypothesis import given, settings
from hypothesis import strategies as st

from adk_memory_ext import DurableSessionService, NewFact
from adk_memory_ext.fact_lines import line
from adk_memory_ext.profile_rules import in_recall_order, is_visible, save, within_budget
from backends import count
from profiles.facts_of import OWNER, START, values

if TYPE_CHECKING:
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


async def replay(
    sessions: DurableSessionService, user: str, steps: list[Any]
) -> list[tuple[float, dict[str, Any]]]:
    """Takes the steps; after each compares recall and history with a model. Returns the moments."""
    owner = OWNER | {"user_id": user}
    model: dict[tuple[str, str], Fact] = {}
    moments: list[tuple[float, dict[str, Any]]] = []
    for step in steps:
        if isinstance(step, str):
            await sessions.profiles.forget(step, **owner)
            assert await sessions.profiles.history(step, **owner) == ()
            moments.clear()  # forgotten from history, too
            now = values(await sessions.profiles.recall(**owner))
            model = {name: fact for name, fact in model.items() if name[1] in now}
            assert step not in now
        else:
            new = new_fact(step)
            expected, model = save(model, new, time.time())
            saved = await sessions.profiles.save(new, **owner)
            assert saved.outcome == expected
            now = values(await sessions.profiles.recall(**owner))
            if saved.outcome in ("created", "updated", "conflict"):
                moments.append((saved.fact.created_at, now))
        assert now == {key: fact.value for (_subject, key), fact in model.items()}
        for key in KEYS:
            history = await sessions.profiles.history(key, **owner)
            assert [fact.retired_at is None for fact in history].count(True) == (key in now)
            revisions = [fact.revision for fact in history]
            assert all(one < other for one, other in itertools.pairwise(revisions))
    return moments


@settings(max_examples=count(100, 1_000))
@given(STEPS)
def test_no_sequence_of_updates_makes_two_current_values_or_a_stale_recall(
    steps: list[Any],
) -> None:
    """The database agrees with the rules after each step, and its history with every moment."""

    async def run() -> None:
        async with DurableSessionService.from_url() as sessions:
            moments = await replay(sessions, "user", steps)
            for moment, known in moments:
                recalled = await sessions.profiles.recall(as_of=moment, **OWNER)
                assert values(recalled) == known

    asyncio.run(run())
