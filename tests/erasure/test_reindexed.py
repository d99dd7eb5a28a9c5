"""A few pieces that the rebalancing of indexes has left go without rewriting the whole file."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from adk_memory_ext import DurableSessionService
from adk_memory_ext.erasure import residue as search
from adk_memory_ext.erasure.sqlite_file import FileWork
from conversation import said
from residues import residue

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("nothing_left")


async def test_indexes_are_rewritten_before_the_file_is(tmp_path: Path) -> None:
    """What only an index has kept of a user costs a REINDEX, and no VACUUM."""
    path = tmp_path / "sessions.db"
    async with DurableSessionService.from_url(f"sqlite:///{path}") as sessions:
        for number in range(3):
            session = await sessions.create_session(
                app_name="app", user_id=f"somebody-{number:04}", session_id=f"talk-{number:04}"
            )
            for turn in range(5):
                await sessions.append_event(session, said(f"{turn} of {session.user_id}"))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA secure_delete=OFF").fetchall()
        connection.execute("CREATE TABLE notes (number INTEGER PRIMARY KEY, who TEXT)")
        connection.execute("CREATE INDEX notes_by_who ON notes (who)")
        names = [*(f"a-friend-{n:04}" for n in range(900)), "somebody-0001"]
        connection.executemany("INSERT INTO notes (who) VALUES (?)", [(name,) for name in names])
        # The row is changed in place; its old entry in the index stays in a free block.
        connection.execute("UPDATE notes SET who = 'a-friend-0000' WHERE who = 'somebody-0001'")
        connection.commit()
    async with DurableSessionService.from_url(f"sqlite:///{path}") as sessions:
        receipt = await sessions.erasure.erase_user(app_name="app", user_id="somebody-0001")
    assert receipt.verified
    assert 0 < receipt.residue_found < search.ENOUGH
    assert receipt.residue_left == 0
    assert receipt.steps["reindex"] == "done"
    assert "vacuum" not in receipt.steps
    assert residue(path, ["somebody-0001", "talk-0001", "3 of somebody-0001"], sqlite3) == []


@pytest.mark.parametrize(
    "value", ["plain words", 'with "quotes"', "Zürich", "燈塔管理員", "a\tb long"]
)
def test_every_form_of_a_value_is_searched_for(value: str) -> None:
    """Both kinds of forms together are UTF-8 and UTF-16 of the bare text and of its JSON."""
    together = search.forms(value, padded=False) | search.forms(value, padded=True)
    for encoding in search.ENCODINGS:
        assert value.encode(encoding) in together
        for escaped in (repr_of(value, ascii_only=True), repr_of(value, ascii_only=False)):
            assert escaped.encode(encoding) in together
    for form in search.forms(value, padded=True):
        found = search.ResidueSearch([value], lambda _piece: False)
        found.run([b"\x01\x02" + form[1:25]])
        assert found.residue == {0} or len(form) < search.PIECE


def repr_of(value: str, *, ascii_only: bool) -> str:
    """Returns a text as it stands inside JSON."""
    return json.dumps(value, ensure_ascii=ascii_only)[1:-1]


async def test_what_there_was_no_time_to_look_for_is_looked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quick look that could not search the live rows is followed by one that does."""
    from adk_memory_ext.erasure import physical

    looks: list[dict[str, Any]] = []

    async def look(_path: Path, _values: object, **options: Any) -> FileWork:
        looks.append(options)
        if len(looks) == 1:
            return FileWork(residue=search.ENOUGH, unsure=True)
        return FileWork(verified=True, shared=3)

    monkeypatch.setattr(physical, "work_on_file", look)
    async with DurableSessionService.from_url(f"sqlite:///{tmp_path}/sessions.db") as sessions:
        await sessions.create_session(app_name="app", user_id="ann", session_id="one")
        receipt = await sessions.erasure.erase_user(app_name="app", user_id="ann")
    assert receipt.verified
    assert [one.get("quick", False) for one in looks] == [True, False]
    assert not any(one["vacuum"] or one.get("reindex") for one in looks)
