"""From deleted rows to bytes that are gone: what a database of each kind can do and show."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from adk_memory_ext.erasure.residue import ENOUGH
from adk_memory_ext.erasure.sqlite_file import FileWork, work_on_file

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from adk_memory_ext.erasure.receipts import Level
    from adk_memory_ext.server_database import ServerDatabase
    from adk_memory_ext.sql_sessions import Database

_BELOW: Final = (
    "what lies below the file: the device, copy-on-write file systems, snapshots and backups"
)
_SERVER: Final = "what else the server keeps: its WAL, logs, replicas and backups"
_DEAD: Final = "the server's files, where dead rows stay until their room is used again"
_SNAPSHOT: Final = (
    "pieces of values are left in the tables, perhaps for a transaction that is open for long"
)
_HEAP_PAUSES: Final = (0.0, 0.5)
"""Seconds before each rewrite: rows that an open transaction may still read are copied."""
_TOAST: Final = "long values that the server has compressed, which a search cannot read"
_MEMORY: Final = "the memory of this process, from which nothing was overwritten"
_LOST: Final = (
    "the values to search for were lost with an interrupted process; what holds the rows was"
    " rewritten instead"
)


@dataclass(frozen=True, slots=True)
class Cleaned:
    """How far it came."""

    level: Level
    verified: bool
    work: FileWork
    residue_found: int = 0
    not_checked: tuple[str, ...] = ()


async def clean(
    database: Database,
    values: Sequence[str],
    *,
    deep: bool,
    is_lost: bool,
    in_background: bool = False,
) -> Cleaned:
    """Removes the bytes of rows that were deleted, and looks whether any piece of them is left.

    Args:
        database: Where the rows were.
        values: What must not be left.
        deep: Rewrite the file in any case, and overwrite the WAL.
        is_lost: Whether there are values that nobody knows any more.
        in_background: Leave a server's tables to its own vacuum.
    """
    from adk_memory_ext.server_database import ServerDatabase
    from adk_memory_ext.sqlite_database import SqliteDatabase

    if isinstance(database, ServerDatabase) and database.is_postgresql and not in_background:
        return await _clean_heap(database, values, deep=deep, is_lost=is_lost)
    path = database.file
    if path is None:
        reasons = (_DEAD, _SERVER) if database.is_server else (_MEMORY,)
        return Cleaned("logical", True, FileWork(), not_checked=reasons)
    module = database.sqlite_module if isinstance(database, SqliteDatabase) else "sqlite3"
    look = partial(work_on_file, path, values, module=module, deep=deep)
    rewrite = deep or is_lost
    work = await look(vacuum=rewrite, to_the_end=is_lost, quick=not rewrite)
    found = work.residue
    if work.error is None and not work.is_pinned and not rewrite and work.residue:
        # A few pieces are mostly what the rebalancing of an index has left.
        few = work.residue < ENOUGH
        if few or work.unsure:
            work = await look(vacuum=False, reindex=few)
    # A page that VACUUM writes may hold old bytes of its own memory; a second one has none.
    for _attempt in range(2):
        if work.error is not None or work.is_pinned or not (work.residue or work.gave_up):
            break
        work = await look(vacuum=True, to_the_end=True)
    notes = [_BELOW]
    if is_lost:
        notes.append(_LOST)
        if work.steps.get("vacuum") != "done":
            work = replace(work, verified=False)
    if not work.verified:
        notes = [_why(work), *notes]
    level: Level = ("deep" if deep else "file") if work.verified else "logical"
    return Cleaned(level, work.verified, _nameless(work, path), found, tuple(notes))


async def _clean_heap(
    database: ServerDatabase, values: Sequence[str], *, deep: bool, is_lost: bool
) -> Cleaned:
    """Vacuums the tables of PostgreSQL, and with `deep` rewrites them and looks at every page."""
    from adk_memory_ext.erasure import postgresql_heap

    if not deep:
        steps = await postgresql_heap.vacuum(database, full=False)
        return Cleaned("logical", True, FileWork(steps=steps), not_checked=(_DEAD, _SERVER))
    found = 0
    for pause in _HEAP_PAUSES:
        await asyncio.sleep(pause)
        await postgresql_heap.wait_for_older_transactions(database)
        steps = await postgresql_heap.vacuum(database, full=True)
        if steps["vacuum full"] != "done":
            note = f"the tables were not rewritten: {steps['vacuum full']}"
            return Cleaned("logical", False, FileWork(steps=steps), found, (note, _SERVER))
        work = await postgresql_heap.search(database, values)
        work = replace(work, steps={**steps, **work.steps})
        found = max(found, work.residue)
        if not work.residue:
            break
    if work.error is not None:
        note = f"the tables were rewritten, but {work.error}"
        return Cleaned("logical", True, work, found, (note, _SERVER))
    if work.residue:
        return Cleaned("logical", False, work, found, (_SNAPSHOT, _SERVER))
    lost = (_LOST,) if is_lost else ()
    return Cleaned("heap", True, work, found, (_TOAST, *lost, _SERVER))


def _why(work: FileWork) -> str:
    if work.error is not None:
        return f"the file was not verified: {work.error}"
    failed = [f"{name} {how}" for name, how in work.steps.items() if how.startswith("failed")]
    return "the file was not verified: " + ("; ".join(failed) or "pieces of values are left")


def _nameless(work: FileWork, path: Path) -> FileWork:
    """Leaves out what somebody called the file: perhaps by the name of its owner."""
    files = {f"database{name[len(path.name) :]}": sizes for name, sizes in work.files.items()}
    return replace(work, files=files)
