"""`StateRule` and `StatePolicy`: what a team writes down, checked when it is written."""

from __future__ import annotations

import copy
import logging
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from pydantic import PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, from_json, to_json

from adk_memory_ext.errors import ConfigurationError
from adk_memory_ext.policy.key_check import SCOPES, key_fault, scope_of
from adk_memory_ext.policy.personal import Personal
from adk_memory_ext.policy.redaction import Redaction, each_leaf, secret_texts

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

Sensitivity = Literal["public", "personal", "secret"]
Undeclared = Literal["allow", "warn", "reject"]
OnRefused = Literal["raise", "drop"]

LONGEST_EXPIRING_KEY: Final = 256
"""Characters of a key that may expire: it is part of an index."""
ABSENT: Final = object()
"""Stands for "no default"; None is one."""

_logger: Final = logging.getLogger(__name__)


class UnfitTypeError(Exception):
    """A value does not fit the type of its rule; the text says why, without the value."""


@dataclass(frozen=True)
class StateRule:
    """What one key, or all keys with a beginning, may hold.

    Raises:
        ConfigurationError: When the rule contradicts itself.
    """

    key: str
    """With its prefix. `user:draft_*` stands for all that begin so, `temp:*` for all of `temp:`,
    and `*` for all of the session. An exact key goes before a beginning, a longer one before a
    shorter one."""
    type: Any = None
    """What pydantic validates on a write and gives back on a read; None: any JSON value. None as a
    value is always taken: it is ADK's own way to clear a key."""
    sensitivity: Sensitivity = "public"
    """`personal`: never in logs, checkpoints' text or receipts, and found by an erasure. `secret`:
    only in `temp:`, which is never stored; where its value is echoed it is blacked out."""
    max_bytes: int | None = None
    """Of the value's JSON text in UTF-8."""
    ttl: timedelta | None = None
    """How long after its last write a value is returned."""
    default: Any = field(default=ABSENT, repr=False)
    """What a reader finds where the key is missing; it is not stored."""

    def __post_init__(self) -> None:
        if not isinstance(self.key, str):
            raise ConfigurationError("A StateRule's key is a text.")
        if "*" in self.key[:-1]:
            self._refuse("has a * before its end")
        checked = self.key[:-1] + "x" if self.is_pattern else self.key
        if (fault := key_fault(checked)) is not None:
            self._refuse(str(fault))
        if self.sensitivity not in get_args(Sensitivity):
            self._refuse(f"has an unknown sensitivity {self.sensitivity!r}")
        if self.sensitivity == "secret" and self.scope != "temp":
            self._refuse("is secret, and a secret may only be in temp:, which is never stored")
        if self.max_bytes is not None and not _is_count(self.max_bytes):
            self._refuse("has a max_bytes that is no whole number from 1 on")
        if self.ttl is not None:
            if not isinstance(self.ttl, timedelta) or self.ttl <= timedelta(0):
                self._refuse("has a ttl that is no timedelta above 0")
            if self.scope == "temp":
                self._refuse("has a ttl, and temp: ends with its invocation")
        self._check_type()

    @property
    def is_pattern(self) -> bool:
        """Whether it stands for all keys with a beginning."""
        return self.key.endswith("*")

    @property
    def scope(self) -> str:
        """The scope of its keys."""
        return scope_of(self.key)

    @property
    def has_default(self) -> bool:
        """Whether a reader finds something where the key is missing."""
        return self.default is not ABSENT

    @property
    def type_name(self) -> str:
        """The type as people call it; `any` without one."""
        if self.type is None:
            return "any"
        return getattr(self.type, "__name__", None) or str(self.type).replace("typing.", "")

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        return TypeAdapter(self.type)

    def matches(self, key: str) -> bool:
        """Whether it is about a key."""
        if not self.is_pattern:
            return key == self.key
        return key.startswith(self.key[:-1]) and scope_of(key) == self.scope

    def checked(self, value: Any) -> tuple[Any, Any]:
        """Returns a value as the type has it, and as it is stored.

        Raises:
            UnfitTypeError: When it does not fit, or would not come back.
        """
        if self.type is None or value is None:
            return value, value
        try:
            typed = self._adapter.validate_python(value)
            # An object that was changed in place is not looked into by pydantic; its JSON text is.
            text = self._adapter.dump_json(typed, round_trip=True, by_alias=True, warnings="error")
            back = self._adapter.validate_json(text)
        except ValidationError as error:
            raise UnfitTypeError(self._misfit(error)) from None
        except (PydanticSerializationError, ValueError, TypeError, RecursionError):
            raise UnfitTypeError(f"has no JSON form as {self.type_name}") from None
        return back, from_json(text)

    def typed(self, stored: Any) -> Any:
        """Returns a stored value as the type has it.

        Raises:
            UnfitTypeError: When it does not fit.
        """
        if self.type is None or stored is None:
            return stored
        try:
            return self._adapter.validate_json(to_json(stored))
        except ValidationError as error:
            raise UnfitTypeError(self._misfit(error)) from None
        except (PydanticSerializationError, ValueError):
            raise UnfitTypeError(f"has no JSON form as {self.type_name}") from None

    def given_default(self) -> Any:
        """Returns a default of the reader's own."""
        return copy.deepcopy(self.default)

    def _misfit(self, error: ValidationError) -> str:
        kinds = sorted({str(found["type"]) for found in error.errors(include_input=False)})
        return f"does not fit the type {self.type_name} ({', '.join(kinds)})"

    def _check_type(self) -> None:
        if self.type is not None:
            try:
                _ = self._adapter
            except (PydanticUserError, TypeError) as error:
                raise ConfigurationError(
                    f"StateRule {self.key!r}: pydantic cannot validate {self.type_name}."
                ) from error
        if not self.has_default:
            return
        if self.is_pattern:
            self._refuse("stands for several keys and has a default")
        try:
            typed, _ = self.checked(self.default)
        except UnfitTypeError as error:
            raise ConfigurationError(f"StateRule {self.key!r}: its default {error}.") from None
        object.__setattr__(self, "default", typed)

    def _refuse(self, reason: str) -> None:
        raise ConfigurationError(f"StateRule {self.key!r} {reason}.")


@dataclass(frozen=True)
class StatePolicy:
    """What may be remembered, where and for how long; see `DurableSessionService`.

    Raises:
        ConfigurationError: When it contradicts itself.
    """

    rules: Collection[StateRule] = ()
    undeclared: Undeclared = "allow"
    """What happens to a key without a rule. `warn` says so once per key in the log. Keys of ADK's
    own (`adk_…`, `_adk_…`, `_code_execut…`) need none."""
    scopes: Collection[str] = frozenset(SCOPES)
    """The scopes that may be written: of `session`, `user`, `app` and `temp`."""
    lookalikes: Undeclared = "reject"
    """What happens to `User:x`, ` user:x`, `session:x`, `app:user:x`, `user:` and the like."""
    on_refused: OnRefused = "raise"
    """`drop` leaves a refused key out and lists it with the reason in the event's
    `custom_metadata["memext_refused"]`. The rest of the event is stored."""
    max_scope_bytes: Mapping[str, int] = field(default_factory=dict)
    """Of the JSON text of a scope's state in UTF-8, as the writer knows it."""
    max_session_bytes: int | None = None
    """The same for all that a session sees, without `temp:`."""
    redaction: Redaction = field(default_factory=Redaction)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rules", tuple(self.rules))
        if isinstance(self.scopes, str):
            raise ConfigurationError("StatePolicy: scopes is a set of names.")
        object.__setattr__(self, "scopes", frozenset(self.scopes))
        for scope in (*self.scopes, *self.max_scope_bytes):
            if scope not in SCOPES:
                raise ConfigurationError(
                    f"StatePolicy: unknown scope {scope!r}; there are {', '.join(SCOPES)}."
                )
        for name, kinds in (
            ("undeclared", Undeclared),
            ("lookalikes", Undeclared),
            ("on_refused", OnRefused),
        ):
            if getattr(self, name) not in get_args(kinds):
                raise ConfigurationError(
                    f"StatePolicy: {name} must be one of {', '.join(get_args(kinds))}."
                )
        limits = [*self.max_scope_bytes.values()]
        limits += [] if self.max_session_bytes is None else [self.max_session_bytes]
        if not all(map(_is_count, limits)):
            raise ConfigurationError("StatePolicy: a limit is a whole number of bytes from 1 on.")
        if not isinstance(self.redaction, Redaction):
            raise ConfigurationError("StatePolicy: redaction is a Redaction(…).")
        self._check_rules()

    def _check_rules(self) -> None:
        known: set[str] = set()
        for rule in self.rules:
            if not isinstance(rule, StateRule):
                raise ConfigurationError("StatePolicy: rules is a list of StateRule(…).")
            if rule.key in known:
                raise ConfigurationError(f"StatePolicy has two rules for {rule.key!r}.")
            known.add(rule.key)
            if rule.scope not in self.scopes:
                raise ConfigurationError(
                    f"StatePolicy has a rule for {rule.key!r}, and its scope is not in `scopes`."
                )

    @cached_property
    def _exact(self) -> dict[str, StateRule]:
        return {rule.key: rule for rule in self.rules if not rule.is_pattern}

    @cached_property
    def _patterns(self) -> list[StateRule]:
        patterns = [rule for rule in self.rules if rule.is_pattern]
        return sorted(patterns, key=lambda rule: -len(rule.key))

    @cached_property
    def _warned(self) -> set[str]:
        return set()

    @cached_property
    def has_ttl(self) -> bool:
        """Whether a value may expire."""
        return any(rule.ttl is not None for rule in self.rules)

    @cached_property
    def has_totals(self) -> bool:
        """Whether a whole scope, or the session, has a limit."""
        return bool(self.max_scope_bytes) or self.max_session_bytes is not None

    @cached_property
    def shapes_reads(self) -> bool:
        """Whether what is read is more than what is stored: types or defaults."""
        return any(rule.type is not None or rule.has_default for rule in self.rules)

    def rule(self, key: str) -> StateRule | None:
        """Returns the rule for a key; None if it is undeclared."""
        exact = self._exact.get(key)
        if exact is not None:
            return exact
        return next((rule for rule in self._patterns if rule.matches(key)), None)

    def ttl(self, key: str) -> timedelta | None:
        """Returns how long after its last write a key's value is returned; None: for ever."""
        rule = self.rule(key)
        return None if rule is None else rule.ttl

    def sensitivity(self, key: str) -> Sensitivity:
        """Returns how a key's value is to be treated; `public` without a rule."""
        rule = self.rule(key)
        return "public" if rule is None else rule.sensitivity

    def secrets(self, *states: Mapping[str, Any]) -> tuple[str, ...]:
        """Returns the texts that give away what the secret keys of some states hold."""
        if not any(rule.sensitivity == "secret" for rule in self.rules):
            return ()
        return secret_texts(
            value
            for state in states
            for key, value in state.items()
            if isinstance(key, str) and self.sensitivity(key) == "secret"
        )

    def is_personal(self, key: str) -> bool:
        """Whether a key's value is personal."""
        return self.sensitivity(key) == "personal"

    def without_personal(self, *states: Mapping[str, Any]) -> Callable[[Any], Any]:
        """Returns what makes of an app's words about a session what may stand beside it.

        What `personal` keys of these states hold is blacked out, from 4 characters on, with pieces
        of 12 characters of it, and what the redaction finds. In a structure, whose leaves are ids
        and no text for people, a short value is blacked out only where it is the whole leaf.
        """
        secrets = self.secrets(*states)
        personal = Personal.of(
            value for state in states for key, value in state.items() if self.is_personal(key)
        )

        def clean(said: Any) -> Any:
            if isinstance(said, str):
                said = personal.out_of_text(said)
            else:
                said = each_leaf(said, personal.out_of_leaf)
            return self.redaction.value(said, secrets)

        return clean

    def shaped(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a stored state as a reader finds it: typed, with defaults.

        A value that does not fit its type any more is left as it is and reported once in the log.
        """
        shaped = dict(state)
        for key, value in state.items():
            rule = self.rule(key)
            if rule is None or rule.type is None:
                continue
            try:
                shaped[key] = rule.typed(value)
            except UnfitTypeError as error:
                self.report(key, f"{key!r} is stored and {error}; it is left as it is.")
        for key, rule in self._exact.items():
            if rule.has_default and key not in shaped:
                shaped[key] = rule.given_default()
        return shaped

    def report(self, key: str, message: str) -> None:
        """Says something about a key in the log, once."""
        if message not in self._warned:
            self._warned.add(message)
            _logger.warning("%s", message, extra={"memext_key": key})

    def typed_keys(self, state: Iterable[str]) -> list[str]:
        """Returns those keys that have a type."""
        return [key for key in state if self.has_type(key)]

    def has_type(self, key: object) -> bool:
        """Whether the value of a key has a type."""
        return isinstance(key, str) and (rule := self.rule(key)) is not None and bool(rule.type)


def _is_count(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number > 0
