"""One process of the demo: it takes up the conversation, runs at most one turn, and reports.

The reports are lines of JSON on standard output. After each one the process waits for a line on
standard input, so that whoever started it may kill it at exactly that point; the agent and its
session service know nothing of this. With standard input closed it leaves.
"""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Callable
from typing import Any

from google.adk.events.event import Event
from google.adk.runners import Runner
from google.adk.sessions.session import Session
from google.genai import types

from adk_memory_ext import DurableSessionService
from resume_coach.agent import app, root_agent
from resume_coach.policy import POLICY
from resume_coach.scenario import messages

USER_ID = "demo-user"
SESSION_ID = "demo-conversation"
ERASE = 4
"""The turn after the last one: the conversation is erased."""

Report = Callable[[str, dict[str, Any]], None]


def event_report(event: Event) -> dict[str, Any]:
    """Returns what a reader of the demo wants to know of an event."""
    parts = (event.content.parts if event.content else None) or []
    calls = [part.function_call for part in parts if part.function_call]
    answers = [part.function_response for part in parts if part.function_response]
    usage = event.usage_metadata
    return {
        "id": event.id,
        "author": event.author,
        "text": "\n".join(part.text for part in parts if part.text),
        "calls": [{"name": call.name, "args": call.args} for call in calls],
        "answers": [{"name": answer.name, "response": answer.response} for answer in answers],
        "prompt_tokens": usage.prompt_token_count if usage else None,
    }


async def _run(database: str, turn: int, message: str | None, report: Report) -> None:
    async with DurableSessionService.from_url(database, policy=POLICY) as sessions:
        session = await sessions.get_or_create_session(
            app_name=app.name, user_id=USER_ID, session_id=SESSION_ID
        )
        report("arrived", _found(session))
        if turn == ERASE:
            await _erase(sessions, report)
            return
        if message is None:
            await _look_around(sessions, report)
            return
        async with Runner(app=app, session_service=sessions) as runner:
            async for event in runner.run_async(
                user_id=USER_ID,
                session_id=SESSION_ID,
                new_message=types.UserContent(message),
            ):
                # The Runner yields an event after its append has returned: it is acknowledged.
                report("event", event_report(event))
        report("answered", {})


async def _look_around(sessions: DurableSessionService, report: Report) -> None:
    """Reports what the person's other conversations would see of this one."""
    other = await sessions.create_session(app_name=app.name, user_id=USER_ID)
    user_state = await sessions.get_user_state(app_name=app.name, user_id=USER_ID)
    report("elsewhere", {"state": other.state, "user_state": user_state})


async def _erase(sessions: DurableSessionService, report: Report) -> None:
    """Erases the conversation and reports the receipt, and what the person has left."""
    receipt = await sessions.erasure.erase_session(
        app_name=app.name, user_id=USER_ID, session_id=SESSION_ID, requested_by="the person"
    )
    listed = await sessions.list_sessions(app_name=app.name, user_id=USER_ID)
    broken = await sessions.erasure.broken_receipts()
    others = [session.id for session in listed.sessions]
    report(
        "erased",
        {"receipt": json.loads(receipt.to_json()), "broken": broken, "others": len(others)},
    )


def _found(session: Session) -> dict[str, Any]:
    # Without the answer that the recovery part puts in for a call that was cut off: nobody was told
    # of it, so that it cannot be compared with what was acknowledged.
    events = [e for e in session.events if "memext_recovered" not in (e.custom_metadata or {})]
    return {
        "state": session.state,
        "events": [event_report(event) for event in events],
        "recovered": len(session.events) - len(events),
    }


def main() -> None:
    """Runs one turn of the scenario, or looks at what is stored, or erases it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("database", help="URL of the database")
    parser.add_argument("language")
    parser.add_argument("turn", type=int, help="1, 2 or 3; 0 to look, 4 to erase")
    options = parser.parse_args()
    # Whatever a library prints belongs to the log, not between the reports.
    with os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8") as out:
        sys.stdout = sys.stderr

        def report(kind: str, content: dict[str, Any]) -> None:
            print(json.dumps({"report": kind, **content}), file=out, flush=True)
            if not sys.stdin.readline():
                raise SystemExit("nobody is listening any more")

        report("ready", {"model": root_agent.canonical_model.model})
        turns = messages(options.language)
        message = turns[options.turn - 1] if 1 <= options.turn <= len(turns) else None
        asyncio.run(_run(options.database, options.turn, message, report))


if __name__ == "__main__":
    main()
