"""Answers of parallel calls, kept one by one: ADK stores them as one event when all have finished.

A process that dies before that event leaves tools that have run, and nothing that says what they
answered. What is kept travels in the `custom_metadata` of events without content.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.genai import types

from adk_memory_ext.state_changes import change_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from google.adk.tools.tool_context import ToolContext

FINISHED: Final = "memext_finished"
"""Where the `custom_metadata` of an event keeps the answer of a call, and what its tool changed."""


def keeping_event(tool_context: ToolContext, result: Any) -> Event | None:
    """Returns the event that keeps a tool's answer and its changes.

    None where nothing has to be kept: of a call that is alone in its event, ADK stores the answer
    at once. None too where it cannot be kept as it is: an answer that is no JSON, a change such as
    `Increment`.
    """
    call_id = tool_context.function_call_id
    events = reversed(tool_context.session.events)
    asked = next((e for e in events if any(c.id == call_id for c in e.get_function_calls())), None)
    if asked is None or len(asked.get_function_calls()) == 1:
        return None
    actions = tool_context.actions
    if any(change_in(value) is not None for value in actions.state_delta.values()):
        return None
    response = result if isinstance(result, dict) else {"result": result}
    answer = types.FunctionResponse(response=response)
    try:
        kept = {
            "id": call_id,
            "response": answer.model_dump(mode="json")["response"],
            "actions": actions.model_dump(mode="json", exclude_defaults=True),
        }
    except ValueError:
        return None
    return Event(
        invocation_id=tool_context.invocation_id,
        author=tool_context.agent_name,
        branch=asked.branch,
        custom_metadata={FINISHED: kept},
    )


def kept_answers(newest_first: Iterable[Event], call_ids: set[str]) -> dict[str, Mapping[str, Any]]:
    """Returns what is kept of some calls, by their ids.

    Args:
        newest_first: The live events of a log; is read back to the oldest of the calls.
        call_ids: The calls.
    """
    missing, found = set(call_ids), dict[str, "Mapping[str, Any]"]()
    for event in newest_first if missing else ():
        kept = (event.custom_metadata or {}).get(FINISHED)
        if isinstance(kept, dict) and kept.get("id") in call_ids:
            found.setdefault(kept["id"], kept)
        missing.difference_update(call.id or "" for call in event.get_function_calls())
        if not missing:
            break
    return found


def answer_of(kept: Mapping[str, Any]) -> tuple[dict[str, Any], EventActions]:
    """Returns an answer that was kept, and what the tool changed."""
    return dict(kept["response"]), EventActions.model_validate(kept["actions"])
