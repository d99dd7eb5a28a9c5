"""`memext+…` URLs: registered with ADK's service registry, and what each of them opens."""

from __future__ import annotations

import ast
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from google.adk.cli import service_registry
from google.adk.cli.service_registry import ServiceRegistry, load_services_module
from google.adk.cli.utils.service_factory import create_session_service_from_options

import adk_memory_ext
from adk_memory_ext.errors import ConfigurationError
from adk_memory_ext.service import DurableSessionService
from adk_memory_ext.service_uri import PREFIX, SCHEMES, register

if TYPE_CHECKING:
    from collections.abc import Iterator

AGENTS: Final = Path(__file__).parents[1] / "agents"
OWNER: Final[dict[str, Any]] = {"app_name": "app", "user_id": "user"}

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[ServiceRegistry]:
    """ADK's registry as a new process has it, in which nothing of ours is registered."""
    monkeypatch.setattr(service_registry, "_service_registry_instance", None)
    monkeypatch.delitem(sys.modules, "services", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield service_registry.get_service_registry()
    sys.modules.pop("services", None)


def open_as_adk_does(uri: str, folder: Path, **session_db_kwargs: Any) -> Any:
    """Returns the session service that `adk web` makes of a URI."""
    return create_session_service_from_options(
        base_dir=folder, session_service_uri=uri, session_db_kwargs=session_db_kwargs
    )


def test_each_scheme_opens_our_service(registry: ServiceRegistry, tmp_path: Path) -> None:
    """Every `memext+` scheme makes a durable service; a server is first asked when it is used."""
    register()
    for scheme in SCHEMES:
        is_file = "sqlite" in scheme
        place = f"/{tmp_path}/{scheme}.db" if is_file else "user:hunter2@127.0.0.1:1/name"
        service = registry.create_session_service(f"{scheme}://{place}", agents_dir="agents")
        assert isinstance(service, DurableSessionService)
        assert Path(tmp_path, f"{scheme}.db").exists() == is_file


def test_the_schemes_are_those_that_a_url_may_have() -> None:
    """Each database can be named with and without our driver, and by its short name."""
    assert set(SCHEMES) == {
        "memext+sqlite",
        "memext+sqlite+aiosqlite",
        "memext+postgres",
        "memext+postgresql",
        "memext+postgresql+asyncpg",
        "memext+mysql",
        "memext+mysql+aiomysql",
        "memext+mariadb",
        "memext+mariadb+aiomysql",
    }


def test_adks_own_schemes_are_left_alone(registry: ServiceRegistry) -> None:
    """Registering adds `memext+` schemes, once or twice alike, and takes none of ADK's."""
    before = dict(registry._session_factories)
    register()
    once = dict(registry._session_factories)
    register()
    assert registry._session_factories == once
    assert {scheme: once[scheme] for scheme in before} == before
    assert set(once) - set(before) == set(SCHEMES)
    assert all(scheme.startswith(PREFIX) for scheme in SCHEMES)


@pytest.mark.parametrize(
    "scheme", ["memext", "memext+sqlite+pysqlite", "memext+sqlite2", "xmemext+sqlite"]
)
def test_another_scheme_is_not_ours(scheme: str, registry: ServiceRegistry) -> None:
    """ADK matches schemes exactly, so a misspelt one never opens something else in silence."""
    register()
    assert registry.create_session_service(f"{scheme}:///file.db") is None


def test_an_unregistered_url_fails_loudly(registry: ServiceRegistry, tmp_path: Path) -> None:
    """Where `services.py` was not found, ADK cannot mistake our URL for one of its own."""
    del registry
    with pytest.raises(ValueError, match="memext"):
        open_as_adk_does(f"memext+sqlite:///{tmp_path}/file.db", tmp_path)
    assert list(tmp_path.iterdir()) == []


async def test_the_sample_registers_by_being_imported(
    registry: ServiceRegistry, tmp_path: Path
) -> None:
    """`agents/services.py` is what ADK imports, and then the URL opens our service and works."""
    del registry
    load_services_module(str(AGENTS))
    service = open_as_adk_does(f"memext+sqlite+aiosqlite:///{tmp_path}/a/sessions.db", AGENTS)
    async with service as sessions:
        await sessions.create_session(**OWNER, session_id="session")
        assert await sessions.get_session(**OWNER, session_id="session") is not None
    assert (tmp_path / "a/sessions.db").is_file()


def test_the_sample_is_two_statements() -> None:
    """All that an agents folder needs is an import and a call."""
    module = ast.parse((AGENTS / "services.py").read_text())
    statements = [ast.unparse(node) for node in module.body[1:]]
    assert ast.get_docstring(module)
    assert statements == ["from adk_memory_ext import register", "register()"]
    assert adk_memory_ext.register is register


def test_a_scheme_may_be_in_capitals(registry: ServiceRegistry, tmp_path: Path) -> None:
    """Schemes of URLs know no case, for ADK as for us."""
    register()
    service = registry.create_session_service(f"MemExt+SQLite:///{tmp_path}/File.db")
    assert isinstance(service, DurableSessionService)
    assert [path.name for path in tmp_path.iterdir()] == ["File.db"]


def test_options_of_the_database_are_passed_on(registry: ServiceRegistry, tmp_path: Path) -> None:
    """What `get_fast_api_app(session_db_kwargs=…)` is given reaches the database's options."""
    del registry
    register()
    uri = f"memext+sqlite:///{tmp_path}/sessions.db"
    options = {"busy_timeout": timedelta(seconds=5), "synchronous": "NORMAL"}
    assert isinstance(open_as_adk_does(uri, tmp_path, **options), DurableSessionService)
    with pytest.raises(ConfigurationError, match="Unknown option 'echo'; there are busy_timeout"):
        open_as_adk_does(uri, tmp_path, echo=True)
    with pytest.raises(ConfigurationError, match="busy_timeout must be a timedelta, not 5"):
        open_as_adk_does(uri, tmp_path, busy_timeout=5)


@pytest.mark.parametrize(
    "url",
    [
        "memext+postgresql+asyncpg://user:hun@ter2@host/name",
        "memext+postgresql://user:hunter2@host:port/name",
        "memext+sqlite://user:hunter2@host/file.db",
    ],
)
def test_a_password_is_in_no_error(url: str, registry: ServiceRegistry, tmp_path: Path) -> None:
    """A URL that is refused is not repeated."""
    del registry
    register()
    with pytest.raises(ConfigurationError) as caught:
        open_as_adk_does(url, tmp_path)
    assert "ter2" not in f"{caught.value} {caught.value.__cause__}"
    assert "\n" not in str(caught.value)
