"""How many tokens a part of a request has, estimated from what is sent.

The estimate needs no tokenizer and a pass or two over the UTF-8 bytes, which tell the kinds of
characters apart: a word's Latin letters are a quarter of a token each, digits one each (models read
them one by one), a Chinese or Japanese character one. `benchmarks/token_estimates.py` measures how
far off that is. `calibration` corrects it by what the model reported.
"""

from __future__ import annotations

import json
from string import ascii_letters
from typing import TYPE_CHECKING, Any, Final

from adk_memory_ext.media_references import media_reference

if TYPE_CHECKING:
    from google.genai import types

_CONTINUATION: Final = bytes(range(0x80, 0xC0))
"""Bytes of a character in UTF-8 behind its first one."""
_PUNCTUATION: Final = bytes(
    set(range(0x21, 0x7F)) - set(b"0123456789") - set(ascii_letters.encode())
)
_KINDS: Final = (
    (ascii_letters.encode() + bytes(range(0x21)), 0.25),  # and spaces
    (bytes(range(0xE3, 0xEA)), 1.0),  # kana, Chinese characters
    (bytes(range(0xEA, 0xF0)), 0.65),  # Hangul
    (bytes(range(0xC4, 0xE0)), 0.4),  # Greek, Cyrillic, Hebrew, Arabic
    (bytes(range(0xE0, 0xE3)), 0.55),  # scripts of India and South-East Asia, symbols
    (_PUNCTUATION, 0.6),
    (b"0123456789", 1.0),
    (b"\xc2\xc3", 0.5),  # accented Latin letters
    (bytes(range(0xF0, 0xF8)), 2.0),  # emoji, rare Chinese characters
)
"""The first bytes of characters of a kind, and the tokens of such a character."""
_CONTENT_FRAME: Final = 4
"""Tokens of a content's role and separators."""
_PART_FRAME: Final = 8
"""Tokens of a call's or an answer's frame: its id, its kind, braces."""
_IMAGE: Final = 258
"""Tokens of an image, or a tile of 768 x 768 pixels, or a page of a document (ai.google.dev)."""
_TILE_BYTES: Final = 150_000
_PAGE_BYTES: Final = 50_000
_SOUND_BYTES: Final = 500
"""Bytes of compressed sound in a token: 32 tokens a second at 128 kbit/s."""
_VIDEO_BYTES: Final = 1_000
_LARGEST_MEDIUM: Final = 258 * 64
_FILE: Final = 258 * 4
"""What a file that is only named is taken for."""


def text_tokens(text: str) -> int:
    """Returns the estimated tokens of a text; 0 for an empty one."""
    if not text:
        return 0
    left = text.encode("utf-8", "surrogatepass")
    if len(left) != len(text):
        left = left.translate(None, _CONTINUATION)
    tokens = 0.0
    for kind, weight in _KINDS:
        rest = left.translate(None, kind)
        tokens += (len(left) - len(rest)) * weight
        if not rest:
            break
        left = rest
    return max(1, round(tokens))


def json_text(value: Any) -> str:
    """Returns a value as it goes over the wire, or nearly: what no JSON can say is spelled out."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)


def content_tokens(content: types.Content) -> int:
    """Returns the estimated tokens of a content, its frame included."""
    return _CONTENT_FRAME + sum(map(part_tokens, content.parts or ()))


def part_tokens(part: types.Part) -> int:
    """Returns the estimated tokens of a part."""
    tokens = text_tokens(part.text) if part.text else 0
    for call in (part.function_call, part.tool_call):
        if call is not None:
            name = getattr(call, "name", None) or ""
            tokens += _PART_FRAME + text_tokens(name) + text_tokens(json_text(call.args or {}))
    for answer in (part.function_response, part.tool_response):
        if answer is not None:
            tokens += _answer_tokens(answer)
    if part.executable_code is not None:
        tokens += _PART_FRAME + text_tokens(part.executable_code.code or "")
    if part.code_execution_result is not None:
        tokens += _PART_FRAME + text_tokens(part.code_execution_result.output or "")
    if part.inline_data is not None:
        tokens += _blob_tokens(part.inline_data)
    tokens += _file_tokens(part.file_data)
    return tokens + len(part.thought_signature or b"") // 3


def _answer_tokens(answer: Any) -> int:
    tokens = _PART_FRAME + text_tokens(getattr(answer, "name", None) or "")
    tokens += text_tokens(json_text(answer.response or {}))
    for inner in getattr(answer, "parts", None) or ():
        tokens += _blob_tokens(inner.inline_data) if inner.inline_data else 0
        tokens += _file_tokens(inner.file_data)
    return tokens


def _file_tokens(file_data: Any) -> int:
    if file_data is None:
        return 0
    reference = media_reference(file_data)
    return _FILE if reference is None else _medium_tokens(file_data.mime_type, reference.size)


def _blob_tokens(blob: Any) -> int:
    return _medium_tokens(blob.mime_type, len(blob.data or b""))


def _medium_tokens(mime_type: str | None, size: int) -> int:
    """Returns the estimated tokens of a medium, from its kind and its bytes."""
    kind = (mime_type or "").partition("/")[0]
    if kind == "text":
        return max(1, size // 3)
    per_token = {"audio": _SOUND_BYTES, "video": _VIDEO_BYTES}.get(kind)
    if per_token is not None:
        return min(_LARGEST_MEDIUM, max(_IMAGE, size // per_token))
    piece = _TILE_BYTES if kind == "image" else _PAGE_BYTES
    return min(_LARGEST_MEDIUM, _IMAGE * (1 + size // piece))
