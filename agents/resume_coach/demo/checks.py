"""What survived what, checked by comparing what one process left with what the next one found."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from resume_coach.intake import JOB_AD_KEY, RESUME_KEY, take_apart
from resume_coach.learning_plan import PLAN_KEY, LearningPlan

from .process import Process


@dataclass(frozen=True)
class Check:
    """One thing that had to survive, and whether it did."""

    what: str
    survived: str
    """What it had to survive."""
    compared: str
    """What was compared, with the numbers that were found."""
    passed: bool


def checks(processes: Sequence[Process], messages: Sequence[str]) -> Iterator[Check]:
    """Yields every check of the demo, in the order of the story.

    Args:
      processes: The six processes: turn 1 (killed), turn 2 (killed), turn 2, turn 3, a look, and
        the erasure.
      messages: The person's three messages.
    """
    first, second, third, fourth, last, erasure = processes
    yield _events("events of turn 1", "kill -9 after the answer", first, second, messages)
    yield _documents(second, messages[0])
    yield _events("events of half a turn", "kill -9 inside the turn", second, third, messages)
    yield _turn_2_went_on(third)
    yield _events("events of turn 2", "restart", third, fourth, messages)
    yield from _plan(third, fourth, last)
    yield _events("events of turn 3", "restart", fourth, last, messages)
    yield from _scopes(last)
    yield from _erasure(erasure)


def _events(
    what: str, survived: str, before: Process, after: Process, messages: Sequence[str]
) -> Check:
    """Compares the events that were acknowledged to one process with those that the next found.

    The Runner appends the person's message itself and does not yield it, so that its id is not
    known here; it is compared by author and text.
    """
    message = {"author": "user", "text": messages[before.turn - 1]}
    acknowledged = [*map(_identity, before.found_events), message, *map(_identity, before.events)]
    found = [_identity(event) for event in after.found_events]
    position = len(before.found_events)
    if position < len(found):
        event = after.found_events[position]
        found[position] = {"author": event["author"], "text": event["text"]}
    compared = f"{len(acknowledged)} acknowledged, {len(found)} found"
    return Check(what, survived, compared, acknowledged == found)


def _identity(event: dict[str, Any]) -> dict[str, Any]:
    return {key: event[key] for key in ("id", "author", "text", "calls", "answers")}


def _documents(found_by: Process, message: str) -> Check:
    pasted = take_apart(message)
    state = found_by.found_state
    same = state.get(RESUME_KEY) == pasted.resume and state.get(JOB_AD_KEY) == pasted.job_ad
    return Check(
        "résumé and job ad",
        "kill -9 after the answer",
        "as pasted, byte for byte" if same else "not as pasted",
        same and bool(pasted.resume and pasted.job_ad),
    )


def _turn_2_went_on(third: Process) -> Check:
    asked_again = bool(third.answers_of("verify_evidence"))
    return Check(
        "the gap it had found",
        "both kills",
        "searched again" if asked_again else "not searched again",
        bool(third.accepted_plans) and not asked_again,
    )


def _plan(third: Process, fourth: Process, last: Process) -> Iterator[Check]:
    accepted = [LearningPlan.model_validate(plan) for plan in third.accepted_plans]
    before = fourth.found_state.get(PLAN_KEY, "{}")
    same = bool(accepted) and accepted[-1].to_json() == before
    compared = "as it was accepted" if same else "not as it was accepted"
    yield Check("accepted plan", "restart", compared, same)
    old, new = weeks_of(before), weeks_of(last.found_state.get(PLAN_KEY, "{}"))
    kept = [number for number in (1, 3) if number in old and old[number] == new.get(number)]
    yield Check(
        "weeks 1 and 3",
        "the change of week 2",
        "unchanged, byte for byte" if kept == [1, 3] else f"unchanged: {kept}",
        kept == [1, 3] and old.keys() == new.keys(),
    )
    hours = [sum(json.loads(week)["hours_budget"] for week in plan.values()) for plan in (old, new)]
    yield Check(
        "hours of the plan",
        "the change of week 2",
        f"{hours[0]:g} became {hours[1]:g}",
        hours == [18, 14],
    )


def weeks_of(plan: str) -> dict[int, str]:
    """Returns each week of a plan in JSON as JSON text of its own, by its number."""
    weeks = json.loads(plan).get("weeks", [])
    return {week["week"]: json.dumps(week, ensure_ascii=False) for week in weeks}


def _scopes(last: Process) -> Iterator[Check]:
    scoped = [key for key in last.found_state if key.startswith(("user:", "app:", "temp:"))]
    user_state = last.elsewhere.get("user_state")
    yield Check(
        "user: and app: state",
        "the whole conversation",
        f"{len(scoped) + len(user_state or {})} keys written",
        not scoped and user_state == {},
    )
    elsewhere = last.elsewhere.get("state")
    yield Check(
        "privacy of the résumé",
        "a new conversation",
        f"{len(elsewhere or {})} keys seen there",
        elsewhere == {},
    )


def _erasure(process: Process) -> Iterator[Check]:
    _every, before, after = process.pieces
    yield Check(
        "no piece of the résumé",
        "the erasure",
        f"{before:,} found, then {after:,}",
        before > 0 and after == 0,
    )
    receipt = process.erased.get("receipt", {})
    level = receipt.get("level", "none")
    yield Check(
        "a receipt",
        "the erasure",
        f"{'verified' if receipt.get('verified') else 'not verified'}, level {level}",
        bool(receipt.get("verified")) and process.erased["broken"] == [],
    )
    others = process.erased.get("others")
    yield Check(
        "another conversation",
        "the erasure",
        f"{others} still there",
        others == 1,
    )
