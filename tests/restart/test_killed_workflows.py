"""A workflow that is killed anywhere ends, in a new process, as if nothing had happened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from backends import SOAK
from restart.child import finished, killed
from restart.workflow import EVENTS, OVER_ADK, STEPS, effects, work

if TYPE_CHECKING:
    from pathlib import Path

    from adk_memory_ext.interruptions import Recover
    from restart.killswitch import Point

WHOLE: Final = list(range(1, STEPS + 1))
# The last acknowledgement is the end of the workflow; there is no commit behind it.
POINTS: Final[list[tuple[str, int, Point | None]]] = [
    (storage, number, point)
    for storage, numbers in (
        ("sqlite", range(1, EVENTS) if SOAK else (1, 2, 13)),
        ("postgresql", range(1, EVENTS, 2) if SOAK else (12,)),
    )
    for number in numbers
    for point in ((None, "before COMMIT", "after COMMIT") if SOAK or number != 13 else (None,))
]


@pytest.mark.parametrize("how", ["tell", "rollback"])
@pytest.mark.parametrize(("url", "number", "point"), POINTS, indirect=["url"])
def test_a_killed_workflow_ends_as_if_nothing_had_happened(
    url: str, number: int, point: Point | None, how: Recover, tmp_path: Path
) -> None:
    """The state is that of a run without a crash, and each side effect has happened once."""
    killed(work, url, tmp_path, how, (number, point))

    state, checkpoints = finished(work, url, tmp_path, how, None)

    assert state["done"] == WHOLE
    assert effects(tmp_path) == sorted(map(str, WHOLE))
    assert sorted(set(checkpoints)) == sorted(f"step {step}" for step in WHOLE)


FOREIGN: Final[list[tuple[int, Point | None]]] = [
    (number, point)
    for number in (range(1, EVENTS) if SOAK else (1, 2, 13))
    for point in ((None, "before COMMIT", "after COMMIT") if SOAK or number == 1 else (None,))
]


@pytest.mark.parametrize("how", ["tell", "rollback"])
@pytest.mark.parametrize(("number", "point"), FOREIGN)
@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_so_does_one_whose_checkpoints_lie_in_another_store(
    url: str, number: int, point: Point | None, how: Recover, tmp_path: Path
) -> None:
    """Over ADK's own service, killed between an event and its checkpoint too: none is missing."""
    killed(work, OVER_ADK + url, tmp_path, how, (number, point))

    state, checkpoints = finished(work, OVER_ADK + url, tmp_path, how, None)

    assert state["done"] == WHOLE
    assert effects(tmp_path) == sorted(map(str, WHOLE))
    assert sorted(set(checkpoints)) == sorted(f"step {step}" for step in WHOLE)
