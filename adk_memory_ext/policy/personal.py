"""Taking personal values out of what an app says beside a session: summaries, references."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from adk_memory_ext.policy.redaction import SHORTEST_SECRET, secret_texts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PERSONAL: Final = "[personal]"
"""What stands in place of a personal value."""
PIECE: Final = 12
"""Characters that two texts share only when one quotes the other."""


def personal_texts(values: Iterable[Any]) -> frozenset[str]:
    """Returns the texts that give personal values away: leaves, and names that objects have.

    A name that could be that of a field (`email`) says nothing; `Ann Lee` does.
    """
    known = list(values)
    names = (name for name in _names(known) if not name.isidentifier())
    return frozenset(secret_texts(known)) | {n for n in names if len(n.strip()) >= SHORTEST_SECRET}


def _names(value: Any) -> Iterator[str]:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if isinstance(value, dict):
        yield from (name for name in value if isinstance(name, str))
    for item in inner:
        yield from _names(item)


def out_of_text(text: str, personal: Iterable[str]) -> str:
    """Returns a text without personal values, and without pieces of 12 characters of them."""
    hidden = bytearray(len(text))
    for value in personal:
        if len(value) < PIECE:
            _hide(text, {value}, len(value), hidden)
        else:
            pieces = {text[at : at + PIECE] for at in range(len(text) - PIECE + 1)}
            starts = range(len(value) - PIECE + 1)
            shared = {piece for at in starts if (piece := value[at : at + PIECE]) in pieces}
            _hide(text, shared, PIECE, hidden)
    return "".join(_shown(text, hidden))


def _hide(text: str, pieces: set[str], length: int, hidden: bytearray) -> None:
    if pieces:
        for at in range(len(text) - length + 1):
            if text[at : at + length] in pieces:
                hidden[at : at + length] = b"\x01" * length


def _shown(text: str, hidden: bytearray) -> Iterator[str]:
    for at, character in enumerate(text):
        if not hidden[at]:
            yield character
        elif at == 0 or not hidden[at - 1]:
            yield PERSONAL


def out_of_leaf(value: Any, personal: frozenset[str]) -> Any:
    """Returns an id, or another leaf, as it is; without what is personal where it says that.

    A short personal value inside a longer id is chance: only the whole of it counts, or a piece of
    12 characters.
    """
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return value
    if str(value) in personal:
        return PERSONAL
    if not isinstance(value, str):
        return value
    return out_of_text(value, (text for text in personal if len(text) >= PIECE))
