"""Parameters of the hot statements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import and_, bindparam

from adk_memory_ext.exact_match import IsExactly

if TYPE_CHECKING:
    from sqlalchemy import BindParameter, ColumnElement, FromClause
    from sqlalchemy.types import TypeEngine

PREFIX: Final = "given_"


def given(name: str, type_: TypeEngine[Any] | None = None) -> BindParameter[Any]:
    """A parameter; the prefix is there because Core keeps the names of columns for itself."""
    return bindparam(PREFIX + name, type_=type_)


def is_given(table: FromClause, *columns: str) -> ColumnElement[bool]:
    """The condition that columns hold the ids that parameters of their names give."""
    return and_(*(IsExactly(table.c[name], given(name)) for name in columns))
