"""The files themselves: after the work on a SQLite file, no piece of an erased value is in it."""

from __future__ import annotations

import ast
import sqlite3
import sys
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from adk_memory_ext.erasure import residue as residue_module
from adk_memory_ext.erasure import sqlite_pages, sqlite_work
from adk_memory_ext.erasure.sqlite_work import work_on
from backends import count
from fuzzed_files import FuzzedFile, build, delete
from residues import residue

if TYPE_CHECKING:
    from collections.abc import Iterator

JOURNALS: Final = ("wal", "delete", "persist")
GROUPS: Final = 5
LIBRARIES: Final = ("sqlite3", "pysqlite3")
"""The system's, and one of which `secure_delete` is off by default."""
CONTROLS: Final = count(8, 30)


def job(file: FuzzedFile, **changes: Any) -> dict[str, Any]:
    """Returns a job that searches a file for all that was erased from it."""
    return {
        "path": str(file.path),
        "values": file.values,
        "module": "sqlite3",
        "vacuum": False,
        "deep": False,
        "patience_seconds": None,
        "vacuum_milliseconds": 1000,
        "skip": [],
    } | changes


def deleted(
    folder: Path, seed: int, *, journal: str = "wal", secure: bool = False, sqlite: Any = sqlite3
) -> FuzzedFile:
    """Returns a file from which the rows of one owner were deleted."""
    file = build(folder / f"{seed}.db", seed, sqlite, journal=journal, huge=seed % 100 == 7)
    delete(file, sqlite, journal=journal, secure=secure)
    return file


@contextmanager
def idle(path: Path) -> Iterator[None]:
    """Keeps a connection open, so that the WAL is not removed with the last one."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        yield


@pytest.mark.parametrize("group", range(GROUPS))
@pytest.mark.parametrize("library", LIBRARIES)
def test_no_piece_is_left_in_files_that_others_wrote(
    library: str, group: int, tmp_path: Path
) -> None:
    """The search sees what the scanner sees, and after at most one VACUUM both see nothing."""
    sqlite = pytest.importorskip(library)
    dirty = 0
    first_seed = 2 * group + LIBRARIES.index(library)
    for seed in range(first_seed, count(150, 1000), 2 * GROUPS):
        file = deleted(tmp_path, seed, journal=JOURNALS[seed % 3], sqlite=sqlite)
        first = work_on(job(file, module=library))
        found = residue(file.path, file.values, sqlite)
        assert first["sqlite"] == sqlite.sqlite_version
        assert bool(first["residue"]) == bool(found), f"seed {seed}: {first}"
        assert first["verified"] is not bool(found), f"seed {seed}: {first}"
        dirty += bool(found)
        if found:
            second = work_on(job(file, module=library, vacuum=True))
            assert second["verified"], f"seed {seed}: {second}"
        assert residue(file.path, file.values, sqlite) == [], f"seed {seed}"
    assert dirty  # otherwise nothing was tested


def test_without_secure_delete_and_vacuum_the_scanner_sees_residue(tmp_path: Path) -> None:
    """Control: rows deleted by plain SQLite stay in the file, and are not called verified."""
    left = 0
    for seed in range(CONTROLS):
        file = deleted(tmp_path, seed)
        outcome = work_on(job(file, vacuum=True, skip=["vacuum"]))
        found = residue(file.path, file.values, sqlite3)
        assert outcome["verified"] is not bool(found)
        left += bool(found)
    assert left > CONTROLS // 2


def test_without_truncate_the_scanner_sees_residue_in_the_wal(tmp_path: Path) -> None:
    """Control: what was deleted stays until the WAL is emptied, and is not called verified."""
    left = 0
    for seed in range(CONTROLS):
        path = tmp_path / f"{seed}.db"
        file = build(path, seed, sqlite3, journal="wal")
        with idle(path):
            delete(file, sqlite3, journal="wal", secure=True)
            outcome = work_on(job(file, vacuum=True, skip=["truncate", "vacuum"]))
            assert not outcome["verified"]
            left += bool(residue(path, file.values, sqlite3))
            assert work_on(job(file, vacuum=True))["verified"]
            assert residue(path, file.values, sqlite3) == []
    assert left > CONTROLS // 2


def test_without_the_search_the_scanner_contradicts_the_product(tmp_path: Path) -> None:
    """Control: a product that does not look says "verified", and the scanner shows it wrong."""
    wrong = 0
    for seed in range(CONTROLS):
        file = deleted(tmp_path, seed)
        outcome = work_on(job(file, skip=["search"]))
        wrong += outcome["verified"] and bool(residue(file.path, file.values, sqlite3))
    assert wrong > CONTROLS // 2


@pytest.mark.parametrize("version", ["fts4", "fts5"])
def test_full_text_indexes_forget_deleted_words(version: str, tmp_path: Path) -> None:
    """The words of deleted rows go from a full-text index too; without `optimize` they stay."""
    for skip, is_left in ((["optimize"], True), ([], False)):
        for seed in range(CONTROLS // 2):
            path = tmp_path / f"{version}-{seed}-{is_left}.db"
            words = [f"{seed:03}secretword{number:05}" for number in range(40)]
            with closing(sqlite3.connect(path, isolation_level=None)) as connection:
                connection.execute("PRAGMA secure_delete=OFF").fetchall()
                connection.execute(f"CREATE VIRTUAL TABLE texts USING {version}(body)")
                for word in words:
                    connection.execute("INSERT INTO texts VALUES (?)", (f"say {word} now",))
                connection.execute("DELETE FROM texts")
            file = FuzzedFile(path, words)
            outcome = work_on(job(file, vacuum=True, skip=skip))
            assert outcome["verified"]  # the index is live: this is why it is optimised
            found = residue(
                path, [f"secretword{n:05}" for n in range(40)], sqlite3, indexes="texts"
            )
            # An old index this small may forget a word by itself.
            assert bool(found) is is_left or (is_left and version == "fts4")


def test_a_pinned_reader_is_not_called_verified(tmp_path: Path) -> None:
    """While a reader keeps the WAL from being emptied, nothing is verified; afterwards it is."""
    file = build(tmp_path / "a.db", 1, sqlite3, journal="wal")
    with closing(sqlite3.connect(file.path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM row").fetchone()
        delete(file, sqlite3, journal="wal", secure=True)
        outcome = work_on(job(file, vacuum=True))
        assert not outcome["verified"]
        assert outcome["steps"]["wal checkpoint"].startswith("failed (1, ")
    assert work_on(job(file, vacuum=True))["verified"]
    assert residue(file.path, file.values, sqlite3) == []


def test_a_journal_that_was_left_is_emptied(tmp_path: Path) -> None:
    """What a PERSIST journal keeps goes, once the file is in WAL mode."""
    file = deleted(tmp_path, 4, journal="persist")
    journal = file.path.with_name(file.path.name + "-journal")
    kept = journal.read_bytes()
    with closing(sqlite3.connect(file.path)) as connection:
        connection.execute("PRAGMA journal_mode=wal").fetchall()
    journal.write_bytes(kept)  # SQLite 3.40 takes it away; a crash or another library may not
    outcome = work_on(job(file, vacuum=True))
    assert outcome["steps"]["journal"] == "emptied"
    assert outcome["verified"]
    assert residue(file.path, file.values, sqlite3) == []


def test_deep_writes_zeros_over_the_wal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A WAL that holds erased values is overwritten before SQLite cuts it off."""
    written: list[int] = []
    real = sqlite_work._write_zeros

    def noted(file: int, size: int) -> None:
        written.append(size)
        real(file, size)

    monkeypatch.setattr(sqlite_work, "_write_zeros", noted)
    file = build(tmp_path / "a.db", 2, sqlite3, journal="wal")
    with idle(file.path):
        delete(file, sqlite3, journal="wal", secure=True)
        outcome = work_on(job(file, vacuum=True, deep=True))
    assert outcome["steps"]["zeros over the WAL"] == "done"
    assert outcome["verified"]
    assert written[0] > 0
    with closing(sqlite3.connect(file.path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_what_is_no_database_is_not_verified(tmp_path: Path) -> None:
    """A file that cannot be read as a database is an error in the outcome, and changes nothing."""
    path = tmp_path / "a.db"
    path.write_bytes(b"no database, but long enough to have a header" * 9)
    before = path.read_bytes()
    outcome = work_on(job(FuzzedFile(path, ["something"])))
    assert outcome["error"]
    assert not outcome["verified"]
    assert path.read_bytes() == before


def test_only_the_standard_library_is_needed() -> None:
    """The process that searches imports the standard library and its own modules, nothing else."""
    for module in (sqlite_pages, residue_module, sqlite_work):
        tree = ast.parse(Path(module.__file__ or "").read_text())
        names = {
            name
            for node in ast.walk(tree)
            for name in (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
        }
        foreign = {name for name in names if name.partition(".")[0] not in _STANDARD}
        assert foreign <= {"adk_memory_ext.erasure.residue", "adk_memory_ext.erasure.sqlite_pages"}


_STANDARD: Final = sys.stdlib_module_names
