"""Clauses about an event's fields: what was appended is read back, to the last byte."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.genai import types

from conformance.samples import sample, whole
from conversation import answered, called, exactly, said

if TYPE_CHECKING:
    from conformance.subject import Subject


async def _check_round_trip(subject: Subject, event: Event) -> None:
    given = event.model_dump_json(exclude={"timestamp"})
    session = await subject.create("s")
    await subject.append(session, event)

    (stored,) = (await subject.read(session)).events

    assert stored == event
    assert json.loads(stored.model_dump_json(exclude={"timestamp"})) == json.loads(given)


async def test_every_field_of_an_event_is_kept(subject: Subject) -> None:
    """An event with a value in every field that ADK has, actions and all, is read back equal."""
    actions = whole(EventActions, requested_auth_configs={}, state_delta={"step": 1})
    event = whole(Event, actions=actions, partial=False, timestamp=1_900_000_000.123456)
    assert event.long_running_tool_ids
    assert event.grounding_metadata
    assert event.usage_metadata

    await _check_round_trip(subject, event)


@pytest.mark.parametrize("role", ["user", "model"])
async def test_every_kind_of_part_is_kept(subject: Subject, role: str) -> None:
    """Text, thoughts, files, bytes, calls, answers, code and all other parts come back equal."""
    parts = [
        types.Part(**{name: sample(field.annotation)})
        for name, field in types.Part.model_fields.items()
    ]
    parts.append(types.Part(text="I think", thought=True, thought_signature=bytes(range(256))))
    assert len(parts) > 15
    event = said("")
    event.content = types.Content(role=role, parts=parts)

    await _check_round_trip(subject, event)


async def test_inline_bytes_are_kept(subject: Subject) -> None:
    """An attachment of any bytes, text or not, comes back byte for byte."""
    blobs = [b"", b"\x00", bytes(range(256)) * 300, "résumé".encode("utf-16"), b"\xff\xfe\xfd"]
    event = said("")
    event.content = types.Content(
        role="user",
        parts=[types.Part.from_bytes(data=blob, mime_type="image/png") for blob in blobs],
    )

    await _check_round_trip(subject, event)


async def test_a_tool_call_and_its_answer_are_kept(subject: Subject) -> None:
    """A call's id, name and arguments and the answer's response come back with their types."""
    value = {"hours": [6, 2.5, None, True], "履歷": {"空": ""}, "id": "0017", "n": 10**18}
    session = await subject.create("s")
    call, answer = called("plan", value), answered("plan", value, state={"plan": value})
    call.long_running_tool_ids = {"call-plan", "another"}

    await subject.append(session, call, answer)

    stored = (await subject.read(session)).events
    assert stored == [call, answer]
    assert exactly(stored[0].get_function_calls()[0].args) == exactly(value)
    assert exactly(stored[1].get_function_responses()[0].response) == exactly(value)


async def test_any_text_is_kept(subject: Subject) -> None:
    """What was said comes back character for character, in any script and of any length."""
    said_texts = [
        *(
            "",
            " \n\t ",
            "résumé",
            "e\u0301 is not é",
            "履歷表：三年經驗",
            "🧑‍🏫👨‍👩‍👧",
            "\u202eRTL\u200f",
        ),
        "x" * 1_000_000,
    ]
    event = said("")
    event.content = types.Content(role="user", parts=[types.Part(text=text) for text in said_texts])

    await _check_round_trip(subject, event)
