"""A trading desk without a network: its log is the record, and what is true now is the broker's."""

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
    Recovery,
    idempotency_key,
    request_checkpoint,
)
from conversation import texts
from restart.child import die
from scenarios.scripted import Scripted, call, since_the_last_message, text

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from pathlib import Path

    from google.adk.agents.callback_context import CallbackContext
    from google.adk.models.llm_request import LlmRequest

OWNER: Final[dict[str, Any]] = {"app_name": "desk", "user_id": "ann"}
SESSION: Final[dict[str, Any]] = {**OWNER, "session_id": "monday"}
HELD_FOR: Final = timedelta(minutes=10)


class Broker:
    """An outside service: reservations that expire, orders by their keys, and who may trade.

    Args:
        folder: Where it keeps what it knows.
        now: Its clock, in UTC epoch seconds.
    """

    def __init__(self, folder: Path, now: float) -> None:
        self._file = folder / "broker.json"
        self.now = now
        if not self._file.exists():
            self._save({"reservations": {}, "orders": {}, "attempts": 0, "permitted": True})

    def known(self) -> dict[str, Any]:
        """Returns everything that it knows."""
        known: dict[str, Any] = json.loads(self._file.read_text())
        return known

    def _save(self, known: dict[str, Any]) -> None:
        self._file.write_text(json.dumps(known))

    def permit(self, *, permitted: bool) -> None:
        """Says whether the user may trade."""
        self._save({**self.known(), "permitted": permitted})

    def reserve(self, amount: int) -> str:
        """Holds an amount for some minutes, and returns the reservation's id."""
        known = self.known()
        name = f"r{len(known['reservations']) + 1}"
        until = self.now + HELD_FOR.total_seconds()
        known["reservations"][name] = {"amount": amount, "until": until}
        self._save(known)
        return name

    def status(self, reservation: str | None) -> str:
        """Returns whether a reservation is held."""
        found = self.known()["reservations"].get(reservation)
        if found is None:
            return "none"
        return "held" if found["until"] >= self.now else "expired"

    def order(self, key: str, reservation: str) -> str:
        """Buys what is reserved, once for each key, if the user may."""
        known = self.known()
        known["attempts"] += 1
        if not known["permitted"]:
            outcome = "not permitted"
        elif self.status(reservation) != "held":
            outcome = "no reservation"
        else:
            known["orders"][key] = known["reservations"][reservation]["amount"]
            outcome = "bought"
        self._save(known)
        return outcome


def _next(request: LlmRequest) -> types.Part:  # noqa: PLR0911  # a case for each wish
    wish, answers = since_the_last_message(request)
    if answers:
        ((name, answer),) = answers.items()
        return text(f"{name}: {answer['outcome']}")
    if amount := re.search(r"for ([\d,]+)", wish):
        return call("set_goal", amount=int(amount[1].replace(",", "")))
    if "Reserve" in wish:
        return call("reserve")
    system = str(request.config.system_instruction)
    reservation = re.search(r"Reservation: (\w*)\.", system)
    name = reservation[1] if reservation else ""
    if afresh := re.search(r'\{"reservation": .*\}', system):
        live = json.loads(afresh[0])
        if not live["compliance"]["permitted"]:
            return text("You may not trade at present; nothing was bought.")
        if live["orders"]:
            return text("It was bought already.")
        if live["reservation"] != "held":
            return text("Nothing is reserved any more, and nothing was bought.")
    return call("place_order", reservation_id=name)


def desk_app(broker: Broker, model: Scripted, *, with_hooks: bool, dies: bool) -> App:
    """Returns the desk: state holds the goal and the reservation's id."""

    def set_goal(amount: int, tool_context: ToolContext) -> dict[str, Any]:
        """Sets how much is to be bought."""
        tool_context.state["goal"] = amount
        request_checkpoint(tool_context, step="goal")
        return {"outcome": amount}

    def reserve(tool_context: ToolContext) -> dict[str, str]:
        """Reserves what is to be bought."""
        name = broker.reserve(tool_context.state["goal"])
        tool_context.state["reservation_id"] = name
        request_checkpoint(tool_context, step="reserved", references={"reservation": name})
        return {"outcome": name}

    def place_order(reservation_id: str, tool_context: ToolContext) -> dict[str, str]:
        """Buys what is reserved."""
        if dies:
            die()
        return {"outcome": broker.order(idempotency_key(tool_context), reservation_id)}

    async def reservation(context: CallbackContext) -> str:
        return broker.status(context.state.get("reservation_id"))

    async def orders(_context: CallbackContext) -> list[int]:
        return list(broker.known()["orders"].values())

    async def compliance(_context: CallbackContext) -> dict[str, bool]:
        return {"permitted": broker.known()["permitted"]}

    agent = LlmAgent(
        name="trader",
        model=model,
        instruction="Trade. Goal: {goal?}. Reservation: {reservation_id?}.",
        tools=[set_goal, reserve, place_order],
    )
    hooks = [reservation, orders, compliance] if with_hooks else []
    plugin = MemoryPlugin(
        checkpoints=CheckpointSteps(workflow="trade"),
        recovery=Recovery(how="rollback", on_restore=hooks),
    )
    return App(name=OWNER["app_name"], root_agent=agent, plugins=[plugin])


def trade(  # noqa: PLR0917  # the arguments of a process
    pipe: Connection,
    url: str,
    broker: Broker,
    messages: tuple[str, ...],
    with_hooks: bool = True,
    dies: bool = False,
) -> None:
    """Sends the messages; says each answer, at last the model's last contents and the state."""
    model = Scripted(decide=_next)

    async def run() -> None:
        async with DurableSessionService.from_url(url) as sessions:
            await sessions.get_or_create_session(**SESSION, state={"locale": "de"})
            app = desk_app(broker, model, with_hooks=with_hooks, dies=dies)
            async with Runner(app=app, session_service=sessions) as runner:
                for message in messages:
                    content = types.Content(role="user", parts=[types.Part(text=message)])
                    events = runner.run_async(
                        user_id="ann", session_id="monday", new_message=content
                    )
                    pipe.send(texts([event async for event in events])[-1])
            pipe.send(
                [content.model_dump(exclude_none=True) for content in model.heard[-1].contents]
            )
            session = await sessions.get_session(**SESSION)
            assert session is not None
            pipe.send(dict(session.state))

    asyncio.run(run())


def look(pipe: Connection, url: str) -> None:
    """Says the step of the last consistent checkpoint, and all that was ever said in the log."""

    async def run() -> None:
        async with DurableSessionService.from_url(url) as sessions:
            point = await sessions.checkpoints.latest(**SESSION)
            pipe.send(None if point is None else (point.step, point.references))
            session = await sessions.get_session(**SESSION)
            assert session is not None
            pipe.send([one for one in texts(session.events) if one])

    asyncio.run(run())
