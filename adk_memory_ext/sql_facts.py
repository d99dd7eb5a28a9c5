"""Profiles in SQL: reading one, changing it under its lock, and what is left of it in history."""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from adk_memory_ext.errors import CorruptRecordError, FactRejectedError
from adk_memory_ext.event_times import MICROSECONDS
from adk_memory_ext.facts import Claim, Fact, Provenance
from adk_memory_ext.profile_rules import derived_names, is_visible, without_sources
from adk_memory_ext.sql_store import now_microseconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from adk_memory_ext.facts import FactKey, Owner
    from adk_memory_ext.profile_rules import Profile
    from adk_memory_ext.records import SessionId
    from adk_memory_ext.statements import Transaction

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DataRevision:
    """Tells one content of a user's profile from every other one."""

    incarnation: int
    revision: int
    """0 before the first write."""


@dataclass(frozen=True, slots=True)
class ReadFacts:
    """A profile, or its history, as it was at one moment."""

    revision: DataRevision
    facts: tuple[Fact, ...]
    unreadable: tuple[str, ...]
    """Keys of records that are damaged."""


@dataclass(slots=True)
class _Head:
    """The row that a profile's writers lock."""

    incarnation: int
    revision: int
    now: int
    """UTC epoch microseconds, later than every write before."""


NO_PROFILE: Final = DataRevision(0, 0)
HIDDEN: Final = "is kept for other agents"
"""Why an agent may neither change nor forget a fact that it may not see."""


def data_revision(tx: Transaction, owner: Owner) -> DataRevision:
    """Returns the revision of a user's profile; reads one row."""
    rows = tx.rows("profile_user", owner.parameters())
    return DataRevision(rows[0][0], rows[0][1]) if rows else NO_PROFILE


def read_profile(tx: Transaction, owner: Owner, known: ReadFacts | None = None) -> ReadFacts:
    """Returns the current facts of a user; `known` itself while the database has no newer ones."""
    revision = data_revision(tx, owner)
    if known is not None and known.revision == revision:
        return known
    if revision == NO_PROFILE:
        return ReadFacts(revision, (), ())
    facts, unreadable = _decoded(_current_rows(tx, owner))
    return ReadFacts(revision, facts, _keys(unreadable))


def read_history(tx: Transaction, owner: Owner) -> ReadFacts:
    """Returns every value of every fact of a user, the current ones too, oldest first."""
    facts, unreadable = _decoded(tx.rows("all_facts", owner.parameters()))
    return ReadFacts(data_revision(tx, owner), facts, _keys(unreadable))


def change_profile(
    tx: Transaction,
    owner: Owner,
    change: Callable[[Profile, float], tuple[T, dict[FactKey, Fact]]],
) -> tuple[T, dict[FactKey, Fact]]:
    """Changes a profile under its lock and returns `change`'s answer and the facts as stored.

    Args:
        tx: The transaction.
        owner: Whose profile.
        change: Gets the current facts and the time in UTC epoch seconds; returns an answer and the
            facts that are to be current.

    Raises:
        CorruptRecordError: When a fact that is to be changed cannot be read. Nothing was written.
    """
    head = _locked_head(tx, owner)
    readable, unreadable = _decoded(_current_rows(tx, owner))
    before = {fact.name: fact for fact in readable}
    answer, after = change(before, head.now / MICROSECONDS)
    stored: dict[FactKey, Fact] = {}
    is_changed = False
    for name in before.keys() - after.keys():
        _retire(tx, owner, before[name], head)
        is_changed = True
    for name, fact in after.items():
        old = before.get(name)
        if name in unreadable:
            raise _unreadable(name)
        is_new = repr(fact) != repr(old)  # 1, 1.0 and True are three values, and equal ones
        stored[name] = _stored(tx, owner, old, fact, head) if is_new else fact
        is_changed = is_changed or is_new
    if is_changed:
        _save_head(tx, owner, head)
    return answer, stored


def _stored(tx: Transaction, owner: Owner, old: Fact | None, fact: Fact, head: _Head) -> Fact:
    """Writes one fact: in place where only what confirms it is new, else as a new revision."""
    if old is not None and _same_values(old, fact):
        tx.run("save_claims", {**_name(owner, fact, 0), "claims": _claims_text(fact)})
        return fact
    if old is not None:
        _retire(tx, owner, old, head)
    new = replace(
        fact,
        revision=head.revision,
        supersedes=None if old is None else old.revision,
        created_at=head.now / MICROSECONDS,
        retired_at=None,
    )
    tx.run("insert_fact", _row(owner, new, head.now))
    return new


def _same_values(old: Fact, new: Fact) -> bool:
    def bare(fact: Fact) -> Fact:
        claims = tuple(replace(claim, last_confirmed=0.0, sources=()) for claim in fact.claims)
        return replace(fact, claims=claims, revision=0, supersedes=None, created_at=0.0)

    return repr(bare(old)) == repr(bare(new))


def forget(
    tx: Transaction, owner: Owner, names: Iterable[FactKey] | None, agent: str | None = None
) -> tuple[str, ...]:
    """Deletes facts with their history, and what was derived from them; None for all.

    A fact that was derived once and has another value by now loses the derived value only. The
    profile's revision grows, so that no cache goes on with them.

    Args:
        tx: The transaction.
        owner: Whose profile.
        names: What names the facts.
        agent: On whose wish; None is the application's.

    Returns:
        The keys that were there, without those that the agent may not see.

    Raises:
        FactRejectedError: When the agent may not see one of the facts. Nothing was written.
    """
    if not tx.rows("profile_user", owner.parameters()):
        return ()
    head = _locked_head(tx, owner)
    if names is None:
        keys = {row[4] for row in tx.rows("all_facts", owner.parameters())}
        tx.run("delete_facts", owner.parameters())
        _save_head(tx, owner, head)
        return tuple(sorted(keys))
    asked = set(names)
    rows = tx.rows("all_facts", owner.parameters())
    newest = {fact.name: fact for fact in _decoded(rows)[0]}
    hidden = {name for name, fact in newest.items() if not is_visible(fact, agent)}
    for _subject, key in sorted(asked & hidden):
        raise FactRejectedError(key, HIDDEN)
    current = [fact for fact in newest.values() if fact.retired_at is None]
    gone = asked | derived_names(current, asked)
    wrong = [row for row in rows if row[3:5] in gone] + _derived_rows(rows, gone)
    _delete_rows(tx, owner, wrong)
    if wrong:
        _save_head(tx, owner, head)
    kept = {row[2:5] for row in rows} - {row[2:5] for row in wrong}
    left = {name[1:] for name in kept}
    return _keys({row[3:5] for row in wrong} - left - hidden)


def _derived_rows(rows: Iterable[Any], gone: set[FactKey]) -> list[Any]:
    """Returns the earlier values of other facts that were derived from those that are gone."""
    earlier = [row for row in rows if row[2] and row[3:5] not in gone]
    facts = {row[2:5]: fact for row in earlier for fact in _decoded([row])[0]}
    tainted = gone | derived_names(facts.values(), gone)
    return [
        row
        for row in earlier
        if row[2:5] in facts  # else it is damaged, and nobody knows
        and any((row[3], key) in tainted for key in facts[row[2:5]].derived_from)
    ]


def _delete_rows(tx: Transaction, owner: Owner, rows: Iterable[Any]) -> None:
    for row in rows:
        parameters = {"retired_revision": row[2], "subject": row[3], "fact_key": row[4]}
        tx.run("delete_fact", {**owner.parameters(), **parameters})


def delete_expired(
    tx: Transaction, owner: Owner, now: int, replaced: int | None
) -> tuple[list[str], int]:
    """Deletes the values whose own time is over, and no other; the profile's revision grows.

    Args:
        tx: The transaction.
        owner: Whose profile.
        now: UTC epoch microseconds; values that expire then or earlier go, old ones too.
        replaced: Values that were replaced then or earlier go too; None: none does.

    Returns:
        The texts of what went, and how many values it was.
    """
    if not tx.rows("profile_user", owner.parameters()):
        return [], 0
    head = _locked_head(tx, owner)
    wrong = [
        row
        for row in tx.rows("all_facts", owner.parameters())
        if (row[14] is not None and row[14] <= now)
        or (replaced is not None and row[15] is not None and row[15] <= replaced)
    ]
    _delete_rows(tx, owner, wrong)
    if wrong:
        _save_head(tx, owner, head)
    return [text for row in wrong for text in (*row[3:5], *row[10:13])], len(wrong)


def delete_profile(tx: Transaction, owner: Owner) -> int:
    """Deletes every row of a user's profile and returns how many facts there were, old ones too."""
    tx.rows("locked_profile_user", owner.parameters())
    count = tx.run("delete_facts", owner.parameters())
    tx.run("delete_profile_user", owner.parameters())
    return count


def cut_session(
    tx: Transaction, session: SessionId, owner: Owner, facts: Literal["keep", "remove"] = "keep"
) -> tuple[str, ...]:
    """Removes a session from a profile and its history; see `cut_sources`."""
    return cut_sources(tx, owner, lambda source: source.session_id == session.session_id, facts)


def cut_sources(
    tx: Transaction,
    owner: Owner,
    is_gone: Callable[[Provenance], bool],
    facts: Literal["keep", "remove"] = "keep",
) -> tuple[str, ...]:
    """Removes sources that are erased from a profile and its history.

    What the user asked to save stays with its provenance cut, unless `facts` is `remove`. An
    inferred value that only these sources support goes, with what was derived from it.

    Returns:
        The keys of the facts that are no longer current.
    """
    if not tx.rows("profile_user", owner.parameters()):
        return ()
    head = _locked_head(tx, owner)
    rows = tx.rows("all_facts", owner.parameters())
    everything, unreadable = _decoded(rows)
    for damaged in sorted(unreadable):  # which may be of this session
        raise _unreadable(damaged)
    gone: set[FactKey] = set()
    is_changed = False
    for fact, row in zip(everything, rows, strict=True):
        retired = row[2]
        left = without_sources(fact, is_gone, facts)
        if left == fact:
            continue
        is_changed = True
        name = _name(owner, fact, retired)
        if left is None:
            tx.run("delete_fact", name)
            if not retired:
                gone.add(fact.name)
        else:
            tx.run("save_claims", {**name, "claims": _claims_text(left)})
    current = [fact for fact in everything if fact.retired_at is None]
    fallen = derived_names(current, gone)
    for fact in current:
        if fact.name in fallen:
            tx.run("delete_fact", _name(owner, fact, 0))
    if is_changed:
        _delete_rows(tx, owner, _derived_rows(rows, gone | fallen))
        _save_head(tx, owner, head)
    return _keys(gone | fallen)


def _locked_head(tx: Transaction, owner: Owner) -> _Head:
    """Returns the row of a profile, made if need be, with the number of the write to come."""
    rows = tx.rows("locked_profile_user", owner.parameters())
    now = now_microseconds()
    if rows:
        incarnation, revision, written = rows[0]
        return _Head(incarnation, revision + 1, max(now, written + 1))
    head = _Head(secrets.randbits(62), 1, now)
    # Who loses the race for this row is refused by its key, and runs again.
    tx.run(
        "insert_profile_user",
        {
            **owner.parameters(),
            "incarnation": head.incarnation,
            "revision": 0,
            "written_microseconds": 0,
        },
    )
    return head


def _save_head(tx: Transaction, owner: Owner, head: _Head) -> None:
    tx.run(
        "save_profile_user",
        {**owner.parameters(), "revision": head.revision, "written_microseconds": head.now},
    )


def _retire(tx: Transaction, owner: Owner, fact: Fact, head: _Head) -> None:
    tx.run(
        "retire_fact",
        {
            **_name(owner, fact, 0),
            "new_retired_revision": head.revision,
            "retired_microseconds": head.now,
        },
    )


def _current_rows(tx: Transaction, owner: Owner) -> Any:
    return tx.rows("current_facts", {**owner.parameters(), "retired_revision": 0})


def _name(owner: Owner, fact: Fact, retired: int) -> dict[str, Any]:
    return {
        **owner.parameters(),
        "retired_revision": retired,
        "subject": fact.subject,
        "fact_key": fact.key,
    }


def _row(owner: Owner, fact: Fact, now: int) -> dict[str, Any]:
    expires = None if fact.expires_at is None else round(fact.expires_at * MICROSECONDS)
    return {
        **_name(owner, fact, 0),
        "revision": fact.revision,
        "supersedes": fact.supersedes,
        "kind": fact.kind,
        "status": fact.status,
        "sensitivity": fact.sensitivity,
        "claims": _claims_text(fact),
        "visible_to": json.dumps(fact.visible_to),
        "derived_from": json.dumps(fact.derived_from),
        "created_microseconds": now,
        "expires_microseconds": expires,
        "retired_microseconds": None,
    }


def _claims_text(fact: Fact) -> str:
    def bare(source: Provenance) -> dict[str, str]:
        return {name: value for name, value in asdict(source).items() if value is not None}

    return json.dumps(
        [
            {
                "value": claim.value,
                "confidence": claim.confidence,
                "observed_at": claim.observed_at,
                "last_confirmed": claim.last_confirmed,
                "sources": [bare(source) for source in claim.sources],
            }
            for claim in fact.claims
        ]
    )


def _decoded(rows: Iterable[Any]) -> tuple[tuple[Fact, ...], set[FactKey]]:
    """Returns facts, and the names of records that are damaged."""
    facts: list[Fact] = []
    unreadable: set[FactKey] = set()
    for row in rows:
        try:
            facts.append(_fact(row))
        except (KeyError, TypeError, ValueError):
            unreadable.add((row[3], row[4]))
    return tuple(facts), unreadable


def _unreadable(name: FactKey) -> CorruptRecordError:
    return CorruptRecordError(
        f"The stored fact {name[1]!r} cannot be read; forget it and save it again."
        " Nothing was written."
    )


def _keys(names: Iterable[FactKey]) -> tuple[str, ...]:
    return tuple(sorted({key for _subject, key in names}))


def _fact(row: Any) -> Fact:
    (_app, _user, _retired, subject, key, revision, supersedes, kind, status, sensitivity) = row[
        :10
    ]
    claims, visible_to, derived_from, created, expires, retired_at = row[10:]
    found = tuple(
        Claim(**{**claim, "sources": tuple(Provenance(**source) for source in claim["sources"])})
        for claim in json.loads(claims)
    )
    if not found:
        raise ValueError("a fact without a claim")
    return Fact(
        subject=subject,
        key=key,
        claims=found,
        kind=kind,
        status=status,
        sensitivity=sensitivity,
        visible_to=tuple(json.loads(visible_to)),
        derived_from=tuple(json.loads(derived_from)),
        expires_at=None if expires is None else expires / MICROSECONDS,
        revision=revision,
        supersedes=supersedes,
        created_at=created / MICROSECONDS,
        retired_at=None if retired_at is None else retired_at / MICROSECONDS,
    )
