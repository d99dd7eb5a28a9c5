"""However a turn ends, the next one begins."""

from __future__ import annotations

import asyncio
import gc
from contextlib import aclosing
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest
from google.adk.agents.sequential_agent import SequentialAgent
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.workflow import START, Workflow
from sqlalchemy import make_url

from adk_memory_ext import DurableSessionService, MemoryPlugin, TurnHeldTooLongError, Turns
from adk_memory_ext.records import SessionId
from adk_memory_ext.turn_locks import AdvisoryTurnLock, AdvisoryTurnLocks
from adk_memory_ext.turn_queue import Turn, TurnQueue, wait
from backends import count
from conversation import texts
from people import content, echo, log, running, say
from servers import HANG_SECONDS

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from pathlib import Path

    from google.adk.models.llm_request import LlmRequest
    from google.adk.runners import Runner

SESSION: Final = SessionId("app", "user", "session")

pytestmark = pytest.mark.filterwarnings("ignore:SequentialAgent is deprecated")


def in_steps() -> SequentialAgent:
    """Returns an agent that ADK runs in the caller's own task."""
    return SequentialAgent(name="steps", sub_agents=[echo()])


def as_workflow() -> Workflow:
    """Returns a root that is no agent."""
    return Workflow(name="flow", edges=[(START, echo())])


ROOTS: Final[dict[str, Callable[[], Any]]] = {
    "agent": echo,
    "sequential": in_steps,
    "workflow": as_workflow,
}
every_root = pytest.mark.parametrize("root", ROOTS)


async def ticks(number: int) -> None:
    """Lets the event loop go round so often."""
    for _ in range(number):
        await asyncio.sleep(0)


async def is_free(sessions: DurableSessionService) -> bool:
    """Whether nobody holds the session, once what was left behind is collected."""
    await ticks(20)
    if sessions.turns.holder(SESSION) is not None:
        gc.collect()
        await ticks(20)
    return sessions.turns.holder(SESSION) is None


async def length(root: Any) -> int:
    """Returns how many ticks a turn takes."""
    async with DurableSessionService.from_url("") as sessions, running(sessions, root) as runner:
        turn = asyncio.ensure_future(say(runner, "hello"))
        number = 0
        while not turn.done():
            await asyncio.sleep(0)
            number += 1
    return number


def points(number: int) -> range:
    """Returns the ticks to cut at: all under soak, else some forty."""
    return range(0, number + 1, count(max(1, number // 40), 1))


@every_root
async def test_a_task_cancelled_at_any_tick_leaves_no_turn(root: str) -> None:
    """The next turn begins at once, whatever the cancelled one was doing."""
    for point in points(await length(ROOTS[root]())):
        async with (
            DurableSessionService.from_url("") as sessions,
            running(sessions, ROOTS[root]()) as runner,
        ):
            turn = asyncio.ensure_future(say(runner, "cancelled"))
            await ticks(point)
            turn.cancel()
            await asyncio.wait([turn])
            del turn
            assert await is_free(sessions), point
            await asyncio.wait_for(say(runner, "next"), HANG_SECONDS)
            assert texts(await log(sessions))[-1].startswith("echo next")


@every_root
async def test_a_timeout_at_any_tick_leaves_no_turn(root: str) -> None:
    """Also when the task that was interrupted lives on and goes on with another turn."""
    for point in points(await length(ROOTS[root]())):
        async with (
            DurableSessionService.from_url("") as sessions,
            running(sessions, ROOTS[root]()) as runner,
        ):
            await interrupted(runner, point)
            assert await is_free(sessions), point
            await asyncio.wait_for(say(runner, "next"), HANG_SECONDS)
            assert texts(await log(sessions))[-1].startswith("echo next")


async def interrupted(runner: Runner, point: int) -> None:
    """Runs a turn in the current task, for so many ticks."""
    task = asyncio.current_task()
    assert task is not None

    async def interrupt() -> None:
        await ticks(point)
        timeout.reschedule(0)

    async with asyncio.timeout(None) as timeout:
        waiting = asyncio.ensure_future(interrupt())
        try:
            await say(runner, "interrupted")
        except TimeoutError:  # ADK does not raise it itself
            raise AssertionError from None
        except asyncio.CancelledError:
            # What `asyncio.timeout` turns into TimeoutError outside of this block.
            task.uncancel()
        finally:
            waiting.cancel()


@every_root
async def test_who_stops_listening_leaves_no_turn(root: str) -> None:
    """`aclosing` with a break releases at once, a bare break when the generator is finalised."""
    async with (
        DurableSessionService.from_url("") as sessions,
        running(sessions, ROOTS[root]()) as runner,
    ):
        options: dict[str, Any] = {"user_id": "user", "session_id": "session"}
        async with aclosing(runner.run_async(**options, new_message=content("one"))) as events:
            async for _event in events:
                break
        assert sessions.turns.holder(SESSION) is None

        async for _event in runner.run_async(**options, new_message=content("two")):
            break
        await asyncio.wait_for(say(runner, "three"), HANG_SECONDS)
        assert texts(await log(sessions))[-1].startswith("echo three")


@every_root
async def test_a_generator_that_is_kept_loses_its_turn(root: str) -> None:
    """Who keeps a run without going on with it holds the turn up to the limit, and is then told."""
    plugin = MemoryPlugin(turns=Turns(hold_limit=timedelta(milliseconds=500)))
    async with (
        DurableSessionService.from_url("") as sessions,
        running(sessions, ROOTS[root](), plugins=[plugin]) as runner,
        running(sessions) as other,
    ):
        kept = runner.run_async(user_id="user", session_id="session", new_message=content("kept"))
        await anext(kept)
        await asyncio.wait_for(say(other, "next"), HANG_SECONDS)
        with pytest.raises(TurnHeldTooLongError):
            async for _event in kept:
                pass
        await kept.aclose()


class Failing(BaseLlm):
    """Fails."""

    model: str = "failing"
    fails: bool = True

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Fails at once."""
        del llm_request, stream
        if self.fails:
            raise ConnectionError
        yield LlmResponse()


async def test_a_turn_that_fails_leaves_no_turn() -> None:
    """An exception gives the turn back."""
    agent = echo().model_copy(update={"model": Failing()})
    async with (
        DurableSessionService.from_url("") as sessions,
        running(sessions, agent) as runner,
        running(sessions) as other,
    ):
        with pytest.raises(ConnectionError):
            await say(runner, "one")
        assert sessions.turns.holder(SESSION) is None
        await asyncio.wait_for(say(other, "two"), HANG_SECONDS)


async def test_who_is_cancelled_while_waiting_holds_up_nobody() -> None:
    """The one behind it gets its turn, in the order of arrival."""
    gate = asyncio.Event()
    async with (
        DurableSessionService.from_url("") as sessions,
        running(sessions, echo(gate=gate, tools=[])) as slow,
        running(sessions, echo(tools=[])) as quick,
    ):
        first = asyncio.ensure_future(say(slow, "first"))
        while sessions.turns.holder(SESSION) is None:
            await asyncio.sleep(0)
        waiting = [asyncio.ensure_future(say(quick, f"{number}")) for number in range(6)]
        await asyncio.sleep(0.05)
        for one in waiting[::2]:
            one.cancel()
        await ticks(5)
        gate.set()
        await first
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(result).__name__ for result in results] == ["CancelledError", "list"] * 3
        said = texts(await log(sessions))
        assert [text for text in said if not text.startswith("echo")] == ["first", "1", "3", "5"]


async def test_who_waits_in_a_loop_that_was_closed_holds_up_nobody() -> None:
    """A loop may end without cancelling its tasks, as `run_until_complete` does."""
    queue = TurnQueue()
    first, last = Turn(SESSION, "first"), Turn(SESSION, "last")
    await queue.take(first, wait())
    elsewhere = asyncio.new_event_loop()

    async def queue_up() -> asyncio.Task[None]:
        task = asyncio.create_task(queue.take(Turn(SESSION, "gone"), wait()))
        await ticks(2)
        return task

    left = await asyncio.to_thread(elsewhere.run_until_complete, queue_up())
    waiting = asyncio.create_task(queue.take(last, wait()))
    await ticks(2)
    elsewhere.close()
    queue.release(first)
    async with asyncio.timeout(5):
        await waiting
    assert queue.holder(SESSION) is last
    assert not left.done()
    queue.release(last)


async def test_a_turn_whose_loop_was_closed_has_ended() -> None:
    """Its limit would never strike: the timer went with the loop."""
    queue = TurnQueue()

    async def begin() -> Turn:
        turn = Turn(SESSION, "gone")
        await queue.take(turn, wait())
        return turn

    elsewhere = asyncio.new_event_loop()
    gone = await asyncio.to_thread(elsewhere.run_until_complete, begin())
    assert queue.holder(SESSION) is gone
    elsewhere.close()
    turn = Turn(SESSION, "next")
    await queue.take(turn, wait(timedelta(0)))
    assert gone.released
    assert queue.holder(SESSION) is turn
    queue.release(turn)


async def test_a_lock_of_a_closed_loop_is_not_given_up_in_another() -> None:
    """It ends with its connection; here it might be somebody else's by now."""
    locks = AdvisoryTurnLocks(make_url("postgresql+asyncpg://nobody@127.0.0.1:1/none"), {})

    async def taken() -> AdvisoryTurnLock:
        return AdvisoryTurnLock(locks, 1)

    elsewhere = asyncio.new_event_loop()
    lock = await asyncio.to_thread(elsewhere.run_until_complete, taken())
    elsewhere.close()
    lock.release()
    assert not locks._releases
    (await taken()).release()
    assert len(locks._releases) == 1
    await locks.close()


async def test_nothing_is_left_of_a_turn(tmp_path: Path) -> None:
    """After a turn no lock file lies beside the database, and no folder for them after `close`."""
    url = f"sqlite:///{tmp_path}/sessions.db"
    async with DurableSessionService.from_url(url) as sessions, running(sessions) as runner:
        await say(runner, "hello")
        assert list((tmp_path / "sessions.db-turns").iterdir()) == []
    assert not (tmp_path / "sessions.db-turns").exists()
