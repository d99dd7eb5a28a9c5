"""Corrects the estimate of tokens by what the model reported for earlier calls of the session.

Each call leaves its estimate in the log, beside the usage that the model reported: so the
correction is a matter of the log alone, and the same log gives the same one.
"""

from __future__ import annotations

import math
from statistics import median
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from google.adk.events.event import Event

ESTIMATE: Final = "memext_estimated_tokens"
"""Where an event's `custom_metadata` says what the estimate was, before any correction."""
_WINDOW: Final = 5
"""Reports of which the middle one counts: one that is far out moves nothing."""
GRAIN: Final = 8
"""A correction moves in eighths, so that it seldom does."""
_LEAST: Final = 0.5
_MOST: Final = 4.0


def calibrated(events: Iterable[Event]) -> float:
    """Returns by what an estimate is to be multiplied; 1.0 before the first report.

    It never falls within a session: each change moves the cuts, and with them what is cached.
    """
    ratios: list[float] = []
    correction = 0.0
    for event in events:
        if (ratio := _reported(event)) is None:
            continue
        ratios.append(ratio)
        middle = median(ratios[-_WINDOW:])
        correction = max(correction, math.ceil(middle * GRAIN) / GRAIN)
    return min(_MOST, max(_LEAST, correction)) if ratios else 1.0


def _reported(event: Event) -> float | None:
    """Returns the tokens that the model counted for one that was estimated."""
    metadata: Any = event.custom_metadata
    usage = event.usage_metadata
    estimate = metadata.get(ESTIMATE) if isinstance(metadata, dict) else None
    if usage is None or not usage.prompt_token_count:
        return None
    if not isinstance(estimate, int) or isinstance(estimate, bool) or estimate <= 0:
        return None
    return usage.prompt_token_count / estimate
