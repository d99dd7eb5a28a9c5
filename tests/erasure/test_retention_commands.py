"""`adk-memory sweep` and `adk-memory prune`."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import sqlite3
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

import pytest
from click.testing import CliRunner

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
WHICH: Final = ("--app", "app", "--user", ANN["user_id"], "--session", "session-one")


@pytest.fixture
def url(tmp_path: Path) -> str:
    """The URL of a database with two sessions of three turns."""
    url = f"sqlite:///{tmp_path}/sessions.db"

    async def talk() -> None:
        async with DurableSessionService.from_url(url) as sessions:
            for name in ("one", "two"):
                session = await sessions.create_session(**ANN, session_id=f"session-{name}")
                for turn in range(3):
                    event = said(f"{WORDS} {name} {turn}", invocation=f"i-{turn}")
                    await sessions.append_event(session, event)

    asyncio.run(talk())
    return url


def run(url: str, *arguments: str) -> Result:
    """Returns what a command prints and its exit code."""
    return CliRunner().invoke(main, [arguments[0], "--url", url, *arguments[1:]])


def test_a_dry_run_and_then_the_sweep(url: str, tmp_path: Path) -> None:
    """`sweep --dry-run` counts and deletes nothing; `sweep` prints a receipt."""
    dry = run(url, "sweep", "--session-idle", "0s", "--dry-run")
    assert dry.exit_code == 0, dry.output
    assert "6  events" in dry.output
    assert "Nothing had to go" in run(url, "sweep", "--session-idle", "30d").output
    result = run(url, "sweep", "--session-idle", "0s")
    assert result.exit_code == 0, result.output
    assert "6  events" in result.output
    assert "Erasure of what has expired, level file: verified" in result.output
    assert residue(tmp_path / "sessions.db", [WORDS, ANN["user_id"]], sqlite3) == []
    assert "what has expired" in run(url, "receipts").output


def test_a_policy_by_name(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--policy module:name` takes a RetentionPolicy, and no rules beside it."""
    (tmp_path / "our_retention.py").write_text(
        "from datetime import timedelta\n"
        "from adk_memory_ext import Pruning, RetentionPolicy\n"
        "POLICY = RetentionPolicy(history=Pruning(older_than=timedelta(0)))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    result = run(url, "sweep", "--policy", "our_retention:POLICY", "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.output)
    assert document["counts"] == {"events": 4}
    assert [receipt["kind"] for receipt in document["receipts"]] == ["pruning"]
    both = run(url, "sweep", "--policy", "our_retention:POLICY", "--session-idle", "1d")
    assert both.exit_code == 1
    assert "not both" in both.output
    assert run(url, "sweep", "--policy", "our_retention:timedelta").exit_code == 1


@pytest.mark.parametrize("duration", ["30", "d", "-1d", "a month"])
def test_a_duration_has_a_unit(url: str, duration: str) -> None:
    """What is no duration is a usage error."""
    result = run(url, "sweep", "--session-idle", duration)
    assert result.exit_code == 2
    assert "no duration" in result.output


def test_a_sweep_that_cannot_be_verified_fails(url: str, tmp_path: Path) -> None:
    """While a reader is pinned the exit code is 1, and `erase --resume` ends it."""
    with subprocess.Popen(
        [sys.executable, "-c", READER, tmp_path / "sessions.db"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"reads\n"
        result = run(url, "sweep", "--session-idle", "0s")
        pruned = run(url, "prune", *WHICH)
        reader.communicate()
    assert result.exit_code == 1
    assert "NOT VERIFIED" in result.output
    assert "adk-memory erase --resume" in result.output
    assert pruned.exit_code == 1  # there is no such session any more
    assert run(url, "erase", "--resume").exit_code == 0
    assert residue(tmp_path / "sessions.db", [WORDS], sqlite3) == []


def test_a_session_is_pruned(url: str) -> None:
    """`prune` keeps the newest turns of one session, and says what went."""
    dry = run(url, "prune", *WHICH, "--older-than", "0s", "--keep", "2", "--dry-run")
    assert "1  events (age)" in dry.output, dry.output
    result = run(url, "prune", *WHICH, "--older-than", "0s", "--keep", "2")
    assert result.exit_code == 0, result.output
    assert "1  events (age)" in result.output
    assert "Erasure of pruned events, level file: verified" in result.output
    again = run(url, "prune", *WHICH, "--older-than", "0s", "--keep", "2", "--json")
    assert json.loads(again.output) == {"counts": {}, "receipts": []}


def test_what_is_not_there_is_told(url: str, tmp_path: Path) -> None:
    """No database is made to find nothing in it, and an unknown session is an error."""
    for command in (("sweep",), ("prune", *WHICH)):
        result = run(f"sqlite:///{tmp_path}/other.db", *command)
        assert result.exit_code == 1
        assert "There is no database" in result.output
    result = run(url, "prune", *WHICH[:-1], "nobody")
    assert result.exit_code == 1
    assert "'nobody'" in result.output
    assert not (tmp_path / "other.db").exists()


def test_progress_is_shown_on_a_terminal(url: str) -> None:
    """A terminal's standard error shows how far it has come; standard output has the outcome."""
    ours, theirs = pty.openpty()
    program = "from adk_memory_ext.cli import main; main()"
    result = subprocess.run(
        [sys.executable, "-c", program, "sweep", "--url", url, "--session-idle", "0s"],
        stdout=subprocess.PIPE,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm"},
        check=False,
    )
    os.close(theirs)
    shown = b""
    try:
        while piece := os.read(ours, 65536):
            shown += piece
    except OSError:  # the other end is closed
        pass
    os.close(ours)
    assert result.returncode == 0
    assert b"verified" in result.stdout
    assert b"expired" in shown
