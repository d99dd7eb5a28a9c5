"""The résumé coach and the profile: hours a week, and only on request."""

from __future__ import annotations

from typing import Any, Final

import pytest

from adk_memory_ext import DurableSessionService, MemoryPlugin, PreloadProfile
from coach import APP_NAME, RESUME, SESSION_ID, USER_ID, converse, pasted
from profiles.facts_of import values
from resume_coach.agent import app
from resume_coach.reading import asks_to_remember

PERSON: Final[dict[str, Any]] = {"app_name": APP_NAME, "user_id": USER_ID}
HOURS: Final = "I have used SQL; six hours a week, please plan."


def test_the_coach_has_the_profile_part() -> None:
    """The sample's plugin preloads the profile."""
    (plugin,) = app.plugins
    assert isinstance(plugin, MemoryPlugin)
    assert any(isinstance(part, PreloadProfile) for part in plugin.parts)


@pytest.mark.parametrize(
    ("message", "saved"),
    [
        (HOURS, {}),
        (f"{HOURS} I do not remember more.", {}),
        (f"{HOURS} Please remember my hours.", {"weekly-hours": 6}),
        ("每週六小時，請記住，幫我排計畫。", {"weekly-hours": 6}),
        ("每週六小時，不要記住，幫我排計畫。", {}),
    ],
)
async def test_weekly_hours_are_saved_only_on_request(
    message: str, saved: dict[str, float]
) -> None:
    """Nothing goes to the profile until the person says "remember", and of the résumé nothing."""
    async with DurableSessionService.from_url() as sessions:
        conversation = await converse([pasted(), message], sessions=sessions)
        recalled = await sessions.profiles.recall(**PERSON)
        assert values(recalled) == saved
        assert not any(line in str(recalled) for line in RESUME.splitlines())
        assert "validate_learning_plan" in [call.name for call in conversation.calls(2)]


async def test_remembered_hours_need_not_be_said_again() -> None:
    """In a later conversation a plan is made with the hours of the profile."""
    async with DurableSessionService.from_url() as sessions:
        await converse([pasted(), f"{HOURS} Please remember my hours."], sessions=sessions)
        await sessions.delete_session(**PERSON, session_id=SESSION_ID)
        later = await converse([pasted(), "I have used SQL, please plan."], sessions=sessions)
        assert later.plan is not None
        assert {week.hours_budget for week in later.plan.weeks} == {6}


@pytest.mark.parametrize(
    ("text", "expected"),
    [("Remember it", True), ("don't remember", False), ("請記住", True), ("別記住", False)],
)
def test_a_wish_to_remember_is_told_from_its_opposite(text: str, *, expected: bool) -> None:
    """A negation before the word is no wish."""
    assert asks_to_remember(text) is expected
