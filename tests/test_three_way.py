"""Two changes of one value, put together."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adk_memory_ext.state_changes import MISSING
from adk_memory_ext.three_way import merged

ITEMS = st.lists(st.integers(0, 5), max_size=6)
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.text(max_size=3), ITEMS, st.sets(st.integers(0, 5))
)


@pytest.mark.parametrize(
    ("base", "theirs", "ours", "both"),
    [
        ([1], [1, 2], [1, 3], [1, 2, 3]),
        ([1, 2], [2], [1, 2, 3], [2, 3]),
        ([1, 2], [1, 2, 3], [2], [2, 3]),
        ([1], [1, 9], [0, 1], [1, 9, 0]),
        (MISSING, [1], [2], [1, 2]),
        (5, 6, 7, 8),
        (MISSING, 1, 1, 2),
        (1.5, 2.5, 1.0, 2.0),
        ({1, 2}, {1, 2, 3}, {2}, {2, 3}),
        ([1, 2], {1, 2, 3}, {2, 4}, {2, 3, 4}),
        ([1, 2], [1, 2, 3], {2, 4}, {2, 3, 4}),
        ([[1, [2]]], {(1, (2,)), "a"}, {(1, (2,)), "b"}, {(1, (2,)), "a", "b"}),
        (MISSING, frozenset("a"), {"b"}, {"a", "b"}),
        ([{}], {1}, {2}, {2}),
        ([1], (1, 2), (1, 3), [1, 2, 3]),
        ({"a": 1}, {"a": 1, "b": 2}, {"a": 1, "c": 3}, {"a": 1, "b": 2, "c": 3}),
        ({"a": 1, "b": 1}, {"a": 1, "b": 2}, {"b": 1}, {"b": 2}),
        ({"n": {"k": 1}}, {"n": {"k": 2}}, {"n": {"k": 4}}, {"n": {"k": 5}}),
        ("a", "b", "c", "c"),
        (True, False, True, True),
        ([1], "text", [1, 2], [1, 2]),
        (1, [1], 2, 2),
        ("gone", MISSING, "ours", "ours"),
    ],
)
def test_both_changes_are_in_the_result(base: Any, theirs: Any, ours: Any, both: Any) -> None:
    """Numbers add up, lists, sets and dicts get both changes; else ours is the last word."""
    assert merged(base, theirs, ours) == both


@given(VALUES, VALUES)
def test_who_is_alone_is_not_changed(base: Any, value: Any) -> None:
    """Where only one side changed anything, the result is that side's."""
    assert merged(base, base, value) == value


@given(ITEMS, ITEMS, ITEMS)
def test_nothing_that_was_added_is_lost(base: list[int], one: list[int], two: list[int]) -> None:
    """Of two that each append to a list, every item is there as often as it was added."""
    assert sorted(merged(base, base + one, base + two)) == sorted(base + one + two)


@given(VALUES, VALUES, VALUES)
def test_what_goes_in_is_left_alone(base: Any, theirs: Any, ours: Any) -> None:
    """The three values are not changed."""
    before = repr((base, theirs, ours))
    merged(base, theirs, ours)
    assert repr((base, theirs, ours)) == before


@given(st.integers(), st.lists(st.integers(), min_size=2, max_size=5))
def test_a_counter_counts_everybody(start: int, steps: list[int]) -> None:
    """Writers who each read the same number and added something add up."""
    value = start
    for step in steps:
        value = merged(start, value, start + step)
    assert value == start + sum(steps)
