"""Clauses about `sessions.erasure`, over ADK's services as well as over ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from adk_memory_ext.service import DurableSessionService
from conversation import said, texts

if TYPE_CHECKING:
    from adk_memory_ext.erasure.erasing import Erasure
    from conformance.subject import Subject


pytestmark = pytest.mark.needs("erases")


def erasure(subject: Subject) -> Erasure:
    """Returns the namespace."""
    assert isinstance(subject.service, DurableSessionService)
    return subject.service.erasure


async def live(subject: Subject, user: str) -> None:
    """Has a user talk twice."""
    for name in ("s", "t"):
        session = await subject.create(name, user=user, state={"user:likes": f"tea of {user}"})
        await subject.append(session, said(f"{name} of {user}", state={"step": 1}))


async def test_an_erased_session_is_gone_and_others_stay(subject: Subject) -> None:
    """One session goes, with a receipt that counts it; the user's state and the rest stay."""
    erasing = erasure(subject)
    for user in ("ann", "anna"):
        await live(subject, user)
    receipt = await erasing.erase_session(
        app_name=subject.app("app"), user_id="ann", session_id="s"
    )
    assert receipt.verified
    assert receipt.counts["events"] == 1
    assert await subject.find("s", user="ann") is None
    other = await subject.find("t", user="ann")
    assert other is not None
    assert texts(other.events) == ["t of ann"]
    assert other.state["user:likes"] == "tea of ann"
    assert sorted(session.id for session in await subject.list(user="anna")) == ["s", "t"]


async def test_an_erased_user_is_gone_and_may_come_back(subject: Subject) -> None:
    """All sessions and values of a user go, another one's stay, and a new account works."""
    erasing = erasure(subject)
    for user in ("ann", "anna"):
        await live(subject, user)
    plan = await erasing.plan_user(app_name=subject.app("app"), user_id="ann")
    receipt = await erasing.erase_user(app_name=subject.app("app"), user_id="ann")
    assert plan.counts["events"] == receipt.counts["events"] == 2
    assert receipt.verified
    assert await subject.list(user="ann") == []
    assert not any((await subject.user_state(user="ann")).values())
    assert await subject.user_state(user="anna") == {"likes": "tea of anna"}
    session = await subject.create("s", user="ann", state={"user:likes": "coffee"})
    await subject.append(session, said("a new life"))
    again = await subject.find("s", user="ann")
    assert again is not None
    assert texts(again.events) == ["a new life"]
    assert again.state["user:likes"] == "coffee"
