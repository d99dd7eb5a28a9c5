"""SQLite's file format, read for the bytes that belong to nothing (https://sqlite.org/fileformat2.html).

Slack is what no live row, index entry or schema entry uses: the gap of a page between its cell
pointers and its cells, freeblocks, pages of the free list, the rest of the last overflow page of a
value, the reserved bytes at the end of a page, and pages that nothing leads to. Standard library
only: it runs in a process of its own that has nothing else.
"""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

SHORTEST: Final = 8
"""Bytes of a region of slack that is worth a look."""

_HEADER: Final = 100
_MAGIC: Final = b"SQLite format 3\x00"
_LOCK_BYTE: Final = 1 << 30
_INDEX_INTERIOR, _TABLE_INTERIOR, _INDEX_LEAF, _TABLE_LEAF = 2, 5, 10, 13
_TREE_PAGES: Final = frozenset({_INDEX_INTERIOR, _TABLE_INTERIOR, _INDEX_LEAF, _TABLE_LEAF})
_MOST_PAGES: Final = 0x0200_0000
"""From here on the page number at the start of an overflow page may look like a b-tree page's."""
_READ_AT_ONCE: Final = 1 << 18
"""What a processor keeps close at hand while it is looked at."""
_FREEBLOCK: Final = struct.Struct(">HH")
"""Where the next one on the page begins, and how many bytes this one takes."""
_CELL_POINTERS: Final = {_INDEX_INTERIOR: 12, _TABLE_INTERIOR: 12, _INDEX_LEAF: 8, _TABLE_LEAF: 8}
"""Where the pointers to a page's cells begin, by its kind."""


class MalformedFileError(Exception):
    """The bytes are no SQLite database, or one that is being written; the message says where."""


class SlackReader:
    """Reads the slack of one database file, which must not change meanwhile.

    Args:
        file: A file descriptor; the caller closes it.

    Raises:
        MalformedFileError: When it is no SQLite database, or one too large to tell pages apart.
    """

    def __init__(self, file: int) -> None:
        self._file: Final = file
        header = os.pread(file, _HEADER, 0)
        if len(header) < _HEADER or not header.startswith(_MAGIC):
            raise MalformedFileError("it has no header of a SQLite database")
        (size,) = struct.unpack_from(">H", header, 16)
        self.page_size: Final = 65_536 if size == 1 else size
        if self.page_size < 512 or self.page_size & (self.page_size - 1):  # noqa: PLR2004
            raise MalformedFileError("it has no page size")
        self._usable: Final = self.page_size - header[20]
        counter, pages, trunk, _free, largest_root, valid_for = (
            struct.unpack_from(">I", header, offset)[0] for offset in (24, 28, 32, 36, 52, 92)
        )
        stored = os.fstat(file).st_size // self.page_size
        self.pages: Final = pages if pages and counter == valid_for else stored
        self._stored: Final = stored
        if stored >= _MOST_PAGES:
            raise MalformedFileError("it has too many pages")
        self._has_pointer_maps: Final = bool(largest_root)
        # An overflow cell of fewer bytes than this stays on its page; by kind of page.
        in_index = (self._usable - 12) * 64 // 255 - 23
        self._most_local: Final = {
            _TABLE_LEAF: self._usable - 35,
            _INDEX_LEAF: in_index,
            _INDEX_INTERIOR: in_index,
        }
        # The first byte of a length that may be too long for the page (a varint, 7 bits a byte).
        self._suspicious: Final = {
            kind: 0x80 | most >> 7 if most < 1 << 14 else 0x81
            for kind, most in self._most_local.items()
        }
        self._least_local: Final = (self._usable - 12) * 32 // 255 - 23
        self._free: Final = dict(self._free_list(trunk))
        self._is_plain: Final = self._usable == self.page_size and not largest_root
        """Whether there are neither reserved bytes nor pointer maps, as mostly."""
        self._zeros: Final = bytes(self._usable)
        self._unusual: Final = self._free.keys() | {1, _LOCK_BYTE // self.page_size + 1}
        self._chains: Final[dict[int, int]] = {}
        self._next: Final[dict[int, int]] = {}

    def __iter__(self) -> Iterator[bytes]:
        """Gives the regions that are not all zero, without the zeros around them."""
        zeros = bytes(self.page_size)
        for number, page in self._unclean_pages():
            for region in self._slack_of(number, page):
                if region == zeros[: len(region)]:  # found in a fraction of what stripping takes
                    continue
                stripped = region.strip(b"\0")
                if len(stripped) >= SHORTEST:
                    yield stripped
        if self._next:  # there are overflow pages
            for number, page in self._all_pages():
                self._note_overflows_of(number, page)
        yield from self._overflow_tails()

    def _unclean_pages(self) -> Iterator[tuple[int, bytes]]:
        """Gives the pages but those of trees whose slack is nothing but zeros, as most are."""
        size, zeros, pointers = self.page_size, self._zeros, _CELL_POINTERS
        heads = struct.Struct(f">BHHH{size - 7}x")
        for first, block in self._blocks():
            for index, (kind, free, count, content) in enumerate(heads.iter_unpack(block)):
                begin = index * size
                if kind in pointers and count and self._is_plain:
                    end, cells = begin + pointers[kind] + 2 * count, begin + content
                    number = first + index
                    if (
                        end <= cells <= begin + size
                        and block[end:cells] == zeros[: cells - end]
                        and number not in self._unusual
                        and number <= self.pages
                        and not (free and any(self._freeblocks(number, block, begin, free)))
                    ):
                        continue
                yield first + index, block[begin : begin + size]

    def _freeblocks(self, number: int, block: bytes, begin: int, free: int) -> Iterator[bytes]:
        """Gives what is not zero of the freeblocks of the page that begins there, from one on."""
        while free:
            following, size = _FREEBLOCK.unpack_from(block, begin + free)
            if free + size > self._usable or (following and following <= free):
                raise MalformedFileError(f"the freeblocks of page {number} are broken")
            region = block[begin + free + 4 : begin + free + size]
            if region != self._zeros[: len(region)]:
                yield region
            free = following

    def _all_pages(self) -> Iterator[tuple[int, bytes]]:
        size = self.page_size
        for first, block in self._blocks():
            for index in range(len(block) // size):
                yield first + index, block[index * size : (index + 1) * size]

    def _blocks(self) -> Iterator[tuple[int, bytes]]:
        """Gives whole pages together, and the number of the first of them."""
        size = self.page_size
        at_once = max(1, _READ_AT_ONCE // size)
        for first in range(0, self._stored, at_once):
            block = os.pread(self._file, at_once * size, first * size)
            yield first + 1, block[: len(block) // size * size]

    def _page(self, number: int) -> bytes:
        if not 1 <= number <= self._stored:
            raise MalformedFileError(f"a pointer leads to page {number}, which it does not have")
        return os.pread(self._file, self.page_size, (number - 1) * self.page_size)

    def _free_list(self, trunk: int) -> Iterator[tuple[int, int]]:
        """Gives each free page and where its slack begins."""
        seen = set()
        while trunk:
            if trunk in seen:
                raise MalformedFileError("its free list is a circle")
            seen.add(trunk)
            following, count = struct.unpack_from(">II", page := self._page(trunk))
            if count > self._usable // 4 - 2:
                raise MalformedFileError(f"its free list is broken at page {trunk}")
            yield trunk, 8 + 4 * count
            for leaf in struct.unpack_from(f">{count}I", page, 8):
                yield leaf, 0
            trunk = following

    def _slack_of(self, number: int, page: bytes) -> Iterator[bytes]:
        if self._usable < self.page_size:
            yield page[self._usable :]
        if number > self.pages or number == _LOCK_BYTE // self.page_size + 1:
            yield page
        elif (begin := self._free.get(number)) is not None:
            yield page[begin:]
        elif self._is_pointer_map(number):
            return
        elif page[_HEADER if number == 1 else 0] in _TREE_PAGES:
            yield from self._tree_slack(number, page)
        else:
            (self._next[number],) = struct.unpack_from(">I", page)

    def _is_pointer_map(self, number: int) -> bool:
        """Whether a database with auto-vacuum keeps its pointers there."""
        if not self._has_pointer_maps:
            return False
        entries = self._usable // 5 + 1
        distance = (number - 2) // entries
        place = distance * entries + 2
        if place == _LOCK_BYTE // self.page_size + 1:
            place += 1
        return number == place

    def _tree_slack(self, number: int, page: bytes) -> Iterator[bytes]:
        start = _HEADER if number == 1 else 0
        kind = page[start]
        free, count, content = struct.unpack_from(">HHH", page, start + 1)
        pointers = start + _CELL_POINTERS[kind]
        end = pointers + 2 * count
        content = content or 65_536
        if not end <= content <= self._usable:
            raise MalformedFileError(f"page {number} is broken")
        yield page[end:content]
        yield from self._freeblocks(number, page, 0, free)

    def _note_overflows_of(self, number: int, page: bytes) -> None:
        """Notes what overflows of the cells of a tree's page."""
        if (
            number > self.pages
            or number in self._free
            or number == _LOCK_BYTE // self.page_size + 1
            or self._is_pointer_map(number)
        ):
            return
        start = _HEADER if number == 1 else 0
        kind, _free, count = struct.unpack_from(">BHH", page, start)
        if kind in _TREE_PAGES and kind != _TABLE_INTERIOR:
            places = start + _CELL_POINTERS[kind]
            self._note_overflows(page, kind, struct.unpack_from(f">{count}H", page, places))

    def _note_overflows(self, page: bytes, kind: int, cells: tuple[int, ...]) -> None:
        """Notes the first overflow page of each cell that has one, and how much lies beyond."""
        most = self._most_local[kind]
        skip = 4 if kind == _INDEX_INTERIOR else 0
        suspicious = self._suspicious[kind]
        for cell in cells:
            if cell + skip >= len(page) or page[cell + skip] < suspicious:
                continue
            length, place = _varint(page, cell + skip)
            if length <= most:
                continue
            if kind == _TABLE_LEAF:
                _rowid, place = _varint(page, place)
            local = self._least_local + (length - self._least_local) % (self._usable - 4)
            if local > most:
                local = self._least_local
            (first,) = struct.unpack_from(">I", page, place + local)
            self._chains[first] = length - local

    def _overflow_tails(self) -> Iterator[bytes]:
        """Gives what the last overflow page of each value does not use, and pages of no value."""
        room = self._usable - 4
        for first, length in self._chains.items():
            number, left = first, length
            while left > room:
                left -= room
                number = self._following(number)
            self._following(number)
            tail = self._page(number)[4 + left : self._usable].strip(b"\0")
            if len(tail) >= SHORTEST:
                yield tail
        for number in self._next:
            stripped = self._page(number).strip(b"\0")
            if len(stripped) >= SHORTEST:
                yield stripped

    def _following(self, number: int) -> int:
        try:
            return self._next.pop(number)
        except KeyError:
            raise MalformedFileError(f"page {number} is no overflow page") from None


def _varint(page: bytes, place: int) -> tuple[int, int]:
    """Returns a number of 1 to 9 bytes and the place behind it."""
    value = 0
    for index in range(8):
        byte = page[place + index]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:  # noqa: PLR2004
            return value, place + index + 1
    return value << 8 | page[place + 8], place + 9
