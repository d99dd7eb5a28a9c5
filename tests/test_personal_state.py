"""A `personal` value stands in its session and in no record beside it."""

from __future__ import annotations

import asyncio
import json
import logging
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import MetaData, select

from adk_memory_ext import CheckpointPolicy, DurableSessionService, StatePolicy, StateRule
from adk_memory_ext.policy.personal import PERSONAL, PIECE, Personal
from backends import count
from conversation import said
from people import OWN, SESSION
from tables import file_url, within

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy.engine import Connection

    from adk_memory_ext import Checkpoint

RECORDS: Final = ("memext_checkpoint", "memext_erasures", "memext_receipts")
MARK: Final = "Ann-1990-03-履"
"""Stands in every personal value."""
POLICY: Final = StatePolicy(
    rules=[
        StateRule("resume_text", sensitivity="personal"),
        StateRule("note_*", sensitivity="personal"),
        StateRule("note_public"),
        StateRule("user:email", sensitivity="personal"),
    ]
)
VALUES: Final = st.sampled_from(
    [MARK, f"born {MARK}", [MARK], {"born": {"at": MARK}}, f"{MARK} " * 40]
)
STEPS: Final = st.lists(
    st.tuples(
        st.dictionaries(
            st.sampled_from(["resume_text", "note_1", "note_", "user:email"]), VALUES, max_size=3
        ),
        st.sampled_from(["append", "state"]),
        st.booleans(),
    ),
    min_size=1,
    max_size=5,
)


def beside(connection: Connection) -> str:
    """Returns everything that the tables of checkpoints and receipts hold."""
    tables = MetaData()
    tables.reflect(connection, only=lambda name, _: name.startswith(RECORDS))
    assert len(tables.tables) == 5
    rows = [connection.execute(select(table)).all() for table in tables.sorted_tables]
    return json.dumps(rows, default=str, ensure_ascii=False)


def stored_bytes(folder: Path) -> bytes:
    """Returns the bytes of every file in a folder."""
    return b"".join(file.read_bytes() for file in sorted(folder.iterdir()))


@settings(max_examples=count(15, 300))
@given(STEPS)
def test_no_write_takes_a_personal_value_into_a_checkpoint(
    steps: Sequence[tuple[dict[str, Any], Any, bool]],
) -> None:
    """Whoever asks for it: the event, or the app; also where its summary says the value."""
    asyncio.run(_play(steps))


async def _play(steps: Sequence[tuple[dict[str, Any], Any, bool]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        url = file_url(Path(folder))
        async with DurableSessionService.from_url(url, policy=POLICY) as sessions:
            session = await sessions.create_session(**SESSION, state={"note_public": "kept"})
            for number, (delta, way, _says_it) in enumerate(steps):
                if way == "state":
                    await sessions.state.update(delta, **SESSION)
                    await sessions.catch_up(session, whole=True)
                else:
                    await sessions.append_event(session, said("x", state=delta))
                await _checkpoint(sessions, number, steps)
            points = await sessions.checkpoints.list(**SESSION)
            assert len(points) == len(steps)
            for point in points:
                assert await sessions.checkpoints.state(point.id) == {"note_public": "kept"}
        assert MARK not in within(url, beside)


async def _checkpoint(
    sessions: DurableSessionService,
    number: int,
    steps: Sequence[tuple[dict[str, Any], Any, bool]],
) -> Checkpoint:
    """Makes a checkpoint, and has its summary say what stands in state where the step wants so."""
    delta, _way, says_it = steps[number]
    session = await sessions.get_session(**SESSION)
    assert session is not None
    texts = [value for value in delta.values() if isinstance(value, str)]
    summary = f"step {number}: {', '.join(texts)}" if says_it else f"step {number}"
    return await sessions.checkpoints.create(session, step=f"step {number}", summary=summary)


async def test_a_personal_value_comes_back_from_the_log_alone(tmp_path: Path) -> None:
    """As long as its session is there; when that has expired it is absent and reported."""
    url = file_url(tmp_path)
    async with DurableSessionService.from_url(url, policy=POLICY) as sessions:
        created = {"resume_text": MARK, "step": "read", "note_public": "kept"}
        session = await sessions.create_session(**SESSION, state=created)
        await sessions.append_event(session, said("x", invocation="i"))
        point = await sessions.checkpoints.create(
            session, step="read", summary=f"Read the résumé of {MARK}."
        )
        assert point.summary == "Read the résumé of [personal]."
        await sessions.append_event(
            session, said("y", invocation="j", state={"resume_text": "", "step": "asked"})
        )
        await sessions.checkpoints.restore(point.id)
        back = await sessions.get_session(**SESSION)
        assert back is not None
        assert {key: back.state[key] for key in created} == created
        await sessions.wrapped.delete_session(**SESSION)
        restored = await sessions.checkpoints.restore(point.id)
        assert restored.missing == ("resume_text",)
        back = await sessions.get_session(**SESSION)
        assert back is not None
        assert back.state == {"step": "read", "note_public": "kept"}


@pytest.mark.parametrize("scoped", [False, True])
@pytest.mark.parametrize("foreign", [False, True])
async def test_no_quotation_of_a_personal_value_gets_into_a_record(
    foreign: bool, scoped: bool, tmp_path: Path
) -> None:
    """A piece of a text, a name in an object, a value of another scope, a reference to one."""
    url = file_url(tmp_path)
    options: dict[str, Any] = {
        "policy": POLICY,
        "checkpoint_policy": CheckpointPolicy(scoped=scoped),
    }
    service = (
        DurableSessionService(InMemorySessionService(), store=url, **options)
        if foreign
        else DurableSessionService.from_url(url, **options)
    )
    async with service as sessions:
        created = {
            "resume_text": "kept the lighthouse of Avonlea for eleven years",
            "note_1": {"Bob Marley": 61973},
            "user:email": "ann@avonlea.ca",
            "step": "read",
        }
        session = await sessions.create_session(**SESSION, state=created)
        point = await sessions.checkpoints.create(
            session,
            step="read",
            workflow="for ann@avonlea.ca",
            summary="kept the lighthouse…, step 1: knows Bob Marley",
            references={"mail": "ann@avonlea.ca", "order": "A-61973-7", "number": 61973},
        )
    assert point.summary == "[personal]…, step 1: knows [personal]"
    assert point.workflow == "for [personal]"
    assert point.references == {"mail": PERSONAL, "order": "A-61973-7", "number": PERSONAL}
    rows = within(url, beside)
    for piece in ("lighthouse", "Bob Marley", "avonlea.ca"):
        assert piece not in rows


@given(
    st.text(min_size=PIECE, max_size=60),
    st.text(max_size=40),
    st.text(max_size=40),
    st.tuples(st.integers(0, 48), st.integers(PIECE, 60)),
)
def test_no_piece_of_a_personal_value_is_left_in_a_text(
    value: str, before: str, after: str, cut: tuple[int, int]
) -> None:
    """Whatever part of it is quoted, and whatever stands around."""
    start, length = cut
    text = before + value[start : start + length] + after
    left = Personal(frozenset({value})).out_of_text(text)
    pieces = {value[at : at + PIECE] for at in range(len(value) - PIECE + 1)}
    assert not [piece for piece in pieces if piece in left and PERSONAL not in piece]
    if not any(piece in text for piece in pieces):
        assert left == text


async def test_a_policy_for_checkpoints_keeps_what_it_says(tmp_path: Path) -> None:
    """Its own `personal` keys stay out as well as those of the state's policy."""
    url = file_url(tmp_path)
    async with DurableSessionService.from_url(
        url, policy=POLICY, checkpoint_policy=CheckpointPolicy(personal=("address",))
    ) as sessions:
        state = {"resume_text": MARK, "address": MARK, "step": "read"}
        session = await sessions.create_session(**SESSION, state=state)
        point = await sessions.checkpoints.create(session, step="read")
        assert await sessions.checkpoints.state(point.id) == {"step": "read"}


async def test_an_erasure_finds_personal_values_and_says_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither its receipt nor the log at its finest says one; the bytes are gone."""
    caplog.set_level(logging.DEBUG)
    url = file_url(tmp_path)
    async with DurableSessionService.from_url(url, policy=POLICY) as sessions:
        state = {"resume_text": MARK, "note_1": {"born": MARK}, "user:email": MARK}
        session = await sessions.create_session(**SESSION, state=state)
        session.state["note_2"] = MARK  # a direct write is warned of
        await sessions.append_event(session, said("x"))
        await sessions.checkpoints.create(session, step="read", summary=MARK)
        receipt = await sessions.erasure.erase_user(**OWN, requested_by="the person")
        assert MARK not in receipt.to_json()
        assert MARK not in str(receipt)
        assert MARK not in within(url, beside)
    assert MARK not in caplog.text
    assert MARK.encode() not in stored_bytes(tmp_path)
