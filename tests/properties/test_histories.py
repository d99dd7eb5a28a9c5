"""Trimming over random logs: what goes to the model is always valid, small enough, and the same."""

from __future__ import annotations

import copy
import json
import logging
import random
from typing import TYPE_CHECKING, Any, Final

import pytest
from google.adk.events.event import Event
from google.genai import types
from hypothesis import given, settings
from hypothesis import strategies as st

from adk_memory_ext.errors import BudgetExceededError
from adk_memory_ext.history import (
    ClampAnswers,
    ClearAnswers,
    DropInvocations,
    History,
    HistoryPolicy,
    KeepLatest,
    RequestReport,
    trim_contents,
)
from adk_memory_ext.history.entries import looks_asked
from adk_memory_ext.history.tokens import content_tokens
from adk_memory_ext.history.validity import INTERRUPTED, placeholder
from backends import count
from gemini_stub import rejection
from histories import AGENT, CODE, TOOLS, context_of, into, random_log, request_of
from model_input import faults

if TYPE_CHECKING:
    from google.adk.models.llm_request import LlmRequest

LOGS: Final = count(2_000, 10_000)
GROUPS: Final = 20
RESERVE: Final = 100


@pytest.fixture(autouse=True)
def _silence() -> None:
    """ADK warns of every unanswered call that it leaves out."""
    logging.getLogger("google_adk").setLevel(logging.ERROR)


def policy_of(seed: int) -> HistoryPolicy:
    """Returns a policy that goes with a log, of all kinds."""
    chance = random.Random(-seed - 1)  # noqa: S311  # no cryptography
    strategies: list[Any] = [ClampAnswers(200), ClearAnswers(2), DropInvocations()]
    if chance.random() < 0.5:
        strategies.insert(0, KeepLatest({"validate"}))
    return HistoryPolicy(
        budget_tokens=chance.choice((600, 2_000, 4_000, 16_000)),
        output_reserve_tokens=RESERVE,
        strategies=tuple(strategies),
        exclude_tools=frozenset({"book"}) if chance.random() < 0.1 else frozenset(),
        keep_first_message=chance.random() < 0.2,
        refill=chance.choice((0.3, 0.5, 0.9)),
    )


def trimmed_request(
    request: LlmRequest, events: list[Event], policy: HistoryPolicy
) -> tuple[list[types.Content], RequestReport]:
    """Returns the contents that the model gets, and the report on them."""
    reports: list[RequestReport] = []
    part = History(policy, on_report=into(reports))
    mine = request.model_copy()
    assert part.trim(context_of(events), mine) is None
    return mine.contents, reports[0]


def wire(contents: list[types.Content]) -> str:
    """Returns contents as the bytes that go over the wire, as a text."""
    return "\n".join(content.model_dump_json(exclude_none=True) for content in contents)


def newest_words(events: list[Event]) -> str | None:
    """Returns the text of the newest thing a person said; None if they sent a tool's answer."""
    newest = next(e for e in reversed(events) if e.author == "user" and e.content)
    parts = (newest.content and newest.content.parts) or []
    return next((part.text for part in reversed(parts) if part.text), None)


@pytest.mark.parametrize("group", range(GROUPS))
async def test_every_random_log_gives_a_valid_request(group: int) -> None:
    """Valid, inside the budget, with the newest message, and nothing more on a second pass."""
    exceeded: list[int] = []
    for seed in range(group, LOGS, GROUPS):
        events = random_log(seed)
        policy = policy_of(seed)
        request = await request_of(events)
        before = wire(request.contents)
        try:
            contents, report = trimmed_request(request, events, policy)
        except BudgetExceededError as error:
            exceeded.append(sum(error.parts.values()) - policy.budget_tokens)
            continue
        assert faults(contents) == [], seed
        told = {"contents": [json.loads(c.model_dump_json(exclude_none=True)) for c in contents]}
        assert rejection(_as_sent(told)) is None, seed
        assert report.prompt_tokens + RESERVE <= policy.budget_tokens, seed
        words = newest_words(events)
        assert words is None or any(
            part.text == words for content in contents for part in content.parts or ()
        ), seed
        assert wire(request.contents) == before, seed  # what ADK made is not touched
        assert wire(trim_contents(contents, policy)) == wire(contents), seed
    assert len(exceeded) < LOGS / GROUPS / 10
    assert all(tokens > 0 for tokens in exceeded)


def _as_sent(request: dict[str, Any]) -> dict[str, Any]:
    """Returns a request with the names that Gemini's REST API has for calls and answers."""
    names = {"function_call": "functionCall", "function_response": "functionResponse"}
    for content in request["contents"]:
        content["parts"] = [
            {names.get(name, name): value for name, value in part.items()}
            for part in content["parts"]
        ]
    return request


async def test_the_same_log_gives_the_same_bytes() -> None:
    """Read back from its JSON, a log gives the request and the report that it gave before."""
    for seed in range(0, LOGS, 20):
        events = random_log(seed)
        reloaded = [Event.model_validate_json(event.model_dump_json()) for event in events]
        outcomes = []
        for log in (events, reloaded):
            try:
                contents, report = trimmed_request(await request_of(log), log, policy_of(seed))
            except BudgetExceededError as error:
                outcomes.append(str(error))
            else:
                outcomes.append(f"{wire(contents)} {report}")
        assert outcomes[0] == outcomes[1], seed


async def test_the_log_itself_is_never_changed() -> None:
    """Events are as they were, whatever was cleared or clamped for a request."""
    for seed in range(0, LOGS, 40):
        events = random_log(seed)
        before = copy.deepcopy(events)
        try:
            trimmed_request(await request_of(events), events, policy_of(seed))
        except BudgetExceededError:
            continue
        assert events == before, seed


async def test_what_fits_goes_as_it_is() -> None:
    """A valid history inside its budget reaches the model object by object."""
    for seed in range(0, LOGS, 40):
        events = random_log(seed)
        request = await request_of(events)
        if faults(request.contents):
            continue
        contents, report = trimmed_request(request, events, HistoryPolicy(budget_tokens=10**7))
        restored = [c for c in contents if c not in request.contents and _tools(c)]
        if restored and INTERRUPTED["note"] in wire(contents):
            continue  # of parallel calls ADK leaves out the one without an answer; it is put back
        added = [line for line in report.lines if line.fate != "kept"]
        if not any(event.content and len(event.content.parts or ()) for event in events):
            continue
        assert wire([c for c in contents if c in request.contents]) == wire(request.contents), seed
        assert all(line.fate == "added" for line in added), seed


async def test_excluded_tools_stay_byte_identical() -> None:
    """Calls and answers of an excluded tool go to the model as they are, however old."""
    policy = HistoryPolicy(
        budget_tokens=200_000,
        output_reserve_tokens=RESERVE,
        exclude_tools=frozenset({"book"}),
        refill=0.01,
    )
    dropped = 0
    for seed in range(0, LOGS, 20):
        events = random_log(seed)
        request = await request_of(events)
        whole, _ = trimmed_request(request, events, policy)
        fixed = [c for c in whole if "book" in _tools(c)]
        room = sum(len(wire([c])) for c in fixed)
        small = HistoryPolicy(
            budget_tokens=max(3_000, room),
            output_reserve_tokens=RESERVE,
            exclude_tools=frozenset({"book"}),
            refill=0.01,
        )
        contents, report = trimmed_request(request, events, small)
        assert wire([c for c in contents if "book" in _tools(c)]) == wire(fixed), seed
        dropped += report.fates.get("dropped", 0)
    assert dropped


def _tools(content: types.Content) -> set[str | None]:
    return {
        told.name
        for part in content.parts or ()
        if (told := part.function_call or part.function_response)
    }


# --- Contents from anywhere

text = st.sampled_from(["", "yes", "what now?", "年 plan " * 30])
name = st.sampled_from(TOOLS)
call_id = st.sampled_from([None, "1", "2", "3"])
parts = st.one_of(
    st.builds(lambda said: types.Part(text=said), text),
    st.builds(
        lambda tool, number: types.Part(
            function_call=types.FunctionCall(id=number, name=tool, args={"q": 1})
        ),
        name,
        call_id,
    ),
    st.builds(
        lambda tool, number, said: types.Part(
            function_response=types.FunctionResponse(id=number, name=tool, response={"found": said})
        ),
        name,
        call_id,
        text,
    ),
    st.just(types.Part(executable_code=CODE)),
    st.just(
        types.Part(
            code_execution_result=types.CodeExecutionResult(
                outcome=types.Outcome.OUTCOME_OK, output="1"
            )
        )
    ),
    st.builds(
        lambda data: types.Part(inline_data=types.Blob(mime_type="image/png", data=data)),
        st.binary(min_size=1, max_size=20),
    ),
    st.just(types.Part()),
)
contents_of_any_kind = st.lists(
    st.builds(
        lambda role, said: types.Content(role=role, parts=said),
        st.sampled_from(["user", "model", None, "tool", "assistant"]),
        st.lists(parts, max_size=4) | st.none(),
    ),
    max_size=25,
)


@settings(max_examples=count(300, 3_000))
@given(contents=contents_of_any_kind, budget=st.integers(700, 4_000))
def test_any_contents_become_valid(contents: list[types.Content], budget: int) -> None:
    """Whatever a callback made of a history, a question behind it reaches the model in order."""
    question = types.Content(role="user", parts=[types.Part(text="And the newest question?")])
    policy = HistoryPolicy(budget_tokens=budget, output_reserve_tokens=RESERVE)
    try:
        given_on = trim_contents([*contents, question], policy)
    except BudgetExceededError as error:
        parts = error.parts
    else:
        parts = {}
    if parts:
        # What a person said last, in however many messages, stays: it alone is too large, but for
        # what has to stand between two of them.
        needed = parts["current input"] + parts["output reserve"] + parts["margin"]
        assert needed > budget - 2 * content_tokens(placeholder())
        return
    assert faults(given_on) == []
    assert given_on[-1] is question or any(content is question for content in given_on)
    assert wire(trim_contents(given_on, policy)) == wire(given_on)


@settings(max_examples=count(100, 1_000))
@given(seed=st.integers(0, 10**6), data=st.data())
async def test_any_filter_is_repaired(seed: int, data: st.DataObject) -> None:
    """A custom filter may keep any contents in any order: the request stays valid."""
    events = random_log(seed, 20)
    request = await request_of(events)

    def some(contents: list[types.Content]) -> list[types.Content]:
        return data.draw(st.lists(st.sampled_from(contents), unique_by=id))

    part = History(100_000, custom_filter=some)
    part.trim(context_of(events), request)
    assert faults(request.contents) == []
    words = newest_words(events)
    assert words is None or words in wire(request.contents).replace("\\n", "\n")


def test_a_question_is_told_from_what_others_said() -> None:
    """Another agent's turn in a user's role is no question, nor is an answer."""
    said = types.Content(role="user", parts=[types.Part(text="For context: [writer] said: x")])
    assert not looks_asked(said)
    assert looks_asked(types.Content(role="user", parts=[types.Part(text="x")]))
    assert AGENT not in TOOLS
