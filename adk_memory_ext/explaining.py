"""What `adk-memory explain` prints."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from adk_memory_ext.database import describe
from adk_memory_ext.errors import ConfigurationError
from adk_memory_ext.service import DurableSessionService

if TYPE_CHECKING:
    from collections.abc import Iterator

    from adk_memory_ext.records import RecordedRequest


async def explain(
    url: str, session_id: str, *, app: str | None, user: str | None, turn: int | None
) -> list[str]:
    """Returns the lines about a session's requests.

    Raises:
        ConfigurationError: When there is no such session, several, or no such turn.
    """
    found_there = await describe(url)
    if found_there["status"] != "ready":  # opening it would create it
        raise ConfigurationError(f"{found_there['database']} is {found_there['status']}.")
    async with DurableSessionService.from_url(url) as sessions:
        found = [
            identity
            for identity in await sessions.requests.sessions_named(session_id)
            if app in (None, identity.app_name) and user in (None, identity.user_id)
        ]
        if not found:
            raise ConfigurationError(f"There is no session {session_id!r}.")
        if len(found) > 1:
            raise ConfigurationError(
                f"{len(found)} sessions are called {session_id!r}; name --app and --user."
            )
        requests = await sessions.requests.of_session(found[0])
    if not requests:
        return ["No request was recorded; History(…, record=True) records them."]
    if turn is None:
        return [_line(request) for request in requests]
    chosen = [request for request in requests if request.turn == turn]
    if not chosen:
        raise ConfigurationError(f"Turn {turn} was not recorded; there are {requests[-1].turn}.")
    return [line for request in chosen for line in (_line(request), *_details(request))]


def _line(request: RecordedRequest) -> str:
    report = request.report
    fates: dict[str, int] = {}
    for line in report["lines"]:
        fates[line["fate"]] = fates.get(line["fate"], 0) + 1
    told = ", ".join(f"{number} {fate}" for fate, number in sorted(fates.items()))
    time = datetime.fromtimestamp(request.recorded, UTC).isoformat(" ", "seconds")
    return (
        f"turn {request.turn}  {time}  {request.agent}  {report['reason']}:"
        f" {report['tokens_before']:,} -> {report['tokens_after']:,} of"
        f" {report['budget_tokens']:,} tokens; {told}"
    )


def _details(request: RecordedRequest) -> Iterator[str]:
    report = request.report
    fixed = ", ".join(f"{name} {tokens:,}" for name, tokens in report["fixed"].items())
    yield f"  fixed: {fixed}; estimates x {report['ratio']}"
    if "counted_by" in report:  # which earlier versions did not record
        tokens = report["counted_tokens"]
        yield f"  counted by: {report['counted_by']}" + (f", {tokens:,}" if tokens else "")
    for line in report["lines"]:
        what = ", ".join(line["events"]) or f"contents {line['digest'][:12]}"
        stands = f" (stands for {len(line['stands_for'])} events)" if line["stands_for"] else ""
        yield (
            f"  {line['fate']:<10} {line['tokens_before']:>7,} -> {line['tokens_after']:>7,}"
            f"  {what}{stands}"
        )
    for name, fate in report["candidates"]:
        yield f"  candidate  {name}: {fate}"
    yield f"  digest     {report['digest']}"
