"""What is blacked out of a text, and what is left."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from adk_memory_ext import Redaction, StatePolicy, StateRule
from adk_memory_ext.errors import ConfigurationError
from adk_memory_ext.policy.redaction import secret_texts

PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\nabc\n-----END RSA PRIVATE KEY-----"
TOKEN = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abc_DEF-123"  # noqa: S105  # nobody has it


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Your verification code is 493 201.", "Your verification code is [one-time code]."),
        ("OTP: 123456", "OTP: [one-time code]"),
        ("123456 is your login code", "[one-time code] is your login code"),
        ("驗證碼：482913 請勿外流", "驗證碼：[one-time code] 請勿外流"),
        ("Authorization: Bearer abc.def-ghi_jkl", "Authorization: Bearer [token]"),
        (f"it is {TOKEN}!", "it is [token]!"),
        (f"key {PEM} end", "key [private key] end"),
        (PEM.partition("-----END")[0], "[private key]"),
    ],
)
def test_codes_tokens_and_keys_are_always_blacked_out(text: str, expected: str) -> None:
    """What opens a door goes, and the words around it stay."""
    assert Redaction().text(text) == expected
    off = Redaction(one_time_codes=False, bearer_tokens=False, private_keys=False)
    assert off.text(text) == text


@pytest.mark.parametrize(
    "text",
    ["In 2024 I wrote 1500 lines", "call me at 10", "code 12", "a bearer of news", "postcode 12345",
     "I have used SQL, MySQL and Docker", "order 4711-0815 of 2026-11-30"],
)  # fmt: skip
def test_ordinary_numbers_are_left_alone(text: str) -> None:
    """A number is no code unless somebody calls it one."""
    assert Redaction().text(text) == text


@pytest.mark.parametrize(
    ("option", "text", "expected"),
    [
        ("emails", "mail a.b+c@example.co.uk now", "mail [e-mail] now"),
        ("phones", "ring +49 170 1234567 now", "ring [phone number] now"),
        ("cards", "card 4111 1111 1111 1111 now", "card [card number] now"),
        ("cards", "number 4111 1111 1111 1112 now", "number 4111 1111 1111 1112 now"),
    ],
)
def test_addresses_and_numbers_are_blacked_out_on_request(
    option: str, text: str, expected: str
) -> None:
    """They are often what a conversation is about, so they are off unless asked for."""
    options: dict[str, Any] = {option: True}
    assert Redaction().text(text) == text
    assert Redaction(**options).text(text) == expected


def test_a_hook_sees_each_text_last() -> None:
    """A team's own function gets what the patterns have left, and its answer is stored."""
    redaction = Redaction(hook=lambda text: text.replace("Ann", "[name]"))
    assert redaction.value({"a": ["Ann's OTP is 123456"]}) == {
        "a": ["[name]'s OTP is [one-time code]"]
    }
    with pytest.raises(ConfigurationError, match="no text"):
        Redaction(hook=lambda _: None).text("x")  # type: ignore[arg-type,return-value]


def test_a_value_without_anything_to_hide_stays_the_same_object() -> None:
    """Nothing is copied where nothing changes."""
    value = {"a": [1, "b", {"c": None}]}
    assert Redaction(hook=str).value(value) is value


def test_keys_that_become_one_text_stay_apart() -> None:
    """No member of an object is lost to the redaction of its keys."""
    secrets = secret_texts(["abcd", "efgh"])
    assert Redaction().value({"abcd": 1, "efgh": 2}, secrets) == {"[secret]": 1, "[secret] 2": 2}


@given(st.lists(st.text(min_size=4, max_size=8), max_size=3), st.text(max_size=20))
def test_no_secret_is_left_in_a_text(secrets: list[str], around: str) -> None:
    """Whatever the secrets are, also one inside another, none stays where it was echoed."""
    texts = secret_texts(secrets)
    text = around + "".join(secrets) + around
    redacted = Redaction(one_time_codes=False, bearer_tokens=False, private_keys=False).text(
        text, texts
    )
    for secret in texts:
        assert secret not in redacted or secret in "[secret][secret]"  # noqa: S105


def test_the_values_of_secret_keys_are_known_in_every_form() -> None:
    """Text, numbers, members of objects and pydantic's own secrets; nothing under 4 characters."""
    policy = StatePolicy(rules=[StateRule("temp:s*", sensitivity="secret")])
    state = {
        "temp:s1": "hunter22",
        "temp:s2": {"a": [998877, True, None]},
        "temp:s3": SecretStr("swordfish"),
        "temp:s4": "abc",
        "temp:other": "harmless",
    }
    assert policy.secrets(state) == ("swordfish", "hunter22", "998877")
