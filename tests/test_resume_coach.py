"""The résumé coach in a Runner: its tools, its instruction, and the model that stands in."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents import RunConfig
from google.adk.models.llm_request import LlmRequest
from google.adk.tools.function_tool import FunctionTool
from google.genai import types
from hypothesis import given, settings
from hypothesis import strategies as st

from coach import JOB_AD, RESUME, Conversation, Listener, Script, converse, pasted
from resume_coach.agent import GEMINI, choose_model, root_agent
from resume_coach.catalogue import lookup_resources
from resume_coach.coaching import Call, next_step
from resume_coach.evidence import verify_evidence
from resume_coach.intake import JOB_AD_KEY, RESUME_KEY, take_apart
from resume_coach.learning_plan import PLAN_KEY
from resume_coach.offline_model import OfflineCoach
from resume_coach.plan_validation import validate_learning_plan
from resume_coach.scenario import LANGUAGES, messages
from resume_coach.transcript import Transcript, estimated_tokens, system_text, tokens_in

SNAPSHOT = Path(__file__).parent / "snapshots" / "resume_coach_tools.json"
ANSWER = "I have used SQL; Docker only to run MySQL; six hours a week, please plan."
CHANGE = "In week two only two hours, the others unchanged."


def budgets(conversation: Conversation) -> list[float]:
    """Returns the hours of each week of the accepted plan."""
    return [week.hours_budget for week in conversation.plan.weeks] if conversation.plan else []


# The agent


@pytest.mark.parametrize(
    ("environment", "model"),
    [
        ({}, None),
        ({"GOOGLE_API_KEY": ""}, None),
        ({"GOOGLE_GENAI_USE_VERTEXAI": "0"}, None),
        ({"GOOGLE_API_KEY": "key"}, GEMINI),
        ({"GEMINI_API_KEY": "key"}, GEMINI),
        ({"GOOGLE_GENAI_USE_VERTEXAI": "TRUE"}, GEMINI),
        ({"GOOGLE_GENAI_USE_ENTERPRISE": "1"}, GEMINI),
        ({"GOOGLE_API_KEY": "key", "RESUME_COACH_MODEL": "gemini-x"}, "gemini-x"),
        ({"RESUME_COACH_MODEL": "gemini-x"}, "gemini-x"),
        ({"GOOGLE_API_KEY": "key", "RESUME_COACH_MODEL": "offline"}, None),
    ],
)
def test_gemini_answers_only_where_it_can(environment: dict[str, str], model: str | None) -> None:
    """With a key or Vertex AI it is Gemini, without it the offline stand-in; a name decides."""
    chosen = choose_model(environment)
    assert isinstance(chosen, OfflineCoach) if model is None else chosen == model


def tool_declarations() -> list[dict[str, Any]]:
    """Returns what a model is told of the coach's tools."""
    request = LlmRequest()
    request.append_tools(
        [FunctionTool(tool) for tool in (verify_evidence, lookup_resources, validate_learning_plan)]
    )
    return [
        declaration.model_dump(mode="json", exclude_none=True)
        for tool in request.config.tools or []
        if isinstance(tool, types.Tool)
        for declaration in tool.function_declarations or []
    ]


def test_the_tools_are_declared_as_they_were_reviewed() -> None:
    """A model reads the declarations, so a changed word is a change to look at.

    UPDATE_SNAPSHOTS=1 writes the present ones.
    """
    declared = json.dumps(tool_declarations(), ensure_ascii=False, indent=1) + "\n"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        SNAPSHOT.parent.mkdir(exist_ok=True)
        SNAPSHOT.write_text(declared, encoding="utf-8")
    assert declared == SNAPSHOT.read_text(encoding="utf-8")


def test_the_declarations_use_only_what_gemini_reads() -> None:
    """Every keyword of the tools' JSON schemas is one that the Gemini API supports."""
    # As google-genai says at GenerateContentConfig.response_json_schema; beside a $ref, only
    # keywords that begin with $ may stand.
    supported = {"$defs", "$ref", "type", "title", "description", "enum", "items", "properties"}
    supported |= {"additionalProperties", "required", "anyOf", "minimum", "maximum"}

    def keywords(schema: dict[str, Any]) -> set[str]:
        found = set(schema)
        assert "$ref" not in schema or all(key.startswith("$") for key in schema)
        for key, value in schema.items():
            named = value.values() if key in {"properties", "$defs"} else [value]
            for part in named:
                found |= keywords(part) if isinstance(part, dict) else set()
        return found

    for declaration in tool_declarations():
        assert keywords(declaration["parameters_json_schema"]) <= supported
        assert "tool_context" not in json.dumps(declaration)


async def test_pasted_documents_go_to_session_state_only() -> None:
    """Résumé and advertisement reach the session's state as pasted, and no other scope."""
    conversation = await converse([pasted(), ANSWER, CHANGE])
    taken = take_apart(pasted())
    state = conversation.session.state
    assert set(state) == {RESUME_KEY, JOB_AD_KEY, PLAN_KEY}
    assert (state[RESUME_KEY], state[JOB_AD_KEY]) == (taken.resume, taken.job_ad)


async def test_documents_may_come_one_after_the_other() -> None:
    """The coach asks for what is missing and takes it when it comes."""
    conversation = await converse(["hello", f"Résumé:\n{RESUME}", f"職缺：\n{JOB_AD}"])
    assert "Résumé:" in conversation.said(1)
    assert "Job advertisement:" in conversation.said(2)
    assert "SQL" in conversation.said(3)


async def test_state_stands_in_the_system_text() -> None:
    """The model sees the documents, the plan and what other scopes hold, braces and all."""
    listener = Listener(heard=[])
    resume = "I wrote {templates} and {user:preferred_name} in Python."
    await converse(
        [pasted(resume), ANSWER, CHANGE],
        listener,
        {"user:preferred_name": "Sam", "app:house_rules": "Be kind."},
    )
    system = system_text(listener.heard[-1])
    for text in (resume, take_apart(pasted()).job_ad, "if known: Sam\n", "if any: Be kind.\n"):
        assert text in system
    plan = Transcript.of(listener.heard[-1]).plan
    assert plan
    assert plan.to_json() in system


# The tools


def call(tool: str, **args: Any) -> types.Part:
    """Returns a tool call as a model makes it."""
    return types.Part.from_function_call(name=tool, args=args)


async def use(*calls: types.Part, state: dict[str, Any] | None = None) -> Conversation:
    """Returns a conversation in which the model makes these calls, one after the other."""
    script = [*calls, types.Part.from_text(text="done")]
    return await converse(["go"], Script(parts=script), state)


async def test_all_quotes_are_checked_in_one_call() -> None:
    """Each quote gets its verdict, in the order in which they were sent."""
    quotes = ["in Python with Flask", "We used Git with pull request", "ten years of Java"]
    conversation = await use(call("verify_evidence", quotes=quotes), state={RESUME_KEY: RESUME})
    [answer] = conversation.answers(1)
    assert [(r["quote"], r["verdict"]) for r in answer["results"]] == [
        (quotes[0], "exact"),
        (quotes[1], "near"),
        (quotes[2], "absent"),
    ]


async def test_without_a_resume_no_quote_is_checked() -> None:
    """The answer says that the résumé is missing, rather than that the quotes are."""
    conversation = await use(call("verify_evidence", quotes=["Python"]))
    assert "no résumé" in conversation.answers(1)[0]["error"]


PLAN = {
    "known_topics": ["sql"],
    "weeks": [
        {
            "week": 1,
            "hours_budget": 6,
            "hours_used": 4,
            "topics": [{"topic": "sql", "level": "project", "hours": 4}],
            "rationale": "The job asks for it.",
        }
    ],
}


async def test_a_plan_is_stored_when_it_is_accepted_and_only_then() -> None:
    """A rejected plan leaves the accepted one in place."""
    too_long = json.loads(json.dumps(PLAN).replace('"hours": 4', '"hours": 9'))
    conversation = await use(
        call("validate_learning_plan", plan=PLAN, changed_weeks=[1]),
        call("validate_learning_plan", plan=too_long, changed_weeks=[1]),
    )
    accepted, rejected = conversation.answers(1)
    assert (accepted["ok"], accepted["hours_used"], accepted["hours_used_before"]) == (
        True,
        4,
        None,
    )
    assert not rejected["ok"]
    assert {violation["rule"] for violation in rejected["violations"]} == {"hours", "budget"}
    assert conversation.plan
    assert conversation.plan.hours == 4


async def test_the_answer_tells_where_hours_differ() -> None:
    """Against the accepted plan, each topic with other hours is named with both numbers."""
    shorter = json.loads(json.dumps(PLAN).replace("4", "2.5"))
    conversation = await use(
        call("validate_learning_plan", plan=PLAN, changed_weeks=[1]),
        call("validate_learning_plan", plan=shorter, changed_weeks=[1]),
    )
    answer = conversation.answers(1)[1]
    assert (answer["hours_used_before"], answer["hours_used"]) == (4, 2.5)
    assert answer["differences"] == [
        {"week": 1, "topic": "sql", "level": "project", "hours_before": 4, "hours": 2.5}
    ]


@pytest.mark.parametrize(
    ("plan", "place"),
    [
        ({"known_topics": []}, "weeks"),
        ({**PLAN, "mood": "good"}, "mood"),
        ({**PLAN, "known_topics": "sql"}, "known_topics"),
        (json.loads(json.dumps(PLAN).replace("project", "mastery")), "weeks.0.topics.0.level"),
        ("a plan", ""),
    ],
)
async def test_a_malformed_plan_is_a_violation_that_a_model_can_correct(
    plan: Any, place: str
) -> None:
    """What is no plan is rejected with the place of the fault, and nothing is stored."""
    conversation = await use(call("validate_learning_plan", plan=plan, changed_weeks=[1]))
    [answer] = conversation.answers(1)
    assert not answer["ok"]
    assert [v["message"].startswith(f"{place}:") for v in answer["violations"]] == [True]
    assert conversation.plan is None


# The model that stands in


@pytest.mark.parametrize("language", LANGUAGES)
async def test_the_scenario_in_each_language(language: str) -> None:
    """Gap, plan and change: week two drops to two hours, 18 become 14, the rest stays."""
    conversation = await converse(messages(language))
    [verified] = conversation.calls(1)
    assert verified.name == "verify_evidence"
    assert [r["verdict"] for r in conversation.answers(1)[0]["results"]] == ["exact"] * 4
    assert conversation.said(1).count("？" if language == "zh-TW" else "?") == 2
    assert [c.name for c in conversation.calls(2)] == ["lookup_resources", "validate_learning_plan"]
    [changed] = conversation.calls(3)
    assert (changed.name, (changed.args or {})["changed_weeks"]) == ("validate_learning_plan", [2])
    planned = (conversation.calls(2)[1].args or {})["plan"]["weeks"]
    assert [week["hours_used"] for week in planned] == [6, 6, 6]
    assert conversation.plan
    found = conversation.plan.model_dump(mode="json")["weeks"]
    assert [week["hours_used"] for week in found] == [6, 2, 6]
    assert (found[0], found[2]) == (planned[0], planned[2])
    assert "18" in conversation.said(3)
    assert "14" in conversation.said(3)


async def test_the_questions_are_at_most_two_and_name_the_gap() -> None:
    """The gap is what the advertisement asks for and the résumé does not show."""
    said = (await converse([pasted()])).said(1)
    questions = [line for line in said.splitlines() if line.endswith("?")]
    assert len(questions) == 2
    assert "SQL, Docker" in questions[0]


async def test_a_resume_that_shows_everything_leaves_no_gap() -> None:
    """With evidence for each requirement there is nothing to ask and nothing to plan."""
    resume = f"{RESUME}- SQL queries in the shop.\n- A Docker image for the shop."
    conversation = await converse([pasted(resume), ANSWER])
    assert "no gap" in conversation.said(1)
    assert "?" not in conversation.said(1)
    assert conversation.calls(2) == []


@settings(max_examples=settings().max_examples // 5)
@given(
    weekly=st.integers(3, 12),
    week=st.integers(1, 3),
    hours=st.integers(2, 12),
    style=st.sampled_from(["digits", "chinese"]),
)
async def test_the_conversation_with_other_numbers(
    weekly: int, week: int, hours: int, style: str
) -> None:
    """Whatever the hours and the week, that week gets them and the others keep theirs."""
    answer, change = {
        "digits": (
            f"I know SQL, Docker never. {weekly} hours a week, please plan for 3 weeks.",
            f"In week {week} {hours} hours, others unchanged",
        ),
        "chinese": (
            f"SQL 用過，Docker 沒用過，每週{_chinese(weekly)}小時，三個星期，請排計畫。",
            f"第{_chinese(week)}週改成{_chinese(hours)}小時，其他不變。",
        ),
    }[style]
    conversation = await converse([pasted(), answer, change])
    planned = (conversation.calls(2)[1].args or {})["plan"]["weeks"]
    assert conversation.plan
    now = conversation.plan.model_dump(mode="json")["weeks"]
    assert [w["hours_budget"] for w in planned] == [weekly] * 3
    assert [w["hours_budget"] for w in now] == [
        hours if number == week else weekly for number in (1, 2, 3)
    ]
    assert [w for w in now if w["week"] != week] == [w for w in planned if w["week"] != week]


def _chinese(number: int) -> str:
    return (
        "零一兩三四五六七八九"[number] if number < 10 else "十" + "零一二"[number - 10].strip("零")
    )


async def test_what_is_known_is_not_taught_from_zero() -> None:
    """The person's words decide where each topic begins."""
    answer = "I never used SQL. Docker: only a little. five hours a week, please plan, ten weeks"
    plan = (await converse([pasted(), answer])).plan
    assert plan
    levels = {(block.topic, block.level) for week in plan.weeks for block in week.topics}
    assert {("sql", "basics"), ("docker", "practice"), ("docker", "project")} <= levels
    assert ("docker", "basics") not in levels
    assert len(plan.weeks) == 10


async def test_what_finds_no_room_or_no_resources_is_said() -> None:
    """A plan of few hours says what is left out, and an unknown requirement is named."""
    job_ad = f"{JOB_AD}- Basket weaving\n"
    said = (await converse([pasted(job_ad=job_ad), "one hour a week, please plan"])).said(2)
    assert "No room for: SQL" in said
    assert "no resources for: Basket weaving" in said


async def test_a_plan_needs_hours() -> None:
    """Who asks for a plan without hours is asked for them."""
    conversation = await converse([pasted(), "Please plan.", "four hours a week"])
    assert conversation.calls(2) == []
    assert "hours a week" in conversation.said(2)
    assert budgets(conversation) == [4, 4, 4]


async def test_a_second_plan_replaces_the_first() -> None:
    """Other hours a week make a new plan of all weeks, also of another length."""
    conversation = await converse([pasted(), ANSWER, "Make a plan for 4 weeks, 3 hours a week"])
    assert conversation.answers(3)[1]["ok"]
    assert budgets(conversation) == [3, 3, 3, 3]


async def test_several_weeks_change_at_once() -> None:
    """Each named week gets its own hours, in one revision."""
    conversation = await converse([pasted(), ANSWER, "第一週沒空，第三週一小時"])
    [changed] = conversation.calls(3)
    assert (changed.args or {})["changed_weeks"] == [1, 3]
    assert budgets(conversation) == [0, 6, 1]


async def test_a_longer_week_takes_back_what_was_cut() -> None:
    """More hours than before are filled from the catalogue, which is asked first."""
    conversation = await converse([pasted(), ANSWER, CHANGE, "week two: six hours after all"])
    assert [c.name for c in conversation.calls(4)] == ["lookup_resources", "validate_learning_plan"]
    planned = (conversation.calls(2)[1].args or {})["plan"]["weeks"][1]["topics"]
    assert conversation.plan
    now = conversation.plan.model_dump(mode="json")["weeks"][1]["topics"]
    assert now[0] == planned[0]


async def test_a_week_that_the_plan_has_not_is_refused() -> None:
    """Nothing changes when the named week does not exist."""
    conversation = await converse([pasted(), ANSWER, "week nine only two hours"])
    assert conversation.calls(3) == []
    assert "no week 9" in conversation.said(3)
    assert budgets(conversation) == [6, 6, 6]


async def test_a_rejected_change_is_told_with_its_reason() -> None:
    """When a later week builds on the emptied one, the rule is told and the old plan stays."""
    job_ad = "Engineer\n- Docker\n- Cloud services\n"
    answer = "Docker never, cloud never, 5 hours a week, four weeks, please plan"
    conversation = await converse([pasted(job_ad=job_ad), answer, "week one off"])
    assert not conversation.answers(3)[0]["ok"]
    assert conversation.said(3).splitlines() == [
        "The plan was not accepted:",
        "- docker needs linux, which is neither known nor planned before.",
        "What may give way: the hours, another week, or a topic?",
    ]
    assert budgets(conversation) == [5, 5, 5, 5]


async def test_small_talk_gets_an_offer() -> None:
    """A message that is no answer is told what the coach can do, and nothing is called."""
    conversation = await converse([pasted(), "Thank you!"])
    assert conversation.calls(2) == []
    assert "hours a week" in conversation.said(2)


# What the request does not hold, the model does not know


async def requests_of(*said: str) -> list[LlmRequest]:
    """Returns every request of a conversation, the newest last."""
    listener = Listener(heard=[])
    await converse(said, listener)
    return listener.heard


def first_request(requests: list[LlmRequest], text: str) -> LlmRequest:
    """Returns the first request whose newest content is this message."""
    return next(
        request
        for request in requests
        if [part.text for part in request.contents[-1].parts or []] == [text]
    )


async def test_without_the_earlier_turn_the_coach_asks_again() -> None:
    """An answer to questions that are not in the request leads to the gap, not to a plan."""
    request = first_request(await requests_of(pasted(), ANSWER), ANSWER)
    whole = next_step(Transcript.of(request))
    assert isinstance(whole, Call)
    assert whole.tool == "lookup_resources"
    request.contents = request.contents[-1:]
    alone = next_step(Transcript.of(request))
    assert isinstance(alone, Call)
    assert alone.tool == "verify_evidence"


async def test_asking_again_is_said() -> None:
    """A conversation that begins with an answer is told that its beginning is not there."""
    documents = take_apart(pasted())
    state = {RESUME_KEY: documents.resume, JOB_AD_KEY: documents.job_ad}
    said = (await converse([ANSWER], state=state)).said(1)
    assert said.startswith("I cannot see our earlier conversation")
    assert "1. Which of these" in said


async def test_without_the_stored_plan_it_cannot_be_changed() -> None:
    """A change is made to the plan in the system text, or to one in a tool answer, or not."""
    requests = await requests_of(pasted(), ANSWER, CHANGE)
    request = first_request(requests, CHANGE)
    from_system = next_step(Transcript.of(request))
    assert isinstance(from_system, Call)
    system, _, _ = system_text(request).partition("<accepted_plan>")
    request.config.system_instruction = system
    assert next_step(Transcript.of(request)) == from_system
    request.contents = request.contents[-1:]
    said = next_step(Transcript.of(request))
    assert isinstance(said, str)
    assert "no accepted plan" in said


async def test_the_plan_in_the_request_counts_and_not_the_one_made_before() -> None:
    """Another plan in the system text is the one that is changed."""
    request = first_request(await requests_of(pasted(), ANSWER, CHANGE), CHANGE)
    system = system_text(request)
    request.config.system_instruction = system.replace('"hours_budget": 6.0', '"hours_budget": 7.5')
    step = next_step(Transcript.of(request))
    assert isinstance(step, Call)
    assert [week["hours_budget"] for week in step.args["plan"]["weeks"]] == [7.5, 2, 7.5]


async def test_without_the_documents_the_coach_asks_for_them() -> None:
    """A résumé that is in no system text is not made up."""
    request = (await requests_of(pasted()))[0]
    request.config.system_instruction = "You are a résumé coach."
    said = next_step(Transcript.of(request))
    assert isinstance(said, str)
    assert "I need your résumé" in said


async def test_a_call_that_was_never_answered_is_made_again() -> None:
    """After an interrupted turn the person's repeated message is answered from the start."""
    request = first_request(await requests_of(pasted(), ANSWER), ANSWER)
    interrupted = types.Content(role="model", parts=[call("lookup_resources", topics=["SQL"])])
    request.contents += [interrupted, types.UserContent(ANSWER)]
    step = next_step(Transcript.of(request))
    assert isinstance(step, Call)
    assert step.tool == "lookup_resources"


def answer_of(request: LlmRequest, tool: str) -> dict[str, Any]:
    """Returns a tool's newest answer in a request, to be changed in place."""
    for content in reversed(request.contents):
        for part in content.parts or []:
            if part.function_response and part.function_response.name == tool:
                assert part.function_response.response is not None
                return part.function_response.response
    raise AssertionError(f"no answer of {tool}")


async def test_verdicts_decide_what_counts_as_shown() -> None:
    """A near quote is corrected to what was found, an absent one joins the gap."""
    request = (await requests_of(pasted()))[-1]
    python, git, tests = answer_of(request, "verify_evidence")["results"]
    python |= {"verdict": "near", "found": "a service, in Python"}
    git |= {"verdict": "absent", "found": ""}
    said = next_step(Transcript.of(request))
    assert isinstance(said, str)
    shown, _, gap = said.partition("The gap")
    assert '"a service, in Python" (corrected' in shown
    assert tests["found"] in shown
    assert "- Git:" in gap
    assert "- Git:" not in shown


@pytest.mark.parametrize(
    ("said", "tool"),
    [
        ((pasted(),), "verify_evidence"),
        ((pasted(), ANSWER), "lookup_resources"),
        ((pasted(), ANSWER), "validate_learning_plan"),
        ((pasted(), ANSWER, CHANGE), "validate_learning_plan"),
        ((pasted(), ANSWER, CHANGE, "week two: 9 hours"), "lookup_resources"),
    ],
)
async def test_a_tool_that_failed_is_told(said: tuple[str, ...], tool: str) -> None:
    """An answer without a result stops the turn, with the tool and the reason."""
    requests = [request for request in await requests_of(*said) if _newest_is(request, tool)]
    answer = answer_of(requests[-1], tool)
    answer.clear()
    answer["error"] = "the disk is full"
    step = next_step(Transcript.of(requests[-1]))
    assert isinstance(step, str)
    assert f"{tool} could not answer (the disk is full)" in step


def _newest_is(request: LlmRequest, tool: str) -> bool:
    parts = request.contents[-1].parts or []
    return any(part.function_response and part.function_response.name == tool for part in parts)


async def test_the_same_request_gets_the_same_response() -> None:
    """The model keeps nothing between calls."""
    for request in await requests_of(pasted(), ANSWER, CHANGE):
        responses = [
            [
                response.model_dump()
                async for response in OfflineCoach().generate_content_async(request)
            ]
            for _ in range(2)
        ]
        assert responses[0] == responses[1]


async def test_a_streamed_answer_comes_in_parts_and_whole() -> None:
    """The partial responses joined are the last, whole one; a tool call comes whole only."""
    for request in await requests_of(pasted()):
        model = OfflineCoach()
        streamed = [r async for r in model.generate_content_async(request, stream=True)]
        *partial, last = streamed
        [plain] = [r async for r in model.generate_content_async(request)]
        assert last == plain
        assert all(response.partial for response in partial)
        joined = "".join(_text(response.content) for response in partial)
        assert joined == _text(last.content)


def _text(content: types.Content | None) -> str:
    return "".join(part.text or "" for part in (content.parts if content else None) or [])


async def test_a_streaming_run_answers_like_a_plain_one() -> None:
    """Over server-sent events the same conversation comes about."""
    plain = await converse([pasted(), ANSWER])
    streamed = await converse(
        [pasted(), ANSWER], run_config=RunConfig.model_validate({"streaming_mode": "sse"})
    )
    assert streamed.plan == plain.plan
    stored = [
        [part.text for part in (e.content and e.content.parts) or []] for e in plain.session.events
    ]
    assert stored == [
        [part.text for part in (e.content and e.content.parts) or []]
        for e in streamed.session.events
    ]


async def test_prompt_tokens_are_counted_from_the_whole_request() -> None:
    """System text, contents and declarations count, and each call reports its own count."""
    requests = await requests_of(pasted(), ANSWER)
    counts = [estimated_tokens(request) for request in requests]
    assert counts == sorted(set(counts))
    request = requests[-1]
    emptied: dict[str, Any]
    for emptied in ({"tools": []}, {"system_instruction": None}):
        config = request.config.model_copy(update=emptied)
        assert estimated_tokens(request.model_copy(update={"config": config})) < counts[-1]
    assert estimated_tokens(request.model_copy(update={"contents": []})) < counts[-1]
    [response] = [r async for r in OfflineCoach().generate_content_async(request)]
    assert response.usage_metadata
    assert response.usage_metadata.prompt_token_count == counts[-1]


def test_a_wide_character_is_one_token_and_four_others_are_one() -> None:
    """The estimate is what it says it is."""
    assert tokens_in("履歷") == 2
    assert tokens_in("resume") == 2
    assert tokens_in("SQL 履歷，") == 4
    assert tokens_in("") == 0


def test_the_agent_writes_nothing_but_its_own_session() -> None:
    """The instruction reads user: and app: state, and no key that the coach writes has a scope."""
    instruction = root_agent.instruction
    assert isinstance(instruction, str)
    assert "{user:preferred_name?}" in instruction
    assert "{app:house_rules?}" in instruction
    assert not any(":" in key for key in (RESUME_KEY, JOB_AD_KEY, PLAN_KEY))
