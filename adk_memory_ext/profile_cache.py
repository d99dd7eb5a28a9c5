"""Profiles as they were last read, used while the database holds nothing newer."""

from __future__ import annotations

import time
from collections import OrderedDict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from adk_memory_ext.facts import Owner
    from adk_memory_ext.sql_facts import ReadFacts

_CACHED_PROFILES: Final = 512
"""Users whose facts are kept; of more, those that were read longest ago are given up."""


class ProfileCache:
    """The profiles that a process has read, each with the data revision that it was read at."""

    def __init__(self) -> None:
        self._read: OrderedDict[Owner, tuple[ReadFacts, float]] = OrderedDict()
        self._drops = 0

    @property
    def drops(self) -> int:
        """How often a profile was dropped; a reading from before that is not to be kept."""
        return self._drops

    def get(self, owner: Owner) -> ReadFacts | None:
        """Returns a profile as it was last read; None if it was not."""
        entry = self._read.get(owner)
        return None if entry is None else entry[0]

    def read_at(self, owner: Owner) -> str:
        """Returns when the profile was read, in words."""
        return datetime.fromtimestamp(self._read[owner][1], UTC).isoformat(timespec="seconds")

    def keep(self, owner: Owner, read: ReadFacts, drops: int) -> None:
        """Keeps a profile, unless one was dropped since the reading began."""
        if drops != self._drops:
            return
        self._read[owner] = (read, time.time())
        self._read.move_to_end(owner)
        while len(self._read) > _CACHED_PROFILES:
            self._read.popitem(last=False)

    def clear(self) -> None:
        """Gives every profile up, because something was erased."""
        self._drops += 1
        self._read.clear()

    def drop(self, owner: Owner) -> None:
        """Gives a profile up, because it was written to."""
        self._drops += 1
        self._read.pop(owner, None)
