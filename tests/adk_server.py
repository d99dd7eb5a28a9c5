"""ADK's command line as real processes, for tests: servers that are killed and started again.

A project is a folder of its own with a copy of `agents/`, a home and a folder for temporary
files, so that nothing is written outside it, whatever ADK or a browser keep for themselves.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Protocol, Self

import httpx

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

AGENTS: Final = Path(__file__).parent.parent / "agents"
COACH: Final = "resume_coach"
"""The coach's app and folder name."""
USER: Final = "user"
"""The user of ADK's dev page; the tests that use REST speak for the same one."""
_HANG_SECONDS: Final = 120.0
"""No test waits longer for a process; far above what a start or a turn takes."""


@dataclass(frozen=True)
class AdkProject:
    """A folder to run `adk` in, as the README describes it."""

    root: Path

    @classmethod
    def create(cls, root: Path, *further_agents: Path) -> Self:
        """Makes the folder with a copy of `agents/`, and of further agents beside it."""
        unwanted = shutil.ignore_patterns("__pycache__", ".adk", ".env")
        shutil.copytree(AGENTS, root / "agents", ignore=unwanted)
        for agent in further_agents:
            shutil.copytree(agent, root / "agents" / agent.name, ignore=unwanted)
        for name in ("home", "tmp"):
            (root / name).mkdir()
        return cls(root)

    @property
    def environment(self) -> dict[str, str]:
        """What a child process sees: no API key, no `.env` file, its own home."""
        return {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "HOME": str(self.root / "home"),
            "TMPDIR": str(self.root / "tmp"),
            "PYTHONUNBUFFERED": "1",
            "ADK_DISABLE_LOAD_DOTENV": "1",
        }

    def adk(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs `adk` to its end and returns what it said."""
        return subprocess.run(
            adk_command(*arguments),
            cwd=self.root,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_HANG_SECONDS,
            check=False,
        )


def adk_command(*arguments: str) -> list[str]:
    """Returns the command line of `adk` with this Python."""
    return [sys.executable, "-m", "google.adk.cli", *arguments]


@dataclass
class AdkServer:
    """`adk web` or `adk api_server` in a project, on a loopback port that it keeps.

    Enter it to start it; leaving it kills it. In between it may be killed and started again.
    """

    project: AdkProject
    session_service_uri: str
    command: str = "web"
    options: Sequence[str] = ()
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        # Bound but not listening: the kernel gives this port to nobody else while the server is
        # dead, and a server that sets SO_REUSEADDR, as asyncio's do, may listen on it.
        self._reserved = socket.socket()
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._reserved.bind(("127.0.0.1", 0))
        self.port: int = self._reserved.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = self.project.root / f"{self.command}-{self.port}.log"
        self._client = httpx.Client(
            base_url=self.url,
            timeout=_HANG_SECONDS,
            trust_env=False,
            # A connection of its own for each request: the other end is killed in between, and
            # uvicorn drops the connection on which it answered 500.
            limits=httpx.Limits(max_keepalive_connections=0),
        )

    def __enter__(self) -> Self:
        """Starts the server and returns it when it answers."""
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Kills the server and prints its output, which pytest shows if the test failed."""
        self.close()

    def start(self) -> None:
        """Starts the server and returns when it answers.

        Raises:
            AssertionError: With the server's output, when it ended instead.
        """
        with self._log.open("ab") as log:
            self._process = self._spawn(log)
        deadline = time.monotonic() + _HANG_SECONDS
        while time.monotonic() < deadline:
            assert self._process.poll() is None, f"the server ended:\n{self.output}"
            try:
                if self._client.get("/health").status_code == httpx.codes.OK:
                    return
            except httpx.TransportError:
                time.sleep(0.05)
        raise AssertionError(f"the server does not answer:\n{self.output}")

    def _spawn(self, log: IO[bytes]) -> subprocess.Popen[bytes]:
        arguments = (
            *("--session_service_uri", self.session_service_uri),
            *("--port", str(self.port)),
            *self.options,
            "agents",
        )
        return subprocess.Popen(
            adk_command(self.command, *arguments),
            cwd=self.project.root,
            env=self.project.environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )

    def kill(self) -> None:
        """Ends the server with SIGKILL, which leaves it no time for anything."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(_HANG_SECONDS)

    def close(self) -> None:
        """Kills the server for good and prints its output."""
        self.kill()
        self._client.close()
        self._reserved.close()
        print(f"--- {self.command} on port {self.port} ---\n{self.output}")  # noqa: T201

    @property
    def output(self) -> str:
        """What the server wrote, over all its starts."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def create_session(
        self, app: str, session_id: str, state: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Creates a session over REST and returns it."""
        session: dict[str, Any] = _json(self._client.post(_path(app, session_id), json=state or {}))
        return session

    def session(self, app: str, session_id: str) -> dict[str, Any]:
        """Returns a session over REST, with its events."""
        session: dict[str, Any] = _json(self._client.get(_path(app, session_id)))
        return session

    def delete_session(self, app: str, session_id: str) -> None:
        """Deletes a session over REST."""
        response = self._client.delete(_path(app, session_id))
        assert response.is_success, f"{response.status_code} {response.text}"

    def sessions(self, app: str) -> list[str]:
        """Returns the ids of the user's sessions over REST."""
        path = _path(app, "").rstrip("/")
        return [session["id"] for session in _json(self._client.get(path))]

    def run(self, app: str, session_id: str, text: str) -> list[dict[str, Any]]:
        """Sends a message to `/run` and returns the events of the answer."""
        events: list[dict[str, Any]] = _json(self.post_message("/run", app, session_id, text))
        return events

    def run_sse(self, app: str, session_id: str, text: str) -> list[dict[str, Any]]:
        """Sends a message to `/run_sse`, streaming, and returns the events of the answer."""
        response = self.post_message("/run_sse", app, session_id, text, streaming=True)
        response.raise_for_status()
        return [
            json.loads(line.removeprefix("data: "))
            for line in response.text.splitlines()
            if line.startswith("data: ")
        ]

    def post_message(
        self, path: str, app: str, session_id: str, text: str, **options: Any
    ) -> httpx.Response:
        """Sends a message and returns the response, whatever its status."""
        message = {"role": "user", "parts": [{"text": text}]}
        names = {"app_name": app, "user_id": USER, "session_id": session_id}
        return self._client.post(path, json={**names, "new_message": message, **options})


class Serve(Protocol):
    """Starts a server in the test's project, for a fixture; see `AdkServer`."""

    def __call__(self, session_service_uri: str, *options: str, command: str = "web") -> AdkServer:
        """Returns the server when it answers; it ends with the test."""


def text_of(events: list[dict[str, Any]]) -> str:
    """Returns the text of the last event that has one: what a person reads as the answer."""
    for event in reversed(events):
        parts = event.get("content", {}).get("parts", [])
        if text := "".join(part.get("text", "") for part in parts):
            return text
    return ""


def _path(app: str, session_id: str) -> str:
    return f"/apps/{app}/users/{USER}/sessions/{session_id}"


def _json(response: httpx.Response) -> Any:
    assert response.is_success, f"{response.status_code} {response.text}"
    return response.json()
