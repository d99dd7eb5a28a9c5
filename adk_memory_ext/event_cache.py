"""Decoded events of sessions that were loaded before, so that they need not be decoded again.

What is cached is told by the version of a session's log and an event's sequence, and read in the
same transaction as the state, so that nobody gets what is not stored. A session that was deleted,
in whichever process, has another version or none, and its entry goes with the next look at it,
which `cache_checks` takes where nobody else does.
**Who rewrites or removes a stored event counts it in `memext_sessions.rewrites`**: then the version
is another one.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from adk_memory_ext.event_copies import Copier, model_copier
from adk_memory_ext.stored_events import decode_event
from adk_memory_ext.untouched_events import untouched

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from google.adk.events.event import Event

    from adk_memory_ext.records import SessionId

_EVENT_BYTES: Final = 6_000
"""What an event in memory takes besides its text (measured: 5 KB of objects, 1 KB of copiers)."""
_TEXT_FACTOR: Final = 2
_NESTED: Final = 100
"""Brackets of a text that may be nested too deeply to be copied as it is."""


@dataclass(slots=True)
class _Cached:
    """An event that nobody but the cache holds."""

    event: Event
    size: int
    copier: Copier | None = None
    """Made with the first copy: most events are never copied."""

    def copy(self) -> Event:
        """Returns an event that shares nothing with any other; not for two threads at once."""
        copier = self.copier = self.copier or model_copier(self.event)
        copied: Event = copier(self.event)
        return copied


@dataclass(slots=True)
class CachedSession:
    """What is kept of one session."""

    log_version: int
    """`sql_store.Head.log_version`, as of which the events are."""
    session_key: int
    events: dict[int, _Cached] = field(default_factory=dict)
    whole_up_to: int = 0
    """The sequence up to which every event is here; 0 if some are missing from the beginning."""
    size: int = 0
    counted: int = 0
    """How much of `size` the cache counts as its own: an entry grows while it is looked at."""
    was_kept: bool = False
    """Whether others may hold it too."""
    used: float = field(default_factory=time.monotonic)
    """When it was last asked for, in seconds of a clock that only goes on."""


class EventCache:
    """Keeps decoded events of the sessions that were used last.

    Safe for threads. Nothing that it hands out is shared with anybody.

    Args:
        most_bytes: Roughly how much memory it may take; 0 keeps nothing.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._size = 0
        self._entries: OrderedDict[SessionId, CachedSession] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def size(self) -> int:
        """Roughly how many bytes are kept."""
        return self._size

    def __len__(self) -> int:
        """Returns how many sessions are kept."""
        return len(self._entries)

    def entry(self, session: SessionId, log_version: int, session_key: int) -> CachedSession:
        """Returns what is kept of a session's log; empty if that is nothing or outdated."""
        with self._lock:
            entry = self._entries.get(session)
            if entry is None or entry.log_version != log_version:
                self._drop(session)
                return CachedSession(log_version, session_key)
            entry.used = time.monotonic()
            return entry

    def events(
        self,
        session: SessionId,
        entry: CachedSession,
        rows: Sequence[tuple[int, str]],
        known: int | None = None,
    ) -> list[Event]:
        """Returns events of a session, decoding those that are not here.

        Args:
            session: The session.
            entry: What was kept of it when `rows` were read.
            rows: Sequences and texts, in order.
            known: For the whole log: the sequence up to which `entry` had all of it and behind
                which `rows` go on; None where `rows` are all.

        Raises:
            CorruptRecordError: When a text is no event.
        """
        with self._lock:
            before = []
            if known:
                before = [entry.events[at] for at in sorted(entry.events) if at <= known]
            found = [_cached(entry, session, sequence, text) for sequence, text in rows]
            if known is not None:
                last = rows[-1][0] if rows else known
                entry.whole_up_to = max(entry.whole_up_to, last)
            is_mine = not entry.was_kept
            self._keep(session, entry)
            if is_mine and not entry.was_kept:
                return [cached.event for cached in (*before, *found)]
            return untouched([*before, *found])

    def forget(self, session: SessionId) -> None:
        """Keeps nothing of a session."""
        with self._lock:
            self._drop(session)

    def kept(self) -> dict[int, int]:
        """Returns the log versions of what is kept, with their session keys."""
        with self._lock:
            return {entry.log_version: entry.session_key for entry in self._entries.values()}

    def forget_versions(self, gone: Collection[int]) -> None:
        """Keeps nothing of these."""
        with self._lock:
            for session in [s for s, entry in self._entries.items() if entry.log_version in gone]:
                self._drop(session)

    def forget_idle(self, seconds: float) -> None:
        """Keeps nothing of sessions that were not asked for in so many seconds."""
        before = time.monotonic() - seconds
        with self._lock:
            for session in [s for s, entry in self._entries.items() if entry.used < before]:
                self._drop(session)

    def clear(self) -> None:
        """Keeps nothing."""
        with self._lock:
            self._entries.clear()
            self._size = 0

    def _keep(self, session: SessionId, entry: CachedSession) -> None:
        self._drop(session)
        if entry.size > self._most_bytes:
            return
        entry.was_kept = True
        self._entries[session] = entry
        entry.counted = entry.size
        self._size += entry.counted
        while self._size > self._most_bytes:
            self._drop(next(iter(self._entries)))

    def _drop(self, session: SessionId) -> None:
        entry = self._entries.pop(session, None)
        if entry is not None:
            self._size -= entry.counted


def _cached(entry: CachedSession, session: SessionId, sequence: int, text: str) -> _Cached:
    cached = entry.events.get(sequence)
    if cached is None:
        event = decode_event(text, session.session_id)
        cached = _Cached(event, _EVENT_BYTES + _TEXT_FACTOR * len(text))
        if text.count("{") + text.count("[") > _NESTED:
            try:
                cached.copier = model_copier(event)
            except RecursionError:  # plain ADK stores what is nested more deeply than we do
                cached.copier = partial(_decoded_again, session=session, text=text)
        entry.events[sequence] = cached
        entry.size += cached.size
    return cached


def _decoded_again(_event: Event, *, session: SessionId, text: str) -> Event:
    return decode_event(text, session.session_id)
