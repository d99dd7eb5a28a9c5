"""The coach's policy: what of a conversation outlives it, and what nobody may write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

from adk_memory_ext import DurableSessionService
from adk_memory_ext.errors import StateRejectedError
from coach import APP_NAME, RESUME, USER_ID, converse, pasted
from resume_coach.intake import JOB_AD_KEY, RESUME_KEY
from resume_coach.learning_plan import PLAN_KEY
from resume_coach.policy import POLICY

if TYPE_CHECKING:
    from pathlib import Path

OWNER: Final[dict[str, Any]] = {"app_name": APP_NAME, "user_id": USER_ID}
HOURS: Final = "SQL only from a course; Docker never; six hours a week, please plan."


async def test_nothing_of_a_conversation_outlives_it_unasked(tmp_path: Path) -> None:
    """Résumé, advertisement and plan are the session's; hours that were only said are nobody's."""
    url = f"sqlite:///{tmp_path}/sessions.db"
    async with DurableSessionService.from_url(url, policy=POLICY) as sessions:
        talk = await converse([pasted(), HOURS], sessions=sessions)
        assert talk.plan is not None
        assert talk.session.state.keys() == {RESUME_KEY, JOB_AD_KEY, PLAN_KEY}
        assert await sessions.get_user_state(**OWNER) == {}
        other = await sessions.create_session(**OWNER)
        assert dict(other.state) == {}


@pytest.mark.parametrize(
    ("delta", "reason"),
    [
        ({"user:resume_text": RESUME}, "not declared"),
        ({"app:resume_text": RESUME}, "in the scope app"),
        ({"user:weekly_hours": 6}, "not declared"),
        ({"User:preferred_name": "Sam"}, "'user:preferred_name' was probably meant"),
        ({"user:preferred_name": 6}, "does not fit the type str"),
        ({RESUME_KEY: "x" * 300_000}, "300,002 bytes"),
    ],
)
async def test_what_may_not_be_remembered_is_refused(delta: dict[str, Any], reason: str) -> None:
    """A résumé goes into no `user:` or `app:` key, by whatever name somebody tries."""
    async with DurableSessionService.from_url("", policy=POLICY) as sessions:
        with pytest.raises(StateRejectedError, match=reason) as refusal:
            await sessions.create_session(**OWNER, state=delta)
        assert RESUME not in str(refusal.value)
