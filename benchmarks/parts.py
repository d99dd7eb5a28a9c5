"""The parts of a run, each in a process of its own.

A process that has loaded other frameworks and ten thousand events collects garbage more slowly;
what one part leaves in memory must not slow the next one.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from benchmarks import postgresql
from benchmarks.appends import measure_appends, measure_concurrency
from benchmarks.checkpoints import measure_checkpoints
from benchmarks.contenders import CONCURRENT, SERVER, SQLITE, installed
from benchmarks.erasures import measure_erasures
from benchmarks.histories import measure_histories
from benchmarks.listings import measure_listings
from benchmarks.long_turns import measure_long_turns
from benchmarks.profile_append import profile_appends
from benchmarks.profile_facts import measure_profile_facts
from benchmarks.trimmers import measure_trimmers
from benchmarks.turns import measure_turns

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from multiprocessing.connection import Connection
    from pathlib import Path

    from benchmarks.effort import Effort
    from benchmarks.rounds import Measured

PARTS: Final = {
    "append": "one conversation, SQLite",
    "concurrent": "many conversations at once, SQLite",
    "history": "length of the history, SQLite",
    "long_turn": "a turn behind a long history, SQLite",
    "list": "list of sessions, SQLite",
    "turn": "a turn with the plugin, SQLite",
    "profile_facts": "facts about users, SQLite",
    "trimmers": "trimmers over random histories",
    "checkpoints": "a checkpoint at every turn, SQLite",
    "erasure": "a person erased, a session deleted, SQLite",
    "postgresql-append": "one conversation, PostgreSQL",
    "postgresql-concurrent": "many conversations at once, PostgreSQL",
    "profile": "where the time of an append goes",
}
"""{name: what it measures}, in the order in which they run."""


_ON_FILE: Final[dict[str, Callable[..., Awaitable[Measured]]]] = {
    "append": lambda *how: measure_appends(installed(SQLITE), *how),
    "concurrent": lambda *how: measure_concurrency(installed(CONCURRENT), *how),
    "history": measure_histories,
    "list": measure_listings,
    "turn": measure_turns,
    "long_turn": measure_long_turns,
    "profile_facts": measure_profile_facts,
    "trimmers": measure_trimmers,
    "checkpoints": measure_checkpoints,
    "erasure": measure_erasures,
    "profile": profile_appends,
}
"""Those that need no server."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """One part of a run."""

    name: str
    folder: Path
    """Of its databases; exists and is empty."""
    effort: Effort
    server: str
    """The PostgreSQL server's URL."""

    def run(self, step: Callable[[float], None]) -> Measured:
        """Measures in a new process and returns the result.

        Args:
            step: Is told the part that is done, from 0 to 1.

        Raises:
            RuntimeError: When the process ended without a result; it has printed why.
        """
        context = multiprocessing.get_context("spawn")
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_measure_and_send, args=(self, sender))
        process.start()
        sender.close()
        try:
            while True:
                message = receiver.recv()
                if not isinstance(message, float):
                    result: Measured = message
                    return result
                step(message)
        except EOFError:
            raise RuntimeError(f"The part {self.name!r} ended without a result.") from None
        finally:
            receiver.close()
            process.join()

    async def measure(self, step: Callable[[float], None]) -> Measured:
        """Measures in this process; the argument is that of `run`."""
        on_file = _ON_FILE.get(self.name)
        if on_file is not None:
            return await on_file(self._file, self.effort, step)
        measure = {
            "postgresql-append": measure_appends,
            "postgresql-concurrent": measure_concurrency,
        }[self.name]
        async with postgresql.databases(self.server) as url:
            return await measure(SERVER, url, self.effort, step)

    def _file(self, name: str) -> str:
        return f"sqlite+aiosqlite:///{self.folder}/{name}.db"


def _measure_and_send(part: Part, sender: Connection) -> None:
    """Runs in the part's own process."""
    # An offline model reports no use of tokens, which ADK would say at each call.
    logging.getLogger("google_adk").setLevel(logging.ERROR)
    measured = asyncio.run(part.measure(lambda done: sender.send(float(done))))
    sender.send(measured)
    sender.close()
