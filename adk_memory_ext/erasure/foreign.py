"""Erasing over a session service of somebody else: through its own interface, level `logical`."""

from __future__ import annotations

import uuid
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions.state import State

from adk_memory_ext.erasure.jobs import Deleted, Job, delete_subject, first_facts, receipt_of
from adk_memory_ext.erasure.physical import Cleaned
from adk_memory_ext.erasure.sqlite_file import FileWork
from adk_memory_ext.erasure.subjects import Traces, text_of

if TYPE_CHECKING:
    from google.adk.sessions.base_session_service import BaseSessionService
    from google.adk.sessions.session import Session

    from adk_memory_ext.erasure.elsewhere import Elsewhere
    from adk_memory_ext.erasure.receipts import Receipt
    from adk_memory_ext.erasure.subjects import Facts, Subject
    from adk_memory_ext.sql_sessions import Database


class ForeignErasure:
    """Erases what a foreign service stores of a session or a user, and what we keep beside it.

    Args:
        service: The service.
        store: Our database beside it; None where there is none.
    """

    def __init__(self, service: BaseSessionService, store: Database | None) -> None:
        self._service: Final = service
        self.store: Final = store
        self._name: Final = type(service).__name__

    async def count(self, subject: Subject, elsewhere: Elsewhere) -> tuple[Counter[str], list[str]]:
        """Returns how much there is, and what cannot be reached and why."""
        from adk_memory_ext.erasure import stored_rows

        sessions = await self._sessions(subject)
        counts, reasons = await elsewhere.count(subject, _traces(sessions))
        counted = self._counted(sessions) + Counter(counts)
        if subject.session_id is None:
            counted["user state"] = len(await self._user_state(subject) or {})
        if self.store is not None:
            own = await self.store.read(lambda tx: stored_rows.count_rows(tx, subject))
            counted.update({name: count for name, count in own.items() if count})
        return counted, reasons

    async def erase(
        self,
        subject: Subject,
        elsewhere: Elsewhere,
        key: bytes,
        requested_by: str | None,
        facts: Facts,
    ) -> Receipt:
        """Deletes all that can be reached, looks again, and returns the receipt.

        It is stored where there is a database of ours beside the service.
        """
        from adk_memory_ext.sql_store import now_microseconds

        begun = now_microseconds()
        noted = first_facts(subject, key, requested_by, facts=facts)
        sessions = await self._sessions(subject)
        reached, left = await elsewhere.erase(subject, _traces(sessions))
        notes = [*elsewhere.unknown]
        counts = self._counted(sessions) + Counter(reached)
        for session in sessions:
            await self._service.delete_session(
                app_name=session.app_name, user_id=session.user_id, session_id=session.id
            )
        if subject.session_id is None:
            cleared, more, names = await self._clear_user_state(subject)
            counts["user state"] = cleared
            left, notes = left + more, notes + names
        ours = await self._erase_ours(subject, facts)
        counts.update({name: count for name, count in ours.counts.items() if count})
        if await self._sessions(subject):
            left.append(f"sessions: {self._name} still has some")
        noted |= {"counts": dict(counts), "steps": dict(ours.steps)}
        job = Job(uuid.uuid4().hex, begun, noted, None)
        job.not_checked, job.unknown = left, notes
        bytes_left = f"the bytes: nothing here knows where {self._name} keeps them"
        cleaned = Cleaned("logical", True, FileWork(), not_checked=(bytes_left,))
        return await self._kept(subject, job, receipt_of(job, cleaned, key.hex()))

    async def _kept(self, subject: Subject, job: Job, receipt: Receipt) -> Receipt:
        from adk_memory_ext.erasure import ledger

        if self.store is None:
            return receipt

        def work(tx: Any) -> Receipt:
            ledger.begin(tx, job.id, subject, job.facts)
            return ledger.finish(tx, job.id, receipt)

        return await self.store.write(work)

    async def _erase_ours(self, subject: Subject, facts: Facts) -> Deleted:
        """Deletes what we keep beside the service."""
        if self.store is None:
            return Deleted((), {}, ())
        return await self.store.write(lambda tx: delete_subject(tx, subject, {}, facts=facts))

    async def _sessions(self, subject: Subject) -> list[Session]:
        """Returns the subject's sessions with their events."""
        owner: dict[str, Any] = {"app_name": subject.app_name, "user_id": subject.user_id}
        ids = [subject.session_id] if subject.session_id is not None else []
        if subject.session_id is None:
            listed = await self._service.list_sessions(**owner)
            ids = [session.id for session in listed.sessions]
        found = [await self._service.get_session(**owner, session_id=one) for one in ids]
        return [session for session in found if session is not None]

    @staticmethod
    def _counted(sessions: list[Session]) -> Counter[str]:
        events = sum(len(session.events) for session in sessions)
        return Counter({"sessions": len(sessions), "events": events})

    async def _user_state(self, subject: Subject) -> dict[str, Any] | None:
        """Returns the user's state; None where the service cannot tell."""
        with suppress(NotImplementedError):
            return await self._service.get_user_state(
                app_name=subject.app_name, user_id=subject.user_id
            )
        return None

    async def _clear_user_state(self, subject: Subject) -> tuple[int, list[str], list[str]]:
        """Sets every key of the user's state to None, which is all that ADK's interface offers.

        Returns:
            How many values there were, what is left, and what is worth a note.
        """
        state = await self._user_state(subject)
        if state is None:
            return 0, [f"user state: {self._name} cannot tell what there is"], []
        values = {name: value for name, value in state.items() if value is not None}
        if values:
            owner: dict[str, Any] = {"app_name": subject.app_name, "user_id": subject.user_id}
            session = await self._service.create_session(**owner)
            delta = dict.fromkeys((State.USER_PREFIX + name for name in values), None)
            event = Event(author="user", actions=EventActions(state_delta=delta))
            try:
                await self._service.append_event(session, event)
            finally:
                await self._service.delete_session(**owner, session_id=session.id)
        after = await self._user_state(subject) or {}
        if any(value is not None for value in after.values()):
            return len(values), [f"user state: {self._name} keeps values"], []
        kept = f"user state: the names of {len(after)} keys, which {self._name} cannot remove"
        return len(values), [], [kept] if after else []


def _traces(sessions: list[Session]) -> Traces:
    said = {
        event.id: text_of(event.content.model_dump(exclude_none=True) if event.content else None)
        for session in sessions
        for event in session.events
    }
    return Traces([session.id for session in sessions], said)
