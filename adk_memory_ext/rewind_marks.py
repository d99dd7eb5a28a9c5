"""Which events of a log are live after rewinds and restores, and how to make others live again.

ADK's rewind mark hides everything from the earliest event of an invocation up to itself (google-adk
2.13.0, `events/_rewind_events.py`), so it cannot cut inside one. A restore into the middle of an
invocation appends such a mark and behind it copies of what was live before: every reader that knows
ADK's marks, plain ADK too, then sees exactly the events up to the checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Self

if TYPE_CHECKING:
    from collections.abc import Sequence


class Special(NamedTuple):
    """What a log says of an event that is a mark, a copy or a note."""

    rewinds_before: str | None = None
    """The invocation from which on the events before this one are hidden; None if it is no mark."""
    copy_of: str | None = None
    """The event that this one repeats."""
    is_note: bool = False
    """Whether it is the note of a restore; without a mark it hides nothing."""


@dataclass(frozen=True, slots=True)
class Outline:
    """A log without what was said: lists side by side, because there may be very many events."""

    ids: list[str] = field(default_factory=list)
    invocations: list[str] = field(default_factory=list)
    """The invocation of each event."""
    specials: dict[int, Special] = field(default_factory=dict)
    """By position."""

    def add(self, event_id: str, invocation_id: str, special: Special | None) -> None:
        """Adds the next event."""
        if special is not None:
            self.specials[len(self.ids)] = special
        self.ids.append(event_id)
        self.invocations.append(invocation_id)

    def begins(self) -> dict[str, int]:
        """Returns the position of the first event of each invocation."""
        positions = range(len(self.invocations) - 1, -1, -1)
        return dict(zip(reversed(self.invocations), positions, strict=True))


@dataclass(frozen=True, slots=True)
class Plan:
    """What a restore is to append."""

    rewinds_before: str | None
    """The invocation for the mark; None if nothing is to be hidden."""
    begin: int | None
    """The position of its first event."""
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


def live_positions(log: Outline, end: int | None = None) -> list[int]:
    """Returns the positions of the events that survive all marks, in order, as ADK sees them.

    Args:
        log: The log.
        end: Only the first so many events; None for all.
    """
    end = len(log.ids) if end is None else end
    begins = log.begins() if log.specials else {}
    runs: list[range] = []
    for position in sorted(log.specials, reverse=True):
        mark = log.specials[position]
        if position < end and (mark.rewinds_before or mark.is_note):
            runs.append(range(position + 1, end))
            begin = begins.get(mark.rewinds_before or "", position)
            end = min(begin, position) if mark.rewinds_before else position
    runs.append(range(end))
    return [position for run in reversed(runs) for position in run]


def plan_restore(log: Outline, covered: int) -> Plan:
    """Returns what makes exactly those events live that were so after the first `covered` ones.

    Raises:
        UnhideableError: When no mark can do it.
    """
    tree = _Histories.of(log)
    wanted = tree.path(tree.after[covered])
    depths = {node: depth for depth, node in enumerate(wanted)}
    live = tree.path(tree.after[-1])
    common = next(depths[node] for node in reversed(live) if node in depths)
    hidden = len(live) - 1 - common
    if not hidden:
        return Plan(None, None, tree.positions(wanted[common + 1 :]), 0)
    # A mark leaves what was live before the first event of its invocation: as much as possible.
    after = tree.after
    marks = {after[begin]: invocation for invocation, begin in tree.begins.items() if invocation}
    left = next((node for node in reversed(wanted) if node in marks), None)
    if left is None:
        raise UnhideableError
    mark = marks[left]
    return Plan(mark, tree.begins[mark], tree.positions(wanted[depths[left] + 1 :]), hidden)


@dataclass(slots=True)
class _Histories:
    """What was live after each event, as a tree whose paths are histories; its root is empty.

    The same events in the same order are one path, also where copies stand for some of them.
    """

    begins: dict[str, int]
    """The position of the first event of each invocation."""
    parents: list[int] = field(default_factory=lambda: [0])
    """Of each node; the root is its own."""
    places: list[int] = field(default_factory=lambda: [-1])
    """The position in the log of each node's event."""
    after: list[int] = field(default_factory=lambda: [0])
    """The node that the first so many events of the log lead to."""
    trunk: int = 0
    """Up to this one, each node's parent is the node before it."""

    @classmethod
    def of(cls, log: Outline) -> Self:
        """Returns the histories of a log."""
        tree = cls(log.begins())
        originals: dict[str, int] = {}
        if any(special.copy_of for special in log.specials.values()):
            originals = {event_id: position for position, event_id in enumerate(log.ids)}
        begin = tree.trunk = min(log.specials, default=len(log.ids))
        tree.grow(range(begin))
        for position, special in sorted(log.specials.items()):
            tree.grow(range(begin, position))
            begin = position + 1
            if special.rewinds_before:
                target = tree.begins.get(special.rewinds_before, position)
                tree.after.append(tree.after[min(target, position)])
            elif special.is_note:
                tree.after.append(tree.after[-1])
            else:
                tree.repeat(originals.get(special.copy_of or "", position), position)
        tree.grow(range(begin, len(log.ids)))
        return tree

    def grow(self, positions: range) -> None:
        """Adds events, each behind the one before."""
        first = len(self.parents)
        nodes = range(first, first + len(positions))
        if nodes:
            self.parents.append(self.after[-1])
            self.parents.extend(nodes[:-1])
        self.places.extend(positions)
        self.after.extend(nodes)

    def repeat(self, original: int, position: int) -> None:
        """Adds a copy of an event: on its own path, if it stands where the event stood."""
        node = self.after[original + 1] if original < position else 0
        if node and self.parents[node] == self.after[-1]:
            self.after.append(node)
        else:
            self.grow(range(position, position + 1))

    def path(self, node: int) -> list[int]:
        """Returns the nodes from the root to this one."""
        branch: list[int] = []
        while node > self.trunk:
            branch.append(node)
            node = self.parents[node]
        return [*range(node + 1), *reversed(branch)]

    def positions(self, nodes: Sequence[int]) -> tuple[int, ...]:
        """Returns where the events of some nodes stand in the log."""
        return tuple(self.places[node] for node in nodes)
