"""Which events of a log are live after rewinds and restores, and how to make others live again.

ADK's rewind mark hides everything from the earliest event of an invocation up to itself (google-adk
2.13.0, `events/_rewind_events.py`), so it cannot cut inside one. A restore into the middle of an
invocation appends such a mark and behind it copies of what was live before: every reader that knows
ADK's marks, plain ADK too, then sees exactly the events up to the checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


class Logged(NamedTuple):
    """What a log says of one event."""

    id: str
    invocation_id: str
    rewinds_before: str | None = None
    """The invocation from which on the events before this one are hidden; None if it is no mark."""
    copy_of: str | None = None
    """The event that this one repeats."""
    is_note: bool = False
    """Whether it is the note of a restore that hides nothing."""

    @property
    def origin(self) -> str:
        """The id of the event that was appended first."""
        return self.copy_of or self.id


@dataclass(frozen=True, slots=True)
class Plan:
    """What a restore is to append."""

    rewinds_before: str | None
    """The invocation for the mark; None if nothing is to be hidden."""
    copies: tuple[int, ...]
    """Positions of the events to repeat, in their order."""
    hidden: int
    """How many live events the restore takes away."""

    @property
    def is_empty(self) -> bool:
        """Whether what is live is what should be."""
        return self.rewinds_before is None and not self.copies


class UnhideableError(Exception):
    """Events without an invocation id cannot be hidden by a mark."""


def live_positions(events: Sequence[Logged]) -> list[int]:
    """Returns the positions of the events that survive all marks, in order, as ADK sees them."""
    if not any(event.rewinds_before or event.is_note for event in events):
        return [*range(len(events))]
    first: dict[str, int] = {}
    for position, event in enumerate(events):
        first.setdefault(event.invocation_id, position)
    kept: list[int] = []
    position = len(events) - 1
    while position >= 0:
        event = events[position]
        if event.rewinds_before:
            begin = first.get(event.rewinds_before)
            if begin is not None and begin < position:
                position = begin
        elif not event.is_note:
            kept.append(position)
        position -= 1
    kept.reverse()
    return kept


def plan_restore(events: Sequence[Logged], covered: int) -> Plan:
    """Returns what makes exactly those events live that were so after the first `covered` ones.

    Raises:
        UnhideableError: When no mark can do it.
    """
    target = live_positions(events[:covered])
    wanted = [events[position].origin for position in target]
    live = live_positions(events)
    common = _common([events[position].origin for position in live], wanted)
    hidden = len(live) - common
    if not hidden:
        return Plan(None, tuple(target[common:]), 0)
    begins: dict[str, int] = {}
    for position, event in enumerate(events):
        begins.setdefault(event.invocation_id, position)
    for invocation, begin in sorted(begins.items(), key=lambda item: -item[1]):
        if not invocation or begin > live[common]:
            continue
        before = [events[position].origin for position in live_positions(events[:begin])]
        if before == wanted[: len(before)]:
            return Plan(invocation, tuple(target[len(before) :]), hidden)
    raise UnhideableError


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    length = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            break
        length += 1
    return length
