"""The SQL statements over checkpoints; compiled with all the others by `statements`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import delete, func, insert, not_, select, update

from adk_memory_ext.exact_match import IsExactly
from adk_memory_ext.parameters import given, is_given
from adk_memory_ext.schema import (
    memext_checkpoint_lines,
    memext_checkpoint_values,
    memext_checkpoints,
)

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement
    from sqlalchemy.sql import ClauseElement, Select

_LINES = memext_checkpoint_lines
_POINTS = memext_checkpoints
_VALUES = memext_checkpoint_values


def clauses(dialect: str) -> dict[str, ClauseElement]:
    """Returns the statements, by name."""
    return {**_reading(dialect), **_writing(), **_deleting()}


def _of_user() -> ColumnElement[bool]:
    return is_given(_LINES, "app_name", "user_id")


def _of_session() -> ColumnElement[bool]:
    return is_given(_LINES, "app_name", "user_id", "session_id")


def _points() -> Select[tuple[object, ...]]:
    """Checkpoints with the session that they belong to."""
    return select(
        _POINTS.c.checkpoint_id,
        _POINTS.c.line_key,
        _POINTS.c.number,
        _POINTS.c.sequence,
        _POINTS.c.step,
        _POINTS.c.created_microseconds,
        _POINTS.c.digest,
        _POINTS.c.details,
        _LINES.c.app_name,
        _LINES.c.user_id,
        _LINES.c.session_id,
        _LINES.c.incarnation,
        _LINES.c.salt,
    ).select_from(_POINTS.join(_LINES, _POINTS.c.line_key == _LINES.c.line_key))


def _reading(dialect: str) -> dict[str, ClauseElement]:
    line = select(
        _LINES.c.line_key,
        _LINES.c.incarnation,
        _LINES.c.salt,
        _LINES.c.covered_sequence,
        _LINES.c.digest,
        _LINES.c.last_number,
        _LINES.c.manifest,
        _LINES.c.parent_checkpoint,
    ).where(_of_session(), _LINES.c.incarnation == given("incarnation"))
    newest_first = (
        _POINTS.c.created_microseconds.desc(),
        _POINTS.c.line_key.desc(),
        _POINTS.c.number.desc(),
    )
    of_line = _POINTS.c.line_key == given("line_key")
    return {
        "checkpoint_line": line,
        "checkpointed_sessions": select(_LINES.c.session_id).distinct().where(_of_user()),
        "newest_checkpoint_line": select(_LINES.c.incarnation)
        .where(_of_session())
        .order_by(_LINES.c.incarnation.desc()),
        "locked_checkpoint_line": line if dialect == "sqlite" else line.with_for_update(),
        "forks_of_session": select(_LINES.c.session_id)
        .where(
            _of_user(),
            IsExactly(_LINES.c.parent_session_id, given("session_id")),
            not_(is_given(_LINES, "session_id")),  # which a restore made
        )
        .order_by(_LINES.c.line_key),
        "checkpoint": _points().where(_POINTS.c.checkpoint_id == given("checkpoint_id")),
        "checkpoints_of_session": _points().where(_of_session()).order_by(*newest_first),
        "checkpoints_of_user": _points().where(_of_user()).order_by(*newest_first),
        "checkpoint_at": _points().where(
            of_line,
            _POINTS.c.sequence == given("sequence"),
            _POINTS.c.step == given("step"),
            _POINTS.c.number > given("from"),
        ),
        "checkpoint_manifests": select(_POINTS.c.number, _POINTS.c.is_snapshot, _POINTS.c.manifest)
        .where(of_line, _POINTS.c.number <= given("number"), _POINTS.c.number > given("from"))
        .order_by(_POINTS.c.number),
        "checkpoint_marks": select(_POINTS.c.sequence, _POINTS.c.digest, _POINTS.c.marks)
        .where(of_line, _POINTS.c.sequence <= given("sequence"))
        .order_by(_POINTS.c.number),
        "checkpoint_specials": select(_POINTS.c.specials).where(
            of_line, _POINTS.c.specials.is_not(None)
        ),
        "checkpoint_covered": select(func.max(_POINTS.c.sequence)).where(of_line),
        "checkpoint_details": select(_POINTS.c.details).where(
            of_line, _POINTS.c.number == given("number")
        ),
        "checkpoint_numbers": select(
            _POINTS.c.number,
            _POINTS.c.is_snapshot,
            _POINTS.c.marks,
            _POINTS.c.manifest,
            _POINTS.c.sequence,
            _POINTS.c.digest,
            _POINTS.c.specials,
        )
        .where(of_line)
        .order_by(_POINTS.c.number),
        "checkpoint_line_manifest": select(_LINES.c.manifest).where(
            _LINES.c.line_key == given("line_key")
        ),
        "checkpoint_value_digests": select(_VALUES.c.digest).where(
            _VALUES.c.line_key == given("line_key")
        ),
        "checkpoint_value": select(_VALUES.c.value).where(
            _VALUES.c.line_key == given("line_key"), _VALUES.c.digest == given("value_digest")
        ),
    }


def _writing() -> dict[str, ClauseElement]:
    def values(*names: str) -> dict[str, object]:
        return {name: given(name) for name in names}

    identity = ("app_name", "user_id", "session_id", "incarnation", "salt")
    progress = ("covered_sequence", "digest", "last_number", "manifest")
    point = ("line_key", "number", "checkpoint_id", "sequence", "step", "created_microseconds")
    content = ("digest", "marks", "specials", "is_snapshot", "manifest", "details")
    return {
        "insert_checkpoint_line": insert(_LINES)
        .values(values(*identity, *progress, "parent_checkpoint", "parent_session_id"))
        .inline(),
        "save_checkpoint_line": update(_LINES)
        .where(_LINES.c.line_key == given("line_key"))
        .values(values(*progress)),
        "insert_checkpoint": insert(_POINTS).values(values(*point, *content)),
        "save_checkpoint_manifest": update(_POINTS)
        .where(_POINTS.c.line_key == given("line_key"), _POINTS.c.number == given("number"))
        .values(manifest=given("manifest"), is_snapshot=given("is_snapshot")),
        "save_checkpoint_marks": update(_POINTS)
        .where(_POINTS.c.line_key == given("line_key"), _POINTS.c.number == given("number"))
        .values(marks=given("marks"), specials=given("specials")),
        "save_checkpoint_log": update(_POINTS)
        .where(_POINTS.c.line_key == given("line_key"), _POINTS.c.number == given("number"))
        .values(digest=given("digest"), marks=given("marks"), specials=given("specials")),
        "save_line_digest": update(_LINES)
        .where(_LINES.c.line_key == given("line_key"))
        .values(digest=given("digest")),
        "insert_checkpoint_value": insert(_VALUES).values(
            line_key=given("line_key"), digest=given("value_digest"), value=given("value")
        ),
    }


def _deleting() -> dict[str, ClauseElement]:
    own = select(_LINES.c.line_key).where(_of_session())
    return {
        "delete_checkpoint": delete(_POINTS).where(
            _POINTS.c.line_key == given("line_key"), _POINTS.c.number == given("number")
        ),
        "delete_checkpoint_value": delete(_VALUES).where(
            _VALUES.c.line_key == given("line_key"), _VALUES.c.digest == given("value_digest")
        ),
        "delete_checkpoint_values": delete(_VALUES).where(_VALUES.c.line_key.in_(own)),
        "delete_checkpoints": delete(_POINTS).where(_POINTS.c.line_key.in_(own)),
        "delete_checkpoint_lines": delete(_LINES).where(_of_session()),
        "delete_values_of_line": delete(_VALUES).where(_VALUES.c.line_key == given("line_key")),
        "delete_points_of_line": delete(_POINTS).where(_POINTS.c.line_key == given("line_key")),
        "delete_line": delete(_LINES).where(_LINES.c.line_key == given("line_key")),
    }
