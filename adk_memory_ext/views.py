"""`scoped(…)`: one mapping per scope, with keys without prefixes, over ADK's own state."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING, Any, Final

from google.adk.sessions.session import Session
from google.adk.sessions.state import State

from adk_memory_ext.errors import ConfigurationError, StateRejectedError
from adk_memory_ext.policy.key_check import scope_of
from adk_memory_ext.state_changes import Remove, change_in

if TYPE_CHECKING:
    from collections.abc import Mapping


class ScopeView(MutableMapping[str, Any]):
    """The keys of one scope, without its prefix.

    Over ADK's `State` a write lands in the event's delta as any other write does, and a deletion
    is a `Remove` there: gone for who reads through a view, and from the store with the append.

    Args:
        state: ADK's `State`, or the dict of a `Session`.
        scope: `session`, `user`, `app` or `temp`.
    """

    def __init__(self, state: State | dict[str, Any], scope: str) -> None:
        self._state = state
        self._scope = scope
        self._prefix = "" if scope == "session" else f"{scope}:"

    def __getitem__(self, key: str) -> Any:
        name = self._name(key)
        if name not in self._state or _is_removed(self._state[name]):
            raise KeyError(key)
        return self._state[name]

    def __setitem__(self, key: str, value: Any) -> None:
        self._state[self._name(key)] = value

    def __delitem__(self, key: str) -> None:
        name = self._name(key)
        if name not in self._state or _is_removed(self._state[name]):
            raise KeyError(key)
        if isinstance(self._state, dict):
            del self._state[name]
        else:
            self._state[name] = Remove()

    def __iter__(self) -> Iterator[str]:
        whole = self._whole()
        return iter(
            [
                key.removeprefix(self._prefix)
                for key, value in whole.items()
                if scope_of(key) == self._scope and not _is_removed(value)
            ]
        )

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, key: object) -> bool:
        if not isinstance(key, str):
            return False
        try:
            self[key]
        except (KeyError, StateRejectedError):
            return False
        return True

    def __repr__(self) -> str:
        return f"<{self._prefix or 'session'} view of {len(self)} keys>"

    def _whole(self) -> Mapping[str, Any]:
        return self._state if isinstance(self._state, dict) else self._state.to_dict()

    def _name(self, key: str) -> str:
        if not isinstance(key, str):
            raise StateRejectedError(f"<{type(key).__name__}>", "is a key that is no text")
        if scope_of(self._prefix + key) != self._scope:
            raise StateRejectedError(key, "has the prefix of another scope; use the view of it")
        return self._prefix + key


class ScopedViews:
    """The four scopes of one state.

    Args:
        state: ADK's `State` (as `tool_context.state`), a `Session`, or a plain dict.

    Raises:
        ConfigurationError: When it is something else.
    """

    def __init__(self, state: State | Session | dict[str, Any]) -> None:
        held = state.state if isinstance(state, Session) else state
        if not isinstance(held, State | dict):
            raise ConfigurationError(
                f"scoped() takes a State, a Session or a dict, not a {type(state).__name__}."
            )
        self.session: Final = ScopeView(held, "session")
        """Keys of this session."""
        self.user: Final = ScopeView(held, "user")
        """Keys of the user, in all sessions of the app."""
        self.app: Final = ScopeView(held, "app")
        """Keys that every user of the app sees."""
        self.temp: Final = ScopeView(held, "temp")
        """Keys of this invocation, which are never stored."""


def scoped(state: State | Session | dict[str, Any]) -> ScopedViews:
    """Returns views without prefixes: `scoped(tool_context.state).user["locale"] = "nl"`.

    Over a `Session` or a dict, writes and deletions change that object itself.

    Raises:
        ConfigurationError: When `state` is something else.
    """
    return ScopedViews(state)


def _is_removed(value: Any) -> bool:
    return isinstance(change_in(value), Remove)
