"""One erasure on its way: from a subject to a receipt."""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from adk_memory_ext.erasure.receipts import Receipt, utc
from adk_memory_ext.erasure.subjects import pseudonym

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from adk_memory_ext.erasure.physical import Cleaned
    from adk_memory_ext.erasure.searched_values import SearchedValues
    from adk_memory_ext.erasure.subjects import Facts, Forks, Subject
    from adk_memory_ext.records import SessionId
    from adk_memory_ext.sql_sessions import Database
    from adk_memory_ext.statements import Transaction

T = TypeVar("T")


@dataclass(slots=True)
class Job:
    """An erasure whose rows are gone."""

    id: str
    begun: int
    facts: dict[str, Any]
    values: SearchedValues | None
    """None when they were lost with the process that had them."""
    not_checked: list[str] = field(default_factory=list)
    """What is left elsewhere, and why."""
    unknown: Sequence[str] = ()
    """What nobody told of, so that nothing can be said about it."""

    @property
    def deep(self) -> bool:
        """Whether its bytes go as deep as they can; noted, so that whoever resumes it knows."""
        return bool(self.facts.get("deep"))


@dataclass(frozen=True, slots=True)
class Deleted:
    """What one transaction deleted."""

    texts: Sequence[str]
    """Everything that must not be left in the file."""
    counts: dict[str, int]
    """Rows of each store; an erasure of none leaves no receipt."""
    names: Sequence[str]
    """What names the subject, or all of several: only an HMAC of it is kept."""
    steps: Mapping[str, str] = field(default_factory=dict)
    """What else was done, and how it went."""
    media: Sequence[tuple[SessionId, frozenset[str]]] = ()
    """Artifacts of sessions to which no event refers any more."""

    @property
    def is_empty(self) -> bool:
        """Whether there was nothing to delete."""
        return not any(self.counts.values())


def checked(subject: Subject) -> Subject:
    """Returns the subject; refuses ids that no row can have."""
    from adk_memory_ext.ids import check_owner, session_identity

    if subject.session_id is None:
        check_owner(subject.app_name, subject.user_id)
    else:
        session_identity(subject.app_name, subject.user_id, subject.session_id)
    return subject


class _RolledBackError(Exception):
    """Ends the transaction of a rehearsal."""


async def rehearsed(database: Database, work: Callable[[Transaction], T]) -> T:
    """Returns what `work` returns in a transaction that is rolled back."""
    outcomes: list[T] = []

    def rolled_back(tx: Transaction) -> None:
        outcomes.append(work(tx))
        raise _RolledBackError

    with contextlib.suppress(_RolledBackError):
        await database.write(rolled_back)
    return outcomes[-1]  # of the last attempt


def size_of(file: Path) -> int:
    """Returns the size of a file in bytes; 0 where there is none."""
    try:
        return file.stat().st_size
    except OSError:
        return 0


def first_facts(
    subject: Subject,
    key: bytes,
    requested_by: str | None,
    forks: Forks = "detach",
    facts: Facts = "keep",
    *,
    deep: bool = False,
) -> dict[str, Any]:
    """Returns what a receipt will say, as far as it is known before anything is deleted."""
    names_subject = any(one in (requested_by or "") for one in subject.ids)
    return {
        "kind": subject.kind,
        "subject": subject.pseudonym(key),
        "requested_by": None if names_subject else requested_by,
        "counts": {},
        "forks": forks,
        "facts": facts,
        "deep": deep,
    }


def delete_rows(
    tx: Transaction,
    erasure_id: str,
    subject: Subject,
    facts: dict[str, Any],
    elsewhere: Mapping[str, int],
) -> tuple[Sequence[str], int]:
    """Deletes the rows and returns their texts, and when the erasure began.

    Forks of an erased session go too, or forget where they came from, and what was saved in it goes
    or stays, as the facts say.
    """
    from adk_memory_ext.erasure import ledger

    deleted = delete_subject(
        tx, subject, elsewhere, facts.get("forks", "detach"), facts.get("facts", "keep")
    )
    facts |= {"counts": deleted.counts, "steps": dict(deleted.steps)}
    ledger.rows_are_gone(tx, erasure_id, facts)
    pending = ledger.find(tx, erasure_id)
    return deleted.texts, 0 if pending is None else pending.begun


def delete_subject(
    tx: Transaction,
    subject: Subject,
    elsewhere: Mapping[str, int],
    forks: Forks | None = None,
    facts: Facts = "keep",
) -> Deleted:
    """Deletes the rows of a subject.

    Args:
        tx: The transaction.
        subject: Whose rows.
        elsewhere: What was deleted outside of the database.
        forks: What becomes of the forks of a session; None: nothing, so that they can be erased
            later.
        facts: What becomes of what the user asked to save in a session.
    """
    from adk_memory_ext.erasure import stored_rows

    erased, texts, counts = [subject], list(subject.ids), Counter(elsewhere)
    number, how = 0, ""
    if forks == "erase":
        erased = stored_rows.with_forks(tx, subject)
        number, how = len(erased) - 1, "erased"
    elif forks == "detach":
        number = stored_rows.detach_forks(tx, subject)
        how = "detached, with what it was forked with"
    for one in erased:
        stored_rows.lock_rows(tx, one)
    removed = 0
    for one in erased:
        cut = stored_rows.cut_profile(tx, one, facts)
        removed += cut.values
        texts += [*stored_rows.texts_of(tx, one), *cut.texts]
        counts.update(stored_rows.delete_rows(tx, one))
    steps = {"forks": f"{number} {how}"} if number else {}
    if removed:
        steps["facts"] = f"{removed} removed"
    return Deleted(texts, dict(counts), (subject.app_name, *subject.ids), steps)


def delete_as(
    tx: Transaction,
    erasure_id: str,
    facts: dict[str, Any],
    key: bytes,
    work: Callable[[Transaction], Deleted],
) -> tuple[Deleted, int]:
    """Deletes rows as `work` does and notes the erasure; returns what went, and when it began."""
    from adk_memory_ext.erasure import ledger
    from adk_memory_ext.sql_store import now_microseconds

    begun = now_microseconds()
    deleted = work(tx)
    if not deleted.is_empty:
        facts["subject"] = pseudonym(key, facts["kind"], deleted.names)
        facts |= {"counts": deleted.counts, "steps": dict(deleted.steps)}
        ledger.begin_behind_deletion(tx, erasure_id, begun, facts)
    return deleted, begun


def receipt_of(job: Job, cleaned: Cleaned, subject_key: str | None) -> Receipt:
    """Returns the receipt of an erasure, before it has its place in the chain."""
    from adk_memory_ext.sql_store import now_microseconds

    work = cleaned.work
    return Receipt(
        kind=job.facts["kind"],
        subject=job.facts["subject"],
        subject_key=subject_key,
        requested_by=job.facts["requested_by"],
        begun=utc(job.begun),
        ended=utc(now_microseconds()),
        level=cleaned.level,
        verified=cleaned.verified and not job.not_checked,
        counts=job.facts["counts"],
        steps={"rows": "deleted", **job.facts.get("steps", {}), **work.steps},
        files=work.files,
        versions={"sqlite": work.sqlite} if work.sqlite else {},
        pragmas=work.pragmas,
        values_searched=0 if job.values is None else len(job.values.values),
        values_too_short=0 if job.values is None else job.values.too_short,
        values_shared=work.shared,
        encodings=tuple(work.encodings),
        residue_found=cleaned.residue_found,
        residue_left=work.residue,
        not_checked=(*job.not_checked, *job.unknown, *cleaned.not_checked),
    )
