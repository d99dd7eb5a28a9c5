"""Facts and profiles as the tests of profiles have them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from adk_memory_ext import NewFact, Provenance

if TYPE_CHECKING:
    from adk_memory_ext import Recalled

OWNER: Final[dict[str, Any]] = {"app_name": "app", "user_id": "user"}
START: Final = 1_767_225_600.0
"""2026-01-01, UTC epoch seconds."""


def stated(key: str, value: Any, *, at: float = 0, **fields: Any) -> NewFact:
    """Returns a fact that the user stated `at` seconds after the start."""
    return NewFact(key=key, value=value, observed_at=START + at, **fields)


def inferred(
    key: str, value: Any, *, at: float = 0, session: str | None = None, **fields: Any
) -> NewFact:
    """Returns a fact that was concluded, perhaps from a session."""
    if session is not None:
        fields["provenance"] = Provenance(session_id=session)
    return stated(key, value, at=at, status="inferred", **fields)


def values(recalled: Recalled) -> dict[str, Any]:
    """Returns {key: value} of what was recalled."""
    return {fact.key: fact.value for fact in recalled.facts}
