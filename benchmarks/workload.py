"""The messages that every contender stores: the same ones, from a seed."""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.genai import types

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SEED: Final = 20_260_101
EVENT_BYTES: Final = 1_700
"""Size of one event as the JSON that ADK stores."""
AUTHOR: Final = "coach"
STATE_KEYS: Final = 3
"""Keys of the session's state that each event changes."""

_TEXT_CHARACTERS: Final = 1_310
_START: Final = 1_767_225_600.0  # 2026-01-01, UTC epoch seconds
_STEP_SECONDS: Final = 0.001  # databases keep microseconds, so every event has a time of its own
_WORDS: Final = (
    *("the", "plan", "asks", "for", "two", "years", "of", "practice", "with", "queries", "and"),
    *("pipelines", "so", "we", "compare", "what", "resume", "shows", "each", "demand", "note"),
    *("which", "evidence", "is", "missing", "or", "older", "than", "that", "candidate"),
)


@dataclass(frozen=True, kw_only=True)
class Message:
    """One message of a conversation, in no framework's own terms."""

    id: str
    number: int
    """Position in its conversation, from 0."""
    time: float
    """UTC epoch seconds; each message's is later than the one before."""
    text: str
    state: Mapping[str, Any]
    """The keys that it changes, with their new values."""

    def to_event(self) -> Event:
        """Returns the message as ADK's event."""
        return Event(
            id=self.id,
            author=AUTHOR,
            invocation_id=f"e-{self.id}",
            timestamp=self.time,
            content=types.Content(role="model", parts=[types.Part(text=self.text)]),
            actions=EventActions(state_delta=dict(self.state)),
        )


def messages(conversation: str) -> Iterator[Message]:
    """Yields the messages of a conversation without end; the same ones for the same name."""
    source = random.Random(f"{SEED} {conversation}")
    number = 0
    while True:
        text = " ".join(source.choices(_WORDS, k=_TEXT_CHARACTERS // 3))
        yield Message(
            id=str(uuid.UUID(int=source.getrandbits(128), version=4)),
            number=number,
            time=_START + number * _STEP_SECONDS,
            text=text[:_TEXT_CHARACTERS],
            state={
                "step": number,
                "score": round(source.random(), 3),
                "topic": source.choice(_WORDS),
            },
        )
        number += 1


def padded_state(size_bytes: int) -> dict[str, Any]:
    """Returns a session's state of about that size as JSON, in 10 keys."""
    source = random.Random(SEED)
    length = size_bytes // 10 - 14
    return {
        f"field_{index}": " ".join(source.choices(_WORDS, k=length // 3))[:length]
        for index in range(10)
    }
