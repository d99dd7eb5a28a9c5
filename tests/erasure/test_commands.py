"""`adk-memory erase` and `adk-memory receipts`."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

import pytest
from click.testing import CliRunner

from adk_memory_ext import NewFact, Provenance
from adk_memory_ext.cli import main
from adk_memory_ext.service import DurableSessionService
from conversation import said
from pinned import READER
from residues import residue

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result

pytestmark = pytest.mark.usefixtures("nothing_left")

ANN: Final[dict[str, Any]] = {"app_name": "app", "user_id": "ann-of-green-gables"}
WORDS: Final = "kept the lighthouse of Avonlea"
WHOSE: Final = ("--app", "app", "--user", ANN["user_id"])


@pytest.fixture
def url(tmp_path: Path) -> str:
    """The URL of a database in which somebody has talked twice."""
    url = f"sqlite:///{tmp_path}/sessions.db"

    async def talk() -> None:
        async with DurableSessionService.from_url(url) as sessions:
            for name in ("one", "two"):
                session = await sessions.create_session(**ANN, session_id=f"session-{name}")
                await sessions.append_event(session, said(f"{WORDS} {name}"))

    asyncio.run(talk())
    return url


def run(url: str, *arguments: str) -> Result:
    """Returns what a command prints and its exit code."""
    return CliRunner().invoke(main, [arguments[0], "--url", url, *arguments[1:]])


def test_a_plan_changes_nothing(url: str) -> None:
    """`--plan` counts what would go, and what it counts is still there afterwards."""
    first, second = (run(url, "erase", *WHOSE, "--plan") for _ in range(2))
    assert first.exit_code == 0, first.output
    assert "2  events" in first.output
    assert first.output == second.output


def test_a_session_and_then_its_user_go(url: str, tmp_path: Path) -> None:
    """`erase` prints a receipt, `receipts` lists it without its key, `verify` finds it unbroken."""
    result = run(url, "erase", *WHOSE, "--session", "session-one", "--json")
    assert json.loads(result.output)["counts"]["events"] == 1
    result = run(url, "erase", *WHOSE, "--requested-by", "support")
    assert result.exit_code == 0, result.output
    assert "verified" in result.output
    assert residue(tmp_path / "sessions.db", [WORDS, ANN["user_id"]], sqlite3) == []
    listed = run(url, "receipts")
    assert listed.output.count("Erasure of a") == 2
    assert "requested by  support" in listed.output
    assert run(url, "receipts", "verify").exit_code == 0
    with closing(sqlite3.connect(tmp_path / "sessions.db")) as connection:
        connection.execute("DELETE FROM memext_receipts WHERE number = 1")
        connection.commit()
    broken = run(url, "receipts", "verify")
    assert broken.exit_code == 1
    assert "missing one: 2" in broken.output


def test_forks_go_or_are_left(url: str) -> None:
    """`--plan` counts them, and `--forks` says what becomes of them."""

    async def fork(name: str) -> None:
        async with DurableSessionService.from_url(url) as sessions:
            session = await sessions.get_session(**ANN, session_id="session-one")
            assert session is not None
            point = await sessions.checkpoints.create(session, step=name)
            await sessions.checkpoints.fork(point.id, name)

    asyncio.run(fork("left"))
    one = (*WHOSE, "--session", "session-one")
    assert "1  forks of the session" in run(url, "erase", *one, "--plan").output
    assert "2  events" in run(url, "erase", *one, "--plan").output
    assert "1  events" in run(url, "erase", *one, "--plan", "--forks", "detach").output
    assert "forks: 1 detached" in run(url, "erase", *one, "--forks", "detach").output
    assert "2  events" in run(url, "erase", *WHOSE, "--plan").output


def test_facts_stay_or_go(url: str) -> None:
    """`--facts remove` takes along what the user asked to save in the session."""

    async def save(name: str) -> None:
        async with DurableSessionService.from_url(url) as sessions:
            source = Provenance(session_id="session-one")
            fact = NewFact(key=name, value=name, provenance=source)
            await sessions.profiles.save(fact, **ANN)

    one = (*WHOSE, "--session", "session-one")
    for name in ("first", "second"):
        asyncio.run(save(name))
    assert " facts: " not in run(url, "erase", *one).output
    asyncio.run(save("later"))
    assert "facts: 1 removed" in run(url, "erase", *one, "--facts", "remove").output
    assert "2  profile facts" in run(url, "erase", *WHOSE, "--plan").output


def test_an_incomplete_erasure_fails_and_is_resumed(url: str, tmp_path: Path) -> None:
    """While a reader is pinned the command exits with 1 and the receipt; `--resume` ends it."""
    # In another process: opening the file a second time here would drop a reader's locks.
    with subprocess.Popen(
        [sys.executable, "-c", READER, tmp_path / "sessions.db"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"reads\n"
        result = run(url, "erase", *WHOSE)
        reader.communicate()
    assert result.exit_code == 1
    assert "NOT VERIFIED" in result.output
    assert WORDS not in result.output
    result = run(url, "erase", "--resume")
    assert result.exit_code == 0, result.output
    assert "2 rows: events" in run(url, "receipts").output
    assert residue(tmp_path / "sessions.db", [WORDS], sqlite3) == []


def test_an_export_is_for_its_owner_only(url: str, tmp_path: Path) -> None:
    """`export` writes a new file that nobody else may read, and never over another one."""
    file = tmp_path / "ann.json"
    assert run(url, "export", *WHOSE, str(file)).exit_code == 0
    assert f"{WORDS} one" in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    before = file.read_bytes()
    again = run(url, "export", *WHOSE, str(file))
    assert again.exit_code == 1
    assert "exists" in again.output
    assert file.read_bytes() == before


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    """Without a person, or without a database, nothing is made and the exit code is not 0."""
    url = f"sqlite:///{tmp_path}/none.db"
    assert run(url, "erase").exit_code == 2
    assert run(url, "erase", *WHOSE).exit_code == 1
    assert run(url, "receipts").exit_code == 1
    assert list(tmp_path.iterdir()) == []
