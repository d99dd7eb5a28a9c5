"""`python -m benchmarks`: measures and writes docs/benchmarks.md and its picture."""

from __future__ import annotations

import argparse
import asyncio
import functools
import shutil
import sys
import tempfile
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from benchmarks import machine, postgresql
from benchmarks.effort import EFFORTS
from benchmarks.parts import PARTS, Part
from benchmarks.picture import draw
from benchmarks.report import report
from benchmarks.results import Results
from benchmarks.rounds import Measured
from benchmarks.rows import POSTGRESQL

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_ROOT: Final = Path(__file__).parent.parent
_WORK: Final = _ROOT / ".venv" / "bench"
_DOCS: Final = _ROOT / "docs"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and writes the report; returns the exit status."""
    options = _parser().parse_args(arguments)
    console = Console(stderr=True)
    if options.profile:
        options.only = ["profile"]
    if options.render is not None:
        results = Results.load(options.render)
    else:
        warning = _refuse_memory(options.dir, allowed=options.allow_memory)
        options.dir.mkdir(parents=True, exist_ok=True)
        with _work_folder(options.dir) as folder:
            results = _run(options, folder, console, warning)
        results.save(options.dir / "results.json")
    output = options.output or _default_output(options, results)
    _write(results, output, console)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    add = parser.add_argument
    add("--quick", dest="effort", action="store_const", const="quick", help="four minutes")
    add("--tiny", dest="effort", action="store_const", const="tiny", help="seconds, for tests")
    add("--dir", type=Path, default=_WORK, help="where the databases lie while it runs")
    add("--allow-memory", action="store_true", help="allow a --dir that is no disk (tmpfs)")
    add("--only", nargs="+", choices=PARTS, help="these parts; docs/ is left alone")
    add("--profile", action="store_true", help="only where the time of our append goes")
    add("--output", type=Path, help="the report's file")
    add("--render", type=Path, metavar="JSON", help="measure nothing, write the report of a run")
    parser.set_defaults(effort="full")
    return parser


def _default_output(options: argparse.Namespace, results: Results) -> Path:
    """Returns docs/benchmarks.md for a whole run, else a file that is not under version control."""
    whole = results.effort_name == "full" and not options.only and not options.allow_memory
    return (_DOCS if whole else _WORK) / "benchmarks.md"


def _refuse_memory(folder: Path, *, allowed: bool) -> str:
    """Returns a warning for the report if `folder` is no disk and that is allowed.

    Raises:
        SystemExit: When it is not allowed.
    """
    if not machine.lies_in_memory(folder):
        return ""
    if not allowed:
        sys.exit(
            f"{folder} lies in memory ({machine.file_system(folder)}), where making a commit"
            " durable costs nothing; choose a folder on a disk with --dir."
        )
    return "Measured in memory: making a commit durable cost nothing here."


@contextmanager
def _work_folder(parent: Path) -> Iterator[Path]:
    """Yields a new folder below `parent` and removes it."""
    folder = Path(tempfile.mkdtemp(prefix="run-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def _run(options: argparse.Namespace, folder: Path, console: Console, warning: str) -> Results:
    """Runs the parts, one after the other, and returns what they measured."""
    start = perf_counter()
    server = postgresql.server_url()
    description = machine.describe(folder)
    version = asyncio.run(postgresql.server_version(server))
    description["PostgreSQL"] = version or f"not reached; {postgresql.VARIABLE} names a server"
    if warning:
        description["warning"] = warning
    measured = Measured()
    with Progress(
        TextColumn("{task.description:<44}"), BarColumn(), TimeElapsedColumn(), console=console
    ) as progress:
        for name in options.only or PARTS:
            on_server = name.startswith("postgresql")
            task = progress.add_task(PARTS[name], total=1)
            if on_server and not version:
                progress.update(task, description=f"{PARTS[name]}: no server", completed=1)
                continue
            place = folder / name
            place.mkdir()
            part = Part(name=name, folder=place, effort=EFFORTS[options.effort], server=server)
            measured.update(
                part.run(functools.partial(_advance, progress, task)),
                POSTGRESQL if on_server else "",
            )
            progress.update(task, completed=1)
            shutil.rmtree(place)
    return Results(
        date=datetime.now(UTC).date().isoformat(),
        minutes=(perf_counter() - start) / 60,
        effort_name=options.effort,
        machine=description,
        measured=measured,
    )


def _advance(progress: Progress, task: TaskID, done: float) -> None:
    progress.update(task, completed=done)


def _write(results: Results, output: Path, console: Console) -> None:
    """Writes the report and its picture, and prints the report."""
    output.parent.mkdir(parents=True, exist_ok=True)
    picture = output.with_suffix(".svg")
    try:
        draw(results, picture)
        name = picture.name
    except ImportError:
        console.print("No picture: matplotlib is not installed (it is in the extra `bench`).")
        name = ""
    text = report(results, name)
    output.write_text(text, encoding="utf-8")
    print(text)
    console.print(f"Written to {output}")


if __name__ == "__main__":
    sys.exit(main())
