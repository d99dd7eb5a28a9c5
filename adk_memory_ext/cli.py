"""`adk-memory`: the command line. Heavy imports stand inside the commands."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Literal

import click

from adk_memory_ext import __version__
from adk_memory_ext.command_options import opened, url_option
from adk_memory_ext.errors import ErasureIncompleteError, MemoryExtError
from adk_memory_ext.policy_commands import policy
from adk_memory_ext.retention_commands import prune, sweep


class _Group(click.Group):
    """Prints an error of ours as one line and exits with 1; every other error is a bug."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except MemoryExtError as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="adk-memory")
def main() -> None:
    """Look after the memory of Google ADK agents."""


@main.command()
@url_option
def check(url: str) -> None:
    """Say whether the database can be used, and what is in it. Changes nothing."""
    from adk_memory_ext.database import describe

    for name, value in asyncio.run(describe(url)).items():
        click.echo(f"{name:<12} {value}")


main.add_command(policy)
main.add_command(sweep)
main.add_command(prune)


@main.command()
@click.argument("session")
@click.option("--turn", type=click.IntRange(min=1), help="Every event of one turn.")
@click.option("--app", help="The app, where several have a session of that id.")
@click.option("--user", help="The user, where several have a session of that id.")
@url_option
def explain(url: str, session: str, turn: int | None, app: str | None, user: str | None) -> None:
    """Say what was kept and cut of each request of SESSION: ids and counts, no words."""
    from adk_memory_ext import explaining

    lines = asyncio.run(explaining.explain(url, session, app=app, user=user, turn=turn))
    click.echo("\n".join(lines))


@main.command()
@url_option
@click.option("--app", "app_name", help="The app.")
@click.option("--user", "user_id", help="Whose data.")
@click.option(
    "--session", "session_id", help="One session only; without it everything of the user."
)
@click.option("--requested-by", help="Who asked, for the receipt.")
@click.option("--deep", is_flag=True, help="Rewrite the file and overwrite its WAL in any case.")
@click.option(
    "--forks",
    type=click.Choice(["erase", "detach"]),
    default="erase",
    help="Forks of the session hold its words: erase them too, or leave them.",
)
@click.option(
    "--facts",
    type=click.Choice(["keep", "remove"]),
    default="keep",
    help="What the user asked to save in the session stays in the profile: remove it too, or not.",
)
@click.option("--plan", is_flag=True, help="Say what would go. Changes nothing.")
@click.option("--resume", is_flag=True, help="Finish erasures that were interrupted.")
@click.option("--json", "as_json", is_flag=True, help="Print the receipt as JSON.")
def erase(  # noqa: PLR0917
    url: str,
    app_name: str | None,
    user_id: str | None,
    session_id: str | None,
    requested_by: str | None,
    deep: bool,
    forks: Literal["erase", "detach"],
    facts: Literal["keep", "remove"],
    plan: bool,
    resume: bool,
    as_json: bool,
) -> None:
    """Erase a session or a person from the database, verify it, and print the receipt.

    Keep the receipt: its subject_key is nowhere else.
    """
    if not resume and (not app_name or not user_id):
        raise click.UsageError("Name --app and --user, or --resume.")
    whose: dict[str, Any] = {"app_name": app_name or "", "user_id": user_id or ""}
    session = {**whose, "session_id": session_id, "forks": forks}

    async def work() -> None:
        async with opened(url) as sessions:
            erasure = sessions.erasure
            if plan:
                planned = (
                    await erasure.plan_session(**session)
                    if session_id
                    else await erasure.plan_user(**whose)
                )
                for name, count in planned.counts.items():
                    click.echo(f"{count:>8,}  {name}")
                if planned.forks:
                    click.echo(f"{planned.forks:>8,}  forks of the session")
                return
            if resume:
                receipts = await erasure.resume()
            elif session_id:
                receipts = [
                    await erasure.erase_session(
                        **session, facts=facts, requested_by=requested_by, deep=deep
                    )
                ]
            else:
                receipts = [await erasure.erase_user(**whose, requested_by=requested_by, deep=deep)]
            for receipt in receipts:
                click.echo(receipt.to_json() if as_json else str(receipt))

    try:
        asyncio.run(work())
    except ErasureIncompleteError as error:
        click.echo(error.receipt.to_json() if as_json else str(error.receipt))
        raise


@main.command()
@url_option
@click.option("--app", "app_name", required=True, help="The app.")
@click.option("--user", "user_id", required=True, help="Whose data.")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
def export(url: str, app_name: str, user_id: str, file: Path) -> None:
    """Write everything that is held of a person to a new JSON file (mode 0600)."""
    from adk_memory_ext.erasure.exports import write_document

    async def work() -> dict[str, Any]:
        async with opened(url) as sessions:
            return await sessions.erasure.export_user(app_name=app_name, user_id=user_id)

    document = asyncio.run(work())
    try:
        write_document(file, document)
    except OSError as error:
        raise click.ClickException(f"{file}: {error.strerror}") from error
    for name, rows in document["stores"].items():
        click.echo(f"{len(rows):>8,}  {name}")


@main.command()
@url_option
@click.argument("what", type=click.Choice(["list", "verify"]), default="list")
def receipts(url: str, what: str) -> None:
    """Print the receipts that are stored, or verify their chain. Changes nothing."""

    async def work() -> list[int]:
        async with opened(url) as sessions:
            stored = await sessions.erasure.receipts()
            if what == "verify":
                click.echo(f"{len(stored)} receipts")
                return await sessions.erasure.broken_receipts()
            for receipt in stored:
                click.echo(str(receipt))
            return []

    if broken := asyncio.run(work()):
        numbers = ", ".join(map(str, broken))
        raise click.ClickException(f"Changed, or behind a missing one: {numbers}")
