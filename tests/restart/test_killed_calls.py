"""Of calls that ran at once when the process died, those that had finished are not run again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from restart.child import finished, killed
from restart.parallel import bookings, work

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("url", ["sqlite", "postgresql"], indirect=True)
def test_a_resumed_turn_runs_only_the_call_that_had_not_finished(url: str, tmp_path: Path) -> None:
    """The answer, the state and the checkpoint of the one that had finished come first."""
    killed(work, url, tmp_path, "resume", True)
    assert bookings(tmp_path) == ["quick"]
    (said, booked), steps = finished(work, url, tmp_path, "resume", False)
    assert bookings(tmp_path) == ["quick", "slow"]
    assert said == "[{'booked': 'quick'}, {'booked': 'slow'}]"
    assert booked == ["quick", "slow"]
    assert steps == ["quick", "slow"]


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_plain_resumability_runs_both_again(url: str, tmp_path: Path) -> None:
    """ADK stores the answers of both as one event; this is what keeping them is for."""
    killed(work, url, tmp_path, "rollback", True)
    finished(work, url, tmp_path, "rollback", False)
    assert bookings(tmp_path) == ["quick", "quick", "slow"]


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_a_new_message_is_told_what_had_finished(url: str, tmp_path: Path) -> None:
    """The answer that was kept is the call's answer; of the other one the outcome is unknown."""
    killed(work, url, tmp_path, "resume", True)
    (said, booked), steps = finished(work, url, tmp_path, "tell", False)
    assert bookings(tmp_path) == ["quick"]
    assert "{'booked': 'quick'}" in said
    assert "interrupted" in said
    assert (booked, steps) == (["quick"], ["quick"])
