"""Erasing reaches profiles and checkpoints as well."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from adk_memory_ext import NewFact, Provenance
from conversation import said

if TYPE_CHECKING:
    from adk_memory_ext.service import DurableSessionService

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
