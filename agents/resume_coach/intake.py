"""Résumé and job advertisement taken from a pasted message into session state."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from google.adk.agents.callback_context import CallbackContext

RESUME_KEY = "resume_text"
JOB_AD_KEY = "job_ad"

_HEADINGS = {
    "resume": "resume",
    "my resume": "resume",
    "cv": "resume",
    "curriculum vitae": "resume",
    "履歷": "resume",
    "履歷表": "resume",
    "我的履歷": "resume",
    "job advertisement": "job_ad",
    "job ad": "job_ad",
    "job description": "job_ad",
    "job posting": "job_ad",
    "職缺": "job_ad",
    "職缺說明": "job_ad",
    "徵才廣告": "job_ad",
    "question": "own_words",
    "my question": "own_words",
    "問題": "own_words",
    "我的問題": "own_words",
}
_HEADING_LINE = re.compile(r"^[#*\s]*(?P<name>[^:：]{1,24}?)[*\s]*[:：][*\s]*(?P<rest>.*)$")


@dataclass(frozen=True)
class Pasted:
    """A person's message, taken apart at its heading lines."""

    own_words: str
    """What stands before the first heading or under "Question:"."""
    resume: str
    """The text under "Résumé:", empty without one."""
    job_ad: str
    """The text under "Job advertisement:", empty without one."""


def take_apart(message: str) -> Pasted:
    """Returns the résumé, the job advertisement and the person's own words of a message.

    A heading is a line of its own, in English or Chinese, such as "Résumé:" or "職缺：". What
    follows belongs to it up to the next heading. The text itself is kept as it was written,
    without the blank lines around it; of two texts under equal headings the later one counts.
    """
    sections: dict[str, list[list[str]]] = {"own_words": [[]], "resume": [], "job_ad": []}
    lines = sections["own_words"][0]
    for line in message.splitlines():
        match = _HEADING_LINE.match(line)
        kind = _HEADINGS.get(_plain(match["name"])) if match else None
        if match and kind:
            lines = [match["rest"]]
            sections[kind].append(lines)
        else:
            lines.append(line)
    own_words = "\n".join("\n".join(part) for part in sections["own_words"])
    return Pasted(own_words.strip(), _last(sections["resume"]), _last(sections["job_ad"]))


def _last(parts: list[list[str]]) -> str:
    return "\n".join(parts[-1]).strip() if parts else ""


def _plain(heading: str) -> str:
    """Returns a heading without accents and case: "Résumé" and "RESUME" are one."""
    decomposed = unicodedata.normalize("NFKD", heading.strip().casefold())
    return "".join(char for char in decomposed if not unicodedata.combining(char))


def take_in_documents(callback_context: CallbackContext) -> None:
    """Stores a résumé and a job advertisement of the newest message in session state.

    `adk web` begins a conversation with empty state, so the message is the only way in. Both go
    to session scope, never to `user:`: a résumé belongs to this conversation and leaves with it.
    """
    content = callback_context.user_content
    parts = (content.parts if content else None) or []
    pasted = take_apart("\n".join(part.text for part in parts if part.text))
    if pasted.resume:
        callback_context.state[RESUME_KEY] = pasted.resume
    if pasted.job_ad:
        callback_context.state[JOB_AD_KEY] = pasted.job_ad
