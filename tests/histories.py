"""Random logs of conversations, as ADK writes them, and the requests that ADK makes of them."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.invocation_context import InvocationContext
from google.adk.agents.llm_agent import LlmAgent
from google.adk.agents.run_config import RunConfig
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions, EventCompaction
from google.adk.flows.llm_flows.contents import request_processor
from google.adk.models.llm_request import LlmRequest
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google.adk.sessions.session import Session
from google.genai import types

if TYPE_CHECKING:
    from collections.abc import Callable

    from adk_memory_ext.history import RequestReport

AGENT: Final = "coordinator"
AGENTS: Final = (AGENT, "researcher", "writer")
TOOLS: Final = ("search", "read_file", "validate", "book")
WORDS: Final = "the plan for week two needs SQL 學習計畫 sechs Stunden кофе 🎒".split()  # noqa: SIM905
CODE: Final = types.ExecutableCode(code="1 + 1", language=types.Language.PYTHON)
RESULT: Final = types.CodeExecutionResult(outcome=types.Outcome.OUTCOME_OK, output="2")
_START: Final = 1_700_000_000.0


@dataclass(kw_only=True)
class Log:
    """A conversation that is made up as it goes on."""

    chance: random.Random
    events: list[Event] = field(default_factory=list)
    invocation: int = 0
    calls: int = 0
    branch: str | None = None
    pending: list[types.FunctionCall] = field(default_factory=list)
    """Calls of long-running tools without their last answer."""

    def add(self, author: str, role: str, parts: list[types.Part], **options: Any) -> Event:
        """Appends an event."""
        number = len(self.events)
        event = Event(
            id=f"event-{number}",
            invocation_id=f"invocation-{self.invocation}",
            author=author,
            timestamp=_START + number,
            content=types.Content(role=role, parts=parts),
            branch=self.branch,
            **options,
        )
        self.events.append(event)
        return event

    def ask(self) -> None:
        """A person begins an invocation, or answers for a long-running tool."""
        self.invocation += 1
        if self.pending and self.chance.random() < 0.4:
            call = self.pending.pop(self.chance.randrange(len(self.pending)))
            self.add("user", "user", [_answered(call, {"status": "done", "by": self.text(3)})])
            return
        parts = [types.Part(text=f"Question {self.invocation}: {self.text()}")]
        if self.chance.random() < 0.08:
            blob = types.Blob(mime_type="image/png", data=self.chance.randbytes(200))
            parts.insert(0, types.Part(inline_data=blob))
        self.add("user", "user", parts)

    def text(self, most: int = 60) -> str:
        """Returns something to say."""
        return " ".join(self.chance.choices(WORDS, k=self.chance.randint(1, most)))

    def reply(self, author: str) -> None:
        """An agent says something."""
        parts = [types.Part(text=self.text())]
        if self.chance.random() < 0.1:
            parts.insert(0, types.Part(text=self.text(), thought=True))
        if self.chance.random() < 0.05:
            parts.append(types.Part(text="", thought_signature=self.chance.randbytes(12)))
        self.add(author, "model", parts)

    def use_tools(self, author: str) -> None:
        """An agent calls tools, one or several at once; some never answer."""
        made = []
        for _ in range(self.chance.choice((1, 1, 1, 2, 4))):
            self.calls += 1
            name = self.chance.choice(TOOLS)
            made.append(
                types.FunctionCall(id=f"adk-{self.calls}", name=name, args={"query": self.text(8)})
            )
        parts = [types.Part(function_call=call) for call in made]
        if self.chance.random() < 0.3:
            parts[0].thought_signature = self.chance.randbytes(16)
        fate = self.chance.random()
        if fate < 0.06:  # the process was killed
            self.add(author, "model", parts)
            return
        if fate < 0.14:
            slow = made[0]
            self.add(author, "model", parts, long_running_tool_ids={slow.id})
            self.pending.append(slow)
            quick = [_answered(call, self.result()) for call in made[1:]]
            if fate < 0.11:
                quick.insert(0, _answered(slow, {"status": "pending"}))
            if quick:
                self.add(author, "user", quick)
            return
        self.add(author, "model", parts)
        told = [_answered(call, self.result()) for call in made]
        if fate > 0.95 and len(told) > 1:
            told.pop()
        self.add(author, "user", told)

    def result(self) -> dict[str, Any]:
        """Returns what a tool found."""
        rows = self.chance.choice((0, 1, 3, 20))
        return {"rows": [self.text(20) for _ in range(rows)], "ok": True}

    def run_code(self, author: str) -> None:
        """A model runs code, in one content or over two."""
        code = types.Part(executable_code=CODE.model_copy())
        result = types.Part(
            code_execution_result=types.CodeExecutionResult(
                outcome=types.Outcome.OUTCOME_OK, output="2"
            )
        )
        if self.chance.random() < 0.5:
            self.add(author, "model", [code, result, types.Part(text="It is two.")])
        else:
            self.add(author, "model", [code])
            self.add(author, "user", [result])

    def branches(self) -> None:
        """Several agents work at once, each in its branch."""
        for author in AGENTS[1:]:
            self.branch = f"parallel.{author}"
            self.use_tools(author)
            self.reply(author)
        self.branch = None

    def housekeeping(self) -> None:
        """A change of state, a summary, a rewind, or a request for confirmation."""
        kind = self.chance.choice(("state", "summary", "rewind", "confirmation"))
        if kind == "state":
            event = self.add(AGENT, "model", [])
            event.content = None
        elif kind == "summary" and len(self.events) > 6:
            last = self.events[self.chance.randrange(3, len(self.events) - 2)]
            event = self.add("user", "model", [])
            event.content = None
            event.actions = EventActions(
                compaction=EventCompaction(
                    start_timestamp=_START,
                    end_timestamp=last.timestamp,
                    compacted_content=types.Content(
                        role="model", parts=[types.Part(text=f"Summary: {self.text(20)}")]
                    ),
                )
            )
        elif kind == "rewind" and self.invocation > 3:
            target = f"invocation-{self.chance.randint(self.invocation - 2, self.invocation)}"
            event = self.add("user", "user", [])
            event.content = None
            event.actions = EventActions(rewind_before_invocation_id=target)
        elif kind == "confirmation":
            call = types.FunctionCall(
                id=f"adk-c{len(self.events)}", name="adk_request_confirmation", args={"hint": "?"}
            )
            self.add(
                AGENT, "model", [types.Part(function_call=call)], long_running_tool_ids={call.id}
            )


def _answered(call: types.FunctionCall, response: dict[str, Any]) -> types.Part:
    answer = types.FunctionResponse(id=call.id, name=call.name, response=response)
    return types.Part(function_response=answer)


def random_log(seed: int, size: int | None = None) -> list[Event]:
    """Returns a log of at least `size` events that ends where a model is about to be called."""
    chance = random.Random(seed)  # noqa: S311  # no cryptography
    if size is None:
        size = chance.choice((1, 2, 5, 10, 20, 40, 80, 400 if seed % 20 == 0 else 60))
    log = Log(chance=chance)
    log.ask()
    while len(log.events) < size:
        _go_on(log)
    if len(log.events) > 1:
        log.ask()
        if chance.random() < 0.4:
            log.use_tools(AGENT)
    return log.events


def _go_on(log: Log) -> None:
    chance = log.chance.random()
    author = AGENT if log.chance.random() < 0.8 else log.chance.choice(AGENTS[1:])
    if chance < 0.25:
        log.ask()
    elif chance < 0.55:
        log.use_tools(author)
    elif chance < 0.85:
        log.reply(author)
    elif chance < 0.9:
        log.run_code(author)
    elif chance < 0.94:
        log.branches()
    else:
        log.housekeeping()


def into(reports: list[RequestReport]) -> Callable[[CallbackContext, RequestReport], None]:
    """Returns what keeps each report of a `History`."""

    def keep(_context: CallbackContext, report: RequestReport) -> None:
        reports.append(report)

    return keep


_SESSIONS: Final = InMemorySessionService()
_READER: Final = LlmAgent(name=AGENT, model="gemini-2.5-flash")


async def request_of(events: list[Event], instruction: str = "Help.") -> LlmRequest:
    """Returns the request that ADK makes of a log for the coordinator's next call."""
    context = context_of(events)
    request = LlmRequest()
    request.config.system_instruction = instruction
    async for _ in request_processor.run_async(_run(context), request):
        pass
    return request


def context_of(events: list[Event]) -> CallbackContext:
    """Returns what a before-model callback gets beside the request."""
    question = next(
        (event.content for event in reversed(events) if event.author == "user" and event.content),
        None,
    )
    return CallbackContext(
        InvocationContext(
            session_service=_SESSIONS,
            agent=_READER,
            invocation_id=events[-1].invocation_id,
            session=Session(id="s", app_name="a", user_id="u", events=events),
            run_config=RunConfig(),
            user_content=question,
        )
    )


def _run(context: CallbackContext) -> InvocationContext:
    return context.get_invocation_context()
