"""`sessions.state`: changing state from outside a turn, without loading a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from google.adk.sessions.state import State

from adk_memory_ext.errors import CapabilityError, StateRejectedError
from adk_memory_ext.state_changes import Increment, Remove

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from google.adk.sessions.base_session_service import BaseSessionService

_PREFIXES: Final = (State.APP_PREFIX, State.USER_PREFIX, State.TEMP_PREFIX)


@runtime_checkable
class ChangesState(Protocol):
    """A session service that can change state under the lock of the write."""

    async def change_state(
        self,
        delta: Mapping[str, Any],
        *,
        app_name: str,
        user_id: str | None,
        session_id: str | None,
    ) -> dict[str, Any]:
        """Applies a delta; see `ScopedState.update`."""


@runtime_checkable
class RemovesExpired(Protocol):
    """A session service that knows when its state was written."""

    async def remove_expired(self, limit: int) -> int:
        """Removes expired values; see `ScopedState.remove_expired`."""


class ScopedState:
    """Changes state atomically: what others write at the same time is kept.

    Keys have ADK's prefixes. Keys without one and a `session_id` go together: such a change is an
    event of that session, so that a replay of its log gives its state. Without a `session_id` only
    `user:` and `app:` keys can be changed, and no session is needed.

    Args:
        service: The service that stores the sessions, with what lies over it.
        name: What its user calls it.
    """

    def __init__(self, service: BaseSessionService, name: str) -> None:
        self._service = service
        self._name = name

    async def update(
        self,
        delta: Mapping[str, Any],
        *,
        app_name: str,
        user_id: str | None = None,
        session_id: str | None = None,
    ) -> dict[str, Any]:
        """Applies values and changes (`Increment`, `Extend`, `Union`, `Maximum`, `Remove`) at once.

        An empty delta does nothing.

        Returns:
            What each key holds now; removed keys are absent.

        Raises:
            CapabilityError: When the wrapped service cannot do it atomically.
            SessionNotFoundError: When there is no such session.
            InvalidIdError: When an id is empty, too long or no text, or a session is named without
                its user.
            StateRejectedError: When the policy refuses a key, a value cannot be kept, a change
                does not fit the stored value, a key begins with `temp:`, or needs the user or the
                session that was not given.

            After each of these nothing was written.
        """
        for key in delta:
            if isinstance(key, str) and key.startswith(State.TEMP_PREFIX):
                raise StateRejectedError(key, "is never stored")
        if not isinstance(self._service, ChangesState):
            raise CapabilityError(
                f"{self._name} cannot change state atomically;"
                " DurableSessionService.from_url(…) can."
            )
        if not delta:
            return {}
        return await self._service.change_state(
            delta, app_name=app_name, user_id=user_id, session_id=session_id
        )

    async def delete(
        self,
        keys: Iterable[str],
        *,
        app_name: str,
        user_id: str | None = None,
        session_id: str | None = None,
    ) -> None:
        """Removes keys for good; those that are not there are passed over. Raises as `update`."""
        if isinstance(keys, str):
            raise TypeError(f"`keys` is a list of keys; for one key write [{keys!r}].")
        await self.update(
            dict.fromkeys(keys, Remove()),
            app_name=app_name,
            user_id=user_id,
            session_id=session_id,
        )

    async def remove_expired(self, *, limit: int = 1000) -> int:
        """Removes values for good whose `ttl` in the policy is over, oldest write first.

        Readers have not seen them since. A removal from session scope is an event of that session.
        What earlier events say stays in the log.

        Args:
            limit: At most so many values.

        Returns:
            How many are gone; call again until it is 0.

        Raises:
            CapabilityError: When nothing expires here, or the wrapped service cannot do it.
        """
        if not isinstance(self._service, RemovesExpired):
            raise CapabilityError(
                "Nothing can be removed when it expires: that needs a policy and"
                " DurableSessionService.from_url(…)."
            )
        return await self._service.remove_expired(limit)

    async def increment(
        self,
        key: str,
        by: float = 1,
        *,
        app_name: str,
        user_id: str | None = None,
        session_id: str | None = None,
    ) -> Any:
        """Adds to a number (a missing key counts as 0) and returns the sum. Raises as `update`."""
        outcome = await self.update(
            {key: Increment(by)}, app_name=app_name, user_id=user_id, session_id=session_id
        )
        return outcome[key]

    async def update_user(
        self, delta: Mapping[str, Any], *, app_name: str, user_id: str
    ) -> dict[str, Any]:
        """Changes a user's state; keys without `user:`, in and out. Raises as `update`."""
        return await self._update_scope(State.USER_PREFIX, delta, app_name, user_id)

    async def update_app(self, delta: Mapping[str, Any], *, app_name: str) -> dict[str, Any]:
        """Changes an app's state; keys without `app:`, in and out. Raises as `update`."""
        return await self._update_scope(State.APP_PREFIX, delta, app_name, None)

    async def _update_scope(
        self, prefix: str, delta: Mapping[str, Any], app_name: str, user_id: str | None
    ) -> dict[str, Any]:
        for key in delta:
            if str(key).startswith(_PREFIXES):
                raise StateRejectedError(
                    str(key), f"stands in {prefix} already; leave the prefix out"
                )
        # A key that is no text goes on as it is, to be refused as everywhere.
        prefixed = {
            prefix + key if isinstance(key, str) else key: value for key, value in delta.items()
        }
        outcome = await self.update(prefixed, app_name=app_name, user_id=user_id)
        return {key.removeprefix(prefix): value for key, value in outcome.items()}
