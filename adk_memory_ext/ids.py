"""Ids: any Unicode text that fits ADK's columns, checked before a database sees it."""

from __future__ import annotations

from adk_memory_ext.adk_tables import ID_LENGTH, NAME_LENGTH
from adk_memory_ext.errors import InvalidIdError
from adk_memory_ext.json_values import is_storable
from adk_memory_ext.records import SessionId


def session_identity(app_name: str, user_id: str, session_id: str) -> SessionId:
    """Returns the identity of a session, checked.

    Raises:
        InvalidIdError: When a part is empty, longer than ADK's columns or no text.
    """
    check_owner(app_name, user_id)
    _check("session id", session_id, ID_LENGTH)
    return SessionId(app_name, user_id, session_id)


def check_owner(app_name: str, user_id: str | None) -> None:
    """Checks whose data is asked for; None is every user.

    Raises:
        InvalidIdError: When an id is empty, longer than ADK's columns or no text.
    """
    _check("app name", app_name, ID_LENGTH)
    if user_id is not None:
        _check("user id", user_id, ID_LENGTH)


def check_event(event_id: str, invocation_id: str) -> None:
    """Checks the ids of an event; its invocation id may be empty.

    Raises:
        InvalidIdError: When an id is empty, longer than ADK's columns or no text.
    """
    _check("event id", event_id, ID_LENGTH)
    _check("invocation id", invocation_id or "-", NAME_LENGTH)


def check_title(title: str) -> None:
    """Checks the title of a session.

    Raises:
        InvalidIdError: When it is empty, longer than 256 characters or no text.
    """
    _check("title", title, NAME_LENGTH)


def _check(what: str, value: object, longest: int) -> None:
    if not isinstance(value, str):
        raise InvalidIdError(
            f"The {what} is of the type {type(value).__name__}; nothing was written."
        )
    if not value:
        raise InvalidIdError(f"The {what} is empty; nothing was written.")
    if len(value) > longest:
        raise InvalidIdError(
            f"The {what} has {len(value):,} characters, and the tables hold {longest};"
            " nothing was written."
        )
    if not is_storable(value):
        raise InvalidIdError(
            f"The {what} holds a NUL character or a lone surrogate; nothing was written."
        )
