"""`sessions.profiles`: what is known of a user, saved by key, recalled, corrected and forgotten."""

from __future__ import annotations

import copy
import logging
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, TypeVar

from adk_memory_ext import profile_rules, sql_facts
from adk_memory_ext.errors import (
    CapabilityError,
    ConfigurationError,
    CorruptRecordError,
    FactRejectedError,
    RevisionConflictError,
    StoreError,
)
from adk_memory_ext.extractors import Extractors
from adk_memory_ext.fact_checks import (
    check_limits,
    check_moment,
    check_name,
    checked_fact,
    checked_recall,
)
from adk_memory_ext.facts import USER, Owner, ProfileLimits, Recalled, Saved
from adk_memory_ext.interruptions import live_events
from adk_memory_ext.profile_cache import ProfileCache
from adk_memory_ext.waiting_saves import WaitingSave, WaitingSaves

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from datetime import datetime

    from google.adk.sessions.base_session_service import BaseSessionService

    from adk_memory_ext.extractors import Extractor
    from adk_memory_ext.facts import Fact, FactKey, Kind, NewFact, Outcome, Provenance
    from adk_memory_ext.profile_rules import Profile
    from adk_memory_ext.sql_sessions import Database
    from adk_memory_ext.statements import Transaction

T = TypeVar("T")

_logger: Final = logging.getLogger(__name__)


class Profiles:
    """Saves, recalls and forgets profile facts: few, certain, keyed statements about a user.

    A profile belongs to an app and a user; whoever calls this answers for both. Tools take them
    from ADK's invocation.

    Args:
        service: Has the sessions that `rebuild` reads.
        name: What its user calls the service that stores them.
        database: Where profiles are kept; None refuses every call.
        limits: What a profile may hold.
    """

    def __init__(
        self,
        service: BaseSessionService,
        name: str,
        database: Database | None,
        limits: ProfileLimits | None = None,
    ) -> None:
        self._service = service
        self._name = name
        self._database = database
        self._limits = check_limits(limits or ProfileLimits())
        self._extractors = Extractors()
        self._cache = ProfileCache()
        self._waiting = WaitingSaves()

    @property
    def limits(self) -> ProfileLimits:
        """What a profile may hold."""
        return self._limits

    @property
    def available(self) -> bool:
        """Whether there is a database for profiles."""
        return self._database is not None

    async def save(
        self,
        fact: NewFact,
        *,
        app_name: str,
        user_id: str,
        expected_revision: int | None = None,
        agent: str | None = None,
    ) -> Saved:
        """Saves a fact under its key and says what is current now.

        An inferred value never replaces a stated one, and one observed earlier never replaces one
        observed later, however late it arrives. An equal value only confirms the fact. Inferred
        values that contradict each other are kept side by side. A correction removes what was
        derived from the old value.

        Args:
            fact: The fact.
            app_name: The app.
            user_id: The user.
            expected_revision: The revision that the writer has seen, 0 for no fact; None to save
                whatever there is.
            agent: The agent that saves; it changes no fact that it may not see, and none is
                mentioned to it. None is the application.

        Raises:
            FactRejectedError: When the fact cannot be kept, the profile is full, or the agent may
                not see what is there.
            RevisionConflictError: When the fact has another revision.
            CapabilityError: When the service has no database.
            StoreError: When the database did not answer.

            After each of these nothing was written.
        """
        owner = _owner(app_name, user_id)
        checked = checked_fact(fact, self._limits, time.time())
        save = WaitingSave(owner, checked, expected_revision, agent)
        return await self._write(owner, lambda tx: self._save(tx, save))

    def _save(self, tx: Transaction, save: WaitingSave) -> Saved:
        new, agent, expected = save.fact, save.agent, save.expected_revision
        name = (new.subject, new.key)
        before: dict[FactKey, Fact] = {}

        def change(profile: Profile, now: float) -> tuple[Outcome, dict[FactKey, Fact]]:
            before.update(profile)
            known = profile.get(name)
            actual = 0 if known is None else known.revision
            if known is not None and not profile_rules.is_visible(known, agent):
                raise FactRejectedError(new.key, sql_facts.HIDDEN)
            if expected is not None and expected != actual:
                raise RevisionConflictError(new.key, expected, actual)
            if known is None or profile_rules.is_expired(known, now):
                self._refuse_full(profile, new.key, now)
            return profile_rules.save(profile, new, now)

        outcome, after = sql_facts.change_profile(tx, save.owner, change)
        removed = tuple(
            sorted(
                key
                for _subject, key in before.keys() - after.keys()
                if profile_rules.is_visible(before[_subject, key], agent)
            )
        )
        return Saved(outcome=outcome, fact=_own_copy(after[name]), removed=removed)

    def _refuse_full(self, profile: Profile, key: str, now: float) -> None:
        count = sum(not profile_rules.is_expired(fact, now) for fact in profile.values())
        if count >= self._limits.keys_per_user:
            raise FactRejectedError(
                key, f"finds the profile full: it holds {self._limits.keys_per_user:,} facts"
            )

    async def recall(
        self,
        keys: Collection[str] | None = None,
        kinds: Collection[Kind] | None = None,
        as_of: datetime | float | None = None,
        *,
        app_name: str,
        user_id: str,
        subject: str | None = None,
        agent: str | None = None,
        include_sensitive: bool = True,
        budget_tokens: int | None = 1_000,
        on_unavailable: Literal["partial", "raise"] = "partial",
    ) -> Recalled:
        """Returns the unexpired facts of a user: stated before inferred, certain, then newest.

        Args:
            keys: Only these; None for all.
            kinds: Only these; None for all.
            as_of: The facts that were current at that time (UTC epoch seconds or a datetime with a
                zone), from history; None for now.
            app_name: The app.
            user_id: The user.
            subject: Only facts about it; None for all subjects.
            agent: The agent that asks; facts that it may not see are not mentioned. None is the
                application, which sees all.
            include_sensitive: Also those marked as sensitive.
            budget_tokens: How many tokens they may take, estimated; None for any number.
            on_unavailable: What to do when the database cannot be read: answer what was read
                before, marked as partial, or raise.

        Raises:
            FactRejectedError: When a key is no slug.
            ConfigurationError: When another argument has no meaning.
            CapabilityError: When the service has no database.
            StoreError: When the database did not answer and `on_unavailable` is `raise`.
        """
        owner = _owner(app_name, user_id)
        moment = check_moment(as_of)
        keys, kinds = checked_recall(keys, kinds, subject, budget_tokens, on_unavailable)
        facts, missing = await self._read(owner, moment, raises=on_unavailable == "raise")
        now = time.time() if moment is None else moment
        wanted = [
            fact
            for fact in facts
            if (keys is None or fact.key in keys)
            and (kinds is None or fact.kind in kinds)
            and (subject is None or fact.subject == subject)
            and (include_sensitive or fact.sensitivity == "normal")
            and profile_rules.is_visible(fact, agent)
            and not profile_rules.is_expired(fact, now)
        ]
        ordered = profile_rules.in_recall_order(wanted)
        kept, left_out = profile_rules.within_budget(ordered, budget_tokens)
        return Recalled(
            facts=tuple(_own_copy(fact) for fact in kept),
            left_out=tuple(fact.key for fact in left_out),
            partial=bool(missing),
            missing=missing,
        )

    async def history(
        self, key: str, *, app_name: str, user_id: str, subject: str = USER
    ) -> tuple[Fact, ...]:
        """Returns every value that a fact has had, the current one last; empty when forgotten."""
        owner = _owner(app_name, user_id)
        name = (check_name("subject", subject), check_name("key", key))
        read = await self._required().read(lambda tx: sql_facts.read_history(tx, owner))
        return tuple(_own_copy(fact) for fact in read.facts if fact.name == name)

    async def forget(
        self,
        key: str,
        *,
        app_name: str,
        user_id: str,
        subject: str = USER,
        agent: str | None = None,
    ) -> tuple[str, ...]:
        """Deletes a fact with its history, and what was derived from it.

        A save of it that waits for the end of a turn in this process is taken back.

        Args:
            key: The fact's key.
            app_name: The app.
            user_id: The user.
            subject: The fact's subject.
            agent: The agent that forgets, as in `save`.

        Returns:
            The keys that were there; empty if there was nothing.

        Raises:
            FactRejectedError: When the agent may not see the fact. Nothing was written.
        """
        owner = _owner(app_name, user_id)
        name = (check_name("subject", subject), check_name("key", key))
        gone = await self._write(owner, lambda tx: sql_facts.forget(tx, owner, [name], agent))
        return tuple(sorted({*gone, *self._waiting.take_back(owner, name)}))

    async def forget_all(self, *, app_name: str, user_id: str) -> tuple[str, ...]:
        """Deletes every fact of a user with its history, and returns the keys that were there.

        Saves that wait for the end of a turn in this process are taken back.
        """
        owner = _owner(app_name, user_id)
        gone = await self._write(owner, lambda tx: sql_facts.forget(tx, owner, None))
        return tuple(sorted({*gone, *self._waiting.take_back(owner)}))

    async def delete_user(self, *, app_name: str, user_id: str) -> int:
        """Deletes every row of a user's profile; returns how many values there were, old ones too.

        For the erasure of a user: not even the number of their writes stays. Saves that wait for
        the end of a turn in this process are taken back.
        """
        owner = _owner(app_name, user_id)
        count = await self._write(owner, lambda tx: sql_facts.delete_profile(tx, owner))
        self._waiting.take_back(owner)
        return count

    def let_go(self) -> None:
        """Keeps nothing in memory of profiles that were read; called when something was erased."""
        self._cache.clear()

    async def cut_session(
        self,
        *,
        app_name: str,
        user_id: str,
        session_id: str,
        facts: Literal["keep", "remove"] = "keep",
    ) -> tuple[str, ...]:
        """Takes a session out of the profile and its history; for the erasure of that session.

        What the user asked to save stays with its provenance cut, unless `facts` is `remove`. An
        inferred fact that only this session supports goes.

        Returns:
            The keys of the facts that went.
        """
        if facts not in ("keep", "remove"):
            raise ConfigurationError(f"facts must be 'keep' or 'remove', not {facts!r}.")
        from adk_memory_ext.ids import session_identity

        owner = _owner(app_name, user_id)
        session = session_identity(app_name, user_id, session_id)
        return await self._write(owner, lambda tx: sql_facts.cut_session(tx, session, owner, facts))

    # -- facts that follow from the log ------------------------------------------------------

    def register_extractor(self, name: str, extractor: Extractor) -> None:
        """Registers a pure function of events that finds inferred facts, for `rebuild`.

        Raises:
            ConfigurationError: When the name is taken or no slug.
        """
        self._extractors.register(name, extractor)

    async def rebuild(self, *, app_name: str, user_id: str, session_id: str) -> tuple[Saved, ...]:
        """Derives a session's inferred facts from its log anew, by the registered extractors.

        They are given all of the log but what was rewound or restored away.

        What they had found in that session before is replaced; the same log gives the same facts,
        and nothing is written where nothing differs. Facts from elsewhere stay.

        Returns:
            What came of each fact that was found.

        Raises:
            SessionNotFoundError: When there is no such session.
            FactRejectedError: When an extractor found what cannot be kept. Nothing was written.
        """
        from google.adk.errors.session_not_found_error import SessionNotFoundError
        from google.adk.sessions.base_session_service import GetSessionConfig

        owner = _owner(app_name, user_id)
        self._required()
        session = await self._service.get_session(
            app_name=app_name, user_id=user_id, session_id=session_id, config=GetSessionConfig()
        )
        if session is None:
            raise SessionNotFoundError(f"Session {session_id} not found.")
        found = self._extractors.facts(session_id, live_events(session.events), self._limits)
        return await self._write(owner, lambda tx: self._replace(tx, owner, session_id, found))

    def _replace(
        self, tx: Transaction, owner: Owner, session_id: str, found: list[NewFact]
    ) -> tuple[Saved, ...]:
        def is_old(source: Provenance) -> bool:
            return source.session_id == session_id and source.extractor is not None

        def change(
            profile: Profile, now: float
        ) -> tuple[list[tuple[FactKey, Outcome]], dict[FactKey, Fact]]:
            outcomes, after = profile_rules.rebuilt(profile, found, is_old, now)
            rest = dict(profile)
            for name in [name for name, _outcome in outcomes if name not in profile]:
                self._refuse_full(rest, name[1], now)
                rest[name] = after[name]
            return outcomes, after

        outcomes, after = sql_facts.change_profile(tx, owner, change)
        return tuple(
            Saved(outcome=outcome, fact=_own_copy(after[name])) for name, outcome in outcomes
        )

    # -- saves that wait for the end of a turn -----------------------------------------------

    def begin_turn(self, invocation_id: str) -> None:
        """Lets saves of a turn wait for its end; called by the `PreloadProfile` plugin."""
        self._waiting.begin(invocation_id)

    def save_at_end(
        self,
        fact: NewFact,
        *,
        invocation_id: str,
        app_name: str,
        user_id: str,
        expected_revision: int | None = None,
        agent: str | None = None,
    ) -> None:
        """Has a fact saved when the turn ends, and not at all if the turn fails.

        Raises:
            FactRejectedError: When the fact cannot be kept.
            ConfigurationError: When nobody would notice the turn's end.
        """
        owner = _owner(app_name, user_id)
        checked = checked_fact(fact, self._limits, time.time())
        save = WaitingSave(owner, checked, expected_revision, agent)
        if not self._waiting.add(invocation_id, save):
            raise ConfigurationError(
                "Saves can wait for the end of a turn only with the plugin PreloadProfile, or with"
                " MemoryPlugin(profile=PreloadProfile())."
            )

    async def end_turn(self, invocation_id: str, *, failed: bool = False) -> tuple[Saved, ...]:
        """Saves what waited for the end of a turn, in its order; after a failed turn nothing.

        A save that is refused by then is logged with its key, and the others are made.
        """
        waiting = self._waiting.end(invocation_id)
        if failed:
            return ()
        saved = []
        for save in waiting:
            try:
                saved.append(await self._write(save.owner, partial(self._save, save=save)))
            except (FactRejectedError, RevisionConflictError, CorruptRecordError) as error:
                _logger.warning("A save that waited for its turn's end was refused: %s", error)
        return tuple(saved)

    # -- the database ------------------------------------------------------------------------

    def _required(self) -> Database:
        if self._database is None:
            raise CapabilityError(
                f"{self._name} has no place for profiles; give one:"
                ' DurableSessionService(…, store="sqlite:///.sessions/memory.db").'
            )
        return self._database

    async def _write(self, owner: Owner, work: Callable[[Transaction], T]) -> T:
        return await self._required().write(work, lambda _result: self._cache.drop(owner))

    async def _read(
        self, owner: Owner, moment: float | None, *, raises: bool
    ) -> tuple[tuple[Fact, ...], tuple[str, ...]]:
        """Returns facts, and what is missing of them."""
        database = self._required()
        try:
            if moment is not None:
                read = await database.read(lambda tx: sql_facts.read_history(tx, owner))
                return profile_rules.current_at(read.facts, moment), read.unreadable
            known, drops = self._cache.get(owner), self._cache.drops
            read = await database.read(lambda tx: sql_facts.read_profile(tx, owner, known))
        except StoreError:
            if raises:
                raise
            known = self._cache.get(owner)
            if known is None or moment is not None:
                return (), ("everything: the profile could not be read, which is not an empty one",)
            since = self._cache.read_at(owner)
            return known.facts, (*known.unreadable, f"changes since {since}")
        self._cache.keep(owner, read, drops)
        return read.facts, read.unreadable


def _owner(app_name: str, user_id: str) -> Owner:
    from adk_memory_ext.ids import check_owner  # brings SQLAlchemy, which not everybody needs

    check_owner(app_name, "" if user_id is None else user_id)  # elsewhere None is every user
    return Owner(app_name, user_id)


def _own_copy(fact: Fact) -> Fact:
    """Returns a fact whose values the caller may change without changing what is cached."""
    if not any(isinstance(claim.value, dict | list) for claim in fact.claims):
        return fact
    claims = tuple(replace(claim, value=copy.deepcopy(claim.value)) for claim in fact.claims)
    return replace(fact, claims=claims)
