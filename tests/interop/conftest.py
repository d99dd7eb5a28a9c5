"""Plain ADK and our service over one database."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from google.adk.sessions.database_session_service import DatabaseSessionService

from adk_memory_ext.service import DurableSessionService
from tables import STORAGES, url_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture(params=STORAGES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database that both can open."""
    return url_of(request.param, request, tmp_path)


@pytest.fixture
async def plain(url: str) -> AsyncIterator[DatabaseSessionService]:
    """ADK's own service over the database."""
    async with DatabaseSessionService(url) as service:
        yield service


@pytest.fixture
async def ours(url: str) -> AsyncIterator[DurableSessionService]:
    """Our service over the same database."""
    async with DurableSessionService.from_url(url) as service:
        yield service
