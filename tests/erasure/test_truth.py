"""Whatever goes wrong while bytes are erased, the receipt says what is so."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
from typing import TYPE_CHECKING, Any, Final

import pytest

from adk_memory_ext.erasure import sqlite_work
from adk_memory_ext.erasure.sqlite_file import work_on_file
from adk_memory_ext.errors import ConfigurationError, StoreUnavailableError
from adk_memory_ext.service import DurableSessionService
from conversation import said, texts
from fuzzed_files import build, delete
from residues import residue
from rivals import append_loaded, append_until, in_processes, search_without_privileges
from servers import HANG_SECONDS

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("nothing_left")

ANN: Final[dict[str, Any]] = {"app_name": "app", "user_id": "ann-of-green-gables"}
WORDS: Final = "kept the lighthouse of Avonlea"


def job(path: Path, values: list[str], **changes: Any) -> dict[str, Any]:
    """Returns a job that searches a file."""
    settled = {"module": "sqlite3", "deep": False, "patience_seconds": None, "skip": []}
    limits = {"vacuum": False, "vacuum_milliseconds": 1000}
    return {"path": str(path), "values": values} | settled | limits | changes


async def talk(sessions: DurableSessionService, turns: int = 12) -> None:
    """Stores a session of Ann's."""
    session = await sessions.create_session(**ANN, session_id="ann's session")
    for number in range(turns):
        await sessions.append_event(session, said(f"{WORDS}, part {number} " + "pad " * 300))


async def test_another_process_writes_meanwhile(tmp_path: Path) -> None:
    """While others write all the time, an erasure is verified, and nothing of theirs is lost."""
    url = f"sqlite:///{tmp_path}/sessions.db"
    async with DurableSessionService.from_url(url) as sessions:
        await talk(sessions)
        done = tmp_path / "done"
        writing = asyncio.create_task(
            asyncio.to_thread(in_processes, 2, append_until, url, str(done))
        )
        try:
            receipt = await sessions.erasure.erase_user(**ANN)
        finally:
            done.touch()
            written = await writing
        assert receipt.verified
        assert receipt.level == "file"
        for number, expected in enumerate(written):
            session = await sessions.get_session(
                app_name="app", user_id=f"rival-{number}", session_id="rival"
            )
            assert session is not None
            assert len(texts(session.events)) == expected > 0
    assert residue(tmp_path / "sessions.db", [WORDS, ANN["user_id"]], sqlite3) == []


@pytest.mark.parametrize("used_again", [False, True], ids=["gone", "used-again"])
async def test_what_another_process_has_loaded_brings_nothing_back(
    used_again: bool, tmp_path: Path
) -> None:
    """An append through an object that was loaded before is refused, in every process."""
    url = f"sqlite:///{tmp_path}/sessions.db"
    owner: dict[str, Any] = {"app_name": "app", "user_id": "ann"}
    loaded, go = tmp_path / "loaded", tmp_path / "go"
    async with DurableSessionService.from_url(url) as sessions:
        session = await sessions.create_session(**owner, session_id="s")
        await sessions.append_event(session, said(WORDS))
        appending = asyncio.create_task(
            asyncio.to_thread(in_processes, 1, append_loaded, url, str(loaded), str(go), WORDS)
        )
        async with asyncio.timeout(HANG_SECONDS):
            while not loaded.exists():
                await asyncio.sleep(0.01)
        receipt = await sessions.erasure.erase_user(**owner)
        if used_again:
            await sessions.create_session(**owner, session_id="s")
        go.touch()
        (error,) = await appending
        assert receipt.verified
        assert error == ("StaleSessionError" if used_again else "SessionNotFoundError")
        assert await sessions.get_user_state(**owner) == {}
        again = await sessions.get_or_create_session(**owner, session_id="s")
        assert (again.events, dict(again.state)) == ([], {})
    assert residue(tmp_path / "sessions.db", [WORDS], sqlite3) == []


def test_a_disk_too_full_to_rewrite_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without room for a VACUUM nothing is called verified, and the file stays whole."""
    file = build(tmp_path / "a.db", 4, sqlite3, journal="wal")
    delete(file, sqlite3, journal="wal")
    free = shutil.disk_usage(tmp_path)._replace(free=file.path.stat().st_size)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: free)
    outcome = sqlite_work.work_on(job(file.path, file.values, vacuum=True))
    assert outcome["steps"]["vacuum"] == "failed: too little space on the disk"
    assert outcome["residue"] > 0
    assert not outcome["verified"]
    monkeypatch.undo()
    assert sqlite_work.work_on(job(file.path, file.values, vacuum=True))["verified"]


def test_a_file_that_may_only_be_read(tmp_path: Path) -> None:
    """Who may not write to the file is told so, and nothing is called verified."""
    file = build(tmp_path / "a.db", 4, sqlite3, journal="delete")
    delete(file, sqlite3, journal="delete")
    file.path.chmod(0o444)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.getuid():
            folder.chmod(folder.stat().st_mode | 0o555)
    before = file.path.read_bytes()
    (outcome,) = in_processes(
        1, search_without_privileges, job(file.path, file.values, vacuum=True)
    )
    assert not outcome["verified"]
    assert "readonly" in f"{outcome['error']}{outcome['steps'].get('vacuum')}"
    assert file.path.read_bytes() == before


async def test_a_search_that_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a process to search in, the outcome is an error and no verdict."""
    file = build(tmp_path / "a.db", 4, sqlite3, journal="wal")
    monkeypatch.setattr("adk_memory_ext.erasure.sqlite_file.sys.executable", "/nowhere/python")
    outcome = await work_on_file(file.path, file.values, vacuum=False)
    assert outcome.error == "The process that searches did not start: No such file or directory."
    assert not outcome.verified


# --- Another SQLite library


async def test_what_is_used_is_what_verifies(tmp_path: Path) -> None:
    """With `sqlite_module` the file is used, deleted from and verified through that library."""
    library = pytest.importorskip("pysqlite3")
    url = f"sqlite:///{tmp_path}/sessions.db"
    async with DurableSessionService.from_url(url, sqlite_module="pysqlite3") as sessions:
        await talk(sessions)
        receipt = await sessions.erasure.erase_user(**ANN)
    assert receipt.verified
    assert (
        receipt.versions == {"sqlite": library.sqlite_version} != {"sqlite": sqlite3.sqlite_version}
    )
    assert receipt.pragmas["secure_delete"] == 1
    assert residue(tmp_path / "sessions.db", [WORDS], library) == []


async def test_errors_of_another_library_are_translated(tmp_path: Path) -> None:
    """What another library raises becomes an error of ours as well."""
    pytest.importorskip("pysqlite3")
    url = f"sqlite:///{tmp_path}/sessions.db"
    async with DurableSessionService.from_url(url, sqlite_module="pysqlite3") as sessions:
        await talk(sessions, 1)
        assert sessions.database is not None
        with pytest.raises(StoreUnavailableError, match="SQLite says: no such table"):
            await sessions.database.write(
                lambda tx: tx.connection.exec_driver_sql("DELETE FROM nowhere")
            )
        with pytest.raises(StoreUnavailableError, match="SQLite says: no such table"):
            await sessions.database.read(
                lambda tx: tx.connection.exec_driver_sql("SELECT 1 FROM nowhere")
            )


@pytest.mark.parametrize(
    ("module", "reason"), [("sqlite_nowhere", "not installed"), ("json", "no module of SQLite's")]
)
def test_a_library_that_is_none_is_refused(module: str, reason: str, tmp_path: Path) -> None:
    """The error names the option, and nothing is created."""
    with pytest.raises(ConfigurationError, match=reason):
        DurableSessionService.from_url(f"sqlite:///{tmp_path}/a.db", sqlite_module=module)
    assert list(tmp_path.iterdir()) == []
