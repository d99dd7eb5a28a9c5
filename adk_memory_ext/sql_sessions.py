"""`SqlSessionService`: ADK's session service over ADK's own tables, atomic and in order."""

from __future__ import annotations

import asyncio
import logging
import uuid
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, TypeVar, get_args

from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.sessions.base_session_service import (
    BaseSessionService,
    GetSessionConfig,
    ListSessionsResponse,
)
from google.adk.sessions.state import State

from adk_memory_ext import (
    database,
    expired_state,
    sql_checkpoints,
    sql_events,
    sql_expiry,
    sql_lists,
    sql_store,
)
from adk_memory_ext.cache_checks import CacheChecks
from adk_memory_ext.checkpoint_records import CheckpointPolicy
from adk_memory_ext.checkpoint_requests import requests_in
from adk_memory_ext.errors import ConfigurationError, StateRejectedError
from adk_memory_ext.event_cache import CachedSession, EventCache
from adk_memory_ext.event_times import microseconds
from adk_memory_ext.ids import check_event, check_owner, check_title, session_identity
from adk_memory_ext.json_values import Normaliser, OnBadValue
from adk_memory_ext.records import SessionId, SessionPage
from adk_memory_ext.server_database import ServerDatabase
from adk_memory_ext.sql_checkpoints import checked
from adk_memory_ext.sql_events import Appended, DuplicateEventError, Seen
from adk_memory_ext.sql_store import ForeignRowsError, Head
from adk_memory_ext.sqlite_database import SqliteDatabase
from adk_memory_ext.state_changes import MISSING
from adk_memory_ext.stored_events import (
    ReadyEvent,
    is_same,
    match_stored,
    ready_event,
    split_changes,
)
from adk_memory_ext.stored_sessions import (
    StoredSession,
    commit,
    listed_session,
    loaded_session,
    temporary,
)
from adk_memory_ext.windows import WindowConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from google.adk.sessions.session import Session

    from adk_memory_ext.sql_expiry import Ttl
    from adk_memory_ext.state_changes import StateChange
    from adk_memory_ext.statements import Transaction
    from adk_memory_ext.turn_queue import TurnLocks

T = TypeVar("T")

_logger: Final = logging.getLogger(__name__)
CACHE_BYTES: Final = 128 * 1024 * 1024


class Database(Protocol):
    """Runs functions in transactions."""

    @property
    def turn_locks(self) -> TurnLocks | None:
        """Locks that every process sees which uses the database; None in memory."""

    @property
    def file(self) -> Path | None:
        """The SQLite file; None in memory and on a server."""

    @property
    def is_server(self) -> bool:
        """Whether it stands behind a network connection."""

    async def write(
        self, work: Callable[[Transaction], T], then: Callable[[T], None] | None = None
    ) -> T:
        """Runs `work` alone, in a transaction that is committed when this returns.

        `then` gets the result after the commit, also when the caller was cancelled meanwhile.
        """

    async def read(self, work: Callable[[Transaction], T]) -> T:
        """Runs `work` over one moment of the database."""

    async def empty_wal(self) -> bool:
        """Has SQLite cut its WAL off, if nobody reads it; returns whether there is none."""

    async def settle(self) -> None:
        """Returns when what was begun before has ended, also what cancelled callers left."""

    async def close(self) -> None:
        """Ends everything that was opened."""


class SqlSessionService(BaseSessionService):
    """Stores sessions in the tables of ADK's `DatabaseSessionService`, which can read them too.

    Args:
        database: Where; closed by `close`.
        on_bad_value: `refuse` raises `StateRejectedError` for a value that no JSON text can hold
            (NaN, NUL, a lone surrogate, bytes, …); `replace` stores the nearest one instead and
            lists its path in the event's `custom_metadata["memext_replaced"]`, or in a warning in
            the log where there is no event.
        cache_bytes: Roughly how much memory decoded events of sessions that were loaded before may
            take; 0 decodes them anew at each load.
    """

    keeps_order: Final = True
    """What was appended last is read last."""

    def __init__(
        self,
        database: Database,
        *,
        on_bad_value: OnBadValue = "refuse",
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        _check(on_bad_value, cache_bytes)
        self._cache = EventCache(cache_bytes)
        self._checks = CacheChecks(self._cache, self._living)
        self._database = database
        self._on_bad_value: OnBadValue = on_bad_value
        self.checkpoint_policy = CheckpointPolicy()
        """Which part of the state goes into checkpoints."""
        self._sessions_adopted = False
        self._ttl: Ttl | None = None
        # Sessions with an append whose caller was cancelled, and which may be under way still.
        self._left_alone: dict[SessionId, object] = {}

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        on_bad_value: OnBadValue = "refuse",
        cache_bytes: int = CACHE_BYTES,
        **options: Any,
    ) -> Self:
        """Returns a service over the database at `url`; see `DurableSessionService.from_url`."""
        _check(on_bad_value, cache_bytes)
        return cls(
            open_database(url, **options), on_bad_value=on_bad_value, cache_bytes=cache_bytes
        )

    @property
    def database(self) -> Database:
        """Where the sessions are stored."""
        return self._database

    @property
    def cache(self) -> EventCache:
        """Decoded events of sessions that were loaded before."""
        return self._cache

    async def create_session(
        self,
        *,
        app_name: str,
        user_id: str,
        state: dict[str, Any] | None = None,
        session_id: str | None = None,
    ) -> Session:
        """Stores a session and returns it; `temp:` keys are in the returned object only.

        Raises:
            AlreadyExistsError: When the user has a session of that id. Nothing was written.
            InvalidIdError: When an id is empty, longer than 128 characters or no text.
            StateRejectedError: When a value cannot be kept. Nothing was written.
        """
        identity = session_identity(
            app_name, user_id, str(uuid.uuid4()) if session_id is None else session_id
        )
        changes = self._changes(state or {})
        initial: dict[str, Any] = {}
        sql_store.apply_changes(initial, changes["session"])

        def work(tx: Transaction) -> StoredSession:
            if sql_store.session_exists(tx, identity):
                raise AlreadyExistsError(f"Session with id {identity.session_id} already exists.")
            loaded = sql_store.create_session(
                tx,
                identity,
                app_changes=changes["app"],
                user_changes=changes["user"],
                session_state=initial,
            )
            session = loaded_session(identity, loaded, [])
            sql_expiry.note(tx, identity, state or {}, self._ttl)
            sql_expiry.hide_expired(tx, identity, session.state, self._ttl)
            return session

        session = await self._database.write(work)
        session.state.update(temporary(state or {}))
        return session

    async def get_session(
        self,
        *,
        app_name: str,
        user_id: str,
        session_id: str,
        config: GetSessionConfig | None = None,
    ) -> Session | None:
        """Returns the session as it is at one moment, events in the order of their append."""
        identity = session_identity(app_name, user_id, session_id)
        await self._catch_up(identity)
        window = config.window if isinstance(config, WindowConfig) else None
        limit = config.num_recent_events if config else None
        after = None
        if config and config.after_timestamp:
            after = microseconds(config.after_timestamp)

        def work(tx: Transaction, *, check: bool = True) -> StoredSession | None:
            entry = CachedSession(0, 0)

            def known(head: Head) -> int:
                nonlocal entry
                entry = self._cache.entry(identity, head.log_version, head.key)
                return entry.whole_up_to

            loaded = sql_store.load_session(
                tx, identity, limit=limit, after=after, window=window, known=known, check=check
            )
            if loaded is None:
                self._cache.forget(identity)
                return None
            if loaded.known is None:
                known(loaded.head)
            events = self._cache.events(identity, entry, loaded.events, loaded.known)
            session = loaded_session(identity, loaded, events)
            sql_expiry.hide_expired(tx, identity, session.state, self._ttl)
            return session

        def adopting(tx: Transaction) -> StoredSession | None:
            # In one transaction, so that plain ADK does not write again in between.
            sql_store.adopt(tx, identity)
            return work(tx, check=False)

        try:
            session = await self._database.read(work)
        except ForeignRowsError:
            session = await self._database.write(adopting)
        self._checks.go_on()
        return session

    async def list_sessions(
        self, *, app_name: str, user_id: str | None = None
    ) -> ListSessionsResponse:
        """Returns all sessions of a user, or of all users, without events, oldest update first."""
        check_owner(app_name, user_id)

        def work(tx: Transaction) -> ListSessionsResponse:
            gone = sql_expiry.expired_in_app(tx, app_name, user_id, self._ttl)
            listed: list[Session] = []
            for fields, revision in sql_lists.all_sessions(tx, app_name, user_id):
                sql_expiry.hide(fields["state"], gone, fields["user_id"], fields["id"])
                listed.append(listed_session(fields, revision))
            return ListSessionsResponse(sessions=listed)

        return await self._database.read(work)

    async def list_sessions_page(
        self,
        app_name: str,
        user_id: str | None = None,
        *,
        limit: int = 50,
        after: str | None = None,
        with_state: bool = False,
    ) -> SessionPage:
        """Returns a page of sessions, newest update first; see `DurableSessionService`."""
        check_owner(app_name, user_id)
        if not self._sessions_adopted:
            if await self._database.read(sql_lists.has_strange_sessions):
                await self._database.write(sql_lists.adopt_sessions)
            self._sessions_adopted = True

        def work(tx: Transaction) -> SessionPage:
            page = sql_lists.page(tx, app_name, user_id, limit, after, with_state=with_state)
            gone = (
                sql_expiry.expired_in_app(tx, app_name, user_id, self._ttl) if with_state else set()
            )
            for line in page.sessions:
                sql_expiry.hide(line.state or {}, gone, line.user_id, line.session_id)
            return page

        return await self._database.read(work)

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Deletes the session and its events; does nothing if it is unknown."""
        identity = session_identity(app_name, user_id, session_id)
        await self._database.write(lambda tx: sql_store.delete_session(tx, identity))
        self._cache.forget(identity)

    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        """Returns the user's state, keys without `user:`; empty if there is none."""
        check_owner(app_name, user_id)
        identity = SessionId(app_name, user_id, "")

        def work(tx: Transaction) -> dict[str, Any]:
            state = sql_store.scope_state(tx, "user", identity)
            sql_expiry.hide_expired(tx, identity, state, self._ttl, State.USER_PREFIX)
            return state

        return await self._database.read(work)

    def expire(self, ttl: Ttl) -> None:
        """Hides values from now on whose time since their last write is over."""
        self._ttl = ttl

    async def remove_expired(self, limit: int) -> int:
        """Removes at most `limit` expired values for good; see `ScopedState.remove_expired`."""
        if self._ttl is None:
            return 0
        ttl, removed = self._ttl, 0
        found = await self._database.read(lambda tx: sql_expiry.all_expired(tx, ttl, limit))
        for rows in expired_state.by_owner(found):
            removed += await self._database.write(partial(expired_state.remove, rows=rows, ttl=ttl))
        return removed

    async def append_event(self, session: Session, event: Event) -> Event:
        """Stores the event, applies its delta, and adds both to `session`.

        The same event twice is one event. A writer who has not seen all content of the log is
        refused; an event without content, or ADK's compaction event, is applied to the session as
        it is by then.

        Raises:
            StaleSessionError: When somebody else appended content since `session` was loaded.
            SessionNotFoundError: When there is no such session.
            AlreadyExistsError: When the session has another event of this id.
            InvalidIdError: When an id is empty, too long or no text.
            StateRejectedError: When a value cannot be kept.
            StoreUnavailableError: When the database cannot be written.

            After each of these nothing of the event is stored, and neither `session` nor `event`
            was changed.
        """
        if event.partial:
            return event
        identity = session_identity(session.app_name, session.user_id, session.id)
        check_event(event.id, event.invocation_id)
        await self._catch_up(identity)
        ready = ready_event(event, self._on_bad_value)
        seen = Seen(
            getattr(session, "revision", None),
            session.events[-1].id if session.events else None,
            session.last_update_time,
        )
        requests = [*map(checked, requests_in(ready.new.data.get("custom_metadata")))]

        def work(tx: Transaction) -> Appended:
            appended = sql_expiry.append_event(tx, identity, seen, ready.new, self._ttl)
            for request in requests:
                sql_checkpoints.create(tx, identity, request, self.checkpoint_policy)
            return appended

        try:
            await self._database.write(
                work,
                # Also when the caller was cancelled meanwhile: the session keeps up with the store.
                lambda appended: commit(session, event, ready, appended),
            )
        except asyncio.CancelledError:
            self._left_alone[identity] = object()
            raise
        except DuplicateEventError:
            await self._accept_again(identity, seen, session, event, ready)
        return event

    async def has_seen_all(self, session: Session) -> bool:
        """Whether `session` holds the newest event; reads one row."""
        revision = session.revision if isinstance(session, StoredSession) else None
        if revision is None:
            return False
        identity = session_identity(session.app_name, session.user_id, session.id)

        def work(tx: Transaction) -> bool:
            head = sql_store.read_head(tx, identity, lock=False)
            return head is not None and head.revision == revision

        try:
            return await self._database.read(work)
        except ForeignRowsError:
            return False

    async def initial_state(self, session: SessionId) -> dict[str, Any]:
        """Returns the session-scope state at creation, as far as it was kept."""
        return await self._database.read(lambda tx: sql_store.initial_state(tx, session))

    async def set_session_title(
        self, *, app_name: str, user_id: str, session_id: str, title: str | None
    ) -> None:
        """Gives the session a title for lists, or takes it away; see `DurableSessionService`."""
        identity = session_identity(app_name, user_id, session_id)
        if title is not None:
            check_title(title)

        def work(tx: Transaction) -> None:
            head = sql_store.locked_head(tx, identity)
            if head is None:
                raise SessionNotFoundError(f"Session {session_id} not found.")
            sql_lists.set_title(tx, head.key, title)

        await self._database.write(work)

    async def change_state(
        self,
        delta: Mapping[str, Any],
        *,
        app_name: str,
        user_id: str | None,
        session_id: str | None,
    ) -> dict[str, Any]:
        """Applies a delta without a turn; see `ScopedState.update`."""
        if session_id is not None:
            identity = session_identity(app_name, user_id or "", session_id)
            # The event that ADK's PATCH of a session appends; set, because our own check says more
            # about a bad key than pydantic's.
            event = Event(invocation_id=f"p-{uuid.uuid4()}", author="user")
            event.actions.state_delta = dict(delta)
            ready = ready_event(event, self._on_bad_value).new
            appended = await self._database.write(
                lambda tx: sql_expiry.append_event(tx, identity, None, ready, self._ttl)
            )
            return {key: value for key, value in appended.outcome.items() if value is not MISSING}
        changes = self._changes(delta)
        if changes["session"]:
            raise StateRejectedError(next(iter(changes["session"])), "needs a session_id")
        if changes["user"] and user_id is None:
            raise StateRejectedError(f"user:{next(iter(changes['user']))}", "needs a user_id")
        identity = session_identity(app_name, "-" if user_id is None else user_id, "-")

        outcome = await self._database.write(
            lambda tx: sql_expiry.change_scopes(tx, identity, changes, self._ttl)
        )
        return {key: value for key, value in outcome.items() if value is not MISSING}

    async def flush(self) -> None:
        """Does nothing: what was acknowledged is stored."""

    async def forget_deleted(self) -> None:
        """Keeps nothing in memory of sessions that are stored no more, whoever deleted them."""
        await self._checks.check()

    async def _living(self, session_keys: Sequence[int]) -> set[int]:
        return await self._database.read(lambda tx: sql_lists.living(tx, session_keys))

    async def close(self) -> None:
        """Closes the database and forgets what was loaded. May be called twice."""
        await self._checks.close()
        self._cache.clear()
        await self._database.close()

    def _changes(self, delta: Mapping[str, Any]) -> dict[str, dict[str, StateChange]]:
        """Returns the changes of each scope; what is replaced can only be said in the log."""
        normaliser = Normaliser(self._on_bad_value)
        changes = split_changes(delta, normaliser)
        if normaliser.replaced:
            _logger.warning(
                "Values that cannot be kept were replaced: %s", ", ".join(normaliser.replaced)
            )
        return changes

    async def _catch_up(self, identity: SessionId) -> None:
        """Waits for an append that a cancelled caller left: its event would make others stale."""
        left = self._left_alone.get(identity)
        if left is not None:
            await self._database.settle()
            if self._left_alone.get(identity) is left:
                del self._left_alone[identity]

    async def _accept_again(
        self, identity: SessionId, seen: Seen, session: Session, event: Event, ready: ReadyEvent
    ) -> None:
        """Takes a second delivery of a stored event for done.

        Raises:
            AlreadyExistsError: When the stored event is another one.
            SessionNotFoundError: When the session was deleted meanwhile.
        """
        again = await self._database.read(
            lambda tx: sql_events.stored_append(tx, identity, seen, event.id)
        )
        if again is None or not is_same(again.data, ready.new):
            raise AlreadyExistsError(
                f"Session {identity.session_id} has another event with the id {event.id}."
            )
        if any(known.id == event.id for known in session.events):
            match_stored(event, ready, again)
        else:
            commit(session, event, ready, again)


def open_database(url: str, **options: Any) -> Database:
    """Returns the database at `url`; see `DurableSessionService.from_url`.

    Raises:
        ConfigurationError: When the URL or an option is wrong, or a driver is not installed.
        SchemaVersionError: When the file has tables of another layout.
    """
    parsed = database.parse_url(url)
    chosen = database.DatabaseOptions.from_mapping(options)
    if parsed.get_backend_name() == "sqlite":
        return SqliteDatabase(parsed, chosen)
    return ServerDatabase(parsed, chosen)


def _check(on_bad_value: object, cache_bytes: int) -> None:
    if on_bad_value not in get_args(OnBadValue):
        raise ConfigurationError(
            f"on_bad_value must be 'refuse' or 'replace', not {on_bad_value!r}."
        )
    if cache_bytes < 0:
        raise ConfigurationError("cache_bytes must not be negative.")
