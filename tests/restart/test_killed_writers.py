"""A process that is killed: what it acknowledged is there, and nothing is there in part."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from backends import SOAK, count
from conversation import replay, texts
from restart.child import Child, finished, killed
from restart.children import (
    append_until_statement,
    conversation,
    converse,
    converse_at_once,
    open_until_statement,
)
from restart.found import acknowledged, found

if TYPE_CHECKING:
    from pathlib import Path

    from restart.killswitch import Point

LENGTH = len(conversation())

POSITIONS = [("sqlite", n) for n in range(LENGTH)]
POSITIONS += [("postgresql", n) for n in (range(LENGTH) if SOAK else (0, 6, 11))]

COMMITS = [("sqlite", n) for n in (range(LENGTH) if SOAK else (0, 2, 3, 6, 11))]
COMMITS += [("postgresql", n) for n in (range(LENGTH) if SOAK else (2,))]


@pytest.mark.parametrize(("url", "position"), POSITIONS, indirect=["url"])
def test_every_acknowledged_event_survives(url: str, position: int) -> None:
    """After SIGKILL behind an acknowledgement a new process finds that event and all before it."""
    events = acknowledged(killed(converse, url, position, None))

    session = found(url)["s"]

    assert len(events) == position + 1
    assert session.events == events
    session.assert_consistent()


@pytest.mark.parametrize(("url", "position"), COMMITS, indirect=["url"])
def test_an_event_killed_before_its_commit_is_not_there(url: str, position: int) -> None:
    """After SIGKILL right before COMMIT a new process finds nothing of that event, in no scope."""
    events = acknowledged(killed(converse, url, position, "before COMMIT"))

    session = found(url)["s"]

    assert len(events) == position
    assert session.events == events
    session.assert_consistent()


@pytest.mark.parametrize(("url", "position"), COMMITS, indirect=["url"])
def test_an_event_killed_behind_its_commit_is_there_whole(url: str, position: int) -> None:
    """After SIGKILL between COMMIT and the acknowledgement that event is there with its state."""
    events = acknowledged(killed(converse, url, position, "after COMMIT"))

    session = found(url)["s"]

    assert len(events) == position
    assert session.events[:-1] == events
    assert texts(session.events) == texts(conversation()[: position + 1])
    session.assert_consistent()


@pytest.mark.parametrize("url", ["sqlite", "postgresql"], indirect=True)
@pytest.mark.parametrize("point", [None, "before COMMIT", "after COMMIT"])
def test_a_conversation_goes_on_where_it_was_killed(url: str, point: Point | None) -> None:
    """The process that starts after a SIGKILL appends behind what survived, once."""
    killed(converse, url, 5, point)
    before = found(url)["s"].events

    goes_on = acknowledged(killed(converse, url, 3, None))

    session = found(url)["s"]
    assert len(goes_on) == 4
    assert session.events == before + goes_on


def test_an_append_killed_at_any_statement_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    """Wherever in an append a process dies, the log and the state of every scope agree."""
    for number in range(1, 100):
        url = f"sqlite:///{tmp_path}/{number}.db"
        with Child(append_until_statement, (url, number)) as child:
            code = child.end()
            events = acknowledged(child.heard)

        session = found(url)["s"]
        assert session.events[: len(events)] == events
        assert len(session.events) <= 2
        session.assert_consistent()
        if code == 0:
            break
    assert len(events) == 2, "the append has no end"
    assert number > 4, "the switch is not where the statements are"


def test_a_database_killed_while_it_is_made_can_be_opened(tmp_path: Path) -> None:
    """Wherever in its very first opening a process dies, the next one opens the database."""
    (statements,) = finished(open_until_statement, f"sqlite:///{tmp_path}/whole.db", 10_000)
    assert statements > 10

    for number in range(1, statements + 1, count(5, 1)):
        url = f"sqlite:///{tmp_path}/{number}.db"
        killed(open_until_statement, url, number)
        finished(open_until_statement, url, 10_000)


@pytest.mark.parametrize(("url", "deaths"), [("sqlite", 4), ("postgresql", 2)], indirect=["url"])
def test_many_conversations_at_once_lose_nothing(url: str, deaths: int) -> None:
    """Killed from outside amid many appends, a process leaves all that it acknowledged, whole."""
    told: dict[str, list[str]] = {}
    for death in range(count(deaths, 10 * deaths)):
        with Child(converse_at_once, (url, 8)) as child:
            for _ in range(20 + 13 * death):
                child.hear()
            child.kill()
            child.end()
            for session_id, text in child.heard:
                told.setdefault(session_id, []).append(text)

        sessions = found(url)
        for session_id, session in sessions.items():
            events = acknowledged(told.get(session_id, []))
            surplus = [event for event in session.events if event not in events]
            assert [event for event in session.events if event in events] == events
            assert len(surplus) <= death + 1, "more than one append of a session was under way"
            last = replay(session.events).get("n")
            assert session.state.get("n") == last
            assert session.user_state.get(session_id) == last
            assert session.app_state.get(f"app:{session_id}") == last
