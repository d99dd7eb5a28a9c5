"""A gift finder without a network: a workflow of steps, in processes that share what is stored."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from google.adk.agents.llm_agent import LlmAgent
from google.adk.apps import App
from google.adk.runners import Runner
from google.adk.tools.tool_context import ToolContext  # noqa: TC002  # ADK reads it
from google.genai import types

from adk_memory_ext import (
    CheckpointSteps,
    DurableSessionService,
    MemoryPlugin,
    ProfileToolset,
    Recovery,
    RetentionPolicy,
)
from conversation import texts
from scenarios.scripted import Scripted, call, since_the_last_message, text

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from pathlib import Path

    from google.adk.agents.callback_context import CallbackContext
    from google.adk.models.llm_request import LlmRequest

OWNER: Final[dict[str, Any]] = {"app_name": "gifts", "user_id": "ann"}
SESSION: Final[dict[str, Any]] = {**OWNER, "session_id": "birthday"}
KEPT: Final = RetentionPolicy(
    session_idle=timedelta(minutes=30), orphaned_checkpoints=timedelta(days=30)
)
MUM: Final = "gift-for-mum"
_INSTRUCTION: Final = (
    "Find a gift. Step: {step}. Draft: {draft?}. Candidates: {candidate_ids?}. Choice: {choice?}."
)


class Shop:
    """An outside service: what there is, at which price, as of now."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "shop.json"

    def stock(self, **gifts: dict[str, Any]) -> None:
        """Replaces what there is."""
        self._file.write_text(json.dumps(gifts))

    def gifts(self) -> dict[str, dict[str, Any]]:
        """Returns what there is by id: name, tags, price in euros, and how many."""
        gifts: dict[str, dict[str, Any]] = json.loads(self._file.read_text())
        return gifts


def _next(request: LlmRequest) -> types.Part:  # noqa: PLR0911  # a case for each step
    wish, answers = since_the_last_message(request)
    system = str(request.config.system_instruction)
    found = re.search(r"Step: (\w+)", system)
    step = found[1] if found else ""
    if "next week" in wish:
        return text("See you then.")
    if "recall_profile" not in answers:
        return call("recall_profile")
    if step == "collecting_profile" and "remember" in wish and "save_profile" not in answers:
        return call("save_profile", key="likes", value=["tea"], kind="preference", about=MUM)
    if step == "collecting_profile":
        return call("note_profile", about=MUM, likes=["tea"], budget_euros=50)
    if step == "generating_candidates":
        return call("find_candidates")
    if step == "filtering":
        return call("filter_candidates")
    if offer := answers.get("prepare_offer"):
        return text(f"I would take {offer['name']} for {offer['price']} euros.")
    afresh = re.search(r'\{"live_candidates": .*\}', system)
    known = json.loads(afresh[0])["live_candidates"] if afresh else answers["filter_candidates"]
    there = {id_: gift for id_, gift in known.items() if gift["count"] and gift["price"] <= 50}
    if not there:
        return text("Nothing of it is to be had any more.")
    return call("prepare_offer", gift_id=min(there, key=lambda id_: float(there[id_]["price"])))


def finder_app(shop: Shop, model: Scripted) -> App:
    """Returns the finder: state holds ids, and details are the shop's alone."""

    def note_profile(
        about: str, likes: list[str], budget_euros: int, tool_context: ToolContext
    ) -> dict[str, str]:
        """Notes whom the gift is for."""
        tool_context.state["draft"] = {
            "about": about,
            "likes": likes,
            "budget_euros": budget_euros,
        }
        tool_context.state["step"] = "generating_candidates"
        return {"noted": about}

    def find_candidates(tool_context: ToolContext) -> dict[str, Any]:
        """Looks for gifts that the person may like."""
        likes = set(tool_context.state["draft"]["likes"])
        gifts = {id_: gift for id_, gift in shop.gifts().items() if likes & set(gift["tags"])}
        tool_context.state["candidate_ids"] = sorted(gifts)
        tool_context.state["step"] = "filtering"
        return gifts

    def filter_candidates(tool_context: ToolContext) -> dict[str, Any]:
        """Keeps what is inside the budget and to be had."""
        budget = tool_context.state["draft"]["budget_euros"]
        gifts = shop.gifts()
        kept = {
            id_: gifts[id_]
            for id_ in tool_context.state["candidate_ids"]
            if gifts[id_]["price"] <= budget and gifts[id_]["count"]
        }
        tool_context.state["candidate_ids"] = sorted(kept)
        tool_context.state["step"] = "finalizing"
        return kept

    def prepare_offer(gift_id: str, tool_context: ToolContext) -> dict[str, Any]:
        """Chooses a gift and reads its details for the offer."""
        tool_context.state["choice"] = gift_id
        return shop.gifts()[gift_id]

    async def live_candidates(context: CallbackContext) -> dict[str, Any]:
        """Reads the candidates' details afresh, by their ids."""
        gifts = shop.gifts()
        return {id_: gifts[id_] for id_ in context.state["candidate_ids"]}

    agent = LlmAgent(
        name="finder",
        model=model,
        instruction=_INSTRUCTION,
        tools=[
            ProfileToolset(),
            note_profile,
            find_candidates,
            filter_candidates,
            prepare_offer,
        ],
    )
    plugin = MemoryPlugin(
        profile=None,  # what is known of recipients comes through the tools
        checkpoints=CheckpointSteps(
            workflow="gift",
            after_tools={
                "note_profile": "profile_collected",
                "filter_candidates": "filtered",
                "prepare_offer": "offer",
            },
        ),
        recovery=Recovery(on_restore=[live_candidates]),
    )
    return App(name=OWNER["app_name"], root_agent=agent, plugins=[plugin])


async def say(
    sessions: DurableSessionService, shop: Shop, *messages: str
) -> tuple[list[str], list[LlmRequest]]:
    """Returns what the finder answers, and what its model was sent."""
    model = Scripted(decide=_next)
    answers = []
    async with Runner(app=finder_app(shop, model), session_service=sessions) as runner:
        for message in messages:
            content = types.Content(role="user", parts=[types.Part(text=message)])
            run = runner.run_async(user_id="ann", session_id="birthday", new_message=content)
            answers.append(texts([event async for event in run])[-1])
    return answers, model.heard


# --- Processes


def converse(pipe: Connection, url: str, folder: Path, *messages: str) -> None:
    """Begins a session, sends the messages, and says the answers and the checkpoints' steps."""

    async def run() -> None:
        async with DurableSessionService.from_url(url) as sessions:
            state = {"step": "collecting_profile", "locale": "de"}
            await sessions.create_session(**SESSION, state=state)
            answers, _requests = await say(sessions, Shop(folder), *messages)
            pipe.send(answers)
            pipe.send([point.step for point in await sessions.checkpoints.list(**OWNER)])

    asyncio.run(run())


def tidy_up(pipe: Connection, url: str, now: float) -> None:
    """Erases what has expired at a time, and says how many sessions and checkpoints are left."""

    async def run() -> None:
        async with DurableSessionService.from_url(url) as sessions:
            await sessions.erasure.sweep(KEPT, now=now)
            page = await sessions.list_sessions_page(**OWNER)
            pipe.send((len(page.sessions), len(await sessions.checkpoints.list(**OWNER))))

    asyncio.run(run())


def come_back(pipe: Connection, url: str, folder: Path, user_id: str, message: str) -> None:
    """Restores the user's latest checkpoint where the session is gone, and goes on.

    Says the report, the answer, the model's first system instruction, its first contents, and the
    state; only None if there is no checkpoint.
    """

    async def run() -> None:
        async with DurableSessionService.from_url(url) as sessions:
            owner = {**OWNER, "user_id": user_id}
            assert await sessions.get_session(**owner, session_id="birthday") is None
            point = await sessions.checkpoints.latest(**owner)
            if point is None:
                pipe.send(None)
                return
            pipe.send(await sessions.checkpoints.restore(point.id, **owner))
            answers, requests = await say(sessions, Shop(folder), message)
            pipe.send(answers[0])
            pipe.send(str(requests[0].config.system_instruction))
            pipe.send([content.model_dump(exclude_none=True) for content in requests[0].contents])
            session = await sessions.get_session(**SESSION)
            assert session is not None
            pipe.send(dict(session.state))

    asyncio.run(run())
