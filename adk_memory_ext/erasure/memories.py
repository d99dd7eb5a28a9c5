"""What memory services keep of a session or a user: found by what was said, and deleted by id.

ADK's interface has a search, and `delete_memory` by the ids that a search returns; nothing lists
what there is. So every text of the subject is searched for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from adk_memory_ext.erasure.subjects import text_of

if TYPE_CHECKING:
    from google.adk.memory.base_memory_service import BaseMemoryService
    from google.adk.memory.memory_entry import MemoryEntry

    from adk_memory_ext.erasure.subjects import Subject, Traces

_MOST_ROUNDS: Final = 10_000
"""Searches of one text; a service that goes on finding what was deleted would never end."""


@dataclass(slots=True)
class _Found:
    own: list[str] = field(default_factory=list)
    """Ids of entries that are the subject's."""
    nameless: int = 0
    """Entries of the subject's without an id to delete them by."""
    unsure: int = 0
    """Entries of the user that may be of the session or not."""


class Memories:
    """What one memory service keeps of a subject.

    Args:
        service: The service.
        subject: Whose memories.
        traces: What the subject's events said.
    """

    def __init__(self, service: BaseMemoryService, subject: Subject, traces: Traces) -> None:
        self._service: Final = service
        self._subject: Final = subject
        self._said: Final = traces.said
        self._others: Final = traces.others
        self._texts: Final = frozenset(text for text in traces.said.values() if text)
        self._name: Final = type(service).__name__

    def out_of_reach(self) -> list[str]:
        """Returns why nothing can be deleted; nothing if it can."""
        from google.adk.memory.base_memory_service import BaseMemoryService

        if type(self._service).delete_memory is not BaseMemoryService.delete_memory:
            return []
        return [f"memory: {self._name} deletes nothing; register_erasure can reach it"]

    async def count(self) -> int:
        """Returns how many entries the searches find."""
        ids: set[str] = set()
        for text in self._texts:
            ids.update((await self._search(text)).own)
        return len(ids)

    async def erase(self) -> tuple[int, list[str]]:
        """Deletes the entries; returns how many, and what is left and why."""
        if reasons := self.out_of_reach():
            return 0, reasons
        deleted: set[str] = set()
        nameless = unsure = 0
        for text in sorted(self._texts):
            found = await self._erase_found(text, deleted)
            nameless, unsure = max(nameless, found.nameless), max(unsure, found.unsure)
        if deleted & self._said.keys():
            # It keeps events under their ids, also those that others crowd out of a search.
            for event_id in self._said.keys() - deleted:
                await self._delete(event_id)
        if nameless:
            reasons.append(f"memory: {self._name} gave entries without an id")
        if unsure:
            reasons.append(f"memory: {self._name} does not say which entries are of this session")
        return len(deleted), reasons

    async def _erase_found(self, text: str, deleted: set[str]) -> _Found:
        """Deletes what a search finds, until it finds nothing new."""
        found = await self._search(text)
        for _round in range(_MOST_ROUNDS):
            new = [memory_id for memory_id in found.own if memory_id not in deleted]
            if not new:
                break
            for memory_id in new:
                await self._delete(memory_id)
                deleted.add(memory_id)
            found = await self._search(text)
        return found

    async def _search(self, text: str) -> _Found:
        response = await self._service.search_memory(
            app_name=self._subject.app_name, user_id=self._subject.user_id, query=text
        )
        found = _Found()
        for entry in response.memories:
            if not self._is_own(entry):
                found.unsure += entry.id not in self._others
            elif entry.id:
                found.own.append(entry.id)
            else:
                found.nameless += 1
        return found

    def _is_own(self, entry: MemoryEntry) -> bool:
        """Whether an entry, which is the user's, is the subject's."""
        if self._subject.session_id is None or entry.id in self._said:
            return True
        if entry.id in self._others:
            return False
        return text_of(entry.content.model_dump(exclude_none=True)) in self._texts

    async def _delete(self, memory_id: str) -> None:
        await self._service.delete_memory(
            app_name=self._subject.app_name, user_id=self._subject.user_id, memory_id=memory_id
        )
