"""Starts the process that works on a SQLite file, and reads what came of it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PATIENCE_SECONDS: Final = 10.0
"""A search that takes longer ends in a VACUUM, after which there is little left to search."""
_VACUUM_WAITS_SECONDS: Final = 60.0
_ROOT: Final = str(Path(__file__).parents[2])
# -I and -S: no variables, no user's folder, no site-packages. The values go over standard input,
# because everybody on the machine can read a command line.
_PROGRAM: Final = (
    "import sys; sys.path.append(sys.argv[1]);"
    " from adk_memory_ext.erasure.sqlite_work import main; main()"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileWork:
    """What came of the work on a file: counts and words, never a value."""

    verified: bool = False
    """No piece of a value that was searched for is left in the files."""
    error: str | None = None
    """Why the work ended early; None when it did not."""
    residue: int = 0
    """Values of which a piece was found that no live row holds; 16 stands for 16 or more."""
    shared: int = 0
    """Values of which a piece was found that live rows hold too."""
    gave_up: bool = False
    sqlite: str = ""
    """The version of the library that did it."""
    steps: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    pragmas: Mapping[str, Any] = field(default_factory=dict)
    encodings: Sequence[str] = ()


async def work_on_file(
    path: Path, values: Sequence[str], *, vacuum: bool, deep: bool = False, to_the_end: bool = False
) -> FileWork:
    """Empties the WAL and searches the file for pieces of the values, in a process of its own.

    Args:
        path: The database file.
        values: What must not be left.
        vacuum: Rewrite the file first.
        deep: Overwrite the WAL with zeros before it is cut off.
        to_the_end: Search however long it takes.
    """
    job = {
        "path": os.path.realpath(path),  # noqa: ASYNC240  # a link is read in no time
        "values": list(values),
        "module": "sqlite3",
        "vacuum": vacuum,
        "deep": deep,
        "patience_seconds": None if to_the_end else _PATIENCE_SECONDS,
        "vacuum_milliseconds": int(_VACUUM_WAITS_SECONDS * 1000),
        "skip": [],
    }
    return await asyncio.to_thread(_run, json.dumps(job).encode())


def _run(job: bytes) -> FileWork:
    try:
        process = subprocess.run(  # noqa: S603  # this Python, and a program of ours
            [sys.executable, "-I", "-S", "-c", _PROGRAM, _ROOT],
            input=job,
            capture_output=True,
            check=False,
        )
    except OSError as error:
        return FileWork(error=f"The process that searches did not start: {error.strerror}.")
    if process.returncode:
        # Its standard error may quote what it worked on.
        return FileWork(error=f"The process that searches ended with {process.returncode}.")
    outcome = json.loads(process.stdout)
    return FileWork(**outcome)
