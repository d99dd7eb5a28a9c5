"""How long to measure: enough for a steady ratio, or just enough to see that it works."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How many rounds, and how large the histories are."""

    name: str
    append_rounds: int
    appends: int
    """Measured appends of one contender in one round."""
    concurrent_rounds: int
    concurrent_seconds: float
    """How long a contender's tasks append in one round, roughly."""
    sessions: int
    """Sessions that are appended to at once."""
    loads: tuple[tuple[int, int], ...]
    """(events in the session, rounds in which the whole session is loaded)."""
    tail_rounds: int
    history_rounds: int
    list_rounds: int
    listed: int
    """Sessions of the user whose sessions are listed."""
    listed_many: int
    """The same, for the pages that must cost no more."""
    facts: int
    """Profile facts in the small database."""
    facts_many: int
    """The same in the large one, whose recalls must cost no more."""
    turns: tuple[int, int]
    """Turns of the short and of the long conversation that have a checkpoint at each."""
    restore_rounds: int
    erasure_bytes: int
    """Size of the database from which a user is erased; of a tenth of it sessions are deleted."""
    session_events: int
    """Events in a session of these."""
    erase_rounds: int
    trimmed_histories: int
    """Random histories that each trimmer gets."""
    growing_turns: int
    """Turns of the conversation over which each trimmer is asked again and again."""
    profile_seconds: float

    @property
    def lengths(self) -> tuple[int, ...]:
        """Numbers of events in the sessions, shortest first."""
        return tuple(length for length, _rounds in self.loads)


FULL: Final = Effort(
    name="full",
    append_rounds=60,
    appends=20,
    concurrent_rounds=9,
    concurrent_seconds=1.2,
    sessions=64,
    loads=((10, 60), (100, 60), (1_000, 30), (10_000, 9)),
    tail_rounds=60,
    history_rounds=40,
    list_rounds=9,
    listed=10_000,
    listed_many=100_000,
    facts=10_000,
    facts_many=1_000_000,
    turns=(300, 3_000),
    restore_rounds=15,
    erasure_bytes=1_000_000_000,
    session_events=1_000,
    erase_rounds=3,
    trimmed_histories=300,
    growing_turns=100,
    profile_seconds=15,
)
QUICK: Final = Effort(
    name="quick",
    append_rounds=15,
    appends=12,
    concurrent_rounds=3,
    concurrent_seconds=0.4,
    sessions=64,
    loads=((10, 10), (100, 10), (1_000, 8), (10_000, 3)),
    tail_rounds=15,
    history_rounds=10,
    list_rounds=3,
    listed=10_000,
    listed_many=20_000,
    facts=10_000,
    facts_many=100_000,
    turns=(300, 1_000),
    restore_rounds=5,
    erasure_bytes=100_000_000,
    session_events=200,
    erase_rounds=2,
    trimmed_histories=60,
    growing_turns=100,
    profile_seconds=4,
)
TINY: Final = Effort(
    name="tiny",
    append_rounds=2,
    appends=2,
    concurrent_rounds=1,
    concurrent_seconds=0.05,
    sessions=3,
    loads=((10, 2), (40, 1)),
    tail_rounds=1,
    history_rounds=1,
    list_rounds=1,
    listed=60,
    listed_many=120,
    facts=100,
    facts_many=200,
    turns=(5, 12),
    restore_rounds=1,
    erasure_bytes=900_000,
    session_events=4,
    erase_rounds=1,
    trimmed_histories=6,
    growing_turns=8,
    profile_seconds=0.3,
)
EFFORTS: Final = {effort.name: effort for effort in (FULL, QUICK, TINY)}
