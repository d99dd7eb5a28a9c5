"""The typed learning plan and the rules it must keep."""

import json
from collections.abc import Iterator

from pydantic import BaseModel, ConfigDict, Field

from .catalogue import LEVELS, Level, all_topics

PLAN_KEY = "learning_plan"
"""State key of the last accepted plan, as JSON text: an instruction template shows a value with
`str()`, and `str()` of a dict is Python, not the JSON in which the model sends a plan back."""


class StudyBlock(BaseModel):
    """Hours given to one level of one topic."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    topic: str = Field(description="Topic id from lookup_resources.")
    level: Level = Field(description="basics teach from zero; practice and project build on it.")
    hours: float = Field(description="Hours of study, in steps of half an hour.")


class PlanWeek(BaseModel):
    """One week of a plan."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    week: int = Field(description="Number of the week, from 1.")
    hours_budget: float = Field(description="Hours that the person has in this week.")
    hours_used: float = Field(description="Sum of the hours of the topics.")
    topics: list[StudyBlock] = Field(description="What to study, in order.")
    rationale: str = Field(description="Why these topics in this week, in one sentence.")


class LearningPlan(BaseModel):
    """A plan of consecutive weeks."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    known_topics: list[str] = Field(
        description="Ids of the topics with which the person has worked, however little."
    )
    weeks: list[PlanWeek]

    @property
    def hours(self) -> float:
        """Hours used, all weeks together."""
        return sum(week.hours_used for week in self.weeks)

    def to_json(self) -> str:
        """Returns the plan as JSON text; equal plans give equal bytes."""
        return json.dumps(self.model_dump(mode="json"), ensure_ascii=False, sort_keys=True)


class Violation(BaseModel):
    """A rule that a plan breaks."""

    rule: str
    week: int | None = None
    """The week in question; `None` when it is about the whole plan."""
    message: str


def stored_plan(text: str | None) -> LearningPlan | None:
    """Returns the plan that `to_json` wrote as `text`; `None` for `None` and for empty text."""
    return LearningPlan.model_validate_json(text) if text else None


def check(
    plan: LearningPlan, accepted: LearningPlan | None, changed_weeks: list[int]
) -> list[Violation]:
    """Returns every rule that `plan` breaks, in the order of the weeks; empty if it keeps all.

    Args:
      plan: The plan to check.
      accepted: The last accepted plan; `None` if this is the first.
      changed_weeks: The weeks that may differ from `accepted`; without meaning for a first plan.
    """
    violations = [*_numbering(plan), *_budgets(plan), *order_violations(plan)]
    if accepted:
        violations += _differences(plan, accepted, set(changed_weeks))
    return violations


def _numbering(plan: LearningPlan) -> Iterator[Violation]:
    numbers = [week.week for week in plan.weeks]
    if not numbers:
        yield Violation(rule="numbering", message="The plan has no week.")
    elif numbers != list(range(1, len(numbers) + 1)):
        yield Violation(
            rule="numbering", message=f"Weeks must be numbered 1 to {len(numbers)}, not {numbers}."
        )


def _budgets(plan: LearningPlan) -> Iterator[Violation]:
    for week in plan.weeks:
        hours = [block.hours for block in week.topics]
        if any(h <= 0 or h % 0.5 for h in hours) or week.hours_budget < 0:
            message = "Hours must be above 0, in steps of half an hour, and a budget at least 0."
            yield Violation(rule="hours", week=week.week, message=message)
        if sum(hours) != week.hours_used:
            message = f"The topics take {sum(hours):g} hours, hours_used says {week.hours_used:g}."
            yield Violation(rule="hours", week=week.week, message=message)
        if sum(hours) > week.hours_budget:
            message = f"{sum(hours):g} hours do not fit into a budget of {week.hours_budget:g}."
            yield Violation(rule="budget", week=week.week, message=message)


def order_violations(plan: LearningPlan) -> list[Violation]:
    """Returns where a topic comes before what it needs, or is taught from zero though known."""
    known = set(plan.known_topics)
    reached: dict[str, int] = {}
    """How far each topic has been taught so far, as a position in LEVELS."""
    violations: list[Violation] = []
    for week in plan.weeks:
        for block in week.topics:
            for rule, message in _order_faults(block, known, reached):
                violations.append(Violation(rule=rule, week=week.week, message=message))
            reached[block.topic] = max(reached.get(block.topic, 0), LEVELS.index(block.level))
    return violations


def _order_faults(
    block: StudyBlock, known: set[str], reached: dict[str, int]
) -> Iterator[tuple[str, str]]:
    topic = all_topics().get(block.topic)
    if topic is None:
        yield "unknown_topic", f"{block.topic} is not in the catalogue."
        return
    begins = block.topic not in reached
    for earlier in topic.prerequisites if begins else ():
        if earlier not in known and earlier not in reached:
            yield (
                "order",
                f"{block.topic} needs {earlier}, which is neither known nor planned before.",
            )
    level = LEVELS.index(block.level)
    if level == 0 and block.topic in known:
        yield "taught_from_zero", f"{block.topic} is known and must not begin with its basics."
    if level > 0 and begins and block.topic not in known:
        yield "order", f"{block.topic} is new and must begin with its basics."
    if level < reached.get(block.topic, 0):
        yield "order", f"{block.topic}: {block.level} comes after {LEVELS[reached[block.topic]]}."


def _differences(
    plan: LearningPlan, accepted: LearningPlan, changed_weeks: set[int]
) -> Iterator[Violation]:
    now = {week.week: week for week in plan.weeks}
    before = {week.week: week for week in accepted.weeks}
    for number in sorted(changed_weeks - now.keys() - before.keys()):
        yield Violation(
            rule="changed_weeks", week=number, message=f"There is no week {number} to change."
        )
    for number in sorted((now.keys() | before.keys()) - changed_weeks):
        if now.get(number) != before.get(number):
            message = f"Week {number} is not in changed_weeks but differs from the accepted plan."
            yield Violation(rule="changed_weeks", week=number, message=message)
    lost = [topic for topic in accepted.known_topics if topic not in plan.known_topics]
    if lost:
        message = f"known_topics has lost {', '.join(lost)}."
        yield Violation(rule="known_topics", message=message)
