"""The rules of a learning plan, and the plans that the coach's planning makes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resume_coach.catalogue import LEVELS, Level, all_topics, with_prerequisites
from resume_coach.learning_plan import LearningPlan, PlanWeek, StudyBlock, check, stored_plan
from resume_coach.planning import blocks_needed, resize_week, spread
from resume_coach.reading import Familiarity


def week(number: int, *blocks: tuple[str, Level, float], budget: float = 6) -> PlanWeek:
    """Returns a week with these topics."""
    topics = [StudyBlock(topic=topic, level=level, hours=hours) for topic, level, hours in blocks]
    used = sum(block.hours for block in topics)
    return PlanWeek(
        week=number, hours_budget=budget, hours_used=used, topics=topics, rationale="because"
    )


def plan(*weeks: PlanWeek, known: tuple[str, ...] = ("linux",)) -> LearningPlan:
    """Returns a plan of these weeks."""
    return LearningPlan(known_topics=list(known), weeks=list(weeks))


GOOD = plan(
    week(1, ("docker", "basics", 3), ("docker", "practice", 3)),
    week(2, ("docker", "project", 4)),
    week(3, ("cloud", "basics", 3)),
)


def rules(candidate: LearningPlan, accepted: LearningPlan | None = None, *changed: int) -> set[str]:
    """Returns the names of the rules that a plan breaks."""
    return {violation.rule for violation in check(candidate, accepted, list(changed))}


def test_a_good_plan_breaks_no_rule() -> None:
    """A plan within its budgets and in order is accepted, as a first one and again."""
    assert rules(GOOD) == set()
    assert rules(GOOD, GOOD) == set()


@pytest.mark.parametrize(
    ("candidate", "rule"),
    [
        (plan(), "numbering"),
        (plan(week(2)), "numbering"),
        (plan(week(1), week(1)), "numbering"),
        (plan(week(1, ("sql", "basics", 4), budget=3.5)), "budget"),
        (plan(week(1, ("sql", "basics", 0.25))), "hours"),
        (plan(week(1, ("sql", "basics", -1))), "hours"),
        (plan(week(1, budget=-1)), "hours"),
        (plan(week(1).model_copy(update={"hours_used": 1})), "hours"),
        (plan(week(1, ("docker", "basics", 3)), known=()), "order"),
        (plan(week(1, ("docker", "practice", 3))), "order"),
        (plan(week(1, ("cloud", "basics", 3)), week(2, ("docker", "basics", 3))), "order"),
        (plan(week(1, ("sql", "practice", 1), ("sql", "basics", 1)), known=("sql",)), "order"),
        (plan(week(1, ("sql", "basics", 1)), known=("sql",)), "taught_from_zero"),
        (plan(week(1, ("weaving", "basics", 1))), "unknown_topic"),
    ],
)
def test_each_broken_rule_is_named(candidate: LearningPlan, rule: str) -> None:
    """A plan that breaks a rule is told which one."""
    assert rule in rules(candidate)


def test_only_the_named_weeks_may_differ_from_the_accepted_plan() -> None:
    """A difference in another week is refused, in whatever field; a named week may differ."""
    shorter = plan(GOOD.weeks[0], week(2, ("docker", "project", 2), budget=2), GOOD.weeks[2])
    assert rules(shorter, GOOD, 2) == set()
    assert rules(shorter, GOOD) == {"changed_weeks"}
    assert rules(shorter, GOOD, 1, 3) == {"changed_weeks"}
    reworded = GOOD.weeks[2].model_copy(update={"rationale": "other words"})
    assert rules(plan(*GOOD.weeks[:2], reworded), GOOD, 2) == {"changed_weeks"}


def test_weeks_that_come_or_go_must_be_named() -> None:
    """A plan may grow or shrink by named weeks only, and a week that is nowhere cannot change."""
    longer = plan(*GOOD.weeks, week(4))
    assert rules(longer, GOOD) == {"changed_weeks"}
    assert rules(longer, GOOD, 4) == set()
    assert rules(plan(*GOOD.weeks[:2]), GOOD) == {"changed_weeks"}
    assert rules(GOOD, GOOD, 9) == {"changed_weeks"}


def test_what_is_known_stays_known() -> None:
    """A new plan may not forget what the accepted one knows of the person."""
    knows_more = plan(*GOOD.weeks, known=("linux", "git"))
    assert rules(knows_more, GOOD) == set()
    assert rules(GOOD, knows_more) == {"known_topics"}


def test_a_plan_survives_its_json() -> None:
    """What `to_json` writes is read back equal, and equal plans give equal bytes."""
    text = GOOD.to_json()
    assert stored_plan(text) == GOOD
    assert LearningPlan.model_validate_json(text).to_json() == text
    assert stored_plan("") is stored_plan(None) is None


TOPICS = sorted(all_topics())
half_hours = st.integers(0, 24).map(lambda steps: steps / 2)


@st.composite
def plans(draw: st.DrawFn) -> LearningPlan:
    """Draws a plan that `spread` makes."""
    wanted = draw(st.lists(st.sampled_from(TOPICS), min_size=1, max_size=4, unique=True))
    known = draw(st.lists(st.sampled_from(TOPICS), unique=True))
    stated = draw(st.dictionaries(st.sampled_from(wanted), st.sampled_from(Familiarity)))
    known = sorted({*known, *(topic for topic, level in stated.items() if level)})
    blocks = blocks_needed(catalogue(*wanted), wanted, known, stated)
    made, left_out = spread(blocks, known, draw(half_hours), draw(st.integers(1, 8)), reason)
    planned = sum(block.hours for block in (*_blocks(made), *left_out))
    assert planned == sum(block.hours for block in blocks), "nothing is lost or invented"
    return made


def catalogue(*topics: str) -> dict[str, dict[Level, float]]:
    """Returns the catalogue's hours of topics and what they need; of all topics without any."""
    return {
        topic: {resource.level: resource.hours for resource in all_topics()[topic].resources}
        for topic in with_prerequisites(topics or TOPICS)
    }


def reason(blocks: object) -> str:
    """Returns a reason that shows what it was made from."""
    return repr(blocks)


def _blocks(made: LearningPlan) -> list[StudyBlock]:
    return [block for any_week in made.weeks for block in any_week.topics]


@given(plans())
def test_every_plan_that_is_made_keeps_every_rule(made: LearningPlan) -> None:
    """Whatever is wanted and known, and however few the hours, the plan is acceptable."""
    assert check(made, None, []) == []


@given(plans(), st.data(), half_hours)
def test_a_resized_week_leaves_the_others_as_they_were(
    made: LearningPlan, data: st.DataObject, hours: float
) -> None:
    """One week gets its new hours; every other week is the same, byte for byte."""
    number = data.draw(st.sampled_from([any_week.week for any_week in made.weeks]))
    resized = resize_week(made, number, hours, catalogue(), reason)
    for before, after in zip(made.weeks, resized.weeks, strict=True):
        if before.week != number:
            assert after.model_dump_json() == before.model_dump_json()
    new = resized.weeks[number - 1]
    assert new.hours_budget == hours
    broken = {violation.rule for violation in check(resized, made, [number])}
    assert broken <= {"order"}, "only a later week can miss something"


@given(plans(), st.data())
def test_a_shorter_week_keeps_what_later_weeks_need(
    made: LearningPlan, data: st.DataObject
) -> None:
    """A week may lose hours down to half an hour a topic without breaking an order."""
    number = data.draw(st.sampled_from([any_week.week for any_week in made.weeks]))
    topics = len(made.weeks[number - 1].topics)
    resized = resize_week(made, number, topics / 2, catalogue(), reason)
    assert check(resized, made, [number]) == []


def test_a_week_without_hours_breaks_what_builds_on_it() -> None:
    """Nothing can be kept in a week of no hours, and the check tells who misses it."""
    made = plan(week(1), week(2, ("docker", "basics", 3)), week(3, ("cloud", "basics", 3)))
    without = resize_week(made, 2, 0, {}, reason)
    assert [(v.rule, v.week) for v in check(without, made, [2])] == [("order", 3)]


def test_more_hours_go_to_the_weeks_topics_up_to_what_there_is_to_study() -> None:
    """A longer week takes back what was cut, and leaves the rest of its hours free."""
    made = plan(week(1, ("docker", "basics", 3), ("docker", "practice", 1), budget=4))
    longer = resize_week(made, 1, 9, catalogue(), reason)
    assert [block.hours for block in longer.weeks[0].topics] == [3, 3]
    assert (longer.weeks[0].hours_used, longer.weeks[0].hours_budget) == (6, 9)


def test_levels_follow_what_the_person_knows() -> None:
    """New topics begin with basics, half-known ones with practice, known ones with a project."""
    stated = {"sql": Familiarity.KNOWN, "git": Familiarity.SOME, "python": Familiarity.NONE}
    wanted = ["sql", "git", "python"]
    blocks = blocks_needed(catalogue(*wanted), wanted, ["sql", "git"], stated)
    levels: dict[str, list[str]] = {}
    for block in blocks:
        levels.setdefault(block.topic, []).append(block.level)
    assert levels == {"sql": ["project"], "git": ["practice", "project"], "python": [*LEVELS]}
    unasked = blocks_needed(catalogue("docker"), ["docker"], [], {})
    assert [(block.topic, block.level) for block in unasked[:2]] == [
        ("linux", "basics"),
        ("docker", "basics"),
    ]
