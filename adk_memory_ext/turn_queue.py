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
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from adk_memory_ext.errors import (
    ConfigurationError,
    TurnBusyError,
    TurnError,
    TurnHeldTooLongError,
    TurnNestedError,
)
from adk_memory_ext.keyed_locks import grant

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from adk_memory_ext.records import SessionId

_SHORTEST_PAUSE: Final = 0.002
_LONGEST_PAUSE: Final = 0.05
"""Seconds between two looks at a lock that another process holds."""

HOLD_LIMIT: Final = timedelta(minutes=10)
"""How long a turn may be held without an append, unless it says otherwise."""

_inside: ContextVar[tuple[Turn, ...]] = ContextVar("adk_memory_ext_inside_turns", default=())
"""The turns whose agents or tools the current code is a part of."""


@dataclass(frozen=True, slots=True)
class OnBusy:
    """What a turn does that finds another one running; made by `wait`, `reject`, `supersede`."""

    action: Literal["wait", "reject", "supersede"]
    timeout: timedelta
    """How long it waits; `reject` does not."""

    def __post_init__(self) -> None:
        if self.timeout < timedelta(0):
            raise ConfigurationError("A turn cannot wait for a negative time.")


def wait(timeout: timedelta = timedelta(minutes=2)) -> OnBusy:
    """Waits until the running turn has ended; after `timeout` the new one is refused."""
    return OnBusy("wait", timeout)


def reject() -> OnBusy:
    """Refuses the new turn with `TurnBusyError`, which `adk api_server` answers with 409."""
    return OnBusy("reject", timedelta(0))


def supersede(timeout: timedelta = timedelta(minutes=2)) -> OnBusy:
    """Aborts the running turn of this process and takes its place; else waits as `wait` does."""
    return OnBusy("supersede", timeout)


class TurnLock(Protocol):
    """A lock that other processes see."""

    def release(self) -> None:
        """Gives the lock up; called in the event loop that took it."""


class TurnLocks(Protocol):
    """Locks that other processes see and that die with their holder."""

    async def try_lock(self, session: SessionId) -> TurnLock | None:
        """Returns the lock of a session's turns, or None while somebody else holds it."""


def _nothing() -> None:
    """Aborts nothing."""


@dataclass(eq=False, slots=True, weakref_slot=True)
class Turn:
    """The right to run one invocation of a session."""

    session: SessionId
    invocation_id: str
    hold_limit: timedelta = HOLD_LIMIT
    """How long it may be held without an append."""
    abort: Callable[[], None] = _nothing
    """Asks the invocation to end, as ADK's own abort does; called in its own event loop."""
    runner: asyncio.Task[Any] | None = None
    """The task that consumes the run's events."""
    waited: bool = False
    """Whether another turn ran first."""
    begun: bool = False
    """Whether an event of it is stored."""
    failure: TurnError | None = None
    """Why its appends are refused: it did not get its turn, or lost it."""
    released: bool = False
    lock: TurnLock | None = None
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    beat: float = field(default_factory=time.monotonic)
    """When it began, or an event of it was last appended; seconds of the monotonic clock."""
    timer: asyncio.TimerHandle | None = None

    def enter(self) -> None:
        """Marks the current task, and those that it will start, as a part of this turn."""
        _inside.set((*(turn for turn in _inside.get() if not turn.released), self))


@dataclass(eq=False, slots=True)
class _Waiter:
    turn: Turn
    granted: asyncio.Future[None]


class TurnQueue:
    """The turns of all sessions of one service.

    Args:
        locks: Locks that other processes see; None where no other process can see the sessions.
    """

    def __init__(self, locks: TurnLocks | None = None) -> None:
        self._locks = locks
        self._guard = threading.RLock()  # event loops of several threads may share a service
        self._holders: dict[SessionId, Turn] = {}
        self._waiters: dict[SessionId, deque[_Waiter]] = {}
        self._known: dict[tuple[SessionId, str], Turn] = {}

    async def take(self, turn: Turn, on_busy: OnBusy) -> None:
        """Returns when the turn may run.

        Raises:
            TurnBusyError: When another turn runs, and still does after the time to wait.
            TurnNestedError: When it is asked for by a part of a running turn of the same session,
                which would wait for itself.

            After each of these, and when the caller is cancelled, it is not held. Appends of its
            invocation are refused until it is forgotten.
        """
        for outer in _inside.get():
            if outer.session == turn.session and not outer.released:
                self._fail(turn, _nested(turn))
        deadline = time.monotonic() + on_busy.timeout.total_seconds()
        try:
            await self._take_here(turn, on_busy, deadline)
            await self._take_elsewhere(turn, on_busy, deadline)
        except TurnBusyError as error:
            self._fail(turn, error)
        except BaseException:
            self.release(turn)
            raise
        self._known[turn.session, turn.invocation_id] = turn
        turn.beat = time.monotonic()
        self._watch(turn, turn.hold_limit.total_seconds())

    @contextlib.asynccontextmanager
    async def held(self, turn: Turn, on_busy: OnBusy) -> AsyncIterator[None]:
        """Takes a turn that belongs to no run, and forgets it at the end; raises as `take`."""
        try:
            await self.take(turn, on_busy)
            yield
        finally:
            self.forget(turn)

    def release(self, turn: Turn) -> None:
        """Gives the turn to the next one that waits in this process, and to others; idempotent."""
        with self._guard:
            if turn.released:
                return
            turn.released = True
            lock, turn.lock = turn.lock, None
            timer, turn.timer = turn.timer, None
            if turn.failure is None:
                self._known.pop((turn.session, turn.invocation_id), None)
            following = None
            if self._holders.get(turn.session) is turn:
                following = self._hand_over(turn.session)
        if timer is not None:
            timer.cancel()
        if lock is not None:
            lock.release()
        if following is not None:
            try:
                following.turn.loop.call_soon_threadsafe(grant, following.granted)
            except RuntimeError:  # its loop was closed, and nobody waits there any more
                self.release(following.turn)

    def forget(self, turn: Turn) -> None:
        """Releases the turn of an invocation that cannot append any more, also a refused one."""
        self.release(turn)
        with self._guard:
            if self._known.get((turn.session, turn.invocation_id)) is turn:
                del self._known[turn.session, turn.invocation_id]

    def of(self, session: SessionId, invocation_id: str) -> Turn | None:
        """Returns the turn of an invocation: one that runs, was refused, or was lost."""
        return self._known.get((session, invocation_id))

    def holder(self, session: SessionId) -> Turn | None:
        """Returns the turn of this process that runs, or that waits for another process.

        One whose event loop was closed has ended; nobody else would say so.
        """
        while (turn := self._holders.get(session)) is not None and turn.loop.is_closed():
            self.release(turn)
        return turn

    def admit(self, session: SessionId, invocation_id: str) -> Turn | None:
        """Notes an append and returns the turn that it belongs to, if any.

        Raises:
            TurnBusyError: When its invocation did not get its turn.
            TurnNestedError: When its invocation asked for a turn inside one.
            TurnHeldTooLongError: When its invocation lost its turn.
        """
        turn = self._known.get((session, invocation_id))
        if turn is None:
            return None
        if turn.failure is not None:
            raise turn.failure
        turn.beat = time.monotonic()
        return turn

    async def _take_here(self, turn: Turn, on_busy: OnBusy, deadline: float) -> None:
        """Queues behind the turns of this process."""
        with self._guard:
            holder = self.holder(turn.session)
            if holder is None:
                self._holders[turn.session] = turn
                return
            if on_busy.action == "reject":
                raise _busy(turn, 0)
            waiter = _Waiter(turn, turn.loop.create_future())
            self._waiters.setdefault(turn.session, deque()).append(waiter)
        turn.waited = True
        if on_busy.action == "supersede":
            with contextlib.suppress(RuntimeError):  # its loop was closed
                holder.loop.call_soon_threadsafe(holder.abort)
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                await waiter.granted
        except TimeoutError:
            raise _busy(turn, on_busy.timeout.total_seconds()) from None
        finally:
            self._stop_waiting(waiter)

    def _stop_waiting(self, waiter: _Waiter) -> None:
        with self._guard:
            waiters = self._waiters.get(waiter.turn.session, deque())
            if waiter in waiters:
                waiters.remove(waiter)
                if not waiters:
                    del self._waiters[waiter.turn.session]

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

    def _fail(self, turn: Turn, error: TurnError) -> None:
        """Refuses the invocation, here and at its appends."""
        turn.failure = error
        self.release(turn)
        self._known[turn.session, turn.invocation_id] = turn
        raise error

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
        turn.timer = turn.loop.call_later(seconds, self._expire, turn)

    def _expire(self, turn: Turn) -> None:
        """Takes the turn from whoever neither ends it nor appends."""
        if turn.released:
            return
        rest = turn.beat + turn.hold_limit.total_seconds() - time.monotonic()
        if rest > 0:
            self._watch(turn, rest)
            return
        turn.failure = TurnHeldTooLongError(
            f"Invocation {turn.invocation_id} appended nothing for"
            f" {turn.hold_limit.total_seconds():g} s and lost its turn; nothing was written."
        )
        self.release(turn)


def _busy(turn: Turn, seconds: float) -> TurnBusyError:
    return TurnBusyError(
        f"Session {turn.session.session_id} has a running turn"
        + (f", and still had after {seconds:g} s" if seconds else "")
        + "; nothing was written."
    )


def _nested(turn: Turn) -> TurnNestedError:
    return TurnNestedError(
        f"Session {turn.session.session_id} was run from inside its own turn, which would wait for"
        " itself; run another session, or return first. Nothing was written."
    )
