"""The small catalogue of topics and learning resources, and the tool that looks them up."""

import re
import unicodedata
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict

Level: TypeAlias = Literal["basics", "practice", "project"]

LEVELS: tuple[Level, ...] = ("basics", "practice", "project")
"""The levels of a topic in the order in which they are taught; basics teach from zero."""


class Resource(BaseModel):
    """One thing to study at one level of a topic."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    level: Level
    hours: float
    title: dict[str, str]
    """Title by language, `en` and `zh-TW`."""
    url: str


class Topic(BaseModel):
    """Something that a job asks for and a person can learn, with one resource a level."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    title: dict[str, str]
    """Title by language, `en` and `zh-TW`."""
    aliases: tuple[str, ...]
    """Words that stand for the topic in a text, lower case."""
    prerequisites: tuple[str, ...]
    """Ids of the topics that come before this one."""
    resources: tuple[Resource, ...]


class _Catalogue(BaseModel):
    topics: tuple[Topic, ...]


@cache
def all_topics() -> dict[str, Topic]:
    """Returns every topic by its id, in the order of the file."""
    text = files(__package__).joinpath("catalogue.json").read_text(encoding="utf-8")
    return {topic.id: topic for topic in _Catalogue.model_validate_json(text).topics}


@cache
def _alias_pattern() -> re.Pattern[str]:
    """Returns one pattern for all aliases, the longest first, Latin words only as whole words."""
    aliases = sorted({a for t in all_topics().values() for a in (t.id, *t.aliases)}, key=len)
    return re.compile("|".join(_whole_word(alias) for alias in reversed(aliases)))


def _whole_word(alias: str) -> str:
    escaped = re.escape(alias)
    if not alias.isascii():
        return escaped
    # "SQL" stands in "會SQL" and in "(SQL)", but not in "NoSQL"; \b would see no edge in the first.
    return rf"(?<![a-z0-9_+#]){escaped}(?![a-z0-9_+#])"


@cache
def _topic_of_alias() -> dict[str, str]:
    return {alias: t.id for t in all_topics().values() for alias in (t.id, *t.aliases)}


def mentions(text: str) -> list[tuple[int, int, str]]:
    """Returns (start, end, topic id) of each topic named in `text`, in the order of the text.

    The positions are those in `folded(text)`.
    """
    found = _alias_pattern().finditer(folded(text))
    return [(m.start(), m.end(), _topic_of_alias()[m.group()]) for m in found]


def topics_in(text: str) -> list[str]:
    """Returns the ids of the topics named in `text`, each once, in the order of the text."""
    return list(dict.fromkeys(topic for _, _, topic in mentions(text)))


def folded(text: str) -> str:
    """Returns `text` with full-width letters, ligatures and case made equal."""
    return unicodedata.normalize("NFKC", text).casefold()


def with_prerequisites(ids: Iterable[str]) -> list[str]:
    """Returns `ids` and all that must come before them, each after its prerequisites."""
    ordered: list[str] = []

    def add(topic: str) -> None:
        if topic in ordered:
            return
        for earlier in all_topics()[topic].prerequisites:
            add(earlier)
        ordered.append(topic)

    for topic in ids:
        add(topic)
    return ordered


# The docstring of a tool is a prompt that the model reads.
def lookup_resources(topics: list[str]) -> dict[str, Any]:
    """Looks up learning resources, hours and prerequisites of topics in the catalogue.

    Ask for all topics in one call. Plan only with topics of this answer; tell the person
    which topics are unknown.

    Args:
      topics: Names of topics, such as "SQL" or "Docker".

    Returns:
      known: each topic with its id, titles, prerequisites, and one resource and its hours
      for each level (basics, practice, project); prerequisites that were not asked for have
      asked_for = false. unknown: the names that are not in the catalogue.
    """
    asked: list[str] = []
    unknown: list[str] = []
    for name in topics:
        matches = topics_in(name)
        asked.extend(matches)
        if not matches:
            unknown.append(name)
    known = [_entry(topic, asked_for=topic in asked) for topic in with_prerequisites(asked)]
    return {"known": known, "unknown": unknown}


def _entry(topic_id: str, *, asked_for: bool) -> dict[str, Any]:
    topic = all_topics()[topic_id]
    return {
        "topic": topic.id,
        "title": topic.title,
        "asked_for": asked_for,
        "prerequisites": list(topic.prerequisites),
        "resources": [resource.model_dump(mode="json") for resource in topic.resources],
    }
