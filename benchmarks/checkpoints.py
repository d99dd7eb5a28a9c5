"""What a checkpoint at every turn costs: bytes, the append that it is made with, and a restore."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, cast

from adk_memory_ext import DurableSessionService, request_checkpoint
from benchmarks.adk_stores import APP, AdkConversation, open_ours
from benchmarks.appends import time_appends
from benchmarks.contenders import LANGGRAPH, OURS
from benchmarks.other_stores import open_langgraph, whole_state
from benchmarks.rounds import Measured, in_turns
from benchmarks.store import sqlite_file
from benchmarks.workload import messages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from google.adk.agents.callback_context import CallbackContext
    from google.adk.events.event import Event

    from benchmarks.effort import Effort
    from benchmarks.workload import Message

EVENT_BYTES: Final = "event_bytes"
"""Quantity, with a number of turns behind it: the JSON of the events."""
BYTES: Final = "checkpoint_bytes"
"""The same: by how much the checkpoints make the file larger, with their index."""
PLAIN: Final = "plain_append_ms"
WITH: Final = "checkpointed_append_ms"
RESTORE: Final = "restore_ms"
EVENTS_A_TURN: Final = 2
_TURNS_BACK: Final = 3
_APPENDS_A_ROUND: Final = 10
_KIB: Final = 1_024
_MILLISECONDS: Final = 1_000
_NAME: Final = "one"
_OWN: Final[dict[str, Any]] = {"app_name": APP, "user_id": _NAME, "session_id": _NAME}


@dataclass
class _Asker:
    """What `request_checkpoint` takes of the context that ADK gives a tool."""

    agent_name: str
    state: dict[str, Any]


class _Turns(AdkConversation):
    """A conversation in turns."""

    def prepare(self, message: Message) -> Event:
        """Returns the message as an event of its turn."""
        event = message.to_event()
        event.invocation_id = f"turn-{message.number // EVENTS_A_TURN}"
        return event


class _CheckpointedTurns(_Turns):
    """The same, with a checkpoint at the end of each turn."""

    every_event = False
    """Whether each event is taken for the end of a turn."""

    def prepare(self, message: Message) -> Event:
        """Returns the event with the request, as a tool's answer would carry it."""
        event = super().prepare(message)
        if self.every_event or message.number % EVENTS_A_TURN == EVENTS_A_TURN - 1:
            asker = _Asker("coach", event.actions.state_delta)
            request_checkpoint(cast("CallbackContext", asker), step="turn")
        return event


_KINDS: Final[dict[str, type[_Turns]]] = {PLAIN: _Turns, WITH: _CheckpointedTurns}


@dataclass
class _Checkpoints:
    """Files of every length, with checkpoints and without."""

    url: Callable[[str], str]
    effort: Effort
    measured: Measured

    def _file(self, kind: str, turns: int) -> str:
        return self.url(f"{OURS.name}-{kind}-{turns}")

    async def seed(self) -> None:
        """Writes the conversations, and measures `event_bytes` and `checkpoint_bytes` in KiB."""
        for turns in self.effort.turns:
            sizes: dict[str, float] = {}
            for kind, conversation in _KINDS.items():
                async with open_ours(self._file(kind, turns)) as store:
                    session = (await store.conversation(_NAME)).session
                    talk = conversation(store.service, session)
                    for message in islice(messages(_NAME), EVENTS_A_TURN * turns):
                        await talk.append(talk.prepare(message))
                sizes[kind] = _size_kib(self._file(kind, turns))
            self.measured.add(f"{BYTES}/{turns}", OURS.name, sizes[WITH] - sizes[PLAIN])
            with closing(sqlite3.connect(sqlite_file(self._file(PLAIN, turns)))) as connection:
                query = "SELECT sum(length(CAST(event_data AS BLOB))) FROM events"
                (log,) = connection.execute(query).fetchone()
            self.measured.add(f"{EVENT_BYTES}/{turns}", OURS.name, log / _KIB)

    async def restore(self) -> None:
        """Measures `restore_ms`: back by a few turns, in a process that has loaded nothing."""
        names = {f"{RESTORE}/{turns}": turns for turns in self.effort.turns}
        for number, quantity in in_turns(list(names), self.effort.restore_rounds):
            original, copy = self._file(WITH, names[quantity]), self.url(f"restore-{number}")
            shutil.copyfile(sqlite_file(original), sqlite_file(copy))
            async with open_ours(copy) as store:
                checkpoints = _ours(store.service).checkpoints
                point = (await checkpoints.list(**_OWN))[_TURNS_BACK]
                start = perf_counter()
                restored = await checkpoints.restore(point.id)
                elapsed = perf_counter() - start
            if restored.hidden != _TURNS_BACK * EVENTS_A_TURN:
                raise AssertionError(f"{restored.hidden} events hidden")
            self.measured.add(quantity, OURS.name, elapsed * _MILLISECONDS)

    async def append(self) -> None:
        """Measures an append of either kind, to a loaded session of every length."""
        async with AsyncExitStack() as stack:
            talks: dict[str, tuple[_Turns, Iterator[Message]]] = {}
            for turns in self.effort.turns:
                for kind, conversation in _KINDS.items():
                    store = await stack.enter_async_context(open_ours(self._file(kind, turns)))
                    session = await store.service.get_session(**_OWN)
                    if session is None:
                        raise AssertionError("the conversation is gone")
                    talk = conversation(store.service, session)
                    if isinstance(talk, _CheckpointedTurns):
                        talk.every_event = True
                    stream = islice(messages(_NAME), EVENTS_A_TURN * turns, None)
                    talks[f"{kind}/{turns}"] = talk, stream
            for _number, quantity in in_turns(list(talks), self.effort.history_rounds):
                value = await time_appends(*talks[quantity], _APPENDS_A_ROUND)
                self.measured.add(quantity, OURS.name, value)

    async def langgraph(self) -> None:
        """Measures LangGraph's saver over the shorter conversation: it keeps whole states."""
        if not LANGGRAPH.installed:
            return
        turns = self.effort.turns[0]
        url = self.url(LANGGRAPH.name)
        async with open_langgraph(url) as store:
            talk = await store.conversation(_NAME)
            told = list(islice(messages(_NAME), EVENTS_A_TURN * turns))
            configs = []
            for turn in range(turns):
                state = whole_state(told[: EVENTS_A_TURN * (turn + 1)])
                start = perf_counter()
                await talk.append(state)
                elapsed = perf_counter() - start
                configs.append(talk.config)
                self.measured.add(f"{WITH}/{turns}", LANGGRAPH.name, elapsed * _MILLISECONDS)
            for _ in range(self.effort.restore_rounds):
                start = perf_counter()
                await store.saver.aget_tuple(configs[-1 - _TURNS_BACK])
                elapsed = perf_counter() - start
                self.measured.add(f"{RESTORE}/{turns}", LANGGRAPH.name, elapsed * _MILLISECONDS)
        self.measured.add(f"{BYTES}/{turns}", LANGGRAPH.name, _size_kib(url))


def _ours(service: object) -> DurableSessionService:
    if not isinstance(service, DurableSessionService):
        raise TypeError("ours makes checkpoints")
    return service


def _size_kib(url: str) -> float:
    """Returns the size of a database that is closed."""
    return Path(sqlite_file(url)).stat().st_size / _KIB


async def measure_checkpoints(
    url: Callable[[str], str], effort: Effort, step: Callable[[float], None]
) -> Measured:
    """Measures a checkpoint at every turn, over a short and a long conversation.

    Args:
        url: Returns a contender's own database by its name.
        effort: How long.
        step: Is told the part that is done, from 0 to 1.
    """
    measured = Measured()
    checkpoints = _Checkpoints(url, effort, measured)
    phases = (checkpoints.seed, checkpoints.restore, checkpoints.append, checkpoints.langgraph)
    for number, phase in enumerate(phases, 1):
        await phase()
        step(number / len(phases))
    return measured
