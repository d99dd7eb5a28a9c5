"""Clauses about state: who shares it, what it may hold, and how it follows from the events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from conversation import exactly, replay, said

if TYPE_CHECKING:
    from conformance.subject import Subject

SCOPES = ("", "user:", "app:")

VALUES: dict[str, dict[str, Any]] = {
    "anything": {
        "null": None,
        "booleans": [True, False],
        "texts": [
            "",
            " ",
            "résumé 履歷 🧑‍🏫",
            "'single' \"double\"",
            "a\\b",
            "line\nline",
            "\u202eRTL",
        ],
        "other types' texts": ["true", "null", "1", "1.0", "[]", "{}"],
        "nested": {"a": [{"b": {"c": [[], {}, None, [[["deep"]]]]}}]},
        "empty list": [],
        "empty object": {},
        "long": "x" * 100_000,
    },
    "integers": {"integers": [0, -1, 2**31, 2**53 + 1, -(2**63), 10**30], "one": 1},
    "floats": {"floats": [0.1 + 0.2, 1.5, -2.25, 1e-300, 5e-324], "half": 0.5},
    "whole floats": {"whole": [1.0, 0.0, 1e15], "large": 1.7976931348623157e308, "two": 2.0},
}
by_value = pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)

KEYS = (
    "plain",
    "with space",
    " padded ",
    "a.b",
    "$.a[0]",
    '"quoted"',
    "it's",
    "back\\slash",
    "100%_",
    "履歷",
    "🧭",
    "user",
    "apple:pie",
    "x:user:y",
)


async def test_user_state_is_shared_by_the_user_s_sessions(subject: Subject) -> None:
    """What one session writes with `user:` every session of that user in that app reads."""
    writer = await subject.create("s")
    running = await subject.create("t")
    others = [
        await subject.create("s", user="bob"),
        await subject.create("s", app="other"),
    ]

    await subject.append(writer, said("x", state={"user:locale": "de"}))

    assert (await subject.read(running)).state == {"user:locale": "de"}
    assert (await subject.read(await subject.create("later"))).state == {"user:locale": "de"}
    assert [(await subject.read(other)).state for other in others] == [{}, {}]


async def test_app_state_is_shared_by_all_users(subject: Subject) -> None:
    """What one session writes with `app:` every session of that app reads, and no other app's."""
    writer = await subject.create("s")
    running = await subject.create("t", user="bob")
    elsewhere = await subject.create("s", app="other")

    await subject.append(writer, said("x", state={"app:motd": "hello"}))

    assert (await subject.read(running)).state == {"app:motd": "hello"}
    assert (await subject.read(elsewhere)).state == {}


async def test_session_state_is_shared_by_nobody(subject: Subject) -> None:
    """A key without a prefix is read by its session only."""
    writer = await subject.create("s")
    others = [await subject.create("t"), await subject.create("s", user="bob")]

    await subject.append(writer, said("x", state={"step": 1}))

    assert [(await subject.read(other)).state for other in others] == [{}, {}]


async def test_sessions_write_scoped_keys_side_by_side(subject: Subject) -> None:
    """Keys that different sessions write, one after the other, are all there; the last wins."""
    first, second = await subject.create("s"), await subject.create("t")

    await subject.append(first, said("x", state={"user:a": 1, "user:both": 1, "app:a": 1}))
    await subject.append(second, said("x", state={"user:b": 2, "user:both": 2, "app:b": 2}))
    await subject.append(first, said("x", state={"user:c": 3}))

    assert (await subject.read(second)).state == {
        "user:a": 1,
        "user:b": 2,
        "user:both": 2,
        "user:c": 3,
        "app:a": 1,
        "app:b": 2,
    }


async def test_user_state_is_read_without_a_session(subject: Subject) -> None:
    """`get_user_state` returns the user's keys without their prefix, and nothing else."""
    session = await subject.create("s", state={"user:a": 1, "app:b": 2, "c": 3})
    await subject.append(session, said("x", state={"user:d": {"e": 4}, "temp:f": 5}))
    await subject.create("s", user="bob", state={"user:a": "bob's"})

    assert await subject.user_state() == {"a": 1, "d": {"e": 4}}
    assert await subject.user_state(user="bob") == {"a": "bob's"}


async def test_an_unknown_user_has_no_state(subject: Subject) -> None:
    """`get_user_state` is empty for a user or an app that nobody knows."""
    await subject.create("s", state={"user:a": 1})

    assert await subject.user_state(user="bob") == {}
    assert await subject.user_state(app="other") == {}


@by_value
async def test_values_of_a_creation_come_back_as_they_were(
    subject: Subject, values: dict[str, Any]
) -> None:
    """Every JSON value given at creation is read back in every scope, type and all."""
    state = {scope + key: value for scope in SCOPES for key, value in values.items()}

    created = await subject.create("s", state=state)

    assert exactly((await subject.read(created)).state) == exactly(state)


@by_value
async def test_values_of_a_delta_come_back_as_they_were(
    subject: Subject, values: dict[str, Any]
) -> None:
    """Every JSON value of a delta is read back in every scope and in the event, type and all."""
    delta = {scope + key: value for scope in SCOPES for key, value in values.items()}
    session = await subject.create("s")

    await subject.append(session, said("x", state=delta), said("y", state={"other": 1}))

    stored = await subject.read(session)
    assert exactly(stored.state) == exactly(delta | {"other": 1})
    assert exactly(stored.events[0].actions.state_delta) == exactly(delta)


async def test_a_key_may_hold_any_character(subject: Subject) -> None:
    """Keys with quotes, dots, wildcards, colons, spaces or any script are kept apart."""
    state = {scope + key: scope + key for scope in SCOPES for key in KEYS}
    session = await subject.create("s", state=state)
    assert (await subject.read(session)).state == state

    delta = {key: f"new {value}" for key, value in state.items()}
    await subject.append(session, said("x", state=delta))

    stored = await subject.read(session)
    assert stored.state == delta
    assert stored.events[0].actions.state_delta == delta


async def test_state_is_what_the_events_make_of_it(subject: Subject) -> None:
    """The initial state with every stored delta applied in order is the stored state."""
    initial = {"step": 0, "user:visits": 1, "app:motd": "hello"}
    session = await subject.create("s", state=initial)
    for n in range(6):
        delta = {"step": n, f"key-{n % 4}": n, "user:visits": n, "temp:n": n, "app:last": [n]}
        await subject.append(session, said(str(n), state=delta))

    stored = await subject.read(session)

    assert replay(stored.events, initial) == stored.state
    assert replay(stored.events) == {
        "step": 5,
        "user:visits": 5,
        "app:last": [5],
        **{f"key-{n}": value for n, value in enumerate((4, 5, 2, 3))},
    }
