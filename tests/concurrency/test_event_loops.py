"""One service in several event loops: one after the other, and at the same time in threads.

`Runner.run` of ADK, its synchronous way, has a thread and a loop of its own at each call.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import pytest
from google.adk.apps import App
from google.adk.errors import StaleSessionError
from google.adk.runners import Runner
from google.adk.sessions.in_memory_session_service import InMemorySessionService

from adk_memory_ext import DurableSessionService, Increment, MemoryPlugin
from conversation import said, texts
from people import SESSION, content, echo, log, turns
from servers import SERVERS

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from pathlib import Path

    from google.adk.events.event import Event

LOOPS: Final = 3
EACH: Final = 5


@pytest.fixture(params=["sqlite", "in memory", "postgresql", "mariadb", "foreign"])
def sessions(
    request: pytest.FixtureRequest, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> Iterator[DurableSessionService]:
    """A service that was made outside of any loop; its connections end with each loop's."""
    kind = request.param
    url = f"sqlite:///{tmp_path}/sessions.db"
    if kind == "foreign":
        service = DurableSessionService(InMemorySessionService())
    else:
        if kind == "in memory":
            url = "sqlite:///:memory:"
        elif kind in SERVERS:
            url = request.getfixturevalue(f"{kind}_url")
        service = DurableSessionService.from_url(url)
    asyncio.run(service.create_session(**SESSION))
    yield service
    if kind in SERVERS:
        SERVERS[kind].wait_until_unused(url)
    asyncio.run(service.close())
    records = [*caplog.get_records("call"), *caplog.get_records("teardown")]
    assert not [record for record in records if record.levelname == "ERROR"]


def at_once(work: Callable[[int], Coroutine[Any, Any, None]]) -> None:
    """Runs the work in threads, each with an event loop of its own."""
    together = threading.Barrier(LOOPS)

    def run(number: int) -> None:
        together.wait()
        asyncio.run(asyncio.wait_for(work(number), 60))

    with ThreadPoolExecutor(LOOPS) as threads:
        list(threads.map(run, range(LOOPS)))


async def append(sessions: DurableSessionService, event: Event) -> None:
    """Appends an event to the session as it is by then."""
    while True:
        session = await sessions.get_session(**SESSION)
        assert session is not None
        try:
            await sessions.append_event(session, event)
        except StaleSessionError:
            continue
        return


def test_one_loop_after_the_other(sessions: DurableSessionService) -> None:
    """Nobody closes the service in between, as a script with several `asyncio.run` does not."""
    for number in range(LOOPS):
        asyncio.run(append(sessions, said(str(number))))
    assert texts(asyncio.run(log(sessions))) == [str(number) for number in range(LOOPS)]


def test_loops_at_the_same_time_append_to_one_session(sessions: DurableSessionService) -> None:
    """Each event is stored once, in the order of its own loop."""

    async def work(number: int) -> None:
        for index in range(EACH):
            await append(sessions, said(f"{number} {index}"))

    at_once(work)
    said_by_all = texts(asyncio.run(log(sessions)))
    assert sorted(said_by_all) == sorted(f"{n} {i}" for n in range(LOOPS) for i in range(EACH))
    for number in range(LOOPS):
        own = [text for text in said_by_all if text.startswith(f"{number} ")]
        assert own == [f"{number} {index}" for index in range(EACH)]


@pytest.mark.parametrize(
    "sessions", ["sqlite", "in memory", "postgresql", "mariadb"], indirect=True
)
def test_loops_at_the_same_time_change_state(sessions: DurableSessionService) -> None:
    """No increment is lost."""

    async def work(number: int) -> None:
        del number
        for _ in range(EACH):
            await sessions.state.update({"user:visits": Increment()}, **SESSION)

    at_once(work)
    session = asyncio.run(sessions.get_session(**SESSION))
    assert session is not None
    assert session.state == {"user:visits": LOOPS * EACH}


def test_the_synchronous_runner_in_threads(sessions: DurableSessionService) -> None:
    """Its turns are served one after the other, each in one piece, and lose no state."""
    app = App(name="app", root_agent=echo(), plugins=[MemoryPlugin()])
    runner = Runner(app=app, session_service=sessions)
    together = threading.Barrier(LOOPS)

    def say(number: int) -> None:
        together.wait()
        for index in range(EACH):
            text = f"{number} {index}"
            *_, last = runner.run(user_id="user", session_id="session", new_message=content(text))
            assert texts([last])[0].startswith(f"echo {text}")

    with ThreadPoolExecutor(LOOPS) as threads:
        list(threads.map(say, range(LOOPS)))
    asyncio.run(runner.close())
    events = asyncio.run(log(sessions))
    whole = turns(events)
    assert len(whole) == LOOPS * EACH
    session = asyncio.run(sessions.get_session(**SESSION))
    assert session is not None
    assert session.state["notes"] == [turn[0] for turn in whole]
