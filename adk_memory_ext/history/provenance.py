"""Which event each content of a request came from, and what ADK left out that a model should see.

ADK copies contents for a request and hands on what they hold, so that the very same text or
arguments tell where a content came from. Another agent's turn is rewritten and cannot be told.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from google.genai import types

from adk_memory_ext.history.entries import PAYLOADS, Entry, answers, calls
from adk_memory_ext.interruptions import outline_of
from adk_memory_ext.rewind_marks import live_positions

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from google.adk.events.event import Event

KEEP: Final = "memext_keep"
"""The key of an event's `custom_metadata` that keeps its content in every request, if true."""
_ADKS_OWN: Final = "adk_"
"""What the calls begin with by which ADK asks an application for something."""
_ADKS_IDS: Final = "adk-"
"""What the ids begin with that ADK gives to calls, and takes away again in a request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Whose request it is."""

    agent: str
    branch: str | None = None
    isolation_scope: str | None = None
    question: types.Content | None = None
    """What was asked in this invocation."""


def entries_of(
    contents: Sequence[types.Content], events: Sequence[Event], reader: Reader
) -> list[Entry]:
    """Returns the contents with what the log says of them, calls that ADK left out among them."""
    origins = _origins(contents, events)
    newest_asked = _newest_asked(contents, events, origins, reader)
    times = [event.timestamp for event in events]
    entries: list[Entry] = []
    for index, content in enumerate(contents):
        origin = origins[index]
        event = None if origin is None else events[origin]
        entries.append(_entry(content, event, events, times, is_newest=index == newest_asked))
    return _with_interrupted(entries, origins, events, reader)


def _entry(
    content: types.Content,
    event: Event | None,
    events: Sequence[Event],
    times: Sequence[float],
    *,
    is_newest: bool,
) -> Entry:
    if event is None:
        return Entry(content, is_question=is_newest and not answers(content))
    compaction = event.actions.compaction
    metadata = event.custom_metadata
    return Entry(
        content,
        event.id,
        is_question=_is_users(event) and not answers(content),
        is_marked=(isinstance(metadata, dict) and metadata.get(KEEP) is True)
        or (is_newest and bool(answers(content))),
        is_pending=bool(event.long_running_tool_ids) and bool(calls(content)),
        stands_for=()
        if compaction is None
        else tuple(
            other.id
            for other, time in zip(events, times, strict=True)
            if compaction.start_timestamp <= time <= compaction.end_timestamp
            and other.actions.compaction is None
        ),
    )


def _newest_asked(
    contents: Sequence[types.Content],
    events: Sequence[Event],
    origins: Sequence[int | None],
    reader: Reader,
) -> int | None:
    """Returns the index of the newest content that a user sent."""
    for index in range(len(contents) - 1, -1, -1):
        origin = origins[index]
        if origin is not None and _is_users(events[origin]):
            return index
        if origin is None and reader.question is not None and contents[index] == reader.question:
            return index
    return None


def _is_users(event: Event) -> bool:
    """Whether a person sent it; ADK 2.13 names the user as the author of summaries too."""
    return event.author == "user" and event.actions.compaction is None


def _origins(contents: Sequence[types.Content], events: Sequence[Event]) -> list[int | None]:
    """Returns the index of the event that each content came from; None where it cannot be told."""
    holders: dict[int, list[int]] = {}
    for index, event in enumerate(events):
        for payload in _payloads_of(event):
            holders.setdefault(payload, []).append(index)
    origins: list[int | None] = []
    pointer = -1
    for content in contents:
        origin = _origin(content, holders, pointer)
        if origin is not None:
            pointer = origin
        origins.append(origin)
    return origins


def _origin(content: types.Content, holders: dict[int, list[int]], pointer: int) -> int | None:
    for payload in _payloads(content):
        if found := holders.get(payload):
            at = bisect_right(found, pointer)
            return found[min(at, len(found) - 1)]
    return None


def _payloads_of(event: Event) -> Iterator[int]:
    if event.content is not None:
        yield from _payloads(event.content)
    if event.actions.compaction is not None:
        yield from _payloads(event.actions.compaction.compacted_content)


def _payloads(content: types.Content) -> Iterator[int]:
    """Yields what tells a content from every other: the identities of what it holds."""
    for part in content.parts or ():
        for name in PAYLOADS:
            value = getattr(part, name)
            if value:
                yield id(value)
        if part.function_call is not None:
            # ADK copies the call where it takes an id away, never what the call holds.
            yield id(part.function_call.args or part.function_call)
        if part.function_response is not None:
            yield id(part.function_response.response or part.function_response)


# --- Interrupted calls


def _with_interrupted(
    entries: list[Entry],
    origins: Sequence[int | None],
    events: Sequence[Event],
    reader: Reader,
) -> list[Entry]:
    """Puts back the calls that ADK leaves out because no answer came before the turn broke off.

    A model that does not see that it has called may call again. `repaired` says what became of it.
    """
    known = [origin for origin in origins if origin is not None]
    if not known:
        return entries
    # Whose invocation is not in the request was left out on purpose, and so was the call.
    shown = {events[origin].invocation_id for origin in known}
    lost = [at for at in _interrupted(events, reader) if events[at].invocation_id in shown]
    if not lost:
        return entries
    strips = not any(_has_adks_ids(entry.content) for entry in entries)
    result: list[Entry] = []
    for entry, origin in zip(entries, origins, strict=True):
        while origin is not None and lost and lost[0] < origin:
            result.append(_restored(events[lost.pop(0)], strips=strips))
        if origin is not None and lost and lost[0] == origin and calls(entry.content):
            result.append(_restored(events[lost.pop(0)], strips=strips))
        else:
            result.append(entry)
    # What is behind the last content would be a call that is being made right now.
    return result


def _interrupted(events: Sequence[Event], reader: Reader) -> list[int]:
    """Returns the indexes of the events of the reader with calls that were never answered."""
    answered = {answer.id for event in events if event.content for answer in answers(event.content)}
    summed_up = max(
        (e.actions.compaction.end_timestamp for e in events if e.actions.compaction), default=0.0
    )
    lost: list[int] = []
    for index in live_positions(outline_of(events)):
        event = events[index]
        if event.author != reader.agent or event.content is None:
            continue
        if event.timestamp <= summed_up or not _is_visible(event, reader):
            continue
        pending = event.long_running_tool_ids or set()
        if any(
            call.id and call.id not in answered and call.id not in pending and _is_tool(call)
            for call in calls(event.content)
        ):
            lost.append(index)
    return lost


def _is_tool(call: types.FunctionCall) -> bool:
    return not (call.name or "").startswith(_ADKS_OWN)


def _is_visible(event: Event, reader: Reader) -> bool:
    """Whether ADK shows an event of an agent to its next call."""
    if getattr(event, "isolation_scope", None) != reader.isolation_scope:
        return False
    if not event.branch or not reader.branch:
        return True
    return f"{reader.branch}.".startswith(f"{event.branch}.")


def _restored(event: Event, *, strips: bool) -> Entry:
    content = event.content or types.Content()
    parts: list[types.Part] = []
    for part in content.parts or ():
        call = part.function_call
        if strips and call is not None and (call.id or "").startswith(_ADKS_IDS):
            bare = call.model_copy(update={"id": None})
            parts.append(part.model_copy(update={"function_call": bare}))
        else:
            parts.append(part)
    return Entry(types.Content(role=content.role, parts=parts), event.id)


def _has_adks_ids(content: types.Content) -> bool:
    ids = [call.id for call in calls(content)] + [answer.id for answer in answers(content)]
    return any((name or "").startswith(_ADKS_IDS) for name in ids)
