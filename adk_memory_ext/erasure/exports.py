"""Everything that is held of a person, as one JSON document."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FORMAT_VERSION: Final = 1


def document_of(
    app_name: str, user_id: str, rows: Mapping[str, list[Mapping[str, object]]]
) -> dict[str, Any]:
    """Returns the document: `stores` has the rows of each store, with JSON texts read."""
    return {
        "format_version": FORMAT_VERSION,
        "app_name": app_name,
        "user_id": user_id,
        "stores": {
            name: [{column: _readable(value) for column, value in row.items()} for row in held]
            for name, held in rows.items()
        },
    }


def write_document(path: Path, document: Mapping[str, Any]) -> None:
    """Writes a new file that only its owner may read.

    Raises:
        FileExistsError: When there is one of that name. It was not touched.
    """
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(file, "w", encoding="utf-8") as stream:  # noqa: PTH123  # a descriptor
        json.dump(document, stream, indent=2)


def _readable(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, str) and value[:1] in {"{", "["}:
        with suppress(ValueError):
            return json.loads(value)
    return value
