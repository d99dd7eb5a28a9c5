"""Every hot SQL statement, written once in SQLAlchemy Core and compiled once for a dialect.

A compiled statement is run on the driver's own cursor on SQLite and through
`Connection.exec_driver_sql` elsewhere, always with bound parameters: building and processing
Core statements anew costs more than SQLite takes to run them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from sqlalchemy import (
    and_,
    delete,
    exists,
    func,
    insert,
    literal_column,
    not_,
    or_,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import insert as postgresql_insert

from adk_memory_ext import checkpoint_statements
from adk_memory_ext.adk_tables import app_states, events, sessions, user_states
from adk_memory_ext.errors import StateRejectedError
from adk_memory_ext.exact_match import IsExactly
from adk_memory_ext.expiry_statements import expiry_clauses
from adk_memory_ext.fact_statements import fact_clauses
from adk_memory_ext.json_values import encode, exact_for_jsonb
from adk_memory_ext.log_statements import log_clauses
from adk_memory_ext.parameters import PREFIX as _PREFIX
from adk_memory_ext.parameters import given as _given
from adk_memory_ext.parameters import is_given
from adk_memory_ext.schema import (
    memext_events,
    memext_initial_state,
    memext_landmarks,
    memext_requests,
    memext_sessions,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from sqlalchemy import ColumnElement, FromClause, Select, Table
    from sqlalchemy.engine import Connection, Dialect
    from sqlalchemy.sql import ClauseElement

_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001  # ADK's columns hold UTC without a zone
_MICROSECOND: Final = timedelta(microseconds=1)
_ONE: Final[ColumnElement[int]] = literal_column("1")
_SURELY_TAKEN: Final = 500_000
"""Characters that every MySQL server takes in one statement, but for one set up to take less."""
_ROOM_FOR_THE_REST: Final = 16_384
"""Bytes of a statement besides its JSON text: ids of at most 256 characters, SQL."""

Row: TypeAlias = tuple[Any, ...]

_compiled: Final[dict[tuple[str, str, str], Mapping[str, Statement]]] = {}


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement as the driver takes it."""

    sql: str
    """The text, with the driver's parameter marks."""
    arrange: Callable[[Mapping[str, Any]], tuple[Any, ...]]
    """Puts named parameters into the order of the marks."""


class Transaction:
    """One open transaction: runs the hot statements by name; `connection` runs any other."""

    def __init__(self, connection: Connection, statements: Mapping[str, Statement]) -> None:
        self.connection: Final = connection
        self.dialect: Final = connection.dialect.name
        self.integrity_error: Final[type[Exception]] = (
            connection.dialect.loaded_dbapi.IntegrityError
        )
        self._statements = statements

    def json(self, value: Mapping[str, Any], prefix: str = "") -> str:
        """Returns a JSON object as the text that the driver takes.

        Raises:
            StateRejectedError: When the server takes no text of that length; `prefix` goes before
                the largest key.
        """
        text = encode(value)
        if self.dialect == "postgresql":
            return exact_for_jsonb(text)
        if self.dialect == "mysql" and len(text) > _SURELY_TAKEN:
            self._refuse_too_large(text, value, prefix)
        return text

    def _refuse_too_large(self, text: str, value: Mapping[str, Any], prefix: str) -> None:
        """MySQL cuts the connection where a statement is longer than it takes."""
        limit: int = self.connection.exec_driver_sql("SELECT @@max_allowed_packet").scalar_one()
        # The driver writes these with a backslash in front.
        length = len(text) + sum(text.count(mark) for mark in "\"'\\") + _ROOM_FOR_THE_REST
        if length > limit:
            largest = max(value, key=lambda key: len(encode({key: value[key]})))
            raise StateRejectedError(
                prefix + largest,
                f"and what is stored with it need {length:,} bytes, and the server takes"
                f" {limit:,} at once (max_allowed_packet)",
            )

    def microseconds(self, value: Any) -> int:
        """Returns UTC epoch microseconds of a time that the driver gave."""
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
        return (moment - _EPOCH) // _MICROSECOND

    def time(self, microseconds: int) -> Any:
        """Returns UTC epoch microseconds as the time that the driver takes."""
        return _EPOCH + microseconds * _MICROSECOND

    def rows(self, name: str, parameters: Mapping[str, Any]) -> Sequence[Row]:
        """Returns all rows of a query."""
        statement = self._statements[name]
        result = self.connection.exec_driver_sql(statement.sql, statement.arrange(parameters))
        return result.fetchall()

    def stream(self, name: str, parameters: Mapping[str, Any]) -> Iterator[Row]:
        """Yields the rows of a query one by one, for many that need not be there at once."""
        statement = self._statements[name]
        result = self.connection.exec_driver_sql(statement.sql, statement.arrange(parameters))
        yield from result

    def run(self, name: str, parameters: Mapping[str, Any]) -> int:
        """Runs a statement that changes rows and returns how many it changed."""
        statement = self._statements[name]
        result = self.connection.exec_driver_sql(statement.sql, statement.arrange(parameters))
        return result.rowcount


class SqliteTransaction(Transaction):
    """The same on the driver's own connection, at a third of the cost."""

    def __init__(self, connection: Connection, statements: Mapping[str, Statement]) -> None:
        super().__init__(connection, statements)
        driver: Any = connection.connection.driver_connection
        self._driver: Final = driver
        self.execute: Final[Callable[..., Any]] = driver.execute
        """Runs a statement as SQLite takes it."""

    def time(self, microseconds: int) -> Any:
        """Returns the text in which SQLAlchemy's DateTime is stored."""
        return super().time(microseconds).isoformat(" ", "microseconds")

    @property
    def in_transaction(self) -> bool:
        """Whether SQLite has not ended the transaction by itself, as it does on some errors."""
        return bool(self._driver.in_transaction)

    def rows(self, name: str, parameters: Mapping[str, Any]) -> Sequence[Row]:
        """Returns all rows of a query."""
        statement = self._statements[name]
        rows: list[Row] = self.execute(statement.sql, statement.arrange(parameters)).fetchall()
        return rows

    def stream(self, name: str, parameters: Mapping[str, Any]) -> Iterator[Row]:
        """Returns the rows of a query one by one, for many that need not be there at once."""
        statement = self._statements[name]
        rows: Iterator[Row] = self.execute(statement.sql, statement.arrange(parameters))
        return rows

    def run(self, name: str, parameters: Mapping[str, Any]) -> int:
        """Runs a statement that changes rows and returns how many it changed."""
        statement = self._statements[name]
        count: int = self.execute(statement.sql, statement.arrange(parameters)).rowcount
        return count


def compile_statements(dialect: Dialect) -> Mapping[str, Statement]:
    """Returns every statement for `dialect`, by name; each is compiled once in a process."""
    kind = dialect.name, dialect.driver, dialect.paramstyle
    if kind not in _compiled:
        clauses = _clauses(dialect.name)
        _compiled[kind] = {name: _compile(clause, dialect) for name, clause in clauses.items()}
    return _compiled[kind]


def _compile(clause: ClauseElement, dialect: Dialect) -> Statement:
    compiled: Any = clause.compile(dialect=dialect)
    order = tuple(compiled.positiontup or ())
    names = tuple(name.removeprefix(_PREFIX) for name in order)
    if all(name.startswith(_PREFIX) for name in order) and len(order) > 1:
        return Statement(compiled.string, itemgetter(*names))
    # What Core added itself, such as SQLite's OFFSET behind every LIMIT.
    constants = {name: compiled.params[name] for name in order if not name.startswith(_PREFIX)}
    return Statement(
        compiled.string,
        lambda given: tuple(constants[n] if n in constants else given[n] for n in names),
    )


def _own(table: Table | FromClause, session: str = "session_id") -> ColumnElement[bool]:
    """The condition that a row belongs to the session of the parameters."""
    return and_(
        is_given(table, "app_name", "user_id"),
        IsExactly(table.c[session], _given("session_id")),
    )


def _own_key() -> Select[tuple[int]]:
    return select(memext_sessions.c.session_key).where(_own(memext_sessions))


def _of_own(table: Table) -> ColumnElement[bool]:
    """The condition that a row beside the session of the parameters is of it."""
    return table.c.session_key.in_(_own_key())


def _clauses(dialect: str) -> dict[str, ClauseElement]:
    return {
        **_reading(dialect),
        **_creating(),
        **_initial_state(),
        **_appending(dialect),
        **_scopes("app", app_states, lock=dialect != "sqlite"),
        **_scopes("user", user_states, lock=dialect != "sqlite"),
        **_deleting(),
        **expiry_clauses(dialect),
        **fact_clauses(lock=dialect != "sqlite"),
        **_windowing(),
        **checkpoint_statements.clauses(dialect),
        **log_clauses(),
    }


def _reading(dialect: str) -> dict[str, ClauseElement]:
    linked = memext_sessions
    newest = (
        select(events.c.id)
        .where(_own(events))
        .order_by(events.c.timestamp.desc(), events.c.id.desc())
        .limit(_ONE)
        .offset(literal_column("0"))
    )
    newest_time = newest.with_only_columns(events.c.timestamp)
    # Plain ADK sets the session's time to that of each event it appends. Ours have times of their
    # own, so that a second event of that time is one of plain ADK's.
    of_last_update = (
        select(func.count())
        .select_from(events)
        .where(_own(events), events.c.timestamp == sessions.c.update_time)
    )
    head = (
        select(
            sessions.c.state,
            sessions.c.create_time,
            sessions.c.update_time,
            linked.c.session_key,
            linked.c.incarnation,
            linked.c.last_sequence,
            linked.c.content_sequence,
            linked.c.newest_event_id,
            linked.c.created_microseconds,
            linked.c.updated_microseconds,
            linked.c.rewrites,
            newest.scalar_subquery(),
            newest_time.scalar_subquery(),
            of_last_update.scalar_subquery(),
        )
        .select_from(
            sessions.join(
                linked,
                and_(
                    linked.c.app_name == sessions.c.app_name,
                    linked.c.user_id == sessions.c.user_id,
                    linked.c.session_id == sessions.c.id,
                ),
            )
        )
        .where(_own(sessions, "id"))
    )
    bare = select(sessions.c.create_time, sessions.c.update_time).where(_own(sessions, "id"))
    # MariaDB knows no OF. Both rows are locked, because PostgreSQL reads locked rows anew when it
    # had to wait and everything else as it was before.
    both = [sessions, linked] if dialect == "postgresql" else None
    locked = dialect != "sqlite"
    in_order = (
        select(memext_events.c.sequence, events.c.event_data)
        .select_from(
            memext_events.join(events, and_(events.c.id == memext_events.c.event_id, _own(events)))
        )
        .where(memext_events.c.session_key == _given("session_key"))
    )
    since = in_order.where(events.c.timestamp >= _given("after"))
    backwards = memext_events.c.sequence.desc()
    logged = in_order.with_only_columns(
        memext_events.c.sequence, events.c.id, events.c.invocation_id, events.c.event_data
    ).order_by(memext_events.c.sequence)
    new = logged.where(memext_events.c.sequence > _given("after_sequence"))
    return {
        "head": head,
        "locked_head": head.with_for_update(of=both) if locked else head,
        "bare_head": bare,
        "locked_bare_head": bare.with_for_update() if locked else bare,
        "newest_event": newest,
        "foreign_events": select(events.c.id, events.c.event_data)
        .where(
            _own(events),
            events.c.id.not_in(
                select(memext_events.c.event_id).where(
                    memext_events.c.session_key == _given("session_key")
                )
            ),
        )
        .order_by(events.c.timestamp, events.c.id),
        "last_event_id": select(memext_events.c.event_id)
        .where(memext_events.c.session_key == _given("session_key"))
        .order_by(memext_events.c.sequence.desc())
        .limit(_ONE),
        "events": in_order.order_by(memext_events.c.sequence),
        "last_events": in_order.order_by(backwards).limit(_given("limit")),
        "events_since": since.order_by(memext_events.c.sequence),
        "last_events_since": since.order_by(backwards).limit(_given("limit")),
        "unseen_events": new.with_only_columns(
            memext_events.c.sequence, events.c.id, events.c.event_data
        ),
        "new_events": new,
        "logged_events": logged,
        "event": select(events.c.event_data).where(
            _own(events), IsExactly(events.c.id, _given("event_id"))
        ),
    }


def _creating() -> dict[str, ClauseElement]:
    identity = {name: _given(name) for name in ("app_name", "user_id", "session_id")}
    progress = {
        name: _given(name)
        for name in (
            "incarnation",
            "last_sequence",
            "content_sequence",
            "newest_event_id",
            "created_microseconds",
            "updated_microseconds",
        )
    }
    return {
        "confusable_session": select(sessions.c.app_name).where(
            sessions.c.app_name == _given("app_name"),
            sessions.c.user_id == _given("user_id"),
            sessions.c.id == _given("session_id"),
            not_(_own(sessions, "id")),
        ),
        "insert_session": insert(sessions).values(
            app_name=_given("app_name"),
            user_id=_given("user_id"),
            id=_given("session_id"),
            state=_given("state"),
            create_time=_given("time"),
            update_time=_given("time"),
        ),
        "insert_link": insert(memext_sessions).values(**identity, **progress).inline(),
        "save_link": update(memext_sessions).where(_own(memext_sessions)).values(progress),
        "link_key": select(
            memext_sessions.c.session_key,
            memext_sessions.c.incarnation,
            memext_sessions.c.last_sequence,
            memext_sessions.c.content_sequence,
            memext_sessions.c.created_microseconds,
        ).where(_own(memext_sessions)),
    }


def _initial_state() -> dict[str, ClauseElement]:
    table = memext_initial_state
    return {
        "session_state": select(sessions.c.state).where(_own(sessions, "id")),
        "initial_state": select(table.c.state).where(_of_own(table)),
        "insert_initial_state": insert(table).from_select(
            ["session_key", "state"],
            _own_key().add_columns(_given("state", table.c.state.type)),
        ),
        "save_initial_state": update(table).where(_of_own(table)).values(state=_given("state")),
        "delete_initial_state": delete(table).where(_of_own(table)),
    }


def _appending(dialect: str) -> dict[str, ClauseElement]:
    """The four rows of an append; on PostgreSQL one statement, to spare three round trips."""
    event_values = {
        "id": _given("event_id"),
        "app_name": _given("app_name"),
        "user_id": _given("user_id"),
        "session_id": _given("session_id"),
        "invocation_id": _given("invocation_id"),
        "timestamp": _given("time"),
        "event_data": _given("event_data"),
    }
    sequence_values = {
        "session_key": _given("session_key"),
        "sequence": _given("sequence"),
        "event_id": _given("event_id"),
    }
    touch = update(sessions).where(_own(sessions, "id")).values(update_time=_given("time"))
    save = touch.values(state=_given("state"))
    link = (
        update(memext_sessions)
        .where(memext_sessions.c.session_key == _given("session_key"))
        .values(
            last_sequence=_given("sequence"),
            content_sequence=_given("content_sequence"),
            newest_event_id=_given("event_id"),
            updated_microseconds=_given("microseconds"),
        )
    )
    sequence = insert(memext_events).values(sequence_values)
    if dialect != "postgresql":
        return {
            "insert_sequence": sequence,
            "insert_event": insert(events).values(event_values),
            "touch_session": touch,
            "save_session": save,
            "update_link": link,
        }
    stored = (
        postgresql_insert(events)
        .values(event_values)
        .on_conflict_do_nothing()
        .returning(events.c.id)
        .cte("stored")
    )
    sequenced = (
        insert(memext_events)
        .from_select(
            ["session_key", "sequence", "event_id"],
            select(
                _given("session_key", memext_events.c.session_key.type),
                _given("sequence", memext_events.c.sequence.type),
                stored.c.id,
            ),
        )
        .cte("sequenced")
    )
    is_new = exists(select(stored.c.id))
    return {"insert_sequence": sequence, "insert_event": insert(events).values(event_values)} | {
        name: link.where(is_new).add_cte(stored, sequenced, change.where(is_new).cte("changed"))
        for name, change in {"append_touch": touch, "append_save": save}.items()
    }


def _scopes(scope: str, table: Table, *, lock: bool) -> dict[str, ClauseElement]:
    names = ("app_name", "user_id") if scope == "user" else ("app_name",)
    own, identity = is_given(table, *names), {name: _given(name) for name in names}
    read = select(table.c.state).where(own)
    values = {"state": _given("state"), "update_time": _given("time")}
    return {
        f"{scope}_state": read,
        f"locked_{scope}_state": read.with_for_update() if lock else read,
        f"confusable_{scope}_state": select(table.c.app_name).where(
            *(table.c[name] == value for name, value in identity.items()), not_(own)
        ),
        f"insert_{scope}_state": insert(table).values({**identity, **values}),
        f"save_{scope}_state": update(table).where(own).values(values),
    }


def _deleting() -> dict[str, ClauseElement]:
    return {
        "delete_events": delete(events).where(_own(events)),
        "delete_sequences": delete(memext_events).where(_of_own(memext_events)),
        "delete_landmarks": delete(memext_landmarks).where(_of_own(memext_landmarks)),
        "delete_requests": delete(memext_requests).where(_of_own(memext_requests)),
        "delete_link": delete(memext_sessions).where(_own(memext_sessions)),
        "delete_session": delete(sessions).where(_own(sessions, "id")),
    }


def _windowing() -> dict[str, ClauseElement]:
    numbered = memext_events.c
    places = memext_landmarks.c
    joined = memext_events.join(events, and_(events.c.id == numbered.event_id, _own(events)))
    own = numbered.session_key == _given("session_key")
    in_order = select(numbered.sequence, events.c.event_data).select_from(joined).where(own)
    invocations = select(numbered.sequence, events.c.invocation_id).select_from(joined).where(own)
    at_or_behind = numbered.sequence >= _given("sequence")
    landmark = places.session_key == _given("session_key")
    before = places.sequence < _given("sequence")
    is_summary = places.call_digest == literal_column("''")
    is_rewind = places.call_digest == literal_column("'<'")
    calls = select(places.sequence, places.answered_sequence).where(
        landmark, before, not_(is_summary), not_(is_rewind)
    )
    return {
        "events_from": in_order.where(at_or_behind).order_by(numbered.sequence),
        "events_between": in_order.where(
            at_or_behind, numbered.sequence <= _given("final")
        ).order_by(numbered.sequence),
        "invocations_to": invocations.where(numbered.sequence <= _given("sequence"))
        .order_by(numbered.sequence.desc())
        .limit(_given("limit")),
        "invocations_from": invocations.where(at_or_behind)
        .order_by(numbered.sequence)
        .limit(_given("limit")),
        "first_of_invocation": select(func.min(numbered.sequence))
        .select_from(joined)
        .where(own, is_given(events, "invocation_id")),
        "call_landmarks": calls,
        "open_landmarks": calls.where(
            or_(
                places.answered_sequence.is_(None),
                places.answered_sequence >= _given("sequence"),
            ),
        ),
        "summaries": select(places.sequence)
        .where(landmark, before, is_summary)
        .order_by(places.sequence.desc()),
        "rewind_landmarks": select(places.sequence, places.answered_sequence)
        .where(landmark, is_rewind)
        .order_by(places.sequence.desc()),
        "insert_landmark": insert(memext_landmarks).values(
            session_key=_given("session_key"),
            sequence=_given("sequence"),
            call_digest=_given("call_digest"),
            answered_sequence=_given("first"),
        ),
        "answer_landmark": update(memext_landmarks)
        .where(
            landmark,
            places.call_digest == _given("call_digest"),
            places.answered_sequence.is_(None),
        )
        .values(answered_sequence=_given("sequence")),
    }
