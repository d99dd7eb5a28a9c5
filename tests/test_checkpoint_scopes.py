"""What a restore puts back beside the session: user and app state, and artifacts, where asked."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from google.adk.artifacts import InMemoryArtifactService
from google.genai import types

from adk_memory_ext import CheckpointPolicy, ConfigurationError, DurableSessionService
from adk_memory_ext.service import DurableSessionService as Service
from backends import BARE, OURS, OURS_MARIADB
from conversation import exactly, said
from people import OWN, SESSION

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from google.adk.sessions.session import Session

    from backends import Backend, Place

everywhere = pytest.mark.parametrize("backend", [*OURS, OURS_MARIADB, *BARE], ids=lambda b: b.name)
CREATED = {"step": "a", "user:u": 1, "user:list": [1], "app:a": "x", "user:secret": "Ann"}


@asynccontextmanager
async def opened(backend: Backend, place: Place) -> AsyncIterator[DurableSessionService]:
    """Yields a service that keeps user and app state in its checkpoints, but for a secret."""
    policy = CheckpointPolicy(scoped=True, personal=("user:secret",))
    async with backend.open(place) as service:
        if isinstance(service, Service):
            yield Service(service.wrapped, checkpoint_policy=policy)
            return
        store = f"sqlite:///{place.folder}/checkpoints.db"
        async with Service(service, store=store, checkpoint_policy=policy) as durable:
            yield durable


async def found(sessions: DurableSessionService, session_id: str = "session") -> Session:
    """Returns a session as it is stored."""
    session = await sessions.get_session(**OWN, session_id=session_id)
    assert session is not None
    return session


def given(session: Session) -> dict[str, Any]:
    """Returns the state without what a removal leaves behind over a foreign service."""
    return {key: value for key, value in session.state.items() if value is not None}


async def change(sessions: DurableSessionService) -> None:
    """Changes, adds and keeps keys of each scope."""
    delta = {
        "step": "b",
        "user:u": 2,
        "user:new": 1,
        "app:a": "y",
        "app:b": 1,
        "user:secret": "Bob",
    }
    await sessions.append_event(await found(sessions), said("on", invocation="i2", state=delta))


@everywhere
async def test_user_and_app_state_come_back_where_asked(backend: Backend, place: Place) -> None:
    """Each scope by itself, exactly; a value that is not kept stays; without asking, all stay."""
    async with opened(backend, place) as sessions:
        session = await sessions.create_session(**SESSION, state=dict(CREATED))
        await sessions.append_event(session, said("one", invocation="i1"))
        point = await sessions.checkpoints.create(session, step="a")
        assert point.scoped
        kept = {key: value for key, value in CREATED.items() if key != "user:secret"}
        assert exactly(await sessions.checkpoints.state(point.id)) == exactly(kept)

        await change(sessions)
        restored = await sessions.checkpoints.restore(point.id)
        assert restored.missing == ()
        after = {**CREATED, "user:u": 2, "user:new": 1, "app:a": "y", "app:b": 1}
        after["user:secret"] = "Bob"
        assert exactly(given(await found(sessions))) == exactly(after)

        restored = await sessions.checkpoints.restore(point.id, scopes=["user"])
        assert (restored.changed, restored.removed) == (("user:u",), ("user:new",))
        after |= {"user:u": 1}
        del after["user:new"]
        assert exactly(given(await found(sessions))) == exactly(after)

        restored = await sessions.checkpoints.restore(point.id, scopes=["user", "app"])
        assert (restored.changed, restored.removed) == (("app:a",), ("app:b",))
        again = await sessions.checkpoints.restore(point.id, scopes=["user", "app"])
        assert again.event_id is None
        other = await sessions.create_session(**OWN, session_id="other")
        scoped = {key: value for key, value in CREATED.items() if ":" in key}
        assert exactly(given(other)) == exactly({**scoped, "user:secret": "Bob"})


@everywhere
async def test_they_come_back_with_a_session_that_is_gone(backend: Backend, place: Place) -> None:
    """The session that is made from the checkpoint puts them back as well."""
    async with opened(backend, place) as sessions:
        session = await sessions.create_session(**SESSION, state=dict(CREATED))
        point = await sessions.checkpoints.create(session, step="a")
        await change(sessions)
        lowest = sessions.wrapped
        await lowest.delete_session(**SESSION)
        restored = await sessions.checkpoints.restore(point.id, scopes=["user"])
        assert (restored.state_only, restored.missing) == (True, ())
        state = given(await found(sessions))
        assert (state["step"], state["user:u"], state["app:a"]) == ("a", 1, "y")


async def test_what_was_not_kept_cannot_be_asked_for(sessions: DurableSessionService) -> None:
    """A checkpoint without user and app state says so, and a scope that is none is refused."""
    session = await sessions.create_session(**SESSION, state=dict(CREATED))
    point = await sessions.checkpoints.create(session, step="a")
    assert not point.scoped
    assert await sessions.checkpoints.state(point.id) == {"step": "a"}
    with pytest.raises(ConfigurationError, match="scoped=True"):
        await sessions.checkpoints.restore(point.id, scopes=["user"])
    with pytest.raises(ConfigurationError, match="temp"):
        await sessions.checkpoints.restore(point.id, scopes=["temp"])  # type: ignore[list-item]


# --- Artifacts


async def saved(
    sessions: DurableSessionService, artifacts: InMemoryArtifactService, **texts: str
) -> None:
    """Saves artifacts as a tool does, with the event that notes their versions."""
    session = await found(sessions)
    event = said("saved", author="agent", invocation="s")
    for name, text in texts.items():
        part = types.Part(text=text)
        filename = name.replace("user_", "user:")
        version = await artifacts.save_artifact(**SESSION, filename=filename, artifact=part)
        event.actions.artifact_delta[filename] = version
    await sessions.append_event(session, event)


async def newest(artifacts: InMemoryArtifactService, filename: str) -> str | None:
    """Returns what the newest version of an artifact says."""
    part = await artifacts.load_artifact(**SESSION, filename=filename)
    return None if part is None else part.text


@pytest.mark.parametrize("backend", [*OURS, *BARE[:3]], ids=lambda b: b.name)
async def test_artifacts_come_back_as_new_versions(backend: Backend, place: Place) -> None:
    """Only those that have changed, once; the user's where asked; one that is gone is reported."""
    artifacts = InMemoryArtifactService()
    async with opened(backend, place) as sessions:
        await sessions.create_session(**SESSION)
        await saved(sessions, artifacts, plan="old", same="same", user_photo="young", lost="x")
        point = await sessions.checkpoints.create(await found(sessions), step="a")
        assert point.artifacts == {"plan": 0, "same": 0, "user:photo": 0, "lost": 0}
        await saved(sessions, artifacts, plan="new", user_photo="old", later="later")
        await artifacts.delete_artifact(**SESSION, filename="lost")

        restored = await sessions.checkpoints.restore(point.id, artifacts=artifacts)

        assert restored.artifacts == {"plan": 2, "lost": None}
        assert await newest(artifacts, "plan") == "old"
        assert await newest(artifacts, "user:photo") == "old"
        assert await newest(artifacts, "later") == "later"
        again = await sessions.checkpoints.restore(point.id, artifacts=artifacts)
        assert (again.event_id, again.artifacts) == (None, {"lost": None})
        options: dict[str, Any] = {"scopes": ["user"], "artifacts": artifacts}
        restored = await sessions.checkpoints.restore(point.id, **options)
        assert restored.artifacts == {"user:photo": 2, "lost": None}
        after = await sessions.checkpoints.create(await found(sessions), step="b")
        assert (after.artifacts["plan"], after.artifacts["user:photo"]) == (2, 2)


@pytest.mark.parametrize("backend", [*OURS, *BARE[:3]], ids=lambda b: b.name)
async def test_a_fork_takes_artifacts_along(backend: Backend, place: Place) -> None:
    """The versions that the checkpoint noted, in the fork; those of the user are shared anyway."""
    artifacts = InMemoryArtifactService()
    async with opened(backend, place) as sessions:
        await sessions.create_session(**SESSION)
        await saved(sessions, artifacts, plan="old", user_photo="young", lost="x")
        point = await sessions.checkpoints.create(await found(sessions), step="a")
        await saved(sessions, artifacts, plan="new", later="later")
        await artifacts.delete_artifact(**SESSION, filename="lost")

        fork = await sessions.checkpoints.fork(point.id, "fork", artifacts=artifacts)

        assert fork.artifacts == {"plan": 0, "lost": None}
        names = await artifacts.list_artifact_keys(**OWN, session_id="fork")
        assert sorted(names) == ["plan", "user:photo"]
        plan = await artifacts.load_artifact(**OWN, session_id="fork", filename="plan")
        assert plan is not None
        assert plan.text == "old"
        assert await newest(artifacts, "plan") == "new"
        session = await sessions.get_session(**OWN, session_id="fork")
        assert session is not None
        again = await sessions.checkpoints.create(session, step="again")
        assert again.artifacts["plan"] == 0
