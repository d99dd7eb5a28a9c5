"""Draws how large the prompt is from turn to turn: everything, a sliding window, and a budget.

    python -m benchmarks.prompt_sizes docs/how-to/prompt-sizes.svg

Nothing here depends on the machine: the same picture comes out everywhere.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from google.genai import types

from adk_memory_ext.history import HistoryPolicy, trim_contents
from adk_memory_ext.history.tokens import content_tokens

if TYPE_CHECKING:
    from collections.abc import Sequence

TURNS: Final = 120
BUDGET: Final = 16_000
WINDOW: Final = 14
"""Invocations that the sliding window keeps: about as many tokens as the budget holds."""
_WIDTH: Final = 720
_HEIGHT: Final = 300
_LEFT: Final = 60
_BOTTOM: Final = 40
_TOP: Final = 3 * BUDGET
"""What the picture's upper edge stands for; all of it leaves the picture there."""
_COLOURS: Final = {
    "everything": "#c0392b",
    "sliding window": "#888888",
    "budget of 16,000": "#1f6fb2",
}


def turn(number: int) -> list[types.Content]:
    """Returns a turn with a tool call, without the last answer."""
    call = types.FunctionCall(id=f"c{number}", name="search", args={"query": f"item {number}"})
    found = {"rows": [f"row {row} of item {number} with some words" for row in range(60)]}
    told = types.FunctionResponse(id=call.id, name="search", response=found)
    return [
        types.UserContent(f"What about item {number}?"),
        types.ModelContent(types.Part(function_call=call)),
        types.UserContent(types.Part(function_response=told)),
    ]


def measure() -> dict[str, tuple[list[int], float]]:
    """Returns the prompt's tokens for each turn, and the part of them that a cache can serve."""
    policy = HistoryPolicy(budget_tokens=BUDGET, output_reserve_tokens=0, margin=0)
    history: list[types.Content] = []
    sizes: dict[str, list[int]] = {name: [] for name in _COLOURS}
    served = dict.fromkeys(_COLOURS, 0)
    before: dict[str, Sequence[types.Content]] = dict.fromkeys(_COLOURS, ())
    for number in range(TURNS):
        history += turn(number)
        prompts = (history, history[-(4 * WINDOW - 1) :], trim_contents(history, policy))
        for name, prompt in zip(_COLOURS, prompts, strict=True):
            sizes[name].append(sum(map(content_tokens, prompt)))
            for old, new in zip(before[name], prompt, strict=False):
                if old != new:
                    break
                served[name] += content_tokens(new)
            before[name] = list(prompt)
        history.append(types.ModelContent(f"About item {number} this much can be said. " * 6))
    return {name: (sizes[name], served[name] / sum(sizes[name])) for name in _COLOURS}


def draw(measured: dict[str, tuple[list[int], float]]) -> str:
    """Returns the picture as SVG."""
    lines = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}"'
            ' font-family="sans-serif" font-size="12">'
        ),
        "<title>Tokens of the prompt from turn to turn</title>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
    ]
    for tokens in range(0, _TOP + 1, BUDGET // 2):
        height = _at(0, tokens)[1]
        lines.append(
            f'<path d="M{_LEFT} {height:.1f}H{_WIDTH - 10}" stroke="#dddddd"/>'
            f'<text x="{_LEFT - 6}" y="{height + 4:.1f}" text-anchor="end">{tokens:,}</text>'
        )
    for place, (name, (sizes, share)) in enumerate(measured.items()):
        points = (_at(number, min(size, _TOP)) for number, size in enumerate(sizes))
        path = " ".join(f"{across:.1f},{up:.1f}" for across, up in points)
        colour = _COLOURS[name]
        lines += [
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>',
            (
                f'<text x="{_WIDTH - 330}" y="{28 + 16 * place}" fill="{colour}">{name}:'
                f" {sum(sizes):,} tokens, {share:.0%} cacheable</text>"
            ),
        ]
    caption = f"turns 1 to {TURNS}"
    lines.append(f'<text x="{_WIDTH // 2}" y="{_HEIGHT - 12}">{caption}</text></svg>')
    return "\n".join(lines) + "\n"


def _at(number: int, tokens: int) -> tuple[float, float]:
    across = _LEFT + (_WIDTH - _LEFT - 10) * number / (TURNS - 1)
    return across, _HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - 10) * tokens / _TOP


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(draw(measure()), encoding="utf-8")
