"""A newcomer's first minutes: a fresh clone, an empty home, and the two commands of the README."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

_ROOT: Final = Path(__file__).parent.parent
_HANG_SECONDS: Final = 900
# What a machine needs to reach its package index and nothing else.
_NETWORK_VARIABLES: Final = ("PIP_", "HTTP", "HTTPS_", "NO_PROXY", "SSL_CERT_", "REQUESTS_CA_")


def _clone(target: Path) -> set[Path]:
    """Copies what git would have in it, uncommitted work too, and returns the relative paths."""
    if not (_ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("this is no git checkout")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=_ROOT,
        capture_output=True,
        check=True,
    ).stdout
    names = [Path(os.fsdecode(name)) for name in listed.split(b"\0") if name]
    present = {name for name in names if (_ROOT / name).is_file()}
    for name in present:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(_ROOT / name, target / name)
    return present


class Newcomer:
    """Somebody with a clone, who has nothing but Python and make."""

    def __init__(self, folder: Path) -> None:
        self.clone = folder / "clone"
        self.home = folder / "home"
        self.temporary = folder / "tmp"
        for path in (self.clone, self.home, self.temporary):
            path.mkdir()
        self.cloned = _clone(self.clone)

    def make(self, *arguments: str) -> str:
        """Runs make and returns what it printed.

        Raises:
            AssertionError: With what it printed, when it failed.
        """
        ended = subprocess.run(
            ["make", *arguments],
            cwd=self.clone,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_HANG_SECONDS,
            check=False,
        )
        assert ended.returncode == 0, ended.stdout
        return ended.stdout

    def _environment(self) -> dict[str, str]:
        network = {
            name: value
            for name, value in os.environ.items()
            if name.upper().startswith(_NETWORK_VARIABLES)
        }
        return {
            **network,
            "PATH": os.pathsep.join((f"{sys.base_prefix}/bin", "/usr/bin", "/bin")),
            "LANG": "C.UTF-8",
            "HOME": str(self.home),
            "TMPDIR": str(self.temporary),
        }

    def stamps(self) -> dict[str, int]:
        """Returns when what was installed: the stamps and the installed packages' folder."""
        venv = self.clone / ".venv"
        found = [*venv.glob(".installed-*"), *venv.glob("lib/python*/site-packages")]
        return {path.name: path.stat().st_mtime_ns for path in found}

    def written(self) -> set[str]:
        """Returns the first part of the path of each file that was not cloned."""
        new = {path.relative_to(self.clone) for path in self.clone.rglob("*") if path.is_file()}
        return {path.parts[0] for path in new - self.cloned if "__pycache__" not in path.parts}


def test_two_commands_are_all_the_set_up(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """`make demo` and `make test` install what they need, once, and write nothing elsewhere."""
    newcomer = Newcomer(tmp_path)
    # Some tests only: this very one is among the others.
    chosen = "PYTEST=-n 0 tests/test_package.py -k 'version or public_name'"
    started = time.monotonic()
    assert "Installing" in newcomer.make("demo")
    tested = newcomer.make("test", chosen)
    assert "Installing" in tested
    assert " passed" in tested
    record_property("seconds", round(time.monotonic() - started))

    installed = newcomer.stamps()
    assert "Installing" not in newcomer.make("demo")
    assert "pip install" not in newcomer.make("test", "--dry-run")
    assert newcomer.stamps() == installed

    assert list(newcomer.home.iterdir()) == []
    assert list(newcomer.temporary.iterdir()) == []
    assert newcomer.written() <= {".venv", ".sessions", ".pytest_cache", ".hypothesis"}
    assert {path.name for path in tmp_path.iterdir()} == {"clone", "home", "tmp"}
    shutil.rmtree(newcomer.clone)  # pytest would keep its 400 MB
