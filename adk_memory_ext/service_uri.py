"""URLs for ADK's command line: `memext+sqlite:///…` opens a `DurableSessionService`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from google.adk.cli.service_registry import get_service_registry

from adk_memory_ext.service import DurableSessionService

if TYPE_CHECKING:
    from google.adk.sessions.base_session_service import BaseSessionService

    from adk_memory_ext.policy import StatePolicy

PREFIX: Final = "memext+"
"""A prefix of our own: ADK takes `sqlite:` for itself and matches schemes exactly, so a URL that
was not registered fails loudly instead of opening another service."""

SCHEMES: Final = tuple(
    PREFIX + scheme
    for scheme in (
        "sqlite",
        "sqlite+aiosqlite",
        "postgres",
        "postgresql",
        "postgresql+asyncpg",
        "mysql",
        "mysql+aiomysql",
        "mariadb",
        "mariadb+aiomysql",
    )
)


def register(*, policy: StatePolicy | None = None) -> None:
    """Makes `--session_service_uri memext+…` open a `DurableSessionService`.

    Call it from `services.py` in the agents folder, which ADK imports first. May be called again:
    the last call counts.

    Args:
        policy: What the agents of the folder may remember; None: everything.
    """
    registry = get_service_registry()
    opening = _open if policy is None else partial(_open, policy=policy)
    for scheme in SCHEMES:
        registry.register_session_service(scheme, opening)


def _open(uri: str, *, policy: StatePolicy | None = None, **options: Any) -> BaseSessionService:
    # `agents_dir` is ADK's; the rest is what was given as --session_db_kwargs.
    options.pop("agents_dir", None)
    return DurableSessionService.from_url(uri[len(PREFIX) :], policy=policy, **options)
