"""Checkpoints over HTTP: only for the user of the path, with the status that each error means."""

from __future__ import annotations

import asyncio
import re
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import httpx
import pytest
from fastapi import FastAPI, Header, HTTPException
from google.adk.artifacts.in_memory_artifact_service import InMemoryArtifactService
from google.adk.cli.fast_api import get_fast_api_app
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google.genai import types

from adk_memory_ext import (
    CheckpointPolicy,
    ConfigurationError,
    DurableSessionService,
    Window,
    checkpoint_router,
    wait,
)
from adk_server import AdkProject
from conversation import said, texts
from people import OWN, SESSION, echo, running, say
from tables import run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

PATH: Final = "/apps/app/users/user"
ECHO: Final = Path(__file__).parent / "web" / "echo"
MINE: Final = "token-of-user"
TOKENS: Final = {MINE: "user", "token-of-ann": "ann"}


async def authorize(authorization: Annotated[str, Header()] = "") -> str:
    """Returns whose token a request carries."""
    user = TOKENS.get(authorization)
    if user is None:
        raise HTTPException(401, "Sign in first.")
    return user


@asynccontextmanager
async def calling(app: FastAPI, token: str = MINE) -> AsyncIterator[httpx.AsyncClient]:
    """Yields a client of an app that runs in this process."""
    # What nobody has foreseen is answered as a server answers it, and not raised here.
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://test", headers={"authorization": token}
    ) as client:
        yield client


def serving(sessions: DurableSessionService, **options: Any) -> FastAPI:
    """Returns an app with the routes."""
    app = FastAPI()
    app.include_router(checkpoint_router(sessions, **{"authorize": authorize} | options))
    return app


@pytest.fixture
async def sessions() -> AsyncIterator[DurableSessionService]:
    """A service in memory: what is tested here is the way to it."""
    async with DurableSessionService.from_url("") as service:
        yield service


async def begin(sessions: DurableSessionService) -> str:
    """Returns the id of a checkpoint behind which the session has gone on."""
    session = await sessions.create_session(**SESSION, state={"secret": "Ann's ring", "step": "a"})
    await sessions.append_event(session, said("my secret", invocation="i1"))
    point = await sessions.checkpoints.create(session, step="collected")
    await sessions.append_event(session, said("later", invocation="i2", state={"step": "b"}))
    return point.id


async def stored(sessions: DurableSessionService, session_id: str = "session") -> Any:
    """Returns a session as it is stored."""
    return await sessions.get_session(**OWN, session_id=session_id)


async def test_checkpoints_are_listed(sessions: DurableSessionService) -> None:
    """Of a user and of a session, of one step or of all, also when the session is gone."""
    point = await begin(sessions)
    async with calling(serving(sessions)) as client:
        for path in (f"{PATH}/checkpoints", f"{PATH}/sessions/session/checkpoints"):
            listed = (await client.get(path)).json()
            assert [(one["id"], one["step"]) for one in listed] == [(point, "collected")]
            assert (await client.get(path, params={"step": "other"})).json() == []
        await sessions.wrapped.delete_session(**SESSION)  # as its expiry does
        assert len((await client.get(f"{PATH}/checkpoints")).json()) == 1
        assert "secret" not in (await client.get(f"{PATH}/checkpoints")).text


async def test_a_checkpoint_is_restored(sessions: DurableSessionService) -> None:
    """State and history are those of the checkpoint; asked again, nothing is written."""
    point = await begin(sessions)
    async with calling(serving(sessions)) as client:
        first = await client.post(f"{PATH}/checkpoints/{point}/restore")
        again = await client.post(f"{PATH}/checkpoints/{point}/restore")
    assert (first.status_code, first.json()["hidden"]) == (200, 1)
    assert (again.status_code, again.json()["event_id"]) == (200, None)
    assert (await stored(sessions)).state["step"] == "a"


async def test_a_checkpoint_is_forked(sessions: DurableSessionService) -> None:
    """Under the name that is asked for, or under a random one when there is no body."""
    point = await begin(sessions)
    async with calling(serving(sessions)) as client:
        named = await client.post(
            f"{PATH}/checkpoints/{point}/fork", json={"new_session_id": "what if"}
        )
        random = await client.post(f"{PATH}/checkpoints/{point}/fork")
        taken = await client.post(
            f"{PATH}/checkpoints/{point}/fork", json={"new_session_id": "what if"}
        )
    assert named.json()["session_id"] == "what if"
    for answer in (named, random):
        fork = await stored(sessions, answer.json()["session_id"])
        assert texts(fork.events) == ["my secret"]
    assert taken.status_code == 409


async def test_a_session_is_rewound(sessions: DurableSessionService) -> None:
    """As `Runner.rewind_async` does it: state and artifacts are those before the invocation."""
    session = await sessions.create_session(**SESSION, state={"step": "a"})
    artifacts = InMemoryArtifactService()
    for number in range(2):
        part = types.Part(text=f"version {number}")
        version = await artifacts.save_artifact(**SESSION, filename="letter", artifact=part)
        actions = EventActions(artifact_delta={"letter": version}, state_delta={"step": number})
        event = Event(author="agent", invocation_id=f"i{number}", actions=actions)
        await sessions.append_event(session, event)
    async with calling(serving(sessions, artifact_service=artifacts)) as client:
        answer = await client.post(
            f"{PATH}/sessions/session/rewind", json={"rewind_before_invocation_id": "i1"}
        )
    assert (answer.status_code, answer.content) == (204, b"")
    assert (await stored(sessions)).state["step"] == 0
    letter = await artifacts.load_artifact(**SESSION, filename="letter")
    assert letter is not None
    assert letter.text == "version 0"


async def test_a_rewind_reaches_behind_a_window() -> None:
    """A service that loads the tail of a session for a turn has all of it for a rewind."""
    async with DurableSessionService.from_url("", window=Window(events=1)) as sessions:
        session = await sessions.create_session(**SESSION, state={"step": 0})
        for number in range(1, 5):
            event = said("x", invocation=f"i{number}", state={"step": number})
            await sessions.append_event(session, event)
        body = {"rewind_before_invocation_id": "i2"}
        async with calling(serving(sessions)) as client:
            answer = await client.post(f"{PATH}/sessions/session/rewind", json=body)
        assert answer.status_code == 204
        assert (await stored(sessions)).state["step"] == 1


async def test_user_state_and_artifacts_come_back_where_asked() -> None:
    """The user's state by option, artifacts where the router knows them, app state never."""
    artifacts = InMemoryArtifactService()
    policy = CheckpointPolicy(scoped=True)
    async with DurableSessionService.from_url("", checkpoint_policy=policy) as sessions:
        session = await sessions.create_session(**SESSION, state={"user:u": 1, "app:a": 1})
        points = []
        for text, delta in (("old", {"step": 1}), ("new", {"user:u": 2, "app:a": 2})):
            part = types.Part(text=text)
            version = await artifacts.save_artifact(**SESSION, filename="letter", artifact=part)
            actions = EventActions(artifact_delta={"letter": version}, state_delta=delta)
            event = Event(author="agent", invocation_id=text, actions=actions)
            await sessions.append_event(session, event)
            points.append(await sessions.checkpoints.create(session, step=text))
        path = f"{PATH}/checkpoints/{points[0].id}"
        async with calling(serving(sessions, artifact_service=artifacts)) as client:
            await client.post(f"{path}/restore")
            assert (await stored(sessions)).state["user:u"] == 2
            await client.post(f"{path}/restore", json={"user_state": True})
            state = (await stored(sessions)).state
            assert (state["user:u"], state["app:a"]) == (1, 2)
            fork = (await client.post(f"{path}/fork")).json()["session_id"]
        for session_id in ("session", fork):
            letter = await artifacts.load_artifact(**OWN, session_id=session_id, filename="letter")
            assert letter is not None
            assert letter.text == "old"


# --- Who may


REQUESTS: Final = (
    ("GET", "checkpoints", None),
    ("GET", "sessions/session/checkpoints", None),
    ("POST", "sessions/session/rewind", {"rewind_before_invocation_id": "i1"}),
    ("POST", "checkpoints/{point}/restore", None),
    ("POST", "checkpoints/{point}/fork", {"new_session_id": "stolen"}),
)
each_request = pytest.mark.parametrize("request_", REQUESTS, ids=lambda one: one[1])


def fails() -> str:
    """Is a broken authorisation."""
    raise OSError("the directory of users is away, and Ann's password is 1234")


@each_request
@pytest.mark.parametrize(
    ("token", "authorizing", "status"),
    [
        ("", authorize, 401),
        ("token-of-ann", authorize, 403),
        (MINE, lambda: None, 403),
        (MINE, lambda: True, 403),
        (MINE, fails, 500),
    ],
    ids=["nobody", "somebody else", "none", "no id", "broken"],
)
async def test_who_is_not_the_user_of_the_path_gets_nothing(
    request_: tuple[str, str, Any],
    token: str,
    authorizing: Callable[..., Any],
    status: int,
    sessions: DurableSessionService,
) -> None:
    """Every route is refused, nothing is done, and the answer says nothing of anybody."""
    method, path, body = request_
    point = await begin(sessions)
    before = await stored(sessions)
    async with calling(serving(sessions, authorize=authorizing), token) as client:
        answer = await client.request(method, f"{PATH}/{path.format(point=point)}", json=body)
    assert answer.status_code == status
    assert not any(word in answer.text for word in ("secret", "ring", "ann", "user", "1234"))
    assert await stored(sessions) == before
    assert await stored(sessions, "stolen") is None


@each_request
async def test_what_belongs_to_somebody_else_is_not_found(
    request_: tuple[str, str, Any], sessions: DurableSessionService
) -> None:
    """Ann, on her own path, with ids of another user's session and checkpoint: as if unknown."""
    method, path, body = request_
    point = await begin(sessions)
    before = await stored(sessions)
    async with calling(serving(sessions), "token-of-ann") as client:
        url = f"/apps/app/users/ann/{path}"
        answer = await client.request(method, url.format(point=point), json=body)
        unknown = await client.request(
            method, url.format(point="0" * 24).replace("/session/", "/other/"), json=body
        )
    assert answer.status_code == unknown.status_code == (200 if method == "GET" else 404)
    assert method == "POST" or answer.json() == []
    assert "secret" not in answer.text
    assert await stored(sessions) == before


async def test_another_app_of_the_user_has_no_way_in(sessions: DurableSessionService) -> None:
    """A checkpoint is found under its own app only."""
    point = await begin(sessions)
    async with calling(serving(sessions)) as client:
        answer = await client.post(f"/apps/other/users/user/checkpoints/{point}/restore")
    assert answer.status_code == 404


async def test_without_an_authorisation_there_is_no_router() -> None:
    """It has no default, and what is no function is refused when the app starts."""
    async with DurableSessionService.from_url("") as sessions:
        with pytest.raises(TypeError, match="authorize"):
            checkpoint_router(sessions)  # type: ignore[call-arg]
        with pytest.raises(ConfigurationError, match="authorize"):
            checkpoint_router(sessions, authorize=None)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="DurableSessionService"):
        checkpoint_router(InMemorySessionService(), authorize=authorize)  # type: ignore[arg-type]


async def test_the_how_to_and_openapi_name_every_route(sessions: DurableSessionService) -> None:
    """What is documented is what there is, and what a client is generated from."""
    page = Path(__file__).parents[1] / "docs" / "how-to" / "rewind-and-restore-over-http.md"
    documented = re.findall(r"^\| `(GET|POST) (/\S+)` \|", page.read_text(), re.MULTILINE)
    described = [
        (method.upper(), re.sub(r"_(name|id)}", "}", path))
        for path, methods in serving(sessions).openapi()["paths"].items()
        for method in methods
    ]
    assert sorted(documented) == sorted(described)
    assert len(described) == len(REQUESTS)


# --- What can go wrong


async def test_a_running_turn_is_a_conflict(sessions: DurableSessionService) -> None:
    """Rewind and restore are 409 at once and write nothing; a fork leaves the session alone."""
    point = await begin(sessions)
    gate = asyncio.Event()
    async with (
        running(sessions, echo(tools=[], gate=gate)) as runner,
        calling(serving(sessions)) as client,
        calling(serving(sessions, on_busy=wait())) as patient,
    ):
        turn = asyncio.ensure_future(say(runner, "hello"))
        while len((await stored(sessions)).events) < 3:
            await asyncio.sleep(0)
        restore, rewind = f"{PATH}/checkpoints/{point}/restore", f"{PATH}/sessions/session/rewind"
        body = {"rewind_before_invocation_id": "i1"}
        for answer in (await client.post(restore), await client.post(rewind, json=body)):
            assert answer.status_code == 409
            assert "has a running turn" in answer.json()["detail"]
        assert len((await stored(sessions)).events) == 3
        assert (await client.post(f"{PATH}/checkpoints/{point}/fork")).status_code == 200
        waiting = asyncio.ensure_future(patient.post(restore))
        await asyncio.sleep(0)
        gate.set()
        await turn
        assert (await waiting).json()["hidden"] == 3
        assert (await client.post(restore)).json()["event_id"] is None


async def test_a_log_that_was_tampered_with_is_a_conflict(tmp_path: Path) -> None:
    """The event is named by its id, and nothing is restored or forked."""
    url = f"sqlite+aiosqlite:///{tmp_path}/sessions.db"
    async with DurableSessionService.from_url(url) as sessions:
        point = await begin(sessions)
        changed = (await stored(sessions)).events[0].id
        data = "replace(event_data, 'my secret', 'no secret')"
        run(url, f"UPDATE events SET event_data = {data} WHERE id = '{changed}'")  # noqa: S608
        async with calling(serving(sessions)) as client:
            for what in ("restore", "fork"):
                answer = await client.post(f"{PATH}/checkpoints/{point}/{what}")
                assert answer.status_code == 409
                assert changed in answer.json()["detail"]
                assert "secret" not in answer.text


async def test_what_does_not_exist_is_not_found(sessions: DurableSessionService) -> None:
    """An unknown checkpoint, session or invocation is 404."""
    await begin(sessions)
    body = {"rewind_before_invocation_id": "unknown"}
    async with calling(serving(sessions)) as client:
        for path, sent in (
            ("checkpoints/unknown/restore", None),
            ("checkpoints/unknown/fork", None),
            ("sessions/unknown/rewind", body),
            ("sessions/session/rewind", body),
        ):
            assert (await client.post(f"{PATH}/{path}", json=sent)).status_code == 404


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("checkpoints/{point}/fork", {"new_session_id": "x" * 1000}),
        ("checkpoints/{point}/fork", {"new_session_id": "nul \0"}),
        ("checkpoints/{point}/fork", {"new_session_id": {"my": "secret"}}),
        ("sessions/session/rewind", {"rewind_before": "my secret"}),
        ("sessions/session/rewind", "my secret"),
        ("checkpoints/{point}/restore", {"user_state": True}),  # it holds none
    ],
)
async def test_what_has_no_meaning_is_unprocessable(
    path: str, body: Any, sessions: DurableSessionService
) -> None:
    """422 says where the request is wrong, and does not repeat what it said."""
    point = await begin(sessions)
    async with calling(serving(sessions)) as client:
        answer = await client.post(f"{PATH}/{path.format(point=point)}", json=body)
    assert answer.status_code == 422
    assert answer.json()["detail"]
    assert "secret" not in answer.text


async def test_a_service_without_checkpoints_says_so() -> None:
    """Over a foreign service they are 501, and a rewind works."""
    sessions = DurableSessionService(InMemorySessionService())
    session = await sessions.create_session(**SESSION, state={"step": "a"})
    await sessions.append_event(session, said("one", invocation="i1", state={"step": "b"}))
    body = {"rewind_before_invocation_id": "i1"}
    async with calling(serving(sessions)) as client:
        assert (await client.get(f"{PATH}/checkpoints")).status_code == 501
        assert (await client.post(f"{PATH}/sessions/session/rewind", json=body)).is_success
    assert (await stored(sessions)).state["step"] == "a"


async def test_a_closed_database_is_no_answer(tmp_path: Path) -> None:
    """What cannot be reached is 503, and says nothing of where it lies."""
    sessions = DurableSessionService.from_url(f"sqlite:///{tmp_path}/sessions.db")
    await begin(sessions)
    await sessions.close()
    async with calling(serving(sessions)) as client:
        answer = await client.get(f"{PATH}/checkpoints")
    assert answer.status_code == 503
    assert str(tmp_path) not in answer.text


# --- Beside ADK's own routes


@pytest.mark.filterwarnings(r"ignore:\[EXPERIMENTAL\] \w+CredentialService")
async def test_it_stands_beside_adks_own_routes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A conversation over ADK's `/run` is rewound, restored and forked, and goes on there."""
    # ADK puts the agents' folder on the path and imports `services` from it.
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "services", raising=False)
    project = AdkProject.create(tmp_path, ECHO)
    url = f"sqlite+aiosqlite:///{tmp_path}/sessions.db"
    app = get_fast_api_app(
        agents_dir=str(project.root / "agents"), session_service_uri=f"memext+{url}", web=False
    )
    path = "/apps/echo/users/user"

    async def turn(client: httpx.AsyncClient, text: str, session_id: str = "s") -> list[Any]:
        message = {"role": "user", "parts": [{"text": text}]}
        names = {"app_name": "echo", "user_id": "user", "session_id": session_id}
        answer = await client.post("/run", json={**names, "new_message": message})
        assert answer.is_success, answer.text
        return list(answer.json())

    async with (
        DurableSessionService.from_url(url) as sessions,
        app.router.lifespan_context(app),
        calling(app) as client,
    ):
        app.include_router(checkpoint_router(sessions, authorize=authorize))
        created = await client.post(f"{path}/sessions", json={"sessionId": "s"})
        assert created.is_success, created.text
        await turn(client, "one")
        session = await sessions.get_session(app_name="echo", user_id="user", session_id="s")
        assert session is not None
        await sessions.checkpoints.create(session, step="one")
        second = (await turn(client, "two"))[-1]["invocationId"]

        (point,) = (await client.get(f"{path}/sessions/s/checkpoints")).json()
        rewound = await client.post(
            f"{path}/sessions/s/rewind", json={"rewind_before_invocation_id": second}
        )
        assert rewound.status_code == 204
        assert (await turn(client, "three"))[-1]["content"]["parts"] == [{"text": "one / three"}]
        restored = await client.post(f"{path}/checkpoints/{point['id']}/restore")
        assert restored.json()["hidden"] == 2
        assert (await turn(client, "four"))[-1]["content"]["parts"] == [{"text": "one / four"}]
        fork = (await client.post(f"{path}/checkpoints/{point['id']}/fork")).json()["session_id"]
        answer = (await turn(client, "five", fork))[-1]
        assert answer["content"]["parts"] == [{"text": "one / five"}]
        strangers = await client.get("/apps/echo/users/ann/checkpoints")
        assert strangers.status_code == 403
