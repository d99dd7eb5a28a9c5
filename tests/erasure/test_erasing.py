"""Erasing sessions and people: every row and byte of theirs goes, and nothing of anybody else."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

import pytest
from google.adk.artifacts.in_memory_artifact_service import InMemoryArtifactService
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.sessions.database_session_service import DatabaseSessionService
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google.genai import types

from adk_memory_ext.erasure import deletions, ledger
from adk_memory_ext.erasure.jobs import first_facts
from adk_memory_ext.erasure.receipts import Receipt
from adk_memory_ext.erasure.subjects import Subject
from adk_memory_ext.errors import CapabilityError, ErasureIncompleteError, InvalidIdError
from adk_memory_ext.service import DurableSessionService
from adk_memory_ext.sql_sessions import SqlSessionService
from conversation import said
from residues import residue
from servers import HANG_SECONDS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from adk_memory_ext.erasure.erasing import Plan
    from backends import Backend

pytestmark = pytest.mark.usefixtures("nothing_left")

ANN: Final[dict[str, Any]] = {"app_name": "app", "user_id": "ann-of-green-gables"}
ANNA: Final[dict[str, Any]] = {"app_name": "app", "user_id": "ann-of-green-gables-2"}
RESUME: Final = "Zürich 2019: kept the lighthouse of Avonlea, 燈塔管理員 🗼, wrote SQL"
SECRETS: Final = [
    RESUME,
    "six hours on Tuesdays only",
    "ann-of-green-gables-session",
    '"weekly_hours": 61973',
]


async def talk(sessions: DurableSessionService, owner: dict[str, Any], text: str) -> str:
    """Stores a session with a turn and state of three scopes; returns its id."""
    session_id = f"{owner['user_id']}-session"
    session = await sessions.create_session(
        **owner,
        session_id=session_id,
        state={
            "resume_text": text,
            "weekly_hours": 61973 if owner is ANN else 5,
            "user:likes": f"{text} and tea",
            "app:motto": "be brief",
        },
    )
    for number in range(12):
        await sessions.append_event(session, said(f"{text}, part {number} " + "padding " * 60))
    wish = "six hours on Tuesdays only" if owner is ANN else "any time"
    await sessions.append_event(session, said(wish, author="coach"))
    return session_id


@pytest.fixture
async def file_sessions(tmp_path: Path) -> AsyncIterator[DurableSessionService]:
    """A service over a SQLite file in which two people have talked."""
    url = f"sqlite:///{tmp_path}/sessions.db"
    async with DurableSessionService.from_url(url) as sessions:
        await talk(sessions, ANN, RESUME)
        await talk(sessions, ANNA, "Zürich 2020: something else")
        yield sessions


def left(folder: Path, values: list[str] = SECRETS) -> list[str]:
    """Returns what an independent scanner finds of the values."""
    return residue(folder / "sessions.db", values, sqlite3)


async def everything(sessions: DurableSessionService, owner: dict[str, Any]) -> str:
    """Returns all that is stored of a user."""
    listed = (await sessions.list_sessions(**owner)).sessions
    loaded = [await sessions.get_session(**owner, session_id=item.id) for item in listed]
    state = await sessions.get_user_state(**owner)
    return json.dumps([item.model_dump_json() for item in loaded if item] + [state])


async def test_a_session_goes_and_its_user_stays(
    sessions: DurableSessionService, backend: Backend
) -> None:
    """`erase_session` deletes the session on every database; user and app state stay."""
    session_id = await talk(sessions, ANN, RESUME)
    await talk(sessions, ANNA, "Zürich 2020")
    before = await everything(sessions, ANNA)
    receipt = await sessions.erasure.erase_session(**ANN, session_id=session_id)
    assert receipt.verified
    assert receipt.level == ("file" if backend.storage == "sqlite" else "logical")
    assert receipt.counts["events"] == 13
    assert await sessions.get_session(**ANN, session_id=session_id) is None
    assert await sessions.get_user_state(**ANN) == {"likes": f"{RESUME} and tea"}
    assert await everything(sessions, ANNA) == before


async def test_a_person_goes_and_may_come_back(sessions: DurableSessionService) -> None:
    """`erase_user` deletes sessions and user state, on every database; a new account works."""
    await talk(sessions, ANN, RESUME)
    await talk(sessions, ANNA, "Zürich 2020")
    before = await everything(sessions, ANNA)
    plan: Plan = await sessions.erasure.plan_user(**ANN)
    receipt = await sessions.erasure.erase_user(**ANN)
    assert plan.counts == receipt.counts
    assert not any((await sessions.erasure.plan_user(**ANN)).counts.values())
    assert await everything(sessions, ANNA) == before
    session_id = await talk(sessions, ANN, "a new life")
    loaded = await sessions.get_session(**ANN, session_id=session_id)
    assert loaded is not None
    assert loaded.state["app:motto"] == "be brief"
    assert RESUME not in loaded.model_dump_json()


async def test_what_is_exported_is_what_would_be_erased(sessions: DurableSessionService) -> None:
    """An export holds every row that an erasure deletes, with every text, and nobody else's."""
    await talk(sessions, ANN, RESUME)
    await talk(sessions, ANNA, "Zürich 2020")
    document = await sessions.erasure.export_user(**ANN)
    text = json.dumps(document, ensure_ascii=False)
    assert all(secret in text for secret in SECRETS)
    assert "Zürich 2020" not in text
    receipt = await sessions.erasure.erase_user(**ANN)
    assert {name: len(rows) for name, rows in document["stores"].items()} == receipt.counts
    empty = await sessions.erasure.export_user(**ANN)
    assert not any(empty["stores"].values())


async def test_no_byte_of_a_person_is_left(
    file_sessions: DurableSessionService, tmp_path: Path
) -> None:
    """After `erase_user` an independent scanner finds nothing; before, it finds everything."""
    with closing(sqlite3.connect(tmp_path / "sessions.db")) as connection:
        raw = "".join(str(row) for row in connection.execute("SELECT * FROM events"))
    assert "lighthouse" in raw
    receipt = await file_sessions.erasure.erase_user(**ANN)
    assert receipt.verified
    assert receipt.values_searched > 20
    # Her id begins Anna's, whose rows stay: it is no residue.
    assert left(tmp_path) == []
    assert b"lighthouse" not in (tmp_path / "sessions.db").read_bytes()


async def test_what_plain_adk_deleted_earlier_goes_too(tmp_path: Path) -> None:
    """Residue of rows that plain ADK deleted without `secure_delete` leads to a VACUUM."""
    path = tmp_path / "sessions.db"
    async with DatabaseSessionService(f"sqlite+aiosqlite:///{path}") as plain:
        for number in range(30):
            session = await plain.create_session(**ANN, session_id=f"old-{number}")
            await plain.append_event(session, said(f"{RESUME} {number} " * 90))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA secure_delete=OFF").fetchall()
        connection.execute("DELETE FROM events WHERE session_id <> 'old-3'")
        connection.execute("DELETE FROM sessions WHERE id <> 'old-3'")
        connection.commit()
    async with DurableSessionService.from_url(f"sqlite:///{path}") as sessions:
        receipt = await sessions.erasure.erase_session(**ANN, session_id="old-3")
        assert receipt.verified
        assert receipt.residue_found > 0
        assert receipt.residue_left == 0
        assert receipt.steps["vacuum"] == "done"
    assert left(tmp_path, [RESUME]) == []


async def test_a_running_turn_cannot_bring_anything_back(
    file_sessions: DurableSessionService, tmp_path: Path
) -> None:
    """An append to an erased session is refused, by a session object loaded before too."""
    session_id = f"{ANN['user_id']}-session"
    loaded = await file_sessions.get_session(**ANN, session_id=session_id)
    assert loaded is not None
    await file_sessions.erasure.erase_user(**ANN)
    with pytest.raises(SessionNotFoundError):
        await file_sessions.append_event(loaded, said(RESUME))
    await file_sessions.create_session(**ANN, session_id=session_id)
    with pytest.raises(Exception, match="deleted and created again"):
        await file_sessions.append_event(loaded, said(RESUME))
    assert left(tmp_path, [RESUME]) == []


async def test_the_stored_receipt_names_nobody(
    file_sessions: DurableSessionService, tmp_path: Path
) -> None:
    """The database holds no id and no value of the subject; the caller's receipt has the key."""
    receipt = await file_sessions.erasure.erase_user(
        **ANN, requested_by=f"{ANN['user_id']} herself"
    )
    (stored,) = await file_sessions.erasure.receipts()
    assert receipt.subject_key is not None
    assert stored.subject_key is None
    assert stored.subject == receipt.subject
    assert (stored.number, stored.digest) == (receipt.number, receipt.digest)
    for secret in [*SECRETS, RESUME[:12], f"{ANN['user_id']} "]:
        assert secret not in stored.to_json()
    with closing(sqlite3.connect(tmp_path / "sessions.db")) as connection:
        assert connection.execute("SELECT count(*) FROM memext_erasures").fetchone() == (0,)
    assert Receipt.from_json(receipt.to_json()) == receipt
    assert "verified" in str(receipt)


async def test_an_erasure_that_is_finished_later_names_nobody_either(
    file_sessions: DurableSessionService,
) -> None:
    """Who asked stays out of the receipt where that was among what is erased."""
    database = file_sessions.database
    assert database is not None
    subject = Subject(**ANN)
    facts = first_facts(subject, b"key", RESUME)
    await database.write(lambda tx: ledger.begin(tx, "0" * 32, subject, facts))
    (receipt,) = await file_sessions.erasure.resume()
    assert (receipt.verified, receipt.requested_by) == (True, None)


async def test_a_changed_receipt_is_noticed(
    file_sessions: DurableSessionService, tmp_path: Path
) -> None:
    """Receipts are chained: one that was changed or removed breaks what follows it."""
    session_id = f"{ANN['user_id']}-session"
    await file_sessions.erasure.erase_session(**ANN, session_id=session_id, requested_by="support")
    await file_sessions.erasure.erase_user(**ANN)
    await file_sessions.erasure.erase_user(**ANN)
    assert await file_sessions.erasure.broken_receipts() == []
    with closing(sqlite3.connect(tmp_path / "sessions.db")) as connection:
        connection.execute(
            "UPDATE memext_receipts SET receipt = replace(receipt, 'support', 'nobody')"
        )
        connection.commit()
        assert await file_sessions.erasure.broken_receipts() == [1]
        connection.execute("DELETE FROM memext_receipts WHERE number = 2")
        connection.commit()
    assert await file_sessions.erasure.broken_receipts() == [1, 3]


async def test_a_pinned_reader_makes_it_incomplete_and_resume_ends_it(
    file_sessions: DurableSessionService, tmp_path: Path
) -> None:
    """While somebody reads the WAL the receipt says so; afterwards the erasure can be finished."""
    with closing(sqlite3.connect(tmp_path / "sessions.db", isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM events").fetchone()
        with pytest.raises(ErasureIncompleteError, match="WAL is in use") as caught:
            await file_sessions.erasure.erase_user(**ANN)
        assert not caught.value.receipt.verified
        assert caught.value.receipt.level == "logical"
        assert await file_sessions.list_sessions(**ANN) is not None
        assert (await file_sessions.list_sessions(**ANN)).sessions == []
    (receipt,) = await file_sessions.erasure.resume()
    assert receipt.verified
    assert any("lost" in reason for reason in receipt.not_checked)
    assert left(tmp_path) == []
    assert await file_sessions.erasure.resume() == []


async def test_delete_session_leaves_no_byte(tmp_path: Path) -> None:
    """When `delete_session` returns, a small file is verified: no byte of the session is left."""
    url = f"sqlite:///{tmp_path}/sessions.db"
    async with DurableSessionService.from_url(url) as sessions:
        session_id = await talk(sessions, ANN, RESUME)
        await sessions.state.delete(["user:likes"], app_name="app", user_id=ANN["user_id"])
        await sessions.delete_session(**ANN, session_id=session_id)
        assert left(tmp_path, [RESUME, "ann-of-green-gables-session"]) == []
        (receipt,) = await sessions.erasure.receipts()
        assert receipt.verified
        await sessions.delete_session(**ANN, session_id="unknown")
        await sessions.erasure.settle()
        assert len(await sessions.erasure.receipts()) == 1


async def test_nothing_of_the_erased_is_kept_in_memory(
    file_sessions: DurableSessionService,
) -> None:
    """Decoded events that the service kept of a session or a user are dropped, others stay."""
    assert isinstance(file_sessions.wrapped, SqlSessionService)
    cache = file_sessions.wrapped.cache
    for owner in (ANN, ANNA):
        await everything(file_sessions, owner)
    assert len(cache) == 2
    await file_sessions.erasure.erase_user(**ANN)
    assert len(cache) == 1
    await file_sessions.delete_session(**ANNA, session_id=f"{ANNA['user_id']}-session")
    assert len(cache) == 0


async def test_a_deleted_session_takes_its_checkpoints(sessions: DurableSessionService) -> None:
    """`delete_session` leaves no checkpoint that the session could be brought back from."""
    session_id = await talk(sessions, ANN, RESUME)
    session = await sessions.get_session(**ANN, session_id=session_id)
    assert session is not None
    await sessions.checkpoints.create(session, step="said")
    await sessions.delete_session(**ANN, session_id=session_id)
    assert await sessions.checkpoints.latest(**ANN) is None
    (receipt,) = await sessions.erasure.receipts()
    assert receipt.counts["checkpoints"] == 1


async def test_a_large_file_is_verified_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the search takes its time, the rows are gone from file and WAL, and it follows."""
    monkeypatch.setattr(deletions, "_CHEAP_BYTES", 0)
    url = f"sqlite:///{tmp_path}/sessions.db"
    async with DurableSessionService.from_url(url) as sessions:
        session_id = await talk(sessions, ANN, RESUME)
        await sessions.delete_session(**ANN, session_id=session_id)
        assert (tmp_path / "sessions.db-wal").stat().st_size == 0
        assert await sessions.erasure.receipts() == []
        await sessions.erasure.settle()
        (receipt,) = await sessions.erasure.receipts()
        assert receipt.verified


def test_a_loop_that_ends_leaves_the_verification_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing hangs when a loop ends in the middle of it; the deletion stays pending, and ends."""
    monkeypatch.setattr(deletions, "_CHEAP_BYTES", 0)
    url = f"sqlite:///{tmp_path}/sessions.db"
    sessions = DurableSessionService.from_url(url)

    async def delete() -> None:
        session_id = await talk(sessions, ANN, RESUME)
        await sessions.delete_session(**ANN, session_id=session_id)

    async def look() -> list[Receipt]:
        async with DurableSessionService.from_url(url) as others:
            pass  # which finishes what was left
        async with DurableSessionService.from_url(url) as others:
            return await others.erasure.receipts()

    begun = time.monotonic()
    asyncio.run(delete())
    assert time.monotonic() - begun < HANG_SECONDS
    (receipt,) = asyncio.run(look())
    assert receipt.verified
    asyncio.run(sessions.close())
    assert len(asyncio.run(look())) == 1


async def test_a_service_goes_on_in_another_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one loop left is verified by the same service in the next one, with its values."""
    monkeypatch.setattr(deletions, "_CHEAP_BYTES", 0)
    sessions = DurableSessionService.from_url(f"sqlite:///{tmp_path}/sessions.db")

    async def delete() -> None:
        session_id = await talk(sessions, ANN, RESUME)
        await sessions.delete_session(**ANN, session_id=session_id)

    await asyncio.to_thread(asyncio.run, delete())
    await sessions.erasure.settle()
    (receipt,) = await sessions.erasure.receipts()
    await sessions.close()
    assert receipt.verified
    assert receipt.values_searched
    assert not any("lost" in reason for reason in receipt.not_checked)


async def test_delete_session_outlives_a_pinned_reader(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A pinned reader does not fail the deletion: it is logged, and verified afterwards."""
    url = f"sqlite:///{tmp_path}/sessions.db"
    async with DurableSessionService.from_url(url) as sessions:
        session_id = await talk(sessions, ANN, RESUME)
        with closing(sqlite3.connect(tmp_path / "sessions.db", isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM events").fetchone()
            await sessions.delete_session(**ANN, session_id=session_id)
            await sessions.erasure.settle()
            assert "could not be verified yet" in caplog.text
            assert RESUME not in caplog.text
            assert await sessions.erasure.receipts() == []
    async with DurableSessionService.from_url(url) as sessions:
        assert [item.verified for item in await sessions.erasure.receipts()] == [True]


async def test_deletions_at_once_are_verified_together(tmp_path: Path) -> None:
    """Many deletions at once each have a receipt, and nothing of any is left."""
    url = f"sqlite:///{tmp_path}/sessions.db"
    async with DurableSessionService.from_url(url) as sessions:
        for number in range(20):
            session = await sessions.create_session(**ANN, session_id=f"session-{number:04}")
            await sessions.append_event(session, said(f"{RESUME} {number}"))
        await asyncio.gather(
            *(sessions.delete_session(**ANN, session_id=f"session-{n:04}") for n in range(20))
        )
        await sessions.erasure.settle()
        assert len(await sessions.erasure.receipts()) == 20
        assert await sessions.erasure.broken_receipts() == []
    assert left(tmp_path, [RESUME, "session-0007"]) == []


async def test_deep_says_what_lies_below(file_sessions: DurableSessionService) -> None:
    """`deep` rewrites the file in any case, and names what it cannot reach."""
    receipt = await file_sessions.erasure.erase_user(**ANN, deep=True)
    assert receipt.level == "deep"
    assert receipt.steps["vacuum"] == "done"
    assert any("backups" in reason for reason in receipt.not_checked)


async def test_artifacts_and_other_stores_are_reached(
    file_sessions: DurableSessionService,
) -> None:
    """Artifacts of the user's sessions and of the user go, and what was registered by name."""
    artifacts = InMemoryArtifactService()
    part = types.Part(text=RESUME)
    for name in ("resume.txt", "user:photo.png"):
        for owner in (ANN, ANNA):
            session_id = f"{owner['user_id']}-session"
            await artifacts.save_artifact(
                **owner, session_id=session_id, filename=name, artifact=part
            )
    asked: list[dict[str, Any]] = []

    async def erase(**identity: Any) -> int:
        asked.append(identity)
        return 4

    file_sessions.erasure.register(artifact_service=artifacts)
    file_sessions.erasure.register_erasure("search index", erase)
    receipt = await file_sessions.erasure.erase_user(**ANN)
    assert receipt.counts["artifacts"] == 2
    assert receipt.counts["search index"] == 4
    assert asked == [{**ANN, "session_id": None}]
    keys = [
        await artifacts.list_artifact_keys(**owner, session_id=f"{owner['user_id']}-session")
        for owner in (ANN, ANNA)
    ]
    assert keys == [[], ["resume.txt", "user:photo.png"]]


async def test_a_store_that_fails_is_named(file_sessions: DurableSessionService) -> None:
    """When a registered store fails, everything else goes, and the receipt names the store."""

    async def erase(**_identity: Any) -> int:
        raise OSError(RESUME)

    file_sessions.erasure.register_erasure("search index", erase)
    with pytest.raises(ErasureIncompleteError, match="search index: failed with OSError") as caught:
        await file_sessions.erasure.erase_user(**ANN)
    assert RESUME not in caught.value.receipt.to_json()
    assert not caught.value.receipt.verified
    assert (await file_sessions.list_sessions(**ANN)).sessions == []


async def test_what_cannot_be_erased_is_refused(tmp_path: Path) -> None:
    """An id that is none is refused; an export over a service without our database too."""
    async with DurableSessionService(InMemorySessionService()) as foreign:
        with pytest.raises(CapabilityError):
            await foreign.erasure.export_user(**ANN)
    async with DurableSessionService.from_url(f"sqlite:///{tmp_path}/a.db") as sessions:
        with pytest.raises(InvalidIdError):
            await sessions.erasure.erase_user(app_name="app", user_id="")


async def test_deletion_of_rows_only_is_an_option(tmp_path: Path) -> None:
    """With `verify_deletes=False` rows are deleted and no receipt is left."""
    url = f"sqlite:///{tmp_path}/sessions.db"
    async with DurableSessionService.from_url(url, verify_deletes=False) as sessions:
        session_id = await talk(sessions, ANN, RESUME)
        await sessions.delete_session(**ANN, session_id=session_id)
        assert await sessions.get_session(**ANN, session_id=session_id) is None
        assert await sessions.erasure.receipts() == []
