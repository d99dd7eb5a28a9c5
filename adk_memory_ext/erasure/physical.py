"""From deleted rows to bytes that are gone: what a database of each kind can do and show."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from adk_memory_ext.erasure.sqlite_file import FileWork, work_on_file

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from adk_memory_ext.erasure.receipts import Level
    from adk_memory_ext.sql_sessions import Database

_BELOW: Final = (
    "what lies below the file: the device, copy-on-write file systems, snapshots and backups"
)
_SERVER: Final = (
    "the server's files (dead rows stay until VACUUM), its WAL, logs, replicas and backups"
)
_MEMORY: Final = "the memory of this process, from which nothing was overwritten"
_LOST: Final = (
    "the values to search for were lost with an interrupted process; the file was rewritten instead"
)


@dataclass(frozen=True, slots=True)
class Cleaned:
    """How far it came."""

    level: Level
    verified: bool
    work: FileWork
    residue_found: int = 0
    not_checked: tuple[str, ...] = ()


async def clean(database: Database, values: Sequence[str], *, deep: bool, is_lost: bool) -> Cleaned:
    """Removes the bytes of rows that were deleted, and looks whether any piece of them is left.

    Args:
        database: Where the rows were.
        values: What must not be left.
        deep: Rewrite the file in any case, and overwrite the WAL.
        is_lost: Whether there are values that nobody knows any more.
    """
    path = database.file
    if path is None:
        reason = _SERVER if database.is_server else _MEMORY
        return Cleaned("logical", True, FileWork(), not_checked=(reason,))
    work = await work_on_file(path, values, vacuum=deep or is_lost, deep=deep, to_the_end=is_lost)
    found = work.residue
    # A page that VACUUM writes may hold old bytes of its own memory; a second one has none.
    for _attempt in range(2):
        if work.error is not None or work.is_pinned or not (work.residue or work.gave_up):
            break
        work = await work_on_file(path, values, vacuum=True, deep=deep, to_the_end=True)
    notes = [_BELOW]
    if is_lost:
        notes.append(_LOST)
        if work.steps.get("vacuum") != "done":
            work = replace(work, verified=False)
    if not work.verified:
        notes = [_why(work), *notes]
    level: Level = ("deep" if deep else "file") if work.verified else "logical"
    return Cleaned(level, work.verified, _nameless(work, path), found, tuple(notes))


def _why(work: FileWork) -> str:
    if work.error is not None:
        return f"the file was not verified: {work.error}"
    failed = [f"{name} {how}" for name, how in work.steps.items() if how.startswith("failed")]
    return "the file was not verified: " + ("; ".join(failed) or "pieces of values are left")


def _nameless(work: FileWork, path: Path) -> FileWork:
    """Leaves out what somebody called the file: perhaps by the name of its owner."""
    files = {f"database{name[len(path.name) :]}": sizes for name, sizes in work.files.items()}
    return replace(work, files=files)
