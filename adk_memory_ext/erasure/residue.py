"""Finding pieces of erased values among bytes that belong to nothing.

A value may have been stored as UTF-8 or UTF-16, bare or inside JSON text, and its beginning may be
overwritten. So any piece of 12 bytes counts, and of a shorter value all of it, unless the same
bytes stand in a live row too. Standard library only: it runs in a process of its own.
"""

from __future__ import annotations

import json
import sys
import time
from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

SHORTEST: Final = 8
"""Bytes of the shortest value that can be told from chance."""
PIECE: Final = 12
"""Bytes of a longer value that count as residue."""
ENCODINGS: Final = ("utf-8", "utf-16-le", "utf-16-be")

_STRIDE: Final = 4
"""Windows of 8 bytes at every 4th byte of a value: one of them lies in any piece of 11 bytes."""
_CHUNK: Final = 1 << 20
_LARGEST_SET: Final = 1_500_000
"""Windows in memory at once, some 100 bytes each."""
ENOUGH: Final = 16
"""Values with residue after which the search ends: all of it has to go anyway."""


def forms(value: str) -> frozenset[bytes]:
    """Returns how a text may have been stored: bare, and inside JSON text of both kinds."""
    texts = {
        value,
        json.dumps(value)[1:-1],
        json.dumps(value, ensure_ascii=False)[1:-1],
    }
    return frozenset(
        text.encode(encoding, "surrogatepass") for text in texts for encoding in ENCODINGS
    )


def is_searchable(value: str) -> bool:
    """Whether a text is long enough to be told from chance."""
    return len(value.encode("utf-8", "surrogatepass")) >= SHORTEST


class ResidueSearch:
    """Looks for pieces of values in regions of bytes, many at once.

    Args:
        values: What to look for; `residue` and `shared` name them by their place in this list.
        is_live: Whether bytes stand in a live row.
        patience_seconds: After this the search gives up, as everything can be removed without it;
            None: never.
    """

    def __init__(
        self,
        values: Sequence[str],
        is_live: Callable[[bytes], bool],
        *,
        patience_seconds: float | None = None,
    ) -> None:
        self.residue: Final[set[int]] = set()
        """The values of which a piece was found that no live row holds."""
        self.shared: Final[set[int]] = set()
        """The values of which a piece was found that a live row holds too."""
        self.gave_up = False
        """Whether there was too much to look at, so that anything may be left."""
        self.searched_bytes = 0
        owned = [
            (index, form)
            for index, value in enumerate(values)
            for form in sorted(forms(value))
            if len(form) >= SHORTEST
        ]
        self._owners: Final = [index for index, _form in owned]
        self._lengths: Final = [len(form) for _index, form in owned]
        self._starts: Final = list(accumulate(map(_room, self._lengths), initial=0))
        self._blob: Final = b"".join(form.ljust(_room(len(form)), b"\0") for _index, form in owned)
        self._windows: Final = len(self._blob) // _STRIDE
        self._set: Final = set(_aligned(self._blob)) if self._windows <= _LARGEST_SET else None
        self._is_live: Final = is_live
        self._verdicts: Final[dict[bytes, bool]] = {}
        self._done: Final[set[int]] = set()
        self._deadline: Final = (
            None if patience_seconds is None else time.monotonic() + patience_seconds
        )

    def run(self, regions: Iterable[bytes]) -> None:
        """Searches the regions."""
        for chunk in _chunks(regions):
            self.searched_bytes += len(chunk)
            for window in sorted(self._common_windows(chunk)):
                if len(self.residue) >= ENOUGH or self._is_late():
                    return
                if window not in self._done:
                    self._examine(chunk, window.to_bytes(8, sys.byteorder))
            if self._is_late():
                return

    def _is_late(self) -> bool:
        if self._deadline is not None and time.monotonic() > self._deadline:
            self.gave_up = True
        return self.gave_up

    def _common_windows(self, chunk: bytes) -> set[int]:
        """Returns the windows of values that stand in a chunk, wherever they stand there."""
        if not self._blob:
            return set()
        if self._set is not None:
            known = self._set
            return {
                window for view in _everywhere(chunk) for window in known.intersection(view)
            } - {0}
        present = {window for view in _everywhere(chunk) for window in view}
        return present.intersection(_aligned(self._blob)) - {0}

    def _examine(self, chunk: bytes, window: bytes) -> None:
        """Judges the pieces around a window that a value and a chunk share."""
        owners: dict[bytes, set[int]] = {}
        for place in _places(self._blob, window):
            number = bisect_right(self._starts, place) - 1
            start, length = self._starts[number], self._lengths[number]
            for piece in _pieces(self._blob, place, start, start + length, min(PIECE, length)):
                owners.setdefault(piece, set()).add(self._owners[number])
        lengths = {len(piece) for piece in owners}
        there: set[bytes] = set()
        for place in _places(chunk, window):
            for length in lengths:
                there.update(_pieces(chunk, place, 0, len(chunk), length))
        for piece in owners.keys() & there:
            verdict = self._verdicts.get(piece)
            if verdict is None:
                verdict = self._verdicts[piece] = self._is_live(piece)
            if verdict:
                self.shared.update(owners[piece])
            else:
                self._note(owners[piece] - self.residue)

    def _note(self, owners: set[int]) -> None:
        """Counts values as residue; no other piece of theirs needs a look."""
        self.residue.update(owners)
        for number, owner in enumerate(self._owners):
            if owner in owners:
                form = self._blob[self._starts[number] : self._starts[number + 1]]
                self._done.update(_aligned(form))


def _room(length: int) -> int:
    """Returns how many bytes a form takes among the others: it ends with zeros, 8 at most."""
    return (length + 8) // 8 * 8


def _aligned(blob: bytes) -> Iterator[int]:
    """Gives the windows at every 4th byte."""
    yield from memoryview(blob).cast("Q")
    yield from memoryview(blob[_STRIDE : len(blob) - _STRIDE]).cast("Q")


def _everywhere(chunk: bytes) -> Iterator[memoryview]:
    """Gives the windows at every byte."""
    for offset in range(min(8, len(chunk))):
        yield memoryview(chunk[offset : len(chunk) - (len(chunk) - offset) % 8]).cast("Q")


def _places(text: bytes, piece: bytes) -> Iterator[int]:
    place = text.find(piece)
    while place >= 0:
        yield place
        place = text.find(piece, place + 1)


def _pieces(text: bytes, place: int, start: int, end: int, length: int) -> Iterator[bytes]:
    """Gives the pieces of a length that hold the window of 8 bytes at a place."""
    for first in range(max(start, place + 8 - length), min(place, end - length) + 1):
        yield text[first : first + length]


def _chunks(regions: Iterable[bytes]) -> Iterator[bytes]:
    """Gives the regions with zeros between them, about a mebibyte at once."""
    parts: list[bytes] = []
    size = 0
    for region in regions:
        parts.append(region)
        size += len(region) + 8
        if size >= _CHUNK:
            yield bytes(8).join(parts)
            parts, size = [], 0
    if parts:
        yield bytes(8).join(parts)
