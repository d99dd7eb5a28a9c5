"""An erasure survives SIGKILL at any of its steps, and is finished afterwards."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
from typing import TYPE_CHECKING, Any, Final

import pytest

from adk_memory_ext.erasure import physical, verifying
from adk_memory_ext.service import DurableSessionService
from adk_memory_ext.sqlite_database import SqliteDatabase
from conversation import said
from forks import context
from residues import residue
from servers import HANG_SECONDS

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("nothing_left")

ANN: Final[dict[str, Any]] = {"app_name": "app", "user_id": "ann-of-green-gables"}
WORDS: Final = "kept the lighthouse of Avonlea"
STEPS: Final = ("noted", "deleted", "verified", "ended", "session deleted")


def url_of(folder: Path) -> str:
    """Returns the URL of the database in a folder."""
    return f"sqlite:///{folder}/sessions.db"


def killed_at(folder: str, step: str, *, deep: bool = False) -> None:
    """Erases a user and is killed right after a step."""
    writes = {"noted": 1, "deleted": 2, "ended": 3}.get(step)
    write, clean = SqliteDatabase.write, physical.clean
    count = 0

    async def counting(self: SqliteDatabase, *arguments: Any) -> Any:
        nonlocal count
        result = await write(self, *arguments)
        count += 1
        if count == writes:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    async def cleaning(*arguments: Any, **options: Any) -> Any:
        if step != "session deleted":
            await clean(*arguments, **options)
        os.kill(os.getpid(), signal.SIGKILL)

    async def erase() -> None:
        async with DurableSessionService.from_url(f"sqlite:///{folder}/sessions.db") as sessions:
            if writes:
                SqliteDatabase.write = counting  # type: ignore[assignment, method-assign]
            else:
                vars(verifying)["clean"] = cleaning
            if step == "session deleted":
                await sessions.delete_session(**ANN, session_id="session")
                await asyncio.sleep(HANG_SECONDS)
            await sessions.erasure.erase_user(**ANN, deep=deep)

    asyncio.run(erase())


@pytest.mark.parametrize("step", STEPS)
async def test_a_killed_erasure_is_finished(step: str, tmp_path: Path) -> None:
    """Whatever step a process is killed at, the next start finishes the erasure, once."""
    async with DurableSessionService.from_url(url_of(tmp_path)) as sessions:
        session = await sessions.create_session(**ANN, session_id="session")
        for number in range(20):
            await sessions.append_event(session, said(f"{WORDS} {number} " + "pad " * 300))
    process = context().Process(target=killed_at, args=(str(tmp_path), step))
    process.start()
    process.join(HANG_SECONDS)
    assert process.exitcode == -signal.SIGKILL
    process.close()
    async with DurableSessionService.from_url(url_of(tmp_path)):
        pass  # which finishes what was left
    async with DurableSessionService.from_url(url_of(tmp_path)) as sessions:
        (receipt,) = await sessions.erasure.receipts()
        assert receipt.verified
        assert (await sessions.list_sessions(**ANN)).sessions == []
        lost = [reason for reason in receipt.not_checked if "lost" in reason]
        assert bool(lost) is (step in {"deleted", "verified", "session deleted"})
    assert residue(tmp_path / "sessions.db", [WORDS, ANN["user_id"]], sqlite3) == []


@pytest.mark.parametrize("step", ["noted", "deleted"])
async def test_a_deep_erasure_is_finished_as_one(step: str, tmp_path: Path) -> None:
    """Who finishes an erasure that was to go deep rewrites the file and the WAL, as was asked."""
    async with DurableSessionService.from_url(url_of(tmp_path)) as sessions:
        session = await sessions.create_session(**ANN, session_id="session")
        await sessions.append_event(session, said(WORDS))
    process = context().Process(target=killed_at, args=(str(tmp_path), step), kwargs={"deep": True})
    process.start()
    process.join(HANG_SECONDS)
    assert process.exitcode == -signal.SIGKILL
    process.close()
    async with DurableSessionService.from_url(url_of(tmp_path)):
        pass
    async with DurableSessionService.from_url(url_of(tmp_path)) as sessions:
        (receipt,) = await sessions.erasure.receipts()
    assert receipt.level == "deep"
    assert receipt.steps["vacuum"] == "done"
    assert "zeros over the WAL" in receipt.steps
