"""Receipts: what an erasure did and how we know, with nothing personal in what is stored."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal, Self

if TYPE_CHECKING:
    from collections.abc import Mapping

FORMAT_VERSION = 1

Level = Literal["logical", "heap", "file", "deep"]

_HEADINGS: Final = {
    "session": "Erasure of a session",
    "user": "Erasure of a user",
    "expiry": "Erasure of what has expired",
    "pruning": "Erasure of pruned events",
    "turn": "Erasure of a turn",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The record of one erasure.

    What is stored of it is `stored()`: without `subject_key`, so that nobody can tell from the
    database whose it is, and with `requested_by` only where that names nobody who was erased.
    """

    kind: str
    """`session`, or `user` for everything of a person; `expiry` for what a sweep removed at once,
    `pruning` and `turn` for events of one session."""
    subject: str
    """An HMAC-SHA-256 over kind, app and ids; `subject_key` is its key."""
    subject_key: str | None
    """Hexadecimal; in the hands of whoever called, and nowhere else. None when that call was
    interrupted and the erasure finished by another one."""
    requested_by: str | None
    begun: str
    """UTC, ISO 8601."""
    ended: str
    level: Level
    """How far it was verified: `logical`, no row is left in any store; `heap`, nor in the heap of a
    server; `file`, no byte in the files; `deep`, the WAL was overwritten too."""
    verified: bool
    """Whether the level was reached."""
    counts: Mapping[str, int]
    """What each store held and holds no more."""
    steps: Mapping[str, str]
    """What was done, and how it went."""
    files: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Files that were searched, with their sizes and the bytes that belonged to nothing."""
    versions: Mapping[str, str] = field(default_factory=dict)
    pragmas: Mapping[str, Any] = field(default_factory=dict)
    """SQLite's settings, as read back."""
    values_searched: int = 0
    values_too_short: int = 0
    """Values that cannot be told from chance."""
    values_shared: int = 0
    """Values whose bytes were found, and which other live rows hold too."""
    encodings: tuple[str, ...] = ()
    residue_found: int = 0
    """Values of which something was left at the first look; 16 stands for 16 or more."""
    residue_left: int = 0
    """The same at the last look."""
    not_checked: tuple[str, ...] = ()
    """What was not reached or not verified, and why."""
    format_version: int = FORMAT_VERSION
    number: int | None = None
    """Its place in the chain of receipts; None when it is not stored, as the erasure is pending."""
    digest: str | None = None
    """Over this receipt as stored and the digest of the one before it."""

    def stored(self) -> str:
        """Returns the JSON text that the database keeps."""
        return _canonical({**asdict(self), "subject_key": None, "number": None, "digest": None})

    def to_json(self) -> str:
        """Returns all of it as JSON, for whoever asked for the erasure."""
        return json.dumps(asdict(self), indent=2, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Returns the receipt of a JSON text that `to_json` or `stored` made."""
        document = json.loads(text)
        names = {item.name for item in fields(cls)}
        known = {name: value for name, value in document.items() if name in names}
        for name in ("encodings", "not_checked"):
            known[name] = tuple(known[name])
        return cls(**known)

    def __str__(self) -> str:
        """Returns the receipt for people."""
        verdict = "verified" if self.verified else "NOT VERIFIED"
        number = "not stored" if self.number is None else f"number {self.number}"
        lines = [
            f"{_HEADINGS[self.kind]}, level {self.level}: {verdict}",
            f"  receipt       {number}, digest {self.digest or '-'}",
            f"  subject       {self.subject} (HMAC)",
            f"  requested by  {self.requested_by or '-'}",
            f"  begun, ended  {self.begun}, {self.ended}",
        ]
        lines += [f"  deleted       {n:,} rows: {name}" for name, n in self.counts.items()]
        lines += [f"  step          {name}: {how}" for name, how in self.steps.items()]
        lines += [
            f"  searched      {name}: {sizes['bytes']:,} bytes"
            for name, sizes in self.files.items()
        ]
        lines.append(
            f"  values        {self.values_searched:,} searched, {self.values_too_short:,} too"
            f" short, {self.values_shared:,} also in other rows; residue of"
            f" {self.residue_found:,} found, of {self.residue_left:,} left"
        )
        lines += [f"  not checked   {reason}" for reason in self.not_checked]
        return "\n".join(lines)


def chained(previous: str, stored: str) -> str:
    """Returns the digest of a stored receipt behind the one before it."""
    return hashlib.sha256(f"{previous}\n{stored}".encode()).hexdigest()


def utc(microseconds: int) -> str:
    """Returns UTC epoch microseconds as ISO 8601."""
    return datetime.fromtimestamp(microseconds / 1_000_000, UTC).isoformat(timespec="seconds")


def _canonical(document: Mapping[str, Any]) -> str:
    return json.dumps(document, sort_keys=True, separators=(",", ":"))
