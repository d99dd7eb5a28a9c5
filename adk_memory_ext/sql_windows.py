"""Loads the window of a session with SQL: nothing before it is read but what the window refers to.

`memext_landmarks` says where that is: long-running calls, and compaction summaries.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from adk_memory_ext.windows import MOST_OPEN_CALLS, references

if TYPE_CHECKING:
    from collections.abc import Mapping

    from adk_memory_ext.statements import Transaction
    from adk_memory_ext.windows import Window

SUMMARY: Final = ""
"""What a summary has in the place of a call."""
REWIND: Final = "<"
"""What a rewind has there; the sequence in the place of an answer's is that of the first event that
it hides."""
_BLOCK: Final = 64

_Rows = dict[int, str]
_Rewinds = Sequence[tuple[Any, ...]]
"""The sequence of each rewind, and of the first event that it hides."""


def note(
    tx: Transaction,
    session: Mapping[str, Any],
    sequence: int,
    event: Mapping[str, Any],
    hides_from: int | None = None,
) -> None:
    """Notes what an event that was just stored refers to; writes nothing for most events.

    Args:
        tx: The transaction that stores it.
        session: The parameters of the session, with its `session_key`.
        sequence: Its sequence.
        event: Its JSON form.
        hides_from: The first sequence that it hides; None where it has to be looked for.
    """
    found = references(event)
    parameters: dict[str, Any] = {**session, "sequence": sequence}
    if found.rewinds_before:
        first = hides_from or _begin(tx, session, found.rewinds_before)
        if first is not None and first < sequence:
            tx.run("insert_landmark", {**parameters, "call_digest": REWIND, "first": first})
    for call in found.answered:
        tx.run("answer_landmark", {**parameters, "call_digest": call})
    for call in [*found.opened, *([SUMMARY] if found.is_summary else ())]:
        tx.run("insert_landmark", {**parameters, "call_digest": call, "first": None})


def _begin(tx: Transaction, session: Mapping[str, Any], invocation_id: str) -> int | None:
    """Returns the first sequence of an invocation; None if the session has none of that id."""
    target = {**session, "invocation_id": invocation_id}
    first: int | None = tx.rows("first_of_invocation", target)[0][0]
    return first


def load_window(
    tx: Transaction, parameters: Mapping[str, Any], window: Window, last: int
) -> list[tuple[int, str]]:
    """Returns the events of the window with their sequences, oldest first.

    Args:
        tx: The transaction, which must see one moment of the database.
        parameters: Those of the session, with its `session_key`.
        window: How much.
        last: The session's newest sequence.
    """
    start = _aligned(tx, parameters, window.start(last))
    rewinds = _rewinds(tx, parameters, start)
    while (hidden := min((one for mark, one in rewinds if mark >= start), default=start)) < start:
        # What was said before it is what the model now goes on from.
        start = _aligned(tx, parameters, window.start(hidden - 1))
    rows = tx.rows("events_from", {**parameters, "sequence": start})
    hidden = _hidden(rewinds)
    found = _open_calls(tx, parameters, start, hidden) | _summary(tx, parameters, start, hidden)
    return [*sorted(found.items()), *rows]


def open_calls(tx: Transaction, parameters: Mapping[str, Any], start: int) -> list[tuple[int, str]]:
    """Returns the invocations before `start` of calls that were open there, oldest first.

    Nothing that a rewind or a restore has hidden.
    """
    hidden = _hidden(_rewinds(tx, parameters, start))
    return sorted(_open_calls(tx, parameters, start, hidden).items())


def _open_calls(
    tx: Transaction, parameters: Mapping[str, Any], start: int, hidden: Sequence[range]
) -> _Rows:
    if start <= 1:
        return {}
    before = {**parameters, "sequence": start}
    found: _Rows = {}
    name = "call_landmarks" if hidden else "open_landmarks"
    calls = [
        sequence
        for sequence, answered in tx.rows(name, before)
        if not _is_in(hidden, sequence)
        and (answered is None or answered >= start or _is_in(hidden, answered))
    ]
    for sequence in sorted(set(calls))[-MOST_OPEN_CALLS:]:
        if sequence not in found:
            first, final = _bounds(tx, parameters, sequence, start)
            found |= _rows_between(tx, parameters, first, final)
    return found


def _summary(
    tx: Transaction, parameters: Mapping[str, Any], start: int, hidden: Sequence[range]
) -> _Rows:
    """Returns the newest summary before `start` that nothing has hidden, if there is one."""
    if start <= 1:
        return {}
    for (sequence,) in tx.stream("summaries", {**parameters, "sequence": start}):
        if not _is_in(hidden, sequence):
            return _rows_between(tx, parameters, sequence, sequence)
    return {}


def _rewinds(tx: Transaction, parameters: Mapping[str, Any], start: int) -> _Rewinds:
    """Returns the rewinds, newest first; before the first event there is nothing to hide."""
    return tx.rows("rewind_landmarks", parameters) if start > 1 else ()


def _hidden(rewinds: _Rewinds) -> list[range]:
    """Returns the sequences that rewinds have hidden; one that is hidden itself hides nothing."""
    hidden: list[range] = []
    for mark, first in rewinds:
        if not hidden or mark < hidden[-1].start:
            hidden.append(range(first, mark))
    return hidden


def _is_in(hidden: Sequence[range], sequence: int) -> bool:
    return any(sequence in one for one in hidden)


def _rows_between(tx: Transaction, parameters: Mapping[str, Any], first: int, final: int) -> _Rows:
    return dict(tx.rows("events_between", {**parameters, "sequence": first, "final": final}))


def _aligned(tx: Transaction, parameters: Mapping[str, Any], sequence: int) -> int:
    """Returns the sequence with which the invocation of an event begins."""
    return _edge(tx, parameters, sequence, "invocations_to", lowest=1)


def _bounds(
    tx: Transaction, parameters: Mapping[str, Any], sequence: int, start: int
) -> tuple[int, int]:
    """Returns the first and the last sequence of an event's invocation, before `start`."""
    final = _edge(tx, parameters, sequence, "invocations_from", lowest=sequence)
    return _aligned(tx, parameters, sequence), min(final, start - 1)


def _edge(
    tx: Transaction, parameters: Mapping[str, Any], sequence: int, statement: str, *, lowest: int
) -> int:
    """Walks from an event as far as its invocation goes."""
    edge, invocation = sequence, None
    place = sequence
    while place >= lowest:
        rows: Sequence[tuple[Any, ...]] = tx.rows(
            statement, {**parameters, "sequence": place, "limit": _BLOCK}
        )
        for found, its_invocation in rows:
            if invocation is None:
                invocation = its_invocation
            if its_invocation != invocation:
                return edge
            edge = found
        if len(rows) < _BLOCK:
            return edge
        place = edge + (1 if statement == "invocations_from" else -1)
    return edge
