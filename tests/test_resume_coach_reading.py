"""What the résumé coach understands of messages, résumés and job advertisements."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resume_coach.catalogue import (
    LEVELS,
    all_topics,
    lookup_resources,
    topics_in,
    with_prerequisites,
)
from resume_coach.evidence import judge
from resume_coach.intake import take_apart
from resume_coach.numerals import value_of
from resume_coach.reading import (
    Familiarity,
    WeekChange,
    evidence,
    familiarity,
    language_of,
    requirements,
    wants_plan,
    week_changes,
    week_count,
    weekly_hours,
)
from resume_coach.scenario import LANGUAGES, messages

ENGLISH = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
DIGITS = "零一二三四五六七八九"


def chinese(number: int) -> str:
    """Returns a number from 1 to 99 in Chinese numerals."""
    tens, ones = divmod(number, 10)
    ten = {0: "", 1: "十"}.get(tens, f"{DIGITS[tens]}十")
    return ten + (DIGITS[ones] if ones else "")


@given(st.integers(1, 99))
def test_a_chinese_numeral_is_the_number_it_was_written_for(number: int) -> None:
    """Chinese numerals up to 99 are read as what they say."""
    assert value_of(chinese(number)) == number


def test_what_is_no_number_is_refused() -> None:
    """A word that is no number is an error, not a zero."""
    with pytest.raises(ValueError, match="not a number"):
        value_of("many")


HOURS_A_WEEK = [
    "{digits} hours a week, please plan",
    "I have {digits}h/week",
    "weekly {digits} hours",
    "每週可以花 {digits} 小時",
    "一週{chinese}小時",
    "每個星期有{chinese}個小時",
    "{chinese}小時，請排計畫",
    "{digits} hours each week for four weeks",
]


@given(st.integers(1, 24), st.sampled_from(HOURS_A_WEEK))
def test_hours_a_week_are_read_in_digits_and_chinese(hours: int, sentence: str) -> None:
    """Whatever the number and the phrase, the hours a week are read as they were written."""
    text = sentence.format(digits=hours, chinese=chinese(hours))
    assert weekly_hours(text) == hours
    assert week_changes(text) == []


@given(st.integers(1, 10), st.sampled_from(["{} hours a week", "every week I have {} hours"]))
def test_hours_a_week_are_read_in_english_words(hours: int, sentence: str) -> None:
    """Numbers as English words count too."""
    assert weekly_hours(sentence.format(ENGLISH[hours - 1])) == hours


@pytest.mark.parametrize(
    ("text", "hours"),
    [
        ("two and a half hours a week", 2.5),
        ("3.5 hours per week", 3.5),
        ("每週兩個半小時", 2.5),
        ("每週兩小時半", 2.5),
        ("half an hour every week", 0.5),
        ("每週半小時", 0.5),
        ("every week ６ hours", 6),
        ("please make a plan", None),
        ("week two only two hours", None),
        ("第二週只有兩小時", None),
    ],
)
def test_hours_a_week_with_halves_and_without(text: str, hours: float | None) -> None:
    """Half hours and full-width digits are read; hours of one named week are not hours a week."""
    assert weekly_hours(text) == hours


ONE_WEEK = [
    "in week {digits} I travel, {hours} hours only, the other weeks unchanged",
    "Only {hours} hours in week {digits}, please",
    "week {english}: {hours}h, others unchanged",
    "第{chinese}週我要出門，只有{hours_chinese}小時，其他週不變",
    "第 {digits} 週改成 {hours} 小時",
    "第{chinese}個星期{hours_chinese}個小時就好",
]


@given(st.integers(1, 10), st.integers(1, 12), st.sampled_from(ONE_WEEK))
def test_the_changed_week_and_its_hours_are_read(week: int, hours: int, sentence: str) -> None:
    """Any week and any hours, in digits, words or Chinese numerals, make exactly one change."""
    text = sentence.format(
        digits=week,
        english=ENGLISH[week - 1],
        chinese=chinese(week),
        hours=hours,
        hours_chinese=chinese(hours),
    )
    assert week_changes(text) == [WeekChange(week, hours)]


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("two hours only in week two, and week three unchanged", {2: 2}),
        ("eight hours in week three and two hours in week two", {3: 8, 2: 2}),
        ("weeks two and three: two and a half hours each", {2: 2.5, 3: 2.5}),
        ("第二、三週各兩個半小時", {2: 2.5, 3: 2.5}),
        ("the second week only 4 hours", {2: 4}),
        ("in the 3rd week I have half an hour", {3: 0.5}),
        ("第2週3小時，第三週八小時", {2: 3, 3: 8}),
        ("week three off, please", {3: 0}),
        ("第三週沒空", {3: 0}),
        ("week three stays as it is", {}),
        ("the interview is in three weeks", {}),
    ],
)
def test_several_weeks_weeks_off_and_no_week_at_all(text: str, changes: dict[int, float]) -> None:
    """Several weeks change together or each its own way, and a week without hours does not."""
    assert {change.week: change.hours for change in week_changes(text)} == changes


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("The interview is in three weeks.", 3),
        ("三週後面試", 3),
        ("a 4-week plan", 4),
        ("每週兩小時，四個星期", 4),
        ("十二週", 12),
        ("week two only", None),
        ("第二、三週", None),
        ("一週八小時", None),
        ("six hours a week", None),
    ],
)
def test_how_many_weeks_there_are(text: str, count: int | None) -> None:
    """A number of weeks is told from a named week and from "a week"."""
    assert week_count(text) == count


KNOWN, SOME, NONE = Familiarity.KNOWN, Familiarity.SOME, Familiarity.NONE


@pytest.mark.parametrize(
    ("text", "stated"),
    [
        ("I have used SQL; Docker only to run MySQL.", {"sql": KNOWN, "docker": SOME}),
        ("SQL 我用過；Docker 只用來跑 MySQL", {"sql": KNOWN, "docker": SOME}),
        ("I know SQL and Docker, CI never", {"sql": KNOWN, "docker": KNOWN, "ci": NONE}),
        ("I have never used SQL, Docker or CI", {"sql": NONE, "docker": NONE, "ci": NONE}),
        ("SQL不會，Docker略懂，CI用過", {"sql": NONE, "docker": SOME, "ci": KNOWN}),
        ("SQL 和 Docker 都沒用過", {"sql": NONE, "docker": NONE}),
        ("MySQL queries in a school project", {}),
        ("six hours a week", {}),
    ],
)
def test_what_a_person_says_to_know(text: str, stated: dict[str, Familiarity]) -> None:
    """Each clause speaks of the topics that it names first."""
    assert familiarity(text) == stated


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("please plan", True), ("請幫我排計畫", True), ("what do I lack?", False), ("飛機", False)],
)
def test_the_wish_for_a_plan(text: str, wanted: bool) -> None:
    """A plan is made for who asks for one."""
    assert wants_plan(text) is wanted


def test_language_is_that_of_the_persons_words() -> None:
    """Chinese with English terms in it is Chinese; English with a Chinese name is English."""
    assert language_of("SQL 我用過，Docker 只用來跑 MySQL") == "zh-TW"
    assert language_of("My name is 林予安 and I know Python") == "en"
    assert language_of("") == "en"


def test_requirements_are_the_bullets_of_the_advertisement() -> None:
    """A bullet with a label is about the label; prose is no requirement; the unknown stays."""
    found = requirements(
        "We build with Python.\n- SQL: joins on MySQL\n* Docker and Git\n2. Good humour\n"
    )
    assert [(r.label, r.topics) for r in found] == [
        ("SQL", ("sql",)),
        ("Docker and Git", ("docker", "git")),
        ("Good humour", ()),
    ]


def test_a_wish_to_learn_is_no_evidence() -> None:
    """What a person wants to learn does not show that they know it."""
    assert evidence("- I want to learn Docker.", "docker") is None
    assert (
        evidence("想學 Docker。\n我用 Docker 跑過資料庫。", "docker") == "我用 Docker 跑過資料庫。"
    )
    assert evidence("Wrote queries. Used SQL v2.1 daily. Slept.", "sql") == "Used SQL v2.1 daily."


def test_a_pasted_message_is_taken_apart_at_its_headings() -> None:
    """Headings in both languages and any order; the texts stay as they were written."""
    resume = "Ann  Lee\n\n- used Git:  daily\n\n- Python"
    message = f"## RESUME:\n{resume}\n\nJob Ad: Engineer\n- SQL\nQuestion:\nWhat now?\n"
    taken = take_apart(message)
    assert (taken.resume, taken.job_ad, taken.own_words) == (
        resume,
        "Engineer\n- SQL",
        "What now?",
    )
    taken = take_apart("我缺什麼？\n職缺：\n- SQL\n履歷：\n林予安")
    assert (taken.resume, taken.job_ad, taken.own_words) == ("林予安", "- SQL", "我缺什麼？")


@pytest.mark.parametrize("message", ["", "resume later", "I send my cv: soon", "Note:\nhello"])
def test_words_about_a_resume_are_no_resume(message: str) -> None:
    """Only a line that begins with a heading begins a document."""
    taken = take_apart(message)
    assert (taken.resume, taken.job_ad, taken.own_words) == ("", "", message)


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_scenario_is_complete_in_each_language(language: str) -> None:
    """Three messages, of which the first holds both documents, in the language they claim."""
    first, answer, change = messages(language)
    taken = take_apart(first)
    assert len(requirements(taken.job_ad)) == 7
    assert weekly_hours(answer) == 6
    assert week_changes(change) == [WeekChange(2, 2)]
    assert {language_of(text) for text in (taken.resume, taken.job_ad, answer)} == {language}


RESUME = (
    "I wrote the backend of a shop in Python,\n  with JavaScript for the page.\n資料庫\n設計與索引"
)


@pytest.mark.parametrize(
    ("quote", "verdict", "found"),
    [
        ("the backend of a shop", "exact", "the backend of a shop"),
        ("THE BACKEND of a  shop", "exact", "the backend of a shop"),
        ("in Python, with JavaScript", "exact", "in Python,\n  with JavaScript"),
        ("資料庫設計", "exact", "資料庫\n設計"),
        ("Ｐｙｔｈｏｎ", "exact", "Python"),
        (
            "I wrote the backend of the shop in Python",
            "near",
            "I wrote the backend of a shop in Python",
        ),
        ("with Java", "absent", ""),
        ("five years of Kubernetes", "absent", ""),
        ("  ", "absent", ""),
    ],
)
def test_a_quote_is_exact_near_or_absent(quote: str, verdict: str, found: str) -> None:
    """Width, case and white space do not matter, a cut word and a changed word do."""
    judgement = judge(quote, RESUME)
    assert (judgement.verdict, judgement.found) == (verdict, found)


@given(st.data())
def test_any_run_of_words_of_the_resume_is_exact(data: st.DataObject) -> None:
    """Whatever is quoted word for word is found, with the words as they stand there."""
    words = RESUME.split()
    first = data.draw(st.integers(0, len(words) - 1))
    last = data.draw(st.integers(first, len(words) - 1))
    judgement = judge(" ".join(words[first : last + 1]), RESUME)
    assert judgement.verdict == "exact"
    assert judgement.found.split() == words[first : last + 1]


def test_topics_are_whole_words() -> None:
    """A topic inside another word is not meant; one beside Chinese characters is."""
    assert topics_in("NoSQL, GitHub, sqlx") == []
    assert topics_in("會SQL，也會Git。（Docker）") == ["sql", "git", "docker"]
    assert topics_in("ＳＱＬ and PostgreSQL") == ["sql"]


def test_the_catalogue_is_whole() -> None:
    """Every topic has each level once and both titles; every prerequisite is a topic."""
    for topic in all_topics().values():
        assert tuple(resource.level for resource in topic.resources) == LEVELS
        assert all(resource.hours % 0.5 == 0 < resource.hours for resource in topic.resources)
        assert set(topic.title) == set(LANGUAGES)
        assert all(set(resource.title) == set(LANGUAGES) for resource in topic.resources)
        assert set(topic.prerequisites) < all_topics().keys()
        assert topic.id in topics_in(topic.title["en"]) == topics_in(topic.title["zh-TW"])


@given(st.lists(st.sampled_from(sorted(all_topics()))))
def test_prerequisites_come_first(ids: list[str]) -> None:
    """Topics come once, each after all that it needs."""
    ordered = with_prerequisites(ids)
    assert len(ordered) == len(set(ordered)) >= len(set(ids))
    for position, topic in enumerate(ordered):
        assert set(all_topics()[topic].prerequisites) <= set(ordered[:position])


def test_lookup_names_what_it_does_not_know() -> None:
    """Known topics come with prerequisites that nobody asked for; the rest is named."""
    answer = lookup_resources(["Docker", "basket weaving"])
    assert [(e["topic"], e["asked_for"]) for e in answer["known"]] == [
        ("linux", False),
        ("docker", True),
    ]
    assert answer["unknown"] == ["basket weaving"]
