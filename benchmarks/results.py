"""A whole run: what it measured, where and when; kept as a JSON file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Self

from benchmarks.effort import EFFORTS
from benchmarks.rounds import Measured

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.effort import Effort


@dataclass(frozen=True, kw_only=True)
class Results:
    """A finished run."""

    date: str
    """UTC, as 2026-01-31."""
    minutes: float
    effort_name: str
    machine: dict[str, str]
    """{what: words}."""
    measured: Measured

    @property
    def effort(self) -> Effort:
        """How long it measured."""
        return EFFORTS[self.effort_name]

    def save(self, path: Path) -> None:
        """Writes the run to `path`, replacing it."""
        path.write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Self:
        """Reads a run that was saved."""
        data = json.loads(path.read_text(encoding="utf-8"))
        return cls(**{**data, "measured": Measured(**data["measured"])})
