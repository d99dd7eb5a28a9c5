"""Fixtures of the tests that run ADK's command line: a project folder, and servers in it."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from adk_server import AdkProject, AdkServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from adk_server import Serve

ECHO: Final = Path(__file__).parent / "echo"


@pytest.fixture
def project(tmp_path: Path) -> AdkProject:
    """A folder with a copy of `agents/`, and the `echo` agent beside the coach."""
    root = tmp_path / "project"
    root.mkdir()
    return AdkProject.create(root, ECHO)


@pytest.fixture
def serve(project: AdkProject) -> Iterator[Serve]:
    """Starts servers that end with the test; their output is shown if it fails."""
    with ExitStack() as servers:

        def start(session_service_uri: str, *options: str, command: str = "web") -> AdkServer:
            server = AdkServer(project, session_service_uri, command, options)
            return servers.enter_context(server)

        yield start
