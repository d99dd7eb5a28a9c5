"""Keys whose prefix is probably not what was meant.

ADK takes `User:x`, ` user:x` and `session:x` for keys of the session, and `app:user:x` for a key of
the app that every user sees. Other prefixes are left alone: ADK keeps state of its own under names
such as `<owner>:<key>`.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import Final

SCOPES: Final = ("session", "user", "app", "temp")
"""The scopes, in the order of the documentation."""

_PREFIXED: Final = ("app", "user", "temp")
_OTHER_NAMES: Final = {
    "apps": "app",
    "application": "app",
    "global": "app",
    "usr": "user",
    "users": "user",
    "tmp": "temp",
    "temporary": "temp",
    "state": "session",
    "sess": "session",
}
_SHORTEST_TYPO: Final = 4
"""Letters of a prefix that is compared with typos: `api:` is one letter from `app:` and no typo."""


@dataclass(frozen=True, slots=True)
class KeyFault:
    """What is wrong with a key."""

    reason: str
    """As it stands in an error, after the key."""
    meant: str | None
    """The key that was probably meant; None if there is no telling."""

    def __str__(self) -> str:
        if self.meant is None:
            return self.reason
        return f"{self.reason}; {self.meant!r} was probably meant"


def scope_of(key: str) -> str:
    """Returns the scope in which ADK stores a key."""
    prefix, colon, _ = key.partition(":")
    return prefix if colon and prefix in _PREFIXED else "session"


def is_adks_own(key: str) -> bool:
    """Whether ADK (2.13.0) keeps something of its own there: credentials, code execution."""
    return key.removeprefix("temp:").startswith(("_adk_", "adk_", "_code_execut"))


def key_fault(key: str) -> KeyFault | None:
    """Returns what is wrong with a key; None if nothing is."""
    prefix, colon, name = key.partition(":")
    exact = colon and prefix in _PREFIXED
    plain = _plain(key)
    if not plain or (exact and not _plain(name)):
        return KeyFault("has an empty name", None)
    inner = _scope_meant(name) if exact else None
    if inner is not None:
        return KeyFault(f"has a prefix inside {prefix}:", _joined(*inner))
    meant = (prefix, name) if exact else _scope_meant(key)
    if meant is None:
        return None if key == plain else KeyFault("has spaces or invisible marks around it", plain)
    if (probable := _joined(*meant)) == key:
        return None
    return KeyFault(
        "has spaces or invisible marks around its name"
        if exact
        else f"has a prefix that looks like {meant[0]}: and is none",
        probable,
    )


def _plain(text: str) -> str:
    """Returns a text in compatible characters, without what nobody sees at its ends or inside."""
    compatible = unicodedata.normalize("NFKC", text)
    return "".join(
        char for char in compatible if unicodedata.category(char) not in {"Cf", "Cc"}
    ).strip()


def _scope_meant(key: str) -> tuple[str, str] | None:
    """Returns the scope that a prefix resembles and the name behind it; None if it is another."""
    prefix, colon, name = _plain(key).partition(":")
    if not colon:
        return None
    word = prefix.strip().casefold()
    if word in SCOPES:
        return word, name
    if word in _OTHER_NAMES:
        return _OTHER_NAMES[word], name
    for scope in SCOPES:
        if len(scope) >= _SHORTEST_TYPO and _is_one_slip(word, scope):
            return scope, name
    return None


def _joined(scope: str, name: str) -> str | None:
    # `user:temp:x` inside `app:` is as wrong as the whole.
    while (inner := _scope_meant(name)) is not None:
        scope, name = inner
    name = _plain(name)
    if not name:
        return None
    return name if scope == "session" else f"{scope}:{name}"


def _is_one_slip(word: str, right: str) -> bool:
    """Whether two letters are swapped, or one is wrong, missing or too many."""
    if len(word) == len(right):
        wrong = [index for index, (a, b) in enumerate(zip(word, right, strict=True)) if a != b]
        if len(wrong) == 2 and wrong[1] == wrong[0] + 1:  # noqa: PLR2004  # a pair
            return word[wrong[0]] == right[wrong[1]] and word[wrong[1]] == right[wrong[0]]
        return len(wrong) == 1
    longer, shorter = sorted((word, right), key=len, reverse=True)
    return len(longer) == len(shorter) + 1 and any(
        longer[:index] + longer[index + 1 :] == shorter for index in range(len(longer))
    )
