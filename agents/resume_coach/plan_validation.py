"""The tool that checks a learning plan and keeps the accepted one in session state."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from google.adk.tools.tool_context import ToolContext
from pydantic import ValidationError

from .catalogue import Level
from .learning_plan import PLAN_KEY, LearningPlan, Violation, check, stored_plan


# The docstring of a tool is a prompt that the model reads, and the model gives no tool_context.
def validate_learning_plan(  # noqa: D417
    plan: LearningPlan, changed_weeks: list[int], tool_context: ToolContext
) -> dict[str, Any]:
    """Checks a learning plan and, if it keeps every rule, accepts and stores it.

    Rules: weeks are numbered 1, 2, 3 and so on; hours_used is the sum of the topics and within
    hours_budget; a topic comes after its prerequisites and its basics; a topic in known_topics
    is not taught from its basics; against the last accepted plan only changed_weeks differ and
    known_topics loses nothing.

    Args:
      plan: The whole plan, also the weeks that stay as they were.
      changed_weeks: Numbers of the weeks that are new or differ from the last accepted plan.

    Returns:
      ok: whether the plan was accepted. violations: the broken rules; correct the plan and
      call again, or ask the person what may give way. hours_used and hours_used_before: all
      weeks together, now and in the last accepted plan. differences: where the hours of a
      topic differ from the last accepted plan.
    """
    try:
        # ADK converts the argument; what it cannot convert arrives as the model sent it.
        plan = LearningPlan.model_validate(plan)
    except ValidationError as error:
        return {"ok": False, "violations": [v.model_dump() for v in _malformed(error)]}
    accepted = stored_plan(tool_context.state.get(PLAN_KEY))
    violations = check(plan, accepted, changed_weeks)
    if not violations:
        tool_context.state[PLAN_KEY] = plan.to_json()
    return {
        "ok": not violations,
        "violations": [violation.model_dump() for violation in violations],
        "hours_used": plan.hours,
        "hours_used_before": accepted.hours if accepted else None,
        "differences": list(_changed_hours(accepted, plan)) if accepted else [],
    }


def _changed_hours(before: LearningPlan, now: LearningPlan) -> Iterator[dict[str, Any]]:
    """Yields each topic and level of a week whose hours differ, in the order of the weeks."""
    hours_before, hours_now = _hours_by_block(before), _hours_by_block(now)
    for week, topic, level in sorted(hours_before.keys() | hours_now.keys()):
        old = hours_before[week, topic, level]
        new = hours_now[week, topic, level]
        if old != new:
            yield {
                "week": week,
                "topic": topic,
                "level": level,
                "hours_before": old,
                "hours": new,
            }


def _hours_by_block(plan: LearningPlan) -> defaultdict[tuple[int, str, Level], float]:
    hours: defaultdict[tuple[int, str, Level], float] = defaultdict(float)
    for week in plan.weeks:
        for block in week.topics:
            hours[week.week, block.topic, block.level] += block.hours
    return hours


def _malformed(error: ValidationError) -> Iterator[Violation]:
    for detail in error.errors(include_url=False, include_input=False):
        place = ".".join(str(part) for part in detail["loc"])
        yield Violation(rule="malformed", message=f"{place}: {detail['msg']}")
