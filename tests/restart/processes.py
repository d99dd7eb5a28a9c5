"""Child processes that are started cheaply, report what they do, and can be killed at any point.

They are forked from a server process that has imported ADK once and never runs a thread, so that
each costs some ten milliseconds instead of seconds.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from servers import HANG_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from multiprocessing.connection import Connection

_CONTEXT: Final = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        "google.adk.runners",
        "google.adk.agents.llm_agent",
        "adk_memory_ext.sql_sessions",
        "adk_memory_ext.plugin",
        "restart.victims",
    ]
)


class Child:
    """A process that runs one of `victims`; what it reports is read one at a time."""

    def __init__(self, reports: Connection, process: Any) -> None:
        self._reports = reports
        self._process = process

    def next(self) -> Any:
        """Returns the next report; the child goes on only after `go_on` where it asks for it.

        Raises:
            EOFError: When the child has ended.
        """
        if not self._reports.poll(HANG_SECONDS):
            raise TimeoutError("the child reports nothing")
        return self._reports.recv()

    def rest(self) -> list[Any]:
        """Returns the reports that are left, until the child ends."""
        reports = []
        try:
            while True:
                reports.append(self.next())
        except EOFError:
            return reports

    def go_on(self) -> None:
        """Lets a child that waits after a report go on."""
        self._reports.send(None)

    def kill(self) -> None:
        """Sends SIGKILL and waits for the end."""
        os.kill(self._process.pid, signal.SIGKILL)
        self.join()

    def join(self) -> int:
        """Waits for the end and returns the exit code, negative for a signal."""
        self._process.join(HANG_SECONDS)
        assert self._process.exitcode is not None, "the child does not end"
        return int(self._process.exitcode)


@contextmanager
def child(work: Callable[..., Coroutine[Any, Any, None]], *arguments: object) -> Iterator[Child]:
    """Starts `work(report pipe, *arguments)` in a new process; it is gone when the block ends."""
    ours, theirs = _CONTEXT.Pipe()
    process = _CONTEXT.Process(target=_main, args=(theirs, work, arguments))
    process.start()
    theirs.close()
    try:
        yield Child(ours, process)
    finally:
        process.kill()
        process.join()
        ours.close()


def answer(work: Callable[..., Coroutine[Any, Any, None]], *arguments: object) -> Any:
    """Runs `work` in a new process to its end and returns what it reports last."""
    with child(work, *arguments) as process:
        reports = process.rest()
        assert process.join() == 0
        return reports[-1]


def _main(
    pipe: Connection, work: Callable[..., Coroutine[Any, Any, None]], arguments: tuple[Any, ...]
) -> None:
    asyncio.run(work(pipe, *arguments))
