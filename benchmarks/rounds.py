"""Rounds: contenders take turns, and a ratio is made of the two values of one round.

The machine is never quiet. What disturbs it for a second disturbs both sides of a round, so the
median of the rounds' ratios is steadier than a ratio of two medians, and its quartiles tell how
steady.
"""

from __future__ import annotations

import random
import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from benchmarks.workload import SEED

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@dataclass(frozen=True)
class Spread:
    """A median with its quartiles."""

    median: float
    low: float
    """The lower quartile."""
    high: float
    """The upper quartile."""

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Returns the median and the quartiles of `values`; all the same of one value."""
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high)


@dataclass
class Measured:
    """What one run measured, as plain data that JSON can hold."""

    rounds: dict[str, list[float]] = field(default_factory=dict)
    """{quantity and subject, which is mostly a contender: one value a round}."""
    notes: dict[str, str] = field(default_factory=dict)
    """{what and subject: words}."""

    def add(self, quantity: str, subject: str, value: float) -> None:
        """Adds the value of one round."""
        self.rounds.setdefault(_key(quantity, subject), []).append(value)

    def note(self, what: str, subject: str, words: str) -> None:
        """Writes down something about a subject that is no number."""
        self.notes[_key(what, subject)] = words

    def noted(self, what: str, subject: str) -> str:
        """Returns what `note` wrote; empty if it wrote nothing."""
        return self.notes.get(_key(what, subject), "")

    def has(self, quantity: str, *subjects: str) -> bool:
        """Whether the quantity was measured for each of the subjects."""
        return all(_key(quantity, subject) in self.rounds for subject in subjects)

    def subjects(self, quantity: str) -> list[str]:
        """Returns for what the quantity was measured, in the order in which it was."""
        start = _key(quantity, "")
        return [key.removeprefix(start) for key in self.rounds if key.startswith(start)]

    def spread(self, quantity: str, subject: str) -> Spread:
        """Returns the subject's value over its rounds."""
        return Spread.of(self.rounds[_key(quantity, subject)])

    def values(self, quantity: str, subject: str) -> list[float]:
        """Returns the subject's values of all rounds."""
        return self.rounds[_key(quantity, subject)]

    def ratio(self, above: tuple[str, str], below: tuple[str, str]) -> Spread:
        """Returns the rounds' ratios of two (quantity, subject)."""
        pairs = self._pairs(above, below)
        return Spread.of([one / other for one, other in pairs])

    def difference(self, above: tuple[str, str], below: tuple[str, str]) -> Spread:
        """Returns the rounds' differences of two (quantity, subject)."""
        return Spread.of([one - other for one, other in self._pairs(above, below)])

    def update(self, other: Measured, prefix: str = "") -> None:
        """Takes in what another part of the run measured, with `prefix` before its quantities."""
        self.rounds |= {prefix + key: values for key, values in other.rounds.items()}
        self.notes |= {prefix + key: words for key, words in other.notes.items()}

    def _pairs(self, one: tuple[str, str], other: tuple[str, str]) -> list[tuple[float, float]]:
        return list(zip(self.rounds[_key(*one)], self.rounds[_key(*other)], strict=True))


def _key(quantity: str, subject: str) -> str:
    return f"{quantity}|{subject}"


def in_turns(names: Sequence[str], rounds: int) -> Iterator[tuple[int, str]]:
    """Yields (round, name): each name once a round, in an order drawn anew for each round."""
    order = random.Random(SEED)
    for number in range(rounds):
        for name in order.sample(names, len(names)):
            yield number, name


def percentile(values: Sequence[float], percent: float) -> float:
    """Returns the value that `percent` of the values do not exceed (nearest rank)."""
    ordered = sorted(values)
    rank = max(1, -(-len(ordered) * percent // 100))
    return ordered[int(rank) - 1]
