"""Which events of a session a turn needs: its tail, in whole invocations, and what that refers to.

The beginning of a window moves in steps, not with every event, so that the prompts of many turns
begin alike and a provider's cache of them holds.
"""

from __future__ import annotations

import hashlib
import sys
from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from google.adk.sessions.base_session_service import GetSessionConfig

from adk_memory_ext.errors import ConfigurationError
from adk_memory_ext.interruptions import outline_of
from adk_memory_ext.rewind_marks import live_positions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import FrameType

    from google.adk.events.event import Event

MOST_OPEN_CALLS: Final = 64
"""How many of the newest open calls a load brings in from before its window."""
_FRAMES: Final = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """How much of a session's log is loaded for a turn.

    At least `events` of the newest events, fewer than `events + step` and what makes their oldest
    invocation whole; besides them the newest compaction summary, and the invocations of calls that
    wait for an answer from outside. State is never windowed.
    """

    events: int = 120
    """How many of the newest events are there at least."""
    step: int | None = None
    """By how many events its beginning moves at once; None: by `events`."""

    def __post_init__(self) -> None:
        """Refuses numbers without meaning."""
        if self.events < 1 or (self.step is not None and self.step < 1):
            raise ConfigurationError("A window has at least 1 event, and moves by at least 1.")

    def start(self, last: int) -> int:
        """Returns the position, counted from 1, where the window of `last` events begins."""
        step = self.step or self.events
        return max(0, last - self.events) // step * step + 1

    def config(self) -> GetSessionConfig:
        """Returns what to give to ADK: `RunConfig(get_session_config=Window(…).config())`."""
        return WindowConfig(window=self)


class WindowConfig(GetSessionConfig):
    """ADK's configuration of a load, with a window; other services than ours load everything."""

    window: Any
    """A `Window`; declared so that pydantic need not learn about dataclasses."""


@dataclass(frozen=True, slots=True)
class References:
    """What one event has to do with events elsewhere in the log."""

    opened: tuple[str, ...] = ()
    """Digests of the long-running calls that it makes."""
    answered: tuple[str, ...] = ()
    """Digests of the calls that it answers from outside."""
    is_summary: bool = False
    """Whether it is ADK's compaction summary."""
    rewinds_before: str | None = None
    """The invocation from which on it hides what came before it."""


def references(event: Mapping[str, Any]) -> References:
    """Returns what an event in its JSON form refers to.

    A long-running call stays open until somebody outside has answered it, whatever the tool itself
    has said by then: ADK 2.13 cannot tell its "pending" from a result.
    """
    calls = event.get("long_running_tool_ids") or ()
    actions = event.get("actions") or {}
    summary, rewound = bool(actions.get("compaction")), actions.get("rewind_before_invocation_id")
    answers: list[str] = []
    if event.get("author") == "user":
        parts = (event.get("content") or {}).get("parts") or ()
        found = [part.get("function_response") or part.get("functionResponse") for part in parts]
        answers = [answer["id"] for answer in found if answer and answer.get("id")]
    if not calls and not answers and not summary and not rewound:
        return _NOTHING
    return References(
        tuple(sorted(map(call_digest, calls))), tuple(map(call_digest, answers)), summary, rewound
    )


_NOTHING: Final = References()


def call_digest(call_id: str) -> str:
    """Returns what stands for a call's id: of one length, and compared exactly everywhere."""
    return hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()


def window_of(events: Sequence[Event], window: Window) -> list[Event]:
    """Returns the window of a whole log, for services that can only load all of it."""
    start = _aligned(events, window.start(len(events)) - 1)
    start = _before_rewinds(events, start, window)
    kept = set(range(start, len(events)))
    opened: dict[str, int] = {}
    summary: int | None = None
    live = live_positions(outline_of(events))
    for index in live[: bisect_left(live, start)]:
        found = references(events[index].model_dump(include=_REFERRING, exclude_none=True))
        opened |= dict.fromkeys(found.opened, index)
        if found.is_summary:
            summary = index
        for call in found.answered:
            opened.pop(call, None)
    for index in sorted(set(opened.values()))[-MOST_OPEN_CALLS:]:
        kept |= _invocation(events, index, start)
    if summary is not None:
        kept.add(summary)
    return [event for index, event in enumerate(events) if index in kept]


_REFERRING: Final[dict[str, Any]] = {
    "author": True,
    "long_running_tool_ids": True,
    "content": {"parts": {"__all__": {"function_response": {"id"}}}},
    "actions": {"compaction": {"start_timestamp"}},
}


def _aligned(events: Sequence[Event], index: int) -> int:
    """Returns where the invocation of the event at `index` begins."""
    while 0 < index < len(events) and (
        events[index - 1].invocation_id == events[index].invocation_id
    ):
        index -= 1
    return index


def _invocation(events: Sequence[Event], index: int, start: int) -> set[int]:
    first, last = _aligned(events, index), index
    while last + 1 < start and events[last + 1].invocation_id == events[index].invocation_id:
        last += 1
    return set(range(first, last + 1))


def _before_rewinds(events: Sequence[Event], start: int, window: Window) -> int:
    """Returns a start from which every rewind in the window finds what it takes back."""
    places: dict[str, int] = {}
    for index, event in enumerate(events):
        places.setdefault(event.invocation_id, index)
    while True:
        targets = [
            places[target]
            for event in events[start:]
            if (target := event.actions.rewind_before_invocation_id) in places
        ]
        if not targets or min(targets) >= start:
            return start
        # What was said before it is what the model now goes on from.
        start = _aligned(events, max(0, window.start(min(targets)) - 1))


def is_rewind() -> bool:
    """Whether ADK's `Runner.rewind_async` is what waits for this call.

    It asks for the session exactly as a run does, and must get all of it. ADK 2.13 has no hook, no
    configuration and no other public difference; the name of the public method is what there is. A
    test rewinds to an invocation outside a window with ADK's own Runner.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  # documented in `sys`
    for _depth in range(_FRAMES):
        if frame is None:
            return False
        if frame.f_code.co_name == "rewind_async":
            return bool(frame.f_globals.get("__name__") == "google.adk.runners")
        frame = frame.f_back
    return False
