"""What stands in an event for a medium that lies with the artifact service.

A reference is a part with ADK's own `artifact://…` address. The artifact's name says what it is of:
the digest of the medium, so that the same one is kept once a session, and its size.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from google.adk.artifacts.artifact_util import get_artifact_uri, parse_artifact_uri

if TYPE_CHECKING:
    from adk_memory_ext.records import SessionId

_NAME: Final = re.compile(r"memext_media_[0-9a-f]{32}_(\d+)")


@dataclass(frozen=True, slots=True)
class MediaReference:
    """Where a medium lies."""

    app_name: str
    user_id: str
    session_id: str
    name: str
    version: int

    @property
    def size(self) -> int:
        """Of the medium, in bytes."""
        match = _NAME.fullmatch(self.name)
        return int(match.group(1)) if match else 0


def media_name(mime_type: str | None, data: bytes) -> str:
    """Returns the name of the artifact that a medium becomes."""
    digest = hashlib.sha256((mime_type or "").encode() + b"\0" + data).hexdigest()
    return f"memext_media_{digest[:32]}_{len(data)}"


def media_names(text: str) -> set[str]:
    """Returns the names of the artifacts to which a stored event refers."""
    return {match.group() for match in _NAME.finditer(text)}


def media_address(session: SessionId, name: str, version: int) -> str:
    """Returns the address that stands in an event."""
    return get_artifact_uri(session.app_name, session.user_id, name, version, session.session_id)


def media_reference(file_data: Any) -> MediaReference | None:
    """Returns what the `file_data` of a part refers to; None where that is no medium of ours."""
    parsed = parse_artifact_uri(file_data.file_uri or "") if file_data is not None else None
    if parsed is None or parsed.session_id is None or not _NAME.fullmatch(parsed.filename):
        return None
    return MediaReference(
        app_name=parsed.app_name,
        user_id=parsed.user_id,
        session_id=parsed.session_id,
        name=parsed.filename,
        version=parsed.version,
    )
