"""How-tos about checkpoints, done as they stand: each block runs, and does what is said of it."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import httpx
import pytest
from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.llm_agent import LlmAgent
from google.adk.apps import App, ResumabilityConfig
from google.adk.memory.in_memory_memory_service import InMemoryMemoryService
from google.adk.runners import Runner
from google.adk.tools.tool_context import ToolContext

from adk_memory_ext import DurableSessionService
from adk_server import AdkProject
from conversation import called, said, texts
from people import content
from scenarios.scripted import Scripted, call, text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from google.adk.events.event import Event
    from google.adk.sessions.session import Session
    from google.genai import types

HOW_TOS: Final = Path(__file__).parents[1] / "docs" / "how-to"
ECHO: Final = Path(__file__).parent / "web" / "echo"
OWNER: Final[dict[str, Any]] = {"app_name": "gifts", "user_id": "ann"}
SESSION: Final[dict[str, Any]] = {**OWNER, "session_id": "birthday"}


@dataclass
class Page:
    """A how-to: its blocks of Python by their headings, and the names that they share."""

    name: str
    names: dict[str, Any] = field(default_factory=dict)

    def blocks(self, heading: str) -> list[str]:
        """Returns the blocks below a heading, or those before the first one."""
        sections = re.split(r"^## ", (HOW_TOS / self.name).read_text(), flags=re.MULTILINE)
        found = next(one for one in sections if one.startswith((heading, f"# {heading}")))
        return re.findall(r"^```python\n(.*?)^```$", found, re.MULTILINE | re.DOTALL)

    async def do(self, heading: str, *numbers: int) -> None:
        """Runs blocks below a heading, one after the other: those of some numbers, or all."""
        blocks = self.blocks(heading)
        assert blocks
        for block in (blocks[number] for number in numbers or range(len(blocks))):
            flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
            code = compile(block, self.name, "exec", flags, dont_inherit=True)
            running = eval(code, self.names)  # noqa: S307  # what a reader would paste
            if inspect.isawaitable(running):
                await running

    def __getitem__(self, name: str) -> Any:
        """Returns what a block has called so."""
        return self.names[name]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which the reader stands."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@dataclass
class Outside:
    """A service of somebody else: an airline, a shop."""

    asked: list[Any] = field(default_factory=list)

    async def book(self, flight: str, *, key: str) -> dict[str, str]:
        """Books a flight."""
        self.asked.append((flight, key))
        return {"booked": flight}

    async def stock(self, candidate_ids: list[str]) -> dict[str, int]:
        """Returns how many there are of each."""
        self.asked.append(candidate_ids)
        return dict.fromkeys(candidate_ids, 7)


class Remembering(InMemoryMemoryService):
    """Keeps what it is given."""

    given: tuple[str, ...] = ()

    async def add_session_to_memory(self, session: Session) -> None:
        """Notes what was said in the session."""
        self.given = tuple(one for one in texts(session.events) if one)


def speaking(*parts: types.Part) -> Scripted:
    """Returns a model that gives these answers."""
    script: Iterator[types.Part] = iter(parts)
    return Scripted(decide=lambda _request: next(script))


async def say(sessions: DurableSessionService, app: App, words: str) -> list[Event]:
    """Returns the events of one turn."""
    async with Runner(app=app, session_service=sessions) as runner:
        run = runner.run_async(user_id="ann", session_id="birthday", new_message=content(words))
        return [event async for event in run]


async def found(sessions: DurableSessionService) -> Session:
    """Returns the session as it is stored."""
    session = await sessions.get_session(**SESSION)
    assert session is not None
    return session


def filter_candidates(tool_context: ToolContext) -> dict[str, list[str]]:
    """Filters candidates."""
    tool_context.state["candidate_ids"] = ["g1", "g2"]
    return {"kept": ["g1", "g2"]}


async def test_restore_after_a_crash_lets_the_model_know() -> None:
    """The app of the first block tells its model of the call that has no answer."""
    model = speaking(call("book", flight="LH1"), text("booked"))
    page = Page("restore-after-a-crash.md", {"App": App, "ToolContext": ToolContext})
    airline = page.names["airline"] = Outside()
    agent = page.names["agent"] = LlmAgent(name="agent", model=model)
    await page.do("Let the model know")
    agent.tools = [page["book"]]
    async with DurableSessionService.from_url("") as sessions:
        session = await sessions.create_session(**SESSION)
        await sessions.append_event(session, said("book it"))
        await sessions.append_event(session, called("book", {"flight": "LH1"}))
        await say(sessions, page["app"], "well?")
    assert "outcome" in str(model.heard[0].contents)
    ((flight, key),) = airline.asked
    assert (flight, len(key)) == ("LH1", 32)


@pytest.mark.filterwarnings(r"ignore:\[EXPERIMENTAL\] ResumabilityConfig")
async def test_restore_after_a_crash_goes_on_with_adks_resumability() -> None:
    """The interrupted turn comes to its end under its own id."""
    page = Page("restore-after-a-crash.md", {"user_id": "ann", "session_id": "birthday"})
    answered: list[str] = []

    def look() -> str:
        """Looks."""
        answered.append("looked")
        return "seen"

    async with DurableSessionService.from_url("") as sessions:
        session = await sessions.create_session(**SESSION)
        await sessions.append_event(session, said("look", invocation="i1"))
        await sessions.append_event(session, called("look", {}, invocation="i1"))
        app = App(
            name="gifts",
            root_agent=LlmAgent(name="agent", model=speaking(text("seen")), tools=[look]),
            plugins=[],
            resumability_config=ResumabilityConfig(is_resumable=True),
        )
        heading = "Go on with ADK's resumability"
        await page.do(heading, 0)
        app.plugins.append(page["plugin"])
        async with Runner(app=app, session_service=sessions) as runner:
            page.names["runner"] = runner
            await page.do(heading, 1)
        events = (await found(sessions)).events
        assert (answered, [one for one in texts(events) if one]) == (["looked"], ["look", "seen"])
        assert {event.invocation_id for event in events} == {"i1"}


async def test_restore_after_a_crash_goes_back_to_a_checkpoint() -> None:
    """Checkpoints are made, restored and pruned, and what is live is read and handed on."""
    page = Page(
        "restore-after-a-crash.md",
        {"CallbackContext": CallbackContext, "user_id": "ann"},
    )
    memory = page.names["memory_service"] = Remembering()
    shop = page.names["shop"] = Outside()
    await page.do("Make checkpoints")
    sessions: DurableSessionService = page["sessions"]
    async with sessions:
        await sessions.create_session(**SESSION, state={"resume_text": "Ann, born 1990"})
        model = speaking(call("filter_candidates"), text("two are left"), text("five"), text("so"))
        agent = LlmAgent(name="agent", model=model, tools=[filter_candidates])
        app = App(name="gifts", root_agent=agent, plugins=[page["plugin"]])
        await say(sessions, app, "filter them")
        await say(sessions, app, "five of them")
        points = await sessions.checkpoints.list(**SESSION)
        assert [point.step for point in points] == ["turn", "turn", "filtered"]
        assert "resume_text" not in await sessions.checkpoints.state(points[0].id)

        await page.do("Go back to one", 0)
        assert page["restored"].checkpoint == points[-1]
        page.names["session"] = await found(sessions)
        await page.do("Go back to one", 1)
        assert memory.given == ("filter them",)

        await page.do("Read live facts anew")
        app = App(name="gifts", root_agent=agent, plugins=[page["plugin"]])
        await say(sessions, app, "and now?")
        assert shop.asked == [["g1", "g2"]]
        assert '{"stock": {"g1": 7, "g2": 7}}' in str(model.heard[-1].config.system_instruction)

        await page.do("Keep few of them")
        assert await sessions.checkpoints.list(**SESSION) == points


async def test_fork_a_conversation() -> None:
    """The fork has the history up to the checkpoint, and what came later is not in it."""
    async with DurableSessionService.from_url("") as sessions:
        session = await sessions.create_session(**SESSION, state={"step": "a"})
        await sessions.append_event(session, said("before", invocation="i1"))
        page = Page("fork-a-conversation.md", {"sessions": sessions, "session": session})
        page.names["user_id"] = "ann"
        await page.do("Fork a conversation")
        assert page["session"].id == page["fork"].session_id != session.id
        assert texts(page["session"].events) == ["before"]
        identity = {**OWNER, "session_id": page["fork"].session_id}
        assert await sessions.checkpoints.parent(**identity) == page["point"].id


@dataclass
class Account:
    """Who a token belongs to."""

    id: str


class Accounts:
    """The application's own."""

    async def user_of(self, token: str | None) -> Account | None:
        """Returns who has the token."""
        return Account("ann") if token == "hers" else None  # noqa: S105  # of nobody


@asynccontextmanager
async def client_of(app: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Yields a client of an app in this process."""
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


@pytest.mark.filterwarnings(r"ignore:\[EXPERIMENTAL\] \w+CredentialService")
async def test_rewind_and_restore_over_http(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The app answers whose checkpoints they are, and nobody else."""
    # ADK puts the agents' folder on the path and imports `services` from it.
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "services", raising=False)
    AdkProject.create(folder, ECHO)
    page = Page("rewind-and-restore-over-http.md", {"accounts": Accounts()})
    await page.do("Rewind, restore and fork over HTTP")
    sessions: DurableSessionService = page["sessions"]
    async with sessions, client_of(page["app"]) as client:
        session = await sessions.create_session(**SESSION)
        point = await sessions.checkpoints.create(session, step="begun")
        path = "/apps/gifts/users/ann/checkpoints"
        assert (await client.get(path)).status_code == 401
        hers = {"authorization": "hers"}
        assert (await client.get(path.replace("ann", "bob"), headers=hers)).status_code == 403
        assert (await client.get(path, headers=hers)).json()[0]["id"] == point.id
