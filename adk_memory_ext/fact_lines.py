"""A fact as one line of JSON that a model reads and no value can break out of."""

from __future__ import annotations

import json
import re
import unicodedata
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from adk_memory_ext.facts import USER

if TYPE_CHECKING:
    from adk_memory_ext.facts import Fact

_PLAIN: Final = re.compile(r"[ !#-%'-;=?-\[\]-_a-z|~]*")
"""What stands in JSON as it is, and is no part of a fence."""
_ESCAPED: Final = {ord(char): f"\\u{ord(char):04x}" for char in "<>&`{}\x7f"}
"""What could end a fence or begin a template, and what JSON leaves of control characters."""
_BREAKING: Final = frozenset('<>&`{}"\\')
"""What another form of a character must not become, however Unicode is normalised."""
_HIDDEN: Final = frozenset({"Cc", "Cf", "Cn", "Co", "Zl", "Zp"})
"""Categories of characters that steer how a text is shown, and are not seen themselves."""
_BLANK: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0"
    "\U000e0100-\U000e01ef]"
)
"""Characters of other categories that are not seen: fillers and selectors of variants."""
_TEXT: Final = json.JSONEncoder(ensure_ascii=False)


def line(fact: Fact) -> str:
    """Returns a fact as one line of JSON that holds no character of a fence."""
    described: dict[str, Any] = {}
    if fact.subject != USER:
        described["about"] = fact.subject
    described["key"] = fact.key
    if fact.is_conflict:
        described["contradicting_values"] = [claim.value for claim in fact.claims]
    else:
        described["value"] = fact.value
    described |= {"kind": fact.kind, "status": fact.status}
    if fact.status == "inferred":
        described["confidence"] = fact.confidence
    return "{" + ", ".join(f'"{key}": {_json(value)}' for key, value in described.items()) + "}"


def _json(value: Any) -> str:
    if isinstance(value, dict):
        items = (f"{_text(key)}: {_json(item)}" for key, item in sorted(value.items()))
        return "{" + ", ".join(items) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_json(item) for item in value) + "]"
    return _text(value) if isinstance(value, str) else json.dumps(value)


def _text(text: str) -> str:
    if _PLAIN.fullmatch(text):
        return f'"{text}"'
    quoted = _TEXT.encode(text).translate(_ESCAPED)
    return quoted if quoted.isascii() else "".join(map(_visible, quoted))


@lru_cache(maxsize=4_096)
def _visible(char: str) -> str:
    """Returns a character, or its escape if it is not seen or could become one of a fence."""
    if char.isascii():
        return char
    is_breaking = not _BREAKING.isdisjoint(unicodedata.normalize("NFKD", char))
    if is_breaking or unicodedata.category(char) in _HIDDEN or _BLANK.match(char):
        return json.dumps(char)[1:-1]
    return char
