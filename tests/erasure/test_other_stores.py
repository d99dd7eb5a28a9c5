"""Erasing reaches profiles and checkpoints as well."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest
from google.adk.memory.in_memory_memory_service import InMemoryMemoryService
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from typing_extensions import override

from adk_memory_ext import NewFact, Provenance
from adk_memory_ext.errors import ErasureIncompleteError
from adk_memory_ext.service import DurableSessionService
from conversation import said

if TYPE_CHECKING:
    from pathlib import Path

ANN: Final[dict[str, Any]] = {"app_name": "app", "user_id": "ann"}
ANNA: Final[dict[str, Any]] = {"app_name": "app", "user_id": "anna"}


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
