"""What several commands of `adk-memory` have in common."""

from __future__ import annotations

from typing import Final

import click

from adk_memory_ext.errors import ConfigurationError

DEFAULT_URL: Final = "sqlite:///.sessions/sessions.db"

url_option = click.option(
    "--url",
    default=DEFAULT_URL,
    show_default=True,
    envvar="ADK_MEMORY_URL",
    show_envvar=True,
    help="The database, as given to DurableSessionService.from_url.",
)


def require_file(url: str) -> None:
    """Refuses to make a database only to find nothing in it.

    Raises:
        ConfigurationError: When the URL names a file that is not there.
    """
    from adk_memory_ext.database import parse_url, sqlite_path

    path = sqlite_path(parse_url(url))
    if path is not None and not path.exists():
        raise ConfigurationError(f"There is no database {str(path)!r}.")
