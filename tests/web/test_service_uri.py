"""Which `--session_service_uri` opens what, and how a wrong one ends."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Final

import pytest
from sqlalchemy import make_url

from adk_server import text_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from adk_server import AdkProject, Serve

ECHO: Final = "echo"
# The plugin refuses every service but ours, so a turn under it shows what the URI has opened.
WITH_PLUGIN: Final = ("--extra_plugins", "adk_memory_ext.MemoryPlugin")


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A `memext+…` URI of an empty database."""
    scheme: str = request.param
    if scheme == "sqlite":
        return f"memext+sqlite:///{tmp_path}/new folder/sessions.db"
    fixture = "postgresql_url" if scheme.startswith("postgresql") else "mariadb_url"
    url = make_url(request.getfixturevalue(fixture)).set(drivername=f"memext+{scheme}")
    return url.render_as_string(hide_password=False)


def test_every_scheme_opens_a_service_that_outlives_the_server(uri: str, serve: Serve) -> None:
    """The plugin accepts the service, and what was said is there after a kill."""
    server = serve(uri, *WITH_PLUGIN)
    server.create_session(ECHO, "s1", {"user:language": "en", "step": 1})
    assert text_of(server.run(ECHO, "s1", "one")) == "one"
    server.kill()
    server.start()
    assert text_of(server.run_sse(ECHO, "s1", "two")) == "one / two"
    assert server.session(ECHO, "s1")["state"] == {"user:language": "en", "step": 1}


def test_plugin_over_another_service_says_which_one_it_needs(serve: Serve) -> None:
    """Both endpoints name the service that was found and the URI that helps; nothing is stored."""
    server = serve("memory://", *WITH_PLUGIN)
    server.create_session(ECHO, "s1")
    needed = "MemoryPlugin needs a DurableSessionService, but this Runner has a InMemorySession"
    streamed = server.post_message("/run_sse", ECHO, "s1", "one")
    assert needed in streamed.text
    assert "--session_service_uri memext+sqlite:///" in streamed.text
    assert server.post_message("/run", ECHO, "s1", "one").is_server_error
    assert server.output.count(needed) >= 2
    assert server.session(ECHO, "s1")["events"] == []


def _text_file(path: Path) -> None:
    path.write_text("shopping list\n", encoding="utf-8")


def _adk_v0_file(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE events (id TEXT, actions BLOB, timestamp DATETIME)")
        connection.commit()


@pytest.mark.parametrize(
    ("command", "write", "message"),
    [
        ("web", _text_file, "is not a SQLite database; choose another file name."),
        ("api_server", _adk_v0_file, "adk migrate session --source_db_url=sqlite:///"),
    ],
    ids=["text", "adk-1.x"],
)
def test_start_on_a_file_that_is_no_database_of_ours_fails(
    command: str, write: Callable[[Path], None], message: str, project: AdkProject
) -> None:
    """`adk` ends with an error whose last line says what is wrong; the file stays as it was."""
    file = project.root / "sessions.db"
    write(file)
    before = file.read_bytes()
    ended = project.adk(command, "--session_service_uri", "memext+sqlite:///sessions.db", "agents")
    assert ended.returncode != 0
    assert message in ended.stderr.splitlines()[-1]
    assert file.read_bytes() == before
    assert [path.name for path in project.root.glob("sessions*")] == ["sessions.db"]


def test_start_with_a_scheme_that_was_not_registered_fails(project: AdkProject) -> None:
    """A mistyped scheme never opens another service; the last line names the URI."""
    uri = "memext+sqlit:///sessions.db"
    ended = project.adk("web", "--session_service_uri", uri, "agents")
    assert ended.returncode != 0
    assert uri in ended.stderr.splitlines()[-1]
    assert not list(project.root.glob("**/sessions.db*"))
