"""What a history is made of: contents with what is known of them, and steps that stay together."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from google.genai import types

Fate: TypeAlias = Literal[
    "kept", "superseded", "clamped", "cleared", "dropped", "added", "filtered"
]
"""What became of a content on its way to the model."""

OTHER_AGENTS_WORDS: Final = "For context:"
"""What ADK 2.13 begins another agent's turn with, which it presents as a user's."""
PLACEHOLDER: Final = "[Earlier messages were left out.]"
"""What a user's turn says that stands where one is needed and none is left."""
CONTINUATION: Final = (
    "Continue processing previous requests as instructed. Exit or provide a summary if no more"
    " outputs are needed."
)
"""What ADK 2.13 itself puts behind a history that ends with a model's turn."""
PAYLOADS: Final = (
    "text",
    "inline_data",
    "file_data",
    "executable_code",
    "code_execution_result",
    "tool_call",
    "tool_response",
    "thought_signature",
)
"""What a part may hold besides a call or its answer."""
_NOBODYS_WORDS: Final = (OTHER_AGENTS_WORDS, PLACEHOLDER, CONTINUATION)


@dataclass(frozen=True, slots=True)
class Entry:
    """One content of a request."""

    content: types.Content
    event_id: str | None = None
    """The event that it came from; None where that cannot be told."""
    is_question: bool = False
    """Whether a person said it."""
    is_marked: bool = False
    """Whether the application wants it kept."""
    is_pending: bool = False
    """Whether the answers that it has not got yet are waited for."""
    stands_for: tuple[str, ...] = ()
    """The events that it sums up."""
    fate: Fate = "kept"

    def changed(self, content: types.Content, fate: Fate) -> Entry:
        """Returns the entry with another content."""
        return replace(self, content=content, fate=fate)


@dataclass(slots=True)
class Step:
    """Contents that stay together: a call with its answers, code with its result, or one alone."""

    entries: tuple[Entry, ...]
    """As they came."""
    invocation: int
    """The number of the question that it belongs to; 0 before the first."""
    tokens: int
    now: tuple[Entry, ...] = ()
    """As they go to the model."""
    is_pinned: bool = False
    """Whether it stays as it came."""
    fate: Fate = "kept"
    tools: tuple[str, ...] = field(default=())
    """The tools whose answers it holds."""

    @property
    def is_question(self) -> bool:
        """Whether a person said it."""
        return any(entry.is_question for entry in self.entries)

    @property
    def is_summary(self) -> bool:
        """Whether it stands for events that are not in the request."""
        return any(entry.stands_for for entry in self.entries)


def calls(content: types.Content) -> list[types.FunctionCall]:
    """Returns the function calls of a content."""
    return [part.function_call for part in content.parts or () if part.function_call]


def answers(content: types.Content) -> list[types.FunctionResponse]:
    """Returns the function responses of a content."""
    return [part.function_response for part in content.parts or () if part.function_response]


def as_entries(contents: Iterable[types.Content]) -> list[Entry]:
    """Returns entries for contents of which nothing else is known.

    What has a user's role and is neither a tool's answer nor another agent's turn is a question.
    """
    return [Entry(content, is_question=looks_asked(content)) for content in contents]


def looks_asked(content: types.Content) -> bool:
    """Whether a content looks like a person's words."""
    parts = content.parts or []
    return (
        content.role == "user"
        and not answers(content)
        and not any(part.code_execution_result for part in parts)
        and not (parts and (parts[0].text or "").startswith(_NOBODYS_WORDS))
    )


def steps_of(
    entries: Sequence[Entry],
    count: Callable[[types.Content], int],
    is_pinned: Callable[[tuple[Entry, ...]], bool],
) -> Iterator[Step]:
    """Yields the steps of a valid history, in order."""
    invocation = 0
    previous_asked = False
    for group in _groups(entries):
        asked = any(entry.is_question for entry in group)
        if asked and not previous_asked:
            invocation += 1
        previous_asked = asked
        yield Step(
            entries=group,
            invocation=invocation,
            tokens=sum(count(entry.content) for entry in group),
            now=group,
            is_pinned=is_pinned(group),
            tools=tuple(a.name or "" for entry in group for a in answers(entry.content)),
        )


def _groups(entries: Sequence[Entry]) -> Iterator[tuple[Entry, ...]]:
    group: list[Entry] = []
    for entry in entries:
        if group and not _goes_on(group, entry):
            yield tuple(group)
            group = []
        group.append(entry)
    if group:
        yield tuple(group)


def _goes_on(group: Sequence[Entry], entry: Entry) -> bool:
    """Whether an entry can only be understood together with those before it."""
    parts = entry.content.parts or []
    if answers(entry.content):
        return bool(calls(group[-1].content))
    begun = [part for before in group for part in before.content.parts or ()]
    if any(part.code_execution_result for part in parts) and not any(
        part.executable_code for part in parts
    ):
        return any(part.executable_code for part in begun)
    asked = {part.tool_call.id for part in begun if part.tool_call}
    told = {part.tool_response.id for part in parts if part.tool_response}
    return bool(asked & told)
