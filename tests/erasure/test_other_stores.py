"""Erasing reaches profiles and checkpoints as well."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest
from google.adk.memory.in_memory_memory_service import InMemoryMemoryService
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from typing_extensions import override

from adk_memory_ext import ConfigurationError, NewFact, Provenance
from adk_memory_ext.erasure import ledger
from adk_memory_ext.erasure.jobs import first_facts
from adk_memory_ext.erasure.subjects import Subject
from adk_memory_ext.errors import ErasureIncompleteError
from adk_memory_ext.service import DurableSessionService
from conversation import said

if TYPE_CHECKING:
    from pathlib import Path

    from backends import Backend, Place

ANN: Final[dict[str, Any]] = {"app_name": "app", "user_id": "ann"}
ANNA: Final[dict[str, Any]] = {"app_name": "app", "user_id": "anna"}
HOME: Final = "the lighthouse of Bell Rock"


async def lived(sessions: DurableSessionService, owner: dict[str, Any]) -> None:
    """Stores a session with a checkpoint, a fact that was stated there and one that follows."""
    session = await sessions.create_session(**owner, session_id="s", state={"plan": "rest"})
    await sessions.append_event(session, said("I live on plants"))
    await sessions.checkpoints.create(session, step="said")
    source = Provenance(session_id="s", invocation_id="invocation-1", author="agent")
    for fact in (
        NewFact(key="dietary", value="vegetarian", provenance=source),
        NewFact(key="mood", value="hungry", status="inferred", provenance=source),
    ):
        await sessions.profiles.save(fact, **owner)


async def facts(sessions: DurableSessionService, owner: dict[str, Any]) -> dict[str, int]:
    """Returns how many sources each current fact of a profile has."""
    recalled = await sessions.profiles.recall(**owner)
    return {fact.key: len(fact.claims[0].sources) for fact in recalled.facts}


async def test_an_erased_session_is_cut_out_of_the_profile(
    sessions: DurableSessionService,
) -> None:
    """What the user stated stays without its source; what only the session supports goes."""
    await lived(sessions, ANN)
    await lived(sessions, ANNA)
    await sessions.erasure.erase_session(**ANN, session_id="s", requested_by="desk")
    assert await facts(sessions, ANN) == {"dietary": 0}
    assert await facts(sessions, ANNA) == {"dietary": 1, "mood": 1}


async def test_an_erased_session_takes_its_facts_along_on_request(
    sessions: DurableSessionService, backend: Backend, place: Place
) -> None:
    """With `facts="remove"` what was saved in it goes too, by every byte; the receipt counts it."""
    await lived(sessions, ANN)
    await lived(sessions, ANNA)
    saved = NewFact(key="home", value=HOME, provenance=Provenance(session_id="s"))
    await sessions.profiles.save(saved, **ANN)
    receipt = await sessions.erasure.erase_session(**ANN, session_id="s", facts="remove")
    assert receipt.steps["facts"] == "3 removed"
    assert await facts(sessions, ANN) == {}
    assert await sessions.profiles.history("home", **ANN) == ()
    assert await facts(sessions, ANNA) == {"dietary": 1, "mood": 1}
    if backend.durable:
        assert HOME.encode() not in backend.stored_bytes(place)


async def test_what_becomes_of_facts_is_known_to_who_finishes_an_erasure(
    sessions: DurableSessionService,
) -> None:
    """It is noted before the erasure begins."""
    await lived(sessions, ANN)
    database = sessions.database
    assert database is not None
    subject = Subject(**ANN, session_id="s")
    noted = first_facts(subject, b"key", None, facts="remove")
    await database.write(lambda tx: ledger.begin(tx, "0" * 32, subject, noted))
    await sessions.erasure.resume()
    assert await facts(sessions, ANN) == {}


@pytest.mark.parametrize("wrapped", [True, False])
async def test_nothing_is_erased_where_nobody_knows_what_becomes_of_facts(*, wrapped: bool) -> None:
    """Another word than `keep` and `remove` is refused."""
    service = DurableSessionService(InMemorySessionService())
    async with service if wrapped else DurableSessionService.from_url() as sessions:
        await sessions.create_session(**ANN, session_id="s")
        with pytest.raises(ConfigurationError, match="facts"):
            await sessions.erasure.erase_session(
                **ANN,
                session_id="s",
                facts="leave",  # type: ignore[arg-type]
            )
        assert await sessions.get_session(**ANN, session_id="s") is not None


async def test_an_erased_session_takes_its_checkpoints(sessions: DurableSessionService) -> None:
    """No checkpoint of it is left, and those of others are."""
    await lived(sessions, ANN)
    await lived(sessions, ANNA)
    await sessions.erasure.erase_session(**ANN, session_id="s", requested_by="desk")
    assert await sessions.checkpoints.latest(**ANN) is None
    assert await sessions.checkpoints.latest(**ANNA) is not None


async def test_an_erased_person_has_no_profile(sessions: DurableSessionService) -> None:
    """Facts and their history go with the person, and nobody else's."""
    await lived(sessions, ANN)
    await lived(sessions, ANNA)
    receipt = await sessions.erasure.erase_user(**ANN, requested_by="desk")
    assert receipt.counts["profile facts"] == 2
    assert receipt.counts["checkpoints"] == 1
    assert await facts(sessions, ANN) == {}
    assert await facts(sessions, ANNA) == {"dietary": 1, "mood": 1}
    assert set((await sessions.erasure.plan_user(**ANN)).counts.values()) == {0}


async def test_over_a_foreign_service_what_lies_beside_it_goes_too(tmp_path: Path) -> None:
    """With `store=` the profile goes as well, the receipt is stored, and memory is reached."""
    store = f"sqlite:///{tmp_path}/beside.db"
    memory = InMemoryMemoryService()
    async with DurableSessionService(InMemorySessionService(), store=store) as sessions:
        for owner in (ANN, ANNA):
            session = await sessions.create_session(**owner, session_id="s")
            await sessions.append_event(session, said("I live on plants"))
            await memory.add_session_to_memory(session)
            await sessions.profiles.save(NewFact(key="dietary", value="vegetarian"), **owner)
        sessions.erasure.register(memory_service=memory)
        plan = await sessions.erasure.plan_user(**ANN)
        receipt = await sessions.erasure.erase_user(**ANN, requested_by="desk")
        assert (receipt.level, receipt.verified) == ("logical", True)
        assert any("InMemorySessionService" in reason for reason in receipt.not_checked)
        for name, count in {"sessions": 1, "events": 1, "profile facts": 1, "memory": 1}.items():
            assert plan.counts[name] == receipt.counts[name] == count
        assert await facts(sessions, ANN) == {}
        assert await facts(sessions, ANNA) == {"dietary": 0}
        (stored,) = await sessions.erasure.receipts()
        assert (stored.number, stored.digest) == (receipt.number, receipt.digest)
        assert await sessions.erasure.broken_receipts() == []
        source = Provenance(session_id="s")
        await sessions.profiles.save(NewFact(key="home", value=HOME, provenance=source), **ANNA)
        receipt = await sessions.erasure.erase_session(**ANNA, session_id="s", facts="remove")
        assert receipt.steps["facts"] == "1 removed"
        assert await facts(sessions, ANNA) == {"dietary": 0}


async def test_a_foreign_service_that_keeps_something_is_named() -> None:
    """What a foreign service does not let go of makes the erasure incomplete."""

    class Keeps(InMemorySessionService):
        @override
        async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
            """Does nothing."""

    async with DurableSessionService(Keeps()) as sessions:
        await sessions.create_session(**ANN, session_id="s")
        with pytest.raises(ErasureIncompleteError, match="sessions: Keeps still has some"):
            await sessions.erasure.erase_session(**ANN, session_id="s")
