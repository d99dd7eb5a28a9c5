"""PostgreSQL: what `VACUUM` leaves, what a rewrite removes, and what rights allow to be said."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest
from sqlalchemy import make_url, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from adk_memory_ext import NewFact
from adk_memory_ext.erasure import postgresql_heap, verifying
from adk_memory_ext.errors import ErasureIncompleteError
from adk_memory_ext.service import DurableSessionService
from conversation import said
from servers import execute, worker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from adk_memory_ext.erasure.receipts import Receipt

pytestmark = pytest.mark.usefixtures("nothing_left")

ANN: Final[dict[str, Any]] = {"app_name": "app", "user_id": "ann-of-green-gables"}
ANNA: Final[dict[str, Any]] = {"app_name": "app", "user_id": "ann-of-green-gables-2"}
WORDS: Final = "kept the lighthouse of Avonlea"
FILES: Final = """
SELECT pg_read_binary_file(pg_relation_filepath(oid)) FROM pg_class
WHERE relkind IN ('r', 'i', 't') AND pg_relation_filepath(oid) IS NOT NULL
"""


OPEN_FOR_LONG: Final = """
SELECT count(*) FROM pg_stat_activity
WHERE now() - xact_start > interval '20 s' AND (backend_xid IS NOT NULL OR backend_xmin IS NOT NULL)
"""


async def talk(sessions: DurableSessionService, owner: dict[str, Any], words: str) -> None:
    """Stores a session with some turns."""
    session = await sessions.create_session(
        **owner, session_id=f"{owner['user_id']}-session", state={"user:likes": f"{words} and tea"}
    )
    for number in range(20):
        await sessions.append_event(session, said(f"{words}, part {number}"))


async def erased(url: str, **options: Any) -> Receipt:
    """Has two people talk, erases one of them, and sees that the other one is whole."""
    async with DurableSessionService.from_url(url) as sessions:
        await talk(sessions, ANN, WORDS)
        await talk(sessions, ANNA, "painted the fence")
        receipt = await sessions.erasure.erase_user(**ANN, **options)
        session = await sessions.get_session(**ANNA, session_id=f"{ANNA['user_id']}-session")
        assert session is not None
        assert len(session.events) == 20
    return receipt


def left(url: str, words: str = WORDS) -> bool:
    """Whether words stand in any file of the database, as a superuser reads them."""
    execute(url, "CHECKPOINT")
    return any(words.encode() in (file or b"") for (file,) in execute(url, FILES))


@contextmanager
def role(url: str, *grants: str) -> Iterator[str]:
    """Gives the URL of a role that is no superuser."""
    name = f"memext_limited_{worker()}"
    execute(url, f"DROP ROLE IF EXISTS {name}", f"CREATE ROLE {name} LOGIN")
    try:
        execute(url, *(grant.format(role=name) for grant in grants), "SELECT 1")
        limited = make_url(url).set(username=name, password=None)
        yield limited.render_as_string(hide_password=False)
    finally:
        execute(url, f"DROP OWNED BY {name} CASCADE", f"DROP ROLE {name}")


async def test_a_plain_vacuum_leaves_bytes_and_the_receipt_says_so(postgresql_url: str) -> None:
    """Without `deep` the level is `logical`, and the files do hold what was said."""
    receipt = await erased(postgresql_url)
    assert receipt.verified
    assert (receipt.level, receipt.steps["vacuum"]) == ("logical", "done")
    assert any("dead rows stay" in reason for reason in receipt.not_checked)
    assert left(postgresql_url)


@pytest.mark.parametrize("how", ["files", "pageinspect"])
async def test_deep_leaves_nothing_in_the_heap(how: str, postgresql_url: str) -> None:
    """With `deep` no table, index or statistic holds a word, and every page was looked at."""
    if execute(postgresql_url, OPEN_FOR_LONG) != [(0,)]:
        pytest.skip("somebody else on this server keeps a transaction open, and rows with it")
    if how == "pageinspect":
        execute(postgresql_url, "CREATE EXTENSION pageinspect")
    receipt = await erased(postgresql_url, deep=True)
    assert receipt.verified
    assert receipt.level == "heap"
    assert receipt.steps["search"] == how
    assert receipt.files["tables"]["bytes"] > 0
    for gone in ("WAL", "replicas", "logs", "backups", "compressed"):
        assert any(gone in reason for reason in receipt.not_checked)
    assert not left(postgresql_url)
    assert left(postgresql_url, "painted the fence")


async def test_an_open_snapshot_keeps_rows_and_is_told(
    postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that an old transaction may still read survive a rewrite: it is not verified."""
    async with DurableSessionService.from_url(postgresql_url) as sessions:
        await talk(sessions, ANN, WORDS)
        engine = create_async_engine(postgresql_url, poolclass=NullPool)
        async with engine.connect() as reader:
            await reader.execution_options(isolation_level="REPEATABLE READ")
            await reader.execute(text("SELECT 1 FROM pg_class LIMIT 1"))
            monkeypatch.setattr(postgresql_heap, "_PATIENCE_SECONDS", 1)
            with pytest.raises(ErasureIncompleteError, match="pieces of values are left") as caught:
                await sessions.erasure.erase_user(**ANN, deep=True)
        await engine.dispose()
        assert caught.value.receipt.level == "logical"
        assert caught.value.receipt.residue_left > 0
        assert (await sessions.list_sessions(**ANN)).sessions == []


async def test_without_the_right_to_look_the_level_is_lower(postgresql_url: str) -> None:
    """Who may rewrite the tables and not read their files is told just that."""
    with role(postgresql_url, "GRANT ALL ON SCHEMA public TO {role}") as limited:
        receipt = await erased(limited, deep=True)
        assert (receipt.level, receipt.steps["vacuum full"]) == ("logical", "done")
        assert any("could not be read" in reason for reason in receipt.not_checked)
        assert receipt.steps["statistics and checkpoint"].startswith("not done")


async def test_without_the_right_to_rewrite_it_is_incomplete(postgresql_url: str) -> None:
    """Who does not own the tables is not told that they were rewritten; who does, finishes it."""
    async with DurableSessionService.from_url(postgresql_url) as sessions:
        await talk(sessions, ANN, WORDS)
    grant = "GRANT ALL ON ALL {} IN SCHEMA public TO {{role}}"
    grants = [
        grant.format("TABLES"),
        grant.format("SEQUENCES"),
        "GRANT ALL ON SCHEMA public TO {role}",
    ]
    with role(postgresql_url, *grants) as limited:
        async with DurableSessionService.from_url(limited) as sessions:
            with pytest.raises(ErasureIncompleteError, match="no right to rewrite events"):
                await sessions.erasure.erase_user(**ANN, deep=True)
            assert (await sessions.list_sessions(**ANN)).sessions == []
            with pytest.raises(ErasureIncompleteError, match="no right to rewrite events"):
                await sessions.erasure.resume()
    async with DurableSessionService.from_url(postgresql_url) as sessions:
        (receipt,) = await sessions.erasure.resume()
    assert receipt.level == "heap"
    assert not left(postgresql_url)


async def test_a_table_in_use_is_not_waited_for_for_ever(
    postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rewrite that gets no lock on a table says so, and leaves no limit in the connection."""
    monkeypatch.setattr(postgresql_heap, "_LOCK_SECONDS", 1)
    monkeypatch.setattr(postgresql_heap, "_PATIENCE_SECONDS", 1)
    async with DurableSessionService.from_url(postgresql_url, pool_size=1) as sessions:
        await talk(sessions, ANN, WORDS)
        await talk(sessions, ANNA, "painted the fence")
        engine = create_async_engine(postgresql_url, poolclass=NullPool)
        async with engine.connect() as user:
            await user.execute(text("LOCK TABLE memext_landmarks IN ACCESS SHARE MODE"))
            with pytest.raises(ErasureIncompleteError, match="were not rewritten: failed"):
                await sessions.erasure.erase_user(**ANN, deep=True)
        await engine.dispose()
        await asyncio.sleep(0)
        assert len((await sessions.list_sessions(**ANNA)).sessions) == 1


async def test_statistics_hold_no_content_of_our_tables(postgresql_url: str) -> None:
    """`ANALYZE` takes no samples of titles, facts, checkpoints and first states."""
    async with DurableSessionService.from_url(postgresql_url) as sessions:
        for number in range(9):
            owner: dict[str, Any] = {"app_name": "app", "user_id": f"user-{number % 2}"}
            name = f"session-{number}"
            session = await sessions.create_session(
                **owner, session_id=name, state={"note": WORDS, "user:likes": "tea"}
            )
            await sessions.set_session_title(**owner, session_id=name, title=WORDS)
            await sessions.profiles.save(NewFact(key="hobby", value=WORDS), **owner)
            await sessions.checkpoints.create(session, step=WORDS)
    execute(postgresql_url, "ANALYZE")
    values = "CAST(most_common_vals AS text), CAST(histogram_bounds AS text)"
    where = "WHERE schemaname = 'public' AND tablename LIKE 'memext_%'"
    statistics = execute(postgresql_url, f"SELECT {values} FROM pg_stats {where}")  # noqa: S608
    assert statistics
    assert WORDS not in str(statistics)


async def test_a_deep_erasure_is_finished_as_one(
    postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deep erasure that was cut short rewrites the tables, and says what nobody looked for."""

    async def interrupted(*_arguments: Any, **_options: Any) -> Any:
        raise InterruptedError

    with monkeypatch.context() as during:
        during.setattr(verifying, "clean", interrupted)
        with pytest.raises(InterruptedError):
            await erased(postgresql_url, deep=True)
    async with DurableSessionService.from_url(postgresql_url) as sessions:
        (receipt,) = await sessions.erasure.resume()
    assert receipt.level == "heap"
    assert receipt.steps["vacuum full"] == "done"
    assert any("lost" in reason for reason in receipt.not_checked)
    assert not left(postgresql_url)
