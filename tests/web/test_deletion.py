"""`DELETE …/sessions/{id}` really erases, and a server finishes what another one left."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from typing import TYPE_CHECKING, Final

import pytest

from adk_memory_ext.erasure.receipts import Receipt
from adk_server import USER
from residues import residue
from servers import HANG_SECONDS

if TYPE_CHECKING:
    from pathlib import Path

    from adk_server import AdkProject, Serve

ECHO: Final = "echo"
WORDS: Final = "kept the lighthouse of Avonlea for nine years"


def stored_receipts(path: Path) -> list[Receipt]:
    """Returns the receipts in a database; a service would finish what is pending."""
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT receipt FROM memext_receipts").fetchall()
    return [Receipt.from_json(text) for (text,) in rows]


def interrupted(path: Path) -> None:
    """Leaves a user's erasure as a process leaves it that is killed before the rows are gone."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(
            "INSERT INTO memext_erasures"
            " (erasure_id, begun_microseconds, kind, app_name, user_id, facts)"
            """ VALUES ('1', 1, 'user', ?, ?, '{"kind": "user", "subject": "", """
            """"requested_by": null, "counts": {}}')""",
            (ECHO, USER),
        )
        connection.commit()


@pytest.mark.parametrize("command", ["api_server", "web"])
def test_a_delete_leaves_no_word(command: str, project: AdkProject, serve: Serve) -> None:
    """After `DELETE …/sessions/{id}` no piece of what was said is in any file of the database."""
    server = serve("memext+sqlite:///sessions.db", command=command)
    path = project.root / "sessions.db"
    server.create_session(ECHO, "talk", {"note": WORDS})
    server.run(ECHO, "talk", WORDS)
    assert WORDS.encode() in b"".join(
        file.read_bytes() for file in path.parent.glob(f"{path.name}*")
    )
    server.delete_session(ECHO, "talk")
    assert server.sessions(ECHO) == []
    assert residue(path, [WORDS], sqlite3) == []
    assert [receipt.verified for receipt in stored_receipts(path)] == [True]


def test_a_server_finishes_what_another_one_left(project: AdkProject, serve: Serve) -> None:
    """An erasure that was cut off is finished at the first request to the next server."""
    server = serve("memext+sqlite:///sessions.db", command="api_server")
    path = project.root / "sessions.db"
    server.create_session(ECHO, "talk", {"user:note": WORDS})
    server.run(ECHO, "talk", WORDS)
    server.kill()
    interrupted(path)
    server.start()
    server.create_session(ECHO, "another")
    deadline = time.monotonic() + HANG_SECONDS
    while not (receipts := stored_receipts(path)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert [receipt.verified for receipt in receipts] == [True]
    assert residue(path, [WORDS], sqlite3) == []
