"""The state of a loaded session, which notices what ADK does not.

ADK stores what stands in an event's state delta. A value that is written to `session.state`
directly, or changed in place there, is in no delta and vanishes without a word; and of parallel
tools that read a value, wait, and write it back, the last one wins. The dict that a loaded session
has for its state notices both, by one look at who calls it: ADK's own code notes its writes in a
delta, other code does not. That look at the calling frame is the only thing here that is not
public API; `tests/test_watched_state.py` tells when ADK changes what it rests on.

ADK's contexts record what is changed inside a list or dict that they have handed out, but only
while it has a JSON form equal to it (google-adk 2.13.0): after `state["days"].append(date.today())`
or the append of a tuple they record nothing. Such a change is owed like a direct write.
"""

from __future__ import annotations

import copy
import logging
import sys
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Self

from pydantic_core import to_jsonable_python

from adk_memory_ext.state_changes import MISSING
from adk_memory_ext.three_way import merged

if TYPE_CHECKING:
    from _collections_abc import dict_items, dict_values
    from collections.abc import Callable, Collection, Mapping

_logger: Final = logging.getLogger(__name__)

_TEMPORARY: Final = "temp:"
_NOTING: Final = ("google.adk.", "adk_memory_ext.")
"""Packages whose writes stand in a delta, or come from one."""
_CONTEXTS: Final = "google.adk.sessions.state"
"""The module of the state that contexts have."""
_IMMUTABLE: Final = (str, int, float, bool, bytes, tuple, frozenset, type(None))
_CONTAINERS: Final = (list, dict, set)


class ToolReads:
    """What one call of a tool has read of sessions' state: what its writes began from."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, str], tuple[WatchedState, Any, Any]] = {}

    def saw(self, state: WatchedState, key: str, value: Any) -> None:
        """Notes a value that the tool was given, or has written."""
        self._seen[id(state), key] = (state, value, _as_it_is(value))

    def base(self, state: WatchedState, key: str, default: Any) -> Any:
        """Returns what the tool saw last; `default` if it did not look."""
        return self._seen[id(state), key][2] if (id(state), key) in self._seen else default

    def finish(self) -> None:
        """Merges what the tool changed in place where another tool has put a new value."""
        for (_, key), (state, value, base) in self._seen.items():
            state.merge_in_place(key, value, base)


current_tool: Final[ContextVar[ToolReads | None]] = ContextVar(
    "adk_memory_ext_current_tool", default=None
)
"""The call of a tool that the current code belongs to; set where ADK runs each in its own task."""


class WatchedState(dict[str, Any]):
    """A session's state, with a note of what no delta holds yet.

    Args:
        values: The state.
        session_id: Names the session in warnings.
        is_typed: Whether somebody else looks for changes inside the value of a key.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        session_id: str = "",
        is_typed: Callable[[str], bool] = lambda _key: False,
    ) -> None:
        super().__init__(values)
        self._session_id = session_id
        self._is_typed = is_typed
        self._written: dict[str, Any] = {}  # with what was there before
        self._handed_out: dict[str, tuple[Any, Any]] = {}
        self._lent: dict[str, tuple[Any, Any]] = {}  # by ADK's contexts, which look themselves
        self._merged: set[str] = set()

    # -- what the service asks ---------------------------------------------------------------

    def unsaved(self, delta: Mapping[str, Any]) -> dict[str, Any]:
        """Returns what was written directly or changed in place, and is not in `delta`.

        A key that was removed is `MISSING`.
        """
        return {key: copy.deepcopy(self._peek(key)) for key in self._owed() if key not in delta}

    def take_back(self) -> None:
        """Undoes what was written directly or changed in place since the last append."""
        for key, before in self._written.items():
            if before is MISSING:
                super().pop(key, None)
            else:
                super().__setitem__(key, before)
        self.saved(list(self._written))

    def merged_in(self, delta: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the values of those keys of `delta` that several tools wrote."""
        return {key: self._peek(key) for key in self._merged if key in delta and key in self}

    def saved(self, keys: Collection[str]) -> None:
        """Forgets what has become part of the log."""
        for notes in (self._written, self._handed_out, self._lent):
            if notes:
                for key in keys:
                    notes.pop(key, None)
        self._merged.difference_update(keys)

    def reload(self, values: Mapping[str, Any]) -> None:
        """Replaces the content by what is stored; values of `temp:` keys stay."""
        kept = {key: value for key, value in super().items() if key.startswith(_TEMPORARY)}
        super().clear()
        super().update(values)
        super().update(kept)
        self.saved([*self._written, *self._handed_out, *self._lent, *self._merged])

    def merge_in_place(self, key: str, value: Any, base: Any) -> None:
        """Merges the changes that were made inside `value` since it was like `base`."""
        current = self._peek(key)
        if current is value or value == base:
            return
        super().__setitem__(key, merged(base, current, value))
        self._merged.add(key)

    # -- what others do ----------------------------------------------------------------------

    def __getitem__(self, key: str) -> Any:
        """Returns the value, noting who was given it."""
        value = super().__getitem__(key)
        caller = _caller()
        self._note_read(key, value, direct=_is_direct(caller))
        if caller == _CONTEXTS and isinstance(value, dict | list):
            self._lend(key, value)
        return value

    def __contains__(self, key: object) -> bool:
        """Whether the key is there, noting who was told that it is not."""
        found = super().__contains__(key)
        tool = current_tool.get()
        if not found and tool is not None and isinstance(key, str):
            tool.saw(self, key, MISSING)
        return found

    def get(self, key: str, default: Any = None) -> Any:
        """Returns the value, noting who was given it."""
        value = super().get(key, default)
        if super().__contains__(key):
            self._note_read(key, value, direct=_is_direct(_caller()))
        return value

    def items(self) -> dict_items[str, Any]:
        """Returns the items, noting who was given them."""
        self._note_reads(direct=_is_direct(_caller()))
        return super().items()

    def values(self) -> dict_values[str, Any]:
        """Returns the values, noting who was given them."""
        self._note_reads(direct=_is_direct(_caller()))
        return super().values()

    def __setitem__(self, key: str, value: Any) -> None:
        """Sets the value, merging it with what another tool has put there meanwhile."""
        self._write(key, value, direct=_is_direct(_caller()))

    def update(self, *others: Any, **values: Any) -> None:
        """Sets values, merging them with what another tool has put there meanwhile."""
        direct = _is_direct(_caller())
        for key, value in dict(*others, **values).items():
            self._write(key, value, direct=direct)

    def __ior__(self, other: Any) -> Self:  # type: ignore[override,misc]
        """Sets values."""
        direct = _is_direct(_caller())
        for key, value in dict(other).items():
            self._write(key, value, direct=direct)
        return self

    def setdefault(self, key: str, default: Any = None) -> Any:
        """Returns the value, which is set to `default` if there is none."""
        if not super().__contains__(key):
            self._write(key, default, direct=_is_direct(_caller()))
        value = super().__getitem__(key)
        self._note_read(key, value, direct=_is_direct(_caller()))
        return value

    def __delitem__(self, key: str) -> None:
        """Removes the key."""
        before = self._peek(key)
        super().__delitem__(key)
        self._note_write(key, before, direct=_is_direct(_caller()))

    def pop(self, key: str, *default: Any) -> Any:
        """Removes the key and returns its value."""
        before = self._peek(key)
        value = super().pop(key, *default)
        if before is not MISSING:
            self._note_write(key, before, direct=_is_direct(_caller()))
        return value

    def popitem(self) -> tuple[str, Any]:
        """Removes the newest key and returns it with its value."""
        key, value = super().popitem()
        self._note_write(key, value, direct=_is_direct(_caller()))
        return key, value

    def clear(self) -> None:
        """Removes every key."""
        direct = _is_direct(_caller())
        before = dict(self)
        super().clear()
        for key, value in before.items():
            self._note_write(key, value, direct=direct)

    def __deepcopy__(self, memo: dict[int, Any]) -> WatchedState:
        """Returns a copy that shares nothing and owes nothing."""
        return WatchedState(copy.deepcopy(dict(self), memo), self._session_id, self._is_typed)

    def __copy__(self) -> WatchedState:
        """Returns a copy that owes nothing."""
        return WatchedState(self, self._session_id, self._is_typed)

    def __reduce__(self) -> tuple[type[dict[str, Any]], tuple[dict[str, Any]]]:
        """Travels between processes as a plain dict."""
        return dict, (dict(self),)

    def __del__(self) -> None:
        """Warns of writes that nobody stored."""
        if lost := self._owed():
            _logger.warning(
                "Session %s was dropped with unsaved direct writes to its state: %s. Use"
                " tool_context.state, callback_context.state or sessions.state.update instead of"
                " session.state.",
                self._session_id,
                ", ".join(sorted(map(str, lost))),
            )

    # -- notes -------------------------------------------------------------------------------

    def _owed(self) -> list[str]:
        """Returns the keys that were written directly and do not hold what they held before."""
        for key, (value, before) in self._handed_out.items():
            if self._peek(key) is value and _differs(value, before):
                self._written.setdefault(key, before)
        for key, (value, before) in self._lent.items():
            if self._peek(key) is value and _differs(value, before) and not _has_json_form(value):
                self._written.setdefault(key, before)
        return [key for key, before in self._written.items() if not _same(self._peek(key), before)]

    def _peek(self, key: str) -> Any:
        return super().get(key, MISSING)

    def _note_reads(self, *, direct: bool) -> None:
        for key, value in super().items():
            self._note_read(key, value, direct=direct)

    def _note_read(self, key: str, value: Any, *, direct: bool) -> None:
        if direct:
            if not (
                key in self._handed_out
                or isinstance(value, _IMMUTABLE)
                or str(key).startswith(_TEMPORARY)
            ):
                _keep_copy(self._handed_out, key, value)
        elif (tool := current_tool.get()) is not None:
            tool.saw(self, key, value)

    def _lend(self, key: str, value: Any) -> None:
        """Notes a value that a context hands out."""
        if not (key in self._lent or key.startswith(_TEMPORARY) or self._is_typed(key)):
            _keep_copy(self._lent, key, value)

    def _note_write(self, key: str, before: Any, *, direct: bool) -> None:
        if direct and not str(key).startswith(_TEMPORARY):
            self._written.setdefault(key, self._handed_out.get(key, (None, before))[1])

    def _write(self, key: str, value: Any, *, direct: bool) -> None:
        tool = None if direct else current_tool.get()
        current = self._peek(key)
        if tool is not None:
            base = tool.base(self, key, current)
            tool.saw(self, key, value)
            is_shared = current is value and isinstance(value, _CONTAINERS)
            if not is_shared and not _same(current, base):
                value = merged(base, current, value)
                self._merged.add(key)
        super().__setitem__(key, value)
        self._note_write(key, current, direct=direct)


def _caller() -> str:
    """Returns the module that has called a method of `WatchedState`."""
    return str(sys._getframe(2).f_globals.get("__name__", ""))  # noqa: SLF001  # see the module


def _is_direct(caller: str) -> bool:
    """Whether a module notes its writes nowhere."""
    return not caller.startswith(_NOTING)


def _as_it_is(value: Any) -> Any:
    """Returns a copy that a change of the container does not reach."""
    return value.copy() if isinstance(value, _CONTAINERS) else value


def _keep_copy(copies: dict[str, tuple[Any, Any]], key: str, value: Any) -> None:
    """Notes a value with what it is now, unless that cannot be told later."""
    try:
        before = copy.deepcopy(value)
        if value != before:
            return
    except Exception:  # noqa: BLE001  # a lock, say: whoever reads it need not care
        return
    copies[key] = (value, before)


def _differs(value: Any, before: Any) -> bool:
    try:
        return bool(value != before)
    except Exception:  # noqa: BLE001  # it can be told that it was equal to its copy once
        return True


def _has_json_form(value: Any) -> bool:
    """Whether ADK takes a value that was changed in place for one that it can record."""
    try:
        return bool(to_jsonable_python(value, inf_nan_mode="null") == value)
    except Exception:  # noqa: BLE001  # as ADK does
        return False


def _same(one: Any, other: Any) -> bool:
    return one is other or (one is not MISSING and other is not MISSING and bool(one == other))
