"""Comparing a column with an id, character by character, on every database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

if TYPE_CHECKING:
    from sqlalchemy.sql.compiler import SQLCompiler


class IsExactly(FunctionElement[bool]):
    """The condition that a column holds an id.

    MySQL compares as a column's collation says, and ADK's tables have the database's one: mostly
    without regard to case, accents and trailing spaces. There the plain comparison finds the row
    by its index, and the bytes decide.
    """

    inherit_cache = True


@compiles(IsExactly)
def _compile_equal(element: IsExactly, compiler: SQLCompiler, **options: Any) -> str:
    column, value = (compiler.process(clause, **options) for clause in element.clauses)
    return f"{column} = {value}"


@compiles(IsExactly, "mysql")
def _compile_same_bytes(element: IsExactly, compiler: SQLCompiler, **options: Any) -> str:
    column, value = element.clauses
    equal = _compile_equal(element, compiler, **options)
    left, right = compiler.process(column, **options), compiler.process(value, **options)
    return f"({equal} AND CAST(CONVERT({left} USING utf8mb4) AS BINARY) = CAST({right} AS BINARY))"
