"""A fork holds the words of its parent: erasing the parent takes it along, or cuts it loose."""

from __future__ import annotations

import sqlite3
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest
from google.adk.artifacts.in_memory_artifact_service import InMemoryArtifactService
from google.genai import types

from adk_memory_ext import (
    CheckpointRetention,
    ConfigurationError,
    DurableSessionService,
    RetentionPolicy,
)
from adk_memory_ext.erasure import ledger
from adk_memory_ext.erasure.jobs import first_facts
from adk_memory_ext.erasure.subjects import Subject
from backends import OURS, OURS_MARIADB
from conversation import said, texts
from residues import residue
from servers import execute

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from adk_memory_ext.erasure.subjects import Forks

everywhere = pytest.mark.parametrize("backend", [*OURS, OURS_MARIADB], ids=lambda b: b.name)
ANN: Final[dict[str, Any]] = {"app_name": "app", "user_id": "ann"}
PARENT: Final[dict[str, Any]] = {**ANN, "session_id": "the first conversation"}
WORDS: Final = "kept the lighthouse of Avonlea"
EVERY_SESSION: Final = ["another", "fork", "fork of fork", "the first conversation"]


@pytest.fixture
def url(tmp_path: Path) -> str:
    """The URL of an empty SQLite database."""
    return f"sqlite+aiosqlite:///{tmp_path}/sessions.db"


@pytest.fixture
async def file_sessions(url: str) -> AsyncIterator[DurableSessionService]:
    """A service over it, with a conversation that was forked, and its fork again."""
    async with DurableSessionService.from_url(url) as service:
        await forked(service)
        yield service


async def forked(sessions: DurableSessionService) -> None:
    """Stores a session, a fork of it, a fork of that, and another session of the same user."""
    await sessions.create_session(**ANN, session_id="another")
    session = await sessions.create_session(**PARENT, state={"draft": f"{WORDS}, 燈塔"})
    await sessions.append_event(session, said(WORDS, invocation="i1"))
    point = await sessions.checkpoints.create(session, step="a")
    await sessions.append_event(session, said("and more", invocation="i2"))
    await sessions.checkpoints.create(session, step="b")
    await sessions.checkpoints.fork(point.id, "fork")
    fork = await sessions.get_session(**ANN, session_id="fork")
    assert fork is not None
    await sessions.append_event(fork, said("another way", invocation="i3"))
    again = await sessions.checkpoints.create(fork, step="c")
    await sessions.checkpoints.fork(again.id, "fork of fork")
    # The checkpoint that was forked is gone, and where the fork came from is still known.
    pruned = CheckpointRetention(last=1, last_of_each_step=False)
    assert await sessions.checkpoints.prune(pruned, **PARENT) == 1


async def left(sessions: DurableSessionService) -> list[str]:
    """Returns the ids of the user's sessions."""
    listed = await sessions.list_sessions(**ANN)
    return sorted(session.id for session in listed.sessions)


@everywhere
async def test_an_erased_session_takes_its_forks_along(sessions: DurableSessionService) -> None:
    """On every database, forks of forks too; other sessions stay, and the receipt counts them."""
    await forked(sessions)
    plan = await sessions.erasure.plan_session(**PARENT)
    receipt = await sessions.erasure.erase_session(**PARENT)
    assert await left(sessions) == ["another"]
    assert await sessions.checkpoints.list(**ANN) == []
    assert receipt.verified
    assert receipt.counts["events"] == plan.counts["events"] == 6
    assert plan.forks == 2
    assert receipt.steps["forks"] == "2 erased"


async def test_no_byte_of_its_words_is_left(
    file_sessions: DurableSessionService, tmp_path: Path
) -> None:
    """Neither the parent's nor a fork's rows leave anything in the file."""
    await file_sessions.erasure.erase_session(**PARENT)
    file = tmp_path / "sessions.db"
    assert residue(file, [WORDS, "another way", "fork of fork"], sqlite3) == []
    assert WORDS.encode() not in file.read_bytes()


@everywhere
async def test_forks_can_be_cut_loose(sessions: DurableSessionService) -> None:
    """They go on as sessions of their own that came from nowhere, with all that they hold."""
    await forked(sessions)
    receipt = await sessions.erasure.erase_session(**PARENT, forks="detach")
    assert await left(sessions) == ["another", "fork", "fork of fork"]
    fork = await sessions.get_session(**ANN, session_id="fork")
    assert fork is not None
    assert texts(fork.events) == [WORDS, "another way"]
    assert fork.state["draft"].startswith(WORDS)
    await sessions.append_event(fork, said("still here", invocation="i4"))
    assert await sessions.checkpoints.parent(**ANN, session_id="fork") is None
    assert await sessions.checkpoints.parent(**ANN, session_id="fork of fork") is not None
    assert receipt.verified
    assert receipt.steps["forks"] == "1 detached, with what it was forked with"
    assert (await sessions.erasure.plan_session(**PARENT)).forks == 0


async def test_a_fork_that_was_cut_loose_does_not_name_its_parent(
    file_sessions: DurableSessionService, url: str
) -> None:
    """No live row holds the id of the session that was erased."""
    await file_sessions.erasure.erase_session(**PARENT, forks="detach")
    tables = execute(url, "SELECT name FROM sqlite_master WHERE type = 'table'")
    rows = [execute(url, f"SELECT * FROM {name}") for (name,) in tables]  # noqa: S608
    assert PARENT["session_id"] not in str(rows)


async def test_an_erased_fork_leaves_its_parent(sessions: DurableSessionService) -> None:
    """It takes only what was forked from it."""
    await forked(sessions)
    receipt = await sessions.erasure.erase_session(**ANN, session_id="fork")
    assert await left(sessions) == ["another", "the first conversation"]
    assert receipt.steps["forks"] == "1 erased"


async def test_a_session_without_forks_says_nothing_of_them(
    sessions: DurableSessionService,
) -> None:
    """Its receipt is as it always was."""
    await forked(sessions)
    receipt = await sessions.erasure.erase_session(**ANN, session_id="another")
    assert "forks" not in receipt.steps
    assert await left(sessions) == EVERY_SESSION[1:]


async def test_a_deleted_parent_leaves_its_forks_and_can_be_erased_later(
    sessions: DurableSessionService,
) -> None:
    """`delete_session` is of one session; what its words are in is still known afterwards."""
    await forked(sessions)
    await sessions.delete_session(**PARENT)
    assert await left(sessions) == EVERY_SESSION[:3]
    await sessions.erasure.erase_session(**PARENT)
    assert await left(sessions) == ["another"]


@everywhere
async def test_a_turn_is_taken_back_in_forks_by_the_same_ids(
    sessions: DurableSessionService,
) -> None:
    """A session knows its forks, and an event has one id in all of them."""
    await forked(sessions)
    forks = await sessions.checkpoints.forks(**PARENT)
    assert forks == ("fork",)
    assert await sessions.checkpoints.forks(**ANN, session_id="fork") == ("fork of fork",)
    assert await sessions.checkpoints.forks(**ANN, session_id="another") == ()
    parent = await sessions.get_session(**PARENT)
    assert parent is not None
    for session_id in (PARENT["session_id"], "fork", "fork of fork"):
        session = await sessions.get_session(**ANN, session_id=session_id)
        assert session is not None
        assert WORDS in texts(session.events)
        await sessions.history.delete(session, [parent.events[0].id])
        session = await sessions.get_session(**ANN, session_id=session_id)
        assert session is not None
        assert WORDS not in texts(session.events)


async def test_a_sweep_leaves_the_forks_of_what_has_expired(
    sessions: DurableSessionService,
) -> None:
    """Each session has its own age; where a fork came from is still known."""
    await sessions.create_session(**PARENT)
    session = await sessions.get_session(**PARENT)
    assert session is not None
    await sessions.append_event(session, said(WORDS, invocation="i1"))
    point = await sessions.checkpoints.create(session, step="a")
    await sessions.checkpoints.fork(point.id, "fork")
    fork = await sessions.get_session(**ANN, session_id="fork")
    assert fork is not None
    later = said("a week later", invocation="i2", at=session.last_update_time + 7 * 86_400)
    await sessions.append_event(fork, later)
    rule = RetentionPolicy(session_idle=timedelta(days=1))
    await sessions.erasure.sweep(rule, now=session.last_update_time + 2 * 86_400)
    assert await left(sessions) == ["fork"]
    await sessions.catch_up(fork)
    assert texts(fork.events) == [WORDS, "a week later"]
    assert (await sessions.erasure.plan_session(**PARENT)).forks == 1


@pytest.mark.parametrize(("forks", "kept"), [("erase", ["another"]), ("detach", EVERY_SESSION[:3])])
async def test_an_interrupted_erasure_ends_by_its_policy(
    forks: Forks, kept: list[str], file_sessions: DurableSessionService, url: str
) -> None:
    """What was asked for is noted before it begins: the next process does the same."""
    database = file_sessions.database
    assert database is not None
    subject = Subject(**PARENT)
    facts = first_facts(subject, b"key", None, forks)
    await database.write(lambda tx: ledger.begin(tx, "0" * 32, subject, facts))
    async with DurableSessionService.from_url(url):
        pass  # a start finishes what is pending, and its end waits for that
    assert await left(file_sessions) == kept


async def test_deleting_with_verification_leaves_forks_alone(url: str) -> None:
    """`verify_deletes` is of one session as well."""
    async with DurableSessionService.from_url(url, verify_deletes=True) as sessions:
        await forked(sessions)
        await sessions.delete_session(**PARENT)
        await sessions.erasure.settle()
        assert await left(sessions) == EVERY_SESSION[:3]
        assert await sessions.checkpoints.parent(**ANN, session_id="fork") is not None
        (receipt,) = await sessions.erasure.receipts()
        assert receipt.verified


async def test_artifacts_and_other_stores_of_forks_are_reached(
    file_sessions: DurableSessionService,
) -> None:
    """Everything that an erasure reaches of a session, it reaches of its forks."""
    artifacts, asked = InMemoryArtifactService(), list[str]()

    async def elsewhere(*, session_id: str, **_owner: str) -> int:
        asked.append(session_id)
        return 1

    file_sessions.erasure.register(artifact_service=artifacts)
    file_sessions.erasure.register_erasure("notes", elsewhere)
    for session_id in ("fork", "another"):
        part = types.Part(text=WORDS)
        await artifacts.save_artifact(
            **ANN, session_id=session_id, filename="letter", artifact=part
        )
    receipt = await file_sessions.erasure.erase_session(**PARENT)
    assert (receipt.counts["artifacts"], receipt.counts["notes"]) == (1, 3)
    assert sorted(asked) == EVERY_SESSION[1:]
    assert await artifacts.list_artifact_keys(**ANN, session_id="another") == ["letter"]


async def test_forks_from_before_version_10_are_known(
    file_sessions: DurableSessionService, url: str
) -> None:
    """A database is brought up to date: a fork whose checkpoint is there still has its parent."""
    execute(
        url,
        "UPDATE memext_checkpoint_lines SET parent_session_id = NULL",
        "DELETE FROM memext_migrations WHERE version >= 10",
    )
    async with DurableSessionService.from_url(url) as later:
        assert (await later.erasure.plan_session(**ANN, session_id="fork")).forks == 1
    assert await left(file_sessions) == EVERY_SESSION


async def test_an_unknown_policy_is_refused(sessions: DurableSessionService) -> None:
    """Before anything is deleted."""
    await forked(sessions)
    with pytest.raises(ConfigurationError, match="forks"):
        await sessions.erasure.erase_session(**PARENT, forks="leave")  # type: ignore[arg-type]
    assert await left(sessions) == EVERY_SESSION
