"""Erasures that have begun, and the chain of receipts of those that have ended."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import delete, insert, select, update

from adk_memory_ext.erasure.receipts import Receipt, chained
from adk_memory_ext.erasure.subjects import Subject
from adk_memory_ext.schema import memext_erasures, memext_receipts
from adk_memory_ext.sql_store import now_microseconds

if TYPE_CHECKING:
    from sqlalchemy import Select

    from adk_memory_ext.statements import Transaction

_columns: Final = memext_erasures.c


@dataclass(frozen=True, slots=True)
class Pending:
    """An erasure that has begun."""

    id: str
    begun: int
    """UTC epoch microseconds."""
    subject: Subject | None
    """None once its rows are gone."""
    facts: dict[str, Any]
    """What a receipt will say."""


def begin(tx: Transaction, erasure_id: str, subject: Subject, facts: dict[str, Any]) -> None:
    """Notes that an erasure begins."""
    tx.connection.execute(
        insert(memext_erasures).values(
            erasure_id=erasure_id,
            begun_microseconds=now_microseconds(),
            kind=subject.kind,
            app_name=subject.app_name,
            user_id=subject.user_id,
            session_id=subject.session_id,
            facts=json.dumps(facts),
        )
    )


def begin_behind_deletion(
    tx: Transaction, erasure_id: str, begun: int, facts: dict[str, Any]
) -> None:
    """Notes an erasure whose rows this transaction deletes: no id of theirs is ever noted."""
    tx.connection.execute(
        insert(memext_erasures).values(
            erasure_id=erasure_id,
            begun_microseconds=begun,
            kind=facts["kind"],
            facts=json.dumps(facts),
        )
    )


def rows_are_gone(tx: Transaction, erasure_id: str, facts: dict[str, Any]) -> None:
    """Forgets the ids; what is left to do needs none."""
    tx.connection.execute(
        update(memext_erasures)
        .where(_columns.erasure_id == erasure_id)
        .values(app_name=None, user_id=None, session_id=None, facts=json.dumps(facts))
    )


def pending(tx: Transaction) -> list[Pending]:
    """Returns the erasures that have not ended, the oldest first."""
    return _found(tx, select(memext_erasures).order_by(_columns.begun_microseconds))


def find(tx: Transaction, erasure_id: str) -> Pending | None:
    """Returns an erasure that has not ended; None if it has."""
    query = select(memext_erasures).where(_columns.erasure_id == erasure_id)
    return next(iter(_found(tx, query)), None)


def _found(tx: Transaction, query: Select[Any]) -> list[Pending]:
    return [
        Pending(
            row.erasure_id,
            row.begun_microseconds,
            None if row.user_id is None else Subject(row.app_name, row.user_id, row.session_id),
            json.loads(row.facts),
        )
        for row in tx.connection.execute(query).all()
    ]


def finish(tx: Transaction, erasure_id: str, receipt: Receipt) -> Receipt:
    """Ends an erasure and returns its receipt with its place in the chain.

    One that somebody else has ended meanwhile has a receipt, and gets no second one.
    """
    # Takes the lock under which the next number is given.
    ended = tx.connection.execute(delete(memext_erasures).where(_columns.erasure_id == erasure_id))
    if not ended.rowcount:
        return receipt
    last = tx.connection.execute(
        select(memext_receipts.c.number, memext_receipts.c.digest)
        .order_by(memext_receipts.c.number.desc())
        .limit(1)
    ).first()
    number, previous = (0, "") if last is None else (last.number, last.digest)
    stored = receipt.stored()
    digest = chained(previous, stored)
    tx.connection.execute(
        # Of two that give one number on a server, one fails and is tried again.
        insert(memext_receipts).values(number=number + 1, digest=digest, receipt=stored)
    )
    return replace(receipt, number=number + 1, digest=digest)


def receipts(tx: Transaction) -> list[Receipt]:
    """Returns the stored receipts, the oldest first."""
    rows = tx.connection.execute(select(memext_receipts).order_by(memext_receipts.c.number))
    return [
        replace(Receipt.from_json(row.receipt), number=row.number, digest=row.digest)
        for row in rows.all()
    ]


def broken_links(tx: Transaction) -> list[int]:
    """Returns the numbers of receipts that were changed, or whose predecessor is missing."""
    broken = []
    expected, previous = 1, ""
    rows = tx.connection.execute(select(memext_receipts).order_by(memext_receipts.c.number))
    for row in rows.all():
        if row.number != expected or row.digest != chained(previous, row.receipt):
            broken.append(row.number)
        expected, previous = row.number + 1, row.digest
    return broken
