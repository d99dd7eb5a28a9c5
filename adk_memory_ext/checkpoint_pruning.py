"""Which checkpoints stay, and deleting the others so that those that stay can be restored."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from adk_memory_ext.json_values import encode
from adk_memory_ext.sql_checkpoints import entries_at
from adk_memory_ext.sql_store import decode_state

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from adk_memory_ext.checkpoint_records import CheckpointRetention
    from adk_memory_ext.records import SessionId
    from adk_memory_ext.sql_checkpoints import Line, StoredCheckpoint
    from adk_memory_ext.statements import Transaction


def cut_back(tx: Transaction, line: Line, stored: StoredCheckpoint) -> None:
    """Deletes the checkpoints of a line that come after one, so that the line goes on from it."""
    for number, *_rest in tx.rows("checkpoint_numbers", {"line_key": line.key}):
        if number > stored.number:
            tx.run("delete_checkpoint", {"line_key": line.key, "number": number})
    state = entries_at(tx, line.key, stored.number)
    progress = {
        "line_key": line.key,
        "covered_sequence": stored.checkpoint.sequence,
        "digest": stored.checkpoint.digest,
        "last_number": stored.number,
        "manifest": encode({"state": state, "artifacts": stored.checkpoint.artifacts}),
    }
    tx.run("save_checkpoint_line", progress)
    _forget_values(tx, line.key)


def doomed(
    found: Iterable[StoredCheckpoint], retention: CheckpointRetention, now: float
) -> dict[int, list[int]]:
    """Returns the numbers of the checkpoints that do not stay, for each line."""
    lines: dict[int, list[StoredCheckpoint]] = {}
    for stored in found:
        lines.setdefault(stored.line_key, []).append(stored)
    doomed: dict[int, list[int]] = {}
    for line_key, line in lines.items():
        steps: set[str] = set()
        newest_first = sorted(line, key=lambda stored: -stored.number)
        for position, stored in enumerate(newest_first):
            is_last_of_step = stored.checkpoint.step not in steps
            steps.add(stored.checkpoint.step)
            age = now - stored.checkpoint.created_at
            young = retention.younger_than is not None and (
                age <= retention.younger_than.total_seconds()
            )
            kept = retention.last_of_each_step and is_last_of_step
            if position >= retention.last and not kept and not young:
                doomed.setdefault(line_key, []).append(stored.number)
    return doomed


def prune(tx: Transaction, line_key: int, numbers: Sequence[int]) -> None:
    """Deletes checkpoints of a line; the others can be restored as before.

    A checkpoint that followed a deleted one gets the whole state, and keeps the deleted one's
    digest and marks of the log.
    """
    rows = tx.rows("checkpoint_numbers", {"line_key": line_key})
    doomed = set(numbers)
    tombstones, before = "", list[Any]()
    for position, row in enumerate(rows):
        number, is_snapshot, marks, _manifest, sequence, digest, text = row
        own_specials = json.loads(text) if text else []
        at = {"line_key": line_key, "number": number}
        if number in doomed:
            *earlier, own = marks.split(";")
            before += own_specials
            tombstones += "".join(f"{one};" for one in [*earlier, f"{sequence},{digest},{own}"])
            continue
        if tombstones:
            together = [*before, *own_specials]
            kept = {"marks": tombstones + marks, "specials": json.dumps(together)}
            tx.run("save_checkpoint_marks", {**at, **kept})
            tombstones, before = "", []
        if position and rows[position - 1][0] in doomed and not is_snapshot:
            whole = encode({"set": entries_at(tx, line_key, number)})
            tx.run("save_checkpoint_manifest", {**at, "manifest": whole, "is_snapshot": 1})
    for number in sorted(doomed):
        tx.run("delete_checkpoint", {"line_key": line_key, "number": number})
    _forget_values(tx, line_key)


def _forget_values(tx: Transaction, line_key: int) -> None:
    """Deletes the values that no checkpoint needs any more."""
    rows = tx.rows("checkpoint_numbers", {"line_key": line_key})
    needed = {
        entry
        for row in rows
        for entry in decode_state(row[3])["set"].values()
        if isinstance(entry, str)
    }
    line = tx.rows("checkpoint_line_manifest", {"line_key": line_key})
    needed |= {e for e in decode_state(line[0][0])["state"].values() if isinstance(e, str)}
    for (digest,) in tx.rows("checkpoint_value_digests", {"line_key": line_key}):
        if digest not in needed:
            tx.run("delete_checkpoint_value", {"line_key": line_key, "value_digest": digest})


def delete(tx: Transaction, session: SessionId) -> None:
    """Deletes every checkpoint of the sessions of this id, with their values and their salt."""
    for name in ("delete_checkpoint_values", "delete_checkpoints", "delete_checkpoint_lines"):
        tx.run(name, session.parameters())


def delete_line(tx: Transaction, line_key: int) -> None:
    """Deletes a line with all its checkpoints, their values and its salt."""
    for name in ("delete_values_of_line", "delete_points_of_line", "delete_line"):
        tx.run(name, {"line_key": line_key})
