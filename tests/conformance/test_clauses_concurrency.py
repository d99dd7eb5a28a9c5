"""Clauses about callers at the same time, in one process."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from google.adk.errors.already_exists_error import AlreadyExistsError

from backends import count
from conversation import replay, said, texts

if TYPE_CHECKING:
    from google.adk.events.event import Event
    from google.adk.sessions.session import Session

    from conformance.subject import Subject


@pytest.mark.needs("keeps_parallel_appends")
async def test_parallel_sessions_lose_no_scoped_key(subject: Subject) -> None:
    """Sessions of one user that write distinct `user:` and `app:` keys at once keep them all."""
    writers, each = count(10, 20), 5

    async def write(n: int) -> Session:
        session = await subject.create(f"s{n}")
        for m in range(each):
            state = {f"user:{n}-{m}": m, f"app:{n}-{m}": m, f"own-{m}": m}
            await subject.append(session, said(f"{n}-{m}", state=state))
        return session

    sessions = await asyncio.gather(*(write(n) for n in range(writers)))

    keys = {f"{n}-{m}": m for n in range(writers) for m in range(each)}
    assert await subject.user_state() == keys
    for n, session in enumerate(sessions):
        stored = await subject.read(session)
        assert texts(stored.events) == [f"{n}-{m}" for m in range(each)]
        assert replay(stored.events).items() <= stored.state.items()
        assert {key: stored.state.get(f"app:{key}") for key in keys} == keys


@pytest.mark.needs("keeps_parallel_appends")
async def test_a_refused_append_among_others_leaves_nothing(subject: Subject) -> None:
    """Of many appends at once some are refused: nothing of these is stored, all of the others."""
    sessions = [await subject.create(f"s{n}") for n in range(20)]
    for session in sessions:
        first = said("first")
        first.id = "first"
        await subject.append(session, first)

    def second(n: int) -> Event:
        """Returns an event, every second one under an id that another event has already."""
        event = said(f"second {n}", state={f"user:{n}": n, f"app:{n}": n, "own": n})
        event.id = "first" if n % 2 else "second"
        return event

    results = await asyncio.gather(
        *(subject.append(session, second(n)) for n, session in enumerate(sessions)),
        return_exceptions=True,
    )

    refused = [n for n, result in enumerate(results) if isinstance(result, BaseException)]
    assert refused == list(range(1, 20, 2))
    assert {type(results[n]) for n in refused} == {AlreadyExistsError}
    assert await subject.user_state() == {str(n): n for n in range(0, 20, 2)}
    for n, session in enumerate(sessions):
        stored = await subject.read(session)
        assert texts(stored.events) == (["first"] if n in refused else ["first", f"second {n}"])
        assert stored.state.get("own") == (None if n in refused else n)
        app_keys = {key for key in stored.state if key.startswith("app:")}
        assert app_keys == {f"app:{m}" for m in range(0, 20, 2)}


@pytest.mark.needs("keeps_parallel_creates")
async def test_parallel_creations_lose_no_scoped_key(subject: Subject) -> None:
    """Sessions created at once with distinct `user:` and `app:` keys keep them all."""
    number = count(15, 30)

    await asyncio.gather(
        *(
            subject.create(f"s{n}", state={f"user:{n}": n, f"app:{n}": n, "own": n})
            for n in range(number)
        )
    )

    expected = {f"{scope}:{n}": n for scope in ("user", "app") for n in range(number)}
    for session in await subject.list():
        assert session.state == expected | {"own": int(session.id[1:])}
    assert len(await subject.list()) == number


async def test_of_parallel_creations_of_one_id_one_succeeds(subject: Subject) -> None:
    """Of several callers that create the same session at once one gets it, the others an error."""
    results = await asyncio.gather(
        *(subject.create("s", state={"winner": n}) for n in range(8)), return_exceptions=True
    )

    winners = [result for result in results if not isinstance(result, BaseException)]
    refused = [result for result in results if isinstance(result, AlreadyExistsError)]
    assert (len(winners), len(refused)) == (1, 7)
    stored = await subject.find("s")
    assert stored is not None
    assert stored.state == winners[0].state
