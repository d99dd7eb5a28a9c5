"""The tool that checks quotes against the résumé in session state."""

import dataclasses
import difflib
import re
import unicodedata
from typing import Any, Literal

from google.adk.tools.tool_context import ToolContext

from .intake import RESUME_KEY

NEAR = 0.8
"""Similarity (difflib's ratio, 0 to 1) from which a passage counts as near."""

_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_SPACE_AT_CJK = re.compile(rf"(?<=[{_CJK}，。；：、])\s+|\s+(?=[{_CJK}，。；：、])")
_TOKEN = re.compile(rf"[{_CJK}]|[^\W{_CJK}]+|[^\w\s]")
_TYPOGRAPHIC = str.maketrans("‘’“”‐‑–—", "''\"\"----")


@dataclasses.dataclass(frozen=True)
class Judgement:
    """What became of one quote."""

    quote: str
    verdict: Literal["exact", "near", "absent"]
    found: str
    """The passage of the résumé as it stands there; empty when absent."""


# The docstring of a tool is a prompt that the model reads, and the model gives no tool_context.
def verify_evidence(  # noqa: D417
    quotes: list[str], tool_context: ToolContext
) -> dict[str, Any]:
    """Checks quotes against the person's résumé. Send all quotes in one call.

    Args:
      quotes: Passages quoted from the résumé, word for word.

    Returns:
      results: for each quote a verdict (exact, near or absent) and the passage that was
      found. A near quote must be corrected to what was found; an absent one must not be
      used. error: why nothing could be checked.
    """
    resume = tool_context.state.get(RESUME_KEY)
    if not resume:
        return {
            "error": "There is no résumé in this conversation. Ask the person to paste it under"
            " a line 'Résumé:'."
        }
    judgements = [judge(quote, resume) for quote in quotes]
    return {"results": [dataclasses.asdict(judgement) for judgement in judgements]}


def judge(quote: str, resume: str) -> Judgement:
    """Returns whether `quote` stands in `resume`: exactly, nearly or not at all.

    Exact means equal but for width, case, typographic quotes and dashes, and white space; a
    quote that ends inside a word ("Java" of "JavaScript") is not exact.
    """
    wanted = plain(quote)
    if not wanted:
        return Judgement(quote, "absent", "")
    passages = _passages(resume, len(_TOKEN.findall(quote)))
    plain_passages = {plain(passage): passage for passage in reversed(passages)}
    if _stands_in(wanted, plain(resume)):
        return Judgement(quote, "exact", plain_passages.get(wanted, quote))
    close = difflib.get_close_matches(wanted, plain_passages, n=1, cutoff=NEAR)
    if close:
        return Judgement(quote, "near", plain_passages[close[0]])
    return Judgement(quote, "absent", "")


def plain(text: str) -> str:
    """Returns `text` with width, case, typography and white space made equal."""
    text = unicodedata.normalize("NFKC", text).translate(_TYPOGRAPHIC).casefold()
    return _SPACE_AT_CJK.sub("", " ".join(text.split()))


def _stands_in(wanted: str, text: str) -> bool:
    """Returns whether `wanted` stands in `text` without cutting a Latin word or a number."""
    before = r"(?<![a-z0-9])" if wanted[0].isascii() and wanted[0].isalnum() else ""
    after = r"(?![a-z0-9])" if wanted[-1].isascii() and wanted[-1].isalnum() else ""
    return re.search(before + re.escape(wanted) + after, text) is not None


def _passages(text: str, length: int) -> list[str]:
    """Returns every run of about `length` words (or CJK characters) of `text`, as it stands there.

    The runs are one word shorter, as long, and one word longer: a quote may have lost or gained
    a word.
    """
    spans = [match.span() for match in _TOKEN.finditer(text)]
    return [
        text[spans[first][0] : spans[first + count - 1][1]]
        for count in (length, length + 1, length - 1)
        if count > 0
        for first in range(len(spans) - count + 1)
    ]
