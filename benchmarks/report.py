"""The report: docs/benchmarks.md, wholly written from the results and from notes.md."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Final

from benchmarks.contenders import ADK, CONCURRENT, OURS, SQLITE
from benchmarks.histories import TAIL
from benchmarks.listings import STATE_BYTES
from benchmarks.long_turns import SHORT, WINDOWED
from benchmarks.profile_append import LEVELS, PARTS, PLACES
from benchmarks.rows import rows
from benchmarks.trimmers import BUDGET, CACHEABLE, FILLED, INVALID, LOST, OVER
from benchmarks.trimmers import OURS as TRIMMED_BY_OURS
from benchmarks.wording import count, kibibytes, milliseconds, per_second, percent, table, times
from benchmarks.workload import EVENT_BYTES, STATE_KEYS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from benchmarks.contenders import Contender
    from benchmarks.results import Results
    from benchmarks.rounds import Measured, Spread
    from benchmarks.rows import Goal, Row, Side

NOTES: Final = Path(__file__).with_name("notes.md")
"""Written by hand: why an aim is missed and what it would cost."""

_IN_MILLISECONDS: Final = ("added", "time")
"""Kinds of comparisons that are no ratio."""

_HEAD: Final = """\
# Benchmarks

Measured on {date} in {minutes:.0f} minutes by `make bench`, which writes this page. Absolute times
are of one machine; the ratios carry over."""

_PROFILE: Final = """\
## Where the time of our append goes

{samples} samples of all threads during appends, one after the other. A call into C (SQLite,
pydantic, JSON) counts for the line that makes it; a statement counts for the line that runs it.

{parts}

Without the sync, by line:

{places}"""

_TRIMMED: Final = {
    INVALID: "no model takes it",
    OVER: "over the budget",
    LOST: "newest question lost",
    FILLED: "budget used, mean",
    CACHEABLE: "cacheable",
}

_METHOD: Final = """\
## How it was measured

An event is {event} bytes of JSON and changes {keys} keys of the session's state; other frameworks
get a message of about the same size. Each listed session has {state} bytes of state. Events and
texts are drawn from a fixed seed.

Contenders take turns in an order drawn anew for each round, each with a new database in one folder,
at its own default durability, as read back from the database. Each part of the run has a process of
its own. A round's append is the median of {appends}, over {rounds} rounds. With {sessions} sessions
each task appends to its own session, one event after the other. The garbage collector is left as
Python sets it.

Histories are seeded by `append_event` for ours, and for ADK by the rows that its own table models
make, in one transaction; `benchmarks/histories.py` shows how.

To reproduce: `make bench`, a quarter of an hour; `make bench BENCH=--quick` takes four minutes and
leaves this page alone. `BENCH='--dir /mnt/disk'` chooses the disk and `ADK_MEMORY_TEST_POSTGRESQL`
the server."""


def report(results: Results, picture: str) -> str:
    """Returns the report in Markdown.

    Args:
        results: The run.
        picture: File name of the picture beside the report; empty if there is none.
    """
    sections = [
        _head(results, picture),
        _goals(results),
        _contenders(results),
        _histories(results),
        _turns(results),
        _trimmers(results.measured),
        _profile(results.measured),
        NOTES.read_text(encoding="utf-8").strip() if NOTES.exists() else "",
        _method(results),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _head(results: Results, picture: str) -> str:
    lines = [_HEAD.format(date=results.date, minutes=results.minutes)]
    if results.effort_name != "full":
        lines.append(f"**A {results.effort_name} run: too few rounds to be quoted.**")
    if warning := results.machine.get("warning"):
        lines.append(f"**{warning}**")
    if picture:
        lines.append(
            f"![Bars: time of an append and appends per second of each store; lines: cost of an"
            f" append, of the last {TAIL} events and of a whole session by number of events]"
            f"({picture})"
        )
    return "\n\n".join(lines)


def _goals(results: Results) -> str:
    body = [_goal_row(row, results.measured) for row in rows(results.effort)]
    header = ["", "compared with", "ours", "ratio (quartiles)", "must", "aim"]
    return (
        "## What is to be reached\n\n"
        "Medians. A ratio is the median of the ratios of all rounds, with its quartiles; in a round"
        " both sides run within seconds of each other.\n\n" + table(header, body)
    )


def _goal_row(row: Row, measured: Measured) -> list[str]:
    if not row.measured(measured):
        return [row.title, row.theirs.name, row.ours.name, "not measured", "", ""]
    value = row.value(measured)
    cells = [row.title, _side(row.theirs, measured), _side(row.ours, measured), _value(row, value)]
    goals = (row.must_goal, row.aim_goal)
    return cells + ["" if goal is None else _goal(row, goal, value) for goal in goals]


def _side(side: Side, measured: Measured) -> str:
    """Returns the amount, and whose it is where the column does not say so."""
    median = measured.spread(*side.key).median
    write = per_second if side.is_rate else kibibytes if side.is_size else milliseconds
    amount = write(median)
    name = side.name
    return f"{name}: {amount}" if name else amount


def _value(row: Row, value: Spread) -> str:
    write = milliseconds if row.kind in _IN_MILLISECONDS else times
    sign = "+" if row.kind == "added" and value.median >= 0 else ""
    words = {"faster": "faster", "cost": "the time", "size": "the bytes"}.get(row.kind, "")
    spread = f"({write(value.low)} to {write(value.high)})"
    return f"**{sign}{write(value.median)}** {words} {spread}".replace("  ", " ")


def _goal(row: Row, goal: Goal, value: Spread) -> str:
    unit = " ms" if row.kind in _IN_MILLISECONDS else "x"
    sign = "≥" if goal.more else "≤"
    return f"{sign} {goal.limit:g}{unit} {'✓' if goal.reached(value.median) else '✗'}"


def _contenders(results: Results) -> str:
    body = [
        _contender_row(contender, results.measured)
        for contender in SQLITE
        if results.measured.has("append_ms", contender.name)
    ]
    if not body:
        return ""
    sessions = results.effort.sessions
    header = [
        "SQLite",
        "commit",
        "append",
        "quartiles",
        "faster than ADK's default",
        f"{sessions} sessions: appends/s",
        f"{sessions} sessions: p99",
        "",
    ]
    return "## Every store, one run\n\n" + table(header, body)


def _contender_row(contender: Contender, measured: Measured) -> list[str]:
    append = measured.spread("append_ms", contender.name)
    ratio = measured.ratio(("append_ms", ADK.name), ("append_ms", contender.name))
    crowd = ["", ""]
    if contender in CONCURRENT and measured.has("p99_ms", contender.name):
        crowd = [
            count(measured.spread("appends_per_second", contender.name).median),
            milliseconds(measured.spread("p99_ms", contender.name).median),
        ]
    remarks = [contender.does_less, measured.noted("failures", contender.name)]
    return [
        contender.label,
        measured.noted("durability", contender.name),
        milliseconds(append.median),
        f"{milliseconds(append.low)} to {milliseconds(append.high)}",
        times(ratio.median),
        *crowd,
        "; ".join(remark for remark in remarks if remark),
    ]


def _histories(results: Results) -> str:
    body = list(_history_rows(results))
    if not body:
        return ""
    header = ["events in the session", "", "ADK's default", "ours", "ratio (quartiles)"]
    parts = ["## By length of the history, SQLite", table(header, body)]
    if results.measured.has("growth_kib", ADK.name, OURS.name):
        ours, adk = (
            results.measured.spread("growth_kib", name).median for name in (OURS.name, ADK.name)
        )
        parts.append(
            f"A load of all {results.effort.lengths[-1]:,} events, each read and let go, leaves"
            f" the process {max(0, ours):,.0f} KiB larger (ADK's default: {max(0, adk):,.0f} KiB)."
        )
    return "\n\n".join(parts)


def _history_rows(results: Results) -> Iterator[list[str]]:
    operations = {
        "append_ms": "append",
        "tail_ms": f"`get_session`, last {TAIL}",
        "load_ms": "`get_session`, all, again",
        "read_ms": "the same, every event read",
    }
    for length in results.effort.lengths:
        for operation, title in operations.items():
            quantity = f"{operation}/{length}"
            if not results.measured.has(quantity, ADK.name, OURS.name):
                continue
            adk, ours = (
                milliseconds(results.measured.spread(quantity, name).median)
                for name in (ADK.name, OURS.name)
            )
            ratio = results.measured.ratio((quantity, ADK.name), (quantity, OURS.name))
            spread = f"{times(ratio.median)} ({times(ratio.low)} to {times(ratio.high)})"
            yield [f"{length:,}", title, adk, ours, spread]


def _turns(results: Results) -> str:
    """Returns what a Runner turn took, by the number of events before it."""
    measured = results.measured
    lengths = sorted({SHORT, *results.effort.lengths})
    subjects = measured.subjects(f"turn_ms/{SHORT}")
    if not subjects:
        return ""
    body = []
    for subject in subjects:
        medians = [measured.spread(f"turn_ms/{length}", subject).median for length in lengths]
        longest, shortest = (f"turn_ms/{length}" for length in (lengths[-1], SHORT))
        ratio = times(measured.ratio((longest, subject), (shortest, subject)).median)
        name = f"**{subject}**" if subject == WINDOWED else subject
        body.append([name, *map(milliseconds, medians), ratio])
    header = ["one tool call", *(f"{length:,} events" for length in lengths), "longest / shortest"]
    return "## A turn of a Runner, SQLite\n\n" + table(header, body)


def _trimmers(measured: Measured) -> str:
    """Returns what trimmers made of the same histories."""
    subjects = measured.subjects(INVALID)
    if not subjects:
        return ""
    number = len(measured.values(INVALID, subjects[0]))
    body = [
        [
            f"**{subject}**" if subject == TRIMMED_BY_OURS else subject,
            *(percent(mean(measured.values(what, subject))) for what in _TRIMMED),
        ]
        for subject in subjects
    ]
    return (
        f"## Trimmers over the same {number:,} histories\n\n"
        f"Random histories of agents with tools, all larger than a budget of {BUDGET:,} tokens, of"
        " which a model takes each as it is. The last column is over one long conversation.\n\n"
        + table(["", *_TRIMMED.values()], body)
    )


def _profile(measured: Measured) -> str:
    levels = {f"{PARTS}/{level}": level for level in LEVELS}
    shares = {quantity: measured.subjects(quantity) for quantity in (*levels, PLACES)}
    if not shares[PLACES]:
        return ""

    def cells(subject: str, quantities: Iterable[str]) -> list[str]:
        return [
            percent(measured.spread(quantity, subject).median)
            if subject in shares[quantity]
            else ""
            for quantity in quantities
        ]

    parts = list(dict.fromkeys(part for level in levels for part in shares[level]))
    return _PROFILE.format(
        samples=measured.noted("samples", OURS.name),
        parts=table(["", *levels.values()], [[part, *cells(part, levels)] for part in parts]),
        places=table(
            ["line of adk_memory_ext", LEVELS[-1]],
            [[f"`{place}`", *cells(place, [PLACES])] for place in shares[PLACES]],
        ),
    )


def _method(results: Results) -> str:
    effort = results.effort
    words = _METHOD.format(
        event=count(EVENT_BYTES),
        keys=STATE_KEYS,
        state=count(STATE_BYTES),
        appends=effort.appends,
        rounds=effort.append_rounds,
        sessions=effort.sessions,
    )
    machine = [[name, value] for name, value in results.machine.items() if name != "warning"]
    return f"{words}\n\n{table(['machine', ''], machine)}"
