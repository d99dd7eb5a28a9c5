"""What trimmers make of the same random histories: valid or not, inside the budget or not.

The histories are those of the package's own tests (`tests/histories.py`), as ADK's requests; only
those that a model would take as they are, that are larger than the budget, and that every framework
can say: code that a model ran has no message elsewhere. Each trimmer is set up as its documentation
recommends, and counts tokens as ours does. What it gives back is judged by the checker of the tests
(`tests/model_input.py`), which knows nothing of any trimmer.

How much of a prompt a provider's cache can serve is measured over one conversation that grows.
"""

from __future__ import annotations

import importlib.metadata
import json
import logging
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from google.adk.models.llm_request import LlmRequest
from google.adk.plugins.context_filter_plugin import ContextFilterPlugin
from google.genai import types

from adk_memory_ext.errors import BudgetExceededError
from adk_memory_ext.history import HistoryPolicy, trim_contents
from adk_memory_ext.history.tokens import content_tokens, text_tokens
from benchmarks.rounds import Measured

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from benchmarks.effort import Effort

BUDGET: Final = 2_000
"""Tokens; nothing is kept for an answer."""
INVOCATIONS: Final = 3
"""Kept by `ContextFilterPlugin`; as many as fit into the budget on average."""
ITEMS: Final = 16
"""Kept by `SessionSettings(limit=…)`; the same."""
OURS: Final = "adk_memory_ext"
INVALID: Final = "trim_invalid"
OVER: Final = "trim_over_budget"
LOST: Final = "trim_question_lost"
FILLED: Final = "trim_filled"
CACHEABLE: Final = "trim_cacheable"
_TESTS: Final = Path(__file__).parent.parent / "tests"

Contents = list[types.Content]


@dataclass(frozen=True)
class Piece:
    """What goes as one message or item in other frameworks: parts of one content."""

    content: int
    """The index of its content."""
    parts: tuple[types.Part, ...]
    call_ids: tuple[str, ...] = ()
    """Of the calls that it makes, or of the one that it answers."""

    @property
    def is_answer(self) -> bool:
        """Whether it answers a call."""
        return self.parts[0].function_response is not None

    @property
    def text(self) -> str:
        """What it says."""
        return "\n".join(part.text for part in self.parts if part.text)

    @property
    def calls(self) -> list[types.FunctionCall]:
        """The calls that it makes."""
        return [part.function_call for part in self.parts if part.function_call]


def pieces_of(contents: Contents) -> list[Piece]:
    """Returns a valid history in pieces; each answer is one, and bears the id of its call."""
    pieces: list[Piece] = []
    open_calls: list[tuple[str | None, str]] = []
    for index, content in enumerate(contents):
        parts = content.parts or []
        answers = [part for part in parts if part.function_response]
        for part in answers:
            name = part.function_response.name if part.function_response else None
            place = next(at for at, (called, _id) in enumerate(open_calls) if called == name)
            pieces.append(Piece(index, (part,), (open_calls.pop(place)[1],)))
        rest = tuple(part for part in parts if not part.function_response)
        calls = [part.function_call for part in rest if part.function_call]
        made = [(call.name, f"call-{index}-{number}") for number, call in enumerate(calls)]
        open_calls += made
        if rest:
            pieces.append(Piece(index, rest, tuple(call_id for _name, call_id in made)))
    return pieces


def contents_of(contents: Contents, kept: Sequence[Piece]) -> Contents:
    """Returns what is left of a history when only some of its pieces are."""
    left: dict[int, list[types.Part]] = {}
    for piece in kept:
        left.setdefault(piece.content, []).extend(piece.parts)
    return [types.Content(role=contents[at].role, parts=parts) for at, parts in left.items()]


# --- The trimmers


async def _ours(contents: Contents) -> Contents:
    policy = HistoryPolicy(budget_tokens=BUDGET, output_reserve_tokens=0, margin=0)
    return trim_contents(contents, policy)


async def _adk(contents: Contents) -> Contents:
    request = LlmRequest(contents=contents)
    plugin: Any = ContextFilterPlugin(num_invocations_to_keep=INVOCATIONS)
    await plugin.before_model_callback(callback_context=None, llm_request=request)
    return request.contents


async def _langchain(contents: Contents, **options: Any) -> Contents:
    from langchain_core.messages import AIMessage, HumanMessage, ToolMessage, trim_messages

    pieces = pieces_of(contents)
    messages: list[Any] = []
    for number, piece in enumerate(pieces):
        mark = str(number)
        if piece.is_answer:
            messages.append(ToolMessage("answer", tool_call_id=piece.call_ids[0], id=mark))
        elif contents[piece.content].role == "model":
            calls = [
                {"name": call.name, "args": call.args or {}, "id": call_id}
                for call, call_id in zip(piece.calls, piece.call_ids, strict=True)
            ]
            messages.append(AIMessage(piece.text, tool_calls=calls, id=mark))
        else:
            messages.append(HumanMessage(piece.text, id=mark))

    def count(some: list[Any]) -> int:
        kept = [pieces[int(message.id)] for message in some]
        return sum(map(content_tokens, contents_of(contents, kept)))

    trimmed = trim_messages(
        messages, max_tokens=BUDGET, strategy="last", token_counter=count, **options
    )
    return contents_of(contents, [pieces[int(message.id)] for message in trimmed])


async def _langchain_default(contents: Contents) -> Contents:
    return await _langchain(contents)


async def _langchain_recommended(contents: Contents) -> Contents:
    return await _langchain(contents, start_on="human", end_on=("human", "tool"))


async def _openai_limit(contents: Contents) -> Contents:
    from agents.memory import SQLiteSession

    pieces = pieces_of(contents)
    session = SQLiteSession("history")  # in memory
    try:
        await session.add_items([_item(contents, piece, at) for at, piece in enumerate(pieces)])
        items: list[Any] = list(await session.get_items(limit=ITEMS))
    finally:
        session.close()
    return contents_of(contents, [pieces[int(item["id"])] for item in items])


async def _openai_outputs(contents: Contents) -> Contents:
    from agents.extensions.tool_output_trimmer import ToolOutputTrimmer
    from agents.run_config import CallModelData, ModelInputData

    pieces = pieces_of(contents)
    items = [_item(contents, piece, at) for at, piece in enumerate(pieces)]
    data: Any = CallModelData(
        ModelInputData(items, None), agent=None, context=None
    )  # it looks at the items alone
    left: list[Any] = ToolOutputTrimmer()(data).input
    return contents_of(contents, [_with_output(pieces[int(item["id"])], item) for item in left])


def _item(contents: Contents, piece: Piece, number: int) -> Any:
    """Returns a piece as an item of OpenAI's responses; of several calls, the first."""
    mark = str(number)
    if piece.is_answer:
        answer = piece.parts[0].function_response
        output = json.dumps(answer.response if answer else None, ensure_ascii=False)
        kind = "function_call_output"
        return {"type": kind, "call_id": piece.call_ids[0], "output": output, "id": mark}
    if piece.calls:
        call = piece.calls[0]
        return {
            "type": "function_call",
            "call_id": piece.call_ids[0],
            "name": call.name,
            "arguments": json.dumps(call.args),
            "id": mark,
        }
    role = "assistant" if contents[piece.content].role == "model" else "user"
    return {"role": role, "content": piece.text, "id": mark}


def _with_output(piece: Piece, item: Any) -> Piece:
    """Returns a piece with the output that a trimmer left of it."""
    answer = piece.parts[0].function_response
    if answer is None or item["output"] == json.dumps(answer.response, ensure_ascii=False):
        return piece
    short = answer.model_copy(update={"response": {"output": item["output"]}})
    return Piece(piece.content, (types.Part(function_response=short),), piece.call_ids)


@dataclass(frozen=True)
class Trimmer:
    """A trimmer, and the distribution that it comes from."""

    trim: Callable[[Contents], Awaitable[Contents]]
    package: str = "adk-memory-ext"


_TRIMMERS: Final = {
    OURS: Trimmer(_ours),
    f"ADK ContextFilterPlugin({INVOCATIONS})": Trimmer(_adk),
    "LangChain trim_messages": Trimmer(_langchain_default, "langchain-core"),
    "LangChain trim_messages, start_on and end_on": Trimmer(
        _langchain_recommended, "langchain-core"
    ),
    f"OpenAI Agents, session limit {ITEMS}": Trimmer(_openai_limit, "openai-agents"),
    "OpenAI Agents ToolOutputTrimmer": Trimmer(_openai_outputs, "openai-agents"),
}


def trimmers() -> dict[str, Callable[[Contents], Awaitable[Contents]]]:
    """Returns those whose distribution is installed, by name."""
    installed = {one.metadata["Name"] for one in importlib.metadata.distributions()}
    return {name: one.trim for name, one in _TRIMMERS.items() if one.package in installed}


# --- The histories, and the judge


async def histories(number: int) -> list[Contents]:
    """Returns random histories that a model would take and that are larger than the budget."""
    found: list[Contents] = []
    seed = 0
    while len(found) < number:
        seed += 1
        contents = (await _requested(seed)).contents
        ran_code = any(
            part.executable_code or part.code_execution_result
            for content in contents
            for part in content.parts or ()
        )
        is_large = sum(map(content_tokens, contents)) > BUDGET
        if is_large and not ran_code and not _faults(contents):
            found.append(contents)
    return found


def growing(turns: int) -> Iterator[Contents]:
    """Yields the history at each question of a conversation with tools, some 180 tokens a turn."""
    history: Contents = []
    for number in range(turns):
        history.append(types.UserContent(f"And what about item {number} of the list?"))
        yield list(history)
        call = types.FunctionCall(id=f"c{number}", name="search", args={"query": f"item {number}"})
        found = {"rows": [f"row {row} of item {number}" for row in range(8)]}
        told = types.FunctionResponse(id=call.id, name="search", response=found)
        history += [
            types.ModelContent(types.Part(function_call=call)),
            types.UserContent(types.Part(function_response=told)),
            types.ModelContent(f"About item {number} this much can be said. " * 4),
        ]


async def _requested(seed: int) -> LlmRequest:
    _reach_tests()
    from histories import random_log, request_of

    request: LlmRequest = await request_of(random_log(seed))
    return request


def _faults(contents: Contents) -> list[str]:
    _reach_tests()
    from model_input import faults

    found: list[str] = faults(contents)
    return found


def _reach_tests() -> None:
    if str(_TESTS) not in sys.path:
        sys.path.append(str(_TESTS))


def _newest_question(contents: Contents) -> str | None:
    for content in reversed(contents):
        texts = [part.text for part in content.parts or () if part.text]
        if content.role == "user" and texts:
            return texts[-1]
    return None


def _asks(contents: Contents, question: str | None) -> bool:
    parts: Iterator[types.Part] = (part for content in contents for part in content.parts or ())
    return question is None or any(part.text == question for part in parts)


async def measure_trimmers(
    url: Callable[[str], str], effort: Effort, step: Callable[[float], None]
) -> Measured:
    """Measures, over the same histories, how many each trimmer leaves wrong; 1 or 0 for each.

    `trim_invalid`, `trim_over_budget`, `trim_question_lost`, and `trim_filled`: the part of the
    budget that is used. A history that ours refuses, because what must stay does not fit, is left
    out. `trim_cacheable` is the part of all prompts of a growing conversation that begins as the
    prompt before.

    Args:
        url: Not used: nothing is stored.
        effort: How many histories.
        step: Is told the part that is done, from 0 to 1.
    """
    del url
    logging.getLogger("google_adk").setLevel(logging.ERROR)  # it warns of each unanswered call
    measured = Measured()
    given = trimmers()
    some = await histories(effort.trimmed_histories)
    for number, contents in enumerate(some):
        try:
            await _ours(contents)
        except BudgetExceededError:
            continue
        question = _newest_question(contents)
        for name, trim in given.items():
            left = await trim(list(contents))
            tokens = sum(map(content_tokens, left))
            measured.add(INVALID, name, float(bool(_faults(left))))
            measured.add(OVER, name, float(tokens > BUDGET))
            measured.add(LOST, name, float(not _asks(left, question)))
            measured.add(FILLED, name, tokens / BUDGET)
        step((number + 1) / len(some) / 2)
    for number, (name, trim) in enumerate(given.items(), 1):
        measured.add(CACHEABLE, name, await _cacheable(trim, effort.growing_turns))
        step(0.5 + number / len(given) / 2)
    return measured


async def _cacheable(trim: Callable[[Contents], Awaitable[Contents]], turns: int) -> float:
    total = same = 0
    before: list[str] = []
    for contents in growing(turns):
        sent = [content.model_dump_json(exclude_none=True) for content in await trim(contents)]
        sizes = [text_tokens(text) for text in sent]
        total += sum(sizes)
        for size, text, earlier in zip(sizes, sent, before, strict=False):
            if text != earlier:
                break
            same += size
        before = sent
    return same / total
