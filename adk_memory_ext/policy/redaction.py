"""What is blacked out before anything is stored: codes, tokens, keys, and on request addresses."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final

from adk_memory_ext.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

SHORTEST_SECRET: Final = 4
"""Characters. Of a shorter value every text would be full by chance."""

_CODE_WORDS: Final = (
    r"(?:one[- ]?time[- ]?(?:code|password|passcode|pin)|otp|2fa|mfa|passcode"
    r"|(?:verification|security|confirmation|authentication|auth|login|sms)[- ]code"
    r"|驗證碼|验证码|動態密碼|一次性密碼)"
)
_DIGITS: Final = r"(?<![\w.])(?:\d[ -]?){3,9}\d(?![\w])"
_PATTERNS: Final[Mapping[str, tuple[str, ...]]] = {
    "private_keys": (
        r"-----BEGIN (?P<kind>[A-Z ]*PRIVATE KEY(?: BLOCK)?)-----.*?(?:-----END (?P=kind)-----|\Z)",
    ),
    "bearer_tokens": (
        r"(?i:\bbearer\s+)(?P<hide>[A-Za-z0-9._~+/=-]{8,})",
        r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+",
    ),
    "one_time_codes": (
        rf"(?i:{_CODE_WORDS})[^\d\n]{{0,24}}?(?P<hide>{_DIGITS})",
        rf"(?P<hide>{_DIGITS})(?=[^\d\n]{{0,24}}?(?i:{_CODE_WORDS}))",
    ),
    "emails": (r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63})+",),
    "cards": (r"(?<![\w.])(?:\d[ -]?){12,18}\d(?![\w])",),
    "phones": (r"(?<![\w.])\+?(?:\(\d{1,4}\)[ -]?)?\d(?:[ ./-]?\(?\d\)?){6,14}(?![\w])",),
}
_NUMBER: Final = re.compile(r"\d[ -]?\d[ -]?\d[ -]?\d|\d\D{1,3}\d\D{1,3}\d")
_NUMERIC: Final = frozenset({"one_time_codes", "cards", "phones"})
"""What cannot be in a text without a number: most texts are looked at no further."""
_LABELS: Final = {
    "private_keys": "[private key]",
    "bearer_tokens": "[token]",
    "one_time_codes": "[one-time code]",
    "emails": "[e-mail]",
    "cards": "[card number]",
    "phones": "[phone number]",
}
SECRET: Final = "[secret]"  # noqa: S105  # no secret itself
"""What stands in place of the value of a `secret` key."""


@dataclass(frozen=True, kw_only=True)
class Redaction:
    """What is replaced by a label in state, event text, tool arguments and answers.

    Raises:
        ConfigurationError: When an option has no meaning.
    """

    one_time_codes: bool = True
    """Four to ten digits beside a word such as "OTP" or "verification code"."""
    bearer_tokens: bool = True
    """What stands behind "Bearer", and JSON web tokens."""
    private_keys: bool = True
    """PEM blocks."""
    secrets: bool = True
    """The values of `secret` keys, where they have at least 4 characters."""
    emails: bool = False
    phones: bool = False
    """Seven to fifteen digits, also with the marks that people put between them."""
    cards: bool = False
    """Thirteen to nineteen digits with a right check digit (ISO/IEC 7812-1)."""
    hook: Callable[[str], str] | None = None
    """Gets each text after the patterns and returns it as it may be stored."""

    def __post_init__(self) -> None:
        for name in (*_PATTERNS, "secrets"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigurationError(f"Redaction: {name} is True or False.")
        if self.hook is not None and not callable(self.hook):
            raise ConfigurationError("Redaction: hook is a function from text to text.")

    @cached_property
    def _active(self) -> list[tuple[str, re.Pattern[str]]]:
        return [
            (name, re.compile(pattern, re.DOTALL))
            for name, patterns in _PATTERNS.items()
            if getattr(self, name)
            for pattern in patterns
        ]

    def text(self, text: str, secrets: Collection[str] = ()) -> str:
        """Returns a text as it may be stored; the same object if nothing had to change."""
        if self.secrets:
            for secret in secrets:  # the longest first: one may be part of another
                if secret in text:
                    text = text.replace(secret, SECRET)
        has_number = _NUMBER.search(text) is not None
        for name, pattern in self._active:
            if name in _NUMERIC and not has_number:
                continue
            text = pattern.sub(partial(_hidden, name), text)
        if self.hook is None:
            return text
        hooked = self.hook(text)
        if not isinstance(hooked, str):
            raise ConfigurationError("The redactor hook returned no text; nothing was written.")
        return hooked

    def value(self, value: Any, secrets: Collection[str] = ()) -> Any:
        """Returns a value with each text in it as it may be stored; itself if nothing changed."""
        return each_leaf(value, partial(self._leaf, secrets=secrets))

    def _leaf(self, value: Any, secrets: Collection[str]) -> Any:
        if isinstance(value, str):
            # A plain text: the value of an enum of strings is not what `type` would keep.
            redacted = self.text(str.__str__(value), secrets)
            return value if redacted == value else redacted
        if type(value) is int and self.secrets and str(value) in secrets:
            return SECRET
        return value


def each_leaf(value: Any, change: Callable[[Any], Any]) -> Any:
    """Returns a value with each key and leaf of it changed; itself if none was."""
    if isinstance(value, dict):
        items = [(each_leaf(k, change), each_leaf(v, change)) for k, v in value.items()]
        same = all(k is a and v is b for (k, v), (a, b) in zip(items, value.items(), strict=True))
        return value if same else _with_own_keys(items)
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        parts = [each_leaf(item, change) for item in value]
        same = all(a is b for a, b in zip(parts, value, strict=True))
        return value if same else type(value)(parts)
    return change(value)


def _hidden(name: str, match: re.Match[str]) -> str:
    whole, label = match.group(), _LABELS[name]
    if name == "cards" and not _has_check_digit(whole):
        return whole
    hide = match.groupdict().get("hide")
    if hide is None:
        return label
    start, end = match.start("hide") - match.start(), match.end("hide") - match.start()
    return whole[:start] + label + whole[end:]


def _has_check_digit(number: str) -> bool:
    digits = [int(char) for char in reversed(number) if char.isdigit()]
    doubled = [sum(divmod(2 * digit, 10)) for digit in digits[1::2]]
    return (sum(digits[::2]) + sum(doubled)) % 10 == 0


def _with_own_keys(items: list[tuple[Any, Any]]) -> dict[Any, Any]:
    """Returns the items as a dict; two keys that became one text keep apart by a number."""
    result: dict[Any, Any] = {}
    for key, value in items:
        own, number = key, 2
        while own in result:
            own, number = f"{key} {number}", number + 1
        result[own] = value
    return result


def secret_texts(values: Iterable[Any]) -> tuple[str, ...]:
    """Returns the texts that give secret values away, the longest first."""
    found: set[str] = set()
    for value in values:
        _collect(value, found)
    return tuple(sorted(found, key=lambda text: (-len(text), text)))


def _collect(value: Any, found: set[str]) -> None:
    reveal = getattr(value, "get_secret_value", None)  # pydantic's SecretStr
    if callable(reveal):
        value = reveal()
    if isinstance(value, dict):
        for item in value.values():
            _collect(item, found)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            _collect(item, found)
    elif isinstance(value, bytes):
        _collect(value.decode("utf-8", "replace"), found)
    elif value is not None and not isinstance(value, bool):
        text = str.__str__(value) if isinstance(value, str) else str(value)
        if len(text.strip()) >= SHORTEST_SECRET:
            found.add(text)
