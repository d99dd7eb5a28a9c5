"""Where a service breaks a clause, and why: the one table of known exceptions.

All of it is google-adk 2.13.0. A row over a bare service and over `DurableSessionService` on top of
it says that the wrapper passes on what it wraps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pytest
from google.adk.errors.already_exists_error import AlreadyExistsError


@dataclass(frozen=True, kw_only=True)
class Deviation:
    """Clauses that some backends are known to break; a test of one that passes is a failure."""

    clauses: tuple[str, ...]
    """Names of test functions, with a parameter in brackets if it is about one only."""
    backends: tuple[str, ...]
    """Names of backends."""
    reason: str
    raises: type[BaseException] = AssertionError
    """How it shows."""


_DATABASE: Final = ("database-sqlite", "database-postgresql")
_DURABLE_DATABASE: Final = ("durable-database-sqlite", "durable-database-postgresql")

DEVIATIONS: Final = (
    Deviation(
        clauses=(
            "test_read_order_is_append_order[stands still]",
            "test_read_order_is_append_order[is coarse]",
            "test_read_order_is_append_order[is finer than a microsecond]",
        ),
        backends=_DATABASE,
        reason="events are read by (time, id), times are cut to microseconds, and ids are random",
    ),
    Deviation(
        clauses=(
            "test_read_order_is_append_order[runs backwards]",
            "test_read_order_is_append_order[is set back once]",
            "test_read_order_is_append_order[is ahead on one server]",
        ),
        backends=(*_DATABASE, "sqlite"),
        reason="events are read by their time",
    ),
    Deviation(
        clauses=("test_events_since_the_time_of_one_are_that_one_and_the_later",),
        backends=("in_memory", "redis"),
        reason="events keep their own times, and these do not follow the order of appending",
    ),
    Deviation(
        clauses=("test_a_stale_session_is_refused_whatever_the_clock_says[0]",),
        backends=(*_DATABASE, "sqlite"),
        reason="the mark of a revision is its time, and an equal time is the same mark",
        raises=pytest.fail.Exception,
    ),
    Deviation(
        clauses=("test_a_stale_session_is_refused_whatever_the_clock_says[60]",),
        backends=("sqlite",),
        reason="only a later time counts as a change",
        raises=pytest.fail.Exception,
    ),
    Deviation(
        clauses=("test_a_stale_session_is_refused_whatever_the_clock_says[60]",),
        backends=_DATABASE,
        reason="the writer is refused, but the events are read by their time",
    ),
    Deviation(
        clauses=("test_an_event_appended_again_is_stored_once",),
        backends=("redis", "durable-redis"),
        reason="events are appended without a look at their ids",
    ),
    Deviation(
        clauses=("test_a_partial_event_is_returned_and_not_stored",),
        backends=("redis", "durable-redis"),
        reason="the user and app keys of a partial event's delta are stored",
    ),
    Deviation(
        clauses=("test_a_refused_creation_writes_no_scoped_state",),
        backends=("redis", "durable-redis"),
        reason="user and app state are written before the id is found to be used",
    ),
    Deviation(
        clauses=("test_a_list_holds_no_events",),
        backends=("redis", "durable-redis"),
        reason="sessions are listed with all their events",
    ),
    Deviation(
        clauses=("test_a_colon_in_an_id_is_no_separator",),
        backends=("redis", "durable-redis"),
        reason="the key of a session is app, user and id joined by colons",
        raises=AlreadyExistsError,
    ),
    Deviation(
        clauses=("test_spaces_around_an_id_belong_to_it",),
        backends=("in_memory", "durable-in_memory", "sqlite", "durable-sqlite"),
        reason="spaces around an id are cut off",
        raises=AlreadyExistsError,
    ),
    Deviation(
        clauses=("test_temp_state_given_at_creation_is_returned",),
        backends=("in_memory", "sqlite", *_DATABASE),
        reason="temp: keys given at creation are dropped (google/adk-python#3274)",
    ),
    Deviation(
        clauses=("test_the_given_state_is_copied",),
        backends=("in_memory",),
        reason="the objects given are the objects kept",
    ),
    Deviation(
        clauses=("test_a_stored_event_does_not_change_with_the_given_one",),
        backends=("in_memory", "durable-in_memory"),
        reason="the objects given are the objects kept",
    ),
    Deviation(
        clauses=(
            "test_values_of_a_creation_come_back_as_they_were[whole floats]",
            "test_values_of_a_delta_come_back_as_they_were[whole floats]",
        ),
        backends=("database-postgresql", "durable-database-postgresql"),
        reason="JSONB keeps 1e308 as an integer of 309 digits",
    ),
    Deviation(
        clauses=("test_values_of_a_delta_come_back_as_they_were[whole floats]",),
        backends=("sqlite", "durable-sqlite"),
        reason="a delta is merged by SQLite's JSON functions, which write 1e15 as an integer",
    ),
)
