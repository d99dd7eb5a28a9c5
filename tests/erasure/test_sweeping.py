"""A sweep removes what has expired, by the rule of each thing and no more, and its bytes too."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest
from google.adk.sessions.database_session_service import DatabaseSessionService
from sqlalchemy import event

from adk_memory_ext import (
    CheckpointRetention,
    DurableSessionService,
    NewFact,
    Provenance,
    Pruning,
    RetentionPolicy,
    StatePolicy,
    StateRule,
    sql_expiry,
)
from adk_memory_ext.erasure import expired_rows, ledger, verifying
from adk_memory_ext.errors import ConfigurationError
from conversation import replay, said
from forks import context
from residues import residue
from servers import HANG_SECONDS
from test_state_expiry import age

if TYPE_CHECKING:
    from pathlib import Path

    from adk_memory_ext.erasure.jobs import Deleted
    from adk_memory_ext.erasure.sweeping import Sweeping
    from adk_memory_ext.statements import Transaction

pytestmark = pytest.mark.usefixtures("nothing_left")

ANN: Final[dict[str, Any]] = {"app_name": "app", "user_id": "ann-of-green-gables"}
WORDS: Final = "kept the lighthouse of Avonlea"
DAY: Final = timedelta(days=1)
IDLE: Final = RetentionPolicy(session_idle=30 * DAY)


def later(days: float) -> float:
    """Returns the time in so many days, in UTC epoch seconds."""
    return time.time() + days * 86_400


def url_of(folder: Path) -> str:
    """Returns the URL of the database in a folder."""
    return f"sqlite:///{folder}/sessions.db"


async def talk(sessions: DurableSessionService, session_id: str, at: float | None = None) -> None:
    """Stores a session with an event of a time."""
    session = await sessions.create_session(
        **ANN, session_id=session_id, state={"draft": f"{WORDS} in {session_id}", "user:tea": 2}
    )
    await sessions.append_event(session, said(f"{WORDS} {session_id}", at=at))


async def ids(sessions: DurableSessionService) -> list[str]:
    """Returns the ids of the sessions that are there."""
    return sorted(item.id for item in (await sessions.list_sessions(**ANN)).sessions)


async def test_idle_sessions_go_and_used_ones_stay(sessions: DurableSessionService) -> None:
    """A session to which nothing was appended for so long goes; user state stays."""
    await talk(sessions, "idle")
    await talk(sessions, "used", at=later(20))
    swept = await sessions.erasure.sweep(IDLE, now=later(29))
    assert (swept.counts, swept.receipts) == ({}, ())
    swept = await sessions.erasure.sweep(IDLE, now=later(31))
    assert await ids(sessions) == ["used"]
    assert swept.verified
    assert (swept.counts["events"], swept.counts["sessions with their state"]) == (1, 1)
    (receipt,) = await sessions.erasure.receipts()
    assert (receipt.kind, receipt.counts["events"]) == ("expiry", 1)
    assert "idle" not in receipt.stored()
    assert await sessions.get_user_state(**ANN) == {"tea": 2}


async def test_old_sessions_go_however_busy(sessions: DurableSessionService) -> None:
    """`session_age` counts from the creation."""
    await talk(sessions, "busy", at=later(99))
    policy = RetentionPolicy(session_age=100 * DAY)
    await sessions.erasure.sweep(policy, now=later(99))
    assert await ids(sessions) == ["busy"]
    await sessions.erasure.sweep(policy, now=later(101))
    assert await ids(sessions) == []


async def test_an_expired_session_leaves_the_rest_to_its_rules(
    sessions: DurableSessionService,
) -> None:
    """Its checkpoints restore its state until their own time; facts that it supports stay."""
    await talk(sessions, "idle")
    session = await sessions.get_session(**ANN, session_id="idle")
    assert session is not None
    point = await sessions.checkpoints.create(session, step="chosen")
    source = Provenance(session_id="idle")
    fact = NewFact(key="dietary", value="vegetarian", status="inferred", provenance=source)
    await sessions.profiles.save(fact, **ANN)
    policy = RetentionPolicy(session_idle=30 * DAY, orphaned_checkpoints=90 * DAY)
    await sessions.erasure.sweep(policy, now=later(31))
    assert await ids(sessions) == []
    assert (await sessions.checkpoints.state(point.id))["draft"] == f"{WORDS} in idle"
    assert [f.key for f in (await sessions.profiles.recall(**ANN)).facts] == ["dietary"]
    swept = await sessions.erasure.sweep(policy, now=later(91))
    assert (swept.counts["checkpoints"], swept.counts["lines of checkpoints"]) == (1, 1)
    assert await sessions.checkpoints.list(**ANN) == []


async def test_checkpoints_go_by_their_rule(sessions: DurableSessionService) -> None:
    """Those that the rule keeps restore as before; the last one of a live session stays."""
    await talk(sessions, "used")
    session = await sessions.get_session(**ANN, session_id="used")
    assert session is not None
    for number in range(5):
        await sessions.append_event(session, said(f"{number}", state={"n": number}))
        await sessions.checkpoints.create(session, step=f"step-{number}")
    keep = CheckpointRetention(last=2, last_of_each_step=False)
    policy = RetentionPolicy(checkpoints=keep, orphaned_checkpoints=timedelta(0))
    swept = await sessions.erasure.sweep(policy)
    assert swept.counts == {"checkpoints": 3}
    left = await sessions.checkpoints.list(**ANN)
    assert [point.step for point in left] == ["step-4", "step-3"]
    restored = await sessions.checkpoints.restore(left[1].id)
    assert not restored.state_only
    assert (await sessions.checkpoints.state(left[1].id))["n"] == 3


async def test_facts_go_when_their_time_is_over(sessions: DurableSessionService) -> None:
    """A value goes at its own `expires_at`, a replaced one by the rule for profiles."""
    save = sessions.profiles.save
    await save(NewFact(key="hours", value="six hours on Tuesdays", expires_at=later(1)), **ANN)
    await save(NewFact(key="dietary", value="eats no fish at all"), **ANN)
    await save(NewFact(key="dietary", value="vegetarian"), **ANN)
    policy = RetentionPolicy(profile=10 * DAY)
    swept = await sessions.erasure.sweep(policy, now=later(2))
    assert swept.counts == {"values of facts": 1}
    assert [f.key for f in (await sessions.profiles.recall(**ANN)).facts] == ["dietary"]
    document = await sessions.erasure.export_user(**ANN)
    assert len(document["stores"]["profile facts"]) == 2
    await sessions.erasure.sweep(policy, now=later(11))
    document = await sessions.erasure.export_user(**ANN)
    assert [row["claims"][0]["value"] for row in document["stores"]["profile facts"]] == [
        "vegetarian"
    ]


async def test_expired_state_goes_for_good(tmp_path: Path) -> None:
    """State whose `ttl` is over goes in every scope, and that is no use of its session."""
    policy = StatePolicy(rules=[StateRule("draft", ttl=DAY), StateRule("user:tea", ttl=DAY)])
    async with DurableSessionService.from_url(url_of(tmp_path), policy=policy) as sessions:
        await talk(sessions, "one")
        (session,) = (await sessions.list_sessions(**ANN)).sessions
        loaded = await sessions.get_session(**ANN, session_id=session.id)
        assert loaded is not None
        event = said("on", state={"draft": f"{WORDS} again", "user:tea": 77_777, "kept": 1})
        await sessions.append_event(loaded, event)
        await sessions.checkpoints.create(loaded, step="drafted")
        before = loaded.last_update_time
        await age(sessions, 2 * DAY)
        dry = await sessions.erasure.sweep(RetentionPolicy(), dry_run=True)
        swept = await sessions.erasure.sweep(RetentionPolicy())
        assert dry.counts == swept.counts == {"values of state": 2}
        after = (await sessions.list_sessions(**ANN)).sessions[0].last_update_time
        assert after - before < 0.1
        assert (await sessions.erasure.sweep(RetentionPolicy())).counts == {}
        stored = await sessions.get_session(**ANN, session_id="one")
        assert stored is not None
        assert replay(stored.events)["kept"] == 1
        assert "user:tea" not in stored.state
        # The checkpoint covers the log as it is now, and goes by its own rule.
        assert (await sessions.checkpoints.latest(**ANN)) is not None
        await sessions.checkpoints.delete(**ANN, session_id="one")
        await sessions.erasure.erase_session(**ANN, session_id="other")
    gone = [f"{WORDS} in one", f"{WORDS} again", '"user:tea": 77777']
    assert residue(tmp_path / "sessions.db", gone, sqlite3) == []


@pytest.mark.parametrize("key", ["draft", "user:tea"])
@pytest.mark.parametrize("server", ["postgresql", "mariadb"])
async def test_what_is_written_again_meanwhile_stays_in_state_and_log(
    server: str, key: str, request: pytest.FixtureRequest
) -> None:
    """A writer may come between the look for what has expired and the locks."""
    url: str = request.getfixturevalue(f"{server}_url")
    policy = StatePolicy(rules=[StateRule("draft", ttl=DAY), StateRule("user:tea", ttl=DAY)])

    async def write() -> None:
        async with DurableSessionService.from_url(url, policy=policy) as another:
            session = await another.get_session(**ANN, session_id="one")
            assert session is not None
            await another.append_event(session, said("again", state={key: WORDS}))

    def removing(tx: Transaction) -> Deleted:
        @event.listens_for(tx.connection, "before_cursor_execute")
        def before_the_first_lock(_connection: Any, _cursor: Any, sql: str, *_more: Any) -> None:
            if "FOR UPDATE" in sql and not written:
                written.append(sql)
                with ThreadPoolExecutor(1) as thread:
                    thread.submit(asyncio.run, write()).result(HANG_SECONDS)

        return expired_rows.delete_state(tx, rows, policy.ttl)

    written: list[str] = []
    async with DurableSessionService.from_url(url, policy=policy) as sessions:
        await talk(sessions, "one")
        await age(sessions, 2 * DAY)
        database = sessions.database
        assert database is not None
        found = await database.read(lambda tx: sql_expiry.all_expired(tx, policy.ttl, 10))
        rows = [row for row in found if row.key == key]
        deleted = await database.write(removing)
        stored = await sessions.get_session(**ANN, session_id="one")
        assert stored is not None
        assert (len(written), deleted.is_empty) == (1, True)
        assert stored.state[key] == replay(stored.events)[key] == WORDS


async def test_a_dry_run_says_what_would_go(sessions: DurableSessionService) -> None:
    """It counts as the sweep does, and deletes nothing."""
    for number in range(3):
        await talk(sessions, f"idle-{number}")
    await sessions.profiles.save(
        NewFact(key="hours", value="six hours on Tuesdays", expires_at=later(1)), **ANN
    )
    stored = await sessions.erasure.export_user(**ANN)
    dry = await sessions.erasure.sweep(IDLE, dry_run=True, now=later(31))
    assert await sessions.erasure.export_user(**ANN) == stored
    assert dry.receipts == ()
    steps: list[Sweeping] = []
    swept = await sessions.erasure.sweep(IDLE, now=later(31), progress=steps.append)
    assert swept.counts == dry.counts
    assert swept.counts["events"] == 3
    assert [step.stage for step in steps] == ["sessions", "profile"]
    assert steps[-1].counts == swept.counts


async def test_the_bytes_go_too(tmp_path: Path) -> None:
    """An independent scanner finds nothing of an expired session, and all of the one that stays."""
    async with DurableSessionService.from_url(url_of(tmp_path)) as sessions:
        for number in range(250):  # several batches
            await talk(sessions, f"idle-session-{number:04}")
        await talk(sessions, "used-session", at=later(20))
        swept = await sessions.erasure.sweep(IDLE, now=later(31))
        assert swept.counts["events"] == 250
        assert len(swept.receipts) == 3
        assert await sessions.erasure.broken_receipts() == []
    path = tmp_path / "sessions.db"
    assert b"idle-session" not in path.read_bytes()
    assert f"{WORDS} used-session".encode() in path.read_bytes()
    values = [f"{WORDS} idle-session-0001", "idle-session-0249"]
    assert residue(path, values, sqlite3) == []


async def test_sessions_of_plain_adk_expire_too(tmp_path: Path) -> None:
    """A session that this service has never seen goes by its own time."""
    async with DatabaseSessionService(f"sqlite+aiosqlite:///{tmp_path}/sessions.db") as plain:
        session = await plain.create_session(**ANN, session_id="plain")
        await plain.append_event(session, said(WORDS))
    async with DurableSessionService.from_url(url_of(tmp_path)) as sessions:
        assert (await sessions.erasure.sweep(IDLE, now=later(31))).counts["events"] == 1
        assert await ids(sessions) == []


def sweep_in_a_process(url: str, now: float, begin: Any, found: Any) -> None:
    """Sweeps, beginning together with others, and says what went."""

    async def run() -> None:
        async with DurableSessionService.from_url(url) as sessions:
            begin.wait(HANG_SECONDS)
            swept = await sessions.erasure.sweep(IDLE, now=now)
            found.send((dict(swept.counts), swept.verified))

    asyncio.run(run())


@pytest.mark.parametrize("storage", ["sqlite", "postgresql"])
async def test_two_processes_sweep_at_once(
    storage: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Each expired session goes once, whoever takes it, and nothing else does."""
    url = url_of(tmp_path) if storage == "sqlite" else request.getfixturevalue("postgresql_url")
    async with DurableSessionService.from_url(url) as sessions:
        for number in range(120):
            await talk(sessions, f"idle-{number}")
        await talk(sessions, "used", at=later(20))
    begin = context().Barrier(2)
    ends = [multiprocessing.Pipe(duplex=False) for _ in range(2)]
    processes = [
        context().Process(target=sweep_in_a_process, args=(url, later(31), begin, end[1]))
        for end in ends
    ]
    for process in processes:
        process.start()
    outcomes = []
    for (reading, writing), process in zip(ends, processes, strict=True):
        assert await asyncio.to_thread(reading.poll, HANG_SECONDS)
        outcomes.append(reading.recv())
        process.join(HANG_SECONDS)
        assert process.exitcode == 0
        process.close()
        reading.close()
        writing.close()
    assert sum(counts.get("events", 0) for counts, _ in outcomes) == 120
    async with DurableSessionService.from_url(url) as sessions:
        assert await ids(sessions) == ["used"]
        assert await sessions.erasure.resume() == []
        assert await sessions.erasure.broken_receipts() == []
        total = sum(receipt.counts["events"] for receipt in await sessions.erasure.receipts())
        assert total == 120


PRUNE: Final = RetentionPolicy(history=Pruning(older_than=timedelta(0)))


def kill_itself(*_arguments: Any, **_options: Any) -> Any:
    """Ends the process at once."""
    os.kill(os.getpid(), signal.SIGKILL)


def killed(folder: str, policy: RetentionPolicy, step: str) -> None:
    """Sweeps and is killed: inside of the transaction, or when the rows are gone."""

    async def run() -> None:
        async with DurableSessionService.from_url(f"sqlite:///{folder}/sessions.db") as sessions:
            if step == "deleting":
                vars(ledger)["begin_behind_deletion"] = kill_itself
            else:
                vars(verifying)["clean"] = kill_itself
            await sessions.erasure.sweep(policy, now=later(31))

    asyncio.run(run())


@pytest.mark.parametrize("step", ["deleting", "verifying"])
@pytest.mark.parametrize("policy", [IDLE, PRUNE], ids=["expiry", "pruning"])
async def test_a_killed_sweep_is_finished(
    policy: RetentionPolicy, step: str, tmp_path: Path
) -> None:
    """`kill -9` leaves all or nothing of a batch; what is gone is verified by the next start."""
    async with DurableSessionService.from_url(url_of(tmp_path)) as sessions:
        for number in range(5):
            await talk(sessions, f"idle-session-{number}")
            session = await sessions.get_session(**ANN, session_id=f"idle-session-{number}")
            assert session is not None
            await sessions.append_event(session, said("so long", invocation="i-2"))
    process = context().Process(target=killed, args=(str(tmp_path), policy, step))
    process.start()
    process.join(HANG_SECONDS)
    assert process.exitcode == -signal.SIGKILL
    process.close()
    async with DurableSessionService.from_url(url_of(tmp_path)):
        pass  # which finishes what was left
    events = 10 if policy is IDLE else 5
    async with DurableSessionService.from_url(url_of(tmp_path)) as sessions:
        receipts = await sessions.erasure.receipts()
        swept = await sessions.erasure.sweep(policy, now=later(31))
        if step == "deleting":
            assert receipts == []
            assert swept.counts["events"] == events
        else:
            assert [receipt.counts["events"] for receipt in receipts] == [events]
            assert any("lost" in reason for reason in receipts[0].not_checked)
            assert swept.counts == {}
        assert all(receipt.verified for receipt in (*receipts, *swept.receipts))
        assert len(await ids(sessions)) == (0 if policy is IDLE else 5)
    assert residue(tmp_path / "sessions.db", [f"{WORDS} idle-session-3"], sqlite3) == []


async def test_an_export_shows_what_an_erasure_deletes(sessions: DurableSessionService) -> None:
    """Also of a log that was pruned and robbed, of checkpoints of a gone session, and of facts."""
    for name in ("pruned", "gone"):
        session = await sessions.create_session(**ANN, session_id=name, state={"draft": WORDS})
        for number in range(4):
            event = said(f"{name} {number}", invocation=f"i-{number}", state={"user:n": number})
            await sessions.append_event(session, event)
        await sessions.checkpoints.create(session, step="four")
    await sessions.profiles.save(NewFact(key="dietary", value="vegetarian"), **ANN)
    await sessions.profiles.save(NewFact(key="dietary", value="vegan"), **ANN)
    pruned = await sessions.get_session(**ANN, session_id="pruned")
    assert pruned is not None
    await sessions.history.prune(pruned, older_than=timedelta(0), keep=3)
    await sessions.history.delete(pruned, invocation_id="i-2")
    last = await sessions.get_session(**ANN, session_id="pruned")
    assert last is not None
    await sessions.append_event(last, said("in use", at=later(2)))
    await sessions.erasure.sweep(RetentionPolicy(session_idle=DAY), now=later(2))
    assert await ids(sessions) == ["pruned"]
    document = await sessions.erasure.export_user(**ANN)
    plan = await sessions.erasure.plan_user(**ANN)
    receipt = await sessions.erasure.erase_user(**ANN)
    shown = {name: len(rows) for name, rows in document["stores"].items()}
    assert shown == {name: plan.counts[name] for name in shown}
    assert shown == {name: receipt.counts[name] for name in shown}
    assert shown["events"] > 0
    assert not any((await sessions.erasure.export_user(**ANN))["stores"].values())


@pytest.mark.parametrize(
    "wrong",
    [
        {"session_idle": -DAY},
        {"session_age": 30},
        {"checkpoints": CheckpointRetention(last=0)},
    ],
)
def test_rules_without_meaning_are_refused(wrong: dict[str, Any]) -> None:
    """A duration is a timedelta of at least 0, and a session keeps its last checkpoint."""
    with pytest.raises(ConfigurationError):
        RetentionPolicy(**wrong)
