"""A stand-in for the Gemini REST API on loopback, for the real `google-genai` client.

`GeminiStub` serves `generateContent`, `streamGenerateContent?alt=sse` and `countTokens`, keeps the
bytes of every request, and refuses with Gemini's own 400 what Gemini refuses (`rejection`). What it
answers is decided by a function that gets the request's JSON and returns the parts of the answer,
so a test can only rely on what went over the wire:

    with GeminiStub(lambda body: [{"text": f"{len(body['contents'])} contents"}]) as gemini:
        environment |= gemini.environment
        ...
        assert "Answer briefly." in gemini.requests[0].system_text

A function call gets a `thoughtSignature`, as from a thinking model: opaque bytes that the client
has to send back unchanged.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
import traceback
from collections import Counter
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

Json: TypeAlias = dict[str, Any]
Answer: TypeAlias = "Callable[[Json], list[Json]]"
"""Makes the parts of the model's answer from the JSON of a request."""

_Response: TypeAlias = tuple[HTTPStatus, str, bytes]
"""Status, content type and body."""

_PATH: Final = re.compile(
    r"/v1beta/models/([^/:]+):(generateContent|streamGenerateContent|countTokens)(\?|$)"
)
_SPACE: Final = re.compile(r"[ \t\r\n]*")
_CHUNK_CHARACTERS: Final = 40
"""How much text one chunk of a stream holds."""
_BYTES_PER_TOKEN: Final = 4
"""For the token counts in the answers; Gemini counts otherwise."""


@dataclass(frozen=True)
class RecordedRequest:
    """A request as it came in."""

    model: str
    method: str
    """`generateContent`, `streamGenerateContent` or `countTokens`."""
    body: bytes
    rejection: str | None
    """Why it was refused; None if it was answered."""

    @property
    def json(self) -> Json:
        """The body, parsed."""
        parsed: Json = json.loads(self.body)
        return parsed

    @property
    def contents(self) -> list[bytes]:
        """Each content of the conversation, as the very bytes that were sent."""
        document = self.body.decode()
        members = dict(_members(document))
        return [element.encode() for element in _elements(members["contents"])]

    @property
    def system_text(self) -> str:
        """The text of the system instruction."""
        return "".join(part["text"] for part in self.json["systemInstruction"]["parts"])


class GeminiStub:
    """The API on a loopback port, from entering to leaving it.

    Args:
        answer: Makes the parts of an answer; it runs in the server's threads.
    """

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, name="gemini-stub")
        self.requests: list[RecordedRequest] = []
        self.counted: list[RecordedRequest] = []
        """Those of `countTokens`."""
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables that send `google-genai` here."""
        return {"GOOGLE_API_KEY": "key-of-the-stub", "GOOGLE_GEMINI_BASE_URL": self.url}

    def __enter__(self) -> Self:
        """Starts to serve."""
        self._thread.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stops to serve; no thread is left."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        stub = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:  # the name is http.server's
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status, kind, answer = stub._respond(
                    self.path, self.headers.get("x-goog-api-key"), body
                )
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_arguments: object) -> None:
                """Says nothing; the requests are recorded."""

        return Handler

    def _respond(self, path: str, key: str | None, body: bytes) -> _Response:
        """Records a request and returns the response to it."""
        match = _PATH.match(path)
        if match is None:
            return _error(HTTPStatus.NOT_FOUND, f"{path} is not served", "NOT_FOUND")
        if not key:
            return _error(HTTPStatus.FORBIDDEN, "the API key is missing", "PERMISSION_DENIED")
        model, method, _ = match.groups()
        parsed: Json = json.loads(body)
        if method == "countTokens":
            self.counted.append(RecordedRequest(model, method, body, None))
            counted = json.dumps({"totalTokens": len(body) // _BYTES_PER_TOKEN})
            return HTTPStatus.OK, "application/json", counted.encode()
        refused = rejection(parsed)
        self.requests.append(RecordedRequest(model, method, body, refused))
        if refused:
            return _error(HTTPStatus.BAD_REQUEST, refused, "INVALID_ARGUMENT")
        return self._generated(model, method, body)

    def _generated(self, model: str, method: str, body: bytes) -> _Response:
        """Returns the answer to a request, in one piece or as a stream."""
        try:
            parts = [_signed(part) for part in self._answer(json.loads(body))]
        except Exception:  # noqa: BLE001  # the test sees it as the client's error
            return _error(HTTPStatus.INTERNAL_SERVER_ERROR, traceback.format_exc(), "INTERNAL")
        tokens = len(body) // _BYTES_PER_TOKEN
        if method == "generateContent":
            response = json.dumps(_response(model, parts, tokens, finished=True))
            return HTTPStatus.OK, "application/json", response.encode()
        chunks = _chunks(parts)
        stream = [
            _response(model, [chunk], tokens, finished=number == len(chunks))
            for number, chunk in enumerate(chunks, start=1)
        ]
        lines = "".join(f"data: {json.dumps(response)}\r\n\r\n" for response in stream)
        return HTTPStatus.OK, "text/event-stream", lines.encode()


def rejection(request: Json) -> str | None:
    """Returns why Gemini refuses the contents of a request, in its words; None if it does not.

    Collected from reports about the public API, such as google-gemini/gemini-cli#7410 and #11814,
    langchain-ai/langchain#27799, songquanpeng/one-api#836 and #1385. Two user turns in a row are
    fine. Gemini only counts the answers of a turn; here they must bear the names of the calls.
    """
    contents: list[Json] = request.get("contents") or []
    if not contents:
        return "* GenerateContentRequest.contents: contents is not specified"
    for index, content in enumerate(contents):
        if content.get("role") not in ("user", "model"):
            return "Please use a valid role: user, model."
        if not content.get("parts"):
            return f"* GenerateContentRequest.contents[{index}].parts: must not be empty."
    for before, content in zip([None, *contents], contents, strict=False):
        if refused := _rejected_pair(before, content):
            return refused
    if contents[-1]["role"] == "model":
        return "Please ensure that multiturn requests ends with a user role or a function response."
    return None


def _rejected_pair(before: Json | None, content: Json) -> str | None:
    """Returns why `content` may not follow on `before`, which is None at the very beginning."""
    asked = _names(before, "functionCall") if before else Counter[str]()
    answered = _names(content, "functionResponse")
    if answered and not asked:
        return (
            "Please ensure that function response turn comes immediately after a function call"
            " turn."
        )
    if answered != asked:
        return (
            "Please ensure that the number of function response parts is equal to the number of"
            " function call parts of the function call turn."
        )
    if _names(content, "functionCall") and (before is None or before["role"] == "model"):
        return (
            "Please ensure that function call turn comes immediately after a user turn or after a"
            " function response turn."
        )
    return None


def _names(content: Json, kind: str) -> Counter[str]:
    return Counter(part[kind]["name"] for part in content["parts"] if kind in part)


def _signed(part: Json) -> Json:
    """Returns the part, a function call with a signature that depends on what it says."""
    if "functionCall" not in part:
        return part
    digest = hashlib.sha256(json.dumps(part, sort_keys=True).encode()).digest()
    return {**part, "thoughtSignature": base64.b64encode(digest).decode()}


def _chunks(parts: list[Json]) -> list[Json]:
    """Returns the parts of a stream, long texts cut into pieces."""
    chunks: list[Json] = []
    for part in parts:
        if set(part) == {"text"}:
            said: str = part["text"]
            starts = range(0, len(said), _CHUNK_CHARACTERS)
            chunks += [{"text": said[start : start + _CHUNK_CHARACTERS]} for start in starts]
        else:
            chunks.append(part)
    return chunks


def _response(model: str, parts: list[Json], prompt_tokens: int, *, finished: bool) -> Json:
    candidate: Json = {"content": {"parts": parts, "role": "model"}, "index": 0}
    if finished:
        candidate["finishReason"] = "STOP"
    answer_tokens = len(json.dumps(parts)) // _BYTES_PER_TOKEN
    usage = {
        "promptTokenCount": prompt_tokens,
        "candidatesTokenCount": answer_tokens,
        "totalTokenCount": prompt_tokens + answer_tokens,
    }
    return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": model}


def _error(status: HTTPStatus, message: str, name: str) -> _Response:
    error = {"error": {"code": status.value, "message": message, "status": name}}
    return status, "application/json", json.dumps(error).encode()


def _members(document: str) -> Iterator[tuple[str, str]]:
    """Yields each key of a JSON object with its value as it is written."""
    decode = json.JSONDecoder().raw_decode
    at = _after_space(document, document.index("{") + 1)
    while document[at] != "}":
        key, at = decode(document, at)
        start = _after_space(document, document.index(":", at) + 1)
        _, end = decode(document, start)
        yield key, document[start:end]
        at = _after_comma(document, end)


def _elements(document: str) -> Iterator[str]:
    """Yields each element of a JSON array as it is written."""
    decode = json.JSONDecoder().raw_decode
    at = _after_space(document, document.index("[") + 1)
    while document[at] != "]":
        _, end = decode(document, at)
        yield document[at:end]
        at = _after_comma(document, end)


def _after_space(document: str, at: int) -> int:
    match = _SPACE.match(document, at)
    return match.end() if match else at


def _after_comma(document: str, at: int) -> int:
    at = _after_space(document, at)
    return _after_space(document, at + 1) if document[at] == "," else at
