"""Trimmed histories through the real `google-genai` client, to a stub as strict as Gemini."""

from __future__ import annotations

import logging

import pytest
from google import genai
from google.genai import errors, types

from adk_memory_ext import BudgetExceededError, History, HistoryPolicy
from backends import count
from gemini_stub import GeminiStub
from histories import context_of, random_log, request_of


@pytest.fixture(autouse=True)
def _silence() -> None:
    """ADK warns of every unanswered call that it leaves out."""
    logging.getLogger("google_adk").setLevel(logging.ERROR)


async def test_gemini_takes_every_trimmed_history() -> None:
    """Of random logs none is refused once trimmed; untrimmed and cut blindly, many are."""
    part = History(HistoryPolicy(budget_tokens=2_000, output_reserve_tokens=0))
    refused_blind = 0
    with GeminiStub(lambda _body: [{"text": "ok"}]) as gemini:
        options = types.HttpOptions(base_url=gemini.url)
        async with genai.Client(api_key="key", http_options=options).aio as client:
            for seed in range(count(60, 600)):
                events = random_log(seed, 40)
                request = await request_of(events)
                blind = list(request.contents[-15:])
                try:
                    part.trim(context_of(events), request)
                except BudgetExceededError:
                    continue
                await client.models.generate_content(model="m", contents=request.contents)
                try:
                    await client.models.generate_content(model="m", contents=blind)
                except errors.ClientError:
                    refused_blind += 1
    assert refused_blind > 10
