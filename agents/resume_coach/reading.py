"""What a person, a résumé and a job advertisement say, read with plain patterns.

This is the understanding of `OfflineCoach`, nothing more: an offline stand-in has to read text by
rules where a model understands it. Every function is pure and looks only at its arguments.
"""

import re
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise

from .catalogue import folded, mentions, topics_in
from .numerals import HOURS, WEEK_COUNT, WEEK_REFERENCE, hours_of, value_of, weeks_of

_CJK = re.compile(r"[\u3400-\u9fff]")
_BULLET = re.compile(r"^\s*(?:[-*•・‧]|\d+[.)、])\s*(?=\S)")
_SENTENCE = re.compile(r"[^.。!！?？;；\n]+(?:\.(?!\s|$)[^.。!！?？;；\n]*)*[.。!！?？;；]?")
_WISH = re.compile(
    r"want to learn|would like to learn|plan to learn|interested in|想學|想要學|希望學"
)
_PLAN = re.compile(r"\bplan\b|\bschedule\b|計畫|計劃|计划|規劃|安排")
_REMEMBER = re.compile(r"(?<!not )(?<!n't )\bremember\b|(?<![不別别])(?<!不要)(?:記住|记住|記得)")
_PER_WEEK = r"(?:(?:a|per|each|every|/)\s*week|weekly|(?<!第)[每一]\s*(?:週|周|個?星期|個?禮拜))"
_HOURS_A_WEEK = re.compile(rf"{HOURS}\s*{_PER_WEEK}")
_A_WEEK_HOURS = re.compile(rf"{_PER_WEEK}[^.。;；\n\d]{{0,12}}?{HOURS}")
_HOURS = re.compile(HOURS)
_HOURS_IN_WEEK = re.compile(
    rf"{HOURS}\s*(?:only\s*)?(?:in|for|during)\s*(?:the\s*)?(?P<weeks>{WEEK_REFERENCE})"
)
_WEEKS = re.compile(WEEK_REFERENCE)
_WEEK_COUNT = re.compile(WEEK_COUNT)
_NO_TIME = re.compile(r"\boff\b|no time|not? (?:any )?hours?|休息|沒空|沒有空|沒時間|沒有時間|不行")
_NONE = re.compile(r"\bnot?\b|\bnever\b|n't\b|\bwithout\b|沒|没|未|不會|不熟|不懂")
_SOME = re.compile(r"\bonly\b|\bjust\b|a little|\bbasics?\b|只|一點|一些|略懂|稍微")
_KNOWN = re.compile(r"\bused?\b|\bknow\b|\bworked\b|\bwritten\b|用過|寫過|做過|學過|會|熟")
_JOINED = re.compile(r"\s*(?:and|or|,|、|和|與|跟|及|或|&|/)?\s*")


class Familiarity(IntEnum):
    """How far a person says to have come with a topic."""

    NONE = 0
    SOME = 1
    KNOWN = 2


@dataclass(frozen=True)
class Requirement:
    """One line of a job advertisement that asks for something."""

    label: str
    """What stands before the colon; without a colon, the whole line."""
    text: str
    """What stands after the colon; without a colon, the whole line."""
    topics: tuple[str, ...]
    """Ids of the catalogue's topics that the line is about; empty if it knows none."""


@dataclass(frozen=True)
class WeekChange:
    """A wish to give one week other hours."""

    week: int
    hours: float


def language_of(text: str) -> str:
    """Returns `zh-TW` if at least a fifth of `text` is Chinese characters, else `en`."""
    letters = sum(char.isalpha() for char in text)
    return "zh-TW" if letters and len(_CJK.findall(text)) * 5 >= letters else "en"


def requirements(job_ad: str) -> list[Requirement]:
    """Returns the bullet lines of a job advertisement, each with the topics that it is about.

    A line with a label ("SQL: joins on MySQL") is about what its label names.
    """
    found = []
    for line in job_ad.splitlines():
        bullet = _BULLET.match(line)
        if not bullet:
            continue
        label, text = label_and_text(line[bullet.end() :])
        found.append(Requirement(label, text, tuple(topics_in(label) or topics_in(text))))
    return found


def label_and_text(line: str) -> tuple[str, str]:
    """Returns what stands before and after the first colon; without one, twice the whole line."""
    label, colon, text = re.sub("：", ":", line, count=1).partition(":")
    return (label.strip(), text.strip()) if colon and text.strip() else (line.strip(),) * 2


def evidence(resume: str, topic: str) -> str | None:
    """Returns the first sentence of a résumé that shows a topic; a wish to learn it does not."""
    for sentence in _sentences(resume):
        if topic in topics_in(sentence) and not _WISH.search(folded(sentence)):
            return sentence
    return None


def _sentences(text: str) -> list[str]:
    found = []
    for line in text.splitlines():
        bullet = _BULLET.match(line)
        content = line[bullet.end() :] if bullet else line
        found += [match.group().strip() for match in _SENTENCE.finditer(content)]
    return [sentence for sentence in found if sentence]


def asks_to_remember(text: str) -> bool:
    """Returns whether the person asks to remember something for later conversations."""
    return _REMEMBER.search(folded(text)) is not None


def wants_plan(text: str) -> bool:
    """Returns whether a person asks for a plan."""
    return _PLAN.search(folded(text)) is not None


def weekly_hours(text: str) -> float | None:
    """Returns the hours that a person has in every week; `None` if the text does not say.

    Hours without "a week" count too, when they are the only ones and no single week is named.
    """
    text = folded(text)
    match = _HOURS_A_WEEK.search(text) or _A_WEEK_HOURS.search(text)
    if match:
        return hours_of(match)
    alone = list(_HOURS.finditer(text))
    return hours_of(alone[0]) if len(alone) == 1 and not _WEEKS.search(text) else None


def week_count(text: str) -> int | None:
    """Returns how many weeks a person speaks of ("in three weeks"); `None` if not at all."""
    text = _WEEKS.sub(" ", folded(text))
    counts = [m for m in _WEEK_COUNT.finditer(text) if not _is_per_week(text, m)]
    return int(value_of(counts[0]["count"])) if counts else None


def _is_per_week(text: str, match: re.Match[str]) -> bool:
    """Returns whether 一週 in "一週六小時" means every week rather than one week."""
    return match["count"] == "一" and _HOURS.search(text, match.end(), match.end() + 12) is not None


def week_changes(text: str) -> list[WeekChange]:
    """Returns the single weeks to which a person gives other hours, in the order of the text.

    A named week without hours, as in "week three as before", is no change; one without any time
    ("week two off") has 0 hours.
    """
    text = folded(text)
    changes: dict[int, float] = {}
    while match := _HOURS_IN_WEEK.search(text):
        changes |= dict.fromkeys(weeks_of(match["weeks"]), hours_of(match))
        text = text[: match.start()] + "\n" + text[match.end() :]
    named = list(_WEEKS.finditer(text))
    ends = [match.start() for match in named[1:]] + [len(text)]
    for match, end in zip(named, ends, strict=False):
        hours = _hours_said(text[match.end() : end])
        if hours is not None:
            changes |= dict.fromkeys(weeks_of(match.group()), hours)
    return [WeekChange(week, hours) for week, hours in changes.items()]


def _hours_said(text: str) -> float | None:
    sentence = re.split(r"[.。;；\n](?!\d)", text, maxsplit=1)[0]
    if match := _HOURS.search(sentence):
        return hours_of(match)
    return 0.0 if _NO_TIME.search(sentence) else None


def familiarity(text: str) -> dict[str, Familiarity]:
    """Returns what a person says of the topics they name; of two statements the later counts.

    A clause speaks of the topics that it names first ("Docker only to run MySQL" is about
    Docker); a clause that is nothing but topics continues the one before it.
    """
    stated: dict[str, Familiarity] = {}
    last: Familiarity | None = None
    for clause in re.split(r"[,，;；.。!！?？\n]", folded(text)):
        subjects, rest = _subjects(clause)
        level = _level(clause)
        if level is None and rest:
            continue
        last = level if level is not None else last
        if last is not None:
            stated |= dict.fromkeys(subjects, last)
    return stated


def _subjects(clause: str) -> tuple[list[str], str]:
    """Returns the topics named first in a clause, joined by "and" or so, and what else it says."""
    named = mentions(clause)
    if not named:
        return [], clause
    subjects = [named[0][2]]
    for (_, end, _), (start, _, topic) in pairwise(named):
        if not _JOINED.fullmatch(clause[end:start]):
            break
        subjects.append(topic)
    last_end = named[len(subjects) - 1][1]
    rest = _JOINED.sub("", clause[: named[0][0]]) + _JOINED.sub("", clause[last_end:])
    return subjects, rest


def _level(clause: str) -> Familiarity | None:
    for pattern, level in (
        (_NONE, Familiarity.NONE),
        (_SOME, Familiarity.SOME),
        (_KNOWN, Familiarity.KNOWN),
    ):
        if pattern.search(clause):
            return level
    return None
