"""Where the time of an append goes: samples of what every thread does while one appends.

A tracing profiler would make small functions look dear, and `cProfile` sees one thread only. Here
a thread looks at all others' stacks; the interpreter is told to hand over at once, so that what is
seen is not only the calls that let other threads run.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from pathlib import Path
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Final

import adk_memory_ext
from benchmarks.adk_stores import open_ours
from benchmarks.contenders import OURS
from benchmarks.rounds import Measured
from benchmarks.workload import messages

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from benchmarks.effort import Effort
    from benchmarks.store import Synchronous

LEVELS: Final[tuple[Synchronous, ...]] = ("FULL", "NORMAL")
"""At which `synchronous` an append is looked at; the sync hides the rest at FULL."""
PARTS: Final = "part_share"
"""Quantity, with a level behind it: the share of an append that goes into a kind of code."""
PLACES: Final = "place_share"
"""Quantity, at the last level: the share of one line of this package and all that it calls."""

_PACKAGE: Final = str(Path(adk_memory_ext.__file__).parent)
_SOURCE: Final = {
    str(path): path.read_text(encoding="utf-8").splitlines()
    for path in Path(_PACKAGE).rglob("*.py")
}
_INTERVAL_SECONDS: Final = 0.0005
_SWITCH_SECONDS: Final = 0.00001
_PLACES: Final = 12
_HAND_OVER: Final = "waking the other thread"
_WAITING: Final = frozenset(
    {
        ("selectors.py", "select"),
        ("threading.py", "wait"),
        ("thread.py", "_worker"),
        ("sqlite_database.py", "_next_batch"),
    }
)
"""(file, function) in which a thread has nothing to do."""
_SOFTWARE: Final = (
    ("/pydantic/", "pydantic"),
    ("/google/adk/", "ADK"),
    ("/google/genai/", "ADK"),
    ("/sqlalchemy/", "SQLAlchemy"),
    ("/json/", "JSON"),
    ("/asyncio/", "event loop and threads"),
    ("/concurrent/", "event loop and threads"),
    ("/selectors.py", "event loop and threads"),
    ("/threading.py", "event loop and threads"),
    ("/queue.py", "event loop and threads"),
    ("/benchmarks/", "the benchmark"),
    (_PACKAGE, "adk_memory_ext, Python"),
)
"""(part of a path, whose code it is); the first that fits."""


class _Sampler(threading.Thread):
    """Counts where the other threads are."""

    def __init__(self, main: int) -> None:
        super().__init__(name="sampler", daemon=True)
        self.parts: Counter[str] = Counter()
        self.places: Counter[str] = Counter()
        self.measuring = threading.Event()
        """Set while an append is under way."""
        self._main = main
        self._ended = threading.Event()

    def run(self) -> None:
        """Samples until it is stopped."""
        while not self._ended.is_set():
            sleep(_INTERVAL_SECONDS)
            if self.measuring.is_set():
                self._look()

    def stop(self) -> None:
        """Ends the sampling and waits for it."""
        self._ended.set()
        self.join()

    def _look(self) -> None:
        stacks = sys._current_frames()  # noqa: SLF001  # the documented way to see other threads
        stacks.pop(threading.get_ident(), None)
        # The loop's thread first: where both run, the append is on its way back.
        ordered = sorted(stacks.items(), key=lambda item: item[0] != self._main)
        active = [frame for _thread, frame in ordered if not _waits(frame)]
        self.parts[_part(active[0]) if active else _HAND_OVER] += 1
        if active and (place := _place(active[0])):
            self.places[place] += 1


def _waits(frame: FrameType) -> bool:
    code = frame.f_code
    return (Path(code.co_filename).name, code.co_name) in _WAITING


def _part(frame: FrameType) -> str:
    """Returns whose code the thread runs; a call into C counts for the line that makes it."""
    path = frame.f_code.co_filename
    if path.startswith(_PACKAGE):
        line = _line(frame)
        if "COMMIT" in line or "BEGIN" in line:
            return "SQLite: BEGIN and COMMIT"
        if "execute(" in line:
            return "SQLite: statements"
    return next((name for part, name in _SOFTWARE if part in path), "other Python")


def _place(frame: FrameType | None) -> str:
    """Returns the innermost line of this package; empty if there is none on the stack.

    A statement counts for who runs it, not for the line that runs them all; a comprehension or a
    lambda for the function that runs it, and so does a function that is between two lines.
    """
    while frame is not None:
        path, name = Path(frame.f_code.co_filename), frame.f_code.co_name
        inside = str(path).startswith(_PACKAGE) and path.name != "statements.py"
        if inside and name.isidentifier() and (line := _line(frame)):
            return f"{path.stem}.{name}: {line}"
        frame = frame.f_back
    return ""


def _line(frame: FrameType) -> str:
    """Returns the line of this package that the frame is at."""
    lines = _SOURCE.get(frame.f_code.co_filename, ())
    number = frame.f_lineno or 0  # None between a function's lines, whatever typeshed says
    return lines[number - 1].strip() if 0 < number <= len(lines) else ""


async def profile_appends(
    url: Callable[[str], str], effort: Effort, step: Callable[[float], None]
) -> Measured:
    """Measures the shares of our append, over `effort.profile_seconds` at each level.

    Args:
        url: Returns a database of that name.
        effort: How long.
        step: Is told the part that is done, from 0 to 1.
    """
    measured = Measured()
    samples = 0
    for number, level in enumerate(LEVELS, 1):
        sampler = await _sampled(url(level), level, effort.profile_seconds)
        total = sampler.parts.total()
        samples += total
        for part, count in sampler.parts.most_common():
            measured.add(f"{PARTS}/{level}", part, count / total)
        if level == LEVELS[-1]:
            for place, count in sampler.places.most_common(_PLACES):
                measured.add(PLACES, place, count / total)
        step(number / len(LEVELS))
    measured.note("samples", OURS.name, f"{samples:,}")
    return measured


async def _sampled(url: str, level: Synchronous, seconds: float) -> _Sampler:
    """Appends for some seconds and returns what was seen meanwhile."""
    sampler = _Sampler(threading.get_ident())
    before = sys.getswitchinterval()
    async with open_ours(url, synchronous=level) as store:
        conversation = await store.conversation("profile")
        stream = messages("profile")
        sys.setswitchinterval(_SWITCH_SECONDS)
        sampler.start()
        end = perf_counter() + seconds
        try:
            while perf_counter() < end:
                prepared = conversation.prepare(next(stream))
                sampler.measuring.set()
                await conversation.append(prepared)
                sampler.measuring.clear()
        finally:
            sampler.stop()
            sys.setswitchinterval(before)
    return sampler
