"""The picture beside the report: bars with their spread, and cost against length of the history."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from benchmarks.contenders import ADK, CONCURRENT, OURS, OURS_NORMAL, RAW_FULL, RAW_NORMAL, SQLITE
from benchmarks.histories import TAIL
from benchmarks.wording import count, milliseconds, times

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

    from benchmarks.contenders import Contender
    from benchmarks.results import Results
    from benchmarks.rounds import Measured, Spread

_OURS: Final = "#0b6e4f"
_THEIRS: Final = "#b9c0c7"
_ADK: Final = "#c1502e"
_LIMIT: Final = "#dfe3e7"
_TEXT: Final = "#22272e"
_FAINT: Final = "#6b7580"
_GRID: Final = "#e8ebee"
_STYLE: Final = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "text.color": _TEXT,
    "axes.edgecolor": _FAINT,
    "axes.labelcolor": _FAINT,
    "axes.titlecolor": _TEXT,
    "axes.titlesize": 11.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 22,
    "xtick.color": _FAINT,
    "ytick.color": _TEXT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": "white",
    "svg.hashsalt": "adk_memory_ext",  # the same picture from the same results
}


def draw(results: Results, path: Path) -> None:
    """Draws the picture into `path`; its suffix says the format.

    Raises:
        ImportError: When matplotlib is not installed; nothing was written.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    with mpl.rc_context(_STYLE):
        spacing = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.16, wspace=0.04, hspace=0.06)
        figure = Figure(figsize=(12, 8.4), layout=spacing)
        halves: Any = figure.subfigures(2, 1, height_ratios=(1.12, 1))
        upper, lower = halves
        append, crowd = upper.subplots(1, 2)
        _appends(append, results.measured)
        _crowds(crowd, results)
        _lines(lower.subplots(1, 3, sharey=True), results)
        figure.supxlabel(
            "SQLite, synchronous=FULL where it does not say NORMAL. Medians of rounds in which all"
            f" take turns; thin lines and bands are quartiles. {results.date}",
            x=0.01,
            ha="left",
            fontsize=8.5,
            color=_FAINT,
        )
        figure.savefig(path, dpi=160, metadata={"Date": None} if path.suffix == ".svg" else None)


def _appends(axes: Axes, measured: Measured) -> None:
    """Draws what one append takes, fastest on top."""
    _bars(
        axes,
        _spreads(SQLITE, measured, "append_ms"),
        lambda name, spread: _append_label(measured, name, spread),
        most_first=False,
    )
    _title(axes, "One append", "milliseconds; shorter is better")


def _append_label(measured: Measured, name: str, spread: Spread) -> str:
    amount = milliseconds(spread.median)
    if name == ADK.name:
        return amount
    ratio = measured.ratio(("append_ms", ADK.name), ("append_ms", name)).median
    return f"{amount}   {times(ratio)} faster"


def _crowds(axes: Axes, results: Results) -> None:
    """Draws how many appends a second many sessions make, most on top."""
    measured = results.measured
    _bars(
        axes,
        _spreads(CONCURRENT, measured, "appends_per_second"),
        lambda name, spread: (
            f"{count(spread.median)}   p99 {milliseconds(measured.spread('p99_ms', name).median)}"
        ),
        most_first=True,
    )
    _title(
        axes,
        f"{results.effort.sessions} conversations at once",
        "appends per second; longer is better",
    )


def _spreads(
    contenders: Sequence[Contender], measured: Measured, quantity: str
) -> dict[Contender, Spread]:
    return {
        contender: measured.spread(quantity, contender.name)
        for contender in contenders
        if measured.has(quantity, contender.name)
    }


def _bars(
    axes: Axes,
    spreads: dict[Contender, Spread],
    label: Callable[[str, Spread], str],
    *,
    most_first: bool,
) -> None:
    ordered = sorted(spreads, key=lambda one: spreads[one].median, reverse=not most_first)
    longest = max((spread.high for spread in spreads.values()), default=1.0)
    for place, contender in enumerate(ordered):
        spread = spreads[contender]
        axes.barh(place, spread.median, height=0.62, color=_colour(contender), zorder=2)
        axes.plot((spread.low, spread.high), (place, place), color=_TEXT, linewidth=1.2, zorder=3)
        text = label(contender.name, spread)
        axes.text(
            max(spread.high, spread.median) + longest * 0.015,
            place,
            text,
            va="center",
            fontsize=9,
            color=_TEXT if _is_ours(contender) else _FAINT,
            fontweight="bold" if _is_ours(contender) else "normal",
            in_layout=False,
        )
    axes.set_yticks(range(len(ordered)), [contender.label for contender in ordered])
    for tick, contender in zip(axes.get_yticklabels(), ordered, strict=True):
        tick.set_fontweight("bold" if _is_ours(contender) else "normal")
    axes.set_xlim(0, longest * 1.85)
    axes.xaxis.set_visible(False)  # every bar carries its number
    axes.spines["bottom"].set_visible(False)
    axes.spines["left"].set_color(_GRID)
    axes.tick_params(axis="y", length=0)


def _is_ours(contender: Contender) -> bool:
    return contender in (OURS, OURS_NORMAL)


def _colour(contender: Contender) -> str:
    if _is_ours(contender):
        return _OURS
    if contender is ADK:
        return _ADK
    return _LIMIT if contender in (RAW_FULL, RAW_NORMAL) else _THEIRS


def _lines(panels: Any, results: Results) -> None:
    """Draws what an append and two loads take, by the number of events in the session."""
    titles = {
        "append_ms": "One append",
        "tail_ms": f"get_session, the last {TAIL} events",
        "load_ms": "get_session, all events",
    }
    for axes, (operation, title) in zip(panels, titles.items(), strict=True):
        for contender, colour in ((ADK, _ADK), (OURS, _OURS)):
            _line(axes, results, operation, contender, colour)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xticks(results.effort.lengths, [f"{one:,}" for one in results.effort.lengths])
        axes.minorticks_off()
        axes.margins(y=0.1)
        axes.set_xlim(results.effort.lengths[0] / 1.5, results.effort.lengths[-1] * 30)
        axes.grid(axis="y", color=_GRID, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.tick_params(length=0)
        axes.spines["left"].set_visible(False)
        axes.set_xlabel("events in the session")
        axes.yaxis.set_major_formatter(lambda value, _position: f"{value:,g} ms")
        _title(axes, title, "milliseconds, logarithmic")


def _line(axes: Axes, results: Results, operation: str, contender: Contender, colour: str) -> None:
    lengths = [
        length
        for length in results.effort.lengths
        if results.measured.has(f"{operation}/{length}", contender.name)
    ]
    if not lengths:
        return
    spreads = [
        results.measured.spread(f"{operation}/{length}", contender.name) for length in lengths
    ]
    medians = [spread.median for spread in spreads]
    axes.fill_between(
        lengths,
        [spread.low for spread in spreads],
        [spread.high for spread in spreads],
        color=colour,
        alpha=0.15,
        linewidth=0,
    )
    axes.plot(lengths, medians, color=colour, linewidth=2, marker="o", markersize=4.5)
    name = "ours" if contender is OURS else "ADK"
    axes.annotate(
        f"{name} {milliseconds(medians[-1])}",
        (lengths[-1], medians[-1]),
        xytext=(9, -4 if contender is OURS else 4),  # lines that meet keep their labels apart
        textcoords="offset points",
        va="center",
        color=colour,
        fontweight="bold",
        fontsize=9,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
        in_layout=False,
    )


def _title(axes: Axes, title: str, subtitle: str) -> None:
    axes.set_title(title)
    axes.text(
        0,
        1.0,
        subtitle,
        transform=axes.transAxes,
        color=_FAINT,
        fontsize=9,
        va="bottom",
        in_layout=False,
    )
