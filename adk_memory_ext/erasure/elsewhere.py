"""What a person left beside the database: artifacts, memory, and stores of the application."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from adk_memory_ext.erasure.memories import Memories

if TYPE_CHECKING:
    from google.adk.artifacts.base_artifact_service import BaseArtifactService
    from google.adk.memory.base_memory_service import BaseMemoryService

    from adk_memory_ext.erasure.subjects import Subject, Traces
    from adk_memory_ext.records import SessionId

_logger: Final = logging.getLogger(__name__)

EraseElsewhere: TypeAlias = Callable[..., Awaitable[int]]
CountElsewhere: TypeAlias = Callable[..., Awaitable[int]]

_Services: TypeAlias = "tuple[BaseArtifactService | None, BaseMemoryService | None]"

_USER_PREFIX: Final = "user:"
"""Of artifacts that belong to a user and to no session, as in ADK."""


class Elsewhere:
    """The stores that an erasure reaches besides the database."""

    def __init__(self) -> None:
        self.stores: Final[dict[str, tuple[EraseElsewhere, CountElsewhere | None]]] = {}
        self._given: _Services = (None, None)
        self._seen: _Services = (None, None)

    def register(
        self, artifacts: BaseArtifactService | None, memory: BaseMemoryService | None
    ) -> None:
        """Takes services in; None leaves what is there."""
        self._given = artifacts or self._given[0], memory or self._given[1]

    def see(self, artifacts: BaseArtifactService | None, memory: BaseMemoryService | None) -> None:
        """Takes the services of a Runner in, for where none were registered."""
        self._seen = artifacts or self._seen[0], memory or self._seen[1]

    @property
    def _artifacts(self) -> BaseArtifactService | None:
        return self._given[0] or self._seen[0]

    @property
    def _told_memory(self) -> BaseMemoryService | None:
        return self._given[1] or self._seen[1]

    @property
    def _memory(self) -> BaseMemoryService | None:
        # `ProfileMemoryService` keeps nothing outside the database; what it hands on to may.
        return getattr(self._told_memory, "also", self._told_memory)

    @property
    def unknown(self) -> tuple[str, ...]:
        """Which services of a Runner nobody told of, in words."""
        services = {"artifacts": self._artifacts, "memory": self._told_memory}
        return tuple(
            f"{name}: no service is known here; MemoryPlugin or register(…) tells of it"
            for name, service in services.items()
            if service is None
        )

    @property
    def is_anywhere(self) -> bool:
        """Whether there is anything to reach."""
        return bool(self.stores or self._artifacts or self._memory)

    async def count(self, subject: Subject, traces: Traces) -> tuple[dict[str, int], list[str]]:
        """Returns how much there is in each store, and what cannot be reached and why."""
        counts: dict[str, int] = {}
        reasons: list[str] = []
        if self._artifacts is not None:
            names = await self._artifact_names(self._artifacts, subject, traces.session_ids)
            counts["artifacts"] = sum(map(len, names.values()))
        if self._memory is not None:
            memories = Memories(self._memory, subject, traces)
            counts["memory"] = await memories.count()
            reasons += memories.out_of_reach()
        for name, (_erase, count) in self.stores.items():
            if count is None:
                reasons.append(f"{name}: it does not say how much it holds")
            else:
                counts[name] = await count(**_identity(subject))
        return counts, reasons

    async def erase(self, subject: Subject, traces: Traces) -> tuple[dict[str, int], list[str]]:
        """Erases in each store; a failing one does not keep the others from being reached.

        Returns:
            How much each store held, and what was not erased and why.
        """
        counts: dict[str, int] = {}
        reasons: list[str] = []
        for name, erase in self._erasures(subject, traces).items():
            try:
                counts[name], left = await erase()
                reasons += left
            except Exception as error:  # noqa: BLE001  # any service may raise anything
                reasons.append(f"{name}: failed with {type(error).__name__}")
        return counts, reasons

    async def erase_artifacts(self, session: SessionId, names: Iterable[str]) -> None:
        """Erases some artifacts of a session; a line in the log for each that is left."""
        if self._artifacts is None:
            return
        for name in names:
            try:
                await self._artifacts.delete_artifact(**session.parameters(), filename=name)
            except Exception as error:  # noqa: BLE001  # any service may raise anything
                kind = type(error).__name__
                _logger.warning("The artifact %s could not be erased (%s).", name, kind)

    def _erasures(
        self, subject: Subject, traces: Traces
    ) -> dict[str, Callable[[], Awaitable[tuple[int, list[str]]]]]:
        """Returns what to call for each store."""
        erasures: dict[str, Callable[[], Awaitable[tuple[int, list[str]]]]] = {}
        if self._artifacts is not None:
            erasures["artifacts"] = partial(
                self._erase_artifacts, self._artifacts, subject, traces.session_ids
            )
        if self._memory is not None:
            erasures["memory"] = Memories(self._memory, subject, traces).erase
        for name, (erase, _count) in self.stores.items():
            erasures[name] = partial(_erase_store, erase, subject)
        return erasures

    async def _erase_artifacts(
        self, service: BaseArtifactService, subject: Subject, session_ids: Sequence[str]
    ) -> tuple[int, list[str]]:
        count = 0
        for session_id, names in (
            await self._artifact_names(service, subject, session_ids)
        ).items():
            for name in names:
                await service.delete_artifact(
                    app_name=subject.app_name,
                    user_id=subject.user_id,
                    filename=name,
                    session_id=session_id,
                )
                count += 1
        return count, []

    async def _artifact_names(
        self, service: BaseArtifactService, subject: Subject, session_ids: Sequence[str]
    ) -> Mapping[str, Sequence[str]]:
        """Returns the names in each session; the user's own are in the first one's."""
        is_user = subject.session_id is None
        if is_user:
            session_ids = session_ids or ("-",)
        found: dict[str, Sequence[str]] = {}
        seen: set[str] = set()
        for session_id in session_ids:
            names = await service.list_artifact_keys(
                app_name=subject.app_name, user_id=subject.user_id, session_id=session_id
            )
            own = [name for name in names if not name.startswith(_USER_PREFIX)]
            users = [name for name in names if name.startswith(_USER_PREFIX) and name not in seen]
            seen.update(users)
            found[session_id] = own + users if is_user else own
        return found


async def _erase_store(erase: EraseElsewhere, subject: Subject) -> tuple[int, list[str]]:
    return await erase(**_identity(subject)), []


def _identity(subject: Subject) -> dict[str, str | None]:
    return {
        "app_name": subject.app_name,
        "user_id": subject.user_id,
        "session_id": subject.session_id,
    }
