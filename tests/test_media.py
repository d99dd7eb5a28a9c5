"""Large media: an artifact and a reference in the log, and the medium itself before a model."""

from __future__ import annotations

import base64
import gc
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest
from google.adk.agents.llm_agent import LlmAgent
from google.adk.apps import App
from google.adk.artifacts.file_artifact_service import FileArtifactService
from google.adk.artifacts.in_memory_artifact_service import InMemoryArtifactService
from google.adk.events.event import Event
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google.genai import types

from adk_memory_ext import History, Media, MemoryPlugin, Pruning, RetentionPolicy, ShownMedia
from adk_memory_ext import media as media_module
from adk_memory_ext.errors import ConfigurationError
from adk_memory_ext.history.tokens import content_tokens
from adk_memory_ext.media_references import media_address, media_reference
from adk_memory_ext.records import SessionId
from adk_memory_ext.service import DurableSessionService
from conversation import said

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator
    from pathlib import Path

    from google.adk.models.llm_request import LlmRequest
    from google.adk.plugins.base_plugin import BasePlugin
    from google.adk.sessions.session import Session

    from backends import Backend, Place

OWNER: Final[dict[str, Any]] = {"app_name": "app", "user_id": "ann"}
KEY: Final[dict[str, Any]] = OWNER | {"session_id": "session"}
PICTURE: Final = bytes(range(256)) * 400
SMALL: Final = b"icon" * 100


class Model(BaseLlm):
    """Keeps what it is sent, and answers."""

    model: str = "model"
    sent: list[list[types.Content]] = []  # noqa: RUF012  # pydantic copies it

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Says the same each time."""
        del stream
        self.sent.append(list(llm_request.contents))
        yield LlmResponse(content=types.ModelContent("I see."))


class Broken(InMemoryArtifactService):
    """An artifact service whose disk has failed."""

    async def load_artifact(self, **_which: Any) -> types.Part | None:
        """Fails."""
        raise OSError("the disk has failed")

    async def list_versions(self, **_which: Any) -> list[int]:
        """Fails."""
        raise OSError("the disk has failed")


def files(folder: Path) -> FileArtifactService:
    """Returns an artifact service over files, as after each start of a process."""
    return FileArtifactService(root_dir=folder / "artifacts")


def artifact_bytes(folder: Path) -> bytes:
    """Returns all that the artifact service has on disk."""
    return b"".join(p.read_bytes() for p in (folder / "artifacts").rglob("*") if p.is_file())


@asynccontextmanager
async def talking(
    sessions: DurableSessionService, *plugins: BasePlugin, agent: LlmAgent | None = None
) -> AsyncIterator[tuple[Runner, Model]]:
    """Yields a Runner over the session, and its model."""
    model = Model(sent=[])
    agent = agent or LlmAgent(name="agent", model=model)
    agent.model = model
    app = App(name="app", root_agent=agent, plugins=list(plugins or [MemoryPlugin()]))
    await sessions.get_or_create_session(**KEY)
    async with Runner(app=app, session_service=sessions) as runner:
        yield runner, model


async def say(runner: Runner, *parts: types.Part) -> list[Event]:
    """Returns the events of one turn."""
    message = types.Content(role="user", parts=list(parts))
    return [
        event
        async for event in runner.run_async(
            user_id="ann", session_id="session", new_message=message
        )
    ]


def picture(data: bytes = PICTURE, name: str | None = None) -> types.Part:
    """Returns a part with a picture."""
    return types.Part(inline_data=types.Blob(data=data, mime_type="image/png", display_name=name))


async def stored(sessions: DurableSessionService) -> Session:
    """Returns the session as it is stored."""
    session = await sessions.get_session(**KEY)
    assert session is not None
    return session


def pictures(contents: list[types.Content]) -> list[bytes | None]:
    """Returns the media of a request, in order."""
    return [p.inline_data.data for c in contents for p in c.parts or () if p.inline_data]


def with_media(place: Place, media: Media) -> DurableSessionService:
    """Returns a service over the place."""
    return DurableSessionService.from_url(place.url, media=media)


async def test_the_log_has_a_reference_and_the_model_the_picture(
    backend: Backend, place: Place
) -> None:
    """Nothing of the picture is in the database; the model sees it now and after a restart."""
    sent: list[list[types.Content]] = []
    for turn in range(2 if backend.durable else 1):
        async with (
            with_media(place, Media(artifacts=files(place.folder))) as sessions,
            talking(sessions) as (runner, model),
        ):
            asked = types.Part(text=f"what is this? {turn}")
            await say(runner, asked, *([] if turn else [picture(name="me.png")]))
            kept = (await stored(sessions)).events[0].content or types.Content()
            (part,) = [part for part in kept.parts or () if part.file_data]
            reference = media_reference(part.file_data)
            assert reference is not None
            assert reference.size == len(PICTURE)
            sent += model.sent
    assert [pictures(contents) for contents in sent] == [[PICTURE]] * len(sent)
    assert len({contents[0].model_dump_json() for contents in sent}) == 1
    assert PICTURE in artifact_bytes(place.folder)
    if backend.durable:
        everything = backend.stored_bytes(place)
        assert base64.b64encode(PICTURE[:300])[:-4] not in everything
        assert base64.urlsafe_b64encode(PICTURE[:300])[:-4] not in everything


async def test_the_event_in_hand_keeps_its_picture(tmp_path: Path) -> None:
    """Who yields the event shows the picture; the session holds the reference, live and stored."""
    async with DurableSessionService.from_url(media=Media(artifacts=files(tmp_path))) as sessions:
        session = await sessions.create_session(**KEY)
        event = Event(author="agent", content=types.Content(role="model", parts=[picture()]))
        returned = await sessions.append_event(session, event)
        assert returned is event
        assert pictures([event.content or types.Content()]) == [PICTURE]
        assert session.events == (await stored(sessions)).events
        assert [e.id for e in session.events] == [event.id]
        assert session.events[0].timestamp == event.timestamp
        assert pictures([session.events[0].content or types.Content()]) == []


async def test_the_same_event_again_is_one_event_and_one_artifact() -> None:
    """A retry saves nothing twice; the same picture in another event is the same artifact."""
    artifacts = InMemoryArtifactService()
    async with DurableSessionService.from_url(media=Media(artifacts=artifacts)) as sessions:
        session = await sessions.create_session(**KEY)
        event = Event(author="agent", content=types.Content(role="model", parts=[picture()]))
        await sessions.append_event(session, event)
        await sessions.append_event(session, event)
        other = Event(author="agent", content=types.Content(role="model", parts=[picture()]))
        await sessions.append_event(session, other)
        assert len((await stored(sessions)).events) == 2
        (name,) = await artifacts.list_artifact_keys(**KEY)
        assert await artifacts.list_versions(**KEY, filename=name) == [0]


async def test_small_media_stay_in_their_event(tmp_path: Path) -> None:
    """What is not larger than the limit is stored as ever."""
    media = Media(artifacts=files(tmp_path), larger_than_bytes=len(SMALL))
    async with DurableSessionService.from_url(media=media) as sessions:
        session = await sessions.create_session(**KEY)
        event = said("look")
        assert event.content
        event.content.parts = [picture(SMALL), picture(SMALL + b"!")]
        await sessions.append_event(session, event)
        kept = (await stored(sessions)).events[0].content
    assert kept
    assert [bool(part.file_data) for part in kept.parts or ()] == [False, True]


async def test_media_of_a_tools_answer(tmp_path: Path) -> None:
    """A picture that a tool answers with goes and comes back in the same way."""
    artifacts = files(tmp_path)
    async with DurableSessionService.from_url(media=Media(artifacts=artifacts)) as sessions:
        session = await sessions.create_session(**KEY)
        call = types.FunctionCall(id="c", name="paint", args={})
        blob = types.FunctionResponseBlob(data=PICTURE, mime_type="image/png")
        answer = types.FunctionResponse(
            id="c",
            name="paint",
            response={"done": True},
            parts=[types.FunctionResponsePart(inline_data=blob)],
        )
        for part in (types.Part(function_call=call), types.Part(function_response=answer)):
            content = types.Content(role="model" if part.function_call else "user", parts=[part])
            event = Event(author="agent", invocation_id="paint", content=content)
            await sessions.append_event(session, event)
        (name,) = await artifacts.list_artifact_keys(**KEY)
        shown = []
        for is_there in (True, False):
            if not is_there:
                await artifacts.delete_artifact(**KEY, filename=name)
            async with talking(sessions) as (runner, model):
                await say(runner, types.Part(text="and now?"))
            (sent,) = [
                p.function_response
                for c in model.sent[0]
                for p in c.parts or ()
                if p.function_response
            ]
            shown.append(sent)
    whole, gone = shown
    assert [p.inline_data.data for p in whole.parts or () if p.inline_data] == [PICTURE]
    assert whole.response == {"done": True}
    assert not gone.parts
    assert gone.response == {
        "done": True,
        "memext_media": ["image/png of 102,400 bytes, no longer available"],
    }


async def test_an_erasure_reaches_the_artifacts(place: Place) -> None:
    """The picture goes with its session, and the receipt counts it."""
    async with (
        with_media(place, Media(artifacts=files(place.folder))) as sessions,
        talking(sessions) as (runner, _model),
    ):
        await say(runner, picture())
        assert PICTURE in artifact_bytes(place.folder)
        receipt = await sessions.erasure.erase_session(**KEY)
    assert receipt.counts["artifacts"] == 1
    assert PICTURE not in artifact_bytes(place.folder)


async def test_a_deleted_event_takes_its_artifact(place: Place) -> None:
    """Unless another event refers to the same picture; then it goes with the last one."""
    artifacts = files(place.folder)
    async with with_media(place, Media(artifacts=artifacts)) as sessions:
        session = await sessions.create_session(**KEY)
        events = []
        for number in range(2):
            event = said("look", invocation=f"turn-{number}")
            assert event.content
            event.content.parts = [picture()]
            events.append(await sessions.append_event(session, event))
        await sessions.append_event(session, said("and?", invocation="turn-2"))
        await sessions.history.delete(session, [events[0].id])
        assert PICTURE in artifact_bytes(place.folder)
        await sessions.history.delete(session, [events[1].id])
        assert PICTURE not in artifact_bytes(place.folder)
        assert await artifacts.list_artifact_keys(**KEY) == []


async def test_a_swept_event_takes_its_artifact(place: Place) -> None:
    """A sweep that prunes a log removes media to which nothing in it refers any more."""
    policy = RetentionPolicy(history=Pruning(older_than=timedelta(0), keep=1))
    async with with_media(place, Media(artifacts=files(place.folder))) as sessions:
        session = await sessions.create_session(**KEY)
        event = said("look", invocation="turn-0")
        assert event.content
        event.content.parts = [picture()]
        await sessions.append_event(session, event)
        await sessions.append_event(session, said("and?", invocation="turn-1"))
        await sessions.erasure.sweep(policy, dry_run=True)
        assert PICTURE in artifact_bytes(place.folder)
        swept = await sessions.erasure.sweep(policy)
        assert swept.counts["events"] == 1
        assert PICTURE not in artifact_bytes(place.folder)


async def test_a_medium_that_is_gone_is_words(tmp_path: Path) -> None:
    """The turn goes on, and the model reads what was there."""
    artifacts = files(tmp_path)
    async with DurableSessionService.from_url(media=Media(artifacts=artifacts)) as sessions:
        async with talking(sessions) as (runner, _model):
            await say(runner, picture())
        for name in await artifacts.list_artifact_keys(**KEY):
            await artifacts.delete_artifact(**KEY, filename=name)
        async with talking(sessions) as (runner, model):
            await say(runner, types.Part(text="what was it?"))
    first = (model.sent[0][0].parts or [])[0]
    assert first.text == "[image/png of 102,400 bytes, no longer available]"


async def test_an_artifact_service_that_fails_fails_no_turn(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What cannot be saved stays in the event; what cannot be loaded is words."""
    broken = Broken()
    async with DurableSessionService.from_url(media=Media(artifacts=broken)) as sessions:
        async with talking(sessions) as (runner, model):
            await say(runner, picture())
        assert pictures(model.sent[0]) == [PICTURE]
        session = await stored(sessions)
        address = media_address(SessionId(*KEY.values()), f"memext_media_{'a' * 32}_9", 0)
        named = types.FileData(file_uri=address, mime_type="image/png")
        event = said("look")
        assert event.content
        event.content.parts = [types.Part(file_data=named)]
        await sessions.append_event(session, event)
        async with talking(sessions) as (runner, model):
            await say(runner, types.Part(text="and?"))
    texts = [part.text for content in model.sent[0] for part in content.parts or ()]
    assert "[image/png of 9 bytes, no longer available]" in texts
    assert "OSError" in caplog.text


@pytest.mark.parametrize("owner", [("app", "bob"), ("other", "ann")])
async def test_nobody_elses_media_are_loaded(tmp_path: Path, owner: tuple[str, str]) -> None:
    """An address that a person writes leads to no picture of another user or app."""
    artifacts = files(tmp_path)
    async with DurableSessionService.from_url(media=Media(artifacts=artifacts)) as sessions:
        theirs = await sessions.create_session(
            app_name=owner[0], user_id=owner[1], session_id="theirs"
        )
        event = Event(author="user", content=types.Content(role="user", parts=[picture()]))
        await sessions.append_event(theirs, event)
        stolen = (theirs.events[0].content or types.Content()).parts or []
        async with talking(sessions) as (runner, model):
            await say(runner, *stolen)
    assert pictures(model.sent[0]) == []
    assert "no longer available" in ((model.sent[0][0].parts or [])[0].text or "")


async def test_other_files_are_left_alone(tmp_path: Path) -> None:
    """A file that is only named, or an artifact of the application's own, is sent as it is."""
    addresses = ["gs://bucket/file.png", "artifact://apps/app/users/ann/artifacts/x/versions/0"]
    named = [
        types.Part(file_data=types.FileData(file_uri=one, mime_type="image/png"))
        for one in addresses
    ]
    async with (
        DurableSessionService.from_url(media=Media(artifacts=files(tmp_path))) as sessions,
        talking(sessions) as (runner, model),
    ):
        await say(runner, *named)
    assert model.sent[0][0].parts == named


async def test_a_reference_counts_as_its_medium(tmp_path: Path) -> None:
    """A budget does not move because a picture lies elsewhere, and a counter sees the picture."""
    counted: list[list[bytes | None]] = []

    async def counter(request: LlmRequest) -> int:
        counted.append(pictures(request.contents))
        return 1

    media = Media(artifacts=files(tmp_path))
    plugin = MemoryPlugin(history=History(4_000, counter=counter))
    async with (
        DurableSessionService.from_url(media=media) as sessions,
        talking(sessions, plugin) as (runner, model),
    ):
        await say(runner, picture())
        kept = (await stored(sessions)).events[0].content
    assert kept
    assert content_tokens(kept) == content_tokens(model.sent[0][0])
    assert counted == [[PICTURE]]


async def test_over_a_foreign_service_and_as_a_plain_callback(tmp_path: Path) -> None:
    """Any wrapped service, and no plugin: the reference is stored and the picture is sent."""
    artifacts = files(tmp_path)
    sessions = DurableSessionService(InMemorySessionService(), media=Media(artifacts=artifacts))
    agent = LlmAgent(name="agent", before_model_callback=ShownMedia().show)
    async with talking(sessions, MemoryPlugin(media=None), agent=agent) as (runner, model):
        await say(runner, picture())
        assert pictures([(await stored(sessions)).events[0].content or types.Content()]) == []
    assert pictures(model.sent[0]) == [PICTURE]


async def test_a_medium_is_loaded_once_an_invocation() -> None:
    """Several requests of one agent's run ask the artifact service once."""
    asked = 0

    class Counting(InMemoryArtifactService):
        async def load_artifact(self, **which: Any) -> types.Part | None:
            nonlocal asked
            asked += 1
            return await super().load_artifact(**which)

    def look() -> str:
        return "done"

    class Caller(Model):
        async def generate_content_async(
            self, llm_request: LlmRequest, stream: bool = False
        ) -> AsyncGenerator[LlmResponse, None]:
            del stream
            self.sent.append(list(llm_request.contents))
            part = types.Part.from_function_call(name="look", args={})
            if len(self.sent) > 3:
                part = types.Part(text="done")
            yield LlmResponse(content=types.Content(role="model", parts=[part]))

    async with (
        DurableSessionService.from_url(media=Media(artifacts=Counting())) as sessions,
        talking(sessions) as (runner, _model),
    ):
        caller = Caller(sent=[])
        assert isinstance(runner.agent, LlmAgent)
        runner.agent.model = caller
        runner.agent.tools = [look]
        await say(runner, picture())
    assert len(caller.sent) == 4
    assert all(pictures(sent) == [PICTURE] for sent in caller.sent)
    assert asked == 1
    gc.collect()
    assert media_module._loads == {}


def test_a_size_without_meaning_is_refused() -> None:
    """No medium has fewer than no bytes."""
    with pytest.raises(ConfigurationError):
        Media(artifacts=InMemoryArtifactService(), larger_than_bytes=-1)
