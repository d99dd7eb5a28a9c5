"""The clause about `temp:` state on the disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from conversation import said

if TYPE_CHECKING:
    from backends import Backend, Place
    from conformance.subject import Subject


@pytest.mark.needs("durable")
async def test_temp_state_never_reaches_a_disk(
    subject: Subject, backend: Backend, place: Place
) -> None:
    """No byte that a backend keeps, in any file or row, holds a `temp:` key or its value."""
    session = await subject.create("s", state={"temp:created": "secret-1", "kept": "public-1"})
    events = [
        said("one", state={"temp:otp": "secret-2", "step": "public-2"}),
        said("two", state={"temp:only": {"nested": ["secret-3"]}}),
        said("three", state={"user:locale": "public-3", "temp:user:x": "secret-4"}),
        said("four", state={"app:motd": "public-4", "temp:app:y": "secret-5"}),
    ]
    for event in events:
        await subject.append(session, event)
    await subject.append(await subject.read(session), said("five", state={"temp:z": "secret-6"}))

    stored = backend.stored_bytes(place)

    assert [n for n in range(1, 5) if b"public-%d" % n not in stored] == []
    assert [n for n in range(1, 7) if b"secret-%d" % n in stored] == []
    assert b"temp:" not in stored
