"""`sessions.check()`: what a wrapped service gets wrong about state, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from google.adk.sessions.in_memory_session_service import InMemorySessionService

from adk_memory_ext import DurableSessionService, StatePolicy
from adk_memory_ext.service_check import CLAUSES
from backends import BARE, OURS, Backend, Place

if TYPE_CHECKING:
    from google.adk.events.event import Event
    from google.adk.sessions.session import Session

TEMP_RETURNED = "temp: state given to create_session is in the returned session"


class Careless(InMemorySessionService):
    """Stores `temp:` keys, gives each session its own user state, and tells nobody of it."""

    async def create_session(self, **options: Any) -> Session:
        """Creates a session with every key of its state."""
        session = await super().create_session(**options)
        stored = self.sessions[session.app_name][session.user_id][session.id]
        stored.state.update(options.get("state") or {})
        return session

    async def append_event(self, session: Session, event: Event) -> Event:
        """Stores every key of the delta in the session."""
        delta = dict(event.actions.state_delta)
        own = {key: value for key, value in delta.items() if not key.startswith("user:")}
        event.actions.state_delta = own
        event = await super().append_event(session, event)
        self.sessions[session.app_name][session.user_id][session.id].state.update(delta)
        session.state.update(delta)
        return event

    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        """Cannot tell."""
        raise NotImplementedError(app_name, user_id)


@pytest.mark.parametrize("backend", [*OURS, *BARE], ids=lambda row: row.name, indirect=True)
async def test_every_known_service_passes_through_the_wrapper(
    backend: Backend, place: Place
) -> None:
    """What ADK's own services drop at a creation, the wrapper gives back."""
    async with backend.open(place) as service:
        durable = (
            service
            if isinstance(service, DurableSessionService)
            else DurableSessionService(service)
        )
        found = await durable.check()
        assert [clause.name for clause in found] == list(CLAUSES)
        assert [clause.name for clause in found if not clause.holds] == []
        assert {clause.name for clause in found if clause.repaired} <= {TEMP_RETURNED}


async def test_a_careless_service_is_named_and_repaired_where_that_is_possible() -> None:
    """`temp:` keys are kept from it; user state that it does not share stays its fault."""
    async with DurableSessionService(
        Careless(), policy=StatePolicy(undeclared="reject")
    ) as service:
        found = {clause.name: clause for clause in await service.check()}
    wrong = [name for name, clause in found.items() if not clause.holds]
    assert wrong == [
        "user: state is in all sessions of its user",
        "user: state can be read without a session",
    ]
    assert found["temp: state is never stored"].repaired
    assert not found["temp: state is never stored"].holds_below


async def test_a_check_leaves_no_session_behind() -> None:
    """Its sessions are deleted again."""
    bare = InMemorySessionService()
    await DurableSessionService(bare).check()
    assert [user for app in bare.sessions.values() for user in app.values() if user] == []
