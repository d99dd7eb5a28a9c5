"""The résumé coach with a budget: half the request, the same plan."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from adk_memory_ext import History
from coach import Listener, converse, pasted
from histories import into
from model_input import faults
from resume_coach.agent import HISTORY

if TYPE_CHECKING:
    from adk_memory_ext.history import RequestReport

MESSAGES = (
    pasted(),
    "I have used SQL; Docker only to run MySQL; six hours a week, please plan.",
    "In week two only two hours, the others unchanged.",
)


async def test_the_third_request_shrinks_by_half_and_the_plan_stays() -> None:
    """In half of the room the plan is revised as before, and the validator accepts it."""
    plans = []
    sizes = []
    room = 32_000
    for _ in range(2):
        reports: list[RequestReport] = []
        policy = replace(HISTORY, budget_tokens=room, output_reserve_tokens=0, margin=0)
        part = History(policy, on_report=into(reports))
        listener = Listener(heard=[])
        conversation = await converse(MESSAGES, listener, history=part)
        assert [answer.get("ok", True) for answer in conversation.answers(3)] == [True] * len(
            conversation.answers(3)
        )
        assert all(faults(request.contents) == [] for request in listener.heard)
        plans.append(conversation.plan)
        last = reports[-1]
        sizes.append(last.tokens_after)
        room = last.fixed.total + last.tokens_after // 2
    assert plans[0] is not None
    assert plans[0] == plans[1]
    assert sizes[1] <= sizes[0] / 2
