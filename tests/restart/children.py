"""What the child processes do. Each function runs in a process of its own."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING, Final, Literal

from google.adk.agents.llm_agent import LlmAgent
from google.adk.events.event import Event
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.tools.tool_context import ToolContext  # noqa: TC002  # ADK reads it
from google.genai import types

from adk_memory_ext.service import DurableSessionService
from adk_memory_ext.sql_sessions import SqlSessionService
from conversation import answered, called, replay, said, texts
from restart.child import die
from restart.killswitch import Point, arm, disarm, watch_databases

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from multiprocessing.connection import Connection

    from google.adk.models.llm_request import LlmRequest
    from google.adk.sessions.session import Session

APP: Final = "app"
USER: Final = "ann"
INITIAL: Final = {"step": "begun", "user:visits": 1, "app:motd": "hello"}
"""The state with which each session is created."""

TurnPoint = Literal["model", "tool", "model with the tool's answer"]
"""Where in a turn the process dies; the last two are after the model's call of the tool."""


def conversation() -> list[Event]:
    """Returns twelve events: three turns, each with a tool call and state of every scope."""
    events: list[Event] = []
    for turn in range(3):
        name = f"turn-{turn}"
        delta = {
            "step": name,
            f"done-{turn}": [turn, {"履歷": turn}],
            "user:visits": turn + 2,
            f"user:likes-{turn}": "tea",
            f"app:seen-{turn}": True,
            "temp:otp": "never stored",
        }
        events += [
            said(f"question {turn}", invocation=name, state={"asked": turn}),
            called("look_up", {"turn": turn}, invocation=name),
            answered("look_up", {"found": turn}, invocation=name, state=delta),
            said(f"answer {turn}", author="agent", invocation=name, state={"answered": turn}),
        ]
    return events


async def _begin(sessions: DurableSessionService, session_id: str) -> Session:
    return await sessions.get_or_create_session(
        app_name=APP, user_id=USER, session_id=session_id, state=dict(INITIAL)
    )


# -- conversations that are cut short ---------------------------------------------------------


def converse(pipe: Connection, url: str, position: int, point: Point | None) -> None:
    """Appends the conversation, says each event once it is acknowledged, and dies at `position`.

    With a point, at this point of the append there; with None, right after its acknowledgement.
    """
    watch_databases()

    async def run() -> None:
        async with DurableSessionService.from_url(url) as sessions:
            session = await _begin(sessions, "s")
            for n, event in enumerate(conversation()):
                if n == position and point is not None:
                    arm(point)
                returned = await sessions.append_event(session, event)
                pipe.send(returned.model_dump_json())
                if n == position:
                    die()

    asyncio.run(run())


def append_until_statement(pipe: Connection, url: str, number: int) -> None:
    """Appends two events and dies before the second one's statement of this number.

    Comes to its end when there are not so many.
    """
    watch_databases()

    async def run() -> None:
        async with DurableSessionService.from_url(url) as sessions:
            session = await _begin(sessions, "s")
            event = conversation()[2]  # its state is of every scope
            first = await sessions.append_event(session, said("first"))
            pipe.send(first.model_dump_json())
            arm(number)
            returned = await sessions.append_event(session, event)
            disarm()
            pipe.send(returned.model_dump_json())

    asyncio.run(run())


def open_until_statement(pipe: Connection, url: str, number: int) -> None:
    """Opens a new database, stores a session and dies before the statement of this number.

    Comes to its end, and says how many statements there were, when there are not so many.
    """
    watch_databases()
    arm(number)

    async def run() -> None:
        async with DurableSessionService.from_url(url) as sessions:
            await _begin(sessions, "s")
        pipe.send(disarm())

    asyncio.run(run())


def converse_at_once(pipe: Connection, url: str, sessions_at_once: int) -> None:
    """Holds many conversations at once, for ever, and says each event that is acknowledged."""

    async def talk(sessions: DurableSessionService, session_id: str) -> None:
        session = await _begin(sessions, session_id)
        n = 0
        while True:
            state = {"n": n, f"user:{session_id}": n, f"app:{session_id}": n}
            returned = await sessions.append_event(session, said(str(n), state=state))
            pipe.send((session_id, returned.model_dump_json()))
            n += 1

    async def run() -> None:
        async with DurableSessionService.from_url(url) as sessions:
            await asyncio.gather(*(talk(sessions, f"s{n}") for n in range(sessions_at_once)))

    asyncio.run(run())


# -- readers ----------------------------------------------------------------------------------


def read(pipe: Connection, url: str) -> None:
    """Says what a process that has just started finds of the user's sessions, one by one."""

    async def run() -> None:
        async with DurableSessionService.from_url(url) as sessions:
            listed = (await sessions.list_sessions(app_name=APP, user_id=USER)).sessions
            for session_id in sorted(session.id for session in listed):
                session = await sessions.get_session(
                    app_name=APP, user_id=USER, session_id=session_id
                )
                assert session is not None
                pipe.send(
                    {
                        "id": session.id,
                        "events": [event.model_dump_json() for event in session.events],
                        "state": session.state,
                        "user state": await sessions.get_user_state(app_name=APP, user_id=USER),
                    }
                )
            # Somebody else's new session shows what is stored for the app.
            other = await sessions.create_session(app_name=APP, user_id="somebody else")
            pipe.send({"app state": other.state})

    asyncio.run(run())


def look_on(pipe: Connection, url: str, number: int) -> None:
    """Reads the session `s` until it has `number` events; says each length that it comes to see.

    Fails where a reading is not one moment of the session, or goes back behind an earlier one.
    """

    async def run() -> None:
        async with DurableSessionService.from_url(url) as sessions:
            seen = -1
            while seen < number:
                session = await sessions.get_session(app_name=APP, user_id=USER, session_id="s")
                if session is None:
                    assert seen == -1, "the session is gone again"
                    continue
                length = len(session.events)
                assert length >= seen, f"{seen} events became {length}"
                assert texts(session.events) == [f"event {n}" for n in range(length)]
                assert replay(session.events, INITIAL) == session.state, "state and events differ"
                if length > seen:
                    pipe.send(length)
                seen = length

    asyncio.run(run())


# -- writers ----------------------------------------------------------------------------------


def write_slowly(pipe: Connection, url: str, number: int) -> None:
    """Appends `number` events to the session `s`, and waits for a word half way."""

    async def run() -> None:
        async with DurableSessionService.from_url(url) as sessions:
            session = await _begin(sessions, "s")
            for n in range(number):
                if n == number // 2:
                    pipe.recv()
                state = {"n": n, "user:n": n, "app:n": n, f"key-{n % 5}": "x" * 2000}
                await sessions.append_event(session, said(f"event {n}", state=state))

    asyncio.run(run())


def write_beside(pipe: Connection, url: str, name: str, number: int) -> None:
    """Opens a database at a word, as others do, and writes a session with keys of its own."""
    pipe.send("ready")
    pipe.recv()

    async def run() -> None:
        async with DurableSessionService.from_url(url) as sessions:
            session = await sessions.create_session(
                app_name=APP,
                user_id=USER,
                session_id=name,
                state={f"user:{name}-begun": 1, f"app:{name}-begun": 1},
            )
            for n in range(number):
                state = {"n": n, f"user:{name}-{n}": n, f"app:{name}-{n}": n}
                await sessions.append_event(session, said(f"{name} {n}", state=state))

    asyncio.run(run())


# -- turns of a Runner ------------------------------------------------------------------------


class OfflineModel(BaseLlm):
    """Calls the tool for a question, and answers with what the tool said.

    Its answer counts the questions that stand in the request, so that it tells what it was sent.
    """

    model: str = "offline"
    die_at: TurnPoint | None = None

    async def generate_content_async(
        self,
        llm_request: LlmRequest,
        stream: bool = False,  # noqa: ARG002  # ADK's interface
    ) -> AsyncGenerator[LlmResponse, None]:
        """Yields the one response."""
        parts = [part for content in llm_request.contents for part in content.parts or []]
        questions = [part.text for part in parts if (part.text or "").startswith("question")]
        answer = parts[-1].function_response
        if self.die_at == ("model" if answer is None else "model with the tool's answer"):
            die()
        if answer is None:
            call = types.FunctionCall(name="note", args={"text": questions[-1]})
            part = types.Part(function_call=call)
        else:
            part = types.Part(text=f"{answer.response}, question {len(questions)} of them")
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


class _Saying(DurableSessionService):
    """Says each event that it has acknowledged."""

    pipe: Connection

    async def append_event(self, session: Session, event: Event) -> Event:
        """Appends, and says so."""
        returned = await super().append_event(session, event)
        if not event.partial:
            self.pipe.send(returned.model_dump_json())
        return returned


def take_turn(pipe: Connection, url: str, question: str, die_at: TurnPoint | None) -> None:
    """Runs one turn of an agent and says each event that was acknowledged; may die in the turn."""

    def note(text: str, tool_context: ToolContext) -> dict[str, str]:
        """Notes a text."""
        tool_context.state["noted"] = text
        tool_context.state["user:noted"] = text
        tool_context.state["app:noted"] = text
        tool_context.state["temp:noted"] = "never stored"
        if die_at == "tool":
            die()
        return {"noted": text}

    async def run() -> None:
        agent = LlmAgent(name="agent", model=OfflineModel(die_at=die_at), tools=[note])
        async with _Saying.from_url(url) as sessions:
            sessions.pipe = pipe
            await _begin(sessions, "s")
            runner = Runner(app_name=APP, agent=agent, session_service=sessions)
            message = types.Content(role="user", parts=[types.Part(text=question)])
            async for _event in runner.run_async(user_id=USER, session_id="s", new_message=message):
                pass
            await runner.close()

    asyncio.run(run())


def load_and_wait(pipe: Connection, url: str) -> None:
    """Loads a session, waits until it is told of its erasure, and says what it still holds.

    Nothing is called meanwhile; what is said is how long it took to forget, in seconds, and how
    many events with the secret are left in memory.
    """

    def held() -> int:
        gc.collect()
        return sum(
            type(one) is Event and "secret" in one.model_dump_json() for one in gc.get_objects()
        )

    async def run() -> None:
        async with DurableSessionService.from_url(url) as sessions:
            assert isinstance(sessions.wrapped, SqlSessionService)
            session = await _begin(sessions, "s")
            await sessions.append_event(session, said("the secret"))
            del session
            assert await sessions.get_session(app_name=APP, user_id=USER, session_id="s")
            pipe.send(held())
            assert await asyncio.to_thread(pipe.recv) == "erased"
            begin = asyncio.get_running_loop().time()
            while len(sessions.wrapped.cache):
                await asyncio.sleep(0.05)
            pipe.send(asyncio.get_running_loop().time() - begin)
            pipe.send(held())

    asyncio.run(run())
