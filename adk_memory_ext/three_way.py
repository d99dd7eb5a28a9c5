"""What two writers made of one value, put together so that neither is lost."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Any

from adk_memory_ext.state_changes import MISSING


def merged(base: Any, theirs: Any, ours: Any) -> Any:
    """Returns the value that has both changes: that of `base` to `theirs` and to `ours`.

    Numbers add up what each added. Lists get what we added behind what they made, and lose what we
    took out. Sets likewise, also where `base` is the list as which a set is stored; a tuple counts
    as a list. Dicts are merged key by key. A key that was absent counts as 0, as an empty list,
    set or dict. For anything else, and where the types differ, ours is the last word.

    Args:
        base: What both began from; `MISSING` if nothing was there.
        theirs: What the other writer made of it.
        ours: What we made of it, not knowing of theirs.
    """
    if theirs is MISSING or theirs == base:
        return ours
    if _are(int | float, theirs, ours) and (base is MISSING or _are(int | float, base)):
        return theirs + (ours - (0 if base is MISSING else base))
    if _are(dict, theirs, ours) and (base is MISSING or _are(dict, base)):
        return _dicts({} if base is MISSING else base, theirs, ours)
    start = [] if base is MISSING else base
    if _are(list | tuple, start, theirs, ours):
        return _lists(start, theirs, ours)
    # A set is stored as a list, so that one tool may have read a list and another one made a set.
    if _are(list | tuple | AbstractSet, start, theirs, ours):
        with contextlib.suppress(TypeError):  # an item cannot be in a set
            return _sets(*(set(map(_as_item, value)) for value in (start, theirs, ours)))
    return ours


def _are(kind: Any, *values: Any) -> bool:
    return all(isinstance(value, kind) and not isinstance(value, bool) for value in values)


def _as_item(value: Any) -> Any:
    """Returns an item of a set: a tuple for the list as which it is stored."""
    return tuple(map(_as_item, value)) if isinstance(value, list) else value


def _lists(base: Iterable[Any], theirs: Iterable[Any], ours: Iterable[Any]) -> list[Any]:
    added, rest = [], list(base)
    for item in ours:
        if item in rest:
            rest.remove(item)
        else:
            added.append(item)
    result = list(theirs)
    for item in rest:  # what we took out
        if item in result:
            result.remove(item)
    return result + added


def _sets(base: set[Any], theirs: set[Any], ours: set[Any]) -> set[Any]:
    return (theirs | (ours - base)) - (base - ours)


def _dicts(base: dict[Any, Any], theirs: dict[Any, Any], ours: dict[Any, Any]) -> dict[Any, Any]:
    result = dict(theirs)
    for key, value in ours.items():
        if key not in base or base[key] != value:
            result[key] = merged(base.get(key, MISSING), theirs.get(key, MISSING), value)
    for key in base:
        if key not in ours:
            result.pop(key, None)
    return result
