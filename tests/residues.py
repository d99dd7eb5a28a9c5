"""An independent look at what is left of values in the files of a database.

It shares nothing with the product: no reader of pages, but every byte of every file, less what the
live rows hold, which it asks SQLite for.
"""

from __future__ import annotations

import json
import subprocess
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

SHORTEST: Final = 8
LONGEST: Final = 12


def _windows(data: bytes, length: int) -> set[bytes]:
    return {data[i : i + length] for i in range(len(data) - length + 1)}


def _written(value: str) -> list[bytes]:
    plain = (value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1])
    return [text.encode(encoding) for text in plain for encoding in ("utf8", "utf-16le")]


def _live_text(path: Path, sqlite: Any, indexes: str) -> bytes:
    """Returns everything that the rows of all tables and the schema hold.

    Tables whose names begin with `indexes` hold what full-text search keeps of other rows.
    """
    with closing(sqlite.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
        connection.text_factory = bytes
        names = [
            row[0].decode()
            for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            if not indexes or not row[0].decode().startswith(indexes)
        ]
        rows = [*connection.execute("SELECT sql FROM sqlite_master")]
        for name in names:
            rows += connection.execute(f'SELECT * FROM "{name}"')  # noqa: S608
    cells = [cell for row in rows for cell in row if isinstance(cell, bytes)]
    texts = b"\n".join(cells)
    return texts + b"\n" + texts.decode("utf8", "replace").encode("utf-16le")


def residue(path: Path, values: Iterable[str], sqlite: Any, *, indexes: str = "") -> list[str]:
    """Returns the values of which 12 bytes (all, of 8 to 11) are left beside the live rows."""
    # From another process: closing a file of the database drops this process's locks on it.
    files = sorted(file for file in path.parent.glob(f"{path.name}*") if file.is_file())
    raw = subprocess.run(["cat", *files], check=True, capture_output=True).stdout
    live = _live_text(path, sqlite, indexes)
    there: dict[int, set[bytes]] = {}
    left = []
    for value in values:
        for form in _written(value):
            length = min(LONGEST, len(form))
            if length < SHORTEST:
                continue
            if length not in there:
                there[length] = _windows(raw, length) - _windows(live, length)
            if not there[length].isdisjoint(_windows(form, length)):
                left.append(value)
                break
    return left
