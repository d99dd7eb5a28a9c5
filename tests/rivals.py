"""What other processes do to a database while a test looks on.

Each function runs in a process that is forked from a server which has imported ADK already, so
that it starts in milliseconds. Arguments and results travel as pickles.
"""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from click.testing import CliRunner
from google.adk.cli.cli_tools_click import main as adk_command_line

from adk_memory_ext.erasure.sqlite_work import work_on
from adk_memory_ext.service import DurableSessionService
from backends import SOAK
from conversation import said
from forks import context
from servers import HANG_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.synchronize import Barrier

T = TypeVar("T")

_NOBODY: Final = 65534
_PATIENCE: Final = 30 * HANG_SECONDS if SOAK else HANG_SECONDS
"""Seconds for what a process does: full counts take minutes."""


def in_processes(count: int, function: Callable[..., T], *arguments: Any) -> list[T]:
    """Returns what `count` processes make of `function(number, *arguments)`, all begun at once."""
    barrier = context().Barrier(count)
    with ProcessPoolExecutor(
        count, mp_context=context(), initializer=_meet, initargs=(barrier,)
    ) as processes:
        jobs = [processes.submit(function, number, *arguments) for number in range(count)]
        return [job.result(_PATIENCE) for job in jobs]


def _meet(barrier: Barrier) -> None:
    barrier.wait(HANG_SECONDS)


def get_or_create(number: int, url: str, tasks: int) -> list[tuple[str, dict[str, Any]]]:
    """Has tasks get or create one session at once, and returns what each of them has got."""

    async def run() -> list[tuple[str, dict[str, Any]]]:
        # Few connections each: the server has them for all processes together.
        async with DurableSessionService.from_url(url, pool_size=4, max_overflow=4) as sessions:
            found = await asyncio.gather(
                *(
                    sessions.get_or_create_session(
                        app_name="app",
                        user_id="user",
                        session_id="session",
                        state={"creator": f"{number}-{task}", f"only-{number}-{task}": True},
                    )
                    for task in range(tasks)
                )
            )
        return [(session.id, session.state) for session in found]

    return asyncio.run(run())


def write_user_keys(number: int, url: str, talks: int, keys: int) -> None:
    """Has sessions of one user write `user:` keys of their own at once."""

    async def talk(sessions: DurableSessionService, name: str) -> None:
        session = await sessions.create_session(app_name="app", user_id="user", session_id=name)
        for key in range(keys):
            await sessions.append_event(session, said("noted", state={f"user:{name}-{key}": key}))

    async def run() -> None:
        async with DurableSessionService.from_url(url) as sessions:
            names = [f"{number}-{talk_number}" for talk_number in range(talks)]
            await asyncio.gather(*(talk(sessions, name) for name in names))

    asyncio.run(run())


def _give_privileges_up() -> None:
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(_NOBODY)
        os.setuid(_NOBODY)


def refusal_without_privileges(_number: int, url: str) -> str:
    """Opens a service as a user to whom permissions apply; returns the error, as one reads it."""
    _give_privileges_up()
    try:
        DurableSessionService.from_url(url)
    except Exception as error:  # noqa: BLE001  # the test looks at it
        return f"{type(error).__name__}: {error}"
    return "nothing was refused"


def run_adk(_number: int, arguments: list[str]) -> tuple[int, str]:
    """Runs ADK's command line and returns its exit code and what it printed."""
    outcome = CliRunner().invoke(adk_command_line, arguments)
    return outcome.exit_code, outcome.output


def append_until(number: int, url: str, done: str) -> int:
    """Appends to a session of its own until there is a file; returns how many events it has."""

    async def run() -> int:
        owner: dict[str, Any] = {"app_name": "app", "user_id": f"rival-{number}"}
        count = 0
        async with DurableSessionService.from_url(url) as sessions:
            session = await sessions.create_session(**owner, session_id="rival")
            while not count or not Path(done).exists():  # noqa: ASYNC240  # a stat of no time
                await sessions.append_event(session, said(f"{number}-{count}"))
                count += 1
        return count

    return asyncio.run(run())


def search_without_privileges(_number: int, job: dict[str, Any]) -> dict[str, Any]:
    """Works on a file as a user to whom permissions apply."""
    for encoding in ("utf-16-le", "utf-16-be"):
        "x".encode(encoding)  # loads what that user may not read, perhaps
    _give_privileges_up()
    return work_on(job)


def append_loaded(_number: int, url: str, loaded: str, go: str, text: str) -> str:
    """Loads a session, waits for a file, and appends; returns the name of the error, if any."""

    async def run() -> str:
        async with DurableSessionService.from_url(url) as sessions:
            session = await sessions.get_session(app_name="app", user_id="ann", session_id="s")
            assert session is not None
            Path(loaded).touch()  # noqa: ASYNC240  # nothing else runs here
            while not Path(go).exists():  # noqa: ASYNC240
                await asyncio.sleep(0.01)
            try:
                await sessions.append_event(session, said(text, state={"user:note": text}))
            except Exception as error:  # noqa: BLE001  # the test looks at it
                return type(error).__name__
        return ""

    return asyncio.run(run())
