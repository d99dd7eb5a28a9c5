"""The log of a session that somebody else's service stores, and what checkpoints know of it."""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from adk_memory_ext.checkpoint_requests import REQUESTS, requests_in
from adk_memory_ext.interruptions import COPY_OF
from adk_memory_ext.rewinds import BEFORE, REMOVED, initial_state, session_scope, state_after
from adk_memory_ext.sql_checkpoints import Line, Moment

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from google.adk.events.event import Event
    from google.adk.sessions.session import Session

    from adk_memory_ext.checkpoint_records import CheckpointRequest
    from adk_memory_ext.statements import Row


@dataclass(frozen=True, slots=True)
class View:
    """A session beside what its checkpoints know of it."""

    line: Line | None
    session: Session
    events: Sequence[Event]
    """Those that no checkpoint covers."""

    @property
    def covered(self) -> int:
        """How many events checkpoints cover."""
        return 0 if self.line is None else self.line.covered

    def pending(self) -> list[tuple[int, CheckpointRequest]]:
        """Returns what the events ask for, each with the number of events up to there."""
        return [
            (number, request)
            for number, event in enumerate(self.events, start=1)
            for request in requests_in(event.custom_metadata)
        ]

    def moment(self, end: int, begin: int) -> Moment:
        """Returns what a checkpoint behind the first `end` new events is made of."""
        rows = rows_of(self.events[begin:end], self.covered + begin)
        state: Mapping[str, Any] = self.session.state
        if end < len(self.events):
            log = self.session.events
            state = state_after(initial_state(state, log), log[: self.covered + end])
        return Moment(rows, session_scope(state), lambda: self._whole_state(state))

    def _whole_state(self, state: Mapping[str, Any]) -> dict[str, Any]:
        now = self.session.state
        scoped = {key: now[key] for key in now if key.startswith(("user:", "app:"))}
        return {**session_scope(state), **scoped}


def beside(line: Line | None, last: str | None, session: Session, *, is_whole: bool) -> View | None:
    """Returns a session beside its checkpoints; None if the newest of them is not of its log.

    None too where too little of the log was loaded to tell. `last` is the event that it covers.
    """
    if line is None or not line.covered:
        return View(line, session, session.events) if is_whole else None
    ids = [event.id for event in session.events]
    place = len(ids) - ids[::-1].index(last) if last in ids else 0
    if not place or (is_whole and place != line.covered):
        return None
    return View(line, session, session.events[place:])


def rows_of(events: Sequence[Event], before: int) -> list[Row]:
    """Returns events as the rows of a log that has so many others before them."""
    return [
        (number, event.id, event.invocation_id, _text(event))
        for number, event in enumerate(events, start=before + 1)
    ]


def _text(event: Event) -> str:
    """Returns an event as it is read, in one way of writing it down."""
    data = event.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    if "long_running_tool_ids" in data:
        data["long_running_tool_ids"] = sorted(data["long_running_tool_ids"])
    return json.dumps(data, sort_keys=True, separators=(",", ":"))


def copied(event: Event, *, is_copy: bool) -> Event:
    """Returns the same event without its delta; as a copy it has an id and a time of its own."""
    copy = event.model_copy(deep=True)
    copy.actions.state_delta = {}
    noted = {BEFORE, REMOVED, REQUESTS}
    metadata = {k: v for k, v in (event.custom_metadata or {}).items() if k not in noted}
    if is_copy:
        metadata.setdefault(COPY_OF, event.id)
        copy.id, copy.timestamp = str(uuid.uuid4()), time.time()
    copy.custom_metadata = metadata or None
    return copy
