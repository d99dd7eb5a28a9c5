"""The `pruning` part: the log of a session pruned every few turns, at the end of one."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Final

from google.adk.plugins.base_plugin import BasePlugin

from adk_memory_ext.errors import ConfigurationError, MemoryExtError
from adk_memory_ext.service import DurableSessionService

if TYPE_CHECKING:
    from google.adk.agents.invocation_context import InvocationContext

    from adk_memory_ext.retention import Pruning

_logger: Final = logging.getLogger(__name__)
_MOST_SESSIONS: Final = 10_000
"""Of which turns are counted at once; beyond that counting begins anew."""


class PruneHistory(BasePlugin):
    """Removes stored events that a rule covers, at the end of every so many turns of a session.

    The bytes are verified in the background. That it fails fails no turn: it is logged, and tried
    again with the next one.

    Args:
        pruning: What goes; see `sessions.history.prune`.
        every: After how many turns of a session in this process.
        name: The plugin's name.

    Raises:
        ConfigurationError: When `every` is below 1.
    """

    def __init__(self, pruning: Pruning, *, every: int = 10, name: str = "prune_history") -> None:
        super().__init__(name=name)
        if every < 1:
            raise ConfigurationError("PruneHistory prunes after 1 turn or more.")
        self._pruning = pruning
        self._every = every
        self._turns: Counter[tuple[str, str, str]] = Counter()

    async def after_run_callback(self, *, invocation_context: InvocationContext) -> None:
        """Prunes the session if it is time."""
        sessions, session = invocation_context.session_service, invocation_context.session
        if not isinstance(sessions, DurableSessionService):
            return
        key = session.app_name, session.user_id, session.id
        if len(self._turns) > _MOST_SESSIONS:
            self._turns.clear()
        self._turns[key] += 1
        if self._turns[key] < self._every:
            return
        try:
            await sessions.history.prune_by(self._pruning, session, in_background=True)
        except MemoryExtError as error:
            _logger.warning("A session could not be pruned at the end of its turn: %s", error)
        else:
            del self._turns[key]
