"""Numbers and tables as people read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def milliseconds(value: float) -> str:
    """Returns a time with about three digits: `0.31 ms`, `4.3 ms`, `1,180 ms`."""
    return f"{_digits(value)} ms"


def times(value: float) -> str:
    """Returns a ratio: `1.05x`, `13.1x`, `512x`."""
    return f"{_digits(value)}x"


def kibibytes(value: float) -> str:
    """Returns a size: `312 KiB`, `11,400 KiB`."""
    return f"{_digits(value)} KiB"


def per_second(value: float) -> str:
    """Returns a rate: `11,400/s`."""
    return f"{value:,.0f}/s"


def count(value: float) -> str:
    """Returns a whole number: `11,400`."""
    return f"{value:,.0f}"


def percent(value: float) -> str:
    """Returns a share: `12.5 %`."""
    return f"{value * 100:.1f} %"


def _digits(value: float) -> str:
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.2f}"


def table(header: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """Returns a Markdown table."""
    rows = [header, ["---"] * len(header), *body]
    return "\n".join("| " + " | ".join(_escaped(cell) for cell in row) + " |" for row in rows)


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|")
