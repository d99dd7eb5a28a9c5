"""What is done to a SQLite file in a process of its own: VACUUM, WAL checkpoint, and the search.

A process of its own, because closing any file descriptor of a database drops all of SQLite's locks
that the process holds on it (https://sqlite.org/howtocorrupt.html). Started by `sqlite_file` with
nothing but the standard library; values come over standard input and never leave.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from adk_memory_ext.erasure.residue import ENCODINGS, ResidueSearch
from adk_memory_ext.erasure.sqlite_pages import MalformedFileError, SlackReader

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_ATTEMPTS: Final = 12
_PAUSE_SECONDS: Final = 0.05
_BUSY_MILLISECONDS: Final = 250
"""How long one attempt waits for readers, who keep writers waiting meanwhile."""
_BLOCK: Final = 1 << 20
_STEPS: Final = 1_000
"""Of SQLite's machine between two looks at the clock."""
_OVERLAP: Final = 64
_SPACE_NEEDED: Final = 2.2
"""Sizes of the file that VACUUM may need beside it: a copy and the WAL."""
_LARGEST_COPY_IN_MEMORY: Final = 256 << 20
_PRAGMAS: Final = (
    *("journal_mode", "secure_delete", "auto_vacuum", "page_size", "encoding"),
    *("freelist_count", "temp_store"),
)


def work_on(job: Mapping[str, Any]) -> dict[str, Any]:
    """Does a job and returns what came of it: counts and words, never a value.

    Args:
        job: `path`, `values` to search for, `module` (that of SQLite), `vacuum`, `reindex`,
            `live_seconds` (how long live rows are looked at for what was found; None: to the end),
            `deep` (overwrite the WAL with zeros), `patience_seconds` (None: search to the end),
            `vacuum_milliseconds` (how long VACUUM waits for writers), and `skip`, the names of
            steps to leave out, for tests that show what each of them is good for.
    """
    path = Path(job["path"])
    outcome: dict[str, Any] = {"steps": {}, "files": {}, "error": None, "verified": False}
    sqlite = importlib.import_module(job["module"])
    outcome["sqlite"] = sqlite.sqlite_version
    # Opened first and closed last: closing it would drop the locks of the connection.
    file = os.open(path, os.O_RDONLY)
    try:
        connection = sqlite.connect(path, timeout=_BUSY_MILLISECONDS / 1000, isolation_level=None)
        try:
            _work(connection, sqlite, file, path, job, outcome)
        finally:
            connection.close()
    except sqlite.Error as error:
        outcome["error"] = f"SQLite says: {error}"
    except MalformedFileError as error:
        outcome["error"] = f"The file cannot be read: {error}"
    except OSError as error:
        outcome["error"] = f"The file cannot be read: {error.strerror}"
    finally:
        os.close(file)
    return outcome


def _work(  # noqa: PLR0917
    connection: Any,
    sqlite: Any,
    file: int,
    path: Path,
    job: Mapping[str, Any],
    outcome: dict[str, Any],
) -> None:
    steps = outcome["steps"]
    skip = frozenset(job["skip"])
    connection.execute("PRAGMA secure_delete=ON").fetchall()
    connection.execute("PRAGMA foreign_keys=ON")
    if "optimize" not in skip:
        steps.update(_optimised(connection, sqlite))
    if job.get("reindex"):
        steps["reindex"] = _reindexed(connection, sqlite, path, job["vacuum_milliseconds"])
    if job["vacuum"] and "vacuum" not in skip:
        steps["vacuum"] = _vacuumed(connection, sqlite, path, job["vacuum_milliseconds"])
    outcome["pragmas"] = {name: _pragma(connection, name) for name in _PRAGMAS}
    with _one_moment(connection, path, outcome, job) as is_still:
        if "wipe" not in skip:
            steps.update(_wiped_journal(path, outcome["pragmas"]["journal_mode"]))
        _search(connection, file, path, job, outcome)
    steps["search"] = "gave up" if outcome["gave_up"] else "done"
    outcome["verified"] = is_still and not outcome["gave_up"] and not outcome["residue"]


def _optimised(connection: Any, sqlite: Any) -> dict[str, str]:
    """Has full-text indexes drop what they keep of deleted rows, and statistics their samples."""
    rows = connection.execute("SELECT name, lower(sql) FROM sqlite_schema WHERE type = 'table'")
    steps = {}
    for name, sql in rows.fetchall():
        if sql and sql.startswith("create virtual") and any(f"fts{n}" in sql for n in "345"):
            quoted = _quoted(name)
            try:
                connection.execute(f"INSERT INTO {quoted}({quoted}) VALUES ('optimize')")  # noqa: S608  # a name from the schema
                steps[f"optimize {name}"] = "done"
            except sqlite.Error as error:
                steps[f"optimize {name}"] = f"failed: {error}"
        elif name in {"sqlite_stat3", "sqlite_stat4"}:
            connection.execute("ANALYZE")
            steps["analyze"] = "done"
    return steps


def _reindexed(connection: Any, sqlite: Any, path: Path, milliseconds: int) -> str:
    """Builds the indexes anew: the rebalancing of their pages leaves copies of their entries."""
    _choose_place_for_copies(connection, path)
    return _patiently(connection, sqlite, "REINDEX", milliseconds)


def _choose_place_for_copies(connection: Any, path: Path) -> None:
    """A copy holds live rows only, so that it may lie on the disk where memory is short."""
    in_memory = path.stat().st_size <= _LARGEST_COPY_IN_MEMORY
    connection.execute(f"PRAGMA temp_store={'MEMORY' if in_memory else 'FILE'}")


def _patiently(connection: Any, sqlite: Any, sql: str, milliseconds: int) -> str:
    """Runs what waits for writers, and tells how it went."""
    connection.execute(f"PRAGMA busy_timeout={milliseconds}").fetchall()
    try:
        connection.execute(sql)
    except sqlite.Error as error:
        return f"failed: {error}"
    finally:
        connection.execute(f"PRAGMA busy_timeout={_BUSY_MILLISECONDS}").fetchall()
    return "done"


def _vacuumed(connection: Any, sqlite: Any, path: Path, milliseconds: int) -> str:
    size = path.stat().st_size
    if shutil.disk_usage(path.parent).free < size * _SPACE_NEEDED:
        return "failed: too little space on the disk"
    _choose_place_for_copies(connection, path)
    return _patiently(connection, sqlite, "VACUUM", milliseconds)


@contextmanager
def _one_moment(
    connection: Any, path: Path, outcome: dict[str, Any], job: Mapping[str, Any]
) -> Iterator[bool]:
    """Empties the WAL and keeps the file as it is; gives whether both went well.

    A transaction that reads while the WAL is empty keeps every other process from writing to the
    file: what they write stays in the WAL until the transaction ends.
    """
    wal = path.with_name(path.name + "-wal")
    is_wal = outcome["pragmas"]["journal_mode"] == "wal"
    is_still, result = False, None
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(_PAUSE_SECONDS)
        if is_wal and "truncate" not in job["skip"]:
            if job["deep"]:
                outcome["steps"]["zeros over the WAL"] = _overwritten(connection, wal)
            result = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        connection.execute("BEGIN")
        connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        is_still = not is_wal or not wal.exists() or wal.stat().st_size == 0
        if is_still:
            break
        if attempt < _ATTEMPTS - 1:
            connection.execute("ROLLBACK")
    outcome["steps"]["wal checkpoint"] = _checkpoint_words(result, is_wal=is_wal, done=is_still)
    try:
        yield is_still
    finally:
        connection.execute("ROLLBACK")


def _checkpoint_words(result: Any, *, is_wal: bool, done: bool) -> str:
    if not is_wal:
        return "not needed"
    read_back = "not run" if result is None else str(tuple(result))
    return f"done {read_back}" if done else f"failed {read_back}: the WAL is in use"


def _overwritten(connection: Any, wal: Path) -> str:
    """Writes zeros over a WAL that nobody reads any more; SQLite would only cut it off."""
    if not wal.exists() or not wal.stat().st_size:
        return "not needed"
    with wal.open("rb") as file:
        before = file.read(32)
    if connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()[0]:
        return "failed: the WAL is in use"
    connection.execute("BEGIN IMMEDIATE")
    try:
        with wal.open("r+b") as file:
            if file.read(32) != before:  # somebody has begun it anew meanwhile
                return "failed: the WAL is in use"
            _write_zeros(file.fileno(), wal.stat().st_size)
    finally:
        connection.execute("ROLLBACK")
    return "done"


def _write_zeros(file: int, size: int) -> None:
    for place in range(0, size, _BLOCK):
        os.pwrite(file, bytes(min(_BLOCK, size - place)), place)
    os.fsync(file)


def _wiped_journal(path: Path, mode: str) -> dict[str, str]:
    """Empties a rollback journal that no transaction needs: one with zeros for a header.

    The caller's transaction keeps other processes from leaving WAL mode meanwhile.
    """
    journal = path.with_name(path.name + "-journal")
    if mode != "wal" or not journal.exists() or not journal.stat().st_size:
        return {}
    with journal.open("r+b") as file:
        if file.read(8).strip(b"\0"):
            return {"journal": "failed: it may be needed for a recovery"}
        _write_zeros(file.fileno(), journal.stat().st_size)
        file.truncate(0)
    return {"journal": "emptied"}


def _search(
    connection: Any, file: int, path: Path, job: Mapping[str, Any], outcome: dict[str, Any]
) -> None:
    live = _LiveRows(connection, job.get("live_seconds"))
    search = ResidueSearch(job["values"], live.hold, patience_seconds=job["patience_seconds"])
    if "search" not in job["skip"]:
        search.run(SlackReader(file))
        outcome["files"][path.name] = {
            "bytes": os.fstat(file).st_size,
            "searched_bytes": search.searched_bytes,
        }
        for beside in sorted(path.parent.glob(f"{_escaped(path.name)}-*")):
            if beside.is_file() and not beside.name.endswith("-shm"):
                with suppress(FileNotFoundError):
                    search.run(_blocks(beside))
                    size = beside.stat().st_size
                    outcome["files"][beside.name] = {"bytes": size, "searched_bytes": size}
    outcome["encodings"] = ENCODINGS
    outcome["residue"] = len(search.residue)
    outcome["shared"] = len(search.shared - search.residue)
    outcome["gave_up"] = search.gave_up
    outcome["unsure"] = live.gave_up


def _escaped(name: str) -> str:
    return "".join(f"[{mark}]" if mark in "*?[" else mark for mark in name)


def _blocks(path: Path) -> Iterator[bytes]:
    """Gives all of a file, in blocks that overlap."""
    with path.open("rb") as file:
        end = b""
        while block := file.read(_BLOCK):
            yield end + block
            end = block[-_OVERLAP:]


class _LiveRows:
    """What stands in the rows of every table, seen as bytes.

    Args:
        connection: The connection.
        seconds: How long it may look in all; None: to the end.
    """

    def __init__(self, connection: Any, seconds: float | None = None) -> None:
        self.gave_up = False
        """Whether there was no time to look at all rows."""
        self._connection: Final = connection
        self._seconds_left = seconds
        self._queries: Final = ["SELECT 1 FROM sqlite_schema WHERE instr(CAST(sql AS BLOB), ?1)"]
        names = "SELECT name FROM sqlite_schema WHERE type = 'table' AND rootpage > 0"
        for (name,) in connection.execute(names).fetchall():
            columns = connection.execute("SELECT name FROM pragma_table_info(?)", (name,))
            conditions = " OR ".join(
                f"instr(CAST({_quoted(column)} AS BLOB), ?1)" for (column,) in columns.fetchall()
            )
            # Names come from the schema, and are quoted; the value is bound.
            self._queries.append(f"SELECT 1 FROM {_quoted(name)} WHERE {conditions} LIMIT 1")  # noqa: S608

    def hold(self, piece: bytes) -> bool:
        """Whether a piece of a value stands in a live row, as far as there is time to look."""
        if self._seconds_left is None:
            return self._find(piece)
        deadline = time.monotonic() + self._seconds_left
        self._connection.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS)
        try:
            return self._find(piece)
        except Exception:
            if time.monotonic() <= deadline:  # else it was interrupted
                raise
            self.gave_up = True
            return False
        finally:
            self._connection.set_progress_handler(None, 0)
            self._seconds_left = max(0.0, deadline - time.monotonic())

    def _find(self, piece: bytes) -> bool:
        for place, sql in enumerate(self._queries):
            if self._connection.execute(sql, (piece,)).fetchone():
                # What one table holds, it mostly holds for the next piece too.
                self._queries.insert(0, self._queries.pop(place))
                return True
        return False


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _pragma(connection: Any, name: str) -> Any:
    row = connection.execute(f"PRAGMA {name}").fetchone()
    return None if row is None else row[0]


def main() -> None:
    """Reads a job from standard input and writes its outcome to standard output."""
    json.dump(work_on(json.load(sys.stdin)), sys.stdout)
