"""The table of deviations names what there is."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from backends import BARE, OURS, OURS_MARIADB, WRAPPED
from conformance.deviations import DEVIATIONS, Deviation

BACKENDS = {row.name for row in (*BARE, *WRAPPED, *OURS, OURS_MARIADB)}
CLAUSES = {
    name
    for path in Path(__file__).parent.glob("test_clauses_*.py")
    for name in vars(import_module(f"conformance.{path.stem}"))
    if name.startswith("test_")
}


@pytest.mark.parametrize("deviation", DEVIATIONS, ids=lambda deviation: deviation.reason)
def test_a_deviation_is_about_a_clause_and_a_backend(deviation: Deviation) -> None:
    """Each row of the table names clauses and backends that exist: it cannot outlive them."""
    assert {clause.partition("[")[0] for clause in deviation.clauses} <= CLAUSES
    assert set(deviation.backends) <= BACKENDS


def test_what_an_application_opens_has_no_deviation() -> None:
    """No clause is broken by what `DurableSessionService.from_url` opens."""
    named = {backend for deviation in DEVIATIONS for backend in deviation.backends}
    assert named.isdisjoint(row.name for row in (*OURS, OURS_MARIADB))
