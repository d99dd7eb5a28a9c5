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
def test_a_killed_turn_keeps_what_was_acknowledged(url: str, point: TurnPoint, events: int) -> None:
    """After SIGKILL inside a turn a new process finds each acknowledged event and no other."""
    whole = acknowledged(finished(take_turn, url, "question one", None))
    part = acknowledged(killed(take_turn, url, "question two", point))

    session = found(url)["s"]

    assert (len(whole), len(part)) == (4, events)
    assert session.events == whole + part
    session.assert_consistent()


@pytest.mark.parametrize(("url", "point", "events"), TURNS, indirect=["url"])
def test_the_conversation_goes_on_after_a_killed_turn(
    url: str, point: TurnPoint, events: int
) -> None:
    """A new process takes the next turn, and the model is sent the questions of all turns."""
    finished(take_turn, url, "question one", None)
    killed(take_turn, url, "question two", point)
    before = found(url)["s"].events

    turn = acknowledged(finished(take_turn, url, "question three", None))

    session = found(url)["s"]
    assert len(before) == 4 + events
    assert session.events == before + turn
    assert texts(turn)[-1] == "{'noted': 'question three'}, question 3 of them"
    assert session.state["user:noted"] == "question three"
    session.assert_consistent()


@pytest.mark.parametrize("url", ["sqlite", "postgresql"], indirect=True)
def test_a_tool_killed_in_its_middle_has_changed_no_state(url: str) -> None:
    """State that a tool wrote before the process died under it is nowhere, in no scope."""
    killed(take_turn, url, "question one", "tool")

    session = found(url)["s"]

    assert [key for key in session.state if "noted" in key] == []
    assert "noted" not in session.user_state
    assert "app:noted" not in session.app_state
