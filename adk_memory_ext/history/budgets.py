"""What of a request's budget is taken before the history gets its share."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from google.genai import types

from adk_memory_ext.errors import BudgetExceededError
from adk_memory_ext.history.tokens import content_tokens, json_text, text_tokens

if TYPE_CHECKING:
    from collections.abc import Callable

    from google.adk.models.llm_request import LlmRequest

    from adk_memory_ext.history.trimming import HistoryPolicy, Trimmed

_OUTPUT: Final = 2_048
_LARGEST_SHARE_OF_OUTPUT: Final = 4
"""An answer that nobody has limited takes at most a quarter of the budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedParts:
    """Tokens of what a request holds besides its history."""

    system_text: int
    tool_schemas: int
    output_reserve: int
    margin: int
    candidates: int = 0
    """What stands beside the history."""

    @property
    def total(self) -> int:
        """All of them."""
        fixed = self.system_text + self.tool_schemas + self.output_reserve + self.margin
        return fixed + self.candidates


def counting(ratio: float) -> Callable[[types.Content], int]:
    """Returns what counts a content, corrected by what the model reported.

    A content is counted once, however often it is asked for.
    """
    known: dict[int, tuple[types.Content, int]] = {}

    def count(content: types.Content) -> int:
        found = known.get(id(content))
        if found is None:
            found = known[id(content)] = (content, math.ceil(content_tokens(content) * ratio))
        return found[1]

    return count


def fixed_parts(request: LlmRequest, policy: HistoryPolicy, ratio: float = 1.0) -> FixedParts:
    """Returns the fixed parts of a request, as they stand in it."""
    config = request.config
    asked_for = (config.response_schema, config.response_json_schema)
    schemas = sum(_described(tool) for tool in config.tools or ())
    schemas += sum(_described(schema) for schema in asked_for if schema is not None)
    reserve = policy.output_reserve_tokens
    if reserve is None:
        largest = policy.budget_tokens // _LARGEST_SHARE_OF_OUTPUT
        reserve = min(largest, config.max_output_tokens or _OUTPUT)
    return FixedParts(
        system_text=math.ceil(_instruction(config.system_instruction) * ratio),
        tool_schemas=math.ceil(schemas * ratio),
        output_reserve=reserve,
        margin=math.ceil(policy.budget_tokens * policy.margin),
    )


def _instruction(instruction: Any) -> int:
    if instruction is None:
        return 0
    if isinstance(instruction, str):
        return text_tokens(instruction)
    if isinstance(instruction, types.Content):
        return content_tokens(instruction)
    if isinstance(instruction, types.Part):
        return content_tokens(types.Content(parts=[instruction]))
    if isinstance(instruction, list):
        return sum(map(_instruction, instruction))
    return text_tokens(json_text(instruction))


def _described(value: Any) -> int:
    """Returns the tokens of a declaration or a schema, in whatever form it is given."""
    if hasattr(value, "model_dump") and not isinstance(value, type):
        return text_tokens(json_text(value.model_dump(mode="json", exclude_none=True)))
    if hasattr(value, "model_json_schema"):
        return text_tokens(json_text(value.model_json_schema()))
    return text_tokens(json_text(value))


def require_fit(history: Trimmed, fixed: FixedParts, policy: HistoryPolicy) -> None:
    """Checks that a request keeps its budget.

    Raises:
        BudgetExceededError: When it does not, with the size of each part. No call was made.
    """
    if history.tokens + fixed.total <= policy.budget_tokens:
        return
    newest = history.steps[-1].invocation if history.steps else 0
    current = sum(
        step.tokens
        for step in history.steps
        if step.fate != "dropped" and step.invocation == newest
    )
    raise BudgetExceededError(
        {
            "system text": fixed.system_text,
            "tool schemas": fixed.tool_schemas,
            "output reserve": fixed.output_reserve,
            "margin": fixed.margin,
            "candidates": fixed.candidates,
            "current input": current,
            "kept messages": max(0, history.tokens - current),
        },
        policy.budget_tokens,
    )
