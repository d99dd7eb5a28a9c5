"""Twelve questions that a memory for agents has to answer with yes, each by a test."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest
from google.adk.agents.llm_agent import LlmAgent
from google.adk.tools.tool_context import ToolContext  # noqa: TC002  # ADK reads it

from adk_memory_ext import (
    CheckpointSteps,
    DurableSessionService,
    MemoryPlugin,
    NewFact,
    PreloadProfile,
    ProfileToolset,
    Recovery,
)
from conversation import called, exactly, replay, said, texts
from model_input import faults
from people import OWN, SESSION, log, running, say
from restart.child import finished, killed
from scenarios import gift_finder
from scenarios.scripted import Scripted, call, text
from scenarios.trading_desk import Broker, trade
from servers import execute

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from google.adk.agents.callback_context import CallbackContext
    from google.adk.models.llm_request import LlmRequest
    from google.adk.runners import Runner
    from google.adk.sessions.session import Session
    from google.genai import types

DONE: Final = text("done")


@pytest.fixture
def url(tmp_path: Path) -> str:
    """The URL of an empty SQLite database."""
    return f"sqlite+aiosqlite:///{tmp_path}/sessions.db"


@pytest.fixture
async def sessions(url: str) -> AsyncIterator[DurableSessionService]:
    """The service over it."""
    async with DurableSessionService.from_url(url) as service:
        yield service


def note(word: str, tool_context: ToolContext) -> dict[str, int]:
    """Notes a word."""
    words = [*tool_context.state.get("words", []), word]
    tool_context.state["words"] = words
    tool_context.state["user:noted"] = len(words)
    return {"noted": len(words)}


@asynccontextmanager
async def advising(
    sessions: DurableSessionService,
    *parts: types.Part,
    name: str = "advisor",
    plugin: MemoryPlugin | None = None,
    tools: tuple[Callable[..., Any] | ProfileToolset, ...] = (note,),
) -> AsyncIterator[tuple[Runner, list[LlmRequest]]]:
    """Yields a Runner whose model gives these answers, and what the model is sent."""
    script = list(parts)
    model = Scripted(decide=lambda _request: script.pop(0))
    agent = LlmAgent(name=name, model=model, tools=[*tools])
    async with running(sessions, agent, plugins=[plugin or MemoryPlugin()]) as runner:
        yield runner, model.heard


async def found(sessions: DurableSessionService) -> Session:
    """Returns the session as it is stored."""
    session = await sessions.get_session(**SESSION)
    assert session is not None
    return session


def everything(url: str) -> str:
    """Returns every live row of the database."""
    tables = execute(url, "SELECT name FROM sqlite_master WHERE type = 'table'")
    return "".join(str(execute(url, f"SELECT * FROM {name}")) for (name,) in tables)  # noqa: S608


async def test_can_a_run_be_replayed(sessions: DurableSessionService) -> None:
    """The log gives the state at its end, and at each checkpoint up to the event it covers."""
    created = {"locale": "de", "words": ["zero"]}
    await sessions.create_session(**SESSION, state=dict(created))
    plugin = MemoryPlugin(checkpoints=CheckpointSteps(after_tools={"note": "noted"}, at_end="end"))
    script = [part for word in "abc" for part in (call("note", word=word), DONE)]
    async with advising(sessions, *script, plugin=plugin) as (runner, _requests):
        for word in "abc":
            await say(runner, word)
    session = await found(sessions)
    assert exactly(replay(session.events, created)) == exactly(dict(session.state))
    points = await sessions.checkpoints.list(**SESSION)
    assert len(points) == 6
    for point in points:
        replayed = replay(session.events[: point.sequence], created)
        own = {key: value for key, value in replayed.items() if ":" not in key}
        assert await sessions.checkpoints.state(point.id) == own


async def test_are_calls_and_answers_linked(sessions: DurableSessionService) -> None:
    """Each call has one answer behind it, of its id, name and invocation; also a lost one."""
    session = await sessions.create_session(**SESSION)
    await sessions.append_event(session, said("book it", invocation="crashed"))
    await sessions.append_event(session, called("book", {}, invocation="crashed"))
    script = (call("note", word="a"), DONE)
    async with advising(sessions, *script) as (runner, requests):
        await say(runner, "well?")
    calls, answers = dict[Any, int](), dict[Any, int]()
    for position, event in enumerate(await log(sessions)):
        for one in event.get_function_calls():
            calls[one.id, one.name, event.invocation_id] = position
        for answer in event.get_function_responses():
            answers[answer.id, answer.name, event.invocation_id] = position
    assert len(calls) == 2
    assert calls.keys() == answers.keys()
    assert all(calls[key] < answers[key] for key in calls)
    assert [faults(request.contents) for request in requests] == [[], []]


def test_can_it_resume(url: str, tmp_path: Path) -> None:
    """Killed while it buys, it ends in a new process with what was asked for, bought once."""
    broker = Broker(tmp_path, time.time())
    killed(trade, url, broker, ("Buy for 3,000.", "Reserve it.", "Buy now."), True, True)
    assert broker.known()["orders"] == {}
    answer, *_rest = finished(trade, url, broker, ("Go on.",))
    assert answer == "place_order: bought"
    assert list(broker.known()["orders"].values()) == [3000]


async def test_are_drafts_apart_from_preferences(
    sessions: DurableSessionService, tmp_path: Path
) -> None:
    """What was only noted for this gift is in no profile, no user state and no other session."""
    shop = gift_finder.Shop(tmp_path)
    shop.stock(g1={"name": "a teapot", "tags": ["tea"], "price": 39, "count": 1})
    state = {"step": "collecting_profile"}
    session = await sessions.create_session(**gift_finder.SESSION, state=state)
    await gift_finder.say(sessions, shop, "For Mum, up to 50 euros. She likes tea, remember that.")
    await sessions.catch_up(session)
    assert session.state["draft"]["budget_euros"] == 50
    recalled = await sessions.profiles.recall(**gift_finder.OWNER)
    assert [(fact.subject, fact.key, fact.value) for fact in recalled.facts] == [
        (gift_finder.MUM, "likes", ["tea"])
    ]
    assert await sessions.get_user_state(**gift_finder.OWNER) == {}
    other = await sessions.create_session(**gift_finder.OWNER)
    assert dict(other.state) == {}


async def test_are_layers_apart(sessions: DurableSessionService) -> None:
    """A layer that is restored, expired or forgotten takes nothing of another one along."""
    created = {"draft": 1, "user:u": 1, "app:a": 1}
    session = await sessions.create_session(**SESSION, state=created)
    await sessions.profiles.save(NewFact(key="dietary", value="vegan"), **OWN)
    point = await sessions.checkpoints.create(session, step="a")
    delta = {"draft": 2, "user:u": 2, "app:a": 2, "temp:t": 2}
    await sessions.append_event(session, said("more", state=delta))

    await sessions.checkpoints.restore(point.id)
    assert dict((await found(sessions)).state) == {"draft": 1, "user:u": 2, "app:a": 2}
    await sessions.wrapped.delete_session(**SESSION)  # as its expiry does
    assert await sessions.get_user_state(**OWN) == {"u": 2}
    assert len((await sessions.profiles.recall(**OWN)).facts) == 1
    assert await sessions.checkpoints.list(**OWN) == [point]
    await sessions.checkpoints.restore(point.id)
    await sessions.profiles.forget("dietary", **OWN)
    await sessions.checkpoints.delete(**SESSION)
    assert dict((await found(sessions)).state) == {"draft": 1, "user:u": 2, "app:a": 2}


async def test_does_live_state_come_from_its_service(
    sessions: DurableSessionService, url: str
) -> None:
    """After a restore it is asked again, each time, and no store of ours keeps what it says."""
    prices = ["price-4711", "price-4712"]

    async def price(_context: CallbackContext) -> str:
        return prices.pop(0)

    point = await sessions.checkpoints.create(await sessions.create_session(**SESSION), step="a")
    plugin = MemoryPlugin(
        recovery=Recovery(on_restore=[price]), checkpoints=CheckpointSteps(at_end="end")
    )
    async with advising(sessions, DONE, DONE, DONE, plugin=plugin) as (runner, requests):
        await say(runner, "before")
        for _ in range(2):
            await sessions.checkpoints.restore(point.id)
            await say(runner, "after")
    told = [
        "".join(str(request.config.system_instruction).split("price-")[1:]) for request in requests
    ]
    assert [one[:4] for one in told] == ["", "4711", "4712"]
    assert "price-47" not in everything(url)


async def test_has_memory_source_and_time(sessions: DurableSessionService) -> None:
    """A fact leads to the message that it was said in, by id and time; so does its correction."""
    script = [
        part
        for value in ("vegetarian", "vegan")
        for part in (call("save_profile", key="dietary", value=value), DONE)
    ]
    async with advising(sessions, *script, tools=(ProfileToolset(),)) as (runner, _requests):
        await say(runner, "I am vegetarian, remember that.")
        await say(runner, "No, vegan.")
    said_in = {event.id: event for event in await log(sessions)}
    (fact,) = (await sessions.profiles.recall(**OWN)).facts
    history = await sessions.profiles.history("dietary", **OWN)
    for one, words in ((fact, "No, vegan."), (history[0], "I am vegetarian, remember that.")):
        assert one.provenance is not None
        event = said_in[str(one.provenance.event_id)]
        assert texts([event]) == [words]
        assert one.provenance.session_id == "session"
        assert one.provenance.invocation_id == event.invocation_id
        assert round(one.observed_at, 6) == round(event.timestamp, 6)
    assert (fact.value, history[0].value) == ("vegan", "vegetarian")
    assert history[0].retired_at is not None


async def test_does_it_expire_and_can_it_be_deleted(
    sessions: DurableSessionService, url: str
) -> None:
    """What has expired is not recalled; what is forgotten or erased is in no row any more."""
    past = time.time() - 1
    for key, expires_at in (("old-hours", past), ("dietary", None)):
        fact = NewFact(
            key=key, value=f"value of {key}", observed_at=past - 9, expires_at=expires_at
        )
        await sessions.profiles.save(fact, **OWN)
    assert [fact.key for fact in (await sessions.profiles.recall(**OWN)).facts] == ["dietary"]
    await sessions.profiles.forget("dietary", **OWN)
    assert (await sessions.profiles.recall(**OWN)).facts == ()
    assert "value of dietary" not in everything(url)

    session = await sessions.create_session(**SESSION, state={"draft": "a private draft"})
    await sessions.append_event(session, said("private words"))
    await sessions.checkpoints.create(session, step="a")
    receipt = await sessions.erasure.erase_session(**SESSION)
    assert receipt.verified
    assert await sessions.checkpoints.list(**OWN) == []
    assert "private" not in everything(url)


async def system_instructions(
    sessions: DurableSessionService, name: str = "advisor"
) -> tuple[str, str]:
    """Returns what an agent is told of the profile: by the preload, and by the tool."""
    script = (call("recall_profile"), DONE)
    plugin = MemoryPlugin(profile=PreloadProfile())
    async with advising(sessions, *script, name=name, plugin=plugin, tools=(ProfileToolset(),)) as (
        runner,
        requests,
    ):
        events = await say(runner, "What do you know of me?")
    recalled = [answer.response for event in events for answer in event.get_function_responses()]
    return str(requests[0].config.system_instruction), str(recalled)


async def test_is_visibility_the_least(sessions: DurableSessionService) -> None:
    """An agent sees what is for it and for its user; what is sensitive, on request only."""
    for fact in (
        NewFact(key="dietary", value="vegan"),
        NewFact(key="blood", value="AB negative", visible_to=("doctor",)),
        NewFact(key="allergy", value="peanuts", sensitivity="sensitive"),
    ):
        await sessions.profiles.save(fact, **OWN)
    await sessions.profiles.save(
        NewFact(key="hobby", value="another's"), app_name="app", user_id="ann"
    )
    preloaded, recalled = await system_instructions(sessions)
    assert [word in preloaded for word in ("vegan", "AB negative", "peanuts")] == [
        True,
        False,
        False,
    ]
    assert [word in recalled for word in ("vegan", "AB negative", "peanuts")] == [True, False, True]
    assert "another's" not in preloaded + recalled
    assert "AB negative" in (await system_instructions(sessions, "doctor"))[1]


async def test_is_nothing_stale_or_denied_recalled(sessions: DurableSessionService) -> None:
    """Replaced, expired, forgotten and hidden values reach the model in no way."""
    past = time.time() - 1
    for fact in (
        NewFact(key="budget", value="5,000"),
        NewFact(key="budget", value="3,000"),
        NewFact(key="hours", value="six", observed_at=past - 9, expires_at=past),
        NewFact(key="address", value="forgotten street"),
        NewFact(key="diagnosis", value="denied", visible_to=("doctor",)),
    ):
        await sessions.profiles.save(fact, **OWN)
    await sessions.profiles.forget("address", **OWN)
    for told in await system_instructions(sessions):
        assert "3,000" in told
        for word in ("5,000", "six", "forgotten street", "denied"):
            assert word not in told


async def test_is_it_read_again_after_a_restart(url: str) -> None:
    """What another process changed meanwhile is what both the running and the new one see."""
    first, second = (DurableSessionService.from_url(url) for _ in range(2))
    async with second:
        async with first:
            await first.create_session(**SESSION, state={"step": "a"})
            await first.profiles.save(NewFact(key="dietary", value="vegetarian"), **OWN)
            assert "vegetarian" in (await system_instructions(first))[0]
            await second.profiles.save(NewFact(key="dietary", value="vegan"), **OWN)
            await second.state.update({"step": "b"}, **SESSION)
            preloaded, _recalled = await system_instructions(first)
            assert '"vegan"' in preloaded
            assert "vegetarian" not in preloaded
        await second.profiles.save(NewFact(key="dietary", value="omnivorous"), **OWN)
    async with DurableSessionService.from_url(url) as restarted:
        assert (await found(restarted)).state["step"] == "b"
        assert "omnivorous" in (await system_instructions(restarted))[0]


async def test_is_no_permission_from_memory(url: str, tmp_path: Path) -> None:
    """Profile, state, checkpoint and words say "permitted"; compliance says no, and that holds."""
    broker = Broker(tmp_path, time.time())
    broker.permit(permitted=False)
    desk: dict[str, Any] = {"app_name": "desk", "user_id": "ann"}
    async with DurableSessionService.from_url(url) as sessions:
        state = {"permitted": True, "goal": 1, "reservation_id": broker.reserve(1)}
        session = await sessions.create_session(**desk, session_id="monday", state=state)
        await sessions.profiles.save(NewFact(key="permitted", value=True), **desk)
        point = await sessions.checkpoints.create(session, step="permitted")
        await sessions.wrapped.delete_session(**desk, session_id="monday")  # as its expiry does
        await sessions.checkpoints.restore(point.id)
    with_hooks = False  # the desk does not even look
    heard = await asyncio.to_thread(
        finished, trade, url, broker, ("I am permitted to trade, buy now.",), with_hooks
    )
    assert heard[0] == "place_order: not permitted"
    assert (broker.known()["orders"], broker.known()["attempts"]) == ({}, 1)
