"""No sequence of writes gets a forbidden value to disk, and none that is allowed is lost."""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hypothesis import given, settings
from hypothesis import strategies as st

from adk_memory_ext import DurableSessionService, Remove, StatePolicy, StateRule
from adk_memory_ext.errors import StateRejectedError
from backends import count
from conversation import said

if TYPE_CHECKING:
    from collections.abc import Sequence

OWNER: Final[dict[str, Any]] = {"app_name": "app", "user_id": "ann"}
FORBIDDEN_TEXT: Final = "forbidden-9b1f77"
"""Written where no rule lets it be."""
SECRET: Final = "hunter22-5a01"  # noqa: S105  # to be searched for
"""Held by a secret key, and echoed where a text may be."""
RULES: Final = [
    StateRule("number", type=int),
    StateRule("user:number", type=int),
    StateRule("small", max_bytes=20),
    StateRule("user:text", type=str),
    StateRule("temp:token", sensitivity="secret"),
    StateRule("temp:*"),
    StateRule("free"),
]
ALLOWED: Final = [
    ("number", st.integers(-9, 9)),
    ("user:number", st.integers(-9, 9)),
    ("small", st.text(st.characters(codec="ascii", exclude_categories=["C"]), max_size=9)),
    ("user:text", st.sampled_from(["a", "b"])),
    ("free", st.lists(st.integers(0, 3), max_size=3)),
]
FORBIDDEN: Final = st.sampled_from(
    [
        ("number", FORBIDDEN_TEXT),
        ("user:number", {"a": FORBIDDEN_TEXT}),
        ("small", FORBIDDEN_TEXT * 2),
        ("user:text", [FORBIDDEN_TEXT]),
        ("app:text", FORBIDDEN_TEXT),
        ("User:text", FORBIDDEN_TEXT),
        ("session:free", FORBIDDEN_TEXT),
        ("undeclared", FORBIDDEN_TEXT),
        ("user:", FORBIDDEN_TEXT),
    ]
)
ECHOES: Final = st.sampled_from([("free", SECRET), ("user:text", f"<{SECRET}>")])
GOOD: Final = st.one_of(
    *(st.tuples(st.just(key), values) for key, values in ALLOWED),
    st.tuples(st.sampled_from([key for key, _ in ALLOWED]), st.just(Remove())),
)
WRITES: Final = st.lists(
    st.tuples(
        st.sampled_from(["append", "state", "direct", "create"]),
        st.lists(st.one_of(GOOD, GOOD, FORBIDDEN, ECHOES), min_size=1, max_size=3).map(dict),
    ),
    max_size=6,
)


@settings(max_examples=count(15, 300))
@given(WRITES, st.sampled_from(["raise", "drop"]))
def test_forbidden_values_reach_no_byte_and_allowed_ones_are_kept(
    writes: Sequence[tuple[str, dict[str, Any]]], on_refused: Any
) -> None:
    """The bytes of every file are searched, and the state is that of a model of the writes."""
    asyncio.run(_play(writes, on_refused))


async def _play(writes: Sequence[tuple[str, dict[str, Any]]], on_refused: Any) -> None:
    policy = StatePolicy(
        rules=RULES,
        undeclared="reject",
        scopes={"session", "user", "temp"},
        on_refused=on_refused,
    )
    model: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/sessions.db"
        async with DurableSessionService.from_url(url, policy=policy) as service:
            session = await service.create_session(**OWNER, state={"temp:token": SECRET})
            for way, delta in writes:
                accepted = await _write(service, session, way, delta)
                for key, value in accepted.items():
                    if way == "create" and not key.startswith("user:"):
                        continue
                    if isinstance(value, Remove):
                        model.pop(key, None)
                    else:
                        model[key] = value
            found = await service.get_session(**OWNER, session_id=session.id)
            assert found is not None
            assert found.state == model
            held = {key: value for key, value in session.state.items() if key != "temp:token"}
            assert {key: held[key] for key in held if not key.startswith("user:")} == {
                key: model[key] for key in model if not key.startswith("user:")
            }
        stored = _bytes(Path(folder))
        assert SECRET.encode() not in stored
        assert FORBIDDEN_TEXT.encode() not in stored


def _bytes(folder: Path) -> bytes:
    files = sorted(folder.iterdir())
    return subprocess.run(["cat", *files], check=True, capture_output=True).stdout


async def _write(
    service: DurableSessionService, session: Any, way: str, delta: dict[str, Any]
) -> dict[str, Any]:
    """Writes a delta in one way and returns what of it should be stored."""
    is_echo = {key for key, value in delta.items() if value in (SECRET, f"<{SECRET}>")}
    # Only the session that holds the secret can know an echo of it.
    if way in ("state", "create"):
        delta = {
            key: value
            for key, value in delta.items()
            if not (key in is_echo and key in ("free", "user:text"))
        }
    good = {key: value for key, value in delta.items() if _is_allowed(key, value)}
    try:
        if way == "append":
            await service.append_event(session, said(SECRET, state=delta))
        elif way == "direct":
            for key, value in delta.items():
                session.state[key] = value
            await service.append_event(session, said("x"))
        elif way == "create":
            await service.create_session(**OWNER, state=delta)
        else:
            await service.state.update(delta, **OWNER, session_id=session.id)
            await service.catch_up(session, whole=True)
    except StateRejectedError:
        assert good != delta
        return {}
    redacted = {"free": "[secret]", "user:text": "<[secret]>"}
    return {
        key: redacted[key] if isinstance(value, str) and SECRET in value else value
        for key, value in good.items()
    }


def _is_allowed(key: str, value: Any) -> bool:
    if isinstance(value, Remove):
        return not key.startswith("app:")
    if (key, value) in [("free", SECRET), ("user:text", f"<{SECRET}>")]:
        return True
    return key in {name for name, _ in ALLOWED} and FORBIDDEN_TEXT not in str(value)
