"""Whose data an erasure is about, and what leads to it."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

Forks: TypeAlias = Literal["erase", "detach"]
"""What becomes of forks of an erased session."""
Facts: TypeAlias = Literal["keep", "remove"]
"""What becomes of what the user asked to save in an erased session."""


@dataclass(frozen=True, slots=True)
class Subject:
    """All that is stored of a user, or one session."""

    app_name: str
    user_id: str
    session_id: str | None = None
    """None: everything of the user."""

    @property
    def kind(self) -> str:
        """`session` or `user`."""
        return "user" if self.session_id is None else "session"

    @property
    def ids(self) -> tuple[str, ...]:
        """What names the subject."""
        return (self.user_id,) if self.session_id is None else (self.user_id, self.session_id)

    def pseudonym(self, key: bytes) -> str:
        """Returns what names the subject for those who have the key, and nobody else."""
        return pseudonym(key, self.kind, [self.app_name, *self.ids])


def pseudonym(key: bytes, kind: str, names: Iterable[str]) -> str:
    """Returns what stands for names of a kind; only who has the key can tell whether it does."""
    # Lengths first, so that ids that run into each other differ.
    message = "".join(f"{len(part)}:{part}" for part in (kind, *names))
    return hmac.new(key, message.encode(), hashlib.sha256).hexdigest()


@dataclass(frozen=True, slots=True)
class Traces:
    """What leads from a subject to things of its outside the database."""

    session_ids: Sequence[str]
    said: Mapping[str, str]
    """The texts of the subject's events, by the events' ids."""
    others: AbstractSet[str] = frozenset()
    """The ids of the user's events in other sessions."""


def text_of(content: object) -> str:
    """Returns the text of a content, as a mapping: its parts with spaces between them."""
    parts = content.get("parts") if isinstance(content, dict) else None
    texts = [part.get("text") for part in parts or () if isinstance(part, dict)]
    return " ".join(text for text in texts if text)
