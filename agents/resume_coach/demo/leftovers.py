"""Looks for pieces of a text in the files of the database, as anybody could with grep."""

import json
from pathlib import Path

PIECE_BYTES = 12
"""So many bytes in a row are no chance."""


def pieces(text: str) -> frozenset[bytes]:
    """Returns every 12 bytes in a row of each line, bare and as they stand in JSON."""
    lines = [line for line in text.splitlines() if line]
    written = {form for line in lines for form in (line, json.dumps(line)[1:-1])}
    return frozenset().union(*(_windows(form.encode()) for form in written))


def left(database: Path, wanted: frozenset[bytes]) -> int:
    """Returns how many of the pieces stand anywhere in the file, its WAL or beside it."""
    files = [path for path in database.parent.glob(f"{database.name}*") if path.is_file()]
    return len(wanted & frozenset().union(*(_windows(path.read_bytes()) for path in files)))


def _windows(data: bytes) -> frozenset[bytes]:
    return frozenset(data[at : at + PIECE_BYTES] for at in range(len(data) - PIECE_BYTES + 1))
