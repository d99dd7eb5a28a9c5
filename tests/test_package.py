"""The package as a user gets it: what an import costs, what is public, what the wheel holds."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import json
import pkgutil
import subprocess
import sys
import tomllib
import zipfile
from email import message_from_string
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

import adk_memory_ext
from adk_memory_ext import errors
from servers import HANG_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from email.message import Message
    from types import ModuleType

ROOT: Final = Path(__file__).parents[1]
PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

CONSTANTS: Final = {"PROFILE_INSTRUCTION", "__version__"}
"""Public texts, which carry no docstring."""


def run_python(code: str, **environment: str) -> str:
    """Returns what `code` prints in a fresh interpreter that knows only `environment`."""
    return subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        text=True,
        capture_output=True,
        timeout=HANG_SECONDS,
        check=True,
    ).stdout


def modules() -> list[ModuleType]:
    """Returns every module of the package, the package itself first."""
    found = pkgutil.walk_packages(adk_memory_ext.__path__, "adk_memory_ext.")
    return [adk_memory_ext, *(importlib.import_module(info.name) for info in found)]


def test_importing_the_package_imports_neither_adk_nor_sqlalchemy() -> None:
    """`import adk_memory_ext` costs nothing until one of its names is used."""
    code = "import sys, json, adk_memory_ext; print(json.dumps(sorted(sys.modules)))"
    loaded = set(json.loads(run_python(code)))
    assert "adk_memory_ext" in loaded
    assert not {"google.adk", "google.genai", "pydantic", "sqlalchemy", "click"} & loaded


def test_service_and_plugin_need_no_library_that_a_runner_has_not_loaded() -> None:
    """Beside a Runner, the service and the plugin import no further third-party library."""
    code = """
import json, sys
import google.adk.runners
before = set(sys.modules)
from adk_memory_ext import DurableSessionService, MemoryPlugin
new = {name.partition(".")[0] for name in set(sys.modules) - before}
print(json.dumps(sorted(new - set(sys.stdlib_module_names))))
"""
    assert set(json.loads(run_python(code))) <= {"adk_memory_ext", "google"}


@pytest.mark.parametrize("name", sorted(set(adk_memory_ext.__all__) - CONSTANTS))
def test_each_public_name_is_there_and_documented(name: str) -> None:
    """A name in `__all__` can be imported and says by itself what it is."""
    value = getattr(adk_memory_ext, name)
    assert value.__module__.startswith("adk_memory_ext.")
    assert vars(value).get("__doc__") or (inspect.isfunction(value) and value.__doc__)


def test_public_names_are_sorted_and_listed() -> None:
    """`__all__` is in order and is what `dir` and a star import show."""
    scope: dict[str, Any] = {}
    exec("from adk_memory_ext import *", scope)  # noqa: S102  # what a user may write
    constants_first = sorted(adk_memory_ext.__all__, key=lambda name: (not name.isupper(), name))
    assert list(adk_memory_ext.__all__) == constants_first
    assert dir(adk_memory_ext) == sorted(adk_memory_ext.__all__)
    assert set(adk_memory_ext.__all__) <= set(scope)


def test_every_error_is_public_and_in_the_tree() -> None:
    """Each error class can be imported from the package and is a `MemoryExtError`."""
    classes = {
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and value.__module__ == errors.__name__
    }
    assert classes <= set(adk_memory_ext.__all__)
    assert all(issubclass(getattr(errors, name), errors.MemoryExtError) for name in classes)


def test_an_unknown_name_is_an_attribute_error() -> None:
    """A misspelt name is reported as Python reports it for any module."""
    with pytest.raises(AttributeError, match="has no attribute 'DurableService'"):
        _ = adk_memory_ext.DurableService
    with pytest.raises(ImportError, match="cannot import name 'DurableService'"):
        exec("from adk_memory_ext import DurableService")  # noqa: S102  # what a user may write


def test_the_version_is_the_projects() -> None:
    """`__version__` and pyproject.toml agree."""
    assert adk_memory_ext.__version__ == PROJECT["version"]


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.__name__)
def test_everything_public_has_a_docstring(module: ModuleType) -> None:
    """Each module, and each public function, class, method and property in it, is documented."""
    undocumented = [name for name, value in _public(module) if not inspect.getdoc(value)]
    assert module.__doc__
    assert undocumented == []


def _public(module: ModuleType) -> Iterator[tuple[str, object]]:
    """Yields what a module defines under a public name, with its qualified name."""
    for name, value in vars(module).items():
        if name.startswith("_") or getattr(value, "__module__", None) != module.__name__:
            continue
        if inspect.isfunction(value):
            yield name, value
        elif inspect.isclass(value):
            # A docstring of its own: `inspect.getdoc` would show the base class's.
            yield name, type("own", (), {"__doc__": vars(value).get("__doc__")})
            for member, inner in vars(value).items():
                is_callable = inspect.isfunction(inner) or isinstance(
                    inner, (property, classmethod, staticmethod)
                )
                if is_callable and not member.startswith("_"):
                    yield f"{name}.{member}", inner


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from this tree without a network."""
    pytest.importorskip("hatchling", reason="hatchling builds the wheel")
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=HANG_SECONDS,
    )
    (path,) = folder.iterdir()
    return path


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    """The METADATA of the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        name = f"{_distribution()}.dist-info/METADATA"
        return message_from_string(archive.read(name).decode())


def _distribution() -> str:
    return f"adk_memory_ext-{PROJECT['version']}"


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    """The wheel has the modules, `py.typed` and the licence; no tests, no samples, no database."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    info = f"{_distribution()}.dist-info"
    expected = {
        path.relative_to(ROOT).as_posix() for path in (ROOT / "adk_memory_ext").rglob("*.py")
    }
    assert names == expected | {
        "adk_memory_ext/py.typed",
        f"{info}/METADATA",
        f"{info}/RECORD",
        f"{info}/WHEEL",
        f"{info}/entry_points.txt",
        f"{info}/licenses/LICENSE",
    }


def test_the_package_works_from_its_wheel(wheel: Path, tmp_path: Path) -> None:
    """What stands in the wheel is enough to store a session."""
    code = """
import asyncio
from adk_memory_ext import DurableSessionService, service
async def main():
    async with DurableSessionService.from_url("sqlite:///kept/sessions.db") as sessions:
        await sessions.create_session(app_name="app", user_id="user", session_id="session")
asyncio.run(main())
print(service.__file__)
"""
    code = f"import os; os.chdir({str(tmp_path)!r})\n{code}"
    assert run_python(code, PYTHONPATH=str(wheel)).startswith(f"{wheel}/adk_memory_ext/")
    assert (tmp_path / "kept/sessions.db").is_file()


def test_the_metadata_says_what_the_package_needs(metadata: Message) -> None:
    """The wheel's metadata names the licence, the Python versions, ADK and each extra."""
    requirements = metadata.get_all("Requires-Dist") or []
    assert metadata["Name"] == "adk-memory-ext"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert "google-adk[db]<3,>=2.13" in requirements
    assert {"cli", "dev", "mysql", "postgresql"} <= set(metadata.get_all("Provides-Extra") or [])


def test_a_driver_is_an_extra_of_its_own(metadata: Message) -> None:
    """Nobody has to install a database driver that they do not use, SQLite's aside."""
    extras_of: dict[str, set[str]] = {}
    for line in metadata.get_all("Requires-Dist") or []:
        requirement, _, marker = line.partition(";")
        extras_of.setdefault(requirement.partition(">")[0], set()).add(marker.strip())
    assert extras_of["aiosqlite"] == {""}
    for requirement, extra in (("asyncpg", "postgresql"), ("aiomysql", "mysql"), ("rich", "cli")):
        assert f"extra == '{extra}'" in extras_of[requirement]
        assert "" not in extras_of[requirement]


def test_the_console_script_is_the_command_line() -> None:
    """The installed script `adk-memory` is `adk_memory_ext.cli.main`."""
    scripts = importlib.metadata.entry_points(group="console_scripts", name="adk-memory")
    assert [script.value for script in scripts] == ["adk_memory_ext.cli:main"]
