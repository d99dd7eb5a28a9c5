"""Profile facts: keyed statements about a user, each with where it came from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

Kind: TypeAlias = Literal["preference", "fact", "constraint", "insight"]
Status: TypeAlias = Literal["stated", "inferred"]
Sensitivity: TypeAlias = Literal["normal", "sensitive"]
Outcome: TypeAlias = Literal[
    "created", "updated", "confirmed", "conflict", "kept_newer", "kept_stated"
]
FactKey: TypeAlias = tuple[str, str]
"""What names a fact of a user: its subject and its key."""

USER: Final = "user"
"""The subject of a fact that names none: the user."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose profile it is."""

    app_name: str
    user_id: str

    def parameters(self) -> dict[str, Any]:
        """Returns the parameters of a statement over this profile's rows."""
        return {"app_name": self.app_name, "user_id": self.user_id}


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where a fact was said, or what it was concluded from."""

    session_id: str | None = None
    invocation_id: str | None = None
    event_id: str | None = None
    author: str | None = None
    """Who wrote it down: an agent's name, or the application's word for itself."""
    extractor: str | None = None
    """The extractor that found it; None if no extractor did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One value that is held for true, and what supports it."""

    value: Any
    confidence: float
    """How sure it is, from 0 to 1."""
    observed_at: float
    """UTC epoch seconds at which it was said."""
    last_confirmed: float
    """UTC epoch seconds at which an equal value was last observed."""
    sources: tuple[Provenance, ...] = ()
    """What supports it, the first one first; empty when it was cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFact:
    """A fact to be saved."""

    key: str
    """A slug: `dietary`, `weekly-hours`."""
    value: Any
    """Any JSON value within the limits."""
    subject: str = USER
    """Whom or what it is about: the user, or a label such as `gift-for-ann`."""
    kind: Kind = "fact"
    status: Status = "stated"
    """Whether the user said so, or it was concluded."""
    confidence: float = 1.0
    """How sure it is, from 0 to 1."""
    sensitivity: Sensitivity | None = None
    """A `sensitive` fact is recalled on request only: no preload and no search shows it. None: as
    it was, and `normal` for a new fact."""
    visible_to: tuple[str, ...] | None = None
    """Names of the agents that may recall it; empty for all. None: as it was, and all for a new
    fact."""
    derived_from: tuple[str, ...] = ()
    """Keys, of the same subject, of the facts that it was derived from."""
    provenance: Provenance = field(default_factory=Provenance)
    observed_at: float | None = None
    """UTC epoch seconds at which it was said; None for now, which is later than all before."""
    expires_at: float | None = None
    """UTC epoch seconds from which on it is not recalled; None for never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A stored fact, as of one revision."""

    subject: str
    key: str
    claims: tuple[Claim, ...]
    """What is held for true: one claim, or several that contradict each other; the newest first."""
    kind: Kind
    status: Status
    sensitivity: Sensitivity
    visible_to: tuple[str, ...]
    derived_from: tuple[str, ...]
    expires_at: float | None
    """UTC epoch seconds."""
    revision: int = 0
    """The number, among the writes to this user's profile, of the one that brought this value."""
    supersedes: int | None = None
    """The revision of the value that this one replaced; None for a first one."""
    created_at: float = 0.0
    """UTC epoch seconds at which it was stored."""
    retired_at: float | None = None
    """UTC epoch seconds at which another value took its place; None while it is current."""

    @property
    def value(self) -> Any:
        """The value, the newest one of a conflict."""
        return self.claims[0].value

    @property
    def confidence(self) -> float:
        """How sure it is, from 0 to 1."""
        return self.claims[0].confidence

    @property
    def observed_at(self) -> float:
        """UTC epoch seconds at which it was said."""
        return self.claims[0].observed_at

    @property
    def last_confirmed(self) -> float:
        """UTC epoch seconds at which an equal value was last observed."""
        return self.claims[0].last_confirmed

    @property
    def provenance(self) -> Provenance | None:
        """Where it came from; None when that was cut."""
        sources = self.claims[0].sources
        return sources[0] if sources else None

    @property
    def is_conflict(self) -> bool:
        """Whether inferred values contradict each other."""
        return len(self.claims) > 1

    @property
    def name(self) -> FactKey:
        """What names it within its user's profile."""
        return self.subject, self.key


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """What came of a save."""

    outcome: Outcome
    """`kept_newer`: a value observed later stayed. `kept_stated`: what the user said stayed."""
    fact: Fact
    """What is current now."""
    removed: tuple[str, ...] = ()
    """Keys of facts that had been derived from the value that was replaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recalled:
    """What is known of a user."""

    facts: tuple[Fact, ...]
    """The most certain first, then the newest."""
    left_out: tuple[str, ...] = ()
    """Keys of facts for which the token budget had no room."""
    partial: bool = False
    """Whether something could not be read; then `facts` is what could."""
    missing: tuple[str, ...] = ()
    """What could not be read, in words: a fact's key, or the changes since a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileLimits:
    """What a profile may hold; see `DurableSessionService.profiles`."""

    keys_per_user: int = 100
    """Unexpired facts of a user in an app, over all subjects."""
    value_bytes: int = 2_000
    """Of a value as UTF-8 JSON."""
    text_characters: int = 200
    """Of each text inside a value: a profile is no diary."""
    reserved_keys: frozenset[str] = frozenset()
    """Keys that the application keeps for itself, beside those that are always refused."""
