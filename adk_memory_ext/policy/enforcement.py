"""Judging a state delta: what of it is accepted, in which form, and what is refused."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic_core import PydanticSerializationError, to_jsonable_python

from adk_memory_ext.errors import StateRejectedError
from adk_memory_ext.policy.key_check import is_adks_own, key_fault, scope_of
from adk_memory_ext.policy.rules import (
    LONGEST_EXPIRING_KEY,
    StatePolicy,
    StateRule,
    UnfitTypeError,
)
from adk_memory_ext.state_changes import (
    MISSING,
    Remove,
    StateChange,
    UnfitValueError,
    change_in,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True, slots=True)
class Refusal:
    """A key that was refused."""

    key: str
    reason: str
    """What is wrong; never the value."""

    def error(self) -> StateRejectedError:
        """Returns it as an error."""
        return StateRejectedError(self.key, self.reason)


@dataclass(frozen=True, slots=True)
class Accepted:
    """What came of a delta."""

    delta: dict[str, Any] = field(default_factory=dict)
    """As it is stored: JSON values and changes."""
    typed: dict[str, Any] = field(default_factory=dict)
    """The values of typed keys, as a reader finds them."""
    refused: list[Refusal] = field(default_factory=list)


class Judged(StateChange):
    """Applies a change and judges what came of it, under the lock of the write.

    Args:
        change: The change.
        judge: Returns the value as it is stored.
    """

    __slots__ = _holds = ("change", "judge")

    def __init__(self, change: StateChange, judge: Callable[[Any], Any]) -> None:
        super().__init__()
        self.change = change
        self.judge = judge

    def apply(self, old: Any) -> Any:
        """Returns what came of the change.

        Raises:
            UnfitValueError: When the change does not fit what is stored, or the rule forbids what
                came of it.
        """
        value = self.change.apply(old)
        return value if value is MISSING else self.judge(value)

    def normalised(self, value: Callable[[Any], Any]) -> StateChange:
        """Returns the same with each value in the change as `value` gives it back."""
        return Judged(self.change.normalised(value), self.judge)


def enforce(
    policy: StatePolicy, delta: Mapping[Any, Any], known: Mapping[str, Any] | None = None
) -> Accepted:
    """Returns what the policy makes of a delta; nothing is raised and nothing is changed.

    Args:
        policy: The policy.
        delta: Values and changes, keys with prefixes.
        known: The state before, keys with prefixes, for limits of whole scopes; None: unknown.
    """
    accepted = Accepted()
    secrets = policy.secrets(known or {}, {k: v for k, v in delta.items() if isinstance(k, str)})
    for key, value in delta.items():
        if not isinstance(key, str):
            accepted.refused.append(Refusal(f"<{type(key).__name__}>", "is a key that is no text"))
            continue
        reason = _key_refusal(policy, key, value)
        if reason is None:
            try:
                _accept(policy, accepted, key, value, secrets)
            except (UnfitTypeError, UnfitValueError) as error:
                reason = str(error)
        if reason is not None:
            accepted.refused.append(Refusal(key, reason))
    _check_totals(policy, accepted, known or {})
    return accepted


def _key_refusal(policy: StatePolicy, key: str, value: Any) -> str | None:
    """Returns why a key may not be written, whatever the value is."""
    scope = scope_of(key)
    if scope not in policy.scopes:
        return f"is in the scope {scope}, which the policy does not let anybody write"
    if value is None or isinstance(change_in(value), Remove):
        return None  # what should not have been there may go; None is ADK's own way, as in a rewind
    if policy.lookalikes != "allow" and (fault := key_fault(key)) is not None:
        if policy.lookalikes == "reject":
            return str(fault)
        policy.report(key, f"State key {key!r} {fault}.")
    if policy.ttl(key) is not None and len(key) > LONGEST_EXPIRING_KEY:
        return f"is longer than the {LONGEST_EXPIRING_KEY} characters of a key that may expire"
    if policy.rule(key) is None and not is_adks_own(key) and policy.undeclared != "allow":
        if policy.undeclared == "reject":
            return "is not declared by the policy"
        policy.report(key, f"State key {key!r} is not declared by the policy.")
    return None


def _accept(
    policy: StatePolicy, accepted: Accepted, key: str, value: Any, secrets: tuple[str, ...]
) -> None:
    rule = policy.rule(key)
    change = change_in(value)
    judge = partial(_judged, policy, rule, secrets)
    if scope_of(key) == "temp":
        # Never stored: kept as it is, but for the type.
        if change is None and rule is not None:
            if rule.type is not None:
                value, _ = rule.checked(value)
            _refuse_large(rule, value)
        accepted.delta[key] = value
    elif change is not None:
        redact = partial(policy.redaction.value, secrets=secrets)
        change = change.normalised(redact)
        accepted.delta[key] = (
            change if isinstance(change, Remove) else Judged(change, lambda new: judge(new)[1])
        )
    else:
        typed, accepted.delta[key] = judge(value)
        if rule is not None and rule.type is not None:
            accepted.typed[key] = typed


def _judged(
    policy: StatePolicy, rule: StateRule | None, secrets: tuple[str, ...], value: Any
) -> tuple[Any, Any]:
    """Returns a value as its type has it, and as it is stored.

    Raises:
        UnfitValueError: When the rule forbids it.
    """
    try:
        typed, stored = (value, value) if rule is None else rule.checked(value)
        plain = _plain(stored)
        redacted = policy.redaction.value(plain, secrets)
        if redacted is not plain:
            stored = redacted
            typed = stored if rule is None else rule.typed(stored)
    except UnfitTypeError as error:
        raise UnfitValueError(str(error)) from None
    if rule is not None:
        _refuse_large(rule, stored)
    return typed, stored


def _plain(value: Any) -> Any:
    """Returns the JSON form of a value, for a look at the texts in it; itself if it has none."""
    if isinstance(value, str | int | float | None):
        return value
    try:
        plain = to_jsonable_python(value, by_alias=False)
    except (PydanticSerializationError, ValueError, RecursionError):
        return value  # refused, or replaced, by whoever stores it
    return value if plain == value and type(plain) is type(value) else plain


def _refuse_large(rule: StateRule, value: Any) -> None:
    if rule.max_bytes is not None and (size := json_bytes(value)) > rule.max_bytes:
        raise UnfitValueError(f"has {size:,} bytes, and its rule allows {rule.max_bytes:,}")


def json_bytes(value: Any) -> int:
    """Returns the length of a value's JSON text in UTF-8; 0 if it has none."""
    try:
        text = json.dumps(
            to_jsonable_python(value, by_alias=False, inf_nan_mode="constants"),
            ensure_ascii=False,
            separators=(",", ":"),
        )
    except (PydanticSerializationError, ValueError, TypeError, RecursionError):
        return 0
    return len(text.encode("utf-8", "surrogatepass"))


def _check_totals(policy: StatePolicy, accepted: Accepted, known: Mapping[str, Any]) -> None:
    """Refuses the largest new values as long as a scope, or the session, is over its limit."""
    limits = [*policy.max_scope_bytes.items()]
    if policy.max_session_bytes is not None:
        limits.append(("", policy.max_session_bytes))
    for scope, limit in limits:
        while (total := _total(accepted, known, scope)) > limit:
            new = {
                key: json_bytes(_outcome(value, known.get(key, MISSING)))
                for key, value in accepted.delta.items()
                if _counts(key, scope) and not isinstance(value, Remove)
            }
            # What only shrinks a scope that is over its limit already must go through.
            grows = {key: size for key, size in new.items() if size > json_bytes(known.get(key))}
            if not grows:
                break
            largest = max(grows, key=lambda key: grows[key])
            del accepted.delta[largest]
            accepted.typed.pop(largest, None)
            whole = f"the scope {scope}" if scope else "the state of the session"
            reason = f"would make {whole} {total:,} bytes, and the policy allows {limit:,}"
            accepted.refused.append(Refusal(largest, reason))


def _counts(key: str, scope: str) -> bool:
    return scope_of(key) == scope if scope else scope_of(key) != "temp"


def _total(accepted: Accepted, known: Mapping[str, Any], scope: str) -> int:
    state = {key: value for key, value in known.items() if _counts(key, scope)}
    for key, value in accepted.delta.items():
        if _counts(key, scope):
            state[key] = _outcome(value, known.get(key, MISSING))
    return json_bytes({key: value for key, value in state.items() if value is not MISSING})


def _outcome(value: Any, old: Any) -> Any:
    """Returns what a delta's value comes to, as far as it can be told before the lock."""
    change = change_in(value)
    if change is None:
        return value
    try:
        return change.apply(old)
    except UnfitValueError:
        return old
