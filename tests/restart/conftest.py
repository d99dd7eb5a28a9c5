"""Fixtures for tests with child processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database, on a SQLite file or where the test's parameter says."""
    if getattr(request, "param", "sqlite") == "sqlite":
        return f"sqlite:///{tmp_path}/sessions.db"
    server: str = request.getfixturevalue(f"{request.param}_url")
    return server
