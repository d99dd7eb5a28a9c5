"""The history part in a Runner: budgets, what goes first, stable prefixes, reports, errors."""

from __future__ import annotations

import json
import pickle
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest
from google.adk.agents.llm_agent import LlmAgent
from google.adk.agents.run_config import RunConfig
from google.adk.apps import App
from google.adk.events.event import Event
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.genai import types
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from adk_memory_ext import (
    BudgetExceededError,
    ConfigurationError,
    DurableSessionService,
    History,
    HistoryPolicy,
    MemoryPlugin,
    unwrap,
)
from adk_memory_ext.history import (
    KEEP,
    ClampAnswers,
    ClearAnswers,
    KeepLatest,
    RequestReport,
    trim_contents,
)
from adk_memory_ext.history.calibration import ESTIMATE, calibrated
from adk_memory_ext.history.entries import CONTINUATION
from adk_memory_ext.history.strategies import CLEARED, SUPERSEDED
from adk_memory_ext.history.tokens import content_tokens, text_tokens
from adk_memory_ext.history.validity import INTERRUPTED, PENDING
from conversation import texts
from histories import into
from model_input import faults

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Sequence

    from google.adk.models.llm_request import LlmRequest

KEY: Final[dict[str, Any]] = {"app_name": "app", "user_id": "user", "session_id": "session"}


class Model(BaseLlm):
    """Calls `look_up` when a question says so, and keeps what it was sent, as it was sent."""

    model: str = "offline"
    answer: str = "I see."
    per_estimate: float = 0.0
    """Tokens that it reports for each byte of the request; 0 to report none."""
    requests: list[list[str]] = []  # noqa: RUF012  # pydantic copies it
    histories: list[list[types.Content]] = []  # noqa: RUF012

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Answers from the request alone."""
        del stream
        self.histories.append(list(llm_request.contents))
        sent = [content.model_dump_json(exclude_none=True) for content in llm_request.contents]
        self.requests.append(sent)
        last = (llm_request.contents[-1].parts or [types.Part()])[0]
        if "look up" in (last.text or ""):
            part = types.Part.from_function_call(name="look_up", args={"what": last.text})
        else:
            part = types.Part(text=self.answer)
        usage = None
        if self.per_estimate:
            counted = int(self.per_estimate * sum(map(len, sent)))
            usage = types.GenerateContentResponseUsageMetadata(prompt_token_count=counted)
        yield LlmResponse(content=types.Content(role="model", parts=[part]), usage_metadata=usage)


def look_up(what: str) -> dict[str, Any]:
    """Looks something up."""
    return {"found": f"{what}: " + "a long answer of many words " * 60}


@asynccontextmanager
async def conversation(
    model: Model, history: History | None, *, url: str = ""
) -> AsyncIterator[Runner]:
    """Yields a Runner with a tool and a session."""
    agent = LlmAgent(name="agent", model=model, tools=[look_up], instruction="Help the person.")
    # Without recovery, which would answer open calls in the log before history sees them.
    plugin = MemoryPlugin(recovery=None, history=history)
    app = App(name="app", root_agent=agent, plugins=[plugin])
    async with DurableSessionService.from_url(url) as sessions:
        await sessions.get_or_create_session(**KEY)
        async with Runner(app=app, session_service=sessions) as runner:
            yield runner


async def say(runner: Runner, text: str) -> list[Event]:
    """Returns the events of one turn."""
    message = types.Content(role="user", parts=[types.Part(text=text)])
    return [
        event
        async for event in runner.run_async(
            user_id="user", session_id="session", new_message=message, run_config=RunConfig()
        )
    ]


def user(text: str) -> types.Content:
    """Returns something that a person said."""
    return types.Content(role="user", parts=[types.Part(text=text)])


def model(text: str) -> types.Content:
    """Returns something that the model said."""
    return types.Content(role="model", parts=[types.Part(text=text)])


def use(tool: str, answer: str, number: int) -> list[types.Content]:
    """Returns a call with its answer."""
    call = types.FunctionCall(id=f"c{number}", name=tool, args={"n": number})
    told = types.FunctionResponse(id=f"c{number}", name=tool, response={"text": answer})
    return [
        types.Content(role="model", parts=[types.Part(function_call=call)]),
        types.Content(role="user", parts=[types.Part(function_response=told)]),
    ]


def answers_in(contents: Sequence[types.Content]) -> list[dict[str, Any]]:
    """Returns the tools' answers in contents, in order."""
    return [
        part.function_response.response or {}
        for content in contents
        for part in content.parts or ()
        if part.function_response
    ]


# --- The budget


async def test_one_line_bounds_every_request() -> None:
    """`MemoryPlugin(budget_tokens=…)` keeps 60 turns inside the budget, each valid and answered."""
    llm = Model(answer="word " * 100, requests=[], histories=[])
    agent = LlmAgent(name="agent", model=llm, tools=[look_up])
    app = App(name="app", root_agent=agent, plugins=[MemoryPlugin(budget_tokens=4_000)])
    async with DurableSessionService.from_url("") as sessions:
        await sessions.create_session(**KEY)
        async with Runner(app=app, session_service=sessions) as runner:
            for number in range(60):
                events = await say(runner, f"look up item {number}" if number % 3 else "and so?")
                assert texts(events)[-1] == llm.answer
    assert len(llm.histories) == 100
    assert max(sum(map(content_tokens, h)) for h in llm.histories) <= 4_000
    assert all(faults(history) == [] for history in llm.histories)


async def test_it_is_a_plain_callback_too() -> None:
    """`before_model_callback=History(…).trim` does the same without a plugin."""
    llm = Model(answer="word " * 300, requests=[], histories=[])
    agent = LlmAgent(name="agent", model=llm, before_model_callback=History(2_000).trim)
    async with (
        DurableSessionService.from_url("") as sessions,
        Runner(app_name="app", agent=agent, session_service=sessions) as runner,
    ):
        await sessions.create_session(**KEY)
        for number in range(20):
            await say(runner, f"question {number}")
    assert max(sum(map(content_tokens, h)) for h in llm.histories) <= 2_000


async def test_what_cannot_fit_ends_the_turn_before_any_call() -> None:
    """The error names each part with its size, and `unwrap` finds it behind ADK's own."""
    llm = Model(requests=[], histories=[])
    async with conversation(llm, History(2_000)) as runner:
        with pytest.raises(RuntimeError) as caught:
            await say(runner, "a very long question " * 800)
        stored = await runner.session_service.get_session(**KEY)
    error = unwrap(caught.value)
    assert isinstance(error, BudgetExceededError)
    assert error.parts["current input"] > 2_000
    assert error.parts["system text"] > 0
    assert error.parts["tool schemas"] > 0
    assert list(error.parts) == [
        "system text",
        "tool schemas",
        "output reserve",
        "margin",
        "candidates",
        "current input",
        "kept messages",
    ]
    assert "very long" not in str(error)
    assert llm.requests == []
    assert stored is not None
    assert texts(stored.events)[0].startswith("a very long")  # what was asked is not lost


async def test_a_readable_answer_instead_of_an_error() -> None:
    """By option the turn ends with an answer that says what is too large."""
    llm = Model(requests=[], histories=[])
    history = History(2_000, on_over_budget="answer")
    async with conversation(llm, history) as runner:
        events = await say(runner, "a very long question " * 800)
    assert "its budget is 2,000" in texts(events)[-1]
    assert events[-1].error_code == "MEMEXT_BUDGET_EXCEEDED"
    assert llm.requests == []


def test_the_error_travels_between_processes() -> None:
    """Pickled and back it says the same."""
    error = BudgetExceededError({"system text": 5, "margin": 6}, 10)
    again = pickle.loads(pickle.dumps(error))  # noqa: S301  # made here
    assert (str(again), again.parts, again.budget_tokens) == (str(error), error.parts, 10)


def test_unwrap_looks_everywhere() -> None:
    """Causes, contexts and groups are looked through, circles too; a foreign error gives None."""
    error = BudgetExceededError({"margin": 6}, 5)
    outer = RuntimeError("outer")
    outer.__cause__ = ExceptionGroup("group", [ValueError("no"), error])
    other = RuntimeError("around")
    other.__context__ = outer
    assert unwrap(other) is error
    assert unwrap(error) is error
    circle = ValueError("a")
    circle.__context__ = ValueError("b")
    circle.__context__.__context__ = circle
    assert unwrap(circle) is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"budget_tokens": 10},
        {"budget_tokens": 1_000, "margin": 1.0},
        {"budget_tokens": 1_000, "refill": 0},
        {"budget_tokens": 1_000, "output_reserve_tokens": 1_000},
        {"budget_tokens": 1_000, "exclude_tools": "search"},
    ],
)
def test_a_policy_without_meaning_is_refused(wrong: dict[str, Any]) -> None:
    """Each wrong number is named before anything runs."""
    with pytest.raises(ConfigurationError, match=list(wrong)[-1]):
        HistoryPolicy(**wrong)


def test_wrong_options_are_refused() -> None:
    """Of the plugin, the part and the strategies."""
    with pytest.raises(ConfigurationError, match="not both"):
        MemoryPlugin(budget_tokens=1_000, history=History(1_000))
    with pytest.raises(ConfigurationError, match="on_over_budget"):
        History(1_000, on_over_budget="ignore")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="tokens"):
        ClampAnswers(10)
    with pytest.raises(ConfigurationError, match="keep_recent"):
        ClearAnswers(0)


# --- What goes first


def policy(budget: int, *strategies: Any, **options: Any) -> HistoryPolicy:
    """Returns a policy without a reserve, so that numbers are easy."""
    if strategies:
        options["strategies"] = strategies
    return HistoryPolicy(budget_tokens=budget, output_reserve_tokens=0, margin=0, **options)


def test_only_the_latest_answer_of_a_tool_stays() -> None:
    """Earlier answers get a stub, their calls stay; another tool's answers are not touched."""
    contents = [user("start")]
    for number in range(4):
        contents += use("validate", "plan " * 300, number)
    contents += [*use("search", "found " * 50, 9), user("and now?")]
    told = answers_in(trim_contents(contents, policy(1_500, KeepLatest({"validate"}))))
    assert told == [SUPERSEDED] * 3 + [{"text": "plan " * 300}, {"text": "found " * 50}]


def test_large_answers_keep_head_and_tail() -> None:
    """A clamped answer says how much is missing between its head and its tail."""
    long = "BEGIN " + "x" * 20_000 + " END"
    contents = [user("start"), *use("read", long, 1)]
    contents += [*use("read", "short", 2), user("and now?")]
    told = answers_in(trim_contents(contents, policy(2_000, ClampAnswers(200, keep_recent=1))))
    assert told[0]["status"] == "clamped"
    assert told[0]["head"].startswith('{"text":"BEGIN ')
    assert told[0]["tail"].endswith(' END"}')
    assert told[0]["left_out_tokens"] > 3_500
    assert told[1] == {"text": "short"}


def test_old_answers_are_cleared_before_invocations_go() -> None:
    """The newest answers stay, older ones say that they went, and every question is there."""
    contents: list[types.Content] = []
    for number in range(5):
        contents += [user(f"question {number}"), *use("search", "word " * 300, number)]
    contents.append(user("and now?"))
    trimmed = trim_contents(contents, policy(1_700, ClearAnswers(keep_recent=2), refill=1.0))
    told = answers_in(trimmed)
    assert told[-2:] == [{"text": "word " * 300}] * 2
    assert CLEARED in told
    asked = [part.text for c in trimmed for part in c.parts or () if part.text]
    assert asked == [f"question {number}" for number in range(5)] + ["and now?"]


def test_whole_invocations_go_oldest_first() -> None:
    """What is left begins with a question, and the newest invocations are whole."""
    contents: list[types.Content] = []
    for number in range(20):
        contents += [user(f"question {number}"), model("word " * 100)]
    contents.append(user("and now?"))
    trimmed = trim_contents(contents, policy(1_500))
    assert trimmed == contents[len(contents) - len(trimmed) :]
    assert (trimmed[0].parts or [])[0].text in [f"question {number}" for number in range(20)]


def test_the_first_message_stays_by_option() -> None:
    """What the conversation began with is there when all that followed is gone."""
    contents = [user("my goal: a job"), model("word " * 100)]
    for number in range(20):
        contents += [user(f"question {number}"), model("word " * 100)]
    contents.append(user("and now?"))
    trimmed = trim_contents(contents, policy(1_000, keep_first_message=True))
    assert trimmed[0] is contents[0]
    assert trimmed[-1] is contents[-1]
    assert faults(trimmed) == []


def test_one_long_invocation_is_squeezed() -> None:
    """Of a hundred tool steps behind one question the question and the last steps stay."""
    contents = [user("do it all")]
    for number in range(100):
        contents += use("search", "word " * 200, number)
    trimmed = trim_contents(contents, policy(2_000))
    assert trimmed[0] is contents[0]
    assert trimmed[-1] is contents[-1]
    assert faults(trimmed) == []


def test_a_huge_newest_answer_is_clamped_rather_than_refused() -> None:
    """When the last answer alone is too large, its head and tail go to the model."""
    contents = [user("read it"), *use("read", "x" * 100_000, 1)]
    trimmed = trim_contents(contents, policy(1_000))
    assert answers_in(trimmed)[0]["status"] == "clamped"


def test_no_strategy_loses_what_a_text_says() -> None:
    """Lone surrogates, NUL and values that are no JSON are counted and clamped like the rest."""
    response: Any = {"a": "\ud800" * 9_000, "b": "\0", "c": {1, 2}, "d": float("nan")}
    told = types.FunctionResponse(name="odd", response=response)
    call = types.FunctionCall(name="odd", args={"\ud800": object()})
    contents = [
        user("go"),
        types.Content(role="model", parts=[types.Part(function_call=call)]),
        types.Content(role="user", parts=[types.Part(function_response=told)]),
    ]
    assert answers_in(trim_contents(contents, policy(1_000)))[0]["status"] == "clamped"


# --- What the log knows


async def test_a_marked_event_stays() -> None:
    """An event whose metadata says so is in every request, however old it is."""
    llm = Model(answer="word " * 200, requests=[], histories=[])
    async with conversation(llm, History(2_500)) as runner:
        session = await runner.session_service.get_session(**KEY)
        assert session is not None
        event = Event(author="user", invocation_id="first", content=user("Call me Sam, always."))
        event.custom_metadata = {KEEP: True}
        await runner.session_service.append_event(session, event)
        for number in range(20):
            await say(runner, f"question {number}")
    assert all("Call me Sam, always." in request[0] for request in llm.requests)
    assert any("question 0" not in "".join(request) for request in llm.requests)


async def test_an_interrupted_call_is_told_to_the_model() -> None:
    """After a crash between call and answer the model sees the call, with an unknown outcome."""
    llm = Model(requests=[], histories=[])
    async with conversation(llm, History(8_000)) as runner:
        sessions = runner.session_service
        session = await sessions.get_session(**KEY)
        assert session is not None
        call = types.FunctionCall(id="adk-1", name="book", args={"seat": "12A"})
        for author, content in (
            ("user", user("book it")),
            ("agent", types.Content(role="model", parts=[types.Part(function_call=call)])),
        ):
            event = Event(author=author, invocation_id="first", content=content)
            await sessions.append_event(session, event)
        await say(runner, "is it booked?")
    sent = llm.histories[0]
    assert faults(sent) == []
    assert answers_in(sent) == [INTERRUPTED]
    assert [part.function_call.name for c in sent for part in c.parts or () if part.function_call]
    assert "adk-1" not in "".join(llm.requests[0])


def test_a_history_ends_with_a_user() -> None:
    """Where the newest message is not there, ADK's own words ask for more, and they are counted."""
    contents = [user("question"), model("word " * 30)]
    sent = trim_contents(contents, policy(2_000))
    assert sent[:-1] == contents
    assert (sent[-1].role, (sent[-1].parts or [])[0].text) == ("user", CONTINUATION)
    assert trim_contents(sent, policy(2_000)) == sent


async def test_a_long_running_call_is_pending() -> None:
    """A call that is waited for stays in the request, and its stub does not say interrupted."""
    llm = Model(answer="word " * 200, requests=[], histories=[])
    async with conversation(llm, History(2_500)) as runner:
        sessions = runner.session_service
        session = await sessions.get_session(**KEY)
        assert session is not None
        call = types.FunctionCall(id="lr-1", name="approve", args={})
        content = types.Content(role="model", parts=[types.Part(function_call=call)])
        for event in (
            Event(author="user", invocation_id="first", content=user("approve it")),
            Event(
                author="agent",
                invocation_id="first",
                content=content,
                long_running_tool_ids={"lr-1"},
            ),
        ):
            await sessions.append_event(session, event)
        for number in range(15):
            await say(runner, f"question {number}")
    assert all(answers_in(history) == [PENDING] for history in llm.histories)
    assert all(faults(history) == [] for history in llm.histories)


# --- Stable prefixes and savings


def cacheable(requests: Sequence[Sequence[str]]) -> float:
    """Returns the part of all tokens that stood at the same place in the request before."""
    total = same = 0
    before: Sequence[str] = ()
    for request in requests:
        is_same = True
        for place, sent in enumerate(request):
            tokens = text_tokens(sent)
            total += tokens
            is_same = is_same and place < len(before) and before[place] == sent
            same += tokens if is_same else 0
        before = request
    return same / total


async def test_most_of_a_long_conversation_is_cacheable() -> None:
    """Over 200 turns 85 % of the prompt's tokens are where they were, at 75 % budget use."""
    llm = Model(answer="a reply of some length " * 8, requests=[], histories=[])
    reports: list[RequestReport] = []
    history = History(
        HistoryPolicy(budget_tokens=8_000, output_reserve_tokens=0, margin=0),
        on_report=into(reports),
    )
    async with conversation(llm, history) as runner:
        for number in range(200):
            await say(runner, f"question {number}, with some words in it")
    full = [report for report in reports if report.reason == "over budget"]
    used = sum(report.prompt_tokens for report in full) / (8_000 * len(full))
    assert len(full) > 60
    assert 0.65 < used < 0.85
    assert cacheable(llm.requests) > 0.85


@pytest.mark.parametrize("found", [0, 80])
def test_tools_and_large_turns_are_cacheable_too(found: int) -> None:
    """Over 200 turns of up to a twentieth of the budget each, 85 % at 75 % budget use."""
    limits = policy(16_000)
    contents: list[types.Content] = []
    requests: list[list[str]] = []
    used: list[int] = []
    for number in range(200):
        contents.append(user(f"question {number}, with some words in it"))
        if found:
            contents += use("search", f"{number} found " * found, number)
        sent = trim_contents(contents, limits)
        requests.append([content.model_dump_json(exclude_none=True) for content in sent])
        used.append(sum(map(content_tokens, sent)))
        contents.append(model("a reply of some length " * 70))
    full = used[len(used) // 2 :]
    assert 0.65 < sum(full) / len(full) / 16_000 < 0.85
    assert cacheable(requests) > 0.85


async def test_a_tool_heavy_transcript_saves_nine_tenths() -> None:
    """Over 100 turns with tools at least 89 % of all tokens are saved, pinned answers intact."""
    contents: list[types.Content] = [user("the goal"), *use("agreed", "terms " * 40, 0)]
    limits = policy(8_000, exclude_tools=frozenset({"agreed"}))
    whole = sent = 0
    for number in range(1, 101):
        contents += [user(f"question {number}"), *use("search", f"{number} found " * 300, number)]
        contents += use("read", f"{number} page " * 300, number)
        trimmed = trim_contents(contents, limits)
        whole += sum(map(content_tokens, contents))
        sent += sum(map(content_tokens, trimmed))
        assert {"text": "terms " * 40} in answers_in(trimmed)
        contents.append(model("The answer."))
    assert 1 - sent / whole >= 0.89


# --- Calibration


async def test_estimates_follow_what_the_model_reports() -> None:
    """A model that counts twice as many tokens gets requests of half the size, after one call."""
    sizes = {}
    for counted in (0.0, 0.5):
        llm = Model(answer="word " * 100, per_estimate=counted, requests=[], histories=[])
        async with conversation(llm, History(4_000)) as runner:
            for number in range(30):
                await say(runner, f"question {number}")
            session = await runner.session_service.get_session(**KEY)
        assert session is not None
        sizes[counted] = max(sum(map(len, request)) for request in llm.requests[5:])
        ratio = calibrated(session.events)
        assert ratio == 1.0 if not counted else 1.5 <= ratio <= 2.5
        noted = [e for e in session.events if ESTIMATE in (e.custom_metadata or {})]
        assert len(noted) == (30 if counted else 0)
    assert sizes[0.5] < 0.7 * sizes[0.0]
    assert sizes[0.5] * 0.5 < 4_000  # as the model counts


def test_characters_of_each_script_count_as_they_should() -> None:
    """A Chinese character is about a token, four Latin letters are, and so is a digit."""
    assert text_tokens("word" * 100) == 100
    assert text_tokens("學" * 100) == 100
    assert text_tokens("ж" * 100) == 40
    assert text_tokens("1" * 100) == 100
    assert text_tokens("") == 0
    assert text_tokens("a") == 1


# --- Reports


async def test_a_report_says_what_became_of_each_event() -> None:
    """Each event of the log stands in a line with its fate and its tokens, and no word does."""
    reports: list[RequestReport] = []
    llm = Model(answer="secret " * 100, requests=[], histories=[])
    history = History(3_000, on_report=into(reports))
    async with conversation(llm, history) as runner:
        for number in range(20):
            await say(runner, f"look up secret {number}" if number % 2 else "and so?")
        session = await runner.session_service.get_session(**KEY)
    assert session is not None
    report = reports[-1]
    events = {name for line in report.lines for name in line.events}
    assert events == {event.id for event in session.events[:-1]}
    assert report.fates["dropped"] > 0
    assert report.fates["kept"] > 0
    assert report.tokens_before > report.tokens_after
    assert report.tokens_after == sum(line.tokens_after for line in report.lines)
    assert "secret" not in json.dumps(report.to_json())


async def test_a_span_carries_the_report() -> None:
    """OpenTelemetry's current span gets counts, tokens and the digest."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("test")
    llm = Model(requests=[], histories=[])
    reports: list[RequestReport] = []
    history = History(3_000, on_report=into(reports))
    plain = history.trim

    def traced(callback_context: Any, llm_request: LlmRequest) -> LlmResponse | None:
        with tracer.start_as_current_span("model call"):
            return plain(callback_context, llm_request)

    agent = LlmAgent(name="agent", model=llm, before_model_callback=traced)
    async with (
        DurableSessionService.from_url("") as sessions,
        Runner(app_name="app", agent=agent, session_service=sessions) as runner,
    ):
        await sessions.create_session(**KEY)
        await say(runner, "hello")
    (span,) = exporter.get_finished_spans()
    assert span.attributes is not None
    assert span.attributes["memext.history.digest"] == reports[0].digest
    assert span.attributes["memext.history.kept"] == 1
    assert span.attributes["memext.history.reason"] == "fits"


async def test_the_same_log_is_the_same_request_in_a_new_runner() -> None:
    """What is asked after a restart is sent with the very bytes that would have been sent."""
    digests = []
    for is_restarted in (False, True):
        reports: list[RequestReport] = []
        llm = Model(answer="word " * 100, requests=[], histories=[])
        history = History(3_000, on_report=into(reports))
        async with conversation(llm, history) as runner:
            for number in range(20):
                await say(runner, f"look up {number}")
            if is_restarted:
                again = History(3_000, on_report=into(reports))
                agent = LlmAgent(
                    name="agent", model=llm, tools=[look_up], instruction="Help the person."
                )
                app = App(name="app", root_agent=agent, plugins=[MemoryPlugin(history=again)])
                async with Runner(app=app, session_service=runner.session_service) as other:
                    await say(other, "the last question")
            else:
                await say(runner, "the last question")
        digests.append(reports[-1].digest)
    assert digests[0] == digests[1]
