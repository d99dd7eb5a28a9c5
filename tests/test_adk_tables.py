"""Our description of ADK's tables says what ADK's own says, on every database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest
from google.adk.sessions.migration import _schema_check_utils
from google.adk.sessions.schemas import shared, v1
from sqlalchemy import ColumnDefault
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.schema import CreateIndex, CreateTable

from adk_memory_ext import adk_tables

if TYPE_CHECKING:
    from sqlalchemy import MetaData
    from sqlalchemy.engine import Dialect

DIALECTS: Final = {
    "sqlite": sqlite.dialect,
    "postgresql": postgresql.dialect,
    "mysql": mysql.dialect,
}
by_dialect = pytest.mark.parametrize(
    "dialect", [make() for make in DIALECTS.values()], ids=DIALECTS
)


def statements(metadata: MetaData, dialect: Dialect) -> dict[str, str]:
    """Returns the statement that creates each table and each index, by name."""
    tables = metadata.tables.values()
    created = [(table.name, CreateTable(table)) for table in tables] + [
        (str(index.name), CreateIndex(index)) for table in tables for index in table.indexes
    ]
    return {name: str(statement.compile(dialect=dialect)) for name, statement in created}


@by_dialect
def test_the_tables_are_adks(dialect: Dialect) -> None:
    """Every table and index is created by the very statement by which ADK creates it."""
    adks = statements(v1.Base.metadata, dialect)

    assert statements(adk_tables.metadata, dialect) == adks
    assert len(adks) == 6  # five tables and an index: the comparison is not of nothing


def clocks(metadata: MetaData) -> dict[tuple[str, str], str]:
    """Returns by which function a column is filled when a row is inserted without it."""
    return {
        (table.name, column.name): str(column.default.arg)
        for table in metadata.tables.values()
        for column in table.columns
        if isinstance(column.default, ColumnDefault) and column.default.is_clause_element
    }


def test_the_columns_have_adks_clock() -> None:
    """The times that ADK takes from the database's clock are taken from it here too."""
    adks = clocks(v1.Base.metadata)

    assert clocks(adk_tables.metadata) == adks
    assert len(adks) == 5


def test_the_limits_and_the_version_are_adks() -> None:
    """The lengths that are checked at the door, and the mark of the layout, are ADK's."""
    assert adk_tables.ID_LENGTH == shared.DEFAULT_MAX_KEY_LENGTH
    assert adk_tables.NAME_LENGTH == shared.DEFAULT_MAX_VARCHAR_LENGTH
    assert str(adk_tables.SCHEMA_VERSION) == _schema_check_utils.LATEST_SCHEMA_VERSION
