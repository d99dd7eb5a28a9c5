"""Digests of a log: chained, so that each stands for all events before it, and salted.

Who does not have the salt can neither tell what a digest is of nor make a changed log fit it; it is
deleted with the checkpoints of the session.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_SALT_BYTES: Final = 16
_LENGTH: Final = 32
"""Hexadecimal digits of a digest: half of a SHA-256, which processors compute themselves. That the
other half is unknown keeps a digest from being continued without the salt."""
MARK: Final = 4
"""Characters of an event's mark: the beginning of its digest, enough to name a changed event."""


class Stretch(NamedTuple):
    """What a checkpoint knows of the log since the checkpoint before it."""

    sequence: int
    """Of its last event."""
    digest: str
    """Of the log up to there."""
    marks: str
    """Of its events, in order."""

    @property
    def size(self) -> int:
        """How many events it has."""
        return len(self.marks) // MARK

    def is_pruned(self, begin: int) -> bool:
        """Whether events of it were removed on purpose; it begins behind the sequence `begin`."""
        return self.size < self.sequence - begin


def new_salt() -> str:
    """Returns a random salt."""
    return secrets.token_hex(_SALT_BYTES)


def value_digest(salt: str, text: str) -> str:
    """Returns the digest that stands for a value's text."""
    return sha256(f"{salt}{text}".encode()).hexdigest()[:_LENGTH]


def beginning(salt: str) -> str:
    """Returns the digest of an empty log."""
    return value_digest(salt, "")


def next_digest(salt: str, digest: str, log: Iterable[tuple[int, str, str]]) -> str:
    """Returns the digest of a log with more events: sequences, ids and stored texts, in order."""
    hashed = sha256(f"{salt}{digest}".encode())
    for _sequence, event_id, text in log:
        hashed.update(f"{len(event_id)}:{event_id}{len(text)}:{text}".encode())
    return hashed.hexdigest()[:_LENGTH]


def marks_of(salt: str, log: Iterable[tuple[int, str, str]]) -> str:
    """Returns the marks of events."""
    return "".join([next_digest(salt, "", [event])[:MARK] for event in log])


@dataclass(frozen=True, slots=True)
class Fault:
    """The first event at which a log is not what its checkpoints say."""

    sequence: int
    event_id: str | None
    """None if it is gone."""


def first_fault(
    salt: str, stretches: Iterable[Stretch], log: Iterator[tuple[int, str, str]]
) -> Fault | None:
    """Returns the first fault of a log; None if it is the one that the checkpoints were made of.

    Args:
        salt: The salt.
        stretches: Of the checkpoints, in their order, without a gap.
        log: Sequence, id and stored text of each event, by rising sequence; is read as far as the
            first fault or the last stretch goes.
    """
    digest, begin = beginning(salt), 0
    for stretch in stretches:
        end, expected, marks = stretch
        if end > begin:
            size = len(marks) // MARK
            events = list(islice(log, size))
            digest = extended(salt, digest, events)
            last = events[-1][0] if events else begin
            # Of a whole stretch, rising sequences of this number that end there are all of them.
            ends_right = last == end or (last < end and size < end - begin)
            if len(events) < size or digest != expected or not ends_right:
                return _fault_in(salt, stretch, begin, events)
            begin = end
    return None


def extended(salt: str, digest: str, log: Sequence[tuple[int, str, str]]) -> str:
    """Returns `next_digest`; the same digest where nothing came or is left."""
    return next_digest(salt, digest, log) if log else digest


def rebased(
    salt: str,
    stretches: Iterable[Stretch],
    before: Iterable[tuple[int, str, str]],
    after: Iterable[tuple[int, str, str]],
) -> tuple[list[Stretch], str | None]:
    """Returns what the checkpoints know of a log of which events were removed on purpose.

    Stretches from the first fault on stay as they are, so that it stays one.

    Args:
        salt: The salt.
        stretches: What they know of it as it was.
        before: The log as it was.
        after: The log as it is now.

    Returns:
        The stretches, and the digest of the last one; None when there is a fault.
    """
    known = list(stretches)
    fault = first_fault(salt, known, iter(before))
    rows, at = list(after), 0
    digest, found = beginning(salt), list[Stretch]()
    for stretch in known:
        if fault is not None and stretch.sequence >= fault.sequence:
            found.append(stretch)
            continue
        begin = at
        while at < len(rows) and rows[at][0] <= stretch.sequence:
            at += 1
        events = rows[begin:at]
        digest = extended(salt, digest, events)
        found.append(Stretch(stretch.sequence, digest, marks_of(salt, events)))
    return found, digest if fault is None else None


def _fault_in(
    salt: str, stretch: Stretch, begin: int, events: Sequence[tuple[int, str, str]]
) -> Fault:
    """Returns the first event of a stretch that is not as its mark says."""
    for index, event in enumerate(events):
        sequence, event_id, _text = event
        if sequence != begin + index + 1 and not stretch.is_pruned(begin):
            return Fault(begin + index + 1, None)
        place = index * MARK
        if marks_of(salt, [event]) != stretch.marks[place : place + MARK]:
            return Fault(sequence, event_id)
    if len(events) < stretch.size:
        return Fault(begin + len(events) + 1, None)
    # Its mark agrees by chance: somewhere between these two checkpoints.
    return Fault(begin + 1, events[0][1] if events else None)
