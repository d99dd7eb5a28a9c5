"""Large media of events: kept by the artifact service, and put back into what a model is sent."""

from __future__ import annotations

import logging
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, runtime_checkable

from google.genai import types

from adk_memory_ext.errors import ConfigurationError
from adk_memory_ext.media_references import (
    MediaReference,
    media_address,
    media_name,
    media_reference,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from google.adk.agents.invocation_context import InvocationContext
    from google.adk.artifacts.base_artifact_service import BaseArtifactService
    from google.adk.events.event import Event

    from adk_memory_ext.records import SessionId

_logger: Final = logging.getLogger(__name__)

_Loaded = dict[MediaReference, bytes | None]
_Part = TypeVar("_Part", types.Part, types.FunctionResponsePart)


@dataclass(frozen=True, slots=True, kw_only=True)
class Media:
    """Has large inline media of events kept by an artifact service, for `DurableSessionService`.

    What is stored of such an event is a reference; the `media` part of `MemoryPlugin` puts the
    medium back before a model is called. An erasure of the session or the user reaches the
    artifacts too.

    Raises:
        ConfigurationError: When a number has no meaning.
    """

    artifacts: BaseArtifactService
    """Where they go, each as an artifact of its session."""
    larger_than_bytes: int = 65_536
    """What has so many bytes or fewer stays in its event."""

    def __post_init__(self) -> None:
        """Refuses a size without meaning."""
        if self.larger_than_bytes < 0:
            raise ConfigurationError("larger_than_bytes must not be negative.")


@runtime_checkable
class KeepsMedia(Protocol):
    """A session service that may keep media elsewhere."""

    @property
    def media(self) -> Media | None:
        """Where; None where media stay in their events."""


async def with_references(event: Event, session: SessionId, media: Media) -> Event:
    """Returns a copy of an event with references for its large media; itself where it has none.

    A medium that cannot be saved stays in the event. What was saved and is then not appended is an
    artifact of the session like any other, and goes with it.
    """
    content = event.content
    parts = [] if content is None else content.parts or []
    kept = [await _kept(part, session, media) for part in parts]
    if content is None or all(one is part for one, part in zip(kept, parts, strict=True)):
        return event
    return event.model_copy(update={"content": content.model_copy(update={"parts": kept})})


async def _kept(part: types.Part, session: SessionId, media: Media) -> types.Part:
    """Returns a part with references for its media; itself where none is large."""
    if part.inline_data is not None:
        return await _moved(part, types.FileData, session, media)
    answer = part.function_response
    if answer is None or not answer.parts:
        return part
    kind = types.FunctionResponseFileData
    inner = [await _moved(one, kind, session, media) for one in answer.parts]
    if all(one is given for one, given in zip(inner, answer.parts, strict=True)):
        return part
    return part.model_copy(update={"function_response": answer.model_copy(update={"parts": inner})})


async def _moved(part: _Part, kind: type[Any], session: SessionId, media: Media) -> _Part:
    """Returns a part that names its medium as a file; itself where the medium stays in it."""
    blob = part.inline_data
    address = await _saved(blob, session, media)
    if blob is None or address is None:
        return part
    named = kind(file_uri=address, mime_type=blob.mime_type, display_name=blob.display_name)
    return part.model_copy(update={"inline_data": None, "file_data": named})


async def _saved(blob: Any, session: SessionId, media: Media) -> str | None:
    """Returns the address at which a medium lies now; None where it stays where it is."""
    data: bytes = (blob.data if blob is not None else None) or b""
    if len(data) <= media.larger_than_bytes:
        return None
    name = media_name(blob.mime_type, data)
    there: dict[str, Any] = {**session.parameters(), "filename": name}
    try:
        # The name says what it is of: one that is there already need not be saved again.
        versions = await media.artifacts.list_versions(**there)
        version = min(versions, default=None)
        if version is None:
            part = types.Part.from_bytes(data=data, mime_type=blob.mime_type or "")
            version = await media.artifacts.save_artifact(**there, artifact=part)
    except Exception as error:  # noqa: BLE001  # any service may raise anything
        _logger.warning(
            "A medium stays in its event: %s failed with %s.",
            type(media.artifacts).__name__,
            type(error).__name__,
        )
        return None
    address = media_address(session, name, version)
    expected = MediaReference(**session.parameters(), name=name, version=version)
    # Ids with slashes in them may give an address that reads otherwise.
    return address if media_reference(types.FileData(file_uri=address)) == expected else None


# -- before a model is called -----------------------------------------------------------------

_loads: Final[dict[int, _Loaded]] = {}
"""What was loaded for the session objects of invocations that go on."""


async def with_media(
    contents: Sequence[types.Content], run: InvocationContext
) -> list[types.Content]:
    """Returns contents with the media themselves; those without references are the same objects.

    Only media of the invocation's own app and user are loaded, whatever a reference says. One that
    is gone, or cannot be loaded, is a note in words.
    """
    # ADK makes a context for each step; the session object is one, and ends with the invocation.
    key = id(run.session)
    loaded = _loads.get(key)
    if loaded is None:
        loaded = _loads[key] = {}
        weakref.finalize(run.session, _loads.pop, key, None)
    return [await _shown(content, run, loaded) for content in contents]


async def _shown(content: types.Content, run: InvocationContext, loaded: _Loaded) -> types.Content:
    parts = content.parts or []
    shown = [await _shown_part(part, run, loaded) for part in parts]
    if all(one is part for one, part in zip(shown, parts, strict=True)):
        return content
    return content.model_copy(update={"parts": shown})


async def _shown_part(part: types.Part, run: InvocationContext, loaded: _Loaded) -> types.Part:
    reference = media_reference(part.file_data)
    if reference is not None and part.file_data is not None:
        data = await _data(reference, run, loaded)
        if data is None:
            return types.Part(text=f"[{_gone(part.file_data, reference)}]")
        blob = types.Blob(
            data=data,
            mime_type=part.file_data.mime_type,
            display_name=part.file_data.display_name,
        )
        return part.model_copy(update={"file_data": None, "inline_data": blob})
    answer = part.function_response
    if answer is None or not any(media_reference(one.file_data) for one in answer.parts or ()):
        return part
    return part.model_copy(update={"function_response": await _shown_answer(answer, run, loaded)})


async def _shown_answer(
    answer: types.FunctionResponse, run: InvocationContext, loaded: _Loaded
) -> types.FunctionResponse:
    parts: list[types.FunctionResponsePart] = []
    notes: list[str] = []
    for part in answer.parts or ():
        reference = media_reference(part.file_data)
        if reference is None or part.file_data is None:
            parts.append(part)
            continue
        data = await _data(reference, run, loaded)
        if data is None:
            notes.append(_gone(part.file_data, reference))
            continue
        blob = types.FunctionResponseBlob(
            data=data,
            mime_type=part.file_data.mime_type,
            display_name=part.file_data.display_name,
        )
        parts.append(part.model_copy(update={"file_data": None, "inline_data": blob}))
    update: dict[str, Any] = {"parts": parts or None}
    if notes:
        update["response"] = {**(answer.response or {}), "memext_media": notes}
    return answer.model_copy(update=update)


def _gone(file_data: Any, reference: MediaReference) -> str:
    return f"{file_data.mime_type} of {reference.size:,} bytes, no longer available"


async def _data(reference: MediaReference, run: InvocationContext, loaded: _Loaded) -> bytes | None:
    """Returns a medium; None where it is gone, cannot be loaded or is somebody else's."""
    if reference not in loaded:
        owner = (run.session.app_name, run.session.user_id)
        is_own = (reference.app_name, reference.user_id) == owner
        loaded[reference] = await _load(reference, run) if is_own else None
    return loaded[reference]


async def _load(reference: MediaReference, run: InvocationContext) -> bytes | None:
    service = run.session_service
    media = service.media if isinstance(service, KeepsMedia) else None
    artifacts = run.artifact_service if media is None else media.artifacts
    if artifacts is None:
        return None
    try:
        part = await artifacts.load_artifact(
            app_name=reference.app_name,
            user_id=reference.user_id,
            session_id=reference.session_id,
            filename=reference.name,
            version=reference.version,
        )
    except Exception as error:  # noqa: BLE001  # any service may raise anything
        _logger.warning(
            "A medium could not be loaded: %s failed with %s.",
            type(artifacts).__name__,
            type(error).__name__,
        )
        return None
    return part.inline_data.data if part is not None and part.inline_data is not None else None
