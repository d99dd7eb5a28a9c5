"""`adk api_server` with many requests for one session at once."""

from __future__ import annotations

import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import httpx
import pytest

from adk_server import USER, AdkProject

if TYPE_CHECKING:
    from adk_server import AdkServer, Serve

URI: Final = "memext+sqlite+aiosqlite:///.sessions/sessions.db"
PLUGIN: Final = ("--extra_plugins", "adk_memory_ext.MemoryPlugin")
AT_ONCE: Final = 20
PATIENT: Final = Path(__file__).parent / "patient"
ECHO: Final = Path(__file__).parent / "echo"


@pytest.fixture
def project(tmp_path: Path) -> AdkProject:
    """A folder with the agents of these tests."""
    root = tmp_path / "project"
    root.mkdir()
    return AdkProject.create(root, ECHO, PATIENT)


def send(server: AdkServer, connection: socket.socket, app: str, text: str) -> None:
    """Sends the request of a turn and does not wait for the answer."""
    body = json.dumps(
        {
            "app_name": app,
            "user_id": USER,
            "session_id": "s1",
            "new_message": {"role": "user", "parts": [{"text": text}]},
        }
    ).encode()
    head = (
        f"POST /run HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    connection.sendall(head.encode() + body)


def status(connection: socket.socket) -> int:
    """Returns the status of the answer, once it is there whole."""
    with connection.makefile("rb") as answer:
        return int(answer.read().split(b" ", 2)[1])


def said(server: AdkServer, app: str) -> list[str]:
    """Returns what was said in the session."""
    return [
        part["text"]
        for event in server.session(app, "s1")["events"]
        for part in (event.get("content") or {}).get("parts", [])
        if "text" in part
    ]


def test_every_message_at_once_is_answered_in_order(serve: Serve) -> None:
    """Twenty posts to one session are twenty times 200, and whole turns in the order they came."""
    server = serve(URI, *PLUGIN, command="api_server")
    server.create_session("echo", "s1")
    texts = [f"m{number}" for number in range(AT_ONCE)]
    with ExitStack() as stack:
        connections = [
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port))) for _ in texts
        ]
        for connection, text in zip(connections, texts, strict=True):
            send(server, connection, "echo", text)
        statuses = [status(connection) for connection in connections]
    assert statuses == [200] * AT_ONCE
    heard = said(server, "echo")
    assert heard[::2] == texts
    assert heard[1::2] == [" / ".join(texts[: number + 1]) for number in range(AT_ONCE)]


def begun(server: AdkServer, connection: socket.socket) -> None:
    """Begins a turn of the patient agent and returns when its message is stored."""
    server.create_session("patient", "s1")
    send(server, connection, "patient", "hello")
    while not said(server, "patient"):
        time.sleep(0.01)


def test_state_is_changed_beside_a_running_turn(project: AdkProject, serve: Serve) -> None:
    """Twenty times PATCH during a turn: all are applied, and the turn ends well."""
    server = serve(URI, command="api_server")
    path = f"{server.url}/apps/patient/users/{USER}/sessions/s1"

    def patch(number: int) -> int:
        delta = {f"k{number}": number, f"user:k{number}": number}
        return httpx.patch(
            path, json={"state_delta": delta}, timeout=60, trust_env=False
        ).status_code

    with socket.create_connection(("127.0.0.1", server.port)) as turn:
        begun(server, turn)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            assert list(pool.map(patch, range(AT_ONCE))) == [200] * AT_ONCE
        (project.root / "go").touch()
        assert status(turn) == httpx.codes.OK
    state = server.session("patient", "s1")["state"]
    assert state == {
        name: number for number in range(AT_ONCE) for name in (f"k{number}", f"user:k{number}")
    }
    assert said(server, "patient") == ["hello", "done"]


def test_a_second_message_is_refused_where_the_app_says_so(
    project: AdkProject, serve: Serve
) -> None:
    """With `reject` the answer is 409 on `/run` and an error event on `/run_sse`."""
    server = serve(URI, command="api_server")
    with socket.create_connection(("127.0.0.1", server.port)) as turn:
        begun(server, turn)
        refused = server.post_message("/run", "patient", "s1", "me too")
        assert refused.status_code == httpx.codes.CONFLICT
        assert refused.json() == {"detail": "Session s1 has a running turn; nothing was written."}
        events: list[dict[str, Any]] = server.run_sse("patient", "s1", "me too")
        assert "has a running turn" in json.dumps(events)
        (project.root / "go").touch()
        assert status(turn) == httpx.codes.OK
    assert said(server, "patient") == ["hello", "done"]
    assert server.run("patient", "s1", "again")[-1]["content"]["parts"] == [{"text": "done"}]


def test_a_client_that_goes_away_leaves_no_turn(project: AdkProject, serve: Serve) -> None:
    """When the person closes the connection in the middle, the next message is answered."""
    server = serve(URI, command="api_server")
    with socket.create_connection(("127.0.0.1", server.port)) as turn:
        begun(server, turn)
    while "Client disconnected" not in server.output:
        time.sleep(0.01)
    (project.root / "go").touch()
    while server.post_message("/run", "patient", "s1", "next").status_code == httpx.codes.CONFLICT:
        time.sleep(0.01)
    assert said(server, "patient")[-2:] == ["next", "done"]
