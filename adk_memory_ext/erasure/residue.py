"""Finding pieces of erased values among bytes that belong to nothing.

A value may have been stored as UTF-8 or UTF-16, bare or inside JSON text, and its beginning may be
overwritten. So any piece of 12 bytes counts, and of a shorter value all of it, unless the same
bytes stand in a live row too. Standard library only: it runs in a process of its own.
"""

from __future__ import annotations

import json
import re
import sys
import time
from bisect import bisect_right
from itertools import accumulate, chain
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
_FEW_CHUNKS: Final = 4
"""Before it is worth while to make a set of all windows of values."""
_FEW_WINDOWS: Final = 25
"""Which are found faster one by one."""
_FEW_GRAMS: Final = 64
"""Pieces of UTF-16 text by which the values that may hold them are picked out."""
_GRAM: Final = 4
"""Characters of a window in UTF-16."""
_ZEROS: Final = re.compile(b"\\0{8,}")
_PLAIN: Final = re.compile(r"[\t\n\r -~]*")
_PADDED: Final = re.compile(rb"(?:[\t\n\r -~]\0){5,}[\t\n\r -~]?|(?:\0[\t\n\r -~]){5,}")
"""What stands in any 12 bytes of plain ASCII as UTF-16, and what goes on like it."""
ENOUGH: Final = 16
"""Values with residue after which the search ends: all of it has to go anyway."""


def forms(value: str, *, padded: bool) -> set[bytes]:
    """Returns how a text may have been stored: bare, and inside JSON text of both kinds.

    Args:
        value: The text.
        padded: UTF-16 of ASCII, of which every other byte is zero, and nothing else; or all but
            that. Bytes that have nothing of the kind need not be searched for it.
    """
    found: set[bytes] = set()
    for text in _texts(value):
        is_ascii = _PLAIN.fullmatch(text) is not None
        encodings = ENCODINGS[1:] if padded else ENCODINGS[:1] if is_ascii else ENCODINGS
        if is_ascii or not padded:
            found.update(text.encode(encoding, "surrogatepass") for encoding in encodings)
    return found


def _texts(value: str) -> set[str]:
    """Returns a text as it is, and as it stands inside JSON."""
    texts = {value}
    if not (value.isascii() and value.isprintable()) or '"' in value or "\\" in value:
        texts |= {json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
    return texts


def is_searchable(value: str) -> bool:
    """Whether a text is long enough to be told from chance."""
    return len(value.encode("utf-8", "surrogatepass")) >= SHORTEST


class _Forms:
    """Forms of values side by side, each with zeros behind it, and which value each is of."""

    def __init__(self, owned: Iterable[tuple[int, bytes]]) -> None:
        known = [(owner, form) for owner, form in owned if len(form) >= SHORTEST]
        self._owners: Final = [owner for owner, _form in known]
        self._lengths: Final = [len(form) for _owner, form in known]
        self._starts: Final = list(accumulate(map(_room, self._lengths), initial=0))
        self._blob: Final = b"".join(form.ljust(_room(len(form)), b"\0") for _owner, form in known)
        self._set: set[int] | None = None
        self._chunks = 0
        self._places: Final[dict[int, list[int]]] = {}

    def common_windows(self, chunk: bytes) -> set[int]:
        """Returns the windows that stand in a chunk too, wherever they stand there.

        From then on `pieces` knows them.
        """
        if not self._blob:
            return set()
        self._chunks += 1
        if self._chunks == _FEW_CHUNKS and len(self._blob) // _STRIDE <= _LARGEST_SET:
            self._set = set(_aligned(self._blob))
        if self._set is not None:
            common = set().union(*map(self._set.intersection, _everywhere(chunk))) - {0}
            self._find(common - self._places.keys())
            return common
        present = set().union(*_everywhere(chunk)) - {0}
        new = present - self._places.keys()
        return self._find_all(new) | (present & self._places.keys())

    def _find(self, windows: set[int]) -> None:
        """Looks for windows that are among the forms."""
        if len(windows) > _FEW_WINDOWS:
            self._find_all(windows)
            return
        for window in windows:
            places = _places(self._blob, window.to_bytes(8, sys.byteorder))
            self._places[window] = [at for at in places if at % _STRIDE == 0]

    def _find_all(self, windows: set[int]) -> set[int]:
        """Looks for windows in one go through the forms; returns those that are there."""
        found: set[int] = set()
        for offset, view in ((0, _view(self._blob)), (_STRIDE, _view(self._blob, _STRIDE))):
            for at, window in [(at, window) for at, window in enumerate(view) if window in windows]:
                self._places.setdefault(window, []).append(8 * at + offset)
                found.add(window)
        return found

    def pieces(self, window: int) -> dict[bytes, set[int]]:
        """Returns the pieces of forms that hold a window which was found, each with its owners."""
        owners: dict[bytes, set[int]] = {}
        for place in self._places.get(window, ()):
            number = bisect_right(self._starts, place) - 1
            start, length = self._starts[number], self._lengths[number]
            for piece in _pieces(self._blob, place, start, start + length, min(PIECE, length)):
                owners.setdefault(piece, set()).add(self._owners[number])
        return owners

    def windows_of(self, owners: set[int]) -> Iterator[int]:
        """Gives the windows of some values."""
        for number, owner in enumerate(self._owners):
            if owner in owners:
                yield from _aligned(self._blob[self._starts[number] : self._starts[number + 1]])


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
        self._values: Final = values
        self._forms: Final = self._made(range(len(values)), padded=False)
        self._padded: _Forms | None = None
        self._padded_chunks = 0
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
            self._search(chunk, self._forms)
            if grams := _grams(chunk):
                self._search(chunk, self._padded_forms(grams))
            if len(self.residue) >= ENOUGH or self._is_late():
                return

    def _made(self, values: Iterable[int], *, padded: bool) -> _Forms:
        """Returns the forms of values that are named by their places."""
        return _Forms(
            (index, form)
            for index in values
            for form in sorted(forms(self._values[index], padded=padded))
        )

    def _padded_forms(self, grams: set[str]) -> _Forms:
        """Returns forms as UTF-16 of the values that may hold one of these pieces, or of all."""
        self._padded_chunks += 1
        is_much = len(grams) > _FEW_GRAMS or self._padded_chunks == _FEW_CHUNKS
        if is_much and self._padded is None:
            self._padded = self._made(range(len(self._values)), padded=True)
        if self._padded is not None:
            return self._padded
        return self._made(
            (
                index
                for index, value in enumerate(self._values)
                if any(gram in text for text in _texts(value) for gram in grams)
            ),
            padded=True,
        )

    def _search(self, chunk: bytes, known: _Forms) -> None:
        windows = known.common_windows(chunk)
        for window in sorted(windows):
            if len(self.residue) >= ENOUGH or self._is_late():
                return
            if window not in self._done:
                self._examine(chunk, known, window)

    def _is_late(self) -> bool:
        if self._deadline is not None and time.monotonic() > self._deadline:
            self.gave_up = True
        return self.gave_up

    def _examine(self, chunk: bytes, known: _Forms, window: int) -> None:
        """Judges the pieces around a window that a value and a chunk share."""
        owners = known.pieces(window)
        lengths = {len(piece) for piece in owners}
        there: set[bytes] = set()
        for place in _places(chunk, window.to_bytes(8, sys.byteorder)):
            for length in lengths:
                there.update(_pieces(chunk, place, 0, len(chunk), length))
        for piece in owners.keys() & there:
            verdict = self._verdicts.get(piece)
            if verdict is None:
                verdict = self._verdicts[piece] = self._is_live(piece)
            if verdict:
                self.shared.update(owners[piece])
            else:
                found = owners[piece] - self.residue
                self.residue.update(found)
                for forms_ in {self._forms, known}:  # no other piece of theirs needs a look
                    self._done.update(forms_.windows_of(found))


def _room(length: int) -> int:
    """Returns how many bytes a form takes among the others: it ends with zeros, 8 at most."""
    return (length + 8) // 8 * 8


def _view(blob: bytes, offset: int = 0) -> memoryview:
    """Returns the windows at every 8th byte from an offset on; the blob is of whole windows."""
    return memoryview(blob[offset : len(blob) - offset]).cast("Q")


def _aligned(blob: bytes) -> Iterator[int]:
    """Returns the windows at every 4th byte."""
    return chain(_view(blob), _view(blob, _STRIDE))


def _everywhere(chunk: bytes) -> Iterator[memoryview]:
    """Gives the windows at every byte."""
    for offset in range(min(8, len(chunk))):
        yield memoryview(chunk[offset : len(chunk) - (len(chunk) - offset) % 8]).cast("Q")


def _grams(chunk: bytes) -> set[str]:
    """Returns the pieces of plain text in a chunk that stand there as UTF-16."""
    runs = {run.replace(b"\0", b"").decode("ascii") for run in _PADDED.findall(chunk)}
    return {run[at : at + _GRAM] for run in runs for at in range(len(run) - _GRAM + 1)}


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
    """Gives the regions with zeros between them, about a mebibyte at once.

    No value holds eight zeros: where there are more in a row, they are left out.
    """
    parts: list[bytes] = []
    size = 0
    for region in regions:
        for part in _ZEROS.split(region):
            if len(part) >= SHORTEST:
                parts.append(part)
                size += len(part) + 8
        if size >= _CHUNK:
            yield _joined(parts)
            parts, size = [], 0
    if parts:
        yield _joined(parts)


def _joined(parts: Sequence[bytes]) -> bytes:
    """Returns parts with zeros between and around them, as there were."""
    return bytes(8).join([b"", *parts, b""])
