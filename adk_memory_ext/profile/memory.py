"""`ProfileMemoryService`: profile facts for agents that were written for ADK's own memory."""

from __future__ import annotations

import re
import unicodedata
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from google.adk.memory.base_memory_service import BaseMemoryService, SearchMemoryResponse
from google.adk.memory.memory_entry import MemoryEntry
from google.genai import types

from adk_memory_ext.fact_lines import line
from adk_memory_ext.facts import USER
from adk_memory_ext.interruptions import still_live
from adk_memory_ext.profile_rules import canonical

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from google.adk.events.event import Event
    from google.adk.sessions.session import Session

    from adk_memory_ext.facts import Fact
    from adk_memory_ext.service import DurableSessionService

_PREFIX: Final = "profile:"
_WIDE: Final = re.compile(
    "[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]+"
)
"""Kana, Han and Hangul, which are written without spaces between the parts of a compound."""
_MOST_FACTS: Final = 10


class ProfileMemoryService(BaseMemoryService):
    """Makes profile facts searchable through `load_memory` and `preload_memory`.

    A search compares words, whatever their case and accents, and pairs of characters of Chinese,
    Japanese and Korean. ADK says nothing of the agent that asks, so only facts that every agent may
    see and that are not sensitive are found. Nothing is remembered by itself: what ADK adds to
    memory goes to `also`, but for what was rewound.

    Args:
        sessions: Has the profiles.
        also: Another memory service, whose memories come after the facts.
    """

    def __init__(
        self, sessions: DurableSessionService, *, also: BaseMemoryService | None = None
    ) -> None:
        self._sessions = sessions
        self._profiles = sessions.profiles
        self._also = also

    @property
    def also(self) -> BaseMemoryService | None:
        """The other memory service; an erasure reaches it, and facts with the profile."""
        return self._also

    async def search_memory(
        self, *, app_name: str, user_id: str, query: str
    ) -> SearchMemoryResponse:
        """Returns the facts that share words with the query, the best first, then other memories.

        A fact's id stays the same while the fact is corrected.
        """
        recalled = await self._profiles.recall(
            app_name=app_name,
            user_id=user_id,
            include_sensitive=False,
            budget_tokens=None,
            on_unavailable="raise",
        )
        asked = _words(query)
        scored = [
            (len(_shared(asked, _words(_searchable(fact)))), fact)
            for fact in recalled.facts
            if not fact.visible_to
        ]
        found = sorted((pair for pair in scored if pair[0]), key=lambda pair: -pair[0])
        memories = [_entry(fact) for _score, fact in found[:_MOST_FACTS]]
        if self._also is not None:
            others = await self._also.search_memory(app_name=app_name, user_id=user_id, query=query)
            memories += others.memories
        return SearchMemoryResponse(memories=memories)

    async def delete_memory(
        self, *, app_name: str, user_id: str, memory_id: str | None = None
    ) -> None:
        """Forgets the fact of that id with its history; other ids go to `also`."""
        if memory_id and memory_id.startswith(_PREFIX):
            subject, _, key = memory_id.removeprefix(_PREFIX).partition(":")
            await self._profiles.forget(key, app_name=app_name, user_id=user_id, subject=subject)
        elif memory_id and self._also is not None:
            await self._also.delete_memory(app_name=app_name, user_id=user_id, memory_id=memory_id)

    async def add_session_to_memory(self, session: Session) -> None:
        """Hands the session to `also`, without what was rewound or restored away.

        Facts are saved by tools only.
        """
        if self._also is not None:
            events = await self._live(session.app_name, session.user_id, session.id, session.events)
            live = session.model_copy(update={"events": events})
            await self._also.add_session_to_memory(live)

    async def add_events_to_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        events: Sequence[Event],
        session_id: str | None = None,
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Hands the events to `also`, without those that were rewound or restored away.

        Facts are saved by tools only.
        """
        if self._also is not None:
            await self._also.add_events_to_memory(
                app_name=app_name,
                user_id=user_id,
                events=await self._live(app_name, user_id, session_id, events),
                session_id=session_id,
                custom_metadata=custom_metadata,
            )

    async def _live(
        self, app_name: str, user_id: str, session_id: str | None, events: Sequence[Event]
    ) -> list[Event]:
        """Returns what the log as it is stored by now has left of some events."""
        session = None
        if session_id is not None:
            session = await self._sessions.get_whole_session(
                app_name=app_name, user_id=user_id, session_id=session_id
            )
        return still_live(events, events if session is None else session.events)

    async def add_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        memories: Sequence[MemoryEntry],
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Hands the memories to `also`.

        Raises:
            NotImplementedError: When there is no other service, or it takes none.
        """
        if self._also is None:
            raise NotImplementedError(
                "A profile takes facts by key: use save_profile, or give another service: also=…"
            )
        await self._also.add_memory(
            app_name=app_name,
            user_id=user_id,
            memories=memories,
            custom_metadata=custom_metadata,
        )


def _entry(fact: Fact) -> MemoryEntry:
    return MemoryEntry(
        id=f"{_PREFIX}{fact.subject}:{fact.key}",
        author="user" if fact.status == "stated" else "inferred",
        timestamp=datetime.fromtimestamp(fact.observed_at, UTC).isoformat(timespec="seconds"),
        content=types.Content(role="user", parts=[types.Part(text=line(fact))]),
    )


def _searchable(fact: Fact) -> str:
    about = "" if fact.subject == USER else fact.subject
    values = " ".join(canonical(claim.value) for claim in fact.claims)
    return re.sub(r"[-_.]", " ", f"{about} {fact.key}") + f" {values}"


def _shared(one: set[str], other: set[str]) -> set[str]:
    """Returns common words; a word of one wide character is part of those that hold it."""
    common = one & other
    for words, others in ((one, other), (other, one)):
        wide = [word for word in others if _WIDE.match(word)]
        common |= {
            word
            for word in words
            if len(word) == 1 and _WIDE.match(word) and any(word in pair for pair in wide)
        }
    return common


def _words(text: str) -> set[str]:
    """Returns words without case and accents, and pairs of characters of wide scripts."""
    composed = unicodedata.normalize("NFKC", text).casefold()
    words: set[str] = set()
    for run in _WIDE.findall(composed):
        words |= {run[at : at + 2] for at in range(len(run) - 1)} or {run}
    plain = unicodedata.normalize("NFKD", _WIDE.sub(" ", composed))
    letters = "".join(char for char in plain if not unicodedata.combining(char))
    return words | set(re.findall(r"[^\W_]+", letters))
