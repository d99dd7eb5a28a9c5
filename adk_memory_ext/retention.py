"""For how long what is stored stays: one rule for each kind of thing."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from adk_memory_ext.errors import ConfigurationError

if TYPE_CHECKING:
    from adk_memory_ext.checkpoint_records import CheckpointRetention


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruning:
    """Which stored events of a session go; see `sessions.history.prune`.

    Raises:
        ConfigurationError: When `keep` is below 1 or a duration below 0.
    """

    keep: int = 1
    """The newest invocations, this many, stay whatever covers them; at least 1."""
    summarised: bool = True
    """Whether events go for which one of ADK's compaction summaries stands."""
    checkpointed: bool = False
    """Whether events go that the session's newest checkpoint covers."""
    older_than: timedelta | None = None
    """Events of this age or more go; None: none goes for its age."""
    superseded_tools: frozenset[str] = frozenset()
    """Tools of which a call goes, with its answer, once the same call was made and answered again
    later."""

    def __post_init__(self) -> None:
        """Refuses rules without meaning."""
        if self.keep < 1:
            raise ConfigurationError("Pruning keeps at least the newest invocation.")
        _check_duration("older_than", self.older_than)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPolicy:
    """What a sweep removes; see `sessions.erasure.sweep`.

    Each rule covers its own kind of thing and no more: an expired session leaves its user's state,
    facts and checkpoints to their rules. State with a `ttl` in the `StatePolicy` and facts with an
    `expires_at` go when their time is over, whatever stands here.

    Raises:
        ConfigurationError: When a duration is none, or below 0, or the checkpoints' rule would
            leave a session without any.
    """

    session_idle: timedelta | None = None
    """Sessions to which nothing was appended for so long go; None: none goes."""
    session_age: timedelta | None = None
    """Sessions that were created so long ago go, however busy they are; None: none goes."""
    checkpoints: CheckpointRetention | None = None
    """Which checkpoints of each session stay, also of those that are gone; None: all."""
    orphaned_checkpoints: timedelta | None = None
    """Checkpoints of sessions that are gone go when they are so old, the last one too; None: none
    goes."""
    profile: timedelta | None = None
    """Values of facts go so long after another value took their place; None: never."""
    history: Pruning | None = None
    """Which events of the sessions that stay go; None: none."""

    def __post_init__(self) -> None:
        """Refuses durations and rules without meaning."""
        for name in ("session_idle", "session_age", "orphaned_checkpoints", "profile"):
            _check_duration(name, getattr(self, name))
        if self.checkpoints is not None and self.checkpoints.last < 1:
            raise ConfigurationError("A retention keeps at least the last checkpoint.")


def _check_duration(name: str, value: object) -> None:
    if value is not None and (not isinstance(value, timedelta) or value < timedelta(0)):
        raise ConfigurationError(f"{name} must be a timedelta of at least 0.")
