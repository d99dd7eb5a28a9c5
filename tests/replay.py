"""Makes requests of logs in a process of its own: `python replay.py LOGS`, a folder of JSON files.

Prints, as one JSON document, what was sent and reported for each log, byte for byte.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from pathlib import Path

from google.adk.events.event import Event

from adk_memory_ext import BudgetExceededError, History, HistoryPolicy
from adk_memory_ext.history import ClampAnswers, ClearAnswers, DropInvocations, KeepLatest
from histories import context_of, into, request_of

POLICY = HistoryPolicy(
    budget_tokens=2_500,
    output_reserve_tokens=100,
    strategies=(KeepLatest({"validate"}), ClampAnswers(200), ClearAnswers(2), DropInvocations()),
    exclude_tools={"book", "read_file"},
    keep_first_message=True,
)


async def replayed(log: list[Event]) -> list[str]:
    """Returns the contents that a model gets, and the report, as texts."""
    reports: list[object] = []
    part = History(POLICY, on_report=into(reports))  # type: ignore[arg-type]  # it only appends
    request = await request_of(log)
    try:
        part.trim(context_of(log), request)
    except BudgetExceededError as error:
        return [str(error)]
    sent = [content.model_dump_json(exclude_none=True) for content in request.contents]
    return [*sent, *map(repr, reports)]


async def main(files: list[Path]) -> None:
    """Prints what becomes of each log."""
    logging.getLogger("google_adk").setLevel(logging.ERROR)
    told = {}
    logs = {path.stem: json.loads(path.read_bytes()) for path in files}
    for name, log in logs.items():
        events = [Event.model_validate(one) for one in log]
        told[name] = await replayed(events)
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    asyncio.run(main(sorted(Path(sys.argv[1]).glob("*.json"))))
