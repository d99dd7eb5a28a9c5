"""Runs every clause on ADK's own services first, then on ours over each of them.

A clause is a test function whose docstring says what holds. It takes `subject`. The marker
`needs("capability", …)` keeps it to the backends that claim these (`backends.Backend`); where a
backend is known to break a clause, `deviations.py` says why, and the test fails if it stops.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from backends import BARE, OURS, OURS_MARIADB, WRAPPED, Backend, Place, open_files
from conformance.deviations import DEVIATIONS, Deviation
from conformance.subject import Subject
from servers import SERVERS, redis_keys, redis_url

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from google.adk.sessions.base_session_service import BaseSessionService

_HERE = Path(__file__).parent

ROWS = (*BARE, *WRAPPED, *OURS, OURS_MARIADB)


def pytest_configure(config: pytest.Config) -> None:
    """Registers the marker."""
    config.addinivalue_line(
        "markers", "needs(*capabilities): run the clause on the backends that claim these"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs a clause once for each backend that it is about."""
    if "backend" not in metafunc.fixturenames:
        return
    needed = [
        capability
        for marker in metafunc.definition.iter_markers("needs")
        for capability in marker.args
    ]
    rows = [row for row in ROWS if all(getattr(row, capability) for capability in needed)]
    metafunc.parametrize("backend", rows, indirect=True, ids=[row.name for row in rows])


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Runs the clauses in one event loop and expects the failures that are known.

    In one loop, because the instances stay open from clause to clause.
    """
    clauses = [item for item in items if item.path.is_relative_to(_HERE)]
    for item in clauses:
        if pytest_asyncio.is_async_test(item):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)
        for deviation in deviations_of(item):
            item.add_marker(
                pytest.mark.xfail(reason=deviation.reason, raises=deviation.raises, strict=True)
            )


def deviations_of(item: pytest.Item) -> list[Deviation]:
    """Returns what the table says of a clause on a backend."""
    if not isinstance(item, pytest.Function) or "backend" not in item.fixturenames:
        return []
    row = item.callspec.params["backend"]
    assert isinstance(row, Backend)
    function = item.originalname
    # The id of a clause's own parameter stands beside that of the backend.
    parameter = item.callspec.id.removesuffix(row.name).removeprefix(row.name).strip("-")
    return [
        deviation
        for deviation in DEVIATIONS
        if row.name in deviation.backends
        and not {function, f"{function}[{parameter}]"}.isdisjoint(deviation.clauses)
    ]


@pytest.fixture(scope="session")
def backend(request: pytest.FixtureRequest) -> Backend:
    """The backend that the clause is tried on."""
    row: Backend = request.param
    return row


@pytest.fixture(scope="session")
def place(backend: Backend, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A place for the data of all clauses; at the end nobody may hold on to it."""
    folder = tmp_path_factory.mktemp(backend.name)
    if backend.storage == "sqlite":
        yield Place(folder=folder, url=f"sqlite+aiosqlite:///{folder}/sessions.db")
        assert open_files(folder) == []
    elif backend.storage == "redis":
        url = redis_url()
        with redis_keys(url) as prefix:
            yield Place(folder=folder, url=url, key_prefix=prefix)
    elif backend.storage == "memory":
        yield Place(folder=folder)
    else:
        server = SERVERS[backend.storage]
        with server.database() as url:
            yield Place(folder=folder, url=url)
            server.wait_until_unused(url)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def instances(
    backend: Backend, place: Place
) -> AsyncIterator[tuple[BaseSessionService, BaseSessionService]]:
    """Two instances of the service, open for all clauses as in an application that goes on.

    Where each instance has data of its own, it is one instance twice.
    """
    async with backend.open(place) as service:
        if not backend.durable:
            yield service, service
            return
        async with backend.open(place) as other:
            yield service, other


@pytest.fixture
def subject(instances: tuple[BaseSessionService, BaseSessionService]) -> Subject:
    """The service under test; what other clauses stored there is out of reach."""
    return Subject(*instances)
