"""What a checkpoint is, what goes into it, and what came of a restore."""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import timedelta

FORMAT_VERSION: Final = 1
"""Of the payload of a stored checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRequest:
    """What an application says of a step that is to have a checkpoint."""

    step: str
    """The step that has just been done; what `latest(step=…)` looks for."""
    workflow: str = ""
    """The workflow that the step belongs to."""
    summary: str = ""
    """One line for people, given by the app; never the conversation's text."""
    agent: str = ""
    """The agent's name."""
    agent_version: str = ""
    """What the app calls this version of the agent."""
    references: dict[str, Any] = field(default_factory=dict)
    """Ids of domain objects, to be read afresh after a restore."""


class KnowsKeys(Protocol):
    """What says which keys are personal, and for how long each lives: a `StatePolicy`."""

    def is_personal(self, key: str) -> bool:
        """Whether the value of a key is personal."""

    def without_personal(self, *states: Mapping[str, Any]) -> Callable[[Any], Any]:
        """Returns what takes the personal values of some states out of what is said."""

    def ttl(self, key: str) -> timedelta | None:
        """Returns how long after its last write a key is returned; None: for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPolicy:
    """Which part of the state goes into checkpoints; patterns are those of `fnmatch`."""

    keys: tuple[str, ...] = ("*",)
    """Keys whose values are stored. The others are known by reference to the session's log: a
    restore finds them as long as the session is there."""
    personal: tuple[str, ...] = ()
    """Keys whose values are never stored in a checkpoint, whatever `keys` says."""
    scoped: bool = False
    """Whether user and app state are stored too, for `restore(…, scopes=…)`: those of the moment
    at which the checkpoint is stored."""
    state_policy: KnowsKeys | None = None
    """A `StatePolicy`: its `personal` keys are never stored either, and their values are blacked
    out in summaries, names of workflows and references; what has a `ttl` there is as old after a
    restore as it was. A service that has a policy puts it here."""

    def is_stored(self, key: str) -> bool:
        """Whether the value of a key goes into the checkpoint."""
        if self.state_policy is not None and self.state_policy.is_personal(key):
            return False
        return _matches(key, self.keys) and not _matches(key, self.personal)

    def ttl(self, key: str) -> timedelta | None:
        """Returns how long after its last write a key is returned; None: for ever."""
        return None if self.state_policy is None else self.state_policy.ttl(key)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRetention:
    """Which checkpoints of a session stay; what one field keeps, the others cannot take."""

    last: int = 1
    """The newest ones, this many; at least 1, so that a session can always be restored."""
    last_of_each_step: bool = True
    """The newest one of each step."""
    younger_than: timedelta | None = None
    """Those of this age or less; None keeps none for its age."""


def _matches(key: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(key, pattern) for pattern in patterns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A durable record of progress."""

    id: str
    """Random; names the checkpoint."""
    app_name: str
    user_id: str
    session_id: str
    invocation_id: str
    """Of the last event that it covers; empty before the first."""
    step: str
    workflow: str
    summary: str
    agent: str
    agent_version: str
    sequence: int
    """Position of the last event that it covers; 0 before the first."""
    event_id: str | None
    """That event; None before the first."""
    digest: str
    """Of the log up to there, chained and salted for the session."""
    references: dict[str, Any]
    """Ids of domain objects, as the app gave them."""
    artifacts: dict[str, int]
    """Versions of the session's artifacts."""
    created_at: float
    """UTC epoch seconds."""
    format_version: int
    scoped: bool = False
    """Whether it holds user and app state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointDiff:
    """What lies between two checkpoints of a session."""

    added: dict[str, Any]
    """Keys that only the second has, with their values."""
    changed: dict[str, tuple[Any, Any]]
    """Keys with another value, from the first to the second."""
    removed: dict[str, Any]
    """Keys that only the first has, with their values."""
    events: int
    """How many events lie between; negative when the second is the earlier one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What a restore did."""

    checkpoint: Checkpoint
    session_id: str
    """Where the state is now."""
    event_id: str | None
    """The event in the log that says so; None when nothing had to be done."""
    hidden: int
    """Events that the model no longer sees."""
    repeated: int
    """Events that were appended again behind the mark, because the mark hides whole invocations."""
    changed: tuple[str, ...]
    """Keys that got another value; those of user and app state with their prefix."""
    removed: tuple[str, ...]
    """Keys that came after the checkpoint and are gone."""
    missing: tuple[str, ...]
    """Keys that are absent: those that the checkpoint knows by reference only and whose source is
    gone, and those that have expired by now."""
    state_only: bool
    """Whether the session was gone, so that there is state and no history."""
    artifacts: dict[str, int | None] = field(default_factory=dict)
    """The new version of each artifact that was put back; None where the noted one is gone."""
