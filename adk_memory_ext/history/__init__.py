"""History: a request's share of the log, valid and inside a budget.

- `entries`: contents with what is known of them, and steps that stay together
- `provenance`: which event a content came from; interrupted calls
- `validity`: what a model accepts
- `tokens`, `calibration`, `counters`, `budgets`: how large a request is, and may be
- `strategies`, `trimming`: what goes first, and when
- `candidates`: what competes with the history
- `fitting`, `reports`: one request, and what was done to it
- `part`: ADK's callbacks
"""

from adk_memory_ext.history.candidates import Choice, ContextCandidate, choose
from adk_memory_ext.history.counters import ModelTokenCounter, TokenCounter
from adk_memory_ext.history.entries import Entry, as_entries
from adk_memory_ext.history.part import History, trim_contents
from adk_memory_ext.history.provenance import KEEP
from adk_memory_ext.history.reports import Line, RequestReport
from adk_memory_ext.history.strategies import (
    ClampAnswers,
    ClearAnswers,
    Draft,
    DropInvocations,
    KeepLatest,
    Strategy,
)
from adk_memory_ext.history.trimming import HistoryPolicy, Trimmed, trimmed
from adk_memory_ext.history.validity import repaired

__all__ = [
    "KEEP",
    "Choice",
    "ClampAnswers",
    "ClearAnswers",
    "ContextCandidate",
    "Draft",
    "DropInvocations",
    "Entry",
    "History",
    "HistoryPolicy",
    "KeepLatest",
    "Line",
    "ModelTokenCounter",
    "RequestReport",
    "Strategy",
    "TokenCounter",
    "Trimmed",
    "as_entries",
    "choose",
    "repaired",
    "trim_contents",
    "trimmed",
]
