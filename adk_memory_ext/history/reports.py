"""What was done to the history of one request, and why: ids and counts, never words."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping

    from google.genai import types

    from adk_memory_ext.history.budgets import FixedParts
    from adk_memory_ext.history.entries import Step
    from adk_memory_ext.history.trimming import Trimmed

Reason: TypeAlias = Literal["fits", "over budget"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """What became of some of the request's contents that belong together."""

    fate: str
    """`kept`, `superseded`, `clamped`, `cleared`, `dropped`, `added` or `filtered`."""
    events: tuple[str, ...]
    """The events that they came from; empty where that cannot be told."""
    digest: str | None
    """Of the contents as they came, where their events cannot be told; else None."""
    tokens_before: int
    tokens_after: int
    stands_for: tuple[str, ...] = ()
    """The events that it sums up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestReport:
    """What was kept, cleared and dropped of one request's history."""

    reason: Reason
    """Why something went, or that everything fitted."""
    budget_tokens: int
    ratio: float
    """By what each estimate was multiplied."""
    fixed: FixedParts
    tokens_before: int
    """Of the history as ADK made it."""
    tokens_after: int
    """Of the history as it was handed on."""
    digest: str
    """SHA-256 of the contents as they were handed on."""
    lines: tuple[Line, ...]
    counted_by: str = "estimate"
    """`estimate`; `model`, where it was asked; or `estimate, because of …` where asking failed."""
    counted_tokens: int | None = None
    """The whole prompt as the model counted it; None where it did not."""
    candidates: tuple[tuple[str, str], ...] = ()
    """The id of each candidate with `chosen`, `conflict`, or why it was left out."""

    @property
    def fates(self) -> Mapping[str, int]:
        """How many lines met each fate."""
        return Counter(line.fate for line in self.lines)

    @property
    def prompt_tokens(self) -> int:
        """What the whole request is estimated to take, without the room for its answer."""
        beside = self.fixed.system_text + self.fixed.tool_schemas + self.fixed.candidates
        return self.tokens_after + beside

    def attributes(self) -> dict[str, str | int | float]:
        """Returns it as the attributes of a span."""
        attributes: dict[str, str | int | float] = {
            "memext.history.reason": self.reason,
            "memext.history.budget_tokens": self.budget_tokens,
            "memext.history.ratio": self.ratio,
            "memext.history.tokens_before": self.tokens_before,
            "memext.history.tokens_after": self.tokens_after,
            "memext.history.digest": self.digest,
            "memext.history.counted_by": self.counted_by,
        }
        if self.counted_tokens is not None:
            attributes["memext.history.counted_tokens"] = self.counted_tokens
        for name, tokens in asdict(self.fixed).items():
            attributes[f"memext.history.{name}_tokens"] = tokens
        for fate, number in sorted(self.fates.items()):
            attributes[f"memext.history.{fate}"] = number
        return attributes

    def to_json(self) -> dict[str, Any]:
        """Returns it as a JSON object."""
        return asdict(self)


def lines_of(history: Trimmed, count: Callable[[types.Content], int]) -> tuple[Line, ...]:
    """Returns a line for each step of a history, in order."""
    sent = {id(entry.content) for entry in history.entries}
    return tuple(_line(step, sent, count) for step in history.steps)


def _line(step: Step, sent: Container[int], count: Callable[[types.Content], int]) -> Line:
    fate: str = step.fate
    there = [entry for entry in step.now if id(entry.content) in sent]
    if fate == "dropped":
        there = []
    elif not there:
        fate = "filtered"
    elif fate == "kept" and all(entry.fate == "added" for entry in step.entries):
        fate = "added"
    events = tuple(entry.event_id for entry in step.entries if entry.event_id)
    return Line(
        fate=fate,
        events=events,
        digest=None if events else digest(entry.content for entry in step.entries),
        tokens_before=sum(count(entry.content) for entry in step.entries),
        tokens_after=sum(count(entry.content) for entry in there),
        stands_for=tuple(name for entry in step.entries for name in entry.stands_for),
    )


def digest(contents: Iterable[types.Content]) -> str:
    """Returns the SHA-256 of contents, the same in every process."""
    told = hashlib.sha256()
    for content in contents:
        data = content.model_dump(exclude_none=True)
        told.update(json.dumps(data, sort_keys=True, default=_spelled).encode())
        told.update(b"\n")
    return told.hexdigest()


def _spelled(value: Any) -> str:
    """Returns a value that no JSON holds as a text; without the addresses of objects."""
    if isinstance(value, bytes):
        return hashlib.sha256(value).hexdigest()
    if isinstance(value, set | frozenset):
        return repr(sorted(map(repr, value)))
    return repr(value) if isinstance(value, str | int | float) else str(value)
