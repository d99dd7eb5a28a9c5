"""Taking personal values out of what an app says beside a session: summaries, references."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from adk_memory_ext.policy.redaction import SHORTEST_SECRET, secret_texts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

PERSONAL: Final = "[personal]"
"""What stands in place of a personal value."""
PIECE: Final = 12
"""Characters that two texts share only when one quotes the other."""


@dataclass(frozen=True)
class Personal:
    """Takes personal values out of what is said."""

    texts: frozenset[str]
    """What gives the values away."""

    @classmethod
    def of(cls, values: Iterable[Any]) -> Personal:
        """Returns what takes these values out: their leaves, and the names that objects have.

        A name that could be that of a field (`email`) says nothing; `Ann Lee` does.
        """
        known = list(values)
        names = (name for name in _names(known) if not name.isidentifier())
        long_names = {name for name in names if len(name.strip()) >= SHORTEST_SECRET}
        return cls(frozenset(secret_texts(known)) | long_names)

    @cached_property
    def _pieces(self) -> Mapping[int, set[str]]:
        """What is hidden, by its length: short texts as a whole, pieces of the others."""
        pieces: dict[int, set[str]] = {}
        for text in self.texts:
            length = min(len(text), PIECE)
            pieces.setdefault(length, set()).update(_cut(text, length))
        return pieces

    def out_of_text(self, text: str) -> str:
        """Returns a text without them, and without pieces of 12 characters of them."""
        return _without(text, self._pieces)

    def out_of_leaf(self, value: Any) -> Any:
        """Returns an id, or another leaf, as it is; without what is personal where it says that.

        A short personal value inside a longer id is chance: only the whole of it counts, or a
        piece of 12 characters.
        """
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            return value
        if str(value) in self.texts:
            return PERSONAL
        if not isinstance(value, str):
            return value
        return _without(value, {PIECE: self._pieces.get(PIECE, set())})


def _names(value: Any) -> Iterator[str]:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if isinstance(value, dict):
        yield from (name for name in value if isinstance(name, str))
    for item in inner:
        yield from _names(item)


def _cut(text: str, length: int) -> Iterator[str]:
    return (text[at : at + length] for at in range(len(text) - length + 1))


def _without(text: str, pieces: Mapping[int, set[str]]) -> str:
    hidden = bytearray(len(text))
    for length, known in pieces.items():
        for at, piece in enumerate(_cut(text, length)):
            if piece in known:
                hidden[at : at + length] = b"\x01" * length
    return "".join(_shown(text, hidden))


def _shown(text: str, hidden: bytearray) -> Iterator[str]:
    for at, character in enumerate(text):
        if not hidden[at]:
            yield character
        elif at == 0 or not hidden[at - 1]:
            yield PERSONAL
