"""`DurableSessionService`: the session service that an application puts into its Runner."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, get_args

from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.sessions.base_session_service import (
    BaseSessionService,
    GetSessionConfig,
    ListSessionsResponse,
)
from google.adk.sessions.state import State

from adk_memory_ext.appends import Appends, OnDirectWrite, normalised
from adk_memory_ext.arrivals import Arrivals
from adk_memory_ext.checkpoint_records import CheckpointPolicy
from adk_memory_ext.erasure.erasing import Erasure
from adk_memory_ext.erasure.foreign import ForeignErasure
from adk_memory_ext.erasure.pruning import StoredHistory
from adk_memory_ext.errors import CapabilityError, ConfigurationError, StoreUnavailableError
from adk_memory_ext.interruptions import shown_events
from adk_memory_ext.loaded_sessions import take_over, watched
from adk_memory_ext.media import with_references
from adk_memory_ext.profiles import Profiles
from adk_memory_ext.records import SessionId
from adk_memory_ext.request_log import RequestLog
from adk_memory_ext.scoped_state import ChangesState, ScopedState
from adk_memory_ext.service_check import CheckedClause, check_service
from adk_memory_ext.state_changes import change_in
from adk_memory_ext.turn_queue import TurnQueue
from adk_memory_ext.wider_services import (
    ForgetsDeleted,
    KeepsInitialState,
    ListsPages,
    MakesCheckpoints,
    SeesChanges,
)
from adk_memory_ext.windows import Window, WindowConfig, is_rewind, window_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from types import TracebackType

    from google.adk.events.event import Event
    from google.adk.sessions.session import Session

    from adk_memory_ext.facts import ProfileLimits
    from adk_memory_ext.foreign_checkpoints import ForeignCheckpoints
    from adk_memory_ext.json_values import OnBadValue
    from adk_memory_ext.media import Media
    from adk_memory_ext.own_checkpoints import OwnCheckpoints
    from adk_memory_ext.policed_sessions import PolicedSessions
    from adk_memory_ext.policy import StatePolicy
    from adk_memory_ext.records import SessionPage
    from adk_memory_ext.sql_sessions import Database

_CREATE_ATTEMPTS: Final = 5


class DurableSessionService(BaseSessionService):
    """Makes the conversations of any wrapped ADK session service keep their order.

    Use it wherever ADK takes a `BaseSessionService`. `from_url` opens a database of its own and
    closes it again; `DurableSessionService(wrapped)` borrows a service that somebody else closes.

    Over every wrapped service, what was appended last is read last, whatever the clock did. Over
    ours, several event loops may use it, one after the other or at once in threads, as
    `Runner.run` does; on a server each loop has connections of its own, closed when it ends.

    Args:
        wrapped: The service that stores the sessions.
        store: The URL of a database for what the wrapped service has no place for, as in
            `from_url`; it is opened, owned and closed. None: that of the wrapped service, if it is
            one of ours.
        on_direct_write: What to do at an append when a key was changed where ADK records nothing:
            in `session.state` itself, also inside its value, or inside a value that a context
            handed out, to one that JSON does not keep. `keep` stores it with that event and warns
            once a key; `refuse` takes the change back and raises `StateRejectedError`.
        policy: What may be remembered, where and for how long; None: everything, for ever.
        profile_limits: What a user's profile may hold; None for the defaults.
        window: What of a session's log `get_session` loads where its caller asks for nothing else;
            None for all. `Runner.rewind_async` and `get_whole_session` get all of it.
        verify_deletes: Whether `delete_session` verifies that the bytes are gone too, in the
            background, as `sessions.erasure.erase_session` does; False deletes rows only.
        media: Where large media of events go; None: they stay in their events.
        hide_rewound: Whether `get_session` leaves out the events that rewinds and restores have
            hidden from the model. `get_whole_session` and `Runner.rewind_async` get them.

    Raises:
        ConfigurationError: When the URL is wrong, the wrapped service has a database, or a value
            may expire and there is no database to note when it was written.
    """

    def __init__(
        self,
        wrapped: BaseSessionService,
        *,
        store: str | None = None,
        on_direct_write: OnDirectWrite = "keep",
        policy: StatePolicy | None = None,
        profile_limits: ProfileLimits | None = None,
        window: Window | None = None,
        verify_deletes: bool = True,
        checkpoint_policy: CheckpointPolicy | None = None,
        media: Media | None = None,
        hide_rewound: bool = False,
    ) -> None:
        if on_direct_write not in get_args(OnDirectWrite):
            raise ConfigurationError(
                f"on_direct_write must be 'keep' or 'refuse', not {on_direct_write!r}."
            )
        self._lowest: Final = wrapped
        self._name: Final = type(wrapped).__name__
        self._policy = policy
        self._window = window
        self._media = media
        self._hide_rewound = hide_rewound
        self._own_store, self._database = _store_of(wrapped, store)
        self._policed: PolicedSessions | None = None
        if policy is not None:
            from adk_memory_ext.policed_sql_sessions import policed

            self._policed = policed(wrapped, policy, self._database)
        wrapped = self._wrapped = self._policed or wrapped
        self._applies_changes: Final = isinstance(wrapped, ChangesState)
        self._close_wrapped: Callable[[], Awaitable[None]] | None = None
        self._arrivals = Arrivals()
        locks = None if self._database is None else self._database.turn_locks
        self.turns: Final = TurnQueue(locks)
        """Whose turn it is; the `turns` part of `MemoryPlugin` takes them."""
        self._is_ours: Final[bool] = getattr(wrapped, "keeps_order", False)
        self._appends = Appends(
            wrapped,
            self._name,
            self.turns,
            on_direct_write=on_direct_write,
            is_ours=self._is_ours,
            can_remove=self._applies_changes,
            catch_up=self._catch_up_whole,
            initial_state=(
                self._lowest.initial_state if isinstance(self._lowest, KeepsInitialState) else None
            ),
            ttl=policy.ttl if policy is not None and policy.has_ttl else None,
        )
        self.state: Final = ScopedState(wrapped, self._name)
        """Changes state from outside a turn."""
        self.profiles: Final = Profiles(self, self._name, self._database, profile_limits)
        """Saves, recalls and forgets facts about users."""
        self.requests: Final = RequestLog(
            self._database if self._own_store is None else None  # there are no sessions in it
        )
        """What was done to the history of each request."""
        self._verify_deletes = verify_deletes
        holds_sessions = getattr(self._lowest, "database", None) is self._database
        erased_from = self._database if holds_sessions else None
        self.erasure: Final = Erasure(
            erased_from,
            None if policy is None else policy.ttl,
            self._let_go,
            ForeignErasure(self._lowest, self._own_store) if erased_from is None else None,
        )
        """Erases sessions and people, with receipts."""
        if media is not None:
            self.erasure.register(artifact_service=media.artifacts)
        self.history: Final = StoredHistory(
            self._database if holds_sessions else None, self.erasure, self.turns
        )
        """Removes stored events of a session."""
        from adk_memory_ext.checkpoints import Checkpoints  # and with it SQLAlchemy

        checkpointing = checkpoint_policy or CheckpointPolicy()
        if policy is not None:
            checkpointing = replace(checkpointing, state_policy=policy)
        self.checkpoints: Final = Checkpoints(
            self._database,
            self._kept_checkpoints(checkpointing),
            self.turns,
            append=partial(self._appends.append, by_holder=True),
            catch_up=partial(self.catch_up, whole=True),
        )
        """Records of progress, and the ways back to them."""

    def _kept_checkpoints(
        self, policy: CheckpointPolicy
    ) -> OwnCheckpoints | ForeignCheckpoints | None:
        """Returns what makes the checkpoints of the sessions; None without a place for them."""
        from adk_memory_ext.foreign_checkpoints import ForeignCheckpoints, ForeignService
        from adk_memory_ext.own_checkpoints import OwnCheckpoints

        if self._database is None:
            return None
        if isinstance(self._lowest, MakesCheckpoints):
            self._lowest.checkpoint_policy = policy
            return OwnCheckpoints(self._database, policy)

        async def load(session: SessionId, config: GetSessionConfig) -> Session | None:
            return await self._lowest.get_session(**session.parameters(), config=config)

        async def create(session: SessionId, state: dict[str, Any]) -> Session:
            return await self.create_session(**session.parameters(), state=state)

        async def delete(session: SessionId) -> None:
            await self.delete_session(**session.parameters())

        append = partial(self._appends.append, by_holder=True)
        foreign = ForeignService(load=load, create=create, append=append, delete=delete)
        self._appends.checkpoints = made = ForeignCheckpoints(self._database, policy, foreign)
        return made

    @classmethod
    def from_url(
        cls,
        url: str = "",
        *,
        on_bad_value: OnBadValue = "refuse",
        on_direct_write: OnDirectWrite = "keep",
        policy: StatePolicy | None = None,
        profile_limits: ProfileLimits | None = None,
        window: Window | None = None,
        cache_bytes: int | None = None,
        verify_deletes: bool = True,
        checkpoint_policy: CheckpointPolicy | None = None,
        media: Media | None = None,
        hide_rewound: bool = False,
        **options: Any,
    ) -> Self:
        """Returns a service over the database at `url`, which it opens, owns and closes.

        Args:
            url: `sqlite:///folder/file.db` (the folder is created, 0700, and the file, 0600),
                `postgresql://user@host/database`, `mysql://…` or `mariadb://…`, also with
                the name of an asynchronous driver (`sqlite+aiosqlite:///…`). Empty: a database in
                memory that is gone with the service.
            on_bad_value: What to do with a value that no JSON text can hold (NaN, NUL, a lone
                surrogate, bytes, …): `refuse` it with a `StateRejectedError`, or `replace` it by
                the nearest one and list its path in the event's
                `custom_metadata["memext_replaced"]`.
            on_direct_write: As in `DurableSessionService`.
            policy: As in `DurableSessionService`.
            profile_limits: What a user's profile may hold; None for the defaults.
            window: As in `DurableSessionService`.
            cache_bytes: Roughly how much memory decoded events of sessions that were loaded before
                may take; 0 for none, None for 128 MiB.
            verify_deletes: As in `DurableSessionService`.
            checkpoint_policy: As in `DurableSessionService`.
            media: As in `DurableSessionService`.
            hide_rewound: As in `DurableSessionService`.
            **options: The fields of `adk_memory_ext.database.DatabaseOptions`.

        Raises:
            ConfigurationError: When the URL or an option is wrong, a driver is not installed, the
                folder cannot be written or the file is no database. Nothing was written.
            SchemaVersionError: When the file has tables of another layout. It was only read.
        """
        from adk_memory_ext.sql_sessions import CACHE_BYTES, SqlSessionService

        wrapped = SqlSessionService.from_url(
            url,
            on_bad_value=on_bad_value,
            cache_bytes=CACHE_BYTES if cache_bytes is None else cache_bytes,
            **options,
        )
        service = cls(
            wrapped,
            on_direct_write=on_direct_write,
            policy=policy,
            profile_limits=profile_limits,
            window=window,
            verify_deletes=verify_deletes,
            checkpoint_policy=checkpoint_policy,
            media=media,
            hide_rewound=hide_rewound,
        )
        service._close_wrapped = wrapped.close
        return service

    @property
    def wrapped(self) -> BaseSessionService:
        """The service that stores the sessions."""
        return self._lowest

    @property
    def policy(self) -> StatePolicy | None:
        """What may be remembered; None: everything."""
        return self._policy

    @property
    def media(self) -> Media | None:
        """Where large media of events go; None: they stay in their events."""
        return self._media

    @property
    def database(self) -> Database | None:
        """Where this package keeps its own records; None over a service without one."""
        return self._database

    @property
    def removes_keys(self) -> bool:
        """Whether the wrapped service can drop a key of the state; else a rewind leaves a None."""
        return self._applies_changes

    async def create_session(
        self,
        *,
        app_name: str,
        user_id: str,
        state: dict[str, Any] | None = None,
        session_id: str | None = None,
    ) -> Session:
        """Creates a session and returns it, with app and user state merged in.

        Raises:
            StateRejectedError: When the policy refuses a key, or a value cannot be kept. Nothing
                was written.
            AlreadyExistsError: When the user has a session of that id. Nothing was written.
            CapabilityError: When the state holds a change such as `Increment`, and the wrapped
                service cannot apply it. Nothing was written.
        """
        self._require_changes(state or {})
        if state and not self._is_ours:
            state = normalised(state)
        await self.erasure.begin()
        temporary = {key: value for key, value in (state or {}).items() if _is_temporary(key)}
        if temporary and self._policed is None:  # which some services store, and others drop
            state = {key: value for key, value in (state or {}).items() if key not in temporary}
        session = await self._wrapped.create_session(
            app_name=app_name, user_id=user_id, state=state, session_id=session_id
        )
        if self._policed is None:
            session.state.update(temporary)
        return watched(session, self._policy)

    async def get_session(
        self,
        *,
        app_name: str,
        user_id: str,
        session_id: str,
        config: GetSessionConfig | None = None,
    ) -> Session | None:
        """Returns the session with its events in the order of their append; None if unknown.

        Of several callers at once, each gets it in its turn: a Runner that came first goes on
        first. Where the service has a `window` and the caller no `config`, the events are those of
        the window.
        """
        if config is None and self._window is not None and not is_rewind():
            config = self._window.config()
        async with self._arrivals.in_order((app_name, user_id, session_id)):
            session = await self._load(app_name, user_id, session_id, config)
        if session is not None and self._hide_rewound and not is_rewind():
            session.events = shown_events(session.events)
        return None if session is None else watched(session, self._policy)

    async def get_whole_session(
        self, *, app_name: str, user_id: str, session_id: str
    ) -> Session | None:
        """Returns the session with all its events, whatever the window; None if unknown.

        For what must see the whole log: an export, a memory service's `add_session_to_memory`.
        """
        async with self._arrivals.in_order((app_name, user_id, session_id)):
            session = await self._load(app_name, user_id, session_id, None)
        return None if session is None else watched(session, self._policy)

    async def _load(
        self, app_name: str, user_id: str, session_id: str, config: GetSessionConfig | None
    ) -> Session | None:
        """Loads a session; over a service that knows no windows, all of it to cut it here."""
        await self.erasure.begin()
        window = config.window if isinstance(config, WindowConfig) else None
        if window is None or self._applies_changes:
            return await self._wrapped.get_session(
                app_name=app_name, user_id=user_id, session_id=session_id, config=config
            )
        session = await self._wrapped.get_session(
            app_name=app_name, user_id=user_id, session_id=session_id
        )
        if session is not None:
            session.events = window_of(session.events, window)
        return session

    async def catch_up(
        self, session: Session, config: GetSessionConfig | None = None, *, whole: bool = False
    ) -> bool:
        """Makes a loaded session what is stored by now, in place; `temp:` state stays.

        Args:
            session: The session.
            config: With which it was loaded.
            whole: Read it anew also when no event has come, for app and user state that others
                wrote.

        Returns:
            Whether there were events that it had not seen.

        Raises:
            SessionNotFoundError: When it was deleted.
        """
        if not whole and await self._has_seen_all(session):
            return False
        return await self._take_over(session, config, hide_rewound=self._hide_rewound)

    async def _take_over(
        self, session: Session, config: GetSessionConfig | None, *, hide_rewound: bool
    ) -> bool:
        if config is None and self._window is not None:
            config = self._window.config()
        fresh = await self._load(session.app_name, session.user_id, session.id, config)
        if fresh is None:
            raise SessionNotFoundError(f"Session {session.id} not found.")
        if hide_rewound:
            fresh.events = shown_events(fresh.events)
        is_new = [event.id for event in session.events[-1:]] != [e.id for e in fresh.events[-1:]]
        take_over(session, fresh, fresh.events)
        if self._policed is not None:
            self._policed.typed.remember(session, fresh.state)
        return is_new

    async def _let_go(self) -> None:
        """Keeps nothing in memory of what was just erased."""
        self.profiles.let_go()
        if isinstance(self._lowest, ForgetsDeleted):
            await self._lowest.forget_deleted()

    async def _catch_up_whole(self, session: Session) -> bool:
        # A rewind is what asks, and it needs the whole log.
        return await self._take_over(session, GetSessionConfig(), hide_rewound=False)

    async def _has_seen_all(self, session: Session) -> bool:
        if isinstance(self._wrapped, SeesChanges):
            return await self._wrapped.has_seen_all(session)
        tail = await self._wrapped.get_session(
            app_name=session.app_name,
            user_id=session.user_id,
            session_id=session.id,
            config=GetSessionConfig(num_recent_events=1),
        )
        return tail is not None and [e.id for e in tail.events[-1:]] == [
            event.id for event in session.events[-1:]
        ]

    async def get_or_create_session(
        self,
        *,
        app_name: str,
        user_id: str,
        session_id: str,
        state: dict[str, Any] | None = None,
    ) -> Session:
        """Returns the session, creating it first if it is unknown.

        Of several callers at once, in one process or in several, one creates the session and all
        return it. `state` is used by the one that creates it and ignored by the others.

        Raises:
            StoreUnavailableError: When the session was deleted as often as it was created.
        """
        for _attempt in range(_CREATE_ATTEMPTS):
            session = await self.get_session(
                app_name=app_name, user_id=user_id, session_id=session_id
            )
            if session is not None:
                return session
            try:
                return await self.create_session(
                    app_name=app_name, user_id=user_id, state=state, session_id=session_id
                )
            except AlreadyExistsError:
                continue
        raise StoreUnavailableError(
            f"Session {session_id!r} was created and deleted by others {_CREATE_ATTEMPTS} times"
            " in a row; nothing was written."
        )

    async def list_sessions(
        self, *, app_name: str, user_id: str | None = None
    ) -> ListSessionsResponse:
        """Returns the sessions of a user, or of all users, without events, oldest update first."""
        await self.erasure.begin()
        return await self._wrapped.list_sessions(app_name=app_name, user_id=user_id)

    async def list_sessions_page(
        self,
        app_name: str,
        user_id: str | None = None,
        *,
        limit: int = 50,
        after: str | None = None,
        with_state: bool = False,
    ) -> SessionPage:
        """Returns a page of the sessions of a user, or of all users, newest update first.

        Sessions of equal time are ordered by their creation, so that pages neither repeat nor skip
        one. What plain ADK wrote to the same database is in the order once this service has
        started or used that session.

        Args:
            app_name: The app.
            user_id: The user; None for all users.
            limit: Sessions on a page, at least 1.
            after: `next` of the page before; None for the first page.
            with_state: Read session-scope state too.

        Raises:
            CapabilityError: When the wrapped service has no pages.
            ConfigurationError: When `limit` or `after` has no meaning.
        """
        if not isinstance(self._wrapped, ListsPages):
            raise CapabilityError(f"{self._name} has no pages; use list_sessions.")
        await self.erasure.begin()
        return await self._wrapped.list_sessions_page(
            app_name, user_id, limit=limit, after=after, with_state=with_state
        )

    async def set_session_title(
        self, *, app_name: str, user_id: str, session_id: str, title: str | None
    ) -> None:
        """Gives a session a title for lists (at most 256 characters); None takes it away.

        Raises:
            CapabilityError: When the wrapped service has no titles.
            SessionNotFoundError: When there is no such session.
            InvalidIdError: When the title is too long or no text. Nothing was written.
        """
        if not isinstance(self._wrapped, ListsPages):
            raise CapabilityError(f"{self._name} has no titles.")
        await self._wrapped.set_session_title(
            app_name=app_name, user_id=user_id, session_id=session_id, title=title
        )

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Deletes all that is stored of the session; does nothing if it is unknown.

        Its checkpoints go too, and over a database of ours facts that only this session supports.
        In a SQLite file the WAL is emptied at once, and no byte of the session is left: a small
        file is verified before the call returns, else that follows in the background, once for all
        that were deleted meanwhile. `sessions.erasure.erase_session` also returns the receipt. With
        `verify_deletes=False` the rows go and nothing else is done.
        """
        if await self.erasure.delete_session(
            app_name=app_name,
            user_id=user_id,
            session_id=session_id,
            verified=self._verify_deletes,
        ):
            return
        await self._wrapped.delete_session(
            app_name=app_name, user_id=user_id, session_id=session_id
        )
        if self._appends.checkpoints is not None:
            await self._appends.checkpoints.forget(SessionId(app_name, user_id, session_id))

    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        """Returns the user's state, keys without `user:`; empty if there is none.

        Raises:
            NotImplementedError: When the wrapped service cannot tell.
        """
        return await self._wrapped.get_user_state(app_name=app_name, user_id=user_id)

    async def append_event(self, session: Session, event: Event) -> Event:
        """Appends the event to the log and to `session`, and applies its state delta.

        When the call returns, the event is stored; when it raises, nothing of it is. The event's
        time is raised to one microsecond above the last one where it would otherwise be read
        back in another order (equal times, a clock set back); the returned event carries the time
        as stored. Partial events are returned and not stored, as everywhere in ADK. With `media`,
        `session` gets the event with references, and the returned one keeps its media.

        Raises:
            StateRejectedError: When the policy refuses a key, or the event's time lies outside the
                years 1 to 9999.
            StaleSessionError: When somebody else appended since `session` was loaded.
            CapabilityError: When the delta holds a change such as `Increment`, and the wrapped
                service cannot apply it.
        """
        self._require_changes(event.actions.state_delta)
        if self._media is None or event.partial:
            return await self._appends.append(session, event)
        identity = SessionId.of(session)
        stored = await with_references(event, identity, self._media)
        await self._appends.append(session, stored)
        event.timestamp, event.custom_metadata = stored.timestamp, stored.custom_metadata
        return event

    async def check(self) -> list[CheckedClause]:
        """Returns what the wrapped service gets right and wrong about state, and what is repaired.

        Uses the service under app names that nobody else has; see `service_check`.
        """
        from adk_memory_ext.policy import StatePolicy

        # Without the rules, which would refuse the keys of the check; `temp:` is repaired by them.
        plain = None if self._policy is None else StatePolicy()
        return await check_service(self._lowest, DurableSessionService(self._lowest, policy=plain))

    def _require_changes(self, delta: Mapping[str, Any]) -> None:
        """Refuses changes that the wrapped service would take for values."""
        if self._applies_changes:
            return
        for key, value in delta.items():
            if (change := change_in(value)) is not None:
                raise CapabilityError(
                    f"{self._name} cannot apply the {type(change).__name__} of"
                    f" {key!r} to what is stored; DurableSessionService.from_url(…) can."
                )

    async def flush(self) -> None:
        """Has the wrapped service write out what it buffers; ours buffers nothing."""
        await self._wrapped.flush()

    async def close(self) -> None:
        """Closes what `from_url` or `store` opened; a borrowed service stays open.

        May be called twice.
        """
        await self.erasure.close()
        close, self._close_wrapped = self._close_wrapped, None
        if close is not None:
            await close()
        if self._own_store is not None:
            await self._own_store.close()

    async def __aenter__(self) -> Self:
        """Returns the service; what an earlier process left of an erasure is finished.

        A server is asked for that at the first use: entering connects to nothing.
        """
        if self._database is not None and not self._database.is_server:
            await self.erasure.begin()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Closes the service."""
        await self.close()


def _is_temporary(key: object) -> bool:
    return isinstance(key, str) and key.startswith(State.TEMP_PREFIX)


def _store_of(
    wrapped: BaseSessionService, store: str | None
) -> tuple[Database | None, Database | None]:
    """Returns the database to close, if one was opened, and the one to use."""
    from adk_memory_ext.sql_sessions import SqlSessionService, open_database

    if isinstance(wrapped, SqlSessionService):
        if store is not None:
            raise ConfigurationError("The wrapped service has a database; leave `store` out.")
        return None, wrapped.database
    opened = None if store is None else open_database(store)
    return opened, opened
