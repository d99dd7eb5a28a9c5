"""Turns of the coach in processes that kill themselves when the last answer was acknowledged.

Reads lines of JSON, each a `Script`, and plays each in a new process; then it writes a line with
the number of the signal that ended it. The processes are forked after the imports, which take
much longer than a turn.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
import traceback
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final

import httpx
from google.adk.agents.run_config import RunConfig
from google.adk.runners import Runner
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google.genai import types
from pydantic import BaseModel

from adk_memory_ext import DurableSessionService
from resume_coach.agent import app

if TYPE_CHECKING:
    from google.adk.sessions.base_session_service import BaseSessionService


_HANG_SECONDS: Final = 120
"""After this a process ends with SIGALRM; a turn takes a moment."""


class Script(BaseModel):
    """What a process does."""

    gemini: dict[str, str]
    """The environment variables that say where Gemini is."""

    url: str | None
    """Of the database; None keeps the session in the memory of ADK's own service."""
    say: list[str]
    """The person's messages, a turn each."""
    user: str = "user-1"
    session: str = "session-1"
    state: dict[str, Any] = {}
    """Given to the session when it is created."""
    stream: bool = False


async def run(script: Script) -> None:
    """Says the messages and dies."""
    async with AsyncExitStack() as stack:
        if script.url is None:
            sessions: BaseSessionService = InMemorySessionService()
            played = app.model_copy(update={"plugins": []})  # ours want our service
        else:
            sessions = await stack.enter_async_context(DurableSessionService.from_url(script.url))
            played = app
        runner = await stack.enter_async_context(Runner(app=played, session_service=sessions))
        if not await sessions.get_session(
            app_name=app.name, user_id=script.user, session_id=script.session
        ):
            await sessions.create_session(
                app_name=app.name,
                user_id=script.user,
                session_id=script.session,
                state=script.state,
            )
        config = RunConfig.model_validate({"streaming_mode": "sse" if script.stream else None})
        for message in script.say:
            async for _event in runner.run_async(
                user_id=script.user,
                session_id=script.session,
                new_message=types.UserContent(message),
                run_config=config,
            ):
                pass
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Plays the scripts on standard input, one after the other."""
    _import_everything()
    for line in sys.stdin:
        script = Script.model_validate_json(line)
        process = os.fork()
        if process == 0:
            signal.alarm(_HANG_SECONDS)
            os.environ.update(script.gemini)
            try:
                asyncio.run(run(script))
            except BaseException:  # noqa: BLE001  # a forked process must never read on
                traceback.print_exc()
            os._exit(1)
        _, status = os.waitpid(process, 0)
        print(os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0, flush=True)  # noqa: T201


def _import_everything() -> None:
    """Plays a turn that no Gemini answers: much is only imported when it is first needed."""
    os.environ.update({"GOOGLE_API_KEY": "none", "GOOGLE_GEMINI_BASE_URL": "http://127.0.0.1:9"})
    logging.disable()
    try:
        asyncio.run(run(Script(gemini={}, url="", say=["Hello"])))
    except (httpx.ConnectError, OSError):  # the latter where aiohttp is installed
        assert threading.active_count() == 1, "a process with threads must not fork"
    else:
        raise AssertionError("somebody answers on the discard port")
    logging.disable(logging.NOTSET)


if __name__ == "__main__":
    main()
