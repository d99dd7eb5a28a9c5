"""Digests of a log: chained, so that each stands for all events before it, and salted.

Who does not have the salt can neither tell what a digest is of nor make a changed log fit it; it is
deleted with the checkpoints of the session.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_SIZE: Final = 16
MARK: Final = 4
"""Characters of an event's mark: the beginning of its digest, enough to name a changed event."""


def new_salt() -> str:
    """Returns a random salt."""
    return secrets.token_hex(_SIZE)


def value_digest(salt: str, text: str) -> str:
    """Returns the digest that stands for a value's text."""
    return blake2b(text.encode(), digest_size=_SIZE, key=bytes.fromhex(salt)).hexdigest()


def beginning(salt: str) -> str:
    """Returns the digest of an empty log."""
    return value_digest(salt, "")


def next_digest(salt: str, digest: str, log: Iterable[tuple[str, str]]) -> str:
    """Returns the digest of a log with more events: ids and stored texts, in order."""
    hashed = blake2b(bytes.fromhex(digest), digest_size=_SIZE, key=bytes.fromhex(salt))
    hashed.update(_joined(log))
    return hashed.hexdigest()


def marks_of(salt: str, log: Iterable[tuple[str, str]]) -> str:
    """Returns the marks of events."""
    return "".join(value_digest(salt, _framed(*event))[:MARK] for event in log)


def _framed(event_id: str, text: str) -> str:
    return f"{len(event_id)}:{event_id}{len(text)}:{text}"


def _joined(log: Iterable[tuple[str, str]]) -> bytes:
    return "".join([_framed(event_id, text) for event_id, text in log]).encode()


@dataclass(frozen=True, slots=True)
class Stretch:
    """What a checkpoint knows of the log since the checkpoint before it."""

    sequence: int
    """Of its last event."""
    digest: str
    """Of the log up to there."""
    marks: str
    """Of its events, in order."""


@dataclass(frozen=True, slots=True)
class Fault:
    """The first event at which a log is not what its checkpoints say."""

    sequence: int
    event_id: str | None
    """None if it is gone."""


def first_fault(
    salt: str, stretches: Sequence[Stretch], log: Sequence[tuple[int, str, str]]
) -> Fault | None:
    """Returns the first fault of a log; None if it is the one that the checkpoints were made of.

    Args:
        salt: The salt.
        stretches: Of all checkpoints, in their order.
        log: Sequence, id and stored text of each event, in order.
    """
    digest, begin = beginning(salt), 0
    for stretch in stretches:
        if stretch.sequence > begin:
            events = log[begin : stretch.sequence]
            digest = next_digest(salt, digest, [(event_id, text) for _, event_id, text in events])
            sequences = [sequence for sequence, _, _ in events]
            whole = sequences == [*range(begin + 1, stretch.sequence + 1)]
            if not whole or digest != stretch.digest:
                return _fault_in(salt, stretch, begin, events)
            begin = stretch.sequence
    return None


def _fault_in(
    salt: str, stretch: Stretch, begin: int, events: Sequence[tuple[int, str, str]]
) -> Fault:
    """Returns the first event of a stretch that is not as its mark says."""
    for index, (sequence, event_id, text) in enumerate(events):
        if sequence != begin + index + 1:
            return Fault(begin + index + 1, None)
        place = index * MARK
        if marks_of(salt, [(event_id, text)]) != stretch.marks[place : place + MARK]:
            return Fault(sequence, event_id)
    if len(events) < stretch.sequence - begin:
        return Fault(begin + len(events) + 1, None)
    # Its mark agrees by chance: somewhere between these two checkpoints.
    return Fault(begin + 1, events[0][1])
