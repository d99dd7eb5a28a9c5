"""Erasing reaches memory services: through their search and their `delete_memory`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest
from google.adk.agents.llm_agent import LlmAgent
from google.adk.apps.app import App
from google.adk.artifacts.in_memory_artifact_service import InMemoryArtifactService
from google.adk.memory.base_memory_service import BaseMemoryService, SearchMemoryResponse
from google.adk.memory.in_memory_memory_service import InMemoryMemoryService
from google.adk.memory.memory_entry import MemoryEntry
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.genai import types
from typing_extensions import override

from adk_memory_ext import MemoryPlugin, NewFact, ProfileMemoryService
from adk_memory_ext.errors import ErasureIncompleteError
from conversation import said

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from google.adk.models.llm_request import LlmRequest
    from google.adk.sessions.session import Session

    from adk_memory_ext.service import DurableSessionService

ANN: Final[dict[str, Any]] = {"app_name": "app", "user_id": "ann"}
ANNA: Final[dict[str, Any]] = {"app_name": "app", "user_id": "anna"}
WORDS: Final = "I keep the lighthouse"


class Digests(BaseMemoryService):
    """Keeps what sessions said under ids of its own, three words at most for a search."""

    def __init__(self) -> None:
        self.kept: dict[str, tuple[str, str]] = {}
        self.fails = False

    @override
    async def add_session_to_memory(self, session: Session) -> None:
        for event in session.events:
            text = event.content.parts[0].text if event.content and event.content.parts else ""
            self.kept[f"digest-{len(self.kept)}"] = (session.user_id, text or "")

    @override
    async def search_memory(
        self, *, app_name: str, user_id: str, query: str
    ) -> SearchMemoryResponse:
        found = [
            MemoryEntry(id=key, content=types.Content(parts=[types.Part(text=text)]))
            for key, (owner, text) in self.kept.items()
            if owner == user_id and set(text.split()) & set(query.split())
        ]
        return SearchMemoryResponse(memories=found[:3])

    @override
    async def delete_memory(
        self, *, app_name: str, user_id: str, memory_id: str | None = None
    ) -> None:
        if self.fails:
            raise OSError(WORDS)
        del self.kept[memory_id or ""]


class ReadOnly(Digests):
    """Deletes nothing."""

    delete_memory = BaseMemoryService.delete_memory


async def lived(
    sessions: DurableSessionService, memory: BaseMemoryService, owner: dict[str, Any], name: str
) -> None:
    """Stores a session of many like words and adds it to memory."""
    session = await sessions.create_session(**owner, session_id=name)
    for number in range(14):
        await sessions.append_event(session, said(f"{WORDS} {'yes' * (number % 2)}"))
    await sessions.append_event(session, said(f"only {name} says that"))
    await memory.add_session_to_memory(session)


async def whole(sessions: DurableSessionService, name: str) -> Session:
    """Returns a session of Ann's."""
    session = await sessions.get_session(**ANN, session_id=name)
    assert session is not None
    return session


class Silent(BaseLlm):
    """Answers nothing much."""

    model: str = "silent"

    @override
    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        yield LlmResponse(content=types.ModelContent("yes"))


async def found(memory: BaseMemoryService, owner: dict[str, Any], query: str = WORDS) -> int:
    """Returns how many memories a search finds."""
    return len((await memory.search_memory(**owner, query=query)).memories)


@pytest.mark.parametrize("service", [InMemoryMemoryService, Digests])
async def test_a_person_is_gone_from_memory(
    service: type[BaseMemoryService], sessions: DurableSessionService
) -> None:
    """All memories of a user go, however many a search shows; those of others stay."""
    memory = service()
    for owner, name in ((ANN, "one"), (ANN, "two"), (ANNA, "three")):
        await lived(sessions, memory, owner, name)
    sessions.erasure.register(memory_service=memory)
    assert (await sessions.erasure.plan_user(**ANN)).counts["memory"] > 0
    receipt = await sessions.erasure.erase_user(**ANN)
    assert receipt.counts["memory"] == 30
    assert not any("memory:" in reason for reason in receipt.not_checked)
    for query in (WORDS, "yes", "only one two says that"):
        assert await found(memory, ANN, query) == 0
    assert await found(memory, ANNA) > 0


@pytest.mark.parametrize("service", [InMemoryMemoryService, Digests])
async def test_a_session_is_gone_from_memory(
    service: type[BaseMemoryService], sessions: DurableSessionService
) -> None:
    """The memories of a session go; what only another one of the user said stays."""
    memory = service()
    for name in ("one", "two"):
        await lived(sessions, memory, ANN, name)
    sessions.erasure.register(memory_service=ProfileMemoryService(sessions, also=memory))
    if service is InMemoryMemoryService:
        await sessions.erasure.erase_session(**ANN, session_id="one")
        assert await found(memory, ANN) > 0
        await sessions.delete_session(**ANN, session_id="two")
        assert await found(memory, ANN) == 0
        return
    # Nobody can tell whose the other entries are, and the receipt says so.
    with pytest.raises(ErasureIncompleteError, match="which entries are of this session"):
        await sessions.erasure.erase_session(**ANN, session_id="one")
    assert await found(memory, ANN, "one") == 0
    assert await found(memory, ANN, "two") == 1


@pytest.mark.parametrize("also", [None, InMemoryMemoryService])
async def test_a_fact_that_stays_is_no_memory_that_was_left(
    sessions: DurableSessionService, also: type[BaseMemoryService] | None
) -> None:
    """A stated fact in the words of an erased session is the profile's, whoever searches it."""
    memory = ProfileMemoryService(sessions, also=None if also is None else also())
    await lived(sessions, memory, ANN, "one")
    await sessions.profiles.save(NewFact(key="work", value=WORDS), **ANN)
    sessions.erasure.register(memory_service=memory)
    plan = await sessions.erasure.plan_session(**ANN, session_id="one")
    receipt = await sessions.erasure.erase_session(**ANN, session_id="one")
    for reasons in (plan.not_reached, receipt.not_checked):
        assert not any(reason.startswith("memory:") for reason in reasons)
    assert [fact.key for fact in (await sessions.profiles.recall(**ANN)).facts] == ["work"]


async def test_a_memory_that_deletes_nothing_is_named(sessions: DurableSessionService) -> None:
    """A service without `delete_memory` is named as not reached, in the plan and in the receipt."""
    memory = ReadOnly()
    await lived(sessions, memory, ANN, "one")
    sessions.erasure.register(memory_service=memory)
    plan = await sessions.erasure.plan_user(**ANN)
    assert plan.not_reached == (
        "memory: ReadOnly deletes nothing; register_erasure can reach it",
        "artifacts: no service is known here; MemoryPlugin or register(…) tells of it",
    )
    with pytest.raises(ErasureIncompleteError, match="ReadOnly deletes nothing"):
        await sessions.erasure.erase_user(**ANN)
    assert await found(memory, ANN) > 0
    assert (await sessions.list_sessions(**ANN)).sessions == []


async def test_a_memory_that_fails_is_named(sessions: DurableSessionService) -> None:
    """When `delete_memory` raises, everything else goes and no word of the error is kept."""
    memory = Digests()
    memory.fails = True
    await lived(sessions, memory, ANN, "one")
    sessions.erasure.register(memory_service=memory)
    with pytest.raises(ErasureIncompleteError, match="memory: failed with OSError") as caught:
        await sessions.erasure.erase_user(**ANN)
    assert WORDS not in caught.value.receipt.to_json()
    assert (await sessions.list_sessions(**ANN)).sessions == []


async def test_the_plugin_tells_of_the_services_of_its_runner(
    sessions: DurableSessionService,
) -> None:
    """After a run under `MemoryPlugin` an erasure reaches the Runner's memory and artifacts."""
    memory, artifacts = InMemoryMemoryService(), InMemoryArtifactService()
    app = App(name="app", root_agent=LlmAgent(name="a", model=Silent()), plugins=[MemoryPlugin()])
    runner = Runner(
        app=app, session_service=sessions, memory_service=memory, artifact_service=artifacts
    )
    async with runner:
        await sessions.create_session(**ANN, session_id="one")
        message = types.UserContent(WORDS)
        async for _event in runner.run_async(
            user_id=ANN["user_id"], session_id="one", new_message=message
        ):
            pass
        await memory.add_session_to_memory(await whole(sessions, "one"))
        await artifacts.save_artifact(
            **ANN, session_id="one", filename="resume.txt", artifact=types.Part(text=WORDS)
        )
        assert await found(memory, ANN) == 1
        await sessions.delete_session(**ANN, session_id="one")
        assert await found(memory, ANN) == 0
        assert await artifacts.list_artifact_keys(**ANN, session_id="one") == []


async def test_what_was_registered_counts_more_than_the_runner(
    sessions: DurableSessionService,
) -> None:
    """A service that was registered is reached instead of the one of a Runner."""
    registered, seen = Digests(), Digests()
    await lived(sessions, registered, ANN, "one")
    await seen.add_session_to_memory(await whole(sessions, "one"))
    sessions.erasure.register(memory_service=registered)
    sessions.erasure.see_runner(None, seen)
    await sessions.erasure.erase_user(**ANN)
    assert await found(registered, ANN) == 0
    assert await found(seen, ANN) > 0
