"""Gives one request its history: measured, trimmed, filtered, repaired, and reported."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from adk_memory_ext.history.budgets import counting, fixed_parts, require_fit
from adk_memory_ext.history.entries import Entry
from adk_memory_ext.history.reports import RequestReport, digest, lines_of
from adk_memory_ext.history.trimming import HistoryPolicy, Trimmed, trimmed
from adk_memory_ext.history.validity import repaired

if TYPE_CHECKING:
    from collections.abc import Callable

    from google.adk.models.llm_request import LlmRequest
    from google.genai import types

    from adk_memory_ext.history.candidates import Choice

Filter: TypeAlias = "Callable[[list[types.Content]], list[types.Content]]"
"""Makes a shorter history of a history, in any way: what it breaks is repaired."""


def fit(
    request: LlmRequest,
    entries: list[Entry],
    policy: HistoryPolicy,
    ratio: float,
    *,
    custom_filter: Filter | None = None,
    choice: Choice | None = None,
) -> RequestReport:
    """Gives a request contents that are valid and fit, and returns what was done.

    Args:
        request: The request; only its contents are changed.
        entries: Its history.
        policy: How large it may be, and what goes first.
        ratio: By what an estimate is to be multiplied.
        custom_filter: Runs last.
        choice: What stands before the newest question, beside the history.

    Raises:
        BudgetExceededError: When it cannot be. The request is as it was.
    """
    count = counting(ratio)
    beside = None if choice is None else choice.content
    fixed = replace(
        fixed_parts(request, policy, ratio), candidates=0 if beside is None else count(beside)
    )
    room = policy.budget_tokens - fixed.total
    if choice is not None:
        # The whole share is kept free, so that the cuts do not move with what was chosen.
        room -= max(0, choice.budget_tokens - fixed.candidates)
    history = trimmed(entries, policy, room, count)
    if custom_filter is not None:
        history = _filtered(history, custom_filter, count)
    require_fit(history, fixed, policy)
    request.contents = _with_beside(history, beside)
    lines = lines_of(history, count)
    before = sum(line.tokens_before for line in lines)
    return RequestReport(
        reason="fits" if before <= room else "over budget",
        budget_tokens=policy.budget_tokens,
        ratio=ratio,
        fixed=fixed,
        tokens_before=before,
        tokens_after=history.tokens,
        digest=digest(request.contents),
        lines=lines,
        candidates=() if choice is None else choice.record(),
    )


def _with_beside(history: Trimmed, beside: types.Content | None) -> list[types.Content]:
    """Returns the contents with what stands beside the history right before the newest question.

    There it leaves all that comes before it as it was, and cannot part a call from its answers.
    """
    contents = history.contents
    if beside is not None:
        asked = [at for at, entry in enumerate(history.entries) if entry.is_question]
        contents.insert(asked[-1] if asked else 0, beside)
    return contents


def _filtered(
    history: Trimmed, custom_filter: Filter, count: Callable[[types.Content], int]
) -> Trimmed:
    """Returns the history as a filter left it, repaired, with the newest message in it."""
    known = {id(entry.content): entry for entry in history.entries}
    left = custom_filter(history.contents)
    entries = [known.get(id(content)) or Entry(content) for content in left]
    order = {id(entry): place for place, entry in enumerate(history.entries)}
    for newest in _newest(history):
        if any(entry is newest for entry in entries):
            continue
        later = (
            place
            for place, entry in enumerate(entries)
            if order.get(id(entry), -1) > order[id(newest)]
        )
        entries.insert(next(later, len(entries)), newest)
    entries = repaired(entries)
    return Trimmed(entries, history.steps, sum(count(entry.content) for entry in entries))


def _newest(history: Trimmed) -> list[Entry]:
    """Returns what a filter may not take: the newest question, or else the last step."""
    asked = [entry for entry in history.entries if entry.is_question]
    last = history.steps[-1].now if history.steps else ()
    there = {id(entry) for entry in history.entries}
    return asked[-1:] or [entry for entry in last if id(entry) in there]
