"""A policy over every service: each way of writing, in each scope, and what is read back."""

from __future__ import annotations

import enum
import itertools
import json
import logging
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import pytest
from google.adk.agents.llm_agent import LlmAgent
from google.adk.apps import App
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.sessions.state import State
from google.genai import types
from pydantic import BaseModel

from adk_memory_ext import (
    DurableSessionService,
    Increment,
    MemoryPlugin,
    Redaction,
    StatePolicy,
    StateRule,
    scoped,
)
from adk_memory_ext.errors import StateRejectedError
from backends import BARE, OURS, OURS_MARIADB, Backend, Place
from conversation import answered, called, said, texts

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable

    from google.adk.agents.callback_context import CallbackContext
    from google.adk.models.llm_request import LlmRequest
    from google.adk.sessions.session import Session
    from google.adk.tools.tool_context import ToolContext

OWNER: Final[dict[str, Any]] = {"app_name": "app", "user_id": "ann"}
FORBIDDEN: Final = "forbidden-value-7f3a"
ALL: Final = (*OURS, OURS_MARIADB, *BARE)
SCOPES: Final = ("session", "user", "app", "temp")

over_every_service = pytest.mark.parametrize(
    "backend", ALL, ids=lambda row: row.name, indirect=True
)


class Step(enum.Enum):
    """Where a conversation is."""

    ASKING = "asking"
    DONE = "done"


class Draft(BaseModel):
    """A value that tools change in place."""

    lines: list[str] = []
    at: datetime = datetime(2026, 1, 1, tzinfo=UTC)


POLICY: Final = StatePolicy(
    rules=[
        *(StateRule(f"{prefix}step", type=Step) for prefix in ("", "user:", "app:", "temp:")),
        StateRule("draft", type=Draft),
        StateRule("user:locale", type=str, default="en"),
        StateRule("temp:token", sensitivity="secret"),
        StateRule("short", max_bytes=10),
        StateRule("*"),
        StateRule("user:*"),
        StateRule("app:*"),
        StateRule("temp:*"),
    ]
)


@asynccontextmanager
async def opened(
    backend: Backend, place: Place, policy: StatePolicy = POLICY, **options: Any
) -> AsyncIterator[DurableSessionService]:
    """Yields a service with a policy, ours or over one of ADK's."""
    if backend.name.startswith("ours"):
        async with DurableSessionService.from_url(place.url, policy=policy, **options) as service:
            yield service
        return
    async with (
        backend.open(place) as bare,
        DurableSessionService(bare, policy=policy, **options) as service,
    ):
        yield service


async def reloaded(service: DurableSessionService, session: Session) -> Session:
    """Returns the session as it is stored."""
    found = await service.get_session(**OWNER, session_id=session.id)
    assert found is not None
    return found


# --- Each scope x each way of writing x each service


class Writer(BaseLlm):
    """Calls the tool that it has, and says something when it has answered."""

    model: str = "writer"

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Answers from the request alone."""
        del stream
        last = (llm_request.contents[-1].parts or [types.Part()])[0]
        if llm_request.tools_dict and not last.function_response:
            part = types.Part.from_function_call(name=next(iter(llm_request.tools_dict)), args={})
        else:
            part = types.Part(text="done")
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


@dataclass
class Turn:
    """One turn of an agent that writes a value somewhere."""

    agent: dict[str, Any] = field(default_factory=dict)
    run: dict[str, Any] = field(default_factory=dict)

    async def play(self, service: DurableSessionService, session: Session) -> list[Any]:
        """Returns the events of the turn."""
        agent = LlmAgent(name="agent", model=Writer(), **self.agent)
        app = App(name="app", root_agent=agent, plugins=[MemoryPlugin()])
        async with Runner(app=app, session_service=service) as runner:
            return [
                event
                async for event in runner.run_async(
                    user_id="ann",
                    session_id=session.id,
                    new_message=types.UserContent("hello"),
                    **self.run,
                )
            ]


async def _create(service: DurableSessionService, session: Session, delta: dict[str, Any]) -> None:
    del session
    await service.create_session(**OWNER, session_id="other", state=delta)


async def _append(service: DurableSessionService, session: Session, delta: dict[str, Any]) -> None:
    await service.append_event(session, said("hello", state=delta))


async def _patch(service: DurableSessionService, session: Session, delta: dict[str, Any]) -> None:
    # What ADK's PATCH of a session does.
    event = said("", state=delta)
    event.content = None
    await service.append_event(await reloaded(service, session), event)


async def _direct(service: DurableSessionService, session: Session, delta: dict[str, Any]) -> None:
    loaded = await reloaded(service, session)
    loaded.state.update(delta)
    await service.append_event(loaded, said("hello"))


async def _callback(
    service: DurableSessionService, session: Session, delta: dict[str, Any]
) -> None:
    def write(callback_context: CallbackContext) -> None:
        callback_context.state.update(delta)

    await Turn(agent={"before_agent_callback": write}).play(service, session)


async def _run_delta(
    service: DurableSessionService, session: Session, delta: dict[str, Any]
) -> None:
    await Turn(run={"state_delta": delta}).play(service, session)


WAYS: Final[dict[str, Callable[..., Awaitable[None]]]] = {
    "create_session": _create,
    "append_event": _append,
    "PATCH": _patch,
    "direct write": _direct,
    "callback": _callback,
    "run_async(state_delta)": _run_delta,
}


@over_every_service
async def test_a_refused_write_stores_nothing_whatever_the_way(
    backend: Backend, place: Place
) -> None:
    """In every scope the error names key, scope and reason, and nothing of the event is stored."""
    async with opened(backend, place) as service:
        for way, scope in itertools.product(WAYS, SCOPES):
            if (way, scope) == ("direct write", "temp"):
                continue  # in no delta, and never stored
            key = "step" if scope == "session" else f"{scope}:step"
            session = await service.create_session(**OWNER)
            with pytest.raises(StateRejectedError) as refusal:
                await WAYS[way](service, session, {"kept": 1, key: FORBIDDEN})
            assert (refusal.value.key, refusal.value.scope) == (key, scope), way
            assert FORBIDDEN not in str(refusal.value)
            state = (await reloaded(service, session)).state
            assert state.keys() & {key, "kept"} == set(), way
        assert await service.get_session(**OWNER, session_id="other") is None
    if backend.storage != "memory":
        assert FORBIDDEN.encode() not in backend.stored_bytes(place)


@over_every_service
async def test_an_accepted_write_is_read_back_typed_whatever_the_way(
    backend: Backend, place: Place
) -> None:
    """In every scope but `temp:`, which is not stored, the value comes back as its type."""
    delta = {"step": Step.DONE, "user:step": "done", "app:step": Step.DONE, "temp:step": "done"}
    async with opened(backend, place) as service:
        for way, write in WAYS.items():
            state = dict.fromkeys(("user:step", "app:step"), "asking")
            session = await service.create_session(**OWNER, state=state)
            await write(service, session, delta)
            session_id = "other" if way == "create_session" else session.id
            stored = await service.get_session(**OWNER, session_id=session_id)
            assert stored is not None
            expected = dict.fromkeys(("step", "user:step", "app:step"), Step.DONE)
            assert stored.state == {**expected, "user:locale": "en"}, way
            assert json.loads(stored.model_dump_json())["state"]["step"] == "done"


@over_every_service
async def test_a_tool_is_told_and_the_run_goes_on(backend: Backend, place: Place) -> None:
    """The refusal is the tool's answer; nothing that the call wrote is kept, no call stays open."""

    def write(tool_context: ToolContext) -> dict[str, str]:
        """Writes."""
        tool_context.state["kept"] = 1
        tool_context.state["list"].append(2)
        tool_context.state["user:step"] = FORBIDDEN
        return {"said": "written"}

    async with opened(backend, place) as service:
        session = await service.create_session(**OWNER, state={"list": [1]})
        events = await Turn(agent={"tools": [write]}).play(service, session)
        (answer,) = (r for event in events for r in event.get_function_responses())
        assert "'user:step' does not fit the type Step" in answer.response["error"]
        assert FORBIDDEN not in str(answer.response)
        assert texts(events)[-1] == "done"
        stored = await reloaded(service, session)
        assert stored.state == {"list": [1], "user:locale": "en"}


@over_every_service
async def test_refused_keys_can_be_dropped_and_are_reported(backend: Backend, place: Place) -> None:
    """With `on_refused="drop"` the rest is stored and the event lists keys and reasons."""
    policy = StatePolicy(rules=POLICY.rules, on_refused="drop")
    async with opened(backend, place, policy) as service:
        session = await service.create_session(**OWNER, state={"step": "asking", "User:x": 1})
        await service.append_event(
            session, said("hello", state={"kept": 1, "step": FORBIDDEN, "User:y": 1})
        )
        for seen in (session, await reloaded(service, session)):
            assert dict(seen.state) == {"step": Step.ASKING, "kept": 1, "user:locale": "en"}
            (event,) = seen.events
            refused = (event.custom_metadata or {})["memext_refused"]
            assert [item["key"] for item in refused] == ["step", "User:y"]
        await service.append_event(session, said("again"))
        assert session.events[-1].custom_metadata is None


# --- Types


@over_every_service
async def test_live_and_reloaded_values_agree(backend: Backend, place: Place) -> None:
    """The session that was appended to holds what a reload gives, object for object."""
    async with opened(backend, place) as service:
        session = await service.create_session(**OWNER, state={"draft": {"lines": ["a"]}})
        assert session.state["draft"] == Draft(lines=["a"])
        draft = Draft(lines=["b"])
        session.state["draft"].lines.append("ignored by the write below")
        event = said("hello", state={"draft": draft, "user:step": Step.DONE})
        await service.append_event(session, event)
        stored = await reloaded(service, session)
        assert dict(stored.state) == dict(session.state)
        assert stored.state["draft"] == draft
        assert await service.get_user_state(**OWNER) == {"step": Step.DONE, "locale": "en"}
        (listed,) = (await service.list_sessions(**OWNER)).sessions
        assert listed.state.get("draft", draft) == draft


@over_every_service
async def test_a_typed_value_changed_in_place_is_stored(backend: Backend, place: Place) -> None:
    """ADK does not watch objects; what changed is found by comparison at the next append."""

    def add(tool_context: ToolContext) -> dict[str, str]:
        """Adds a line."""
        tool_context.state["draft"].lines.append("from a tool")
        return {"said": "added"}

    async with opened(backend, place) as service:
        session = await service.create_session(**OWNER, state={"draft": Draft()})
        await Turn(agent={"tools": [add]}).play(service, session)
        assert (await reloaded(service, session)).state["draft"].lines == ["from a tool"]


async def test_a_change_in_place_that_is_refused_is_undone(backend: Backend, place: Place) -> None:
    """The append raises, and the next one goes through with the old value."""
    async with opened(backend, place) as service:
        session = await service.create_session(**OWNER, state={"draft": Draft(lines=["a"])})
        session.state["draft"].at = "never"
        with pytest.raises(StateRejectedError, match="draft"):
            await service.append_event(session, said("one"))
        await service.append_event(session, said("two"))
        assert texts((await reloaded(service, session)).events) == ["two"]
        assert session.state["draft"] == Draft(lines=["a"])


async def test_templates_render_defaults_and_typed_values(backend: Backend, place: Place) -> None:
    """`{user:locale}` finds the default where nobody has set it, and ends no run."""
    asked: list[str] = []

    def see(callback_context: CallbackContext, llm_request: LlmRequest) -> None:
        del callback_context
        asked.append(str(llm_request.config.system_instruction))

    async with opened(backend, place) as service:
        session = await service.create_session(**OWNER)
        agent = {"instruction": "Speak {user:locale}.", "before_model_callback": see}
        await Turn(agent=agent).play(service, session)
        await service.append_event(
            await reloaded(service, session), said("x", state={"user:locale": "nl"})
        )
        await Turn(agent=agent).play(service, session)
    assert "Speak en." in asked[0]
    assert "Speak nl." in asked[1]


async def test_output_keys_meet_the_policy(backend: Backend, place: Place) -> None:
    """What an agent says into its `output_key` is a write like any other."""
    async with opened(backend, place) as service:
        session = await service.create_session(**OWNER)
        with pytest.raises(StateRejectedError, match="'draft' does not fit"):
            await Turn(agent={"output_key": "draft"}).play(service, session)
        await Turn(agent={"output_key": "answer"}).play(service, session)
        assert (await reloaded(service, session)).state["answer"] == "done"


# --- sessions.state


async def test_state_without_a_turn_meets_the_policy(backend: Backend, place: Place) -> None:
    """`sessions.state` refuses what an append refuses, judges results, and answers typed."""
    async with opened(backend, place) as service:
        session = await service.create_session(**OWNER, state={"short": 99_999_999})
        with pytest.raises(StateRejectedError, match="step"):
            await service.state.update({"user:step": FORBIDDEN}, **OWNER)
        assert await service.state.update({"user:step": "done"}, **OWNER) == {
            "user:step": Step.DONE
        }
        own: dict[str, Any] = {**OWNER, "session_id": session.id}
        with pytest.raises(StateRejectedError, match="has 11 bytes, and its rule allows 10"):
            await service.state.increment("short", 10**10, **own)
        assert await service.state.increment("short", 1, **own) == 100_000_000
        await service.append_event(
            await reloaded(service, session), said("x", state={"short": Increment(1)})
        )
        assert (await reloaded(service, session)).state["short"] == 100_000_001


# --- Redaction


@over_every_service
async def test_what_a_secret_key_holds_is_stored_nowhere(backend: Backend, place: Place) -> None:
    """Echoed into text, tool arguments, answers, metadata or other state, it is blacked out."""
    secret = "hunter22-swordfish"  # noqa: S105  # to be searched for
    async with opened(backend, place) as service:
        session = await service.create_session(**OWNER, state={"temp:token": secret})
        events = [
            said(f"it is {secret}", state={"note": f"<{secret}>", "user:list": [secret]}),
            called("login", {"password": secret, "deep": [{"x": secret}]}),
            answered("login", {"echo": secret}, state={"temp:token": secret}),
        ]
        events[0].custom_metadata = {"raw": secret}
        for event in events:
            await service.append_event(session, event)
        assert session.state["temp:token"] == secret
        stored = await reloaded(service, session)
        for seen in (session, stored):
            assert secret not in "".join(event.model_dump_json() for event in seen.events)
        assert stored.state["note"] == "<[secret]>"
        assert stored.events[0].custom_metadata == {"raw": "[secret]"}
        # The caller's event keeps its words: ADK calls the tool with them after the append.
        (call,) = events[1].get_function_calls()
        assert call.args == {"password": secret, "deep": [{"x": secret}]}
    if backend.storage != "memory":
        assert secret.encode() not in backend.stored_bytes(place)


async def test_forms_and_hooks_apply_to_events_and_state(backend: Backend, place: Place) -> None:
    """A token by its form and a name by the team's own function are gone from both."""
    policy = StatePolicy(redaction=Redaction(hook=lambda text: text.replace("Ann", "[name]")))
    async with opened(backend, place, policy) as service:
        session = await service.create_session(**OWNER, state={"who": "Ann"})
        await service.append_event(session, said("Ann has Bearer abcdefgh123", state={"w": "Ann"}))
        stored = await reloaded(service, session)
        assert texts(stored.events) == ["[name] has Bearer [token]"]
        assert dict(stored.state) == dict(session.state) == {"who": "[name]", "w": "[name]"}
        assert stored.events[0].author == "user"


async def test_an_event_without_anything_to_hide_stays_the_object_it_was(
    backend: Backend, place: Place
) -> None:
    """The session holds the caller's event, as without a policy."""
    async with opened(backend, place) as service:
        session = await service.create_session(**OWNER)
        event = said("hello", state={"x": 1})
        assert await service.append_event(session, event) is event
        assert session.events[-1] is event


async def test_no_refusal_says_a_value_in_the_log(
    backend: Backend, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """Logs name keys and reasons only."""
    policy = StatePolicy(rules=POLICY.rules, on_refused="drop", undeclared="warn")
    with caplog.at_level(logging.DEBUG, logger="adk_memory_ext"):
        async with opened(backend, place, policy) as service:
            session = await service.create_session(**OWNER, state={"step": FORBIDDEN})
            await service.append_event(session, said("x", state={"user:step": FORBIDDEN}))
    assert FORBIDDEN not in caplog.text


# --- Views


async def test_a_deletion_through_a_view_is_applied_at_the_append(
    backend: Backend, place: Place
) -> None:
    """Gone for later reads of the same turn, and from the store in every scope."""
    seen: list[Any] = []

    def tidy(tool_context: ToolContext) -> dict[str, str]:
        """Tidies up."""
        views = scoped(tool_context.state)
        seen.append(views.user.pop("old"))
        del views.session["gone"]
        views.app.clear()
        views.user["new"] = 1
        views.temp["x"] = 1
        again = scoped(tool_context.state)
        seen.extend([dict(again.user), dict(again.session), dict(again.app), dict(again.temp)])
        return {"said": "tidy"}

    async with opened(backend, place) as service:
        state = {"user:old": 1, "gone": 2, "app:a": 3, "app:b": 4, "kept": 5}
        session = await service.create_session(**OWNER, state=state)
        await Turn(agent={"tools": [tidy]}).play(service, session)
        stored = (await reloaded(service, session)).state
    assert seen == [1, {"new": 1, "locale": "en"}, {"kept": 5}, {}, {"x": 1}]
    assert dict(stored) == {"user:new": 1, "user:locale": "en", "kept": 5}
    assert State.TEMP_PREFIX + "x" not in stored
