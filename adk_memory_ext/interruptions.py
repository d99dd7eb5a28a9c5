"""What a crash left open in a log: calls without an answer, messages and turns without an end."""

from __future__ import annotations

import json
import uuid
from bisect import insort
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.genai import types

from adk_memory_ext.finished_calls import answer_of, kept_answers
from adk_memory_ext.rewind_marks import Outline, Special, live_positions

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping, Sequence

    from adk_memory_ext.checkpoint_records import Restored

RECOVERED: Final = "memext_recovered"
"""Where the `custom_metadata` of an event says that it stands for one that a crash swallowed."""
RESTORED: Final = "memext_restored"
"""Where the `custom_metadata` of an event names the checkpoint that was restored there."""
COPY_OF: Final = "memext_copy_of"
"""Where the `custom_metadata` of an event names the event that it repeats behind a restore."""
FORKED: Final = "memext_forked"
"""Where the `custom_metadata` of the last event that a fork begins with names its checkpoint."""

_MARKS: Final = ('"rewind_before_invocation_id"', f'"{RESTORED}"', f'"{COPY_OF}"')
_OUTCOME_UNKNOWN: Final = {
    "status": "interrupted",
    "outcome": "unknown",
    "message": (
        "The process ended before this call had an answer. It may have taken effect or not: check"
        " before you repeat it."
    ),
}


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A tool call that never got its answer."""

    call_id: str
    name: str
    invocation_id: str
    author: str
    """The agent that called."""
    branch: str | None
    kept: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)
    """What was kept of its answer, where it had finished beside others that had not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interruption:
    """What was found of an interrupted invocation."""

    kind: Literal["none", "message", "call", "turn"]
    """`message`: a user's message without an answer; `call`: calls without answers; `turn`: a turn
    that ends with a tool's answer."""
    invocation_id: str | None
    """The invocation that did not come to its end; what ADK's resumability takes."""
    calls: tuple[OpenCall, ...] = ()
    """Its calls without an answer, but for long-running ones and questions; also those of the
    invocations before it that did not come to their end either."""


Recover: TypeAlias = Literal["tell", "rollback", "resume"]
"""What to do with an interrupted invocation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """What a recovery found and did."""

    found: Interruption
    did: Literal["nothing", "told", "rolled back", "prepared"]
    """`told`: each open call has an answer now, the one that was kept of it or one that says that
    its outcome is unknown; a message or a turn without an end stands in the log, where the model
    sees it. `prepared`: calls have the answers that were kept, and the invocation can be resumed,
    with `runner.run_async(invocation_id=report.found.invocation_id, …)`."""
    restored: Restored | None = None
    """What was rolled back."""


def live_events(events: Sequence[Event]) -> list[Event]:
    """Returns the events that survive rewinds and restores, in order."""
    return [events[position] for position in live_positions(outline_of(events))]


def still_live(events: Sequence[Event], log: Sequence[Event]) -> list[Event]:
    """Returns those of some events that survive the rewinds and restores of a whole log.

    They may have been loaded before these, or without them. What the log does not know stays.
    """
    known, live = map(_origins, (log, live_events(log)))
    return [event for event in live_events(events) if _origins([event]) - (known - live)]


def _origins(events: Sequence[Event]) -> set[str]:
    """Returns the ids under which events were appended first."""
    return {str((event.custom_metadata or {}).get(COPY_OF, event.id)) for event in events}


def shown_events(events: Sequence[Event]) -> list[Event]:
    """Returns the live events and the last restore's note, behind which facts are read anew."""
    log = outline_of(events)
    notes = (position for position, special in log.specials.items() if special.is_note)
    newest = max(notes, default=None)
    shown = live_positions(log)
    if newest is not None:
        insort(shown, newest)
    return [events[position] for position in shown]


def outline_of(events: Sequence[Event]) -> Outline:
    """Returns a log without what was said."""
    log = Outline()
    for event in events:
        log.add(event.id, event.invocation_id, _special(event))
    return log


def find_interruption(events: Sequence[Event], answered: Container[str] = ()) -> Interruption:
    """Returns what a crash left open, in the live part of a whole log.

    A call that is declared long-running, and ADK's own questions (confirmation, credentials, input,
    which are declared so too), wait for somebody and are not open in this sense.

    The log is read from its end, back to an invocation that came to its own: what a crash left open
    before that one, the conversation has gone on without.

    Args:
        events: The log.
        answered: Ids of calls whose answers are about to be appended.
    """
    live = _unsettled(events, answered)
    calls = _open_calls(live, answered, _answers_in(live))
    if calls:
        kept = kept_answers(_live_backwards(events), {call.call_id for call in calls})
        calls = tuple(replace(call, kept=kept.get(call.call_id)) for call in calls)
        return Interruption(kind="call", invocation_id=calls[-1].invocation_id, calls=calls)
    if not live:
        return Interruption(kind="none", invocation_id=None)
    last = live[-1]
    if last.author == "user":
        return Interruption(kind="message", invocation_id=last.invocation_id)
    waits = any(event.long_running_tool_ids for event in _of(last.invocation_id, live))
    if last.get_function_responses() and not last.is_final_response() and not waits:
        return Interruption(kind="turn", invocation_id=last.invocation_id)
    return Interruption(kind="none", invocation_id=None)


def _unsettled(events: Sequence[Event], answered: Container[str]) -> list[Event]:
    """Returns the live events with content behind the last invocation that came to its end."""
    tail: list[Event] = []
    run: list[Event] = []
    for event in _live_backwards(events):
        if not event.content or not event.content.parts:
            continue
        if run and event.invocation_id != run[-1].invocation_id:
            if _is_settled(run, [*tail, *run], answered):
                break
            tail += run
            run = []
        run.append(event)
    tail += run
    tail.reverse()
    return tail


def _live_backwards(events: Sequence[Event]) -> Iterator[Event]:
    """Yields the events that survive rewinds and restores, newest first, as far as asked for."""
    position = len(events) - 1
    while position >= 0:
        event = events[position]
        special = _special(event) or Special()
        if special.rewinds_before:
            target = special.rewinds_before
            begins = (i for i, one in enumerate(events) if one.invocation_id == target)
            position = min(next(begins, position), position)
        elif not special.is_note:
            yield event
        position -= 1


def _is_settled(run: Sequence[Event], seen: Sequence[Event], answered: Container[str]) -> bool:
    """Whether a run of one invocation's events, newest first, has an end and no open call."""
    newest = run[0]
    has_end = newest.author != "user" and newest.is_final_response()
    return has_end and not _open_calls(run, answered, _answers_in(seen))


def closing_events(calls: Sequence[OpenCall]) -> list[Event]:
    """Returns one answer for each call: what was kept of it, or that its outcome is unknown."""
    return [_closing_event(call, call.author) for call in calls]


def preparing_events(calls: Sequence[OpenCall]) -> list[Event]:
    """Returns the answers that were kept, so that ADK resumes with the other calls alone.

    ADK 2.13 takes a call event for done with when its own agent has said anything behind it, so
    that these come from the user, as the answers of long-running calls do.
    """
    return [_closing_event(call, "user") for call in calls if call.kept is not None]


def _closing_event(call: OpenCall, author: str) -> Event:
    response, actions = (
        (dict(_OUTCOME_UNKNOWN), EventActions()) if call.kept is None else answer_of(call.kept)
    )
    answer = types.FunctionResponse(id=call.call_id, name=call.name, response=response)
    return Event(
        invocation_id=call.invocation_id,
        author=author,
        branch=call.branch,
        actions=actions,
        content=types.Content(role="user", parts=[types.Part(function_response=answer)]),
        custom_metadata={RECOVERED: True},
    )


def artifacts_note(checkpoint_id: str, versions: Mapping[str, int]) -> Event:
    """Returns the event that says which versions a restore has put artifacts back as."""
    return Event(
        invocation_id=f"restore-{uuid.uuid4()}",
        author="user",
        actions=EventActions(artifact_delta=dict(versions)),
        custom_metadata={RESTORED: checkpoint_id},
    )


def needs_fresh_facts(events: Sequence[Event]) -> bool:
    """Whether a restore, a fork or a recovery is newer than all that an agent has said there."""
    for event in reversed(events):
        metadata = event.custom_metadata or {}
        if not metadata.keys().isdisjoint((RESTORED, RECOVERED, FORKED)):
            return True
        if event.content and event.author != "user" and COPY_OF not in metadata:
            return False
    return False


def _answers_in(events: Sequence[Event]) -> set[str | None]:
    return {answer.id for event in events for answer in event.get_function_responses()}


def _open_calls(
    live: Sequence[Event], answered: Container[str], closed: Container[str | None]
) -> tuple[OpenCall, ...]:
    return tuple(
        OpenCall(call.id, call.name or "", event.invocation_id, event.author, event.branch)
        for event in live
        for call in event.get_function_calls()
        if call.id
        and call.id not in closed
        and call.id not in answered
        and call.id not in (event.long_running_tool_ids or ())
    )


def _of(invocation_id: str, live: Sequence[Event]) -> list[Event]:
    return [event for event in live if event.invocation_id == invocation_id]


def _special(event: Event) -> Special | None:
    return _special_of(event.actions.rewind_before_invocation_id, event.custom_metadata or {})


def special_in(text: str | None) -> Special | None:
    """Returns what a stored event says of rewinds, copies and restores; None if nothing."""
    if not text or not any(mark in text for mark in _MARKS):
        return None
    data = json.loads(text)
    rewinds_before = (data.get("actions") or {}).get("rewind_before_invocation_id")
    return _special_of(rewinds_before, data.get("custom_metadata") or {})


def _special_of(rewinds_before: Any, metadata: Mapping[str, Any]) -> Special | None:
    copy_of = metadata.get(COPY_OF)
    special = Special(
        rewinds_before if isinstance(rewinds_before, str) else None,
        copy_of if isinstance(copy_of, str) else None,
        RESTORED in metadata,
    )
    return special if any(special) else None
