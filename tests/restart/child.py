"""Child processes that talk to the test through a pipe, and may die at any word."""

from __future__ import annotations

import contextlib
import os
import signal
import traceback
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, Self

from forks import context
from servers import HANG_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection
    from multiprocessing.context import ForkServerProcess
    from types import TracebackType


def die() -> NoReturn:
    """Ends this process with SIGKILL, at once: nothing is flushed, closed or rolled back."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


@dataclass(frozen=True)
class _Failed:
    """What a child sends when it ends with an exception."""

    report: str


def _main(target: Callable[..., None], pipe: Connection, arguments: tuple[Any, ...]) -> None:
    try:
        target(pipe, *arguments)
    except BaseException:  # noqa: BLE001  # the test shows it
        pipe.send(_Failed(traceback.format_exc()))
        raise SystemExit(1) from None


@dataclass
class Child:
    """A process that runs `target(pipe, *arguments)`.

    What it has sent arrives, also when it was killed right behind the sending.
    """

    target: Callable[..., None]
    arguments: tuple[Any, ...]
    heard: list[Any] = field(default_factory=list)
    """Everything that it said so far."""
    _process: ForkServerProcess = field(init=False)
    _pipe: Connection = field(init=False)

    def __enter__(self) -> Self:
        self._pipe, theirs = context().Pipe()
        self._process = context().Process(target=_main, args=(self.target, theirs, self.arguments))
        self._process.start()
        theirs.close()  # so that the end of the child is the end of what it says
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()  # does nothing to one that has ended
        self._process.join(HANG_SECONDS)
        self._process.close()
        self._pipe.close()

    def hear(self) -> Any:
        """Returns what the child says next.

        Raises:
            EOFError: When it has ended.
        """
        assert self._pipe.poll(HANG_SECONDS), "the child hangs"
        said = self._pipe.recv()
        assert not isinstance(said, _Failed), said.report
        self.heard.append(said)
        return said

    def tell(self, word: Any) -> None:
        """Sends something to the child."""
        self._pipe.send(word)

    def kill(self) -> None:
        """Kills the child from outside, wherever it is."""
        self._process.kill()

    def end(self) -> int:
        """Hears the child to its end and returns its exit code, negative for a signal."""
        with contextlib.suppress(EOFError, ConnectionResetError):
            while True:
                self.hear()
        self._process.join(HANG_SECONDS)
        assert self._process.exitcode is not None, "the child hangs"
        return self._process.exitcode


def killed(target: Callable[..., None], *arguments: Any) -> list[Any]:
    """Returns what a child said until it died by SIGKILL, which it must."""
    with Child(target, arguments) as child:
        assert child.end() == -signal.SIGKILL
        return child.heard


def finished(target: Callable[..., None], *arguments: Any) -> list[Any]:
    """Returns what a child said that came to its end."""
    with Child(target, arguments) as child:
        assert child.end() == 0
        return child.heard
