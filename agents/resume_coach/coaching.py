"""What `OfflineCoach` does next, decided from the transcript of a request alone.

Each decision is a pure function: the same request gives the same words or the same tool call.
What is not in the request is not known; then the coach asks for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .catalogue import all_topics
from .learning_plan import LearningPlan, StudyBlock
from .planning import Hours, blocks_needed, grows, resize_week, spread
from .reading import (
    Familiarity,
    WeekChange,
    asks_to_remember,
    evidence,
    familiarity,
    label_and_text,
    language_of,
    requirements,
    wants_plan,
    week_changes,
    week_count,
    weekly_hours,
)
from .transcript import ToolExchange, Transcript
from .wording import WORDINGS, Wording

WEEKS_IF_UNSAID = 3
LONGEST_PLAN = 52
"""Weeks; a plan beyond a year is cut there."""


@dataclass(frozen=True)
class Call:
    """A tool call that the coach wants to make."""

    tool: str
    args: dict[str, Any]


Step = str | Call
"""What the coach does next: it says something, or it calls a tool."""


def next_step(transcript: Transcript) -> Step:
    """Returns the coach's answer or its next tool call."""
    pasted = transcript.newest.pasted
    words = pasted.own_words
    say = WORDINGS[language_of(words or transcript.newest.message)]
    changes, hours = week_changes(words), weekly_hours(words)
    is_new = hours is not None and transcript.newest.last("save_profile") is None
    if is_new and not changes and asks_to_remember(words):
        return Call("save_profile", {"key": "weekly-hours", "value": hours, "kind": "constraint"})
    if pasted.resume or pasted.job_ad:
        return _analyse(transcript, say)
    if changes and (transcript.plan or hours is None):
        return _revise(transcript, say, changes)
    if hours is not None or wants_plan(words):
        return _plan(transcript, say, transcript.known_hours if hours is None else hours)
    if _gap_told_earlier(transcript) is None:
        return _analyse(transcript, say)
    return say.offer


def _analyse(transcript: Transcript, say: Wording, opening: str = "") -> Step:
    """Quotes the résumé for each requirement, has the quotes checked, and tells the gap."""
    if not transcript.resume or not transcript.job_ad:
        return say.paste
    claims = _claims(transcript, say)
    quotes = list(dict.fromkeys(claim.quote for claim in claims if claim.quote))
    verdicts: dict[str, dict[str, str]] = {}
    if quotes:
        exchange = transcript.newest.last("verify_evidence")
        if exchange is None:
            return Call("verify_evidence", {"quotes": quotes})
        answer = exchange.answer or {}
        if "results" not in answer:
            return _failed(say, "verify_evidence", answer)
        verdicts = {result["quote"]: result for result in answer["results"]}
    return "\n".join([opening] * bool(opening) + _findings(claims, verdicts, say))


@dataclass(frozen=True)
class _Claim:
    """A requirement, and the sentence of the résumé that is to show it."""

    label: str
    requirement: str
    quote: str | None


def _claims(transcript: Transcript, say: Wording) -> list[_Claim]:
    """Returns one claim a topic, and one for each requirement that names no known topic."""
    claims: dict[str, _Claim] = {}
    for requirement in requirements(transcript.job_ad):
        for topic in requirement.topics:
            quote = evidence(transcript.resume, topic)
            claims.setdefault(topic, _Claim(say.title(topic), requirement.text, quote))
        if not requirement.topics:
            claims.setdefault(requirement.label, _Claim(requirement.label, requirement.text, None))
    return list(claims.values())


def _findings(
    claims: Sequence[_Claim], verdicts: dict[str, dict[str, str]], say: Wording
) -> list[str]:
    shown, gap = [], []
    for claim in claims:
        verdict = verdicts.get(claim.quote or "", {"verdict": "absent"})
        if verdict["verdict"] == "absent":
            gap.append(claim)
        else:
            close = say.close if verdict["verdict"] == "near" else ""
            shown.append(say.quote.format(label=claim.label, quote=verdict["found"], close=close))
    lines = [say.shown, *shown, ""] if shown else []
    if not gap:
        return [*lines, say.no_gap]
    told = [say.gap_line.format(label=claim.label, text=claim.requirement) for claim in gap]
    topics = say.listed(claim.label for claim in gap)
    questions = [f"{n}. {q.format(topics=topics)}" for n, q in enumerate(say.questions, start=1)]
    return [*lines, say.gap, *told, "", *questions]


def _gap_told_earlier(transcript: Transcript) -> list[str] | None:
    """Returns the labels of the gap in the coach's own earlier answer; `None` if there is none."""
    for turn in reversed(transcript.turns[:-1]):
        for say in WORDINGS.values():
            if say.no_gap in turn.answer:
                return []
            _, heading, below = turn.answer.partition(say.gap + "\n")
            if heading:
                told = below.split("\n\n", maxsplit=1)[0].splitlines()
                return [label_and_text(line.removeprefix("- "))[0] for line in told]
    return None


def _plan(transcript: Transcript, say: Wording, hours: float | None) -> Step:
    """Looks the gap's topics up, builds a plan from the answer, and has it accepted."""
    gap = _gap_told_earlier(transcript)
    if gap is None:
        return _analyse(transcript, say, opening=say.again)
    if not gap or not hours:
        return say.ask_hours if gap else say.no_gap
    looked_up = transcript.newest.last("lookup_resources")
    if looked_up is None:
        return Call("lookup_resources", {"topics": gap})
    answer = looked_up.answer or {}
    if not answer.get("known"):
        nothing = say.nothing_to_plan.format(topics=say.listed(gap))
        return nothing if "known" in answer else _failed(say, "lookup_resources", answer)
    plan, left_out = _new_plan(transcript, answer, hours, say)
    validated = transcript.newest.last("validate_learning_plan")
    if validated is None:
        old = transcript.plan.weeks if transcript.plan else []
        return _validation(plan, list({week.week for week in (*old, *plan.weeks)}))
    ok = (validated.answer or {}).get("ok")
    return _plan_told(plan, left_out, answer, say) if ok else _rejected(say, validated.answer or {})


def _plan_told(
    plan: LearningPlan, left_out: Sequence[StudyBlock], looked_up: dict[str, Any], say: Wording
) -> str:
    """Returns an accepted plan in words: its weeks, its resources, and what is not in it."""
    lines = [
        say.plan_title.format(weeks=len(plan.weeks), hours=f"{plan.hours:g}"),
        *say.weeks(plan),
        "",
        *_resource_lines(plan, looked_up, say),
    ]
    if left_out:
        lines.append(say.no_room.format(blocks=say.blocks(left_out)))
    if looked_up["unknown"]:
        lines.append(say.unknown.format(topics=say.listed(looked_up["unknown"])))
    return "\n".join(lines)


def _new_plan(
    transcript: Transcript, looked_up: dict[str, Any], hours: float, say: Wording
) -> tuple[LearningPlan, list[StudyBlock]]:
    """Returns a plan for what was looked up, from all that the person and the résumé say."""
    said = [turn.pasted.own_words for turn in transcript.turns]
    stated: dict[str, Familiarity] = {}
    for words in said:
        stated |= familiarity(words)
    shown = [
        t
        for t in all_topics()
        if evidence(transcript.resume, t) and stated.get(t, Familiarity.SOME)
    ]
    known = {*shown, *(topic for topic, level in stated.items() if level)}
    if transcript.plan:
        known |= {*transcript.plan.known_topics}
    asked = [entry["topic"] for entry in looked_up["known"] if entry["asked_for"]]
    counts = [count for words in reversed(said) if (count := week_count(words))]
    weeks = min(counts[0] if counts else WEEKS_IF_UNSAID, LONGEST_PLAN)
    blocks = blocks_needed(_hours(looked_up), asked, known, stated)
    return spread(blocks, sorted(known), hours, weeks, say.reason)


def _hours(looked_up: dict[str, Any]) -> Hours:
    return {
        entry["topic"]: {resource["level"]: resource["hours"] for resource in entry["resources"]}
        for entry in looked_up["known"]
    }


def _resource_lines(plan: LearningPlan, looked_up: dict[str, Any], say: Wording) -> list[str]:
    planned = {(block.topic, block.level) for week in plan.weeks for block in week.topics}
    lines = [
        say.resource.format(
            topic=say.title(entry["topic"]),
            level=say.levels[resource["level"]],
            title=resource["title"][say.language],
            url=resource["url"],
        )
        for entry in looked_up["known"]
        for resource in entry["resources"]
        if (entry["topic"], resource["level"]) in planned
    ]
    return [say.resources, *lines] if lines else []


def _revise(transcript: Transcript, say: Wording, changes: Sequence[WeekChange]) -> Step:
    """Changes the named weeks of the stored plan, nothing else, and has it accepted."""
    validated = transcript.newest.last("validate_learning_plan")
    if validated:
        # From here on the stored plan is the new one, so what to say is read off the exchange.
        return _revision(say, changes, validated)
    plan = transcript.plan
    if plan is None:
        return say.no_plan
    for change in changes:
        if change.week not in {week.week for week in plan.weeks}:
            return say.no_such_week.format(week=change.week, weeks=len(plan.weeks))
    catalogue: Hours = {}
    if any(grows(plan, change.week, change.hours) for change in changes):
        # Only more hours need the catalogue: how long the resources of a topic still go on.
        looked_up = transcript.newest.last("lookup_resources")
        if looked_up is None:
            topics = {block.topic for week in plan.weeks for block in week.topics}
            return Call("lookup_resources", {"topics": sorted(topics)})
        answer = looked_up.answer or {}
        if "known" not in answer:
            return _failed(say, "lookup_resources", answer)
        catalogue = _hours(answer)
    for change in changes:
        plan = resize_week(plan, change.week, change.hours, catalogue, say.reason)
    return _validation(plan, [change.week for change in changes])


def _revision(say: Wording, changes: Sequence[WeekChange], validated: ToolExchange) -> str:
    """Returns what a revision has changed, or why it was rejected."""
    answer = validated.answer or {}
    if not answer.get("ok"):
        return _rejected(say, answer)
    plan = LearningPlan.model_validate(validated.args["plan"])
    lines = [say.changed.format(week=c.week, hours=f"{c.hours:g}") for c in changes]
    lost = {week: say.blocks(blocks) for week, blocks in _lost(answer).items()}
    lines += [say.left_out.format(week=week, blocks=blocks) for week, blocks in lost.items()]
    unchanged = [w.week for w in plan.weeks if w.week not in {c.week for c in changes}]
    if unchanged:
        lines.append(say.unchanged.format(weeks=say.listed(unchanged)))
    before, now = answer["hours_used_before"], answer["hours_used"]
    lines.append(say.totals.format(before=f"{before:g}", now=f"{now:g}"))
    return "\n".join([*lines, "", *say.weeks(plan)])


def _lost(answer: dict[str, Any]) -> dict[int, list[StudyBlock]]:
    """Returns by week what a validated plan gives up of the accepted one."""
    lost: dict[int, list[StudyBlock]] = {}
    for entry in answer["differences"]:
        hours = entry["hours_before"] - entry["hours"]
        if hours > 0:
            block = StudyBlock(topic=entry["topic"], level=entry["level"], hours=hours)
            lost.setdefault(entry["week"], []).append(block)
    return lost


def _validation(plan: LearningPlan, changed_weeks: Sequence[int]) -> Call:
    args = {"plan": plan.model_dump(mode="json"), "changed_weeks": sorted(changed_weeks)}
    return Call("validate_learning_plan", args)


def _rejected(say: Wording, answer: dict[str, Any]) -> str:
    """Tells which rules stand in the way; the coach makes no second guess of its own."""
    if "violations" not in answer:
        return _failed(say, "validate_learning_plan", answer)
    broken = [f"- {violation['message']}" for violation in answer["violations"]]
    return "\n".join([say.rejected, *broken, say.give_way])


def _failed(say: Wording, tool: str, answer: dict[str, Any]) -> str:
    reason = answer.get("error") or answer.get("status") or "?"
    return say.tool_failed.format(tool=tool, reason=reason)
