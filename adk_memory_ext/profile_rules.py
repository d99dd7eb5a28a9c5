"""Which value of a fact wins, what falls with it, and in which order facts are recalled.

Pure functions over a profile as one mapping; nothing here knows a database.
"""

from __future__ import annotations

import json
import math
import unicodedata
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, get_args

from adk_memory_ext.fact_lines import line
from adk_memory_ext.facts import Claim, Fact, FactKey, Provenance, Sensitivity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from adk_memory_ext.facts import NewFact, Outcome

Profile: TypeAlias = "Mapping[FactKey, Fact]"
"""A user's current facts."""

_MOST_CLAIMS: Final = 8
"""Values that contradict each other; of more, the oldest are dropped."""
_NOBODY: Final = ("",)
"""No agent has this name."""
_SENSITIVITIES: Final = get_args(Sensitivity)
"""From the least to the most."""
_TOKENS_A_LINE: Final = 8
"""The end of a line, and what quotes and braces take beyond a quarter of a token."""
_MOST_SOURCES: Final = 32
"""Sessions that are noted for one value: the first, and the newest."""


def canonical(value: object) -> str:
    """Returns a text that is equal for equal JSON values only: 1, 1.0 and true are three."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


def is_expired(fact: Fact, now: float) -> bool:
    """Whether a fact is no longer to be recalled; times in UTC epoch seconds."""
    return fact.expires_at is not None and fact.expires_at <= now


def is_visible(fact: Fact, agent: str | None) -> bool:
    """Whether an agent may recall a fact; None is the application itself."""
    return agent is None or not fact.visible_to or (bool(agent) and agent in fact.visible_to)


def current_at(history: Iterable[Fact], moment: float) -> tuple[Fact, ...]:
    """Returns what was current at a moment, in UTC epoch seconds."""
    return tuple(
        fact
        for fact in history
        if fact.created_at <= moment and (fact.retired_at is None or moment < fact.retired_at)
    )


def settled(new: NewFact, current: Fact | None, now: float) -> NewFact:
    """Returns a fact with what it leaves open: who may see it stays as it was.

    Without a time of observation it is newer than what is stored, whatever the clocks say.
    """
    sensitivity, visible_to = new.sensitivity, new.visible_to
    if sensitivity is None:
        sensitivity = "normal" if current is None else current.sensitivity
    if visible_to is None:
        visible_to = () if current is None else current.visible_to
    observed_at = new.observed_at
    if observed_at is None:
        observed_at = now if current is None else max(now, newest_observation(current))
    return replace(new, sensitivity=sensitivity, visible_to=visible_to, observed_at=observed_at)


def newest_observation(fact: Fact) -> float:
    """Returns when a value of the fact was last said, in UTC epoch seconds."""
    return max(claim.last_confirmed for claim in fact.claims)


def save(profile: Profile, new: NewFact, now: float) -> tuple[Outcome, dict[FactKey, Fact]]:
    """Returns what becomes of a fact, and the profile after it.

    An inferred value never replaces a stated one, nor one observed earlier one observed later.
    An equal value is a confirmation; inferred values that contradict each other stay side by side.
    When a value is replaced, what was derived from it goes.

    Args:
        profile: The user's current facts.
        new: The fact.
        now: UTC epoch seconds.
    """
    after = dict(profile)
    name = (new.subject, new.key)
    current = profile.get(name)
    new = settled(new, current, now)
    if current is None:
        after[name] = _fact(new)
        return "created", after
    outcome, fact = _decide(current, new, now)
    after[name] = fact
    if outcome == "updated" and canonical(current.value) != canonical(fact.value):
        for derived in derived_names(profile.values(), [name]):
            after.pop(derived, None)
    return outcome, after


def _decide(current: Fact, new: NewFact, now: float) -> tuple[Outcome, Fact]:
    (claim,) = _fact(new).claims
    is_over = is_expired(current, now)
    if not is_over and (confirmed := _confirmed(current, claim)) is not None:
        is_promoted = new.status == "stated" and current.status == "inferred"
        if not is_promoted:
            guarded = _guarded_anew(confirmed, new)
            return ("confirmed" if guarded == confirmed else "updated"), guarded
        if canonical(current.value) == canonical(new.value):
            (first, *_) = confirmed.claims
            # What the user said has its own confidence, and settles a conflict.
            stated = replace(
                first,
                confidence=claim.confidence,
                observed_at=max(first.observed_at, claim.observed_at),
            )
            return "updated", replace(_fact(new), claims=(stated,))
    if not is_over and current.status == "stated" and new.status == "inferred":
        return "kept_stated", current
    if not is_over and current.status == new.status == "inferred":
        return "conflict", _side_by_side(current, _fact(new))
    if claim.observed_at < newest_observation(current):
        return "kept_newer", current
    return "updated", _fact(new)


def _guarded_anew(fact: Fact, new: NewFact) -> Fact:
    """Returns a confirmed fact, seen by whom the confirmation says if it has the say."""
    if new.status != fact.status or fact.is_conflict:
        return fact
    guard = _fact(new)
    return replace(fact, sensitivity=guard.sensitivity, visible_to=guard.visible_to)


def _side_by_side(one: Fact, other: Fact) -> Fact:
    """Returns a conflict; it is guarded and expires as the strictest of its values does."""
    newer = max(one, other, key=lambda fact: (fact.observed_at, canonical(fact.value)))
    expiries = [fact.expires_at for fact in (one, other) if fact.expires_at is not None]
    if one.visible_to and other.visible_to:
        visible_to = tuple(sorted({*one.visible_to} & {*other.visible_to})) or _NOBODY
    else:
        visible_to = one.visible_to or other.visible_to
    return replace(
        one,
        claims=_in_order([*one.claims, *other.claims])[:_MOST_CLAIMS],
        kind=newer.kind,
        sensitivity=max(one.sensitivity, other.sensitivity, key=_SENSITIVITIES.index),
        visible_to=visible_to,
        derived_from=tuple(sorted({*one.derived_from, *other.derived_from})),
        expires_at=min(expiries, default=None),
    )


def _fact(new: NewFact) -> Fact:
    observed = new.observed_at or 0.0
    claim = Claim(
        value=new.value,
        confidence=new.confidence,
        observed_at=observed,
        last_confirmed=observed,
        sources=(new.provenance,) if new.provenance != Provenance() else (),
    )
    return Fact(
        subject=new.subject,
        key=new.key,
        claims=(claim,),
        kind=new.kind,
        status=new.status,
        sensitivity=new.sensitivity or "normal",
        visible_to=new.visible_to or (),
        derived_from=new.derived_from,
        expires_at=new.expires_at,
    )


def _confirmed(fact: Fact, claim: Claim) -> Fact | None:
    """Returns the fact with an equal claim confirmed; None if it has no equal one."""
    text = canonical(claim.value)
    for index, known in enumerate(fact.claims):
        if canonical(known.value) == text:
            again = replace(
                known,
                last_confirmed=max(known.last_confirmed, claim.last_confirmed),
                sources=_with_sources(known.sources, claim.sources),
            )
            claims = (*fact.claims[:index], again, *fact.claims[index + 1 :])
            return replace(fact, claims=claims)
    return None


def _with_sources(
    known: tuple[Provenance, ...], new: tuple[Provenance, ...]
) -> tuple[Provenance, ...]:
    """Returns the sources with a session that was not among them; one entry a session."""
    seen = {(source.session_id, source.extractor) for source in known}
    added = [source for source in new if (source.session_id, source.extractor) not in seen]
    sources = [*known, *added]
    return tuple(sources[:1] + sources[1:][-(_MOST_SOURCES - 1) :])


def _in_order(claims: Iterable[Claim]) -> tuple[Claim, ...]:
    """Returns claims in an order that does not depend on which arrived first."""
    return tuple(
        sorted(
            claims,
            key=lambda claim: (-claim.observed_at, -claim.confidence, canonical(claim.value)),
        )
    )


def derived_names(facts: Iterable[Fact], names: Iterable[FactKey]) -> set[FactKey]:
    """Returns what was derived from facts, directly or through others, without these."""
    facts, given = tuple(facts), set(names)
    gone = set(given)
    while True:
        more = {
            fact.name
            for fact in facts
            if fact.name not in gone
            and any((fact.subject, key) in gone for key in fact.derived_from)
        }
        if not more:
            return gone - given
        gone |= more


def without_sources(
    fact: Fact, is_gone: Callable[[Provenance], bool], facts: Literal["keep", "remove"]
) -> Fact | None:
    """Returns a fact without some of its sources; None if nothing supports it any more.

    With `keep`, a fact that the user asked to save stays, its provenance cut.
    """
    claims = []
    for claim in fact.claims:
        left = tuple(source for source in claim.sources if not is_gone(source))
        stays = fact.status == "stated" and facts == "keep"
        if left or stays or left == claim.sources:
            claims.append(replace(claim, sources=left))
    return replace(fact, claims=tuple(claims)) if claims else None


def rebuilt(
    profile: Profile,
    found: Iterable[NewFact],
    is_old: Callable[[Provenance], bool],
    now: float,
) -> tuple[list[tuple[FactKey, Outcome]], dict[FactKey, Fact]]:
    """Returns what becomes of facts found anew, and the profile after it.

    What only old sources support is replaced by them; what was derived from a value that is no
    longer found goes, unless it was found itself.
    """
    found = list(found)
    after = {
        name: left
        for name, fact in profile.items()
        if (left := without_sources(fact, is_old, "keep")) is not None
    }
    outcomes: list[tuple[FactKey, Outcome]] = []
    for new in found:
        name = (new.subject, new.key)
        outcome, after = save(after, settled(new, profile.get(name), now), now)
        outcomes.append((name, outcome))
    wrong = [
        name
        for name, fact in profile.items()
        if name not in after or canonical(after[name].value) != canonical(fact.value)
    ]
    for derived in derived_names(profile.values(), wrong) - {name for name, _ in outcomes}:
        after.pop(derived, None)
    return outcomes, as_before(profile, after)


def in_recall_order(facts: Iterable[Fact]) -> list[Fact]:
    """Returns facts, the most certain first, then the newest; the same order every time."""
    return sorted(
        facts,
        key=lambda fact: (
            fact.status != "stated",
            fact.is_conflict,
            -fact.confidence,
            -fact.observed_at,
            fact.name,
        ),
    )


def within_budget(facts: Iterable[Fact], tokens: int | None) -> tuple[list[Fact], list[Fact]]:
    """Returns the facts that fit into a budget, in their order, and those left out.

    Args:
        facts: In the order in which they matter.
        tokens: The budget; None for no bound.
    """
    kept: list[Fact] = []
    left_out: list[Fact] = []
    for fact in facts:
        cost = 0 if tokens is None else fact_tokens(fact)
        if tokens is not None and cost > tokens:
            left_out.append(fact)
            continue
        kept.append(fact)
        tokens = None if tokens is None else tokens - cost
    return kept, left_out


def fact_tokens(fact: Fact) -> int:
    """Returns an estimate of a fact's tokens as a line of a model's request."""
    return estimated_tokens(line(fact)) + _TOKENS_A_LINE


def estimated_tokens(text: str) -> int:
    """Returns an estimate: a wide character is a token, four others are one."""
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    return wide + math.ceil((len(text) - wide) / 4)


def as_before(before: Profile, after: Profile) -> dict[FactKey, Fact]:
    """Returns `after` with what is as it was taken from `before`, with its revision and times."""

    def bare(fact: Fact) -> str:
        claims = tuple(replace(claim, last_confirmed=0.0) for claim in fact.claims)
        return repr(replace(fact, claims=claims, revision=0, supersedes=None, created_at=0.0))

    return {
        name: before[name] if name in before and bare(before[name]) == bare(fact) else fact
        for name, fact in after.items()
    }
