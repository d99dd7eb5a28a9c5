"""A model request as a conversation: the system text, and who said what in which turn."""

import json
import math
import unicodedata
from dataclasses import dataclass, field
from typing import Any, Self

from google.adk.models.llm_request import LlmRequest
from google.genai import types

from .instruction import section
from .intake import Pasted, take_apart
from .learning_plan import LearningPlan, stored_plan


@dataclass
class ToolExchange:
    """A tool call of the model and its answer."""

    name: str
    args: dict[str, Any]
    call_id: str | None
    answer: dict[str, Any] | None = None
    """What the tool said; `None` while the call has no answer."""


@dataclass
class Turn:
    """A message of the person and what the model did about it."""

    message: str
    exchanges: list[ToolExchange] = field(default_factory=list)
    answer: str = ""

    @property
    def pasted(self) -> Pasted:
        """The message, taken apart at its headings."""
        return take_apart(self.message)

    def last(self, tool: str) -> ToolExchange | None:
        """Returns the newest answered exchange with a tool in this turn."""
        answered = (e for e in reversed(self.exchanges) if e.name == tool and e.answer is not None)
        return next(answered, None)


@dataclass(frozen=True)
class Transcript:
    """All that a request tells the model."""

    resume: str
    job_ad: str
    plan: LearningPlan | None
    """The accepted plan in the system text or, failing that, in an earlier tool answer."""
    known_hours: float | None
    """The hours a week in the user profile of the system text."""
    turns: list[Turn]
    """The turns of the contents, oldest first; never empty."""

    @classmethod
    def of(cls, request: LlmRequest) -> Self:
        """Reads a request; nothing else is looked at."""
        system = system_text(request)
        turns = _turns(request.contents)
        plan = stored_plan(section(system, "accepted_plan")) or _accepted_earlier(turns)
        documents = section(system, "resume"), section(system, "job_advertisement")
        return cls(*documents, plan, _known_hours(system), turns)

    @property
    def newest(self) -> Turn:
        """The turn that the model is to continue."""
        return self.turns[-1]


def _known_hours(system: str) -> float | None:
    """Returns `weekly-hours` of the profile that stands behind the instruction; None without."""
    for line in section(system, "user_profile").splitlines()[1:]:
        fact = json.loads(line)
        if fact["key"] == "weekly-hours" and isinstance(fact.get("value"), int | float):
            return float(fact["value"])
    return None


def system_text(request: LlmRequest) -> str:
    """Returns the system instruction of a request as text."""
    instruction = request.config.system_instruction
    return instruction if isinstance(instruction, str) else ""


def _turns(contents: list[types.Content]) -> list[Turn]:
    turns: list[Turn] = []
    for content in contents:
        parts = content.parts or []
        text = "\n".join(part.text for part in parts if part.text)
        if not turns or (content.role == "user" and text):
            # A history whose beginning was left out may begin in the middle of a turn.
            turns.append(Turn(text if content.role == "user" else ""))
        turn = turns[-1]
        if content.role != "user" and text:
            turn.answer = f"{turn.answer}\n{text}".strip()
        for part in parts:
            if call := part.function_call:
                turn.exchanges.append(ToolExchange(call.name or "", call.args or {}, call.id))
            if answer := part.function_response:
                _put_answer(turns, answer)
    return turns or [Turn("")]


def _put_answer(turns: list[Turn], answer: types.FunctionResponse) -> None:
    """Gives a tool's answer to its call: by id, or by name where the request carries no ids."""
    for turn in reversed(turns):
        for exchange in turn.exchanges:
            same = exchange.call_id == answer.id if answer.id else exchange.name == answer.name
            if same and exchange.answer is None:
                exchange.answer = answer.response or {}
                return


def _accepted_earlier(turns: list[Turn]) -> LearningPlan | None:
    for turn in reversed(turns):
        exchange = turn.last("validate_learning_plan")
        if exchange and exchange.answer and exchange.answer.get("ok"):
            return LearningPlan.model_validate(exchange.args["plan"])
    return None


def estimated_tokens(request: LlmRequest) -> int:
    """Returns an estimate of a request's prompt tokens, from its characters.

    Counted are the system text, all contents with calls and answers as JSON, and the tool
    declarations as JSON. A wide character (Chinese, full-width) counts as one token, four others
    as one. Real tokenizers differ, by a fifth or so on texts of these kinds.
    """
    texts = [system_text(request)]
    for content in request.contents:
        for part in content.parts or []:
            texts.append(part.text or "")
            if part.function_call:
                texts.append(_json([part.function_call.name, part.function_call.args]))
            if part.function_response:
                texts.append(_json([part.function_response.name, part.function_response.response]))
    for tool in request.config.tools or []:
        if isinstance(tool, types.Tool):
            declarations = tool.function_declarations or []
            texts += [_json(d.model_dump(mode="json", exclude_none=True)) for d in declarations]
    return sum(tokens_in(text) for text in texts)


def tokens_in(text: str) -> int:
    """Returns the estimated tokens of a text: a wide character is one, four others are one."""
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    return wide + math.ceil((len(text) - wide) / 4)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
