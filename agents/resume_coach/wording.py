"""The sentences of `OfflineCoach`, in Traditional Chinese and in English."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .catalogue import Level, all_topics
from .learning_plan import LearningPlan, PlanWeek, StudyBlock


@dataclass(frozen=True)
class Wording:
    """Every sentence in one language; a `str` field is a format string."""

    language: str
    comma: str
    levels: dict[Level, str]
    quote: str
    shown: str
    close: str
    gap: str
    gap_line: str
    no_gap: str
    questions: tuple[str, str]
    again: str
    paste: str
    ask_hours: str
    nothing_to_plan: str
    plan_title: str
    week: str
    block: str
    free_week: str
    rationale: str
    rationale_from_known: str
    resources: str
    resource: str
    no_room: str
    unknown: str
    no_plan: str
    no_such_week: str
    changed: str
    unchanged: str
    totals: str
    left_out: str
    rejected: str
    give_way: str
    tool_failed: str
    offer: str

    def title(self, topic: str) -> str:
        """Returns the name of a topic; of one that the catalogue does not know, its id."""
        known = all_topics().get(topic)
        return known.title[self.language] if known else topic

    def listed(self, items: Iterable[object]) -> str:
        """Returns items in a row, with this language's comma."""
        return self.comma.join(str(item) for item in items)

    def blocks(self, blocks: Iterable[StudyBlock]) -> str:
        """Returns topics with their level and hours in a row."""
        return self.listed(
            self.block.format(
                topic=self.title(b.topic), level=self.levels[b.level], hours=f"{b.hours:g}"
            )
            for b in blocks
        )

    def reason(self, blocks: Sequence[StudyBlock]) -> str:
        """Returns why a week has these topics, in one sentence."""
        if not blocks:
            return self.free_week
        topics = dict.fromkeys(b.topic for b in blocks)
        new = {b.topic for b in blocks if b.level == "basics"}
        text = self.rationale.format(topics=self.listed(self.title(t) for t in topics))
        from_known = [self.title(t) for t in topics if t not in new]
        if from_known:
            text += self.rationale_from_known.format(topics=self.listed(from_known))
        return text

    def weeks(self, plan: LearningPlan) -> list[str]:
        """Returns one line for each week of a plan."""
        return [self._week_line(week) for week in plan.weeks]

    def _week_line(self, week: PlanWeek) -> str:
        return self.week.format(
            week=week.week,
            used=f"{week.hours_used:g}",
            budget=f"{week.hours_budget:g}",
            topics=self.blocks(week.topics) or self.free_week,
        )


ENGLISH = Wording(
    language="en",
    comma=", ",
    levels={"basics": "basics", "practice": "practice", "project": "project"},
    quote='- {label}: "{quote}"{close}',
    shown="What your résumé shows, each quote checked against it:",
    close=" (corrected to what stands there)",
    gap="The gap, what it does not show:",
    gap_line="- {label}: {text}",
    no_gap="I see no gap: the résumé shows something for every requirement.",
    questions=(
        "Which of these have you worked with, also outside a job, and how far: {topics}?",
        "How many hours a week do you have, and shall I make a plan?",
    ),
    again="I cannot see our earlier conversation, so I look at the gap once more.",
    paste=(
        'I need your résumé and the job advertisement. Please paste them, under a line "Résumé:"'
        ' and a line "Job advertisement:".'
    ),
    ask_hours="How many hours a week do you have for it?",
    nothing_to_plan="There is nothing to plan: {topics}.",
    plan_title="Plan for {weeks} weeks, {hours} hours:",
    week="- Week {week} ({used}/{budget} h): {topics}",
    block="{topic} {level} {hours}h",
    free_week="nothing planned",
    rationale="The job asks for {topics}.",
    rationale_from_known=" It builds on what you know of {topics}.",
    resources="Resources:",
    resource="- {topic} {level}: {title} {url}",
    no_room="No room for: {blocks}",
    unknown="I know no resources for: {topics}",
    no_plan=(
        "I find no accepted plan in this conversation, so I cannot change it. Tell me your hours"
        " a week and I make a new one."
    ),
    no_such_week="The plan has {weeks} weeks, there is no week {week}.",
    changed="Week {week} now has {hours} hours.",
    unchanged="Unchanged weeks: {weeks}.",
    totals="{before} hours become {now}.",
    left_out="Week {week} loses: {blocks}",
    rejected="The plan was not accepted:",
    give_way="What may give way: the hours, another week, or a topic?",
    tool_failed="{tool} could not answer ({reason}), so I stop here. Please send that again.",
    offer=(
        "Tell me what you know of the gap and how many hours a week you have, and I make a plan;"
        " or name a week of the plan and its new hours, and I change it."
    ),
)

CHINESE = Wording(
    language="zh-TW",
    comma="、",
    levels={"basics": "基礎", "practice": "練習", "project": "專題"},
    quote="- {label}：「{quote}」{close}",
    shown="履歷已經呈現的（每段引文都和履歷核對過）：",
    close="（已改為履歷上的原文）",
    gap="落差，履歷沒有呈現的：",
    gap_line="- {label}：{text}",
    no_gap="看不出落差：每項條件在履歷裡都有依據。",
    questions=(
        "下面這些你接觸過哪些（不限工作經驗），做到什麼程度：{topics}？",
        "每週可以花幾小時，要我排計畫嗎？",
    ),
    again="我看不到先前的對話，所以重新看一次落差。",
    paste="我需要你的履歷和職缺內容。請貼上來，分別放在「履歷：」和「職缺：」這兩行之後。",
    ask_hours="每週可以花幾小時？",
    nothing_to_plan="沒有可以排的內容：{topics}。",
    plan_title="{weeks} 週計畫，共 {hours} 小時：",
    week="- 第 {week} 週（{used}/{budget} 小時）：{topics}",
    block="{topic} {level} {hours}h",
    free_week="沒有安排",
    rationale="職缺要求：{topics}。",
    rationale_from_known="{topics} 從已會的部分接著學。",
    resources="資源：",
    resource="- {topic} {level}：{title} {url}",
    no_room="排不進去：{blocks}",
    unknown="我沒有這些主題的資源：{topics}",
    no_plan="這段對話裡找不到已確認的計畫，所以沒辦法修改。告訴我每週有幾小時，我重新排一份。",
    no_such_week="計畫只有 {weeks} 週，沒有第 {week} 週。",
    changed="第 {week} 週改為 {hours} 小時。",
    unchanged="不變：第 {weeks} 週。",
    totals="總時數由 {before} 小時變為 {now} 小時。",
    left_out="第 {week} 週刪減：{blocks}",
    rejected="計畫沒有通過檢查：",
    give_way="哪一項可以讓步：時數、其他週，還是某個主題？",
    tool_failed="{tool} 沒有給出結果（{reason}），我先停在這裡。請再傳一次。",
    offer="告訴我你對這些落差了解多少、每週有幾小時，我就排計畫；或說出計畫的哪一週改成幾小時，我來修改。",
)

WORDINGS = {wording.language: wording for wording in (ENGLISH, CHINESE)}
