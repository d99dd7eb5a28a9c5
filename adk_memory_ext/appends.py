"""What happens around an append, over any wrapped service: turns, direct writes, rebasing."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from google.adk.errors import StaleSessionError
from google.adk.errors.session_not_found_error import SessionNotFoundError

from adk_memory_ext.checkpoint_requests import take_requests
from adk_memory_ext.conflicts import answerable
from adk_memory_ext.errors import CapabilityError, MemoryExtError, StateRejectedError, TurnError
from adk_memory_ext.event_times import in_order, microseconds
from adk_memory_ext.json_values import Normaliser
from adk_memory_ext.keyed_locks import KeyedLocks
from adk_memory_ext.loaded_sessions import take_over, unseen
from adk_memory_ext.records import SessionId
from adk_memory_ext.rewinds import note_values_before, rewinding_delta
from adk_memory_ext.state_changes import MISSING, Remove, change_in
from adk_memory_ext.turn_queue import Turn, TurnQueue, wait
from adk_memory_ext.watched_state import WatchedState

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from datetime import timedelta

    from google.adk.events.event import Event
    from google.adk.sessions.base_session_service import BaseSessionService
    from google.adk.sessions.session import Session

_logger: Final = logging.getLogger(__name__)
_ATTEMPTS: Final = 50
"""How often an event that may go behind any other is tried again over a foreign service."""

OnDirectWrite = Literal["keep", "refuse"]


class MakesCheckpointsLater(Protocol):
    """Makes checkpoints of events that are stored somewhere else."""

    def check(self, event: Event) -> None:
        """Refuses an event that asks for what cannot be kept."""

    async def settle(self, session: SessionId) -> None:
        """Makes what the events of a session have asked for."""

    async def forget(self, session: SessionId) -> None:
        """Deletes those of a session that was deleted."""


class Appends:
    """Appends events to the sessions of one wrapped service.

    Args:
        wrapped: The service that stores them, with what lies over it.
        name: What its user calls it.
        turns: Whose turn it is.
        on_direct_write: What to do with a write that no delta holds; see `DurableSessionService`.
        is_ours: Whether the wrapped service keeps order, normalises values and rebases itself.
        can_remove: Whether it applies `Remove`.
        catch_up: Brings a session up to what is stored, in place.
        initial_state: Returns what the wrapped service keeps of a session's state at creation; None
            has each event keep what it is the first to overwrite.
        ttl: How long after its last write a key lives; None: all for ever.
    """

    def __init__(
        self,
        wrapped: BaseSessionService,
        name: str,
        turns: TurnQueue,
        *,
        on_direct_write: OnDirectWrite,
        is_ours: bool,
        can_remove: bool,
        catch_up: Callable[[Session], Awaitable[bool]],
        initial_state: Callable[[SessionId], Awaitable[dict[str, Any]]] | None,
        ttl: Callable[[str], timedelta | None] | None,
    ) -> None:
        self._wrapped = wrapped
        self._name = name
        self._turns = turns
        self._on_direct_write = on_direct_write
        self._is_ours = is_ours
        self._can_remove = can_remove
        self._catch_up = catch_up
        self._initial_state = initial_state
        self._ttl = ttl
        self.checkpoints: MakesCheckpointsLater | None = None
        """What makes the checkpoints that events ask for over a foreign service; None: nothing."""
        self._warned: set[str] = set()
        self._appending: KeyedLocks[SessionId] = KeyedLocks()

    async def append(self, session: Session, event: Event, *, by_holder: bool = False) -> Event:
        """Appends the event; see `DurableSessionService.append_event`.

        With `by_holder`, whoever holds the turn appends it, also where it belongs to an earlier
        invocation that has lost its own.
        """
        identity = SessionId.of(session)
        holder = self._turns.holder(identity) if by_holder else None
        name = event.invocation_id if holder is None else holder.invocation_id
        try:
            turn = self._turns.admit(identity, name)
        except TurnError as error:
            raise answerable(error) from None
        if event.partial:
            return await self._wrapped.append_event(session, event)
        if event.actions.rewind_before_invocation_id is not None and turn is None:
            return await self._rewind(identity, session, event)
        try:
            return await self._append(identity, session, event, turn)
        except asyncio.CancelledError:
            if turn is not None:  # ADK has no callback for it, and the run is over
                self._turns.release(turn)
            raise

    async def _append(
        self, identity: SessionId, session: Session, event: Event, turn: Turn | None
    ) -> Event:
        # Tasks may share `session`: each has seen what the one before it appended.
        await self._appending.acquire(identity)
        try:
            delta, metadata = event.actions.state_delta, event.custom_metadata
            try:
                asks = self._take_requests(session, event)
                if isinstance(session.state, WatchedState):
                    owed = self._what_is_owed(session.state, event)
                    if owed:
                        event.actions.state_delta = {**event.actions.state_delta, **owed}
                if not self._is_ours:
                    event.actions.state_delta = normalised(event.actions.state_delta)
                if self._initial_state is None:
                    note_values_before(session, event)
                appended = await self._store(session, event, turn)
            except BaseException:
                event.actions.state_delta = delta
                event.custom_metadata = metadata
                raise
            if isinstance(session.state, WatchedState):
                session.state.saved(event.actions.state_delta)
            if turn is not None:
                turn.begun = True
            if asks:
                await self._make_checkpoints(identity)
            return appended
        finally:
            self._appending.release(identity)

    def _take_requests(self, session: Session, event: Event) -> bool:
        """Has the event say which checkpoints are made with it; whether any are made afterwards.

        Raises:
            CapabilityError: When nothing makes them.
        """
        if not take_requests(session, event) or self._is_ours:
            return False
        if self.checkpoints is None:
            raise CapabilityError(
                f"{self._name} has no place for the checkpoint that was asked"
                " for; give the DurableSessionService a store=…."
            )
        self.checkpoints.check(event)
        return True

    async def _make_checkpoints(self, session: SessionId) -> None:
        """Makes what the event asked for, which is stored by now; else later, from the log."""
        try:
            if self.checkpoints is not None:
                await self.checkpoints.settle(session)
        except (MemoryExtError, SessionNotFoundError) as error:
            _logger.warning(
                "A checkpoint of a stored event could not be made (%s); it is made from the log"
                " when checkpoints of its session are asked for.",
                type(error).__name__,
            )

    def _what_is_owed(self, state: WatchedState, event: Event) -> dict[str, Any]:
        """Returns what was written to the state and does not stand so in the event's delta.

        Raises:
            StateRejectedError: When such writes are refused; they are undone.
        """
        delta = event.actions.state_delta
        unsaved = state.unsaved(delta)
        if not unsaved:
            return state.merged_in(delta)
        if self._on_direct_write == "refuse":
            state.take_back()
            raise StateRejectedError(
                next(iter(unsaved)),
                "was changed in session.state, or in place, where no event records it; assign it in"
                " tool_context.state or callback_context.state, or use sessions.state.update",
            )
        for key in unsaved.keys() - self._warned:
            self._warned.add(key)
            _logger.warning(
                "State key %r was changed in session.state, or in place, where no event records it."
                " It is kept with the next event; assign it in tool_context.state, or use"
                " sessions.state.update.",
                key,
            )
        if self._can_remove:
            unsaved = {key: Remove() if v is MISSING else v for key, v in unsaved.items()}
        else:
            unsaved = {key: None if v is MISSING else v for key, v in unsaved.items()}
        return {**state.merged_in(delta), **unsaved}

    async def _store(self, session: Session, event: Event, turn: Turn | None) -> Event:
        for _attempt in range(_ATTEMPTS):
            if not self._is_ours:
                event.timestamp = _time_in_order(session, event)
            try:
                return await self._wrapped.append_event(session, event)
            except StaleSessionError:
                # Whose turn has just begun has not shown its model anything yet.
                is_first = turn is not None and not turn.begun
                if not await self._rebase(session, event, at_any_cost=is_first):
                    raise
        return await self._wrapped.append_event(session, event)

    async def _rebase(self, session: Session, event: Event, *, at_any_cost: bool) -> bool:
        """Brings the session up to date if the event may go behind what it had not seen."""
        if self._is_ours and not at_any_cost:
            return False  # it has looked itself
        fresh = await self._wrapped.get_session(
            app_name=session.app_name, user_id=session.user_id, session_id=session.id
        )
        events = None if fresh is None else unseen(session, fresh)
        if fresh is None or events is None:
            return False
        if at_any_cost or _is_housekeeping(event) or all(map(_is_housekeeping, events)):
            take_over(session, fresh, [*session.events, *events])
            return True
        return False

    async def _rewind(self, identity: SessionId, session: Session, event: Event) -> Event:
        """Appends a rewind when no turn runs, with the delta for the state as it is by then."""
        turn = Turn(identity, event.invocation_id)
        try:
            async with self._turns.held(turn, wait()):
                await self._catch_up(session)
                kept = None if self._initial_state is None else await self._initial_state(identity)
                delta = rewinding_delta(
                    session,
                    event.actions.rewind_before_invocation_id or "",
                    kept,
                    can_remove=self._can_remove,
                    has_expired=None if self._ttl is None else self._has_expired,
                )
                if delta is not None:
                    event.actions.state_delta = delta
                return await self._append(identity, session, event, turn)
        except TurnError as error:
            raise answerable(error) from None

    def _has_expired(self, key: str, written: float) -> bool:
        life = None if self._ttl is None else self._ttl(key)
        return life is not None and written + life.total_seconds() <= time.time()


def _is_housekeeping(event: Event) -> bool:
    """Whether an event may go behind any other: a change of state only, or a summary."""
    return event.content is None or event.actions.compaction is not None


def normalised(delta: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a delta with the values that will be read back; `temp:` and changes as they are.

    Raises:
        StateRejectedError: When a value cannot be kept.
    """
    normaliser = Normaliser()
    kept: dict[str, Any] = {}
    for key, value in delta.items():
        name = normaliser.key(key)
        is_kept_as_it_is = name.startswith("temp:") or change_in(value) is not None
        kept[name] = value if is_kept_as_it_is else normaliser.value(value, name)
    return kept


def _time_in_order(session: Session, event: Event) -> float:
    """Returns the event's time, raised above the last one that `session` knows of.

    An event that `session` holds already keeps its time, by which a service may know it again.
    """
    newest = microseconds(session.last_update_time)
    if session.events:
        newest = max(newest, microseconds(session.events[-1].timestamp))
    later = in_order(event.timestamp, newest)[0]
    if later != event.timestamp and any(known.id == event.id for known in session.events):
        return event.timestamp
    return later
