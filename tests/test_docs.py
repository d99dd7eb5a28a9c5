"""The documents against the project: what they name exists, and what they show compiles."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from google.adk.plugins.base_plugin import BasePlugin

import adk_memory_ext
from adk_memory_ext.cli import main
from adk_memory_ext.plugin import PARTS
from adk_memory_ext.service_uri import SCHEMES

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).parents[1]
REQUIRED: Final = ("README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md")
DOCUMENTS: Final = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
PLACES: Final = tuple(
    sorted(f"{path.name}/" for path in ROOT.iterdir() if path.is_dir() and path.name != ".venv")
)


def text_of(document: Path) -> str:
    """Returns a document's text without its code blocks."""
    return re.sub(r"^```.*?^```$", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)


def spans(document: Path) -> list[str]:
    """Returns what stands between backticks, on a line and in code blocks."""
    blocks = re.findall(r"^```\w*\n(.*?)^```$", document.read_text(), re.MULTILINE | re.DOTALL)
    return re.findall(r"`([^`\n]+)`", text_of(document)) + blocks


def named(document: Path, pattern: str) -> list[str]:
    """Returns what a pattern finds in the code of a document."""
    return [found for span in spans(document) for found in re.findall(pattern, span)]


def anchors(document: Path) -> set[str]:
    """Returns the anchors that GitHub gives to a document's headings."""
    headings = re.findall(r"^#+ (.+)$", text_of(document), re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings
    }


each_document = pytest.mark.parametrize(
    "document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix()
)


@pytest.mark.parametrize("name", REQUIRED)
def test_the_documents_are_there(name: str) -> None:
    """Each document has a heading and something to say."""
    text = (ROOT / name).read_text()
    assert text.startswith("# ")
    assert len(text.splitlines()) > 10


@each_document
def test_every_link_leads_somewhere(document: Path) -> None:
    """A relative link names a file that exists, and an anchor that is a heading there."""
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text_of(document)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = document.parent / path if path else document
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_every_page_can_be_found_from_the_first_one() -> None:
    """docs/README.md leads to each page but the decisions, whose folder it names."""
    index = ROOT / "docs/README.md"
    linked = {
        (index.parent / target).resolve()
        for target in re.findall(r"\]\(([^)#]+)", index.read_text())
    }
    pages = {path for path in ROOT.glob("docs/**/*.md") if path.parent.name != "decisions"}
    assert pages - {index} <= linked


@each_document
def test_every_path_exists(document: Path) -> None:
    """A path into the project, and a document or file of it that is named, is there."""
    words = named(document, r"[\w.\-/]+")
    paths = {word for word in words if word.startswith(PLACES) or word.endswith((".md", ".toml"))}
    # The database of the samples lies there once somebody has talked to them.
    missing = {path for path in paths if not path.startswith(".sessions/")}
    assert [path for path in sorted(missing) if not (ROOT / path).exists()] == []


@each_document
def test_every_test_that_is_named_exists(document: Path) -> None:
    """`tests/…::test_name` is a test of that file."""
    names = set(named(document, r"(tests/[\w/]+\.py::\w+)"))
    missing = []
    for name in sorted(names):
        path, _, test = name.partition("::")
        if not (ROOT / path).is_file() or test not in functions(ROOT / path):
            missing.append(name)
    assert missing == []


def functions(path: Path) -> set[str]:
    """Returns the names of all functions in a file."""
    return {
        node.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    }


def rows_under(document: Path, heading: str) -> list[str]:
    """Returns the rows of the first table below a heading that matches, without its head."""
    _, found, below = re.split(
        rf"^(#+ [^\n]*{heading}[^\n]*)$", document.read_text(), maxsplit=1, flags=re.MULTILINE
    )
    assert found
    section = re.split(r"^#+ ", below, maxsplit=1, flags=re.MULTILINE)[0]
    return [line for line in section.splitlines() if line.startswith("|")][2:]


def test_each_promise_of_the_readme_names_its_test() -> None:
    """A row of the table "what survives what" names at least one test that shows it."""
    rows = rows_under(ROOT / "README.md", "[Ss]urvives")
    assert rows
    assert [row for row in rows if not re.search(r"`tests/[\w/]+\.py::test_\w+`", row)] == []


def python_blocks(document: Path) -> Iterator[ast.Module]:
    """Yields each Python block of a document, in which `await` may stand by itself."""
    for source in re.findall(
        r"^```python\n(.*?)^```$", document.read_text(), re.MULTILINE | re.DOTALL
    ):
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST
        module = compile(source, document.name, "exec", flags, dont_inherit=True)
        assert isinstance(module, ast.Module)
        yield module


@each_document
def test_examples_compile_and_import_what_exists(document: Path) -> None:
    """A Python example is Python, and takes from the package only what the package has."""
    unknown = [
        alias.name
        for module in python_blocks(document)
        for node in ast.walk(module)
        if isinstance(node, ast.ImportFrom) and node.module == "adk_memory_ext"
        for alias in node.names
        if alias.name not in adk_memory_ext.__all__
    ]
    assert unknown == []


def test_the_parts_of_the_plugin_are_those_of_its_page() -> None:
    """In their order, and each is a public plugin that can be used alone."""
    page = (ROOT / "docs/reference/service-and-plugin.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \|.*\| `(\w+)\(.*\)` \|$", page, re.MULTILINE)
    assert tuple(part for part, _ in rows) == PARTS
    for _, plugin in rows:
        assert issubclass(getattr(adk_memory_ext, plugin), BasePlugin)


def test_the_readme_shows_the_package_in_use() -> None:
    """The README has an example with the service in it."""
    (ROOT / "README.md").read_text().index("DurableSessionService")
    assert list(python_blocks(ROOT / "README.md"))


@each_document
def test_every_make_target_exists(document: Path) -> None:
    """`make name` is a target of the Makefile."""
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^(\w+):", makefile, re.MULTILINE))
    assert set(named(document, r"\bmake ([a-z]\w*)")) - targets == set()


@each_document
def test_every_command_exists(document: Path) -> None:
    """`adk-memory name` is a command."""
    assert set(named(document, r"\badk-memory ([a-z]\w*)")) - set(main.commands) == set()


@each_document
def test_every_scheme_is_registered(document: Path) -> None:
    """A `memext+…://` URL has a scheme that opens something."""
    assert set(named(document, r"(memext\+[\w+]+)://")) - set(SCHEMES) == set()


def test_the_changelog_begins_with_this_version() -> None:
    """The newest entry is of the package's version, or of what is not released yet."""
    changelog = (ROOT / "CHANGELOG.md").read_text()
    newest = re.search(r"^## \[?([\w.]+)\]?", changelog, re.MULTILINE)
    assert newest is not None
    assert newest[1] in ("Unreleased", adk_memory_ext.__version__)


def code_map() -> list[list[str]]:
    """Returns the modules of each line of ARCHITECTURE.md's code map, from top to bottom."""
    rows = rows_under(ROOT / "ARCHITECTURE.md", "Code map")
    return [re.findall(r"`(\w+)`", row.split("|")[1]) for row in rows]


def test_the_code_map_names_every_module() -> None:
    """Each module stands once in the code map of ARCHITECTURE.md."""
    modules = {path.stem for path in (ROOT / "adk_memory_ext").glob("*.py")} - {"__init__"}
    packages = {path.parent.name for path in (ROOT / "adk_memory_ext").glob("*/__init__.py")}
    assert sorted(name for row in code_map() for name in row) == sorted(modules | packages)


def test_the_code_map_is_the_order_that_is_checked() -> None:
    """The lines of the code map are the layers of the import-linter contract."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = project["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    checked = [sorted(re.findall(r"\w+", layer)) for layer in layers]
    assert [sorted(row) for row in code_map()] == checked
