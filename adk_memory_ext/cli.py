"""`adk-memory`: the command line. Heavy imports stand inside the commands."""

from __future__ import annotations

import asyncio
from typing import Final

import click

from adk_memory_ext import __version__
from adk_memory_ext.errors import MemoryExtError
from adk_memory_ext.policy_commands import policy

DEFAULT_URL: Final = "sqlite:///.sessions/sessions.db"

url_option = click.option(
    "--url",
    default=DEFAULT_URL,
    show_default=True,
    envvar="ADK_MEMORY_URL",
    show_envvar=True,
    help="The database, as given to DurableSessionService.from_url.",
)


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
