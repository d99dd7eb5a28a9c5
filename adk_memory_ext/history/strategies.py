"""Ways to make a history smaller; each leaves a valid one and may be followed by the next.

A strategy relieves a draft until that is enough, oldest first. It is asked only when the history
has outgrown its room, so that between two such cuts the request only grows at its end and what a
provider has cached stays good.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from google.genai import types

from adk_memory_ext.errors import ConfigurationError
from adk_memory_ext.history.tokens import json_text, text_tokens
from adk_memory_ext.history.validity import continuation, ends_openly, needs_user, placeholder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from adk_memory_ext.history.entries import Entry, Fate, Step

SUPERSEDED: Final[dict[str, Any]] = {
    "status": "superseded",
    "note": "A later answer of this tool takes its place.",
}
CLEARED: Final[dict[str, Any]] = {
    "status": "cleared",
    "note": "This answer was removed to save room; call the tool again if it is needed.",
}


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigurationError(f"{message}.")


class Draft:
    """A history while it is cut.

    Args:
        steps: What it holds, oldest first.
        count: The tokens of a content.
        target: How many tokens are few enough.
    """

    def __init__(
        self, steps: list[Step], count: Callable[[types.Content], int], target: int
    ) -> None:
        self.steps = steps
        self.target = target
        self._count = count
        self._placeholder = count(placeholder())
        self._continuation = count(continuation())
        self._gone: set[int] = set()
        self._tokens: int | None = None

    @property
    def tokens(self) -> int:
        """What it would take as it is, with what has to stand in for what was left out."""
        if self._tokens is None:
            self._tokens = 0
            before: types.Content | None = None
            for step in self.left():
                self._tokens += step.tokens
                if needs_user(before, step.now[0].content):
                    self._tokens += self._placeholder
                before = step.now[-1].content
            if before is not None and ends_openly(before):
                self._tokens += self._continuation
        return self._tokens

    @property
    def is_enough(self) -> bool:
        """Whether it is small enough."""
        return self.tokens <= self.target

    @property
    def newest_invocation(self) -> int:
        """The number of the invocation that goes on."""
        return self.steps[-1].invocation if self.steps else 0

    def rewrite(
        self,
        step: Step,
        answer: Callable[[types.FunctionResponse], dict[str, Any] | None],
        fate: Fate,
    ) -> None:
        """Gives the tool answers of a step other texts; None keeps one.

        Nothing changes where that would save nothing, or where the step is pinned.
        """
        if step.is_pinned:
            return
        now = tuple(_rewritten(entry, answer, fate) for entry in step.now)
        tokens = sum(self._count(entry.content) for entry in now)
        if tokens < step.tokens:
            if self._tokens is not None:
                self._tokens -= step.tokens - tokens
            step.now, step.tokens, step.fate = now, tokens, fate

    def drop(self, step: Step) -> None:
        """Leaves a step out, unless it is pinned."""
        if not step.is_pinned:
            step.fate = "dropped"
            self._gone.add(id(step))
            self._tokens = None

    def left(self) -> list[Step]:
        """Returns the steps that were not left out, oldest first."""
        return [step for step in self.steps if id(step) not in self._gone]


class Strategy(Protocol):
    """Makes a draft smaller."""

    def relieve(self, draft: Draft) -> None:
        """Rewrites and drops steps, oldest first, until `draft.is_enough` or nothing is left."""


@dataclass(frozen=True, slots=True)
class KeepLatest:
    """Of the answers of some tools only the latest one of each stays; earlier calls get a stub.

    Args:
        tools: Their names.
    """

    tools: frozenset[str]

    def __init__(self, tools: Iterable[str]) -> None:
        object.__setattr__(self, "tools", frozenset(tools))

    def relieve(self, draft: Draft) -> None:
        """Stubs every superseded answer: which one it was that filled the room matters little."""
        later: set[str] = set()
        for step in reversed(draft.left()):
            superseded = later & set(step.tools)
            if superseded:
                draft.rewrite(step, _stub(SUPERSEDED, superseded), "superseded")
            later |= self.tools & set(step.tools)


@dataclass(frozen=True, slots=True)
class ClampAnswers:
    """Of a large answer of a tool its head and its tail stay.

    Args:
        tokens: What is large, and about as much as stays.
        keep_recent: How many of the newest steps with answers stay whole.
    """

    tokens: int = 1_000
    keep_recent: int = 3

    def __post_init__(self) -> None:
        _require(self.tokens >= 100, "ClampAnswers: tokens must be at least 100")  # noqa: PLR2004
        _require(self.keep_recent >= 1, "ClampAnswers: keep_recent must be at least 1")

    def relieve(self, draft: Draft) -> None:
        """Clamps the large answers before the newest ones."""
        for step in _older(draft, self.keep_recent):
            if draft.is_enough:
                return
            draft.rewrite(step, self._clamped, "clamped")

    def _clamped(self, answer: types.FunctionResponse) -> dict[str, Any] | None:
        return clamped(answer, self.tokens)


@dataclass(frozen=True, slots=True)
class ClearAnswers:
    """Old answers of tools are replaced by a stub; the calls stay, so that none is made again.

    Args:
        keep_recent: How many of the newest steps with answers stay.
    """

    keep_recent: int = 3

    def __post_init__(self) -> None:
        _require(self.keep_recent >= 1, "ClearAnswers: keep_recent must be at least 1")

    def relieve(self, draft: Draft) -> None:
        """Clears the answers before the newest ones."""
        for step in _older(draft, self.keep_recent):
            if draft.is_enough:
                return
            draft.rewrite(step, _stub(CLEARED), "cleared")


@dataclass(frozen=True, slots=True)
class DropInvocations:
    """Whole old invocations go, from a question to the last word about it; summaries stay."""

    def relieve(self, draft: Draft) -> None:
        """Drops the oldest invocations, never the one that goes on."""
        newest = draft.newest_invocation
        waiting = [step for step in draft.left() if not step.is_summary]
        for number in sorted({step.invocation for step in waiting} - {newest}):
            if draft.is_enough:
                return
            for step in waiting:
                if step.invocation == number:
                    draft.drop(step)


@dataclass(frozen=True, slots=True)
class Squeeze:
    """What happens when nothing else was enough, in this order.

    Summaries go, then the answers and then the whole steps of the invocation that goes on, but for
    the last one, whose answers are clamped.
    """

    def relieve(self, draft: Draft) -> None:
        """Relieves the draft down to what is pinned and its last step."""
        for step in draft.left()[:-1]:
            if draft.is_enough:
                return
            if step.is_summary:
                draft.drop(step)
        ClampAnswers(tokens=500, keep_recent=1).relieve(draft)
        ClearAnswers(keep_recent=1).relieve(draft)
        for step in draft.left()[:-1]:
            if draft.is_enough:
                return
            draft.drop(step)
        left = draft.left()
        for tokens in (1_000, 300, 100):
            if not left or draft.is_enough:
                return
            draft.rewrite(left[-1], partial(clamped, tokens=tokens), "clamped")


DEFAULT: Final[tuple[Strategy, ...]] = (ClampAnswers(), ClearAnswers(), DropInvocations())
"""What `HistoryPolicy` does when it is told nothing else."""


def clamped(answer: types.FunctionResponse, tokens: int) -> dict[str, Any] | None:
    """Returns an answer of about so many tokens: its head and its tail; None if it has no more."""
    text = json_text(answer.response or {})
    whole = text_tokens(text)
    if whole <= tokens:
        return None
    # Two thirds to the head, where most answers say what they are.
    characters = len(text) * tokens // whole
    head, tail = characters * 2 // 3, characters // 3
    return {
        "status": "clamped",
        "head": text[:head],
        "tail": text[len(text) - tail :],
        "left_out_tokens": whole - tokens,
    }


def _stub(
    said: dict[str, Any], tools: set[str] | None = None
) -> Callable[[types.FunctionResponse], dict[str, Any] | None]:
    def stub(answer: types.FunctionResponse) -> dict[str, Any] | None:
        return dict(said) if tools is None or answer.name in tools else None

    return stub


def _older(draft: Draft, keep: int) -> list[Step]:
    """Returns the steps with answers but for the newest `keep`."""
    return [step for step in draft.left() if step.tools][:-keep]


def _rewritten(
    entry: Entry,
    answer: Callable[[types.FunctionResponse], dict[str, Any] | None],
    fate: Fate,
) -> Entry:
    parts: list[types.Part] = []
    is_changed = False
    for part in entry.content.parts or ():
        told = part.function_response
        said = None if told is None else answer(told)
        if told is None or said is None:
            parts.append(part)
            continue
        is_changed = True
        stub = types.FunctionResponse(id=told.id, name=told.name, response=said)
        parts.append(part.model_copy(update={"function_response": stub}))
    if not is_changed:
        return entry
    return entry.changed(types.Content(role=entry.content.role, parts=parts), fate)
