"""`sessions.checkpoints`: records of progress, and the ways back to them."""

from __future__ import annotations

import time
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

from adk_memory_ext import checkpoint_pruning, sql_checkpoints
from adk_memory_ext.checkpoint_records import (
    Checkpoint,
    CheckpointDiff,
    CheckpointRequest,
    CheckpointRetention,
    Restored,
)
from adk_memory_ext.errors import CapabilityError, CheckpointNotFoundError, ConfigurationError
from adk_memory_ext.ids import check_owner, session_identity
from adk_memory_ext.interruptions import (
    Recover,
    Recovered,
    artifacts_note,
    closing_events,
    find_interruption,
    preparing_events,
)
from adk_memory_ext.records import SessionId
from adk_memory_ext.restored_artifacts import put_back
from adk_memory_ext.rewinds import Scope, is_same
from adk_memory_ext.turn_queue import Turn, TurnQueue, wait

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Container, Mapping, Sequence

    from google.adk.artifacts.base_artifact_service import BaseArtifactService
    from google.adk.events.event import Event
    from google.adk.sessions.base_session_service import GetSessionConfig
    from google.adk.sessions.session import Session

    from adk_memory_ext.foreign_checkpoints import ForeignCheckpoints
    from adk_memory_ext.own_checkpoints import OwnCheckpoints
    from adk_memory_ext.sql_checkpoints import StoredCheckpoint
    from adk_memory_ext.sql_sessions import Database
    from adk_memory_ext.statements import Transaction


class Checkpoints:
    """Makes checkpoints outside a run, finds them, and puts them back.

    A checkpoint outlives a session that expires: it stays until its own retention, `prune` or
    `delete` takes it, and restores the state alone. Deleting the session takes it along.

    Args:
        database: Where checkpoints are stored; None over a service of somebody else that was given
            no store.
        kept: What makes them and puts them back; None without a database.
        turns: Whose turn it is; a restore waits for the running one.
        append: Appends an event to a session.
        catch_up: Brings a session up to what is stored, in place; takes the configuration with
            which it was loaded, None for the service's own.
    """

    def __init__(
        self,
        database: Database | None,
        kept: OwnCheckpoints | ForeignCheckpoints | None,
        turns: TurnQueue,
        *,
        append: Callable[[Session, Event], Awaitable[Event]],
        catch_up: Callable[[Session, GetSessionConfig | None], Awaitable[bool]],
    ) -> None:
        self._database = database
        self._given = kept
        self._turns = turns
        self._append = append
        self._catch_up = catch_up

    async def create(
        self,
        session: Session,
        *,
        step: str,
        workflow: str = "",
        summary: str = "",
        agent: str = "",
        agent_version: str = "",
        references: Mapping[str, Any] | None = None,
    ) -> Checkpoint:
        """Stores a checkpoint of the session as it is stored by now, and returns it.

        It covers the newest event of the log, also one that `session` has not seen. For the same
        event and step there is one checkpoint, however often it is asked for.

        Args:
            session: Names the session.
            step: The step that has just been done.
            workflow: The workflow that it belongs to.
            summary: One line for people; never the conversation's text.
            agent: The agent's name.
            agent_version: What the app calls this version of it.
            references: Ids of domain objects, to be read afresh after a restore.

        Raises:
            SessionNotFoundError: When there is no such session.
            CapabilityError: When the sessions are stored by a service that has no place for it, and
                there is no `store`.
            InvalidIdError: When the step is empty, too long or no text.
            StateRejectedError: When a reference cannot be kept.

            After each of these nothing was written.
        """
        request = sql_checkpoints.checked(
            CheckpointRequest(
                step=step,
                workflow=workflow,
                summary=summary,
                agent=agent,
                agent_version=agent_version,
                references=dict(references or {}),
            )
        )
        identity = session_identity(session.app_name, session.user_id, session.id)
        made = await self._kept.create(identity, request)
        return await self._store.read(lambda tx: _found(tx, made, None, None).checkpoint)

    async def list(
        self,
        *,
        app_name: str,
        user_id: str,
        session_id: str | None = None,
        step: str | None = None,
    ) -> list[Checkpoint]:
        """Returns the checkpoints of a session, or of all sessions of a user, newest first.

        Those of sessions that are gone are among them.
        """
        identity, whole_user = await self._settled(app_name, user_id, session_id)

        def work(tx: Transaction) -> list[Checkpoint]:
            found = sql_checkpoints.listed(tx, identity, whole_user=whole_user, step=step)
            return [stored.checkpoint for stored in found]

        return await self._store.read(work)

    async def latest(
        self,
        *,
        app_name: str,
        user_id: str,
        session_id: str | None = None,
        step: str | None = None,
        consistent: bool = True,
    ) -> Checkpoint | None:
        """Returns the newest checkpoint of a session, or of a user; None if there is none.

        Args:
            app_name: The app.
            user_id: The user.
            session_id: The session; None for all of the user.
            step: Only checkpoints of this step.
            consistent: Pass over those whose log is not as it was when they were made. One whose
                session is gone counts as good: it restores state alone.
        """
        identity, whole_user = await self._settled(app_name, user_id, session_id)
        if consistent:
            good = await self._kept.newest_good(identity, whole_user=whole_user, step=step)
            return None if good is None else good.checkpoint

        def work(tx: Transaction) -> Checkpoint | None:
            found = sql_checkpoints.listed(tx, identity, whole_user=whole_user, step=step)
            newest = next(found, None)
            return None if newest is None else newest.checkpoint

        return await self._store.read(work)

    async def get(
        self, checkpoint_id: str, *, app_name: str | None = None, user_id: str | None = None
    ) -> Checkpoint:
        """Returns the checkpoint of an id.

        Args:
            checkpoint_id: The id.
            app_name: The app that it must belong to; None for any.
            user_id: The user whom it must belong to; None for any. Give it wherever the id comes
                from outside.

        Raises:
            CheckpointNotFoundError: When there is none, or it belongs to somebody else.
        """
        owner = app_name, user_id
        return await self._store.read(lambda tx: _found(tx, checkpoint_id, *owner).checkpoint)

    async def state(
        self, checkpoint_id: str, *, app_name: str | None = None, user_id: str | None = None
    ) -> dict[str, Any]:
        """Returns the state that a checkpoint holds, without what it knows by reference.

        Raises as `get`.
        """

        def work(tx: Transaction) -> dict[str, Any]:
            stored = _found(tx, checkpoint_id, app_name, user_id)
            return sql_checkpoints.state_at(tx, stored)[0]

        return await self._store.read(work)

    async def diff(
        self,
        first_id: str,
        second_id: str,
        *,
        app_name: str | None = None,
        user_id: str | None = None,
    ) -> CheckpointDiff:
        """Returns what lies between two checkpoints of a session: state and number of events.

        Raises:
            CheckpointNotFoundError: As `get`.
            ConfigurationError: When they are of two sessions.
        """

        def work(tx: Transaction) -> CheckpointDiff:
            first, second = (_found(tx, one, app_name, user_id) for one in (first_id, second_id))
            if first.line_key != second.line_key:
                raise ConfigurationError(
                    f"Checkpoints {first_id} and {second_id} are of two sessions."
                )
            events = second.checkpoint.sequence - first.checkpoint.sequence
            before, after = (sql_checkpoints.state_at(tx, one)[0] for one in (first, second))
            return _diff(before, after, events)

        return await self._store.read(work)

    async def restore(
        self,
        checkpoint_id: str,
        *,
        app_name: str | None = None,
        user_id: str | None = None,
        scopes: Sequence[Scope] = (),
        artifacts: BaseArtifactService | None = None,
    ) -> Restored:
        """Brings the session back to a checkpoint; waits for a running turn first.

        Its state becomes exactly that of the checkpoint, and the events after it are hidden from
        the model, also those of the same invocation, over our service and over plain ADK. Nothing
        of the log is rewritten: an event says what was restored, and where an invocation was cut in
        the middle, copies of its first events follow. Restoring again does nothing. User and app
        state stay, but for the `scopes`. Sessions that were loaded before are stale.

        When the session is gone, one of its id is made that has the state and no history; when
        somebody made another one of that id, `fork` is the way.

        Args:
            checkpoint_id: The checkpoint.
            app_name: As in `get`.
            user_id: As in `get`.
            scopes: `"user"`, `"app"` or both: that state becomes what it was too, for all sessions
                that share it. The policy must have had it kept: `CheckpointPolicy(scoped=True)`.
            artifacts: Where the session's artifacts lie: the versions that the checkpoint noted are
                saved as new versions, those of the user too where `scopes` has it. None: artifacts
                stay as they are.

        Raises:
            ConfigurationError: When a scope is none, or the checkpoint holds no scoped state.
            CheckpointNotFoundError: As `get`.
            CheckpointInconsistentError: When order or digest of the log is not as it was.
            CapabilityError: When events to be hidden have no invocation id.
            TurnBusyError: When a turn does not end in time.
            TurnNestedError: When a tool restores its own session.

            After each of these nothing was written.
        """
        stored = await self._store.read(lambda tx: _found(tx, checkpoint_id, app_name, user_id))
        if not set(scopes) <= set(get_args(Scope)):
            raise ConfigurationError(f"scopes must be of {get_args(Scope)}, not {scopes!r}.")
        if scopes and not stored.checkpoint.scoped:
            raise ConfigurationError(
                f"Checkpoint {checkpoint_id} holds no user and no app state;"
                " CheckpointPolicy(scoped=True) has it kept."
            )
        session = sql_checkpoints.identity_of(stored)
        async with self._turns.held(_turn(session), wait()):
            restored = await self._kept.restore(stored, scopes)
            if artifacts is None:
                return restored
            saved = await put_back(artifacts, stored.checkpoint, of_user="user" in scopes)
            return await self._with_artifacts(restored, session, saved)

    async def fork(
        self,
        checkpoint_id: str,
        new_session_id: str | None = None,
        *,
        app_name: str | None = None,
        user_id: str | None = None,
        artifacts: BaseArtifactService | None = None,
    ) -> Restored:
        """Starts a new session of the same user with the history and the state of a checkpoint.

        Events keep their ids, and `user:`/`app:` state is not written again. From then on the two
        sessions have nothing in common: deleting the first leaves the fork whole, and the other way
        round. When the first session is gone already, the fork has the state and no history.

        Args:
            checkpoint_id: The checkpoint.
            new_session_id: The id of the new session; None for a random one.
            app_name: As in `get`.
            user_id: As in `get`.
            artifacts: Where the session's artifacts lie: the versions that the checkpoint noted are
                saved in the fork too. None: it has none of its own. What the service raises passes
                through, and the fork is there.

        Returns:
            What was done; `session_id` is that of the fork.

        Raises:
            AlreadyExistsError: When the user has a session of that id.
            CheckpointNotFoundError: As `get`.
            CheckpointInconsistentError: When order or digest of the log is not as it was.

            After each of these nothing was written.
        """
        new_id = str(uuid.uuid4()) if new_session_id is None else new_session_id
        stored = await self._store.read(lambda tx: _found(tx, checkpoint_id, app_name, user_id))
        of = stored.checkpoint
        new = session_identity(of.app_name, of.user_id, new_id)
        forked = await self._kept.fork(stored, new)
        if artifacts is None:
            return forked
        saved = await put_back(artifacts, of, of_user=False, fork_id=new_id)
        return await self._with_artifacts(forked, new, saved)

    async def _with_artifacts(
        self, restored: Restored, session: SessionId, saved: dict[str, int | None]
    ) -> Restored:
        """Has the log say which versions were saved."""
        if versions := {name: one for name, one in saved.items() if one is not None}:
            await self._kept.note(session, artifacts_note(restored.checkpoint.id, versions))
        return replace(restored, artifacts=saved)

    async def parent(self, *, app_name: str, user_id: str, session_id: str) -> str | None:
        """Returns the id of the checkpoint that a session was forked or made from; None if none."""
        identity = session_identity(app_name, user_id, session_id)
        return await self._kept.parent(identity)

    async def forks(self, *, app_name: str, user_id: str, session_id: str) -> tuple[str, ...]:
        """Returns the ids of the sessions that were forked from a session, the oldest fork first.

        Forks of forks are not among them. A fork that has expired is, as long as its checkpoints
        are kept.
        """
        identity = session_identity(app_name, user_id, session_id)
        return await self._store.read(lambda tx: sql_checkpoints.forks_of(tx, identity))

    async def recover(self, session: Session, how: Recover = "tell") -> Recovered:
        """Settles what a crash left open in a session; waits for a running turn first.

        Works over every wrapped service; `rollback` needs a place for checkpoints. `session` is
        brought up to date. Long-running calls and questions that wait for somebody are left alone.
        Settled once, there is nothing to do any more.

        Args:
            session: The session.
            how: `tell` answers each open call with "interrupted, outcome unknown", but for those
                whose answers were kept; `rollback` restores the session's last good checkpoint, and
                tells where there is none; `resume` leaves the invocation to ADK's resumability
                (`resume_interrupted`) and puts in before it the answers that were kept.

        Raises:
            SessionNotFoundError: When there is no such session.
            TurnBusyError: When a turn does not end in time. Nothing was written.
        """
        identity = session_identity(session.app_name, session.user_id, session.id)
        async with self._turns.held(_turn(identity), wait()):
            await self._catch_up(session, None)
            return await self.recover_in_turn(session, how)

    async def recover_in_turn(
        self,
        session: Session,
        how: Recover = "tell",
        answered: Container[str] = (),
        config: GetSessionConfig | None = None,
    ) -> Recovered:
        """Does the same for a caller that has the turn, and the newest events of the session.

        Args:
            session: The session.
            how: As in `recover`.
            answered: Ids of calls whose answers are about to be appended.
            config: With which the session was loaded; None for the service's own.
        """
        if how not in get_args(Recover):
            raise ConfigurationError(f"how must be one of {get_args(Recover)}, not {how!r}.")
        found = find_interruption(session.events, answered)
        if found.kind == "none":
            return Recovered(found=found, did="nothing")
        if how == "rollback" and (restored := await self._roll_back(session, config)):
            return Recovered(found=found, did="rolled back", restored=restored)
        is_resumed = how == "resume"
        for event in (preparing_events if is_resumed else closing_events)(found.calls):
            await self._append(session, event)
        return Recovered(found=found, did="prepared" if is_resumed else "told")

    async def is_restored(self, session: Session) -> bool:
        """Whether a session was made from a checkpoint; False over a service without any."""
        if self._database is None:
            return False
        return await self.parent(**SessionId.of(session).parameters()) is not None

    async def _roll_back(
        self, session: Session, config: GetSessionConfig | None
    ) -> Restored | None:
        latest = await self.latest(
            app_name=session.app_name, user_id=session.user_id, session_id=session.id
        )
        if latest is None:
            return None
        stored = await self._store.read(lambda tx: _found(tx, latest.id, None, None))
        restored = await self._kept.restore(stored)
        await self._catch_up(session, config)
        return restored

    async def prune(
        self,
        retention: CheckpointRetention,
        *,
        app_name: str,
        user_id: str,
        session_id: str | None = None,
        now: float | None = None,
    ) -> int:
        """Deletes the checkpoints that a retention does not keep; returns how many.

        Those that stay can be restored as before.

        Args:
            retention: What stays, of each session.
            app_name: The app.
            user_id: The user.
            session_id: The session; None for all of the user.
            now: UTC epoch seconds to count ages from; None for this machine's clock.

        Raises:
            ConfigurationError: When the retention would leave none.
        """
        if retention.last < 1:
            raise ConfigurationError("A retention keeps at least the last checkpoint.")
        identity, whole_user = _owner(app_name, user_id, session_id)
        moment = time.time() if now is None else now

        def work(tx: Transaction) -> int:
            found = sql_checkpoints.listed(tx, identity, whole_user=whole_user)
            doomed = checkpoint_pruning.doomed(found, retention, moment)
            for line_key, numbers in doomed.items():
                checkpoint_pruning.prune(tx, line_key, numbers)
            return sum(map(len, doomed.values()))

        return await self._store.write(work)

    async def delete(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Deletes every checkpoint of a session, with the values that they hold."""
        identity = session_identity(app_name, user_id, session_id)
        await self._store.write(lambda tx: checkpoint_pruning.delete(tx, identity))

    @property
    def _store(self) -> Database:
        if self._database is None:
            raise CapabilityError(
                "The wrapped service has no place for checkpoints: give the DurableSessionService a"
                " store=…, or have the sessions stored by DurableSessionService.from_url(…)."
            )
        return self._database

    @property
    def _kept(self) -> OwnCheckpoints | ForeignCheckpoints:
        if self._given is None:
            _ = self._store  # which says what is missing
            raise AssertionError("a database and nothing that uses it")
        return self._given

    async def _settled(
        self, app_name: str, user_id: str, session_id: str | None
    ) -> tuple[SessionId, bool]:
        """Returns whose checkpoints are meant, and whether those of all sessions are.

        What a crash kept from being stored there is made first.
        """
        identity, whole_user = _owner(app_name, user_id, session_id)
        names = [identity.session_id]
        if whole_user:
            names = await self._store.read(lambda tx: sql_checkpoints.sessions_of(tx, identity))
        for name in names:
            await self._kept.settle(SessionId(app_name, user_id, name))
        return identity, whole_user


def _turn(session: SessionId) -> Turn:
    return Turn(session, f"restore-{uuid.uuid4()}")


def _owner(app_name: str, user_id: str, session_id: str | None) -> tuple[SessionId, bool]:
    """Returns whose checkpoints are meant, and whether those of all sessions are."""
    if session_id is None:
        check_owner(app_name, user_id)
        return SessionId(app_name, user_id, ""), True
    return session_identity(app_name, user_id, session_id), False


def _found(
    tx: Transaction, checkpoint_id: str, app_name: str | None, user_id: str | None
) -> StoredCheckpoint:
    stored = sql_checkpoints.find(tx, checkpoint_id)
    if (
        stored is None
        or app_name not in (None, stored.checkpoint.app_name)
        or user_id not in (None, stored.checkpoint.user_id)
    ):
        raise CheckpointNotFoundError(f"There is no checkpoint {checkpoint_id!r}.")
    return stored


def _diff(first: Mapping[str, Any], second: Mapping[str, Any], events: int) -> CheckpointDiff:
    return CheckpointDiff(
        added={key: value for key, value in second.items() if key not in first},
        changed={
            key: (first[key], value)
            for key, value in second.items()
            if key in first and not is_same(first[key], value)
        },
        removed={key: value for key, value in first.items() if key not in second},
        events=events,
    )
