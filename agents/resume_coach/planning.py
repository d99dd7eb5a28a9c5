"""Plans built and resized by plain rules: pure functions over the typed plan."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from .catalogue import LEVELS, Level
from .learning_plan import LearningPlan, PlanWeek, StudyBlock, order_violations
from .reading import Familiarity

STEP = 0.5
"""Grain of a plan, in hours."""

Hours = Mapping[str, Mapping[Level, float]]
"""Hours that the catalogue gives to each level, by topic, prerequisites before what needs them."""

Rationale = Callable[[Sequence[StudyBlock]], str]
"""Wording of a week's reason, from its topics."""


def blocks_needed(
    hours: Hours, wanted: Iterable[str], known: Iterable[str], stated: Mapping[str, Familiarity]
) -> list[StudyBlock]:
    """Returns all that there is to study, in an order that keeps the prerequisites.

    A new topic is taught from its basics to its project, one of which the person knows some from
    its practice, one that they know only as a project; of a prerequisite that nobody asked for
    the basics must do.

    Args:
      hours: The catalogue's hours of `wanted` and of their prerequisites.
      wanted: Topics that the person is to learn.
      known: Topics with which the person has worked, however little.
      stated: How far the person has come with each topic, by their own words.
    """
    wanted, known = set(wanted), set(known)
    blocks = []
    for topic, by_level in hours.items():
        levels: Sequence[Level] = ()
        if topic in wanted:
            levels = LEVELS[stated.get(topic, Familiarity.NONE) :]
            if topic in known and levels[0] == "basics":
                levels = LEVELS[1:]
        elif topic not in known:
            levels = LEVELS[:1]
        blocks += [StudyBlock(topic=topic, level=lv, hours=by_level[lv]) for lv in levels]
    return blocks


def spread(
    blocks: Sequence[StudyBlock],
    known: Sequence[str],
    weekly_hours: float,
    weeks: int,
    rationale: Rationale,
) -> tuple[LearningPlan, list[StudyBlock]]:
    """Returns a plan that fills the weeks in order, and what found no room.

    A block may go on into the next week. Hours are cut to whole steps of half an hour, so that a
    week may use a little less than its budget.
    """
    waiting = list(blocks)
    planned = []
    for number in range(1, weeks + 1):
        topics, waiting = _fill(waiting, weekly_hours)
        planned.append(_week(number, weekly_hours, topics, rationale))
    return LearningPlan(known_topics=list(known), weeks=planned), waiting


def _fill(
    waiting: Sequence[StudyBlock], budget: float
) -> tuple[list[StudyBlock], list[StudyBlock]]:
    """Returns what of `waiting` fits into `budget` hours, in order, and what is left."""
    room = _whole_steps(budget)
    taken: list[StudyBlock] = []
    for position, block in enumerate(waiting):
        if room < block.hours:
            rest = [_with_hours(block, block.hours - room), *waiting[position + 1 :]]
            return [*taken, *([_with_hours(block, room)] if room else [])], rest
        taken.append(block)
        room -= block.hours
    return taken, []


def resize_week(
    plan: LearningPlan, number: int, hours: float, catalogue: Hours, rationale: Rationale
) -> LearningPlan:
    """Returns `plan` with other hours in one week and every other week as it was.

    Fewer hours keep what a later week needs, then the rest in its order. More hours go to the
    week's topics, in their order, up to what the catalogue gives them.

    Args:
      plan: The accepted plan.
      number: The week to change; it must be in the plan.
      hours: Its new budget.
      catalogue: The catalogue's hours; needed for more hours only.
      rationale: Wording of the week's reason.
    """
    week = next(week for week in plan.weeks if week.week == number)
    if _whole_steps(hours) < week.hours_used:
        topics = _shrunk(plan, week, _whole_steps(hours))
    else:
        topics = _grown(plan, week, _whole_steps(hours) - week.hours_used, catalogue)
    return _replace(plan, _week(number, hours, topics, rationale))


def grows(plan: LearningPlan, number: int, hours: float) -> bool:
    """Returns whether `hours` leave room in a week beyond what it uses now."""
    return any(w.week == number and _whole_steps(hours) > w.hours_used for w in plan.weeks)


def _shrunk(plan: LearningPlan, week: PlanWeek, room: float) -> list[StudyBlock]:
    """Returns the blocks of a week cut to `room` hours; what later weeks need keeps a step."""
    needed = [_is_needed(plan, week, block) for block in week.topics]
    reserved = STEP * sum(needed)
    kept = []
    for block, is_needed in zip(week.topics, needed, strict=True):
        reserved -= STEP if is_needed else 0
        hours = max(min(block.hours, room - reserved), 0)
        room -= hours
        if hours:
            kept.append(_with_hours(block, hours))
    return kept


def _is_needed(plan: LearningPlan, week: PlanWeek, block: StudyBlock) -> bool:
    """Returns whether the plan breaks an order when the week loses `block`."""
    others = [other for other in week.topics if other is not block]
    without = _replace(plan, week.model_copy(update={"topics": others}))
    return len(order_violations(without)) > len(order_violations(plan))


def _grown(plan: LearningPlan, week: PlanWeek, room: float, catalogue: Hours) -> list[StudyBlock]:
    topics = []
    for block in week.topics:
        planned = sum(
            other.hours
            for any_week in plan.weeks
            for other in any_week.topics
            if (other.topic, other.level) == (block.topic, block.level)
        )
        missing = catalogue.get(block.topic, {}).get(block.level, planned) - planned
        extra = max(min(missing, room), 0)
        room -= extra
        topics.append(_with_hours(block, block.hours + extra))
    return topics


def _replace(plan: LearningPlan, new: PlanWeek) -> LearningPlan:
    weeks = [new if week.week == new.week else week for week in plan.weeks]
    return plan.model_copy(update={"weeks": weeks})


def _week(
    number: int, budget: float, topics: Sequence[StudyBlock], rationale: Rationale
) -> PlanWeek:
    used = sum((block.hours for block in topics), start=0.0)
    return PlanWeek(
        week=number,
        hours_budget=budget,
        hours_used=used,
        topics=list(topics),
        rationale=rationale(topics),
    )


def _with_hours(block: StudyBlock, hours: float) -> StudyBlock:
    return block.model_copy(update={"hours": hours})


def _whole_steps(hours: float) -> float:
    return math.floor(hours / STEP) * STEP
