"""A request counted by its model: inside the budget by its count, or said to be estimated."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import pytest
from google.adk.agents.llm_agent import LlmAgent
from google.adk.apps import App
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.genai import Client, types

from adk_memory_ext import BudgetExceededError, History, HistoryPolicy, MemoryPlugin, unwrap
from adk_memory_ext.errors import ConfigurationError
from adk_memory_ext.history import ModelTokenCounter
from adk_memory_ext.history.counters import counted
from adk_memory_ext.history.tokens import content_tokens
from adk_memory_ext.service import DurableSessionService
from gemini_stub import GeminiStub
from model_input import faults

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from adk_memory_ext.history import RequestReport, TokenCounter

KEY: Final[dict[str, Any]] = {"app_name": "app", "user_id": "user", "session_id": "session"}
BUDGET: Final = 4_000


class Model(BaseLlm):
    """Answers, and keeps the contents of each request."""

    model: str = "model-of-the-test"
    histories: list[list[types.Content]] = []  # noqa: RUF012  # pydantic copies it

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Says the same each time."""
        del stream
        self.histories.append(list(llm_request.contents))
        yield LlmResponse(content=types.ModelContent("a word and another one " * 40))


class Times:
    """A counter that counts so many times what is estimated of the contents."""

    def __init__(self, factor: float) -> None:
        self.factor = factor
        self.asked = 0

    async def __call__(self, request: LlmRequest) -> int:
        """Returns the count."""
        self.asked += 1
        await asyncio.sleep(0)
        return round(self.factor * sum(map(content_tokens, request.contents)))


@asynccontextmanager
async def conversation(
    counter: TokenCounter | None, reports: list[RequestReport], budget: int = BUDGET
) -> AsyncIterator[tuple[Runner, Model]]:
    """Yields a Runner with a counter, and its model."""
    model = Model(histories=[])
    history = History(
        HistoryPolicy(budget_tokens=budget, output_reserve_tokens=500),
        counter=counter,
        on_report=lambda _context, report: reports.append(report),
    )
    agent = LlmAgent(name="agent", model=model, instruction="Help the person.")
    app = App(name="app", root_agent=agent, plugins=[MemoryPlugin(history=history)])
    async with DurableSessionService.from_url("") as sessions:
        await sessions.create_session(**KEY)
        async with Runner(app=app, session_service=sessions) as runner:
            yield runner, model


async def say(runner: Runner, text: str) -> None:
    """Runs one turn."""
    async for _event in runner.run_async(
        user_id="user", session_id="session", new_message=types.UserContent(text)
    ):
        pass


def client_of(gemini: GeminiStub) -> Client:
    """Returns google-genai's client over the stub."""
    return Client(api_key="key", http_options=types.HttpOptions(base_url=gemini.url))


@pytest.mark.parametrize("factor", [0.5, 1.0, 1.7, 3.0])
async def test_every_request_is_inside_its_budget_as_the_model_counts(factor: float) -> None:
    """However far the estimate is off, what is sent was counted, and leaves room for the answer."""
    counter, reports = Times(factor), list[Any]()
    async with conversation(counter, reports) as (runner, model):
        for number in range(25):
            await say(runner, f"question {number}")
    room = BUDGET - 500 - BUDGET * 0.05
    assert len(reports) == 25
    for report, history in zip(reports, model.histories, strict=True):
        assert report.counted_by == "model"
        assert report.counted_tokens == round(factor * sum(map(content_tokens, history)))
        assert report.counted_tokens <= room
        assert report.attributes()["memext.history.counted_tokens"] == report.counted_tokens
        assert faults(history) == []
    # One look at a request, and further ones only at those that were too large.
    assert counter.asked <= 25 * 3
    if factor > 1:
        assert counter.asked > 25
        assert max(report.counted_tokens for report in reports) > room / 2


async def test_the_same_log_is_the_same_request() -> None:
    """Asked by a counter that counts alike, the same conversation gives the same digests."""
    digests = []
    for _run in range(2):
        reports: list[RequestReport] = []
        async with conversation(Times(1.4), reports) as (runner, _model):
            for number in range(12):
                await say(runner, f"question {number}")
        digests.append([report.digest for report in reports])
    assert digests[0] == digests[1]


async def test_what_cannot_fit_as_the_model_counts_is_an_error_before_any_call() -> None:
    """The estimate says that it fits and the model that it does not: nothing is sent."""
    async with conversation(Times(4), [], budget=1_500) as (runner, model):
        with pytest.raises(RuntimeError) as caught:
            await say(runner, "word " * 400)
    error = unwrap(caught.value)
    assert isinstance(error, BudgetExceededError)
    assert error.parts["current input"] > 1_000
    assert model.histories == []


async def test_a_request_that_cannot_fit_is_as_it_was() -> None:
    """The contents are those that ADK made, not those of the last attempt."""
    request = LlmRequest(contents=[types.UserContent("word " * 400)])
    contents = request.contents

    def fitting(ratio: float) -> RequestReport:
        request.contents = []
        raise BudgetExceededError({"current input": round(ratio)}, 1)

    with pytest.raises(BudgetExceededError):
        await counted(fitting, request, 1.0, Times(1))
    assert request.contents is contents


async def test_a_counter_that_fails_leaves_the_estimate(caplog: pytest.LogCaptureFixture) -> None:
    """The turn goes on, the report says why it was estimated, and the log says no words."""

    async def failing(request: LlmRequest) -> int:
        await asyncio.sleep(0)
        raise ConnectionError(str(request.contents))

    reports: list[RequestReport] = []
    async with conversation(failing, reports) as (runner, model):
        await say(runner, "a secret")
    assert len(model.histories) == 1
    assert [report.counted_by for report in reports] == ["estimate, because of ConnectionError"]
    assert reports[0].counted_tokens is None
    assert "ConnectionError" in caplog.text
    assert "secret" not in caplog.text


async def test_the_models_own_counter_is_asked_over_the_wire() -> None:
    """`count_tokens` gets contents, system text and tools, and no name of a file."""
    with GeminiStub(lambda _body: []) as gemini:
        counter = ModelTokenCounter(client_of(gemini))
        blob = types.Blob(data=b"picture", mime_type="image/png", display_name="me.png")
        request = LlmRequest(
            model="gemini-2.5-flash",
            contents=[
                types.UserContent("how many?"),
                types.UserContent(types.Part(inline_data=blob)),
            ],
        )
        request.config.system_instruction = "Be brief."
        declared = types.FunctionDeclaration(name="look_up", description="Looks it up.")
        request.config.tools = [types.Tool(function_declarations=[declared])]
        tokens = await counter(request)
    (asked,) = gemini.counted
    assert asked.model == "gemini-2.5-flash"
    assert tokens == len(asked.body) // 4
    for words in (b"how many?", b"Be brief.", b"look_up"):
        assert words in asked.body
    assert b"me.png" not in asked.body
    assert blob.display_name == "me.png"


async def test_where_everything_can_be_counted_everything_is_handed_over() -> None:
    """On Vertex AI system text and tools go where they belong, and not among the contents."""
    asked: dict[str, Any] = {}

    async def count_tokens(**how: Any) -> types.CountTokensResponse:
        await asyncio.sleep(0)
        asked.update(how)
        return types.CountTokensResponse(total_tokens=7)

    models = SimpleNamespace(count_tokens=count_tokens)
    client: Any = SimpleNamespace(vertexai=True, aio=SimpleNamespace(models=models))
    request = LlmRequest(model="gemini-2.5-flash", contents=[types.UserContent("how many?")])
    request.config.system_instruction = "Be brief."
    request.config.tools = [types.Tool(function_declarations=[])]
    assert await ModelTokenCounter(client)(request) == 7
    assert asked["contents"] == request.contents
    assert asked["config"].system_instruction == "Be brief."
    assert asked["config"].tools == request.config.tools


async def test_a_model_that_cannot_be_reached_is_estimated() -> None:
    """Nobody listens, or nobody answers in time: the estimate stands."""
    with GeminiStub(lambda _body: []) as gemini:
        client = client_of(gemini)
    reports: list[RequestReport] = []
    async with conversation(ModelTokenCounter(client), reports) as (runner, _model):
        await say(runner, "hello")
    assert reports[0].counted_by.startswith("estimate, because of ")
    with GeminiStub(lambda _body: []) as gemini:
        hasty = ModelTokenCounter(client_of(gemini), timeout=timedelta(microseconds=1))
        request = LlmRequest(model="gemini-2.5-flash", contents=[types.UserContent("x")])
        with pytest.raises(TimeoutError):
            await hasty(request)


async def test_as_a_plain_callback_it_is_awaited() -> None:
    """`trim_counted` is an agent's callback; `trim`, which cannot wait, says so."""
    counter = Times(2)
    history = History(BUDGET, counter=counter)
    model = Model(histories=[])
    agent = LlmAgent(name="agent", model=model, before_model_callback=history.trim_counted)
    async with (
        DurableSessionService.from_url("") as sessions,
        Runner(app_name="app", agent=agent, session_service=sessions) as runner,
    ):
        await sessions.create_session(**KEY)
        await say(runner, "hello")
    assert counter.asked == 1
    with pytest.raises(ConfigurationError, match="trim_counted"):
        history.trim(None, LlmRequest())  # type: ignore[arg-type]  # it looks at neither


def test_a_timeout_without_meaning_is_refused() -> None:
    """No time at all is none."""
    with pytest.raises(ConfigurationError):
        ModelTokenCounter(timeout=timedelta(0))
