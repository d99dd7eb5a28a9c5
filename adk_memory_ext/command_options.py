"""What several commands of `adk-memory` have in common."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import click

from adk_memory_ext.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from adk_memory_ext.service import DurableSessionService

DEFAULT_URL: Final = "sqlite:///.sessions/sessions.db"

url_option = click.option(
    "--url",
    default=DEFAULT_URL,
    show_default=True,
    envvar="ADK_MEMORY_URL",
    show_envvar=True,
    help="The database, as given to DurableSessionService.from_url.",
)


@asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncIterator[DurableSessionService]:
    """Opens a database that is there; none is made only to find nothing in it.

    Args:
        url: As given to `DurableSessionService.from_url`.
        **options: Those of `from_url`.

    Raises:
        ConfigurationError: When the URL names a file that is not there.
    """
    from adk_memory_ext.database import parse_url, sqlite_path
    from adk_memory_ext.service import DurableSessionService

    path = sqlite_path(parse_url(url))
    if path is not None and not path.exists():
        raise ConfigurationError(f"There is no database {str(path)!r}.")
    async with DurableSessionService.from_url(url, **options) as sessions:
        yield sessions
