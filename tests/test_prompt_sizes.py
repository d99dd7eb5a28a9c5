"""The picture of the how-to against what is measured now."""

from __future__ import annotations

from pathlib import Path

from benchmarks.prompt_sizes import BUDGET, draw, measure

PICTURE = Path(__file__).parents[1] / "docs" / "how-to" / "prompt-sizes.svg"


def test_the_picture_shows_what_is_so() -> None:
    """It is the drawing of this code; the budget holds, and most of its prompt is cacheable.

    `python -m benchmarks.prompt_sizes docs/how-to/prompt-sizes.svg` draws it anew.
    """
    measured = measure()
    sizes, cacheable = measured["budget of 16,000"]
    assert max(sizes) <= BUDGET
    assert cacheable > 0.85
    assert cacheable > 5 * measured["sliding window"][1]
    assert draw(measured) == PICTURE.read_text(encoding="utf-8")
