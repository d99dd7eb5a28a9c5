"""The rules of a policy, without a store: keys, types, sizes, and what a policy refuses to be."""

from __future__ import annotations

import enum
import logging
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from adk_memory_ext import Extend, Increment, Redaction, Remove, StatePolicy, StateRule
from adk_memory_ext.errors import ConfigurationError
from adk_memory_ext.policy import enforce
from adk_memory_ext.policy.enforcement import json_bytes
from adk_memory_ext.policy.key_check import key_fault, scope_of


class Step(enum.Enum):
    """Where a conversation is."""

    ASKING = "asking"
    DONE = "done"


class Profile(BaseModel):
    """A model with what JSON does not have."""

    born: date
    budget: Decimal = Decimal(0)
    tags: set[str] = set()


def refused(policy: StatePolicy, delta: dict[Any, Any], **known: Any) -> dict[str, str]:
    """Returns the refused keys with their reasons."""
    return {item.key: item.reason for item in enforce(policy, delta, known).refused}


# --- Keys


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("User:x", "user:x"),
        (" user:x", "user:x"),
        ("user :x", "user:x"),
        ("user: x", "user:x"),
        ("user:x ", "user:x"),
        ("USER:x", "user:x"),
        ("users:x", "user:x"),
        ("uesr:x", "user:x"),
        ("usr:x", "user:x"),
        ("App:x", "app:x"),
        ("apps:x", "app:x"),
        ("tmp:x", "temp:x"),
        ("Temp:x", "temp:x"),
        ("session:x", "x"),
        ("Session:x", "x"),
        ("user：x", "user:x"),
        ("ｕｓｅｒ:x", "user:x"),
        ("us\u200ber:x", "user:x"),
        ("app:user:x", "user:x"),
        ("user:temp:x", "temp:x"),
        ("temp:user:x", "user:x"),
        ("user:user:x", "user:x"),
        ("app:user:temp:x", "temp:x"),
        ("user:Session:x", "x"),
        (" x", "x"),
        ("x\t", "x"),
    ],
)
def test_a_key_that_looks_like_another_names_the_one_that_was_meant(key: str, meant: str) -> None:
    """A look-alike or nested prefix is refused, with the key that was probably meant."""
    fault = key_fault(key)
    assert fault is not None
    assert fault.meant == meant
    assert repr(meant) in refused(StatePolicy(), {key: 1})[key]
    assert key_fault(meant) is None


@pytest.mark.parametrize("key", ["", " ", "user:", "app:", "temp: ", "user:\u200b", "session:"])
def test_a_key_without_a_name_is_refused(key: str) -> None:
    """A prefix alone is no key, and neither is nothing."""
    fault = key_fault(key)
    assert fault is not None
    assert fault.meant is None
    assert key in refused(StatePolicy(), {key: 1})


@pytest.mark.parametrize(
    "key",
    ["x", "user:x", "app:a.b", "temp:x", "planner:plan", "api:key", "gmail:token", "a b", "名前",
     "user:http://example.org", "user_name", "user", "adk:x", "x:y:z"],
)  # fmt: skip
def test_plain_keys_are_taken(key: str) -> None:
    """Keys with ADK's prefixes, with none, or with a prefix of somebody's own are left alone."""
    assert key_fault(key) is None
    assert enforce(StatePolicy(), {key: 1}).delta == {key: 1}


@given(st.text(max_size=12), st.sampled_from(["", "user:", "app:", "temp:", "User:", "app:user:"]))
def test_what_was_meant_is_plain_itself(text: str, prefix: str) -> None:
    """Whatever the key is, the one that an error proposes would be taken."""
    fault = key_fault(prefix + text)
    if fault is not None and fault.meant is not None:
        assert key_fault(fault.meant) is None


def test_look_alikes_can_be_allowed() -> None:
    """A team with such keys in its database can go on with them, with a warning or without."""
    policy = StatePolicy(lookalikes="allow")
    assert refused(policy, {"User:x": 1, "app:user:x": 1}) == {}
    assert refused(StatePolicy(lookalikes="warn"), {"User:x": 1}) == {}


def test_a_key_that_is_no_text_is_refused() -> None:
    """A number as a key is refused by its type, and nothing about its value is said."""
    assert list(refused(StatePolicy(), {12345: 1})) == ["<int>"]


def test_what_should_not_be_there_can_be_removed() -> None:
    """A look-alike, an undeclared key and one of a wrong type may go; a refused scope stays."""
    policy = StatePolicy(undeclared="reject", scopes={"session", "user"})
    assert refused(policy, {"User:x": Remove(), "y": Remove(), "z": None}) == {}
    assert list(refused(policy, {"app:x": Remove()})) == ["app:x"]


@pytest.mark.parametrize(("key", "scope"), [("a", "session"), ("User:a", "session")])
def test_the_scope_is_the_one_that_adk_sees(key: str, scope: str) -> None:
    """A look-alike is a key of the session."""
    assert scope_of(key) == scope


# --- Which rule counts


def test_the_exact_rule_counts_before_a_pattern_and_a_longer_pattern_before_a_shorter() -> None:
    """One key has one rule, whatever the order in which they are written."""
    names = ["*", "user:*", "user:draft_*", "user:draft_1", "draft", "temp:*"]
    policy = StatePolicy(rules=[StateRule(name) for name in names])
    expected = {
        "user:x": "user:*",
        "user:draft_2": "user:draft_*",
        "user:draft_1": "user:draft_1",
        "draft": "draft",
        "other": "*",
        "temp:x": "temp:*",
        "planner:plan": "*",
    }
    for key, rule in expected.items():
        found = policy.rule(key)
        assert found is not None
        assert found.key == rule
    assert policy.rule("app:x") is None


def test_undeclared_keys_are_allowed_warned_of_once_or_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What happens to a key without a rule is the policy's choice; ADK's own keys need none."""
    assert refused(StatePolicy(), {"x": 1}) == {}
    warning = StatePolicy(undeclared="warn")
    with caplog.at_level(logging.WARNING):
        assert refused(warning, {"x": 1}) == refused(warning, {"x": 2}) == {}
    assert [record.getMessage() for record in caplog.records] == [
        "State key 'x' is not declared by the policy."
    ]
    strict = StatePolicy(undeclared="reject")
    assert refused(strict, {"x": 1}) == {"x": "is not declared by the policy"}
    assert refused(strict, {"temp:adk_token": 1, "_code_execution_context": {}}) == {}


# --- Types


@pytest.mark.parametrize(
    ("declared", "value", "stored"),
    [
        (Step, Step.DONE, "done"),
        (Step, "done", "done"),
        (datetime, datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00Z"),
        (Decimal, Decimal("1.10"), "1.10"),
        (set[int], {3}, [3]),
        (tuple[int, str], (1, "a"), [1, "a"]),
        (Profile, Profile(born=date(2000, 1, 2)),
         {"born": "2000-01-02", "budget": "0", "tags": []}),
        (timedelta, timedelta(days=1), "P1D"),
        (list[Step], [Step.ASKING], ["asking"]),
        (int | None, None, None),
        (str, None, None),
    ],
)  # fmt: skip
def test_a_typed_value_is_stored_as_json_and_given_back_typed(
    declared: Any, value: Any, stored: Any
) -> None:
    """Types that JSON lacks come back as they were, also when they were written as their JSON."""
    policy = StatePolicy(rules=[StateRule("x", type=declared)])
    accepted = enforce(policy, {"x": value})
    assert accepted.delta == {"x": stored}
    back = policy.shaped(accepted.delta)["x"]
    assert type(back) is type(value) or isinstance(value, str)
    assert enforce(policy, {"x": back}).delta == {"x": stored}


@pytest.mark.parametrize(
    ("declared", "value"),
    [(Step, "secret-value"), (int, "secret-value"), (datetime, "secret-value"),
     (Profile, {"born": "secret-value"}), (list[int], ["secret-value"])],
)  # fmt: skip
def test_a_value_of_another_type_is_refused_without_naming_it(declared: Any, value: Any) -> None:
    """The reason names the type and pydantic's kind of error, and nothing of the value."""
    reason = refused(StatePolicy(rules=[StateRule("x", type=declared)]), {"x": value})["x"]
    assert "does not fit the type" in reason
    assert "secret-value" not in reason


def test_a_model_that_was_made_invalid_in_place_is_refused() -> None:
    """Pydantic does not look into an object again; what it would be read back as is checked."""
    profile = Profile(born=date(2000, 1, 2))
    profile.born = "never"  # type: ignore[assignment]
    assert "x" in refused(StatePolicy(rules=[StateRule("x", type=Profile)]), {"x": profile})


def test_a_stored_value_that_no_longer_fits_is_left_and_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is never lost, never converted, and the log names the key and not the value."""
    policy = StatePolicy(rules=[StateRule("x", type=int)])
    with caplog.at_level(logging.WARNING):
        assert policy.shaped({"x": "old-value"}) == policy.shaped({"x": "old-value"})
        assert policy.shaped({"x": "old-value"}) == {"x": "old-value"}
    (record,) = caplog.records
    assert "'x' is stored and does not fit" in record.getMessage()
    assert "old-value" not in record.getMessage()


def test_a_default_is_found_where_the_key_is_missing_and_belongs_to_its_reader() -> None:
    """It is typed, not shared between readers, and a stored None stays None."""
    policy = StatePolicy(
        rules=[StateRule("x", type=list[int], default=[1]), StateRule("y", default=2)]
    )
    one, other = policy.shaped({}), policy.shaped({})
    one["x"].append(2)
    assert other == {"x": [1], "y": 2}
    assert policy.shaped({"y": None})["y"] is None


# --- Sizes


def test_a_value_over_its_limit_is_refused_with_what_was_measured() -> None:
    """`max_bytes` is of the JSON text in UTF-8."""
    policy = StatePolicy(rules=[StateRule("x", max_bytes=8)])
    assert refused(policy, {"x": "é" * 3}) == {}
    assert refused(policy, {"x": "é" * 4}) == {"x": "has 10 bytes, and its rule allows 8"}


def test_the_result_of_a_change_is_what_is_judged() -> None:
    """`Increment` and `Extend` are judged by what they come to, under the lock of the write."""
    policy = StatePolicy(rules=[StateRule("n", type=int), StateRule("l", max_bytes=7)])
    change = enforce(policy, {"l": Extend([3])}).delta["l"]
    assert change.apply([1, 2]) == [1, 2, 3]
    with pytest.raises(Exception, match="has 9 bytes, and its rule allows 7"):
        change.apply([1, 2, 3])
    with pytest.raises(Exception, match="does not fit the type int"):
        enforce(policy, {"n": Increment(0.5)}).delta["n"].apply(1)


def test_a_scope_and_a_session_over_their_limit_refuse_the_largest_new_value() -> None:
    """The rest of the delta would fit and is accepted; what shrinks a full scope always goes."""
    policy = StatePolicy(max_scope_bytes={"user": 30}, max_session_bytes=60)
    reasons = refused(policy, {"user:a": "x" * 30, "user:b": 1})
    assert reasons == {
        "user:a": "would make the scope user 54 bytes, and the policy allows 30",
    }
    assert list(refused(policy, {"s": "x" * 70})) == ["s"]
    full = {"user:a": "x" * 100}
    assert refused(policy, {"user:a": "y" * 50}, **full) == {}
    assert refused(policy, {"user:a": Remove(), "user:b": 1}, **full) == {}
    assert refused(policy, {"temp:t": "x" * 1000}) == {}


@given(st.dictionaries(st.text(max_size=5), st.text(max_size=5)))
def test_sizes_are_those_of_the_json_text(value: dict[str, str]) -> None:
    """Every value has the length of its text, surrogates too."""
    assert json_bytes(value) >= 2 + sum(len(key) + len(text) for key, text in value.items())


# --- What a policy refuses to be

WRONG: Final[list[Any]] = [
    lambda: StateRule("User:x"),
    lambda: StateRule("user:"),
    lambda: StateRule("us*er"),
    lambda: StateRule("token", sensitivity="secret"),
    lambda: StateRule("x", sensitivity="private"),  # type: ignore[arg-type]
    lambda: StateRule("x", max_bytes=0),
    lambda: StateRule("x", max_bytes=True),
    lambda: StateRule("x", ttl=timedelta(0)),
    lambda: StateRule("x", ttl=5),  # type: ignore[arg-type]
    lambda: StateRule("temp:x", ttl=timedelta(1)),
    lambda: StateRule("x*", default=1),
    lambda: StateRule("x", type=int, default="no"),
    lambda: StateRule("x", type=object()),
    lambda: StatePolicy(rules=[StateRule("x"), StateRule("x")]),
    lambda: StatePolicy(rules=[StateRule("app:x")], scopes={"user"}),
    lambda: StatePolicy(rules=["x"]),  # type: ignore[list-item]
    lambda: StatePolicy(scopes={"users"}),
    lambda: StatePolicy(scopes="user"),
    lambda: StatePolicy(undeclared="refuse"),  # type: ignore[arg-type]
    lambda: StatePolicy(on_refused="skip"),  # type: ignore[arg-type]
    lambda: StatePolicy(max_scope_bytes={"user": 0}),
    lambda: StatePolicy(max_session_bytes=-1),
    lambda: StatePolicy(redaction=None),  # type: ignore[arg-type]
    lambda: Redaction(emails=1),  # type: ignore[arg-type]
    lambda: Redaction(hook="x"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("make", WRONG)
def test_a_policy_that_contradicts_itself_is_refused(make: Any) -> None:
    """When it is written, and not at the first write."""
    with pytest.raises(ConfigurationError):
        make()
