"""What stands beside the history: whose it is, what is valid, what fits, and why not."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pytest
from google.adk.agents.llm_agent import LlmAgent
from google.adk.apps import App
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.genai import types

from adk_memory_ext import (
    BudgetExceededError,
    ConfigurationError,
    DurableSessionService,
    History,
    MemoryPlugin,
)
from adk_memory_ext.history import ContextCandidate, RequestReport, choose
from adk_memory_ext.history.tokens import content_tokens
from histories import into
from model_input import faults

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from google.adk.agents.callback_context import CallbackContext
    from google.adk.models.llm_request import LlmRequest

NOW: Final = datetime(2026, 11, 30, 8, tzinfo=UTC)


def found(name: str, text: str = "", *, days: float = 0, **options: Any) -> ContextCandidate:
    """Returns a candidate of the user Ada, observed so many days ago."""
    given: dict[str, Any] = {"owner": "ada", "source": "profile", "kind": "preference"} | options
    return ContextCandidate(
        id=name, text=text or name, observed_at=NOW - timedelta(days=days), **given
    )


def ids(candidates: tuple[ContextCandidate, ...]) -> list[str]:
    """Returns the ids of candidates, in order."""
    return [one.id for one in candidates]


def test_another_owner_is_never_ranked() -> None:
    """The best-fitting candidate of somebody else is left out, also when it is required."""
    choice = choose(
        [found("theirs", owner="bob", score=99, is_required=True), found("mine")],
        owner="ada",
        budget_tokens=500,
    )
    assert ids(choice.chosen) == ["mine"]
    assert choice.left_out == (("theirs", "other owner"),)


def test_what_the_person_said_last_wins() -> None:
    """Over what they said before, and over what was concluded later, in any order of arrival."""
    statements = [
        found("detail", "likes detail", days=90, key="length", is_explicit=True),
        found("brief", "wants conclusions first", days=1, key="length", is_explicit=True),
        found("guess", "seems to like detail", days=0, key="length", score=9),
    ]
    for order in itertools.permutations(statements):
        choice = choose(order, owner="ada", budget_tokens=500)
        assert ids(choice.chosen) == ["brief"]
        assert dict(choice.left_out) == {"detail": "superseded", "guess": "superseded"}
        assert choice.conflicts == frozenset()


def test_what_nothing_decides_is_shown_as_a_conflict() -> None:
    """Two conclusions that contradict each other both go, each marked."""
    choice = choose(
        [found("a", "vegan", key="diet"), found("b", "eats fish", key="diet", days=2)],
        owner="ada",
        budget_tokens=500,
    )
    assert choice.conflicts == {"a", "b"}
    assert choice.content is not None
    text = (choice.content.parts or [])[0].text or ""
    assert text.count("CONFLICT") == 2


def test_duplicates_are_folded() -> None:
    """What is said twice is read once, the stronger one."""
    choice = choose(
        [found("old", "Likes  tea", days=3), found("new", "likes tea", is_explicit=True)],
        owner="ada",
        budget_tokens=500,
    )
    assert ids(choice.chosen) == ["new"]
    assert choice.left_out == (("old", "duplicate"),)


def test_one_source_cannot_take_everything() -> None:
    """A source gets its share; what is left goes to others of a lower score."""
    many = [found(f"hit-{n}", "word " * 20 + str(n), source="search", score=9) for n in range(20)]
    choice = choose([*many, found("fact", score=1)], owner="ada", budget_tokens=400)
    sources = [one.source for one in choice.chosen]
    assert "profile" in sources
    assert sum(one.tokens for one in choice.chosen if one.source == "search") <= 200
    assert "source has its share" in dict(choice.left_out).values()
    assert choice.content is not None
    assert content_tokens(choice.content) <= 400


def test_required_comes_before_optional_or_is_an_error() -> None:
    """A required candidate of no score displaces better ones; if it does not fit, that is said."""
    large = found("must", "word " * 100, is_required=True)
    choice = choose([found("nice", "word2 " * 60, score=9), large], owner="ada", budget_tokens=250)
    assert ids(choice.chosen)[0] == "must"
    with pytest.raises(BudgetExceededError) as caught:
        choose([large], owner="ada", budget_tokens=50)
    assert "required context" in caught.value.parts


def test_candidates_without_meaning_are_refused() -> None:
    """A time without a zone and a score that is no number cannot be compared."""
    with pytest.raises(ConfigurationError, match="time zone"):
        ContextCandidate(
            id="x",
            owner="a",
            source="s",
            kind="k",
            text="t",
            observed_at=datetime(2026, 1, 1),  # noqa: DTZ001
        )
    with pytest.raises(ConfigurationError, match="score"):
        found("x", score=float("nan"))
    with pytest.raises(ConfigurationError, match="source_share"):
        choose([], owner="ada", budget_tokens=5, source_share=0)


def given(order: list[ContextCandidate], _context: CallbackContext) -> list[ContextCandidate]:
    """Returns the candidates, in an order."""
    return order


class Reader(BaseLlm):
    """Keeps what it is sent."""

    model: str = "reader"
    heard: list[list[types.Content]] = []  # noqa: RUF012  # pydantic copies it

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Answers shortly."""
        del stream
        self.heard.append(list(llm_request.contents))
        yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text="Short.")]))


async def test_the_short_version_as_i_like_it() -> None:
    """The scenario: the newest wish is in the input, nobody else's is, and it is always the same.

    Three months ago detail, yesterday conclusions first; a search result of theirs, a document of
    somebody else's, and a conclusion that arrives late.
    """
    known = [
        found("detail", "Likes detail.", days=90, key="length", is_explicit=True),
        found("conclusions", "Conclusions first.", days=1, key="length", is_explicit=True),
        found("late", "Likes detail after all.", days=40, key="length", source="inference"),
        found("result", "Report: " + "figures " * 400, source="search", kind="result", score=5),
        found("bobs", "Bob's salary", owner="bob", source="search", kind="document", score=9),
    ]
    digests = []
    for order in (known, known[::-1]):
        reports: list[RequestReport] = []
        reader = Reader(heard=[])
        history = History(
            4_000,
            candidates=partial(given, order),
            on_report=into(reports),
        )
        agent = LlmAgent(name="agent", model=reader, instruction="Answer.")
        app = App(name="app", root_agent=agent, plugins=[MemoryPlugin(history=history)])
        async with DurableSessionService.from_url("") as sessions:
            await sessions.create_session(app_name="app", user_id="ada", session_id="s")
            async with Runner(app=app, session_service=sessions) as runner:
                question = types.UserContent("The short version please, as I like it")
                async for _ in runner.run_async(
                    user_id="ada", session_id="s", new_message=question
                ):
                    pass
        (sent,) = reader.heard
        assert faults(sent) == []
        text = (sent[0].parts or [])[0].text or ""
        assert "Conclusions first." in text
        assert "detail" not in text
        assert "Bob" not in text
        assert sent[-1] == question
        assert dict(reports[0].candidates) == {
            "conclusions": "chosen",
            "detail": "superseded",
            "late": "superseded",
            "result": "no room",
            "bobs": "other owner",
        }
        assert reports[0].prompt_tokens + reports[0].fixed.output_reserve <= 4_000
        digests.append(reports[0].digest)
    assert digests[0] == digests[1]
