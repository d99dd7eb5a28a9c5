"""What a profile fact may be, checked before a database sees it."""

from __future__ import annotations

import json
import math
import re
from dataclasses import fields, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, get_args

from adk_memory_ext.errors import ConfigurationError, FactRejectedError, StateRejectedError
from adk_memory_ext.facts import Kind, ProfileLimits, Sensitivity, Status
from adk_memory_ext.json_values import Normaliser, is_storable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from adk_memory_ext.facts import NewFact

LONGEST_KEY: Final = 64
_SLUG: Final = re.compile(r"[a-z0-9]+(?:[._-][a-z0-9]+)*")
_NEVER_KEPT: Final = frozenset(
    {"password", "passwd", "passcode", "passphrase", "otp", "token", "secret", "cvv", "cvc"}
)
"""A key with one of these words would hold what no profile may hold."""
_RESERVED: Final = frozenset({"app_name", "user_id", "session_id", "user", "app", "pin", "api-key"})
_CLOCKS_APART: Final = 300.0
"""Seconds by which another machine's clock may be ahead."""
_LONGEST_NAMES: Final = 32
"""Names in `visible_to` or `derived_from`."""
_LAST: Final = 253_402_300_799.0
"""The end of the year 9999, in UTC epoch seconds."""


def check_limits(limits: ProfileLimits) -> ProfileLimits:
    """Returns the limits.

    Raises:
        ConfigurationError: When one of them has no meaning.
    """
    for name in ("keys_per_user", "value_bytes", "text_characters"):
        number = getattr(limits, name)
        if not isinstance(number, int) or number < 1:
            raise ConfigurationError(f"{name} must be a whole number from 1 on, not {number!r}.")
    reserved: object = limits.reserved_keys
    if isinstance(reserved, str):
        raise ConfigurationError("reserved_keys is a set of keys, not a text.")
    return limits


def check_name(what: str, name: object) -> str:
    """Returns a key or a subject.

    Raises:
        FactRejectedError: When it is no slug of at most 64 characters.
    """
    if not isinstance(name, str):
        raise FactRejectedError(f"<{type(name).__name__}>", f"has a {what} that is no text")
    shown = name if len(name) <= LONGEST_KEY else name[:LONGEST_KEY] + "…"
    if len(name) > LONGEST_KEY or not _SLUG.fullmatch(name):
        raise FactRejectedError(
            shown.encode("utf-8", "replace").decode(),
            f"has a {what} that is no slug: lower-case letters and digits, joined by single"
            f" '-', '_' or '.', at most {LONGEST_KEY} characters",
        )
    return name


def checked_fact(fact: NewFact, limits: ProfileLimits, now: float) -> NewFact:
    """Returns the fact as it will be read back; `observed_at` stays None where none was given.

    Raises:
        FactRejectedError: When a field cannot be kept.
    """
    key = check_name("key", fact.key)
    check_name("subject", fact.subject)
    words = set(re.split(r"[._-]", key))
    if key in _RESERVED | limits.reserved_keys:
        raise FactRejectedError(key, "has a reserved key; choose another one")
    if words & _NEVER_KEPT:
        raise FactRejectedError(key, "would hold a secret, and a profile keeps none")
    for name, choices in (("kind", Kind), ("status", Status), ("sensitivity", Sensitivity)):
        if name == "sensitivity" and fact.sensitivity is None:
            continue
        if getattr(fact, name) not in get_args(choices):
            allowed = ", ".join(get_args(choices))
            raise FactRejectedError(key, f"has an unknown {name}; there are {allowed}")
    confidence = fact.confidence
    if not isinstance(confidence, int | float) or not 0 <= confidence <= 1:
        raise FactRejectedError(key, "has a confidence that is no number from 0 to 1")
    observed = now if fact.observed_at is None else _time(key, "observed_at", fact.observed_at)
    if observed > now + _CLOCKS_APART:
        raise FactRejectedError(key, "was observed in the future")
    expires = None if fact.expires_at is None else _time(key, "expires_at", fact.expires_at)
    if expires is not None and expires <= observed:
        raise FactRejectedError(key, "expires before it was observed")
    _check_provenance(fact)
    return replace(
        fact,
        value=_value(fact, limits),
        confidence=float(confidence),
        visible_to=(
            None if fact.visible_to is None else _names(key, "visible_to", fact.visible_to)
        ),
        derived_from=_keys(fact),
        observed_at=None if fact.observed_at is None else observed,
        expires_at=expires,
    )


def checked_recall(
    keys: Collection[str] | None,
    kinds: Collection[Kind] | None,
    subject: str | None,
    budget_tokens: int | None,
    on_unavailable: object,
) -> tuple[tuple[str, ...] | None, tuple[Kind, ...] | None]:
    """Returns the keys and the kinds that a recall asks for.

    Raises:
        FactRejectedError: When a key or the subject is no slug.
        ConfigurationError: When another argument has no meaning.
    """
    if isinstance(keys, str) or isinstance(kinds, str):
        raise ConfigurationError("keys and kinds are lists; for one write [one].")
    keys = None if keys is None else tuple(keys)
    kinds = None if kinds is None else tuple(kinds)
    for key in keys or ():
        check_name("key", key)
    if subject is not None:
        check_name("subject", subject)
    for kind in kinds or ():
        if kind not in get_args(Kind):
            raise ConfigurationError(f"There is no kind {kind!r}.")
    if budget_tokens is not None and (not isinstance(budget_tokens, int) or budget_tokens < 0):
        raise ConfigurationError("budget_tokens is a whole number from 0 on, or None.")
    if on_unavailable not in ("partial", "raise"):
        raise ConfigurationError("on_unavailable must be 'partial' or 'raise'.")
    return keys, kinds


def check_moment(as_of: datetime | float | None) -> float | None:
    """Returns a moment as UTC epoch seconds; None for now.

    Raises:
        ConfigurationError: When it is no moment, or has no time zone.
    """
    if as_of is None:
        return None
    if isinstance(as_of, datetime):
        if as_of.tzinfo is None:
            raise ConfigurationError(
                "as_of has no time zone; give it one, as in datetime.now(UTC)."
            )
        return as_of.timestamp()
    is_number = isinstance(as_of, int | float) and not isinstance(as_of, bool)
    if not is_number or not math.isfinite(as_of):
        raise ConfigurationError("as_of is a datetime or UTC epoch seconds.")
    return as_of


def _time(key: str, name: str, value: object) -> float:
    if isinstance(value, int | float) and math.isfinite(value) and 0 <= value <= _LAST:
        return round(float(value), 6)
    raise FactRejectedError(key, f"has a {name} that is no time, in seconds since 1970")


def _value(fact: NewFact, limits: ProfileLimits) -> Any:
    try:
        value = Normaliser().value(fact.value, "value")
    except StateRejectedError as error:
        raise FactRejectedError(fact.key, f"holds {error.key}, which {error.reason}") from None
    if value is None:
        raise FactRejectedError(fact.key, "has no value; to remove it, forget it")
    size = len(json.dumps(value, ensure_ascii=False).encode())
    if size > limits.value_bytes:
        raise FactRejectedError(
            fact.key, f"has {size:,} bytes of JSON, and a value holds {limits.value_bytes:,}"
        )
    longest = max(map(len, _texts(value)), default=0)
    if longest > limits.text_characters:
        raise FactRejectedError(
            fact.key,
            f"holds a text of {longest:,} characters, and one may have"
            f" {limits.text_characters:,}: a profile is for few, certain facts",
        )
    return value


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


def _names(key: str, field: str, names: object) -> tuple[str, ...]:
    """Returns names in an order that is always the same."""
    if isinstance(names, str) or not isinstance(names, tuple | list | set | frozenset):
        raise FactRejectedError(key, f"has a {field} that is no list of names")
    if len(names) > _LONGEST_NAMES:
        raise FactRejectedError(key, f"has more than {_LONGEST_NAMES} names in {field}")
    for name in names:
        if not isinstance(name, str) or not 0 < len(name) <= 256 or not is_storable(name):  # noqa: PLR2004
            raise FactRejectedError(
                key, f"has a name in {field} that is empty, too long or no text"
            )
    return tuple(sorted(set(names)))


def _keys(fact: NewFact) -> tuple[str, ...]:
    keys = _names(fact.key, "derived_from", fact.derived_from)
    for key in keys:
        check_name("key in derived_from", key)
    if fact.key in keys:
        raise FactRejectedError(fact.key, "cannot be derived from itself")
    return keys


def _check_provenance(fact: NewFact) -> None:
    for field in fields(fact.provenance):
        value = getattr(fact.provenance, field.name)
        if value is None:
            continue
        if not isinstance(value, str) or len(value) > 256 or not is_storable(value):  # noqa: PLR2004
            raise FactRejectedError(fact.key, f"has a {field.name} that is too long or no text")
