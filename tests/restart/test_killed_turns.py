"""A Runner that is killed in the middle of a turn: the conversation goes on in a new process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from conversation import texts
from restart.child import finished, killed
from restart.children import take_turn
from restart.found import acknowledged, found

if TYPE_CHECKING:
    from restart.children import TurnPoint

TURNS = [
    ("sqlite", "model", 1),
    ("sqlite", "tool", 2),
    ("sqlite", "model with the tool's answer", 3),
    ("postgresql", "tool", 2),
]
"""Where, at which point, and how many events of the turn are acknowledged by then."""


@pytest.mark.parametrize(("url", "point", "events"), TURNS, indirect=["url"])
def test_a_conversation_survives_a_killed_turn(url: str, point: TurnPoint, events: int) -> None:
    """Killed inside a turn, a conversation has what was acknowledged, and its next turn has it all.

    The next turn runs in a new process, and the model says how many questions it was sent.
    """
    whole = acknowledged(finished(take_turn, url, "question one", None))
    part = acknowledged(killed(take_turn, url, "question two", point))
    assert (len(whole), len(part)) == (4, events)

    session = found(url)["s"]
    assert session.events == whole + part
    session.assert_consistent()

    turn = acknowledged(finished(take_turn, url, "question three", None))
    session = found(url)["s"]
    assert session.events == whole + part + turn
    assert texts(turn)[-1] == "{'noted': 'question three'}, question 3 of them"
    session.assert_consistent()


@pytest.mark.parametrize("url", ["sqlite", "postgresql"], indirect=True)
def test_a_tool_killed_in_its_middle_has_changed_no_state(url: str) -> None:
    """State that a tool wrote before the process died under it is nowhere, in no scope."""
    killed(take_turn, url, "question one", "tool")

    session = found(url)["s"]

    assert [key for key in session.state if "noted" in key] == []
    assert "noted" not in session.user_state
    assert "app:noted" not in session.app_state
