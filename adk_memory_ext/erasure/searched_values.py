"""What must not be left of rows that were deleted: every text that can be told from chance."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from adk_memory_ext.erasure.residue import is_searchable

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(slots=True)
class SearchedValues:
    """The values of a subject; they live in memory only."""

    values: set[str] = field(default_factory=set)
    """Ids, keys, texts, and short values together with their key as stored."""
    too_short: int = 0
    """Values that cannot be told from chance, even with their key."""

    def add_all(self, texts: Iterable[str]) -> None:
        """Takes in the texts of columns: JSON texts with all that is in them, others whole."""
        for text in texts:
            if text[:1] in {"{", "["}:
                try:
                    document = json.loads(text)
                except ValueError:
                    document = text
                # A server hands its JSON out anew; a file holds it as it was written.
                self._add(None, document, ": " if '": ' in text else ":")
            else:
                self._add(None, text, ":")

    def _add(self, key: str | None, value: Any, colon: str) -> None:
        if isinstance(value, dict):
            for name, item in value.items():
                if is_searchable(name):
                    self.values.add(name)
                self._add(name, item, colon)
        elif isinstance(value, list):
            for item in value:
                self._add(None, item, colon)
        elif isinstance(value, str) and is_searchable(value):
            self.values.add(value)
        elif value is not None and value != "":
            self._add_short(key, value, colon)

    def _add_short(self, key: str | None, value: Any, colon: str) -> None:
        if key is not None:
            for ascii_only in (True, False):
                name, item = (json.dumps(part, ensure_ascii=ascii_only) for part in (key, value))
                together = f"{name}{colon}{item}"
                if is_searchable(together):
                    self.values.add(together)
                    continue
                self.too_short += ascii_only
            return
        self.too_short += 1
