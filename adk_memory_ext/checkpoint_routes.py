"""Rewind, restore, fork and list over HTTP, beside the routes of ADK's own web server."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import APIRouter, Depends, HTTPException, Query, status
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from google.adk.agents.base_agent import BaseAgent
from google.adk.errors import InvocationNotFoundError, StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.runners import Runner
from pydantic import BaseModel

from adk_memory_ext.checkpoint_records import Checkpoint, Restored
from adk_memory_ext.errors import (
    CapabilityError,
    CheckpointInconsistentError,
    CheckpointNotFoundError,
    ConfigurationError,
    InvalidIdError,
    StoreUnavailableError,
    TurnError,
)
from adk_memory_ext.records import SessionId
from adk_memory_ext.service import DurableSessionService
from adk_memory_ext.turn_queue import OnBusy, Turn, reject

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from fastapi import Request, Response
    from google.adk.artifacts.base_artifact_service import BaseArtifactService

    from adk_memory_ext.rewinds import Scope

_STATUS: Final[dict[type[Exception], int]] = {
    CheckpointNotFoundError: status.HTTP_404_NOT_FOUND,
    SessionNotFoundError: status.HTTP_404_NOT_FOUND,
    InvocationNotFoundError: status.HTTP_404_NOT_FOUND,
    AlreadyExistsError: status.HTTP_409_CONFLICT,
    CheckpointInconsistentError: status.HTTP_409_CONFLICT,
    StaleSessionError: status.HTTP_409_CONFLICT,
    TurnError: status.HTTP_409_CONFLICT,
    InvalidIdError: status.HTTP_422_UNPROCESSABLE_CONTENT,
    CapabilityError: status.HTTP_501_NOT_IMPLEMENTED,
    StoreUnavailableError: status.HTTP_503_SERVICE_UNAVAILABLE,
}
"""What each error is over HTTP; any other one is a 500 without a word."""


class Rewind(BaseModel):
    """Where a session is to be rewound to."""

    rewind_before_invocation_id: str
    """The invocation from which on everything is hidden, as `Runner.rewind_async` takes it."""


class Restore(BaseModel):
    """What is to come back besides the session's own state."""

    user_state: bool = False
    """The user's state too, for all of their sessions; the checkpoint must hold it."""


class Fork(BaseModel):
    """How a fork is to be named."""

    new_session_id: str | None = None
    """The id of the new session; None for a random one."""


def checkpoint_router(
    sessions: DurableSessionService,
    *,
    authorize: Callable[..., Any],
    artifact_service: BaseArtifactService | None = None,
    on_busy: OnBusy | None = None,
) -> APIRouter:
    """Returns routes for checkpoints, to be included in ADK's app or in one of your own.

    Below `/apps/{app_name}/users/{user_id}` there are `GET checkpoints`,
    `GET sessions/{session_id}/checkpoints`, `POST sessions/{session_id}/rewind`,
    `POST checkpoints/{checkpoint_id}/restore` and `POST checkpoints/{checkpoint_id}/fork`. Nothing
    of them runs unless `authorize` has said that the caller is the user of the path. Errors hold
    ids and nothing that was said or stored.

    Args:
        sessions: The sessions.
        authorize: A FastAPI dependency, plain or asynchronous, that returns the id of the user on
            whose behalf the request comes, from its token or cookie. With another id than that of
            the path, or None, the answer is 403. It may raise `HTTPException(401)` itself.
        artifact_service: Where a rewind, a restore and a fork bring artifacts back too; None leaves
            them as they are.
        on_busy: What a rewind or restore does that finds a turn running: `reject()`, the default,
            answers 409 at once, `wait(…)` waits.

    Raises:
        ConfigurationError: When `sessions` or `authorize` is something else.
    """
    if not isinstance(sessions, DurableSessionService):
        raise ConfigurationError("checkpoint_router needs a DurableSessionService.")
    if not callable(authorize):
        raise ConfigurationError(
            "authorize must be a function that returns the id of the user who asks; the user id in"
            " the path is what anybody can write."
        )
    routes = _Routes(sessions, artifact_service, on_busy or reject())
    router = APIRouter(
        prefix="/apps/{app_name}/users/{user_id}",
        dependencies=[Depends(_only_for(authorize))],
        route_class=_Route,
        tags=["checkpoints"],
    )
    session, checkpoint = "/sessions/{session_id}", "/checkpoints/{checkpoint_id}"
    add = router.add_api_route
    add("/checkpoints", routes.list_of_user, response_model=list[Checkpoint])
    add(f"{session}/checkpoints", routes.list_of_session, response_model=list[Checkpoint])
    add(f"{session}/rewind", routes.rewind, methods=["POST"], status_code=204)
    add(f"{checkpoint}/restore", routes.restore, methods=["POST"], response_model=Restored)
    add(f"{checkpoint}/fork", routes.fork, methods=["POST"], response_model=Restored)
    return router


def _only_for(authorize: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the dependency that lets through whom `authorize` takes for the user of the path."""
    depends = Depends(authorize)

    async def only_the_user(user_id: str, caller: Any = depends) -> None:
        if not isinstance(caller, str) or caller != user_id:
            raise HTTPException(status.HTTP_403_FORBIDDEN, "This belongs to somebody else.")

    return only_the_user


class _Route(APIRoute):
    """A route that answers errors with their status, and repeats nothing of what it was sent."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            try:
                return await handle(request)
            except HTTPException:
                raise
            except RequestValidationError as error:
                wrong = [
                    {key: one[key] for key in ("type", "loc", "msg")} for one in error.errors()
                ]
                raise RequestValidationError(wrong) from None
            except tuple(_STATUS) as error:
                code = next(code for kind, code in _STATUS.items() if isinstance(error, kind))
                raise HTTPException(code, str(error)) from error

        return answer


class _Routes:
    """What the routes do, once it is known that the caller is the user."""

    def __init__(
        self,
        sessions: DurableSessionService,
        artifact_service: BaseArtifactService | None,
        on_busy: OnBusy,
    ) -> None:
        self._sessions = sessions
        self._artifact_service = artifact_service
        self._on_busy = on_busy

    async def list_of_user(
        self, app_name: str, user_id: str, step: Annotated[str | None, Query()] = None
    ) -> list[Checkpoint]:
        """Returns the user's checkpoints, newest first, those of sessions that are gone too."""
        return await self._sessions.checkpoints.list(app_name=app_name, user_id=user_id, step=step)

    async def list_of_session(
        self,
        app_name: str,
        user_id: str,
        session_id: str,
        step: Annotated[str | None, Query()] = None,
    ) -> list[Checkpoint]:
        """Returns a session's checkpoints, newest first."""
        return await self._sessions.checkpoints.list(
            app_name=app_name, user_id=user_id, session_id=session_id, step=step
        )

    async def rewind(self, app_name: str, user_id: str, session_id: str, where: Rewind) -> None:
        """Hides an invocation and everything after it, and brings back the state before it."""
        await self._require_no_turn(SessionId(app_name, user_id, session_id))
        nobody = BaseAgent(name="rewind")  # a rewind runs no agent
        async with Runner(
            app_name=app_name,
            agent=nobody,
            session_service=self._sessions,
            artifact_service=self._artifact_service,
        ) as runner:
            await runner.rewind_async(
                user_id=user_id,
                session_id=session_id,
                rewind_before_invocation_id=where.rewind_before_invocation_id,
            )

    async def restore(
        self, app_name: str, user_id: str, checkpoint_id: str, what: Restore | None = None
    ) -> Restored:
        """Brings the checkpoint's session back to it; again, nothing happens."""
        owner = {"app_name": app_name, "user_id": user_id}
        point = await self._sessions.checkpoints.get(checkpoint_id, **owner)
        scopes: tuple[Scope, ...] = ("user",) if what and what.user_state else ()
        if scopes and not point.scoped:
            raise HTTPException(
                status.HTTP_422_UNPROCESSABLE_CONTENT, "The checkpoint holds no user state."
            )
        await self._require_no_turn(SessionId(app_name, user_id, point.session_id))
        return await self._sessions.checkpoints.restore(
            checkpoint_id,
            app_name=app_name,
            user_id=user_id,
            scopes=scopes,
            artifacts=self._artifact_service,
        )

    async def fork(
        self, app_name: str, user_id: str, checkpoint_id: str, named: Fork | None = None
    ) -> Restored:
        """Starts a new session with the history and the state of the checkpoint."""
        return await self._sessions.checkpoints.fork(
            checkpoint_id,
            named.new_session_id if named else None,
            app_name=app_name,
            user_id=user_id,
            artifacts=self._artifact_service,
        )

    async def _require_no_turn(self, session: SessionId) -> None:
        """Returns when no turn runs, by the router's own patience.

        What follows takes a turn of its own, and would wait for minutes.

        Raises:
            TurnBusyError: When a turn runs, and still does after the time to wait.
        """
        turn = Turn(session, f"look-{uuid.uuid4()}")
        async with self._sessions.turns.held(turn, self._on_busy):
            pass
