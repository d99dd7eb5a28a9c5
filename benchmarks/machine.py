"""The machine and the versions that a result belongs to."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sqlite3
import statistics
from pathlib import Path
from time import perf_counter
from typing import Final

PACKAGES: Final = (
    "adk-memory-ext",
    "google-adk",
    "sqlalchemy",
    "pydantic",
    "aiosqlite",
    "asyncpg",
    "openai-agents",
    "langchain-core",
    "langgraph-checkpoint-sqlite",
)
_IN_MEMORY: Final = frozenset({"tmpfs", "ramfs", "devtmpfs"})
_SYNCS: Final = 100


def file_system(folder: Path) -> str:
    """Returns the type of the file system that holds `folder`; `unknown` where there is no /proc.

    See proc_pid_mountinfo(5).
    """
    mounts = Path("/proc/self/mountinfo")
    if not mounts.exists():
        return "unknown"
    resolved = folder.resolve()
    found, depth = "unknown", -1
    for line in mounts.read_text(encoding="utf-8").splitlines():
        before, _, after = line.partition(" - ")
        point = Path(before.split()[4].encode().decode("unicode_escape"))
        if resolved.is_relative_to(point) and len(point.parts) >= depth:
            found, depth = after.split()[0], len(point.parts)
    return found


def lies_in_memory(folder: Path) -> bool:
    """Whether what is written to `folder` never reaches a disk."""
    return file_system(folder) in _IN_MEMORY


def processor() -> str:
    """Returns the processor's name."""
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def sync_milliseconds(folder: Path) -> float:
    """Returns the median time that the disk takes to make one written page durable."""
    path = folder / "sync"
    times = []
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
    try:
        for _ in range(_SYNCS):
            os.write(descriptor, bytes(4096))
            start = perf_counter()
            os.fsync(descriptor)
            times.append(perf_counter() - start)
    finally:
        os.close(descriptor)
        path.unlink()
    return statistics.median(times) * 1_000


def versions() -> dict[str, str]:
    """Returns {name: version} of all that takes part and is installed."""
    found = {"Python": platform.python_version(), "SQLite": sqlite3.sqlite_version}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def describe(folder: Path) -> dict[str, str]:
    """Returns what a reader wants to know of the machine, in the order in which to print it."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "processor": f"{processor()}, {usable} cores",
        "system": f"{platform.system()} {platform.release()}",
        "load before it began": f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "?",
        "disk": f"{file_system(folder)}; one fsync takes {sync_milliseconds(folder):.2f} ms",
        "versions": ", ".join(f"{name} {version}" for name, version in versions().items()),
    }
