"""The command line: cheap to start, changes nothing, and fails in one line."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from click.testing import CliRunner
from google.adk.sessions.schemas.v0 import Base as TablesOfVersion0
from sqlalchemy import create_engine

import adk_memory_ext
from adk_memory_ext.cli import main
from adk_memory_ext.service import DurableSessionService
from conversation import said
from servers import HANG_SECONDS

if TYPE_CHECKING:
    from click.testing import Result

pytestmark = pytest.mark.usefixtures("nothing_left")

OWNER: Final[dict[str, Any]] = {"app_name": "app", "user_id": "user"}


def run(*arguments: str, **environment: str) -> Result:
    """Returns what `adk-memory` prints and its exit code."""
    return CliRunner(env={"ADK_MEMORY_URL": None, **environment}).invoke(main, arguments)


def report(result: Result) -> dict[str, str]:
    """Returns what `check` has printed, line by line."""
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    lines = (line.split(maxsplit=1) for line in result.stdout.splitlines())
    return dict(lines)


def use(url: str) -> None:
    """Stores two sessions and three events."""

    async def talk() -> None:
        async with DurableSessionService.from_url(url) as sessions:
            await sessions.create_session(**OWNER)
            session = await sessions.create_session(**OWNER)
            for text in ("one", "two", "three"):
                await sessions.append_event(session, said(text))

    asyncio.run(talk())


def snapshot(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Returns the bytes and the time of change of each file in a folder."""
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()}


def assert_refused(result: Result, *advice: str) -> None:
    """Checks for exit code 1 and one line on stderr, which is no traceback."""
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    for part in advice:
        assert part in result.stderr


@pytest.mark.parametrize("argument", ["--version", "--help", "-h"])
def test_a_question_about_the_command_itself_is_cheap(argument: str) -> None:
    """Version and help come without loading ADK or a database library."""
    code = f"""
import sys
from adk_memory_ext.cli import main
try:
    main([{argument!r}])
except SystemExit as done:
    heavy = {{"google.adk", "google.genai", "pydantic", "sqlalchemy", "rich"}} & set(sys.modules)
    assert not heavy, heavy
    raise
"""
    outcome = subprocess.run(
        [sys.executable, "-c", code],
        text=True,
        capture_output=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    assert (outcome.returncode, outcome.stderr) == (0, "")
    if argument == "--version":
        assert outcome.stdout == f"adk-memory, version {adk_memory_ext.__version__}\n"
    else:
        assert re.search(r"check +Say whether the database can be used", outcome.stdout)


def test_a_database_that_is_not_there_yet_is_not_made(tmp_path: Path) -> None:
    """`check` on a missing file says so and creates neither the file nor its folder."""
    found = report(run("check", "--url", f"sqlite:///{tmp_path}/folder/sessions.db"))
    assert found == {
        "database": f"sqlite+aiosqlite:///{tmp_path}/folder/sessions.db",
        "status": "not there yet; the first session creates it",
    }
    assert list(tmp_path.iterdir()) == []


def test_a_database_in_use_is_counted(tmp_path: Path) -> None:
    """`check` says how many sessions and events there are, and changes nothing."""
    use(f"sqlite:///{tmp_path}/sessions.db")
    before = snapshot(tmp_path)
    found = report(run("check", "--url", f"sqlite:///{tmp_path}/sessions.db"))
    assert found["server"].startswith("sqlite 3.")
    assert (found["sessions"], found["events"], found["status"]) == ("2", "3", "ready")
    assert snapshot(tmp_path) == before


def test_the_url_may_come_from_the_environment(tmp_path: Path) -> None:
    """`ADK_MEMORY_URL` is the database where `--url` names none."""
    use(f"sqlite:///{tmp_path}/sessions.db")
    found = report(run("check", ADK_MEMORY_URL=f"sqlite:///{tmp_path}/sessions.db"))
    assert found["events"] == "3"
    other = f"sqlite:///{tmp_path}/other.db"
    found = report(run("check", "--url", other, ADK_MEMORY_URL=f"sqlite:///{tmp_path}/sessions.db"))
    assert found["status"].startswith("not there yet")


def test_without_a_url_it_is_the_samples_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Called without anything, `check` looks where the README puts the database."""
    monkeypatch.chdir(tmp_path)
    use("sqlite:///.sessions/sessions.db")
    found = report(run("check"))
    assert found["database"] == "sqlite+aiosqlite:///.sessions/sessions.db"
    assert found["events"] == "3"


def test_a_server_is_counted(postgresql_url: str) -> None:
    """`check` on PostgreSQL names the server's version, before the first session and after it."""
    empty = report(run("check", "--url", postgresql_url))
    assert empty["server"].startswith("postgresql ")
    assert "events" not in empty
    use(postgresql_url)
    found = report(run("check", "--url", postgresql_url))
    assert (found["sessions"], found["events"], found["status"]) == ("2", "3", "ready")


def test_a_server_that_does_not_answer_is_an_error() -> None:
    """Nothing listens on port 1: one line says so, without the password."""
    result = run("check", "--url", "postgresql://user:hunter2@127.0.0.1:1/name")
    assert_refused(result, "user:***@127.0.0.1:1/name cannot be reached (ConnectionRefusedError)")
    assert "hunter2" not in result.output


def test_a_database_that_the_server_has_not_is_an_error(postgresql_url: str) -> None:
    """The name of the driver's error says what is wrong."""
    result = run("check", "--url", f"{postgresql_url}_not_there")
    assert_refused(result, "cannot be reached (InvalidCatalogNameError)")


def test_a_parameter_that_the_driver_has_not_is_an_error(postgresql_url: str) -> None:
    """A parameter that the driver does not know is an error of one line too."""
    assert_refused(run("check", "--url", f"{postgresql_url}?color=red"), "parameters right?")


@pytest.mark.parametrize("option", ["--url=oracle://host/name", "--url=sessions.db"])
def test_a_url_that_cannot_work_is_an_error(option: str) -> None:
    """A URL that is refused is refused in one line."""
    assert_refused(run("check", option), "sqlite")


def test_a_file_that_is_no_database_is_an_error(tmp_path: Path) -> None:
    """A text file is named and left alone."""
    (tmp_path / "notes.db").write_text("These are not the sessions.")
    before = snapshot(tmp_path)
    result = run("check", "--url", f"sqlite:///{tmp_path}/notes.db")
    assert_refused(result, "notes.db' is not a SQLite database")
    assert snapshot(tmp_path) == before


def test_a_database_of_adk_1_is_an_error(tmp_path: Path) -> None:
    """Tables of ADK 1.x are named with the command that copies them, and left alone."""
    engine = create_engine(f"sqlite:///{tmp_path}/old.db")
    TablesOfVersion0.metadata.create_all(engine)
    engine.dispose()
    before = snapshot(tmp_path)
    result = run("check", "--url", f"sqlite:///{tmp_path}/old.db")
    assert_refused(result, "schema v0", "adk migrate session --source_db_url=")
    assert snapshot(tmp_path) == before


def test_an_error_of_ours_is_no_traceback(tmp_path: Path) -> None:
    """The installed command, too, prints one line and exits with 1."""
    (tmp_path / "notes.db").write_text("These are not the sessions.")
    outcome = subprocess.run(
        [Path(sys.executable).with_name("adk-memory"), "check", "--url", "sqlite:///notes.db"],
        cwd=tmp_path,
        text=True,
        capture_output=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    assert outcome.returncode == 1
    assert outcome.stderr.startswith("Error: 'notes.db' is not a SQLite database")
    assert outcome.stderr.count("\n") == 1
