"""Fixtures for every test: a backend, a place for its data, and a check that nothing is left over.

- `sessions`: an opened `DurableSessionService`, once on a SQLite file, in memory and on PostgreSQL.
- `backend`, `place`: which one it is (`backends.py`) and where its data lies, to open it again.
- `postgresql_url`, `mariadb_url`, `redis_prefix`: an empty database, on its own.
- `nothing_left`: threads and open files of this test are gone when it ends.

A server that is not there skips the test, and fails it where `CI=true`.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from adk_memory_ext.service import DurableSessionService
from backends import OURS, SOAK, Backend, Place, open_files
from servers import HANG_SECONDS, MARIADB, POSTGRESQL, redis_keys, redis_url

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

# The same examples in every run, and no database of failures beside the tests.
settings.register_profile(
    "sample", derandomize=True, database=None, deadline=None, print_blob=False
)
settings.register_profile(
    "soak", settings.get_profile("sample"), max_examples=10 * settings().max_examples
)
settings.load_profile("soak" if SOAK else "sample")


@pytest.fixture(params=OURS, ids=lambda backend: backend.name)
def backend(request: pytest.FixtureRequest) -> Backend:
    """Each backend that an application can open by URL."""
    row: Backend = request.param
    return row


@pytest.fixture
def place(
    request: pytest.FixtureRequest,
    backend: Backend,
    tmp_path: Path,
    nothing_left: None,  # noqa: ARG001  # checks after everything else has ended
) -> Place:
    """An empty place for the backend's data."""
    if backend.storage == "sqlite":
        return Place(folder=tmp_path, url=f"sqlite+aiosqlite:///{tmp_path}/sessions.db")
    if backend.storage == "redis":
        prefix: str = request.getfixturevalue("redis_prefix")
        return Place(folder=tmp_path, url=redis_url(), key_prefix=prefix)
    if backend.storage == "memory":
        return Place(folder=tmp_path)
    return Place(folder=tmp_path, url=request.getfixturevalue(f"{backend.storage}_url"))


@pytest.fixture
async def sessions(backend: Backend, place: Place) -> AsyncIterator[DurableSessionService]:
    """The backend's service, opened."""
    async with backend.open(place) as service:
        assert isinstance(service, DurableSessionService)
        yield service


@pytest.fixture
def nothing_left(tmp_path: Path) -> Iterator[None]:
    """Fails the test if it leaves a thread running or a file in its folder open."""
    before = set(threading.enumerate())
    yield
    # The event loop's own executor ends with the loop, which outlives this fixture.
    started = [
        thread
        for thread in threading.enumerate()
        if thread not in before and not thread.name.startswith("asyncio_")
    ]
    for thread in started:
        thread.join(HANG_SECONDS)
    left = [thread.name for thread in started if thread.is_alive()]
    if left := left + open_files(tmp_path):
        pytest.fail(f"left over: {', '.join(left)}")


@pytest.fixture(scope="session")
def _postgresql_database() -> Iterator[str]:
    with POSTGRESQL.database() as url:
        yield url


@pytest.fixture
def postgresql_url(_postgresql_database: str) -> Iterator[str]:
    """The URL of an empty PostgreSQL database; the test may leave no connection to it."""
    POSTGRESQL.empty(_postgresql_database)
    yield _postgresql_database
    POSTGRESQL.wait_until_unused(_postgresql_database)


@pytest.fixture(scope="session")
def _mariadb_database() -> Iterator[str]:
    with MARIADB.database() as url:
        yield url


@pytest.fixture
def mariadb_url(_mariadb_database: str) -> Iterator[str]:
    """The URL of an empty MariaDB database; the test may leave no connection to it."""
    MARIADB.empty(_mariadb_database)
    yield _mariadb_database
    MARIADB.wait_until_unused(_mariadb_database)


@pytest.fixture(scope="session")
def redis_server() -> str:
    """The URL of the Redis server."""
    return redis_url()


@pytest.fixture
def redis_prefix(redis_server: str) -> Iterator[str]:
    """A prefix for the keys of this test; they are deleted at its end."""
    with redis_keys(redis_server) as prefix:
        yield prefix
