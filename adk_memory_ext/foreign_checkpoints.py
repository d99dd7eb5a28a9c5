"""Checkpoints of sessions that somebody else's service stores, in a database of our own.

Two stores cannot share a transaction. An event says in its metadata which checkpoints are made with
it: one that a crash kept from being stored is made from the log as soon as somebody asks. One whose
event never came to be is dropped when the log goes on without it.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions.base_session_service import GetSessionConfig

from adk_memory_ext import checkpoint_pruning, sql_checkpoints, sql_expiry
from adk_memory_ext.checkpoint_records import Restored
from adk_memory_ext.checkpoint_requests import requests_in
from adk_memory_ext.errors import (
    CapabilityError,
    CheckpointInconsistentError,
    StoreUnavailableError,
)
from adk_memory_ext.foreign_logs import View, beside, copied, rows_of
from adk_memory_ext.interruptions import FORKED, RESTORED, outline_of
from adk_memory_ext.log_digests import Fault, first_fault
from adk_memory_ext.rewind_marks import UnhideableError, live_positions, plan_restore
from adk_memory_ext.rewinds import (
    initial_state,
    restoring_delta,
    restoring_scopes,
    session_scope,
    state_after,
)
from adk_memory_ext.sql_checkpoints import Line, StoredCheckpoint, identity_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from google.adk.sessions.session import Session

    from adk_memory_ext.checkpoint_records import CheckpointPolicy, CheckpointRequest
    from adk_memory_ext.records import SessionId
    from adk_memory_ext.rewinds import Scope
    from adk_memory_ext.sql_sessions import Database
    from adk_memory_ext.statements import Transaction

_TAIL: Final = 64
"""How many of the newest events are loaded first: mostly the last checkpoint is among them."""
_ATTEMPTS: Final = 20
_ALL: Final = GetSessionConfig()


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignService:
    """What is needed of the service that stores the sessions."""

    load: Callable[[SessionId, GetSessionConfig], Awaitable[Session | None]]
    """Returns a session as it is stored."""
    create: Callable[[SessionId, dict[str, Any]], Awaitable[Session]]
    """Creates a session with a state."""
    append: Callable[[Session, Event], Awaitable[Event]]
    """Appends an event for whoever holds the turn."""
    delete: Callable[[SessionId], Awaitable[None]]
    """Deletes a session."""


class ForeignCheckpoints:
    """Works on sessions of a wrapped service, and on their checkpoints in a database beside it.

    Args:
        database: Where the checkpoints are stored.
        policy: Which part of the state goes into a checkpoint.
        service: What stores the sessions.
    """

    def __init__(
        self, database: Database, policy: CheckpointPolicy, service: ForeignService
    ) -> None:
        self._database = database
        self._policy = policy
        self._service = service

    async def create(self, session: SessionId, request: CheckpointRequest) -> str:
        """Stores a checkpoint of the session as it is by now, and returns its id.

        What earlier events asked for is made first.

        Raises:
            SessionNotFoundError: When there is no such session.
        """
        made = await self._make(session, request)
        if made is None:
            raise SessionNotFoundError(f"Session {session.session_id} not found.")
        return made[-1]

    @staticmethod
    def check(event: Event) -> None:
        """Refuses an event whose requests cannot be kept, before it is stored.

        Raises:
            InvalidIdError: When a step is empty, longer than 256 characters or no text.
            StateRejectedError: When a reference cannot be kept.
        """
        for request in requests_in(event.custom_metadata):
            sql_checkpoints.checked(request)

    async def settle(self, session: SessionId) -> None:
        """Makes the checkpoints that events have asked for and that are not stored."""
        await self._make(session, None)

    async def newest_good(
        self, session: SessionId, *, whole_user: bool, step: str | None
    ) -> StoredCheckpoint | None:
        """Returns the newest checkpoint whose log is as it was; None if there is none."""
        found = await self._database.read(
            lambda tx: list(sql_checkpoints.listed(tx, session, whole_user=whole_user, step=step))
        )
        faults: dict[int, int | None] = {}
        for stored in found:
            if stored.line_key not in faults:
                faults[stored.line_key] = await self._first_fault(stored)
            first_bad = faults[stored.line_key]
            if first_bad is None or stored.checkpoint.sequence < first_bad:
                return stored
        return None

    async def restore(self, stored: StoredCheckpoint, scopes: Sequence[Scope] = ()) -> Restored:
        """Brings the session back to a checkpoint; the caller has the turn.

        A key that came later becomes None: that is as near as such a service comes to removing it.
        When this breaks off, restoring again does the rest.

        Raises:
            CheckpointInconsistentError: When the log is not the one that the checkpoint covers, or
                somebody else has made another session of that id.
            CapabilityError: When events to be hidden have no invocation id.
        """
        identity = identity_of(stored)
        session = await self._service.load(identity, _ALL)
        if session is None:
            target, missing, times = await self._target(stored, None, scopes)
            await self._begin(identity, stored)
            await self._service.create(identity, target)
            await self._note_times(identity, times)
            return _restored(stored, identity, missing, changed=tuple(target), state_only=True)
        line = await self._newest_line(identity)
        is_there = line is not None and line.key == stored.line_key
        if not is_there and (line is None or line.parent != stored.checkpoint.id):
            raise CheckpointInconsistentError(
                f"Session {identity.session_id} was deleted and created again after checkpoint"
                f" {stored.checkpoint.id} was made; fork the checkpoint instead."
            )
        if is_there:
            await self._refuse_inconsistent(stored, session)
        done = await self._put_back(stored, session, scopes, is_there=is_there)
        return replace(done, state_only=not is_there)

    async def _put_back(
        self,
        stored: StoredCheckpoint,
        session: Session,
        scopes: Sequence[Scope],
        *,
        is_there: bool,
    ) -> Restored:
        of = session if is_there else None
        target, missing, times = await self._target(stored, of, scopes)
        try:
            covered = stored.checkpoint.sequence if is_there else 0
            plan = plan_restore(outline_of(session.events), covered)
        except UnhideableError:
            raise CapabilityError(
                f"Session {session.id} has events without an invocation id after checkpoint"
                f" {stored.checkpoint.id}, which no mark can hide; fork it instead."
            ) from None
        delta = restoring_delta(session.state, session_scope(target), can_remove=False)
        delta |= restoring_scopes(session.state, target, scopes, can_remove=False)
        copies = [copied(session.events[place], is_copy=True) for place in plan.copies]
        note = Event(
            invocation_id=f"restore-{uuid.uuid4()}",
            author="user",
            actions=EventActions(rewind_before_invocation_id=plan.rewinds_before),
            custom_metadata={RESTORED: stored.checkpoint.id},
        )
        note.actions.state_delta = dict(delta)
        is_needed = bool(delta) or not plan.is_empty
        for event in (note, *copies) if is_needed else ():
            await self._service.append(session, event)
        await self._note_times(
            identity_of(stored), {key: time for key, time in times.items() if key in delta}
        )
        return _restored(
            stored,
            identity_of(stored),
            missing,
            event_id=note.id if is_needed else None,
            hidden=plan.hidden,
            repeated=len(copies),
            changed=tuple(key for key in delta if key in target),
            removed=tuple(key for key in delta if key not in target),
        )

    async def note(self, session: SessionId, event: Event) -> None:
        """Appends an event without content to the session."""
        found = await self._service.load(session, _ALL)
        if found is not None:
            await self._service.append(found, event)

    async def fork(self, stored: StoredCheckpoint, new: SessionId) -> Restored:
        """Creates a new session with the history and the state up to a checkpoint.

        Its events keep their ids and their order; their times are those of the fork.

        Raises:
            AlreadyExistsError: When there is a session of that id.
            CheckpointInconsistentError: When the log is not the one that the checkpoint covers.
        """
        if await self._service.load(new, GetSessionConfig(num_recent_events=0)) is not None:
            raise AlreadyExistsError(f"Session with id {new.session_id} already exists.")
        session = await self._session_of(stored)
        if session is not None:
            await self._refuse_inconsistent(stored, session)
        target, missing, times = await self._target(stored, session, ())
        log = [] if session is None else session.events
        live = live_positions(outline_of(log), stored.checkpoint.sequence if log else 0)
        await self._begin(new, stored)
        made = await self._service.create(new, target)
        try:
            for place in live:
                event = copied(log[place], is_copy=False)
                if place == live[-1]:
                    forked = {FORKED: stored.checkpoint.id}
                    event.custom_metadata = (event.custom_metadata or {}) | forked
                await self._service.append(made, event)
        except BaseException:
            await self._service.delete(new)
            raise
        await self._note_times(new, times)
        return _restored(
            stored,
            new,
            missing,
            repeated=len(live),
            changed=tuple(target),
            state_only=session is None,
        )

    async def parent(self, session: SessionId) -> str | None:
        """Returns the checkpoint that a session was made from; None if there is none."""
        line = await self._newest_line(session)
        return None if line is None else line.parent

    async def forget(self, session: SessionId) -> None:
        """Deletes the checkpoints of a session that was deleted."""
        await self._database.write(partial(checkpoint_pruning.delete, session=session))

    # -- making ------------------------------------------------------------------------------

    async def _make(
        self, session: SessionId, request: CheckpointRequest | None
    ) -> list[str] | None:
        """Returns the checkpoints that were made, the requested one last; None without a session.

        Raises:
            StoreUnavailableError: When others have made checkpoints all the time.
        """
        for _attempt in range(_ATTEMPTS):
            view = await self._view(session)
            if view is None:
                return None
            if request is None and not view.pending():
                return []
            add = partial(self._add, session=session, view=view, request=request)
            made = await self._database.write(add)
            if made is not None:
                return made
        raise StoreUnavailableError(
            f"Other processes have made checkpoints of session {session.session_id} all the time;"
            " nothing was written."
        )

    def _add(
        self, tx: Transaction, session: SessionId, view: View, request: CheckpointRequest | None
    ) -> list[str] | None:
        """Stores what is asked for; None when somebody else has stored checkpoints meanwhile."""
        line = sql_checkpoints.newest_line(tx, session, lock=True)
        if (line and (line.key, line.last_number)) != (
            view.line and (view.line.key, view.line.last_number)
        ):
            return None
        line = line or sql_checkpoints.begin_line(tx, session, 1)
        wanted = view.pending()
        if request is not None:
            wanted.append((len(view.events), request))
        made: list[str] = []
        done = 0
        for end, asked in wanted:
            moment = view.moment(end, done)
            checked = sql_checkpoints.checked(asked)
            made.append(sql_checkpoints.add(tx, session, line, checked, self._policy, moment))
            line, done = sql_checkpoints.newest_line(tx, session) or line, end
        return made

    async def _view(self, session: SessionId) -> View | None:
        """Returns the session beside its checkpoints; None without a session.

        All of it is loaded where the state behind an event that is not the newest is asked for.
        """
        ids: list[str] = []
        for config in (GetSessionConfig(num_recent_events=_TAIL), _ALL):
            line, last = await self._database.read(partial(_newest, session=session))
            found = await self._service.load(session, config)
            if found is None:
                return None
            ids = [event.id for event in found.events]
            is_whole = config is _ALL or len(ids) < _TAIL
            view = beside(line, last, found, is_whole=is_whole)
            if view and (is_whole or all(end == len(view.events) for end, _ in view.pending())):
                return view
        await self._database.write(partial(_realign, session=session, ids=ids))
        return await self._view(session)

    # -- reading -----------------------------------------------------------------------------

    async def _newest_line(self, session: SessionId) -> Line | None:
        return await self._database.read(lambda tx: sql_checkpoints.newest_line(tx, session))

    async def _begin(self, session: SessionId, stored: StoredCheckpoint) -> None:
        """Begins the checkpoints of a session that is made from one."""

        def work(tx: Transaction) -> None:
            line = sql_checkpoints.newest_line(tx, session, lock=True)
            number = 1 if line is None else line.incarnation + 1
            sql_checkpoints.begin_line(tx, session, number, stored.checkpoint)

        await self._database.write(work)

    async def _session_of(self, stored: StoredCheckpoint) -> Session | None:
        """Returns the session that a checkpoint is of; None if it is gone."""
        identity = identity_of(stored)
        line = await self._newest_line(identity)
        if line is None or line.key != stored.line_key:
            return None
        return await self._service.load(identity, _ALL)

    async def _first_fault(self, stored: StoredCheckpoint) -> int | None:
        session = await self._session_of(stored)
        fault = None if session is None else await self._fault(stored, session)
        return None if fault is None else fault.sequence

    async def _fault(self, stored: StoredCheckpoint, session: Session) -> Fault | None:
        up_to = stored.checkpoint.sequence
        stretches = await self._database.read(
            lambda tx: list(sql_checkpoints.stretches(tx, stored.line_key, up_to))
        )
        log = ((row[0], row[1], row[3]) for row in rows_of(session.events, 0))
        return first_fault(stored.salt, stretches, log)

    async def _refuse_inconsistent(self, stored: StoredCheckpoint, session: Session) -> None:
        """Verifies order and digest of the log up to the checkpoint.

        Raises:
            CheckpointInconsistentError: When they are not as they were.
        """
        fault = await self._fault(stored, session)
        if fault is not None:
            raise sql_checkpoints.inconsistent(stored, fault)

    async def _target(
        self, stored: StoredCheckpoint, session: Session | None, scopes: Sequence[Scope]
    ) -> tuple[dict[str, Any], tuple[str, ...], dict[str, int]]:
        """Returns the state as of the checkpoint, the keys whose values are gone, and the times.

        That of `scopes` is there too, with prefixes; what is known by reference stays as it is.
        What has expired by now is gone; the times are those of the writes of what will expire.
        """
        held, names = await self._database.read(lambda tx: sql_checkpoints.state_at(tx, stored))
        state, by_reference = session_scope(held), session_scope(dict.fromkeys(names))
        for scope in scopes:
            state |= {k: v for k, v in held.items() if k.startswith(f"{scope}:")}
            now = {} if session is None else session.state
            state |= {k: now[k] for k in names if k.startswith(f"{scope}:") and k in now}
        found: dict[str, Any] = {}
        if session is not None and by_reference:
            log = session.events
            found = state_after(
                initial_state(session.state, log), log[: stored.checkpoint.sequence]
            )
        known = {key: found[key] for key in by_reference if key in found}
        state |= known
        ttl = self._policy.ttl
        times, over = await self._database.read(
            lambda tx: sql_expiry.times_back(tx, state, stored.times, ttl)
        )
        missing = [key for key in by_reference if key not in found]
        left = {key: value for key, value in state.items() if key not in over}
        return left, (*missing, *sorted(over)), times

    async def _note_times(self, session: SessionId, times: dict[str, int]) -> None:
        """Has values that came back expire when they would have."""
        if times:
            await self._database.write(lambda tx: sql_expiry.note_times(tx, session, times))


def _newest(tx: Transaction, session: SessionId) -> tuple[Line | None, str | None]:
    line = sql_checkpoints.newest_line(tx, session)
    last = None if line is None else sql_checkpoints.last_event(tx, line)
    return line, None if last is None else last[0]


def _realign(tx: Transaction, session: SessionId, ids: Sequence[str]) -> None:
    """Drops the checkpoints whose events never came to be; of another session, begins its own."""
    line = sql_checkpoints.newest_line(tx, session, lock=True)
    if line is None:
        return
    for stored in sql_checkpoints.listed(tx, session, whole_user=False):
        sequence, event_id = stored.checkpoint.sequence, stored.checkpoint.event_id
        is_of_line = stored.line_key == line.key and 0 < sequence <= len(ids)
        if is_of_line and ids[sequence - 1] == event_id:
            checkpoint_pruning.cut_back(tx, line, stored)
            return
    sql_checkpoints.begin_line(tx, session, line.incarnation + 1)


def _restored(
    stored: StoredCheckpoint, session: SessionId, missing: tuple[str, ...], **done: Any
) -> Restored:
    nothing: dict[str, Any] = {
        "event_id": None,
        "hidden": 0,
        "repeated": 0,
        "changed": (),
        "removed": (),
        "state_only": False,
    }
    return Restored(
        checkpoint=stored.checkpoint,
        session_id=session.session_id,
        missing=missing,
        **{**nothing, **done},
    )
