"""What a state or an event may hold: kept exactly, or refused at the door, or replaced and said."""

from __future__ import annotations

import copy
import json
import logging
import traceback
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import pytest
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions.database_session_service import DatabaseSessionService
from google.genai import types
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from adk_memory_ext.errors import ConfigurationError, CorruptRecordError, StateRejectedError
from adk_memory_ext.json_values import MAX_DEPTH, Normaliser, decode, exact_for_jsonb
from adk_memory_ext.service import DurableSessionService
from backends import OURS, OURS_MARIADB
from conversation import answered, called, said, texts
from tables import file_url, run
from values import BAD, GOOD, JSON, NEVER, PYTHON, SECRET, Bad, Opaque, is_exactly, nested

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from google.adk.sessions.session import Session

    from backends import Backend, Place

KEY: Final[dict[str, Any]] = {"app_name": "app", "user_id": "ann", "session_id": "session"}
OWNER: Final[dict[str, Any]] = {"app_name": "app", "user_id": "ann"}
SCOPES: Final = ("", "user:", "app:")


@pytest.fixture(params=[*OURS, OURS_MARIADB], ids=lambda backend: backend.name)
def backend(request: pytest.FixtureRequest) -> Backend:
    """Each database that values are kept in."""
    row: Backend = request.param
    return row


every_fault = pytest.mark.parametrize("bad", BAD.values(), ids=BAD)


async def stored(sessions: DurableSessionService, key: dict[str, Any] = KEY) -> Session:
    """Returns a session that must be there."""
    session = await sessions.get_session(**key)
    assert session is not None
    return session


def written(error: BaseException) -> str:
    """Returns everything that a log would show of an error."""
    shown = traceback.TracebackException.from_exception(error, capture_locals=False)
    return "".join(line for line in shown.format() if "File " not in line)


# --- The door itself


@every_fault
def test_a_bad_value_is_refused_with_its_path_and_the_reason(bad: Bad) -> None:
    """The error names the key, the path inside its value and what is wrong, and shows no value."""
    with pytest.raises(StateRejectedError) as caught:
        Normaliser().value({"list": [bad.value]}, "user:key")
    error = caught.value
    assert error.key == f"user:key.list[0]{bad.where}"
    assert error.scope == "user"
    assert bad.reason in error.reason
    assert SECRET not in written(error)


@every_fault
def test_a_bad_value_is_replaced_on_request_and_its_path_noted(bad: Bad) -> None:
    """The nearest value stands there instead, and everything around it stays."""
    normaliser = Normaliser("replace")
    value = normaliser.value({"before": 1, "list": [bad.value, "after"]}, "key")
    assert is_exactly(value, {"before": 1, "list": [bad.replacement, "after"]})
    assert normaliser.replaced[0] == f"key.list[0]{bad.where}"
    again = Normaliser()
    assert is_exactly(again.value(value, "key"), value)
    assert again.value(normaliser.replaced, "paths") == normaliser.replaced
    assert again.conversions == 0


@pytest.mark.parametrize("bad", NEVER.values(), ids=NEVER)
@pytest.mark.parametrize("on_bad_value", ["refuse", "replace"])
def test_what_would_be_lost_is_refused_even_where_values_are_replaced(
    bad: Bad, on_bad_value: Any
) -> None:
    """No replacement stands for two keys at once, or for a change that nobody would apply."""
    if bad is NEVER["keys that become one"] and on_bad_value == "refuse":
        bad = Bad(bad.value, ".1", "is a key of the type int", ...)
    with pytest.raises(StateRejectedError, match=bad.reason) as caught:
        Normaliser(on_bad_value).value(bad.value, "key")
    assert caught.value.key == f"key{bad.where}"
    assert SECRET not in written(caught.value)


@pytest.mark.parametrize("value", GOOD.values(), ids=GOOD)
def test_any_other_json_value_passes_as_it_is(value: Any) -> None:
    """Nothing is changed, and the outcome shares no container with what was given."""
    normaliser = Normaliser()
    passed = normaliser.value(value, "key")
    assert is_exactly(passed, value)
    assert normaliser.conversions == 0
    assert passed is not value or not isinstance(value, dict | list)


@pytest.mark.parametrize(("value", "plain"), PYTHON.values(), ids=PYTHON)
def test_a_value_of_pythons_types_becomes_its_json_form(value: Any, plain: Any) -> None:
    """Datetimes, sets, models and the like become at once what a reload gives, None inside kept."""
    normaliser = Normaliser()
    assert is_exactly(normaliser.value({"a": [value]}, "key"), {"a": [plain]})
    assert normaliser.conversions > 0


@pytest.mark.parametrize(
    ("key", "reason"),
    [(1, "is a key of the type int"), (None, "NoneType"), ("a\0", "holds a NUL"), ((), "tuple")],
)
def test_a_bad_key_of_a_delta_is_refused_and_named(key: Any, reason: str) -> None:
    """The key of a state value must be a text that can be kept."""
    with pytest.raises(StateRejectedError, match=reason):
        Normaliser().key(key)


def test_a_long_key_is_cut_in_the_path() -> None:
    """An error stays readable, whatever was given as a key."""
    with pytest.raises(StateRejectedError) as caught:
        Normaliser().value({"x" * 1_000_000: b""}, "key")
    assert caught.value.key == f"key.{'x' * 64}…"


@given(JSON | st.text() | st.floats(), st.booleans())
def test_a_text_is_read_as_the_standard_library_reads_it(value: Any, escaped: bool) -> None:
    """Also what only plain ADK stores: NaN, infinities, -0.0, lone surrogates."""
    text = json.dumps([value], ensure_ascii=escaped)
    assert is_exactly(decode(text), json.loads(text))


@pytest.mark.parametrize("text", ["", "{", "{}x", "01", '"\\ud800', "\ufeff{}", "9" * 5_000])
def test_a_text_that_is_none_is_an_error(text: str) -> None:
    """The one of the standard library."""
    with pytest.raises(ValueError, match=r"."):
        json.loads(text)
    with pytest.raises(ValueError, match=r"."):
        decode(text)


def test_nesting_that_only_plain_adk_stores_is_read() -> None:
    """As deep as the standard library goes."""
    text = "[" * 500 + "]" * 500
    assert decode(text) == json.loads(text)


@pytest.mark.parametrize(
    ("text", "exact"),
    [
        ('{"a": 1e+16, "b": -1.5e+300}', f'{{"a": {10**16}.0, "b": -{15 * 10**299}.0}}'),
        (r'["1e+16", "\"1e+16", "\\", 2.5e+17]', rf'["1e+16", "\"1e+16", "\\", {25 * 10**16}.0]'),
        ("[1e-07, 10000000000000000]", "[1e-07, 10000000000000000]"),
    ],
)
def test_large_floats_are_written_for_jsonb_with_a_fraction(text: str, exact: str) -> None:
    """PostgreSQL gives 1e+16 back as an integer; texts that look like floats are left alone."""
    assert exact_for_jsonb(text) == exact


# --- At the service: refused before anything is written


Write = "Callable[[DurableSessionService, Session, Any], Any]"


async def _append(sessions: DurableSessionService, session: Session, delta: Any) -> None:
    await sessions.append_event(session, said("lost", state={"good": 1, "user:good": 1, **delta}))


async def _append_without_content(
    sessions: DurableSessionService, session: Session, delta: Any
) -> None:
    event = Event(author="user", actions=EventActions(state_delta={"app:good": 1, **delta}))
    await sessions.append_event(session, event)


async def _create(sessions: DurableSessionService, session: Session, delta: Any) -> None:
    await sessions.create_session(
        app_name=session.app_name, user_id=session.user_id, state={"user:good": 1, **delta}
    )


async def _update(sessions: DurableSessionService, session: Session, delta: Any) -> None:
    await sessions.state.update(
        {"user:good": 1, **delta},
        app_name=session.app_name,
        user_id=session.user_id,
        session_id=session.id,
    )


async def _update_user(sessions: DurableSessionService, session: Session, delta: Any) -> None:
    short = {key.removeprefix("user:"): value for key, value in delta.items()}
    await sessions.state.update_user(
        {"good": 1, **short}, app_name=session.app_name, user_id=session.user_id
    )


WRITES: Final[dict[str, Any]] = {
    "append": _append,
    "append of a state-only event": _append_without_content,
    "create": _create,
    "state.update": _update,
    "state.update_user": _update_user,
}


@pytest.mark.parametrize("name", WRITES)
async def test_a_refused_value_leaves_nothing_behind(
    name: str, sessions: DurableSessionService
) -> None:
    """Each bad value in each scope is refused by each way to write, and nothing at all changes."""
    session = await sessions.create_session(**KEY, state={"kept": [1], "user:kept": 2})
    await sessions.append_event(session, said("first", state={"app:kept": 3}))
    before = session.model_copy(deep=True)

    for prefix in ("user:",) if name == "state.update_user" else SCOPES:
        for bad in (BAD | NEVER).values():
            key = f"{prefix}bad"
            with pytest.raises(StateRejectedError) as caught:
                await WRITES[name](sessions, session, {key: {"list": [bad.value]}})
            assert caught.value.key.startswith(f"{key}.list[0]")
            assert SECRET not in written(caught.value)

    assert session == before
    assert await stored(sessions) == before
    assert (await sessions.list_sessions(app_name="app")).sessions[0].state == before.state
    assert len((await sessions.list_sessions(app_name="app")).sessions) == 1
    await sessions.append_event(session, said("next"))


def _with(**fields: Any) -> Event:
    return Event(author="agent", invocation_id="i", **fields)


def _part(**fields: Any) -> Event:
    return _with(content=types.Content(role="model", parts=[types.Part(**fields)]))


class Report(BaseModel):
    """What a tool may return."""

    mean: float
    note: None = None


NAN: Final = float("nan")
BAD_EVENTS: Final[dict[str, tuple[Callable[[], Event], str]]] = {
    "a NUL in a text": (lambda: said(f"{SECRET}\0"), "content.parts[0].text"),
    "a lone surrogate in a text": (lambda: said(f"{SECRET}\ud83d"), "content.parts[0].text"),
    "a NUL in the author": (lambda: said("x", author="a\0"), "author"),
    "NaN in an argument": (
        lambda: called("tool", {"a": [SECRET, NAN]}),
        "content.parts[0].function_call.args.a[1]",
    ),
    "a number as key in an argument": (
        lambda: called("tool", {"a": {1: SECRET}}),
        "content.parts[0].function_call.args.a.1",
    ),
    "a surrogate as key in an argument": (
        lambda: called("tool", {"\ud800": SECRET}),
        "content.parts[0].function_call.args.\ufffd",
    ),
    "bytes in an answer": (
        lambda: answered("tool", {"a": SECRET.encode()}),
        "content.parts[0].function_response.response.a",
    ),
    "an object in an answer": (
        lambda: answered("tool", {"a": Opaque()}),
        "content.parts[0].function_response.response.a",
    ),
    "NaN in a model in an answer": (
        lambda: answered("tool", {"report": Report(mean=NAN)}),
        "content.parts[0].function_response.response.report.mean",
    ),
    "deep nesting in an answer": (
        lambda: answered("tool", {"a": nested(MAX_DEPTH)}),
        "content.parts[0].function_response.response.a" + "[0]" * (MAX_DEPTH - 1),
    ),
    "infinity in the metadata": (
        lambda: _with(custom_metadata={"score": {"x": float("inf")}}),
        "custom_metadata.score.x",
    ),
    "a NUL in an error's text": (lambda: _with(error_message=f"{SECRET}\0"), "error_message"),
    "NaN as a probability": (lambda: _with(avg_logprobs=NAN), "avg_logprobs"),
    "bytes in an output": (lambda: _with(output=[SECRET.encode()]), "output[0]"),
    "NaN in an agent's state": (
        lambda: _with(actions=EventActions(agent_state={"step": NAN})),
        "actions.agent_state.step",
    ),
    "a NUL in an artifact's name": (
        lambda: _with(actions=EventActions(artifact_delta={"a\0": 1})),
        "a\ufffd",
    ),
    "a NUL in the id of a call": (
        lambda: _with(long_running_tool_ids={"a\0"}),
        "long_running_tool_ids[0]",
    ),
}


async def test_a_bad_value_anywhere_in_an_event_is_refused(
    sessions: DurableSessionService,
) -> None:
    """Texts, arguments, answers, metadata: the error says where, and nothing changes."""
    session = await sessions.create_session(**KEY, state={"kept": 1})
    before = session.model_copy(deep=True)
    for name, (make, path) in BAD_EVENTS.items():
        event = make()
        event.actions.state_delta["good"] = {"a", "b"}
        fields = copy.copy(event.__dict__)
        with pytest.raises(StateRejectedError) as caught:
            await sessions.append_event(session, event)
        assert caught.value.key == path, name
        assert SECRET not in written(caught.value), name
        assert event.actions.state_delta == {"good": {"a", "b"}}, name
        assert all(value is fields[field] for field, value in event.__dict__.items()), name
    assert session == before
    assert await stored(sessions) == before


MISTYPED: Final[dict[str, tuple[Callable[[Event], object], str]]] = {
    "an author that is a number": (lambda event: setattr(event, "author", 5), "author"),
    "a branch that is a list": (lambda event: setattr(event, "branch", [SECRET]), "branch"),
    "metadata that are a list": (
        lambda event: setattr(event, "custom_metadata", [SECRET]),
        "custom_metadata",
    ),
    "a version that is a text": (
        lambda event: event.actions.artifact_delta.update({"a": SECRET}),  # type: ignore[dict-item]
        "actions.artifact_delta.a",
    ),
    "content that is none": (
        lambda event: setattr(event, "content", {"parts": [{"words": SECRET}]}),
        "content.parts.0.words",
    ),
    "a time that is a text": (lambda event: setattr(event, "timestamp", SECRET), "timestamp"),
    "a time that is nothing": (lambda event: setattr(event, "timestamp", None), "timestamp"),
}


@pytest.mark.parametrize(("spoil", "path"), MISTYPED.values(), ids=MISTYPED)
async def test_a_field_that_could_not_be_read_back_is_refused(
    spoil: Callable[[Event], object], path: str
) -> None:
    """Nothing checks what is assigned to a field; at the append it shows, and not at a reload."""
    async with DurableSessionService.from_url() as sessions:
        session = await sessions.create_session(**KEY)
        event = said("x", state={"a": 1})
        spoil(event)
        with pytest.raises(StateRejectedError) as caught:
            await sessions.append_event(session, event)
        assert caught.value.key == path
        assert SECRET not in written(caught.value)
        assert await stored(sessions) == session
        assert session.events == []


async def test_a_field_that_can_be_read_back_is_kept_whatever_its_type(
    sessions: DurableSessionService,
) -> None:
    """Content given as a plain object is content, and a time may be any kind of number."""
    session = await sessions.create_session(**KEY)
    event = _with(timestamp=1.0)
    event.content = {"role": "user", "parts": [{"text": "hello"}]}  # type: ignore[assignment]
    event.timestamp = Decimal("1.5")  # type: ignore[assignment]
    await sessions.append_event(session, event)
    (read,) = (await stored(sessions)).events
    assert texts([read]) == ["hello"]
    assert is_exactly(read.timestamp, 1.5)
    assert is_exactly(event.timestamp, 1.5)


# --- Replaced on request


@pytest.mark.parametrize("on_bad_value", ["ignore", "", None, True])
def test_an_unknown_way_is_refused_before_anything_is_opened(
    on_bad_value: Any, tmp_path: Path
) -> None:
    """A misspelt option does not become the default one."""
    with pytest.raises(ConfigurationError, match="on_bad_value must be 'refuse' or 'replace'"):
        DurableSessionService.from_url(file_url(tmp_path), on_bad_value=on_bad_value)
    assert list(tmp_path.iterdir()) == []


def replacing(place: Place) -> DurableSessionService:
    """Returns a service that replaces what cannot be kept."""
    return DurableSessionService.from_url(place.url, on_bad_value="replace")


async def test_replaced_values_are_said_in_the_event_and_agree_everywhere(place: Place) -> None:
    """`memext_replaced` lists the paths; event, live session and reloaded session are the same."""
    async with replacing(place) as sessions:
        session = await sessions.create_session(**KEY)
        for number, (name, bad) in enumerate(BAD.items()):
            delta = {f"{prefix}{number}": {"a": [copy.deepcopy(bad.value)]} for prefix in SCOPES}
            event = said(name, state={"fine": number, **delta})
            returned = await sessions.append_event(session, event)
            assert returned is event
            assert event.custom_metadata is not None
            noted = event.custom_metadata["memext_replaced"]
            assert [path for path in noted if path.startswith(f"user:{number}.a[0]")]
            expected = {"fine": number} | {
                f"{prefix}{number}": {"a": [bad.replacement]} for prefix in SCOPES
            }
            assert is_exactly(event.actions.state_delta, expected), name
            assert session.state.items() >= expected.items()
            assert await stored(sessions) == session, name
        assert session.state["user:0"] == {"a": [None]}


async def test_replaced_parts_of_an_event_agree_everywhere(place: Place) -> None:
    """A text, an argument or a key that was replaced is the same in memory and after a reload."""
    async with replacing(place) as sessions:
        session = await sessions.create_session(**KEY)
        for name, (make, path) in BAD_EVENTS.items():
            event = make()
            event.custom_metadata = {**(event.custom_metadata or {}), "mine": 1}
            actions = event.actions
            await sessions.append_event(session, event)
            assert event.custom_metadata["memext_replaced"] == [path], name
            assert event.custom_metadata["mine"] == 1
            assert event.actions is actions  # a tool's context holds on to it
            assert await stored(sessions) == session, name
        assert session.events[0].content == types.Content(
            role="user", parts=[types.Part(text=f"{SECRET}\ufffd")]
        )


async def test_a_second_delivery_of_a_replaced_event_is_the_same_event(place: Place) -> None:
    """A retry with the event as it was given, or as it was returned, stores nothing more."""
    async with replacing(place) as sessions:
        session = await sessions.create_session(**KEY)
        event = said("a\0b", state={"x": {1: NAN}})
        given = event.model_copy(deep=True)
        await sessions.append_event(session, event)
        await sessions.append_event(session, event)
        await sessions.append_event(await stored(sessions), given)
        assert given == event
        assert (await stored(sessions)).events == [event]


async def test_what_a_creation_replaced_is_said_in_the_log(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """There is no event to say it in, so a warning lists the paths, and no value."""
    async with replacing(place) as sessions:
        with caplog.at_level(logging.WARNING, "adk_memory_ext"):
            session = await sessions.create_session(
                **KEY, state={"user:a": f"{SECRET}\0", "b": [NAN], "temp:c": NAN, "d": 1}
            )
            await sessions.state.update_user({"e": SECRET.encode()}, **OWNER)
        assert session.state.pop("temp:c") is NAN
        assert session.state == {"user:a": f"{SECRET}\ufffd", "b": [None], "d": 1}
        assert (await stored(sessions)).state == session.state | {"user:e": "aHVudGVyMg=="}
    messages = [record.getMessage() for record in caplog.records]
    assert [message.rpartition(": ")[2] for message in messages] == ["user:a, b[0]", "user:e"]
    assert SECRET not in caplog.text


async def test_keys_that_are_no_text_are_replaced_at_the_top_too(place: Place) -> None:
    """A delta's own key 1 becomes "1"; where there is a "1" already, nothing is written."""
    async with replacing(place) as sessions:
        session = await sessions.create_session(**KEY)
        event = said("x")
        event.actions.state_delta[1] = "one"  # type: ignore[index]  # what a tool may do
        await sessions.append_event(session, event)
        assert await stored(sessions) == session
        assert session.state == {"1": "one"}
        twice = said("x", state={"1": "a"})
        twice.actions.state_delta[1] = "b"  # type: ignore[index]
        with pytest.raises(StateRejectedError, match="two keys"):
            await sessions.append_event(session, twice)
        assert await stored(sessions) == session


# --- Kept


async def test_any_good_value_is_kept_exactly(sessions: DurableSessionService) -> None:
    """In each scope, by creation and by append, in type and value, floats bit by bit."""
    created = {f"{scope}{name}": value for scope in SCOPES for name, value in GOOD.items()}
    session = await sessions.create_session(**KEY, state=created)
    assert is_exactly((await stored(sessions)).state, created)
    appended = {f"{key} again": value for key, value in created.items()}
    await sessions.append_event(session, said("x", state=appended))
    read = await stored(sessions)
    assert is_exactly(read.state, created | appended)
    assert is_exactly(session.state, created | appended)
    assert is_exactly(read.events[0].actions.state_delta, appended)


async def test_any_good_value_is_kept_exactly_in_an_event(
    sessions: DurableSessionService,
) -> None:
    """Arguments, answers and metadata come back as they went in."""
    session = await sessions.create_session(**KEY)
    # An argument is nested in the arguments.
    values = {name: value for name, value in GOOD.items() if "deepest" not in name}
    values["the deepest"] = nested(MAX_DEPTH - 1)
    event = called("tool", values)
    event.custom_metadata = values
    await sessions.append_event(session, event)
    await sessions.append_event(session, answered("tool", values))
    await sessions.append_event(session, said("\n".join(map(str, GOOD["texts"])) + "\U0010ffff"))
    read = await stored(sessions)
    assert read == session
    assert is_exactly(read.events[0].get_function_calls()[0].args, values)
    assert is_exactly(read.events[0].custom_metadata, values)
    assert is_exactly(read.events[1].get_function_responses()[0].response, values)


async def test_the_sign_of_zero_is_kept_where_the_database_has_one(
    backend: Backend, sessions: DurableSessionService
) -> None:
    """PostgreSQL's numbers know no -0.0; what it gives back is equal."""
    await sessions.create_session(**KEY, state={"zero": -0.0})
    zero = (await stored(sessions)).state["zero"]
    assert is_exactly(zero, 0.0 if backend.storage == "postgresql" else -0.0)


async def test_bytes_where_adk_has_a_place_for_them_are_kept(
    sessions: DurableSessionService,
) -> None:
    """An attachment's bytes and a thought's signature are no bad values."""
    session = await sessions.create_session(**KEY)
    data = bytes(range(256))
    blob = types.Blob(data=data, mime_type="image/png")
    event = _part(inline_data=blob, thought_signature=b"\xff\x00")
    await sessions.append_event(session, event)
    assert await stored(sessions) == session
    assert event.content == types.Content(
        role="model", parts=[types.Part(inline_data=blob, thought_signature=b"\xff\x00")]
    )


async def test_many_keys_and_long_texts_are_kept(
    backend: Backend, sessions: DurableSessionService
) -> None:
    """40,000 keys and a text of 16 MB; a server that takes less says so, and nothing is written."""
    many = {f"key {number}": number for number in range(40_000)}
    session = await sessions.create_session(**KEY, state=many)
    assert (await stored(sessions)).state == many
    long = 'ä"\\' * 2_000_000  # 16 MB as JSON
    if backend.storage == "mariadb":
        before = session.model_copy(deep=True)
        for key in ("long", "user:long"):
            with pytest.raises(StateRejectedError, match="max_allowed_packet") as caught:
                await sessions.append_event(session, said("x", state={key: long, "a": 1}))
            # The event is written after the states of the user and the app, before the session's.
            assert caught.value.key in (key, "actions")
        with pytest.raises(StateRejectedError, match="'content' and"):
            await sessions.append_event(session, said(long))
        with pytest.raises(StateRejectedError, match="'long' and"):
            await sessions.create_session(**OWNER, state={"long": long})
        assert session == before
    else:
        await sessions.append_event(session, said(long, state={"user:long": long}))
    assert await stored(sessions) == session
    await sessions.append_event(session, said("next"))


async def test_values_of_pythons_types_agree_everywhere_at_once(
    sessions: DurableSessionService,
) -> None:
    """Live session, returned event and reloaded session hold the same, from the first moment."""
    given = {f"{scope}{name}": value for scope in SCOPES for name, (value, _) in PYTHON.items()}
    expected = {f"{scope}{name}": plain for scope in SCOPES for name, (_, plain) in PYTHON.items()}
    created = await sessions.create_session(**KEY, state=given)
    assert is_exactly(created.state, expected)
    assert is_exactly((await stored(sessions)).state, expected)

    session = await sessions.create_session(app_name="app", user_id="bob", session_id="session")
    event = said("x", state=given)
    returned = await sessions.append_event(session, event)
    assert is_exactly(returned.actions.state_delta, expected)
    assert is_exactly(session.state, expected)
    assert await stored(sessions, {**KEY, "user_id": "bob"}) == session
    assert is_exactly(await sessions.state.update(given, **KEY), expected)


async def test_what_a_tool_returned_agrees_everywhere_at_once(
    sessions: DurableSessionService,
) -> None:
    """An answer with a model, a date or a tuple inside is in memory what a reload gives."""
    session = await sessions.create_session(**KEY)
    given = {name: value for name, (value, _) in PYTHON.items()}
    plain = {name: plain for name, (_, plain) in PYTHON.items()}
    event = answered("tool", {"report": Report(mean=1), **given})
    event.custom_metadata = dict(given)
    await sessions.append_event(session, event)
    response = {"report": {"mean": 1.0, "note": None}, **plain}
    assert is_exactly(event.get_function_responses()[0].response, response)
    assert is_exactly(event.custom_metadata, plain)
    assert await stored(sessions) == session


async def test_what_a_node_hands_on_stays_its_own_object(
    sessions: DurableSessionService,
) -> None:
    """The output of a workflow's node is stored as JSON and stays a model in memory."""
    session = await sessions.create_session(**KEY)
    output = Report(mean=0.5)
    event = _with(output=output)
    await sessions.append_event(session, event)
    assert event.output is output
    assert (await stored(sessions)).events[0].output == {"mean": 0.5, "note": None}


async def test_state_in_memory_shares_nothing_with_the_event(
    sessions: DurableSessionService,
) -> None:
    """Changing a list of the live session in place changes no event, and the other way round."""
    session = await sessions.create_session(**KEY, state={"a": {"b": [1]}})
    given = {"list": [1], "user:map": {"a": [1]}}
    event = said("x", state=given)
    await sessions.append_event(session, event)
    given["list"].append("given")  # type: ignore[attr-defined]
    session.state["list"].append("session")
    session.state["user:map"]["a"].append("session")
    assert event.actions.state_delta == {"list": [1], "user:map": {"a": [1]}}
    event.actions.state_delta["list"].append("event")
    assert session.state["list"] == [1, "session"]
    assert (await stored(sessions)).state == {"a": {"b": [1]}, "list": [1], "user:map": {"a": [1]}}


# --- What plain ADK stored


async def test_what_plain_adk_stored_and_reads_can_be_read(tmp_path: Path) -> None:
    """Lone surrogates, NaN and nesting beyond our limit in ADK's own rows break no session."""
    url = file_url(tmp_path)
    async with DatabaseSessionService(url) as plain:
        session = await plain.create_session(**KEY, state={"n": NAN, "s": "\ud800"})
        for event in (said("a\ud800\0"), called("tool", {"deep": nested(220), "nan": NAN})):
            await plain.append_event(session, event)
        expected = await plain.get_session(**KEY)
    assert expected is not None
    async with DurableSessionService.from_url(url) as sessions:
        read = await stored(sessions)
        assert read.model_dump(exclude={"state"}) == expected.model_dump(exclude={"state"})
        assert read.state["s"] == "\ud800"
        await sessions.append_event(read, said("next", state={"more": 1}))
        assert len((await stored(sessions)).events) == 3


async def test_an_event_that_is_none_is_named_and_not_shown(tmp_path: Path) -> None:
    """A row that somebody spoilt is an error with the session's id and nothing of the row."""
    url = file_url(tmp_path)
    async with DurableSessionService.from_url(url) as sessions:
        session = await sessions.create_session(**KEY)
        await sessions.append_event(session, said("x"))
        run(url, 'UPDATE events SET event_data = \'{"author": ["hunter2"]}\'')
        with pytest.raises(CorruptRecordError, match="'session'") as caught:
            await sessions.get_session(**KEY)
        run(url, "UPDATE events SET event_data = NULL")
        with pytest.raises(CorruptRecordError, match="'session'"):
            await sessions.get_session(**KEY)
        run(url, "UPDATE sessions SET state = '[\"hunter2\"]'")
        with pytest.raises(CorruptRecordError) as also:
            await sessions.get_session(**KEY)
    assert SECRET not in written(caught.value) + written(also.value)
