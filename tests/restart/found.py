"""What a process that has just started finds, compared with what was acknowledged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from google.adk.events.event import Event

from conversation import replay
from restart.child import finished
from restart.children import INITIAL, read


@dataclass(frozen=True)
class Found:
    """A session as a new process reads it."""

    events: list[Event]
    state: dict[str, Any]
    user_state: dict[str, Any]
    app_state: dict[str, Any]
    """Keys with `app:`."""

    def assert_consistent(self) -> None:
        """Fails unless the state of the only session is what its events make of it."""
        expected = replay(self.events, INITIAL)
        assert self.state == expected
        assert self.user_state == {
            key.removeprefix("user:"): value
            for key, value in expected.items()
            if key.startswith("user:")
        }
        assert self.app_state == {
            key: value for key, value in expected.items() if key.startswith("app:")
        }


def found(url: str) -> dict[str, Found]:
    """Returns all sessions of the user, by their ids."""
    *sessions, app = finished(read, url)
    return {
        session["id"]: Found(
            [Event.model_validate_json(text) for text in session["events"]],
            session["state"],
            session["user state"],
            app["app state"],
        )
        for session in sessions
    }


def acknowledged(heard: list[str]) -> list[Event]:
    """Returns the events that a child said it was given back."""
    return [Event.model_validate_json(text) for text in heard]
