"""Views of state without prefixes, over ADK's `State`, a `Session` and a dict."""

from __future__ import annotations

from typing import Any

import pytest
from google.adk.sessions.session import Session
from google.adk.sessions.state import State
from hypothesis import given
from hypothesis import strategies as st

from adk_memory_ext import Remove, scoped
from adk_memory_ext.errors import ConfigurationError, StateRejectedError
from adk_memory_ext.state_changes import change_in
from adk_memory_ext.views import ScopeView

KEYS = {"a": 1, "user:a": 2, "app:a": 3, "temp:a": 4}


def over(kind: str) -> tuple[Any, dict[str, Any]]:
    """Returns something to look at, and the dict that a write lands in."""
    values = dict(KEYS)
    if kind == "Session":
        session = Session(app_name="app", user_id="ann", id="s", state=values)
        return session, session.state
    if kind == "dict":
        return values, values
    delta: dict[str, Any] = {}
    return State(values, delta), delta


over_each = pytest.mark.parametrize("kind", ["State", "Session", "dict"])


@over_each
def test_each_view_holds_the_keys_of_its_scope(kind: str) -> None:
    """Keys stand there without their prefix, and those of other scopes do not."""
    views = scoped(over(kind)[0])
    assert [dict(view) for view in (views.session, views.user, views.app, views.temp)] == [
        {"a": 1}, {"a": 2}, {"a": 3}, {"a": 4}
    ]  # fmt: skip
    assert "a" in views.user
    assert "user:a" not in views.session
    nothing: object = 1
    assert nothing not in views.user
    assert repr(views.user) == "<user: view of 1 keys>"


@over_each
def test_writes_land_where_adk_looks_for_them(kind: str) -> None:
    """With their prefix: in the event's delta over a `State`, in the object itself elsewhere."""
    state, written = over(kind)
    views = scoped(state)
    views.user["b"] = 5
    views.app.update({"c": 6}, d=7)
    views.session.setdefault("e", 8)
    assert views.session.setdefault("a", 9) == 1
    for key, value in {"user:b": 5, "app:c": 6, "app:d": 7, "e": 8}.items():
        assert written[key] == value


@over_each
def test_what_was_deleted_is_gone_for_every_view(kind: str) -> None:
    """`del`, `pop`, `popitem` and `clear` show at once; a deleted key can be set again."""
    state, written = over(kind)
    views = scoped(state)
    del views.user["a"]
    assert views.app.pop("a") == 3
    assert views.app.pop("a", None) is None
    views.session.clear()
    assert [len(view) for view in (views.user, views.app, views.session)] == [0, 0, 0]
    for missing in (views.user, scoped(state).user):
        with pytest.raises(KeyError):
            del missing["a"]
        with pytest.raises(KeyError):
            missing["a"]
    if kind == "State":
        assert all(isinstance(change_in(written[key]), Remove) for key in ("a", "user:a", "app:a"))
    else:
        assert written == {"temp:a": 4}
    views.user["a"] = 10
    assert dict(views.user) == {"a": 10}


@pytest.mark.parametrize("key", ["user:b", "app:b", "temp:b"])
def test_a_prefix_in_the_session_view_is_refused(key: str) -> None:
    """A key with a prefix would land in another scope than that of the view."""
    with pytest.raises(StateRejectedError, match="use the view of it"):
        scoped({}).session[key] = 1
    with pytest.raises(StateRejectedError, match="no text"):
        scoped({}).user[1] = 1  # type: ignore[index]


def test_something_else_is_refused() -> None:
    """The error names what can be looked at."""
    with pytest.raises(ConfigurationError, match="a State, a Session or a dict, not a list"):
        scoped([])  # type: ignore[arg-type]


@given(
    st.lists(
        st.tuples(st.sampled_from(["set", "del", "pop"]), st.sampled_from("abc"), st.integers()),
        max_size=12,
    )
)
def test_a_view_over_a_state_is_a_dict(steps: list[tuple[str, str, int]]) -> None:
    """Whatever is done to both, a view and a dict hold the same."""
    view = ScopeView(State({"user:a": 0}, {}), "user")
    model: dict[str, int] = {"a": 0}
    for what, key, value in steps:
        if what == "set":
            view[key] = model[key] = value
        elif what == "pop":
            assert view.pop(key, None) == model.pop(key, None)
        elif key in model:
            del view[key], model[key]
        assert dict(view) == model
        assert len(view) == len(model)
