"""Events that are copied at their first use: ADK's in every respect, and nobody else's."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from operator import attrgetter
from threading import Barrier
from typing import TYPE_CHECKING, Any, Final

import pytest
from google.adk.events.event import Event
from google.adk.sessions.session import Session
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter

from adk_memory_ext.untouched_events import UntouchedEvent, untouched
from conversation import said

if TYPE_CHECKING:
    from collections.abc import Callable

EVENT: Final = said("hello", state={"at": [1]}, at=1.0)


@dataclass
class Kept:
    """An event from which others are copied, and how often that was done."""

    event: Event
    copied: int = 0

    def copy(self) -> Event:
        """Returns a copy."""
        self.copied += 1
        return self.event.model_copy(deep=True)


def one() -> Event:
    """Returns an event that nobody has touched."""
    (event,) = untouched([Kept(EVENT)])
    return event


LOOKS: Final[dict[str, Callable[[Event], object]]] = {
    "attribute": attrgetter("author"),
    "method": lambda event: event.is_final_response(),
    "class": attrgetter("__class__"),
    "isinstance": lambda event: isinstance(event, Session),
    "vars": vars,
    "dir": dir,
    "hasattr": lambda event: hasattr(event, "nothing"),
    "equal": lambda event: event == EVENT,
    "equal from the other side": lambda event: EVENT == event,  # noqa: SIM300
    "unequal": lambda event: event != EVENT,
    "repr": repr,
    "str": str,
    "format": "{}".format,
    "iter": list,
    "assignment": lambda event: setattr(event, "author", "user"),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "model_copy": lambda event: event.model_copy(deep=True),
    "pickle": lambda event: pickle.loads(pickle.dumps(event)),  # noqa: S301
    "dump": lambda event: event.model_dump(mode="json"),
    "dump by another": TypeAdapter(Event).dump_json,
    "dump as anything": TypeAdapter(Any).dump_json,
    "dump in a list": lambda event: TypeAdapter(list[Event]).dump_python([event]),
    "deepcopy in a list": lambda event: copy.deepcopy([event]),
}


@pytest.mark.parametrize("look", LOOKS)
def test_any_look_makes_it_an_event(look: str) -> None:
    """Whatever is done first, it is done as with ADK's own event, which it is from then on."""
    event = one()
    assert type(event) is UntouchedEvent
    assert isinstance(event, Event)
    outcome, expected = LOOKS[look](event), LOOKS[look](copy.deepcopy(EVENT))
    assert type(event) is Event
    assert type(outcome) is type(expected)
    assert outcome == expected
    assert event == EVENT
    assert event.model_fields_set == EVENT.model_fields_set


def test_what_cannot_be_done_with_an_event_cannot_be_done_with_it() -> None:
    """Errors are those of ADK's event."""
    with pytest.raises(TypeError, match="unhashable"):
        hash(one())
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        attrgetter("nothing")(one())
    with pytest.raises(ValueError, match="nothing"):
        setattr(one(), "nothing", 1)  # noqa: B010
    event = one()
    del event.author
    assert not hasattr(event, "author")


def test_a_session_takes_it_as_it_is() -> None:
    """ADK's session keeps the very object, and says the same of it as of any event."""
    event = one()
    session = Session(id="s", app_name="a", user_id="u", events=[event])
    assert session.events[0] is event
    again = Session.model_validate_json(session.model_dump_json())
    assert again.events == [EVENT]
    assert copy.deepcopy(Session(id="s", app_name="a", user_id="u", events=[one()])).events == [
        EVENT
    ]


def test_an_instance_holds_what_is_taken_over() -> None:
    """A pydantic that keeps anything else in an instance makes this red."""
    assert BaseModel.__slots__ == (
        "__dict__",
        "__pydantic_fields_set__",
        "__pydantic_extra__",
        "__pydantic_private__",
    )


def test_nothing_is_copied_that_nobody_looks_at() -> None:
    """A look at one event copies one; the others are left."""
    kept = [Kept(said(f"{number}")) for number in range(100)]
    events = untouched(kept)
    assert len(events) == 100
    assert events[50].author == "user"
    assert sum(one.copied for one in kept) == 1


@given(st.lists(st.integers(0, 299), max_size=40), st.booleans())
def test_in_whatever_order_they_are_read_each_is_itself(places: list[int], back: bool) -> None:
    """Reading on, back, or here and there: each event is copied from its own original."""
    kept = [Kept(EVENT.model_copy(update={"id": f"{number}"})) for number in range(300)]
    events = untouched(kept)
    for place in [*places, *(reversed(range(300)) if back else range(300)), *places]:
        assert events[place].id == f"{place}"
    assert len({id(event.actions.state_delta) for event in events}) == 300


def test_a_log_that_is_read_is_copied_once() -> None:
    """A whole log that is read from one end to the other is copied once."""
    kept = [Kept(EVENT) for _number in range(1_000)]
    assert [event.author for event in untouched(kept)] == ["user"] * 1_000
    assert {one.copied for one in kept} == {1}


def test_threads_that_look_at_once_see_one_copy() -> None:
    """Two threads that touch an event together hold the same parts of it."""
    barrier = Barrier(4)

    def look(event: Event) -> int:
        barrier.wait()
        return id(event.actions)

    with ThreadPoolExecutor(4) as threads:
        for _attempt in range(50):
            event = one()
            assert len(set(threads.map(look, [event] * 4))) == 1


def test_a_copy_that_fails_can_be_made_later() -> None:
    """An error while it is copied reaches who looked, and leaves the event as it was."""

    class Failing(Kept):
        def copy(self) -> Event:
            if not self.copied:
                self.copied = 1
                raise MemoryError
            return super().copy()

    (event,) = untouched([Failing(EVENT)])
    with pytest.raises(MemoryError):
        attrgetter("author")(event)
    assert type(event) is UntouchedEvent
    assert event == EVENT
