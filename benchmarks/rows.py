"""The comparisons that count: each a ratio or a difference, with what it must and should reach."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal

from benchmarks.checkpoints import BYTES, EVENT_BYTES, PLAIN, RESTORE
from benchmarks.checkpoints import WITH as CHECKPOINTED
from benchmarks.contenders import (
    ADK,
    LANGGRAPH,
    OPENAI,
    OPENAI_NORMAL,
    OURS,
    OURS_NORMAL,
    Contender,
)
from benchmarks.erasures import DELETE, ERASE, ERASE_WITH_HIT
from benchmarks.histories import TAIL
from benchmarks.listings import PAGE
from benchmarks.long_turns import SHORT, WINDOW, WINDOWED
from benchmarks.turns import WITH, WITHOUT

if TYPE_CHECKING:
    from benchmarks.effort import Effort
    from benchmarks.rounds import Measured, Spread

POSTGRESQL: Final = "postgresql/"
"""Stands before the quantities that were measured there."""
FLAT: Final = 1.03
"""A ratio up to this is no growth: the quartiles of a ratio lie further apart."""

_WINDOWED: Final = replace(OURS, name=WINDOWED)


@dataclass(frozen=True, kw_only=True)
class Goal:
    """What a comparison is to reach."""

    limit: float
    more: bool
    """Whether the value is to be at least the limit; else at most."""

    def reached(self, value: float) -> bool:
        """Whether `value` reaches it."""
        return value >= self.limit if self.more else value <= self.limit


@dataclass(frozen=True, kw_only=True)
class Side:
    """One side of a comparison."""

    contender: Contender
    quantity: str
    words: str = ""
    """What was measured, where the two sides differ in it."""

    @property
    def key(self) -> tuple[str, str]:
        """The names under which it was measured."""
        return (self.quantity, self.contender.name)

    @property
    def name(self) -> str:
        """Whose value it is; ours goes without a name."""
        ours = self.contender in (OURS, OURS_NORMAL, _WINDOWED)
        return " ".join(part for part in ("" if ours else self.contender.label, self.words) if part)

    @property
    def is_rate(self) -> bool:
        """Whether more is better."""
        return self.quantity.endswith("per_second")

    @property
    def is_size(self) -> bool:
        """Whether it is in KiB."""
        return "bytes" in self.quantity


@dataclass(frozen=True, kw_only=True)
class Row:
    """A comparison of ours with theirs."""

    title: str
    theirs: Side
    ours: Side
    kind: Literal["faster", "cost", "added", "size", "time"]
    """How many times faster ours is, how many times its cost theirs is, how many milliseconds ours
    takes longer, how many times the bytes of theirs it takes, or the milliseconds of ours alone."""
    must: float
    aim: float | None = None

    @property
    def must_goal(self) -> Goal:
        """What it has to reach."""
        return Goal(limit=self.must, more=self.kind == "faster")

    @property
    def aim_goal(self) -> Goal | None:
        """What it should reach; None where nothing beyond `must` was asked for."""
        return None if self.aim is None else Goal(limit=self.aim, more=self.kind == "faster")

    def measured(self, results: Measured) -> bool:
        """Whether both sides were measured."""
        return results.has(*self.theirs.key) and results.has(*self.ours.key)

    def value(self, results: Measured) -> Spread:
        """Returns the value over the rounds."""
        if self.kind == "time":
            return results.spread(*self.ours.key)
        if self.kind == "added":
            return results.difference(self.ours.key, self.theirs.key)
        if (self.kind == "faster") == self.ours.is_rate:
            return results.ratio(self.ours.key, self.theirs.key)
        return results.ratio(self.theirs.key, self.ours.key)


def rows(effort: Effort) -> list[Row]:
    """Returns the comparisons, in the order of the report."""
    return [
        *_append_rows(),
        *_concurrent_rows(effort),
        *_history_rows(effort),
        *_list_rows(effort),
        *_turn_rows(),
        *_fact_rows(effort),
        *_checkpoint_rows(effort),
        *_erasure_rows(effort),
        *_postgresql_rows(effort),
    ]


def _append_rows() -> list[Row]:
    append = "append_ms"
    adk, ours = Side(contender=ADK, quantity=append), Side(contender=OURS, quantity=append)
    openai = Side(contender=OPENAI, quantity=append)
    openai_normal = Side(contender=OPENAI_NORMAL, quantity=append)
    ours_normal = Side(contender=OURS_NORMAL, quantity=append)
    return [
        Row(title="append, SQLite", theirs=adk, ours=ours, kind="faster", must=7, aim=12),
        Row(title="append, SQLite", theirs=openai, ours=ours, kind="cost", must=1.5, aim=1),
        Row(
            title="append, SQLite, ours at NORMAL",
            theirs=openai,
            ours=ours_normal,
            kind="cost",
            must=1.1,
        ),
        Row(
            title="append, SQLite, both at NORMAL",
            theirs=openai_normal,
            ours=ours_normal,
            kind="cost",
            must=1.1,
        ),
    ]


def _concurrent_rows(effort: Effort) -> list[Row]:
    title = f"{effort.sessions} sessions at once, SQLite"
    rate, p99 = "appends_per_second", "p99_ms"
    return [
        Row(
            title=f"{title}: appends",
            theirs=Side(contender=ADK, quantity=rate),
            ours=Side(contender=OURS, quantity=rate),
            kind="faster",
            must=25,
            aim=60,
        ),
        Row(
            title=f"{title}: p99",
            theirs=Side(contender=ADK, quantity=p99),
            ours=Side(contender=OURS, quantity=p99),
            kind="faster",
            must=20,
            aim=50,
        ),
    ]


def _history_rows(effort: Effort) -> list[Row]:
    shortest, longest = effort.lengths[0], effort.lengths[-1]
    many, few = f"{longest:,} events", f"{shortest:,} events"
    return [
        Row(
            title=f"get_session, all {longest:,} events, the first time",
            theirs=Side(contender=ADK, quantity=f"load_ms/{longest}"),
            ours=Side(contender=OURS, quantity=f"first_load_ms/{longest}"),
            kind="faster",
            must=1.4,
            aim=3,
        ),
        *(
            Row(
                title=f"get_session, all {length:,} events, again",
                theirs=Side(contender=ADK, quantity=f"load_ms/{length}"),
                ours=Side(contender=OURS, quantity=f"load_ms/{length}"),
                kind="faster",
                must=must,
            )
            for length, must in ((effort.lengths[-2], 8), (longest, 25))
        ),
        Row(
            title=f"the same, and a look at each of the {longest:,}",
            theirs=Side(contender=ADK, quantity=f"read_ms/{longest}"),
            ours=Side(contender=OURS, quantity=f"read_ms/{longest}"),
            kind="faster",
            must=1.4,
            aim=3,
        ),
        Row(
            title=f"get_session, the last {TAIL} events",
            theirs=Side(contender=OURS, quantity=f"tail_ms/{TAIL}", words=f"of {TAIL}"),
            ours=Side(contender=OURS, quantity=f"tail_ms/{longest}", words=f"of {longest:,}"),
            kind="added",
            must=1,
        ),
        Row(
            title="append, by length of the history",
            theirs=Side(contender=OURS, quantity=f"append_ms/{shortest}", words=few),
            ours=Side(contender=OURS, quantity=f"append_ms/{longest}", words=many),
            kind="cost",
            must=1.1,
            aim=FLAT,
        ),
        Row(
            title=f"a turn with a window of {WINDOW}, by length of the history",
            theirs=Side(contender=_WINDOWED, quantity=f"turn_ms/{SHORT}", words=f"of {SHORT}"),
            ours=Side(contender=_WINDOWED, quantity=f"turn_ms/{longest}", words=f"of {longest:,}"),
            kind="cost",
            must=1.2,
        ),
    ]


def _list_rows(effort: Effort) -> list[Row]:
    few, many = effort.listed, effort.listed_many
    return [
        Row(
            title=f"sessions of a user with {few:,}",
            theirs=Side(contender=ADK, quantity=f"list_ms/{few}", words="all"),
            ours=Side(contender=OURS, quantity=f"page_ms/{few}", words=f"a page of {PAGE}"),
            kind="faster",
            must=100,
            aim=500,
        ),
        Row(
            title=f"a page of {PAGE}, by number of sessions",
            theirs=Side(contender=OURS, quantity=f"page_ms/{few}", words=f"of {few:,}"),
            ours=Side(contender=OURS, quantity=f"page_ms/{many}", words=f"of {many:,}"),
            kind="cost",
            must=1.1,
            aim=FLAT,
        ),
    ]


def _turn_rows() -> list[Row]:
    without = Side(contender=OURS, quantity=WITHOUT, words="without the plugin")
    return [
        Row(
            title="a whole turn",
            theirs=without,
            ours=Side(contender=OURS, quantity=WITH, words="with `MemoryPlugin()`"),
            kind="added",
            must=1.5,
        ),
        Row(
            title="a whole turn",
            theirs=Side(contender=ADK, quantity=WITHOUT, words="without a plugin"),
            ours=Side(contender=OURS, quantity=WITH, words="with `MemoryPlugin()`"),
            kind="added",
            must=1.5,
        ),
    ]


def _fact_rows(effort: Effort) -> list[Row]:
    few, many = (
        Side(contender=OURS, quantity=f"recall_ms/{facts}", words=f"of {facts:,}")
        for facts in (effort.facts, effort.facts_many)
    )
    title = "recall of a profile, by facts in the database"
    return [
        Row(title=title, theirs=few, ours=many, kind="cost", must=1.2, aim=1.1),
        Row(title=f"{title}: milliseconds", theirs=few, ours=many, kind="time", must=1),
    ]


def _checkpoint_rows(effort: Effort) -> list[Row]:
    few, many = effort.turns

    def ours(quantity: str, turns: int, words: str = "") -> Side:
        return Side(contender=OURS, quantity=f"{quantity}/{turns}", words=words)

    def langgraph(quantity: str) -> Side:
        return Side(contender=LANGGRAPH, quantity=f"{quantity}/{few}", words=f"{few:,} turns")

    return [
        *(
            Row(
                title=f"a checkpoint at each of {turns:,} turns: bytes",
                theirs=ours(EVENT_BYTES, turns, "the event log"),
                ours=ours(BYTES, turns, "all checkpoints"),
                kind="size",
                must=0.3,
            )
            for turns in effort.turns
        ),
        Row(
            title=f"a checkpoint at each of {few:,} turns: bytes",
            theirs=langgraph(BYTES),
            ours=ours(BYTES, few),
            kind="size",
            must=1,
        ),
        *(
            Row(
                title=f"append with a checkpoint, behind {turns:,} turns",
                theirs=ours(PLAIN, turns, "without"),
                ours=ours(CHECKPOINTED, turns, "with"),
                kind="added",
                must=0.5,
            )
            for turns in effort.turns
        ),
        Row(
            title="append with a checkpoint, by number of turns",
            theirs=ours(CHECKPOINTED, few, f"{few:,} turns"),
            ours=ours(CHECKPOINTED, many, f"{many:,} turns"),
            kind="cost",
            must=1.1,
            aim=FLAT,
        ),
        Row(
            title="restore of a checkpoint",
            theirs=langgraph(RESTORE),
            ours=ours(RESTORE, many, f"{many:,} turns"),
            kind="time",
            must=50,
        ),
    ]


def _erasure_rows(effort: Effort) -> list[Row]:
    size = f"{effort.erasure_bytes / 1_000_000:,.0f} MB"
    return [
        Row(
            title=f"erasing a person, a hundredth of {size}, verified",
            theirs=Side(contender=OURS, quantity=ERASE_WITH_HIT, words="with residue to remove"),
            ours=Side(contender=OURS, quantity=ERASE, words="without"),
            kind="time",
            must=2_000,
        ),
        Row(
            title=f"deleting a session of {effort.session_events:,} events, of a tenth of that",
            theirs=Side(contender=ADK, quantity=DELETE),
            ours=Side(contender=OURS, quantity=DELETE),
            kind="cost",
            must=3,
        ),
    ]


def _postgresql_rows(effort: Effort) -> list[Row]:
    titles = {
        "append_ms": "append, PostgreSQL",
        "appends_per_second": f"{effort.sessions} sessions at once, PostgreSQL: appends",
    }
    return [
        Row(
            title=title,
            theirs=Side(contender=ADK, quantity=POSTGRESQL + quantity),
            ours=Side(contender=OURS, quantity=POSTGRESQL + quantity),
            kind="faster",
            must=2,
            aim=3,
        )
        for quantity, title in titles.items()
    ]
