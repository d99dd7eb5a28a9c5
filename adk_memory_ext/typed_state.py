"""The typed values in sessions' state, and which of them were changed in place.

ADK (google-adk 2.13.0) watches dicts and lists that a context hands out, and no other object; so
their JSON text from the last read or append is compared with the one at the next append.
"""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import uuid
import weakref
from typing import TYPE_CHECKING, Any, Final

from pydantic_core import PydanticSerializationError, from_json, to_json

from adk_memory_ext.state_changes import change_in

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    from google.adk.sessions.session import Session

    from adk_memory_ext.policy import StatePolicy

_UNCHANGING: Final = (
    *(str, int, float, bool, bytes, enum.Enum, uuid.UUID, decimal.Decimal),
    *(dt.date, dt.time, dt.timedelta, type(None)),
)
"""Types whose values nobody can change in place."""


class TypedState:
    """Gives sessions typed values and remembers what they were.

    Args:
        policy: Says which keys have a type or a default.
    """

    def __init__(self, policy: StatePolicy) -> None:
        self._policy = policy
        # By the session object's id, for a session is compared by value and cannot be hashed.
        self._seen: Final[dict[int, dict[str, tuple[Any, bytes]]]] = {}

    def give(self, session: Session) -> None:
        """Gives a session that was just loaded its types and defaults."""
        if self._policy.shapes_reads:
            session.state = self._policy.shaped(session.state)
            self.remember(session, session.state)

    def keep(self, session: Session, live: Mapping[str, Any], keys: Iterable[str]) -> None:
        """Has a session hold, after an append, what a reload would give.

        Args:
            session: The session.
            live: Its state before the append: an object that a tool put there stays that object.
            keys: What was written.
        """
        for key in self._policy.typed_keys(keys):
            if key not in session.state:
                continue
            typed = self._policy.shaped({key: session.state[key]})[key]
            own = live.get(key)
            is_same = type(own) is type(typed) and _text(own) == _text(typed)
            session.state.update({key: own if is_same else typed})
        self.remember(session, keys)

    def remember(self, session: Session, keys: Iterable[str]) -> None:
        """Notes what typed values are by now."""
        number = id(session)
        if number not in self._seen:
            self._seen[number] = {}
            weakref.finalize(session, self._seen.pop, number, None)
        seen = self._seen[number]
        values = dict(session.state)
        for key in self._policy.typed_keys(list(keys)):
            value = values.get(key)
            if isinstance(value, _UNCHANGING) or change_in(value) is not None:
                seen.pop(key, None)
            else:
                seen[key] = (value, _text(value))

    def changed_in_place(self, session: Session, delta: Container[str]) -> dict[str, Any]:
        """Returns the typed values that were changed in place and are not in a delta."""
        seen = self._seen.get(id(session))
        if not seen:
            return {}
        values = dict(session.state)
        return {
            key: value
            for key, (value, text) in seen.items()
            if key not in delta and values.get(key) is value and _text(value) != text
        }

    def take_back(self, session: Session) -> None:
        """Undoes what was changed in place, or every later append would be refused too."""
        changed = self.changed_in_place(session, ())
        for key in changed:
            text = self._seen[id(session)][key][1]
            session.state.update(self._policy.shaped({key: from_json(text)}))
        self.remember(session, changed)


def _text(value: Any) -> bytes:
    try:
        return to_json(value, by_alias=True)
    except PydanticSerializationError:
        return b""
