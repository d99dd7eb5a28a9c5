"""Starts the process that works on a SQLite file, and reads what came of it."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PATIENCE_SECONDS: Final = 10.0
"""A search that takes longer ends in a VACUUM, after which there is little left to search."""
_QUICK_SECONDS: Final = 1.0
_VACUUM_WAITS_SECONDS: Final = 60.0
_ROOT: Final = str(Path(__file__).parents[2])
# -I and -S: no variables, no user's folder, no site-packages. The values go over standard input,
# because everybody on the machine can read a command line.
_PROGRAM: Final = (
    "import sys; sys.path.extend(sys.argv[1:]);"
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
    unsure: bool = False
    """Whether what counts as residue may stand in live rows: there was no time to look."""
    sqlite: str = ""
    """The version of the library that did it."""
    steps: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    pragmas: Mapping[str, Any] = field(default_factory=dict)
    encodings: Sequence[str] = ()

    @property
    def is_pinned(self) -> bool:
        """Whether somebody keeps the WAL, into which a VACUUM would only write more."""
        return self.steps.get("wal checkpoint", "").startswith("failed")


async def work_on_file(
    path: Path,
    values: Sequence[str],
    *,
    module: str = "sqlite3",
    vacuum: bool,
    reindex: bool = False,
    deep: bool = False,
    to_the_end: bool = False,
    quick: bool = False,
) -> FileWork:
    """Empties the WAL and searches the file for pieces of the values, in a process of its own.

    Args:
        path: The database file.
        values: What must not be left.
        module: The SQLite library, by its module: the one that the file is used through.
        vacuum: Rewrite the file first.
        reindex: Rewrite the indexes first, which takes a fraction of the time.
        deep: Overwrite the WAL with zeros before it is cut off.
        to_the_end: Search however long it takes.
        quick: Look for what is found among the live rows for a moment only, and be `unsure` then.

    A caller that is cancelled ends the process.
    """
    job = {
        "path": os.path.realpath(path),  # noqa: ASYNC240  # a link is read in no time
        "values": list(values),
        "module": module,
        "vacuum": vacuum,
        "reindex": reindex,
        "live_seconds": _QUICK_SECONDS if quick else None,
        "deep": deep,
        "patience_seconds": None if to_the_end else _PATIENCE_SECONDS,
        "vacuum_milliseconds": int(_VACUUM_WAITS_SECONDS * 1000),
        "skip": [],
    }
    process = _Process([_ROOT, *_folders(module)])
    try:
        return await asyncio.to_thread(process.run, json.dumps(job).encode())
    except asyncio.CancelledError:
        process.end()  # nobody waits for it, and the loop cannot close before its thread ends
        raise


def _folders(module: str) -> list[str]:
    """Returns where the module is, if it is not the standard library's."""
    found = None if module == "sqlite3" else importlib.util.find_spec(module.partition(".")[0])
    if found is None or found.origin is None:
        return []
    package = Path(found.origin).parent
    return [str(package.parent if found.submodule_search_locations else package)]


class _Process:
    """The process that works on a file; SQLite undoes what it does not finish."""

    def __init__(self, folders: Sequence[str]) -> None:
        self._command: Final = [sys.executable, "-I", "-S", "-c", _PROGRAM, *folders]
        self._lock: Final = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_over = False

    def run(self, job: bytes) -> FileWork:
        """Starts it and waits for its outcome."""
        try:
            with self._lock:
                if self._is_over:
                    return FileWork(error="The search was given up.")
                process = self._process = subprocess.Popen(  # noqa: S603  # a program of ours
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,  # which may quote what it works on
                )
        except OSError as error:
            return FileWork(error=f"The process that searches did not start: {error.strerror}.")
        with process:
            outcome, _ = process.communicate(job)
        if process.returncode:
            return FileWork(error=f"The process that searches ended with {process.returncode}.")
        return FileWork(**json.loads(outcome))

    def end(self) -> None:
        """Kills it, also before it has started."""
        with self._lock:
            self._is_over = True
            if self._process is not None:
                self._process.kill()
