"""Cuts a history to its room, always in the same way and seldom.

The cuts are not remembered anywhere: they are found again by walking through the history from its
beginning, as it grew. Whenever it outgrew its room it was cut down deep, and then it grew again. So
the same history gives the same request in any process, and from one request to the next the
beginning stays the same, byte for byte, until the next cut.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from adk_memory_ext.errors import ConfigurationError
from adk_memory_ext.history.entries import Entry, Step, answers, calls, steps_of
from adk_memory_ext.history.strategies import DEFAULT, Draft, Squeeze, Strategy
from adk_memory_ext.history.validity import repaired

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from google.genai import types

_SMALLEST_BUDGET: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryPolicy:
    """How large a request may be, and what goes when it is larger.

    Raises:
        ConfigurationError: When a number has no meaning.
    """

    budget_tokens: int
    """What a request and its answer may take together: the model's limit, or less."""
    output_reserve_tokens: int | None = None
    """What is kept for the answer. None: the request's `max_output_tokens`, else 2,048; at most a
    quarter of the budget."""
    margin: float = 0.05
    """The part of the budget that is left free for what the estimate may be wrong by."""
    refill: float = 0.5
    """How much of its room the history fills after a cut, from 0 to 1. The lower, the longer the
    beginning of the requests stays the same."""
    strategies: tuple[Strategy, ...] = DEFAULT
    """What makes it smaller, in this order."""
    exclude_tools: Collection[str] = frozenset()
    """Tools whose calls and answers stay as they are."""
    keep_first_message: bool = False
    """Whether the first thing that was asked stays."""

    def __post_init__(self) -> None:
        if self.budget_tokens < _SMALLEST_BUDGET:
            raise ConfigurationError(
                f"budget_tokens must be at least {_SMALLEST_BUDGET}, not {self.budget_tokens!r}."
            )
        if not 0 <= self.margin < 1:
            raise ConfigurationError(f"margin must lie in [0, 1), not {self.margin!r}.")
        if not 0 < self.refill <= 1:
            raise ConfigurationError(f"refill must lie in (0, 1], not {self.refill!r}.")
        reserve = self.output_reserve_tokens
        if reserve is not None and not 0 <= reserve < self.budget_tokens:
            raise ConfigurationError(
                f"output_reserve_tokens must lie in [0, budget_tokens), not {reserve!r}."
            )
        if isinstance(self.exclude_tools, str):
            raise ConfigurationError("exclude_tools must be a set of names, not one name.")
        object.__setattr__(self, "exclude_tools", frozenset(self.exclude_tools))
        object.__setattr__(self, "strategies", tuple(self.strategies))


@dataclass(frozen=True, slots=True)
class Trimmed:
    """A history as it goes to the model."""

    entries: list[Entry]
    """In order."""
    steps: list[Step]
    """All of them, with what became of each."""
    tokens: int

    @property
    def contents(self) -> list[types.Content]:
        """The contents of the request."""
        return [entry.content for entry in self.entries]


def trimmed(
    entries: Sequence[Entry],
    policy: HistoryPolicy,
    room: int,
    count: Callable[[types.Content], int],
) -> Trimmed:
    """Returns a valid history of at most `room` tokens, if what is pinned fits into it.

    Args:
        entries: The history, valid or not.
        policy: What goes first.
        room: How many tokens it may take; it may be negative.
        count: The tokens of a content.
    """
    valid = repaired(_with_a_question(entries))
    first = next((entry for entry in valid if entry.is_question), None)

    def is_pinned(group: tuple[Entry, ...]) -> bool:
        return any(_stays(entry, policy, first) for entry in group)

    steps = list(steps_of(valid, count, is_pinned))
    left = _walk(steps, policy, room, count)
    kept = repaired(entry for step in left for entry in step.now)
    return Trimmed(kept, steps, sum(count(entry.content) for entry in kept))


def _walk(
    steps: Sequence[Step],
    policy: HistoryPolicy,
    room: int,
    count: Callable[[types.Content], int],
) -> list[Step]:
    """Returns what is left of the steps when each cut was made where it was due."""
    left: list[Step] = []
    asked: list[Step] = []
    tokens = 0
    for step in steps:
        if step.is_question:
            if asked and asked[-1].invocation != step.invocation:
                # Only the questions of the newest invocation are pinned.
                for earlier in asked:
                    earlier.is_pinned = False
                asked.clear()
            if not step.is_pinned:
                step.is_pinned = True
                asked.append(step)
        left.append(step)
        tokens += step.tokens
        if tokens > room:
            left = _cut(left, policy, room, count)
            tokens = Draft(left, count, room).tokens
    return left


def _cut(
    steps: list[Step],
    policy: HistoryPolicy,
    room: int,
    count: Callable[[types.Content], int],
) -> list[Step]:
    """Returns what is left after a cut to `refill` of the room, or at least to the room."""
    draft = Draft(steps, count, max(0, int(room * policy.refill)))
    for strategy in policy.strategies:
        if draft.is_enough:
            return draft.left()
        strategy.relieve(draft)
    draft.target = max(0, room)
    if not draft.is_enough:
        Squeeze().relieve(draft)
    return draft.left()


def _stays(entry: Entry, policy: HistoryPolicy, first: Entry | None) -> bool:
    """Whether an entry is pinned, whatever comes after it."""
    if entry.is_marked or entry.is_pending:
        return True
    if policy.keep_first_message and entry is first:
        return True
    names = {call.name for call in calls(entry.content)}
    names |= {answer.name for answer in answers(entry.content)}
    return any(name in policy.exclude_tools for name in names)


def _with_a_question(entries: Sequence[Entry]) -> Sequence[Entry]:
    """Takes the newest words in a user's role for a question where nothing else is one."""
    if any(entry.is_question for entry in entries):
        return entries
    for index in range(len(entries) - 1, -1, -1):
        entry = entries[index]
        if entry.content.role == "user" and not answers(entry.content):
            asked = replace(entry, is_question=True)
            return [*entries[:index], asked, *entries[index + 1 :]]
    return entries
