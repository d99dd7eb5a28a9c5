"""`adk-memory sweep` and `adk-memory prune`: erasing what is no longer needed, with progress."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import click

from adk_memory_ext.checkpoint_records import CheckpointRetention
from adk_memory_ext.command_options import opened, url_option
from adk_memory_ext.errors import ConfigurationError, ErasureIncompleteError
from adk_memory_ext.policy_commands import load, load_as
from adk_memory_ext.retention import Pruning, RetentionPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from adk_memory_ext.erasure.pruning import Pruned
    from adk_memory_ext.erasure.receipts import Receipt
    from adk_memory_ext.erasure.sweeping import Sweeping, Swept

_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class Duration(click.ParamType[timedelta]):
    """A number with a unit: `90d`, `12h`."""

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> timedelta:
        """Returns the duration."""
        if isinstance(value, timedelta):
            return value
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", str(value).strip())
        if found is None:
            self.fail(f"{value!r} is no duration such as 90d, 12h or 30m.", param, ctx)
        return timedelta(**{_UNITS[found[2]]: float(found[1])})


_dry_run = click.option("--dry-run", is_flag=True, help="Say what would go. Deletes nothing.")
_as_json = click.option(
    "--json", "as_json", is_flag=True, help="Print counts and receipts as JSON."
)


@click.command()
@url_option
@click.option("--policy", "spec", help="A RetentionPolicy, as module:name; instead of its rules.")
@click.option("--session-idle", type=Duration(), help="Sessions without an event for so long.")
@click.option("--session-age", type=Duration(), help="Sessions that were created so long ago.")
@click.option(
    "--keep-checkpoints",
    type=click.IntRange(min=1),
    help="Checkpoints of each session but the newest, this many, and the last of each step.",
)
@click.option(
    "--orphaned-checkpoints", type=Duration(), help="Checkpoints of gone sessions, of this age."
)
@click.option("--profile", type=Duration(), help="Values of facts, so long after another one.")
@click.option("--prune-older-than", type=Duration(), help="Events of this age, but the last turn.")
@click.option("--state-policy", help="A StatePolicy, as module:name, whose expired state goes too.")
@_dry_run
@_as_json
def sweep(
    url: str,
    spec: str | None,
    state_policy: str | None,
    dry_run: bool,
    as_json: bool,
    **rules: Any,
) -> None:
    """Erase what has expired, in batches, verify each and print the receipts.

    What goes is what the options name, and facts and state whose own time is over. Durations are
    such as 90d, 12h or 30m. Exits with 1 when bytes of what went could not be verified.
    """
    policy = _policy_of(spec, rules)
    state = None if state_policy is None else load(state_policy)

    async def work(progress: Callable[[Sweeping], None]) -> Swept:
        async with opened(url, policy=state) as sessions:
            return await sessions.erasure.sweep(policy, dry_run=dry_run, progress=progress)

    with _progress() as show:
        swept = asyncio.run(work(lambda step: show(step.stage, step.counts)))
    _print(swept.counts, swept.receipts, dry_run=dry_run, as_json=as_json)
    if not swept.verified:
        raise click.ClickException(
            "The rows are gone, and not all bytes could be verified; finish it with:"
            " adk-memory erase --resume"
        )


def _policy_of(spec: str | None, rules: Mapping[str, Any]) -> RetentionPolicy:
    """Returns the policy that `module:name` names, or that the options say.

    Raises:
        ConfigurationError: When there is none of that name, or both are given.
    """
    given = {name: rule for name, rule in rules.items() if rule is not None}
    if spec is not None:
        if given:
            raise ConfigurationError("Name a policy, or give its rules; not both.")
        return load_as(spec, RetentionPolicy)
    last, age = given.pop("keep_checkpoints", None), given.pop("prune_older_than", None)
    return RetentionPolicy(
        **given,
        checkpoints=None if last is None else CheckpointRetention(last=last),
        history=None if age is None else Pruning(older_than=age),
    )


@click.command()
@url_option
@click.option("--app", "app_name", required=True, help="The app.")
@click.option("--user", "user_id", required=True, help="Whose session.")
@click.option("--session", "session_id", required=True, help="The session.")
@click.option(
    "--keep", type=click.IntRange(min=1), default=1, show_default=True, help="Newest turns to keep."
)
@click.option("--older-than", type=Duration(), help="Turns of this age.")
@click.option("--checkpointed", is_flag=True, help="Turns that the newest checkpoint covers.")
@click.option(
    "--summarised/--no-summarised", default=True, show_default=True, help="Turns with a summary."
)
@click.option(
    "--superseded-tool", "tools", multiple=True, help="Calls of it that were made again later."
)
@_dry_run
@_as_json
def prune(  # noqa: PLR0917
    url: str,
    app_name: str,
    user_id: str,
    session_id: str,
    keep: int,
    older_than: timedelta | None,
    checkpointed: bool,
    summarised: bool,
    tools: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
) -> None:
    """Erase stored events of a session that something covers, verify it and print the receipt.

    The state stays as it is, and what is left can be gone on with.
    """
    pruning = Pruning(
        keep=keep,
        older_than=older_than,
        checkpointed=checkpointed,
        summarised=summarised,
        superseded_tools=frozenset(tools),
    )

    async def work() -> Pruned:
        async with opened(url) as sessions:
            session = await sessions.get_session(
                app_name=app_name, user_id=user_id, session_id=session_id
            )
            if session is None:
                raise ConfigurationError(f"There is no session {session_id!r}.")
            return await sessions.history.prune_by(pruning, session, dry_run=dry_run)

    try:
        with _progress():
            pruned = asyncio.run(work())
    except ErasureIncompleteError as error:
        _print({}, [error.receipt], dry_run=dry_run, as_json=as_json)
        raise
    counts = {f"events ({reason})": count for reason, count in pruned.why.items()}
    receipts = () if pruned.receipt is None else (pruned.receipt,)
    _print(counts, receipts, dry_run=dry_run, as_json=as_json)


def _print(
    counts: Mapping[str, int], receipts: Sequence[Receipt], *, dry_run: bool, as_json: bool
) -> None:
    if as_json:
        documents = [json.loads(receipt.to_json()) for receipt in receipts]
        click.echo(json.dumps({"counts": dict(counts), "receipts": documents}, indent=2))
        return
    if not counts and not receipts:
        click.echo("Nothing would go." if dry_run else "Nothing had to go.")
    for name, count in counts.items():
        click.echo(f"{count:>8,}  {name}")
    for receipt in receipts:
        click.echo(str(receipt))


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str, Mapping[str, int]], None]]:
    """Gives what shows how far it has come, on a terminal's standard error."""
    try:
        from rich.console import Console
    except ImportError:  # the extra `cli` is not installed
        yield lambda _stage, _counts: None
        return
    console = Console(stderr=True)
    with console.status("Looking for what has expired …") as status:

        def show(stage: str, counts: Mapping[str, int]) -> None:
            status.update(f"{stage}: {sum(counts.values()):,} rows so far …")

        yield show
