"""The stub refuses what Gemini refuses, and the real client can tell."""

from __future__ import annotations

from typing import Any

import pytest
from google.genai import Client, errors, types

from gemini_stub import GeminiStub, rejection

MODEL = "gemini-2.5-flash"


def user(*parts: dict[str, Any]) -> dict[str, Any]:
    """Returns a turn of the person, or of the tools."""
    return {"role": "user", "parts": list(parts)}


def model(*parts: dict[str, Any]) -> dict[str, Any]:
    """Returns a turn of the model."""
    return {"role": "model", "parts": list(parts)}


HELLO = {"text": "Hello"}
CALL = {"functionCall": {"name": "look", "args": {}}}
OTHER_CALL = {"functionCall": {"name": "hear", "args": {}}}
ANSWER = {"functionResponse": {"name": "look", "response": {}}}
OTHER_ANSWER = {"functionResponse": {"name": "hear", "response": {}}}

AFTER_CALL = "function response turn comes immediately after a function call turn"
COUNT = "number of function response parts is equal to the number of function call parts"
AFTER_USER = "function call turn comes immediately after a user turn"
END = "ends with a user role or a function response"


@pytest.mark.parametrize(
    "contents",
    [
        [user(HELLO)],
        [user(HELLO), user(HELLO)],
        [user(HELLO), model(HELLO), user(HELLO)],
        [user(HELLO), model(CALL), user(ANSWER)],
        [user(HELLO), model(HELLO, CALL, OTHER_CALL), user(OTHER_ANSWER, ANSWER)],
        [user(HELLO), model(CALL), user(ANSWER), model(CALL), user(ANSWER)],
    ],
)
def test_valid_history_is_accepted(contents: list[dict[str, Any]]) -> None:
    """A conversation in which every call has its answer in the next turn is fine."""
    assert rejection({"contents": contents}) is None


@pytest.mark.parametrize(
    ("contents", "reason"),
    [
        ([], "contents is not specified"),
        ([{"role": "system", "parts": [HELLO]}], "valid role: user, model"),
        ([user()], "contents[0].parts"),
        ([user(HELLO), model(HELLO)], END),
        ([user(ANSWER)], AFTER_CALL),
        ([user(HELLO), user(ANSWER)], AFTER_CALL),
        ([user(HELLO), model(CALL), user(HELLO)], COUNT),
        ([user(HELLO), model(CALL), user(OTHER_ANSWER)], COUNT),
        ([user(HELLO), model(CALL, OTHER_CALL), user(ANSWER)], COUNT),
        ([user(HELLO), model(CALL), user(HELLO), user(ANSWER)], COUNT),
        ([model(CALL), user(ANSWER)], AFTER_USER),
        ([user(HELLO), model(HELLO), model(CALL), user(ANSWER)], AFTER_USER),
    ],
)
def test_invalid_history_is_refused(contents: list[dict[str, Any]], reason: str) -> None:
    """Each way to break a history is named in Gemini's words."""
    assert reason in (rejection({"contents": contents}) or "")


def test_client_gets_answers_streams_and_refusals() -> None:
    """The real client reads an answer, a stream of the same words, and an error 400."""
    words = "Two of your three requirements are shown. " * 3
    with GeminiStub(lambda body: [{"text": words * len(body["contents"])}]) as gemini:
        options = types.HttpOptions(base_url=gemini.url)
        with Client(api_key="key", http_options=options) as client:
            assert client.models.generate_content(model=MODEL, contents="Hi").text == words
            stream = client.models.generate_content_stream(model=MODEL, contents="Hi")
            chunks = [chunk.text or "" for chunk in stream]
            with pytest.raises(errors.ClientError, match=END):
                client.models.generate_content(
                    model=MODEL, contents=types.ModelContent("I speak last.")
                )
    assert len(chunks) > 1
    assert "".join(chunks) == words
    assert [bool(request.rejection) for request in gemini.requests] == [False, False, True]
    assert gemini.requests[0].contents == [b'{"parts": [{"text": "Hi"}], "role": "user"}']
