"""Who may run a turn of a session: first come, first served, in one process and between them.

In one process turns queue in the order in which they came. Between processes each turn also holds
a lock that the operating system or the database drops when its holder dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Literal, Protocol

from adk_memory_ext.errors import ConfigurationError, TurnBusyError, TurnNestedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from adk_memory_ext.records import SessionId

_SHORTEST_PAUSE: Final = 0.002
_LONGEST_PAUSE: Final = 0.05
"""Seconds between two looks at a lock that another process holds."""

_running: ContextVar[tuple[Turn, ...]] = ContextVar("adk_memory_ext_running_turns", default=())
"""The turns inside which the current code runs: also in the tasks and tools that they start."""


def innermost() -> Turn | None:
    """Returns the turn inside which the current code runs."""
    turns = _running.get()
    return turns[-1] if turns and not turns[-1].released else None


@dataclass(frozen=True, slots=True)
class OnBusy:
    """What a turn does that finds another one running."""

    action: Literal["wait", "reject", "supersede"]
    timeout: timedelta
    """How long it waits; `reject` does not."""

    def __post_init__(self) -> None:
        if self.timeout < timedelta(0):
            raise ConfigurationError("A turn cannot wait for a negative time.")


def wait(timeout: timedelta = timedelta(minutes=2)) -> OnBusy:
    """Wait until the running turn has ended; `TurnBusyError` after `timeout`."""
    return OnBusy("wait", timeout)


def reject() -> OnBusy:
    """Refuse with `TurnBusyError`, which `adk api_server` answers with 409."""
    return OnBusy("reject", timedelta(0))


def supersede(timeout: timedelta = timedelta(minutes=2)) -> OnBusy:
    """Abort the running turn and take its place; in other processes' turns this is `wait`."""
    return OnBusy("supersede", timeout)


class TurnLock(Protocol):
    """A lock that other processes see."""

    def release(self) -> None:
        """Gives the lock up; may be called in any thread."""


class TurnLocks(Protocol):
    """Locks that other processes see and that die with their holder."""

    async def try_lock(self, session: SessionId) -> TurnLock | None:
        """Returns the lock of a session's turns, or None while somebody else holds it."""

    async def close(self) -> None:
        """Gives up what is held."""


@dataclass(eq=False, slots=True, weakref_slot=True)
class Turn:
    """The right to run one invocation of a session."""

    session: SessionId
    invocation_id: str
    queue: TurnQueue
    hold_limit: timedelta
    """How long it may be held without an append."""
    abort: Callable[[], None] = lambda: None
    """Asks the invocation to end, as ADK's own abort does."""
    waited: bool = False
    """Whether another turn ran first."""
    is_lost: bool = False
    """Whether it was held for too long and given to others."""
    lock: TurnLock | None = None
    beat: float = field(default_factory=time.monotonic)
    """When it was taken, or an event of it was last appended; seconds of the monotonic clock."""
    released: bool = False
    timer: asyncio.TimerHandle | None = None

    def release(self) -> None:
        """Lets the next one begin. May be called again, and in any thread."""
        self.queue.release(self)


@dataclass(eq=False, slots=True)
class _Waiter:
    turn: Turn
    loop: asyncio.AbstractEventLoop
    granted: asyncio.Future[None]


class TurnQueue:
    """The turns of all sessions of one service.

    Args:
        locks: Locks that other processes see; None where no other process can see the sessions.
    """

    def __init__(self, locks: TurnLocks | None) -> None:
        self._locks = locks
        self._guard = threading.Lock()
        self._holders: dict[SessionId, Turn] = {}
        self._waiters: dict[SessionId, deque[_Waiter]] = {}
        self._lost: dict[tuple[SessionId, str], Turn] = {}
        self._refused: dict[tuple[SessionId, str], TurnBusyError] = {}

    async def take(self, turn: Turn, on_busy: OnBusy) -> None:
        """Returns when the turn may run.

        Raises:
            TurnBusyError: When another turn runs, and still does after the time to wait.
            TurnNestedError: When it is asked for inside a running turn of the same session, which
                would wait for itself.
        """
        for outer in _running.get():
            if outer.session == turn.session and not outer.released:
                raise TurnNestedError(
                    f"Session {turn.session.session_id} was run from inside its own turn; run"
                    " another session, or return to the caller first."
                )
        deadline = time.monotonic() + on_busy.timeout.total_seconds()
        try:
            await self._take_here(turn, on_busy, deadline)
            await self._take_elsewhere(turn, on_busy, deadline)
        except BaseException:
            turn.release()
            raise
        turn.beat = time.monotonic()
        _running.set((*(t for t in _running.get() if not t.released), turn))
        self._watch(turn, turn.hold_limit.total_seconds())

    def release(self, turn: Turn) -> None:
        """Gives the turn to the next one that waits in this process, and to others."""
        with self._guard:
            if turn.released:
                return
            turn.released = True
            lock, turn.lock = turn.lock, None
            timer, turn.timer = turn.timer, None
            following = None
            if self._holders.get(turn.session) is turn:
                following = self._hand_over(turn.session)
        if timer is not None:
            timer.cancel()
        if lock is not None:
            lock.release()
        if following is not None:
            with contextlib.suppress(RuntimeError):  # its loop was closed
                following.loop.call_soon_threadsafe(_grant, following.granted)

    def touch(self, session: SessionId, invocation_id: str) -> Turn | None:
        """Notes an append of an invocation and returns its turn if it was lost."""
        holder = self._holders.get(session)
        if holder is not None and holder.invocation_id == invocation_id:
            holder.beat = time.monotonic()
            return None
        return self._lost.get((session, invocation_id))

    def refuse(self, turn: Turn, error: TurnBusyError) -> None:
        """Has the invocation's next append raise `error`."""
        self._refused[turn.session, turn.invocation_id] = error

    def refusal(self, session: SessionId, invocation_id: str) -> TurnBusyError | None:
        """Returns the error of an invocation that did not get its turn."""
        return self._refused.pop((session, invocation_id), None)

    def knows(self, session: SessionId, invocation_id: str) -> bool:
        """Whether the invocation has its turn, had it and lost it, or was refused it."""
        holder = self._holders.get(session)
        name = (session, invocation_id)
        return (
            (holder is not None and holder.invocation_id == invocation_id)
            or name in self._lost
            or name in self._refused
        )

    def holder(self, session: SessionId) -> Turn | None:
        """Returns the turn that runs in this process."""
        return self._holders.get(session)

    def forget(self, turn: Turn) -> None:
        """Drops what is known of an invocation that cannot append any more."""
        turn.release()
        self._lost.pop((turn.session, turn.invocation_id), None)
        self._refused.pop((turn.session, turn.invocation_id), None)

    async def close(self) -> None:
        """Gives up the locks that other processes see."""
        if self._locks is not None:
            await self._locks.close()

    async def _take_here(self, turn: Turn, on_busy: OnBusy, deadline: float) -> None:
        """Queues behind the turns of this process."""
        loop = asyncio.get_running_loop()
        with self._guard:
            holder = self._holders.get(turn.session)
            if holder is None:
                self._holders[turn.session] = turn
                return
            if on_busy.action == "reject":
                raise _busy(turn, 0)
            waiter = _Waiter(turn, loop, loop.create_future())
            self._waiters.setdefault(turn.session, deque()).append(waiter)
        turn.waited = True
        if on_busy.action == "supersede":
            holder.abort()
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                await waiter.granted
        except TimeoutError:
            raise _busy(turn, on_busy.timeout.total_seconds()) from None
        finally:
            with self._guard:
                waiters = self._waiters.get(turn.session)
                if waiters is not None and waiter in waiters:
                    waiters.remove(waiter)
                    if not waiters:
                        del self._waiters[turn.session]

    async def _take_elsewhere(self, turn: Turn, on_busy: OnBusy, deadline: float) -> None:
        """Waits for the turns of other processes."""
        if self._locks is None:
            return
        pause = _SHORTEST_PAUSE
        while (lock := await self._locks.try_lock(turn.session)) is None:
            turn.waited = True
            if time.monotonic() + pause > deadline:
                raise _busy(turn, on_busy.timeout.total_seconds())
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_PAUSE)
        turn.lock = lock

    def _hand_over(self, session: SessionId) -> _Waiter | None:
        """Makes the first that still waits the holder; the caller holds the guard."""
        waiters = self._waiters.get(session)
        while waiters:
            waiter = waiters.popleft()
            if not waiters:
                del self._waiters[session]
            if not waiter.granted.cancelled():
                self._holders[session] = waiter.turn
                return waiter
        del self._holders[session]
        return None

    def _watch(self, turn: Turn, seconds: float) -> None:
        turn.timer = asyncio.get_running_loop().call_later(seconds, self._expire, turn)

    def _expire(self, turn: Turn) -> None:
        """Takes the turn from whoever neither ends it nor appends."""
        if turn.released:
            return
        rest = turn.beat + turn.hold_limit.total_seconds() - time.monotonic()
        if rest > 0:
            self._watch(turn, rest)
            return
        turn.is_lost = True
        self._lost[turn.session, turn.invocation_id] = turn
        turn.release()


def _grant(granted: asyncio.Future[None]) -> None:
    if not granted.done():
        granted.set_result(None)


def _busy(turn: Turn, seconds: float) -> TurnBusyError:
    return TurnBusyError(
        f"Session {turn.session.session_id} has a running turn"
        + (f" and still had after {seconds:g} s." if seconds else ".")
    )
