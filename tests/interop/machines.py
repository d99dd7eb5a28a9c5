"""How the state machines are run: a few random walks for each of several seeds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hypothesis import Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from backends import SOAK

if TYPE_CHECKING:
    from hypothesis.stateful import RuleBasedStateMachine

STEPS: Final = 40
WALKS: Final = 5
"""In one run. With more, hypothesis soon takes variants of walks that it knows already."""


def drive(machine: type[RuleBasedStateMachine], url: str, runs: int) -> None:
    """Runs the machine over the database at `url`; the same walks each time."""
    # Shrinking a failure takes minutes; `make soak` does it.
    phases = list(Phase) if SOAK else [Phase.generate]
    for number in range(runs):
        chosen = seed(number)(type(machine.__name__, (machine,), {"url": url}))
        run_state_machine_as_test(
            chosen,
            settings=settings(max_examples=WALKS, stateful_step_count=STEPS, phases=phases),
        )
