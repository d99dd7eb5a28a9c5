"""What a session service gets wrong about state, found out by using it."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from google.adk.sessions.base_session_service import BaseSessionService
    from google.adk.sessions.session import Session


@dataclass(frozen=True, slots=True)
class CheckedClause:
    """One thing that ADK's documentation promises of state, and whether it holds."""

    name: str
    """What should hold, as a sentence."""
    holds: bool
    """Whether it does through `DurableSessionService`."""
    holds_below: bool
    """Whether it does in the wrapped service alone."""

    @property
    def repaired(self) -> bool:
        """Whether the wrapper makes up for the wrapped service."""
        return self.holds and not self.holds_below


class _Trial:
    """Uses a service under an app name that nobody else has."""

    def __init__(self, service: BaseSessionService) -> None:
        self._service = service
        self._app = f"memext-check-{uuid.uuid4().hex}"
        self._made: list[Session] = []

    async def create(self, user: str = "ann", state: dict[str, Any] | None = None) -> Session:
        session = await self._service.create_session(app_name=self._app, user_id=user, state=state)
        self._made.append(session)
        return session

    async def write(self, session: Session, delta: dict[str, Any]) -> None:
        event = Event(invocation_id="check", author="user", actions=EventActions(state_delta=delta))
        await self._service.append_event(session, event)

    async def read(self, session: Session) -> dict[str, Any]:
        found = await self._service.get_session(
            app_name=self._app, user_id=session.user_id, session_id=session.id
        )
        return {} if found is None else dict(found.state)

    async def user_state(self, user: str = "ann") -> dict[str, Any]:
        return await self._service.get_user_state(app_name=self._app, user_id=user)

    async def clean_up(self) -> None:
        for session in self._made:
            await self._service.delete_session(
                app_name=self._app, user_id=session.user_id, session_id=session.id
            )


async def _session_state(trial: _Trial) -> bool:
    one, other = await trial.create(), await trial.create()
    await trial.write(one, {"key": 1})
    return (await trial.read(one)).get("key") == 1 and "key" not in await trial.read(other)


async def _user_state(trial: _Trial) -> bool:
    one, other = await trial.create(), await trial.create()
    await trial.write(one, {"user:key": 1})
    return (await trial.read(other)).get("user:key") == 1


async def _user_kept_apart(trial: _Trial) -> bool:
    one, other = await trial.create("ann"), await trial.create("bob")
    await trial.write(one, {"user:key": 1})
    return "user:key" not in await trial.read(other)


async def _app_state(trial: _Trial) -> bool:
    one, other = await trial.create("ann"), await trial.create("bob")
    await trial.write(one, {"app:key": 1})
    return (await trial.read(other)).get("app:key") == 1


async def _state_of_creation(trial: _Trial) -> bool:
    session = await trial.create(state={"key": 1, "user:key": 2, "app:key": 3})
    state = await trial.read(session)
    return (state.get("key"), state.get("user:key"), state.get("app:key")) == (1, 2, 3)


async def _temp_not_stored(trial: _Trial) -> bool:
    session = await trial.create(state={"temp:given": 1})
    await trial.write(session, {"temp:written": 1, "key": 1})
    return not any(key.startswith("temp:") for key in await trial.read(session))


async def _temp_returned(trial: _Trial) -> bool:
    return (await trial.create(state={"temp:given": 1})).state.get("temp:given") == 1


async def _temp_lives_on(trial: _Trial) -> bool:
    session = await trial.create()
    await trial.write(session, {"temp:written": 1})
    return session.state.get("temp:written") == 1


async def _user_state_alone(trial: _Trial) -> bool:
    await trial.write(await trial.create(), {"user:key": 1})
    return await trial.user_state() == {"key": 1}


CLAUSES: Final[dict[str, Callable[[_Trial], Awaitable[bool]]]] = {
    "state without a prefix is stored, for its session alone": _session_state,
    "user: state is in all sessions of its user": _user_state,
    "user: state is in no session of another user": _user_kept_apart,
    "app: state is in the sessions of every user": _app_state,
    "state given to create_session is stored in its scopes": _state_of_creation,
    "temp: state is never stored": _temp_not_stored,
    "temp: state given to create_session is in the returned session": _temp_returned,
    "temp: state is in the session until its invocation ends": _temp_lives_on,
    "user: state can be read without a session": _user_state_alone,
}
"""What is checked, by name."""


async def check_service(
    below: BaseSessionService, wrapper: BaseSessionService
) -> list[CheckedClause]:
    """Returns what holds in a service and through its wrapper, in the order of `CLAUSES`.

    Each clause has an app name of its own, whose sessions are deleted again. Its `user:` and `app:`
    keys stay where the service has no way to remove them.
    """
    return [
        CheckedClause(name, await _holds(clause, wrapper), await _holds(clause, below))
        for name, clause in CLAUSES.items()
    ]


async def _holds(clause: Callable[[_Trial], Awaitable[bool]], service: BaseSessionService) -> bool:
    trial = _Trial(service)
    try:
        return await clause(trial)
    except NotImplementedError:
        return False
    finally:
        await trial.clean_up()
