"""What a model accepts as its input, judged from the contents alone.

Written from what Gemini, Anthropic and OpenAI refuse, with nothing of the package under test: the
input is looked at as the JSON that would be sent.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from google.genai import types

CALL = "function_call"
ANSWER = "function_response"


def faults(contents: Sequence[types.Content]) -> list[str]:
    """Returns everything that is wrong with a model's input; an empty list if it is valid."""
    turns = [content.model_dump(exclude_none=True) for content in contents]
    found = list(_shapes(turns))
    if not found:
        found += [*_pairs(turns), *_code(turns), *_server_side(turns)]
    return found


def _shapes(turns: Sequence[dict[str, Any]]) -> Iterable[str]:
    if not turns:
        yield "no contents"
        return
    if turns[0].get("role") != "user":
        yield "the first content is not a user's"
    if turns[-1].get("role") != "user":
        yield "the last content is neither a user's nor an answer"
    for number, turn in enumerate(turns):
        if turn.get("role") not in ("user", "model"):
            yield f"{number}: role {turn.get('role')!r}"
        if not turn.get("parts"):
            yield f"{number}: no parts"
        for part in turn.get("parts", ()):
            yield from (f"{number}: {fault}" for fault in _part(part, turn.get("role")))


def _part(part: dict[str, Any], role: str | None) -> Iterable[str]:
    if not any(part[name] not in (None, "", b"") for name in part if name != "thought"):
        yield "an empty part"
    if CALL in part and role != "model":
        yield "a user calls"
    if ANSWER in part and role != "user":
        yield "a model answers itself"


def _pairs(turns: Sequence[dict[str, Any]]) -> Iterable[str]:
    for number, turn in enumerate(turns):
        before = turns[number - 1] if number else None
        asked = _named(before, CALL)
        answered = _named(turn, ANSWER)
        if answered != asked:
            yield f"{number}: calls {dict(asked)} got answers {dict(answered)}"
        if _named(turn, CALL) and (before is None or before["role"] != "user"):
            yield f"{number}: a call follows on a model's turn"
    if left := _named(turns[-1], CALL):
        yield f"the end: calls {dict(left)} got no answers"


def _named(turn: dict[str, Any] | None, kind: str) -> Counter[tuple[str, str | None]]:
    parts = turn["parts"] if turn else ()
    return Counter((part[kind]["name"], part[kind].get("id")) for part in parts if kind in part)


def _code(turns: Sequence[dict[str, Any]]) -> Iterable[str]:
    running = 0
    for number, turn in enumerate(turns):
        for part in turn["parts"]:
            running += "executable_code" in part
            if "code_execution_result" in part:
                running -= 1
                if running < 0:
                    yield f"{number}: a result of code that is not there"


def _server_side(turns: Sequence[dict[str, Any]]) -> Iterable[str]:
    asked = {p["tool_call"]["id"] for t in turns for p in t["parts"] if "tool_call" in p}
    told = {p["tool_response"]["id"] for t in turns for p in t["parts"] if "tool_response" in p}
    if asked != told:
        yield f"server-side tool calls {sorted(asked ^ told)} are not whole"
