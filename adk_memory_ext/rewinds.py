"""What the state was before an invocation, as `Runner.rewind_async` of ADK 2.13 works it out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from google.adk.sessions.state import State

if TYPE_CHECKING:
    from google.adk.sessions.session import Session

_NOT_OF_THE_SESSION: Final = (State.APP_PREFIX, State.USER_PREFIX, State.TEMP_PREFIX)


def rewinding_delta(session: Session, invocation_id: str) -> dict[str, Any]:
    """Returns the delta that brings session-scope state back to before an invocation.

    Keys that no earlier event has set are None in it, as ADK writes them.
    """
    before: dict[str, Any] = {}
    for event in session.events:
        if event.invocation_id == invocation_id:
            break
        for key, value in event.actions.state_delta.items():
            if key.startswith(_NOT_OF_THE_SESSION):
                continue
            if value is None:
                before.pop(key, None)
            else:
                before[key] = value
    state = session.state
    delta = {key: value for key, value in before.items() if key not in state or state[key] != value}
    for key in state:
        if key not in before and not key.startswith(_NOT_OF_THE_SESSION):
            delta[key] = None
    return delta
