"""Several processes on one database at the same time."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from backends import count
from conversation import texts
from restart.child import Child
from restart.children import look_on, write_beside, write_slowly
from restart.found import found


@pytest.mark.parametrize("url", ["sqlite", "postgresql"], indirect=True)
def test_a_reader_sees_one_moment_after_the_other(url: str) -> None:
    """A process that reads while another one writes sees whole events and a state that fits."""
    number = count(60, 600)
    with Child(look_on, (url, number)) as reader, Child(write_slowly, (url, number)) as writer:
        while reader.hear() < number // 2:
            pass
        writer.tell("go on")  # the reader has seen the first half before the second begins
        assert writer.end() == 0
        assert reader.end() == 0

    assert reader.heard[-1] == number
    session = found(url)["s"]
    assert texts(session.events) == [f"event {n}" for n in range(number)]
    session.assert_consistent()


@pytest.mark.parametrize("url", ["sqlite", "postgresql"], indirect=True)
@pytest.mark.parametrize("processes", [2, 4])
def test_processes_that_write_at_once_lose_nothing(url: str, processes: int) -> None:
    """Processes that open a new database together and write together keep every event and key."""
    number = count(25, 250)
    names = [f"p{n}" for n in range(processes)]
    with ExitStack() as stack:
        writers = [stack.enter_context(Child(write_beside, (url, n, number))) for n in names]
        assert [writer.hear() for writer in writers] == ["ready"] * processes
        for writer in writers:
            writer.tell("go")
        assert [writer.end() for writer in writers] == [0] * processes

    sessions = found(url)
    keys = {f"{name}-{n}": n for name in names for n in range(number)}
    keys |= {f"{name}-begun": 1 for name in names}
    assert sorted(sessions) == names
    for name, session in sessions.items():
        assert texts(session.events) == [f"{name} {n}" for n in range(number)]
        assert session.user_state == keys
        assert session.app_state == {f"app:{key}": value for key, value in keys.items()}
