"""Makes a history one that a model accepts, whatever happened to it before.

Gemini refuses a request in which a tool's answers do not directly follow their calls, one for
each; in which a call follows on a turn of the model's; in which a content is empty; or that does
not begin and end with a user. Other providers refuse the first too. What is valid stays as it is,
object by object, so that a second pass changes nothing.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from google.genai import types

from adk_memory_ext.history.entries import (
    CONTINUATION,
    PAYLOADS,
    PLACEHOLDER,
    Entry,
    answers,
    calls,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

INTERRUPTED: Final[dict[str, Any]] = {
    "status": "interrupted",
    "note": "The call was interrupted. Whether it had an effect is unknown.",
}
PENDING: Final[dict[str, Any]] = {"status": "pending", "note": "The answer is not there yet."}

_USER: Final = "user"
_MODEL: Final = "model"
_Slot: TypeAlias = tuple[int, int]
"""A call: the index of its entry, and its place there."""
_DATA: Final = (*PAYLOADS, "function_call", "function_response")


def repaired(entries: Iterable[Entry]) -> list[Entry]:
    """Returns a valid history; see the module. What cannot be made valid is left out.

    A call without an answer gets one that says so; an answer without a call goes.
    """
    cleaned = [piece for entry in entries for piece in _cleaned(entry)]
    return _in_order(_paired(_without_orphans(cleaned)))


# --- Each content on its own


def _cleaned(entry: Entry) -> list[Entry]:
    """Returns an entry in roles that fit its parts, split where it takes two; [] if it is empty."""
    content = entry.content
    parts = [part for part in content.parts or () if _says_something(part)]
    if not parts:
        return []
    kinds = {_kind(part) for part in parts} - {"other"}
    if len(kinds) <= 1:
        role = _role(content.role, kinds)
        if role == content.role and len(parts) == len(content.parts or ()):
            return [entry]
        return [entry.changed(types.Content(role=role, parts=parts), entry.fate)]
    return [
        replace(entry, content=types.Content(role=_role(content.role, {kind}), parts=list(run)))
        for kind, run in groupby(parts, key=_kind)
    ]


def _says_something(part: types.Part) -> bool:
    return any(getattr(part, name) not in (None, "", b"") for name in _DATA)


def _kind(part: types.Part) -> Literal["call", "answer", "other"]:
    if part.function_call:
        return "call"
    return "answer" if part.function_response else "other"


def _role(role: str | None, kinds: set[Any]) -> str:
    if "call" in kinds:
        return _MODEL
    if "answer" in kinds:
        return _USER
    return _MODEL if role in (_MODEL, "assistant") else _USER


# --- Code and its result, the provider's own tools


def _without_orphans(entries: Sequence[Entry]) -> list[Entry]:
    """Leaves out results of code that is not there, and halves of the provider's own tool calls."""
    asked = {p.tool_call.id for e in entries for p in e.content.parts or () if p.tool_call}
    told = {p.tool_response.id for e in entries for p in e.content.parts or () if p.tool_response}
    both = asked & told
    waiting_codes = 0
    kept: list[Entry] = []
    for entry in entries:
        parts: list[types.Part] = []
        for part in entry.content.parts or ():
            if part.executable_code:
                waiting_codes += 1
            elif part.code_execution_result:
                if not waiting_codes:
                    continue
                waiting_codes -= 1
            server_side = part.tool_call or part.tool_response
            if server_side and server_side.id not in both:
                continue
            parts.append(part)
        if len(parts) == len(entry.content.parts or ()):
            kept.append(entry)
        elif parts:
            content = types.Content(role=entry.content.role, parts=parts)
            kept.append(replace(entry, content=content))
    return kept


# --- Calls and their answers


def _paired(entries: Sequence[Entry]) -> list[Entry]:
    """Puts the answers of each call directly behind it, and drops those without a call."""
    found = _matched(entries)
    result: list[Entry] = []
    index = 0
    while index < len(entries):
        entry = entries[index]
        asked = calls(entry.content)
        if not asked:
            if rest := _without_answers(entry):
                result.append(rest)
            index += 1
            continue
        result.append(entry)
        given = [found.get((index, place)) for place in range(len(asked))]
        following = entries[index + 1] if index + 1 < len(entries) else None
        if following is not None and _answers_exactly(following, given):
            result.append(following)
            index += 2
            continue
        result.append(_answer_entry(entry, asked, given, entries))
        index += 1
    return result


def _matched(entries: Sequence[Entry]) -> dict[_Slot, tuple[int, types.Part]]:
    """Returns which part answers which call: the last one of those that do.

    By id where there is one, else by name, as ADK strips the ids that it made itself.
    """
    by_id: dict[str, _Slot] = {}
    by_name: dict[str, list[_Slot]] = {}
    asked: dict[_Slot, types.FunctionCall] = {}
    found: dict[_Slot, tuple[int, types.Part]] = {}
    for index, entry in enumerate(entries):
        for place, call in enumerate(calls(entry.content)):
            asked[index, place] = call
            by_name.setdefault(call.name or "", []).append((index, place))
            if call.id:
                by_id[call.id] = (index, place)
        for part in entry.content.parts or ():
            answer = part.function_response
            if answer is None:
                continue
            if answer.id:
                slot = by_id.get(answer.id)
                if slot is not None and asked[slot].name != answer.name:
                    slot = None
            else:
                slot = _by_name(by_name.get(answer.name or "", []), found)
            if slot is not None:
                found[slot] = (index, _with_id(part, answer, asked[slot].id))
    return found


def _with_id(part: types.Part, answer: types.FunctionResponse, call_id: str | None) -> types.Part:
    """Returns an answer with the id of its call; itself if it has it."""
    if answer.id == call_id:
        return part
    named = answer.model_copy(update={"id": call_id})
    return part.model_copy(update={"function_response": named})


def _by_name(slots: Sequence[_Slot], found: dict[_Slot, Any]) -> _Slot | None:
    """Returns the first unanswered call of the newest turn that has one; else the newest call."""
    waiting = [slot for slot in slots if slot not in found]
    if not waiting:
        return slots[-1] if slots else None
    newest = waiting[-1][0]
    return next(slot for slot in waiting if slot[0] == newest)


def _answers_exactly(entry: Entry, given: Sequence[tuple[int, types.Part] | None]) -> bool:
    """Whether an entry holds the answers that belong there, and no other."""
    there = [id(part) for part in entry.content.parts or () if part.function_response]
    wanted = [id(item[1]) for item in given if item is not None]
    return len(wanted) == len(given) and sorted(there) == sorted(wanted)


def _answer_entry(
    entry: Entry,
    asked: Sequence[types.FunctionCall],
    given: Sequence[tuple[int, types.Part] | None],
    entries: Sequence[Entry],
) -> Entry:
    """Returns the answers of a turn's calls as one content."""
    parts: list[types.Part] = []
    source: Entry | None = None
    for call, item in zip(asked, given, strict=True):
        if item is None:
            said = PENDING if entry.is_pending else INTERRUPTED
            stub = types.FunctionResponse(id=call.id, name=call.name, response=dict(said))
            parts.append(types.Part(function_response=stub))
        else:
            parts.append(item[1])
            source = entries[item[0]]
    content = types.Content(role=_USER, parts=parts)
    if source is None:
        return Entry(content, is_marked=entry.is_marked, fate="added")
    return replace(source, content=content, is_question=False)


def _without_answers(entry: Entry) -> Entry | None:
    """Returns what an entry says besides answering; None if that is nothing."""
    if not answers(entry.content):
        return entry
    parts = [part for part in entry.content.parts or () if not part.function_response]
    if not parts:
        return None
    return replace(entry, content=types.Content(role=_USER, parts=parts))


# --- The order of turns


def _in_order(entries: Sequence[Entry]) -> list[Entry]:
    """Has a user begin and end, and something of a user's stand before each call."""
    result: list[Entry] = []
    for entry in entries:
        if needs_user(result[-1].content if result else None, entry.content):
            result.append(Entry(placeholder(), fate="added"))
        result.append(entry)
    if result and ends_openly(result[-1].content):
        result.append(Entry(continuation(), fate="added"))
    return result


def ends_openly(content: types.Content) -> bool:
    """Whether a history cannot end with this content: nobody has asked for more."""
    return content.role == _MODEL


def continuation() -> types.Content:
    """Returns a user's turn that asks for more."""
    return types.Content(role=_USER, parts=[types.Part(text=CONTINUATION)])


def needs_user(before: types.Content | None, content: types.Content) -> bool:
    """Whether a user's turn is missing between two contents; `before` is None at the beginning."""
    if content.role != _MODEL:
        return False
    return before is None or (before.role == _MODEL and bool(calls(content)))


def placeholder() -> types.Content:
    """Returns a user's turn that says that others were left out."""
    return types.Content(role=_USER, parts=[types.Part(text=PLACEHOLDER)])
