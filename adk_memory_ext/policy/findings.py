"""What of a stored state breaks a policy, and a policy as rows for people."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from adk_memory_ext.policy.enforcement import enforce
from adk_memory_ext.policy.key_check import SCOPES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import timedelta

    from adk_memory_ext.policy.rules import StatePolicy, StateRule

COLUMNS = ("key", "scope", "type", "sensitivity", "at most", "kept for", "if missing")
"""What a person reads of a rule."""

_LONGEST_DEFAULT = 40
_LIVES = {"session": "the session", "user": "the user", "app": "the app", "temp": "one turn"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing in a database that breaks a policy."""

    key: str
    """With its prefix; a scope's name where it is about the whole scope."""
    reason: str
    """What is wrong; never the value."""
    places: int
    """In how many sessions, users or apps."""
    example: str
    """The ids of the first of them."""


def findings(policy: StatePolicy, states: Iterable[tuple[str, Mapping[str, Any]]]) -> list[Finding]:
    """Returns what breaks a policy in stored states, with prefixes, most frequent first.

    Args:
        policy: The policy.
        states: Each owner's ids and its state.
    """
    found: dict[tuple[str, str], list[str]] = {}
    for owner, state in states:
        for refusal in enforce(policy, state).refused:
            found.setdefault((refusal.key, refusal.reason), []).append(owner)
    rows = [Finding(key, reason, len(owners), owners[0]) for (key, reason), owners in found.items()]
    return sorted(rows, key=lambda row: (-row.places, row.key, row.reason))


def rows_of(policy: StatePolicy) -> list[tuple[str, ...]]:
    """Returns a row for each rule, in the order of the scopes, with the columns `COLUMNS`."""
    rules = sorted(policy.rules, key=lambda rule: (SCOPES.index(rule.scope), rule.key))
    return [_row(rule) for rule in rules]


def sentences_of(policy: StatePolicy) -> list[str]:
    """Returns what a policy says besides its rules."""
    refused = [scope for scope in SCOPES if scope not in policy.scopes]
    undeclared = {
        "allow": "Keys without a rule may be written.",
        "warn": "Keys without a rule may be written; each is reported once in the log.",
        "reject": "Keys without a rule are refused.",
    }
    said = [
        f"Nobody may write to: {', '.join(refused)}." if refused else "Every scope may be written.",
        undeclared[policy.undeclared],
    ]
    for scope, limit in policy.max_scope_bytes.items():
        said.append(f"The scope {scope} holds at most {limit:,} bytes.")
    if policy.max_session_bytes is not None:
        said.append(f"A session sees at most {policy.max_session_bytes:,} bytes.")
    hidden = [
        name.replace("_", " ")
        for name in ("one_time_codes", "bearer_tokens", "private_keys", "emails", "phones", "cards")
        if getattr(policy.redaction, name)
    ]
    said.append(f"Blacked out before storage: {', '.join(hidden) or 'nothing by its form'}.")
    if policy.on_refused == "drop":
        said.append("A refused key is left out and listed in its event; the rest is stored.")
    return said


def _row(rule: StateRule) -> tuple[str, ...]:
    size = "any size" if rule.max_bytes is None else f"{rule.max_bytes:,} bytes"
    life = _LIVES[rule.scope] if rule.ttl is None else _duration(rule.ttl)
    missing = "nothing" if not rule.has_default else _short(rule.default)
    return rule.key, rule.scope, rule.type_name, rule.sensitivity, size, life, missing


def _short(default: Any) -> str:
    """Returns a default, which is the team's own value and nobody's, on one line."""
    text = " ".join(repr(default).split())
    return text if len(text) <= _LONGEST_DEFAULT else text[:_LONGEST_DEFAULT] + "…"


def _duration(ttl: timedelta) -> str:
    days, rest = divmod(ttl.total_seconds(), 86_400)
    if not rest:
        return f"{days:,.0f} day{'s' if days != 1 else ''}"
    return f"{ttl.total_seconds():,.0f} seconds"
