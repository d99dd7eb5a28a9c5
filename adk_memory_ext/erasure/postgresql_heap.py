"""PostgreSQL: rewriting the tables that rows were deleted from, and looking at what is left there.

What can be looked at depends on rights: `pageinspect` where it is installed, else the files
themselves, which the server hands to superusers and to whom it is granted. What TOAST has
compressed cannot be searched, whichever way.
"""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import text

from adk_memory_ext.erasure.residue import ENCODINGS, ResidueSearch
from adk_memory_ext.erasure.sqlite_file import FileWork
from adk_memory_ext.erasure.stored_rows import STORES
from adk_memory_ext.errors import StoreError
from adk_memory_ext.schema import memext_erasures

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from adk_memory_ext.server_database import ServerDatabase
    from adk_memory_ext.statements import Transaction

_TABLES: Final = tuple(dict.fromkeys([*(store.table.name for store in STORES), "memext_erasures"]))
_LOCK_SECONDS: Final = 10
"""How long a rewrite waits for those who use a table, and everybody else behind it."""
_PATIENCE_SECONDS: Final = 30
_PAGE: Final = 8192
_PAGES: Final = 256
"""Read at once."""
_RELATIONS: Final = """
WITH own AS (SELECT oid, reltoastrelid FROM pg_class WHERE oid = ANY(CAST(:oids AS oid[]))),
     heaps AS (SELECT oid FROM own UNION SELECT reltoastrelid FROM own WHERE reltoastrelid <> 0)
SELECT oid FROM heaps
UNION SELECT indexrelid FROM pg_index WHERE indrelid IN (SELECT oid FROM heaps)
"""
_WITH_PAGEINSPECT: Final = """
SELECT get_raw_page(CAST(CAST(CAST(:oid AS oid) AS regclass) AS text), page)
FROM generate_series(CAST(:first AS bigint), CAST(:last AS bigint)) AS page
"""
_WITH_FILES: Final = """
SELECT pg_read_binary_file(pg_relation_filepath(CAST(CAST(:oid AS oid) AS regclass)) || :segment,
                           :place, :length, true)
"""
_SEGMENT_PAGES: Final = 131_072
"""In one file of a relation, of 1 GiB."""


async def wait_for_older_transactions(database: ServerDatabase) -> None:
    """Returns when every transaction has ended that was open on the server, half a minute at most.

    What such a one might still read would be copied by a rewrite, whichever database it is in.
    """
    newest = await database.write(lambda tx: _number(tx, "txid_current()"))
    deadline = time.monotonic() + _PATIENCE_SECONDS
    oldest = 0
    while oldest <= newest and time.monotonic() < deadline:
        oldest = await database.read(
            lambda tx: _number(tx, "txid_snapshot_xmin(txid_current_snapshot())")
        )
        await asyncio.sleep(0.05)


def _number(tx: Transaction, expression: str) -> int:
    return int(tx.connection.execute(text(f"SELECT {expression}")).scalar_one())


async def vacuum(database: ServerDatabase, *, full: bool) -> dict[str, str]:
    """Vacuums the tables that hold sessions; returns how it went.

    A plain VACUUM frees the room of dead rows and leaves their bytes; a full one rewrites tables,
    indexes and all, and keeps everybody from each table meanwhile.
    """
    before = await database.read(_file_nodes)
    how = "FULL, ANALYZE" if full else "ANALYZE"
    name = "vacuum full" if full else "vacuum"
    try:
        await database.run_alone(
            f"SET lock_timeout = '{_LOCK_SECONDS}s'",
            *(f'VACUUM ({how}) "{table}"' for table in before),
        )
    except StoreError as error:
        return {name: f"failed: {error}"}
    after = await database.read(_file_nodes)
    # Tables of somebody else are passed over with a warning, and keep their files.
    passed_over = [table for table, node in before.items() if full and after.get(table) == node]
    if passed_over:
        return {name: f"failed: no right to rewrite {', '.join(passed_over)}"}
    steps = {name: "done"}
    if full:
        try:
            await database.run_alone('VACUUM (FULL) "pg_catalog"."pg_statistic"', "CHECKPOINT")
            steps["statistics and checkpoint"] = "done"
        except StoreError as error:
            steps["statistics and checkpoint"] = f"not done: {error}"
    return steps


async def search(database: ServerDatabase, values: Sequence[str]) -> FileWork:
    """Looks for pieces of the values in every page of the tables, their TOAST and their indexes."""
    reader = _PageReader(database, asyncio.get_running_loop())
    try:
        relations = await database.read(_relations)
        has_pageinspect = await database.read(_has_pageinspect)
    except StoreError as error:
        return FileWork(error=str(error))
    live = _LiveRows(reader)
    finder = ResidueSearch(values, live.hold, patience_seconds=None)
    pages = reader.pages(relations, has_pageinspect=has_pageinspect)
    try:
        await asyncio.to_thread(finder.run, pages)
    except StoreError as error:
        return FileWork(error=f"the pages could not be read: {error}")
    finally:
        reader.close()
    return FileWork(
        verified=not finder.residue,
        residue=len(finder.residue),
        shared=len(finder.shared - finder.residue),
        steps={"search": "pageinspect" if has_pageinspect else "files"},
        files={"tables": {"bytes": reader.read_bytes, "searched_bytes": finder.searched_bytes}},
        encodings=ENCODINGS,
    )


def _oids(tx: Transaction) -> dict[str, int]:
    rows = tx.connection.execute(
        text(
            "SELECT name, CAST(to_regclass(name) AS oid) FROM unnest(CAST(:names AS text[])) name"
        ),
        {"names": list(_TABLES)},
    )
    return {name: oid for name, oid in rows.all() if oid is not None}


def _file_nodes(tx: Transaction) -> dict[str, int]:
    """Returns in which file each table lies."""
    query = text("SELECT CAST(pg_relation_filenode(CAST(CAST(:oid AS oid) AS regclass)) AS bigint)")
    return {
        name: tx.connection.execute(query, {"oid": oid}).scalar_one()
        for name, oid in _oids(tx).items()
    }


def _relations(tx: Transaction) -> dict[int, int]:
    """Returns how many pages each relation has, TOAST tables and indexes too."""
    oids = tx.connection.execute(text(_RELATIONS), {"oids": list(_oids(tx).values())}).scalars()
    size = text("SELECT pg_relation_size(CAST(CAST(:oid AS oid) AS regclass))")
    return {
        oid: tx.connection.execute(size, {"oid": oid}).scalar_one() // _PAGE for oid in oids.all()
    }


def _has_pageinspect(tx: Transaction) -> bool:
    query = "SELECT count(*) FROM pg_extension WHERE extname = 'pageinspect'"
    return bool(tx.connection.execute(text(query)).scalar_one())


class _PageReader:
    """Reads pages for a thread that searches them."""

    def __init__(self, database: ServerDatabase, loop: asyncio.AbstractEventLoop) -> None:
        self._database = database
        self._loop = loop
        self._is_closed = False
        self.read_bytes = 0

    def close(self) -> None:
        """Lets the thread end, because nobody waits for it any more."""
        self._is_closed = True

    def rows(self, sql: str, parameters: dict[str, Any]) -> list[Any]:
        """Returns the first column of a query."""
        if self._is_closed:
            raise StoreError("The search was given up.")
        work = self._database.read(
            lambda tx: list(tx.connection.execute(text(sql), parameters).scalars())
        )
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def pages(self, relations: dict[int, int], *, has_pageinspect: bool) -> Iterator[bytes]:
        """Gives every page of the relations, many at once."""
        for oid, count in relations.items():
            for first in range(0, count, _PAGES):
                last = min(first + _PAGES, count) - 1
                if has_pageinspect:
                    where = {"oid": oid, "first": first, "last": last}
                    pages = self.rows(_WITH_PAGEINSPECT, where)
                else:
                    pages = self.rows(_WITH_FILES, _place(oid, first, last))
                for page in pages:
                    self.read_bytes += len(page or b"")
                    yield bytes(page or b"")


def _place(oid: int, first: int, last: int) -> dict[str, Any]:
    segment, page = divmod(first, _SEGMENT_PAGES)
    return {
        "oid": oid,
        "segment": f".{segment}" if segment else "",
        "place": page * _PAGE,
        "length": (last - first + 1) * _PAGE,
    }


class _LiveRows:
    """What stands in the rows of the tables."""

    def __init__(self, reader: _PageReader) -> None:
        self._reader: Final = reader
        tables = [store.table for store in STORES] + [memext_erasures]
        self._queries: Final = [
            f'SELECT 1 FROM "{table.name}" WHERE '  # noqa: S608  # names of ours, values bound
            + " OR ".join(
                f"position(:piece IN convert_to(CAST(\"{column.name}\" AS text), 'UTF8')) > 0"
                for column in table.columns
            )
            + " LIMIT 1"
            for table in tables
        ]

    def hold(self, piece: bytes) -> bool:
        """Whether a piece of a value stands in a live row, bare or as JSON writes it."""
        forms = {piece}
        with suppress(UnicodeDecodeError):
            forms.add(json.dumps(piece.decode(), ensure_ascii=False)[1:-1].encode())
        for place, sql in enumerate(self._queries):
            if any(self._reader.rows(sql, {"piece": form}) for form in forms):
                self._queries.insert(0, self._queries.pop(place))
                return True
        return False
