"""The parent's side of a demo process: start it, hear its reports, let it go on or kill it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_HANG_SECONDS = 120
"""A process that takes longer is taken for hung and killed."""


class ProcessFailedError(Exception):
    """A demo process ended in a way that was not meant; the text holds what it printed."""


@dataclass
class Process:
    """What one process found, did and left."""

    number: int
    turn: int
    """The scenario's turn, 1 to 3; 0 if it only looks, 4 if it erases."""
    pid: int = 0
    model: str = ""
    found_events: list[dict[str, Any]] = field(default_factory=list)
    recovered: int = 0
    """Answers that recovery put in for calls that were cut off; `found_events` is without them."""
    found_state: dict[str, Any] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    """The events that were acknowledged to this process, in order, without the person's own."""
    elsewhere: dict[str, Any] = field(default_factory=dict)
    """What another conversation of the same person sees."""
    erased: dict[str, Any] = field(default_factory=dict)
    """The receipt of the erasure, and what the person has left."""
    pieces: tuple[int, int, int] = (0, 0, 0)
    """Pieces of the résumé: all there are, and those in the files before and after this process."""
    was_killed: bool = False

    def hear(self, report: dict[str, Any]) -> None:
        """Takes in one report."""
        match report["report"]:
            case "ready":
                self.model = report["model"]
            case "arrived":
                self.found_events, self.found_state = report["events"], report["state"]
                self.recovered = report["recovered"]
            case "event":
                self.events.append(report)
            case "elsewhere":
                self.elsewhere = report
            case "erased":
                self.erased = report

    @property
    def prompt_tokens(self) -> list[int]:
        """Prompt tokens of each model call."""
        return [event["prompt_tokens"] for event in self.events if event["prompt_tokens"]]

    @property
    def answer(self) -> str:
        """The coach's text; empty if the process did not get so far."""
        return "\n".join(event["text"] for event in self.events if event["text"])

    def answers_of(self, tool: str) -> list[dict[str, Any]]:
        """Returns what a tool has answered in this process, in order."""
        answers = [answer for event in self.events for answer in event["answers"]]
        return [answer["response"] for answer in answers if answer["name"] == tool]

    @property
    def accepted_plans(self) -> list[Any]:
        """The plans that were sent to `validate_learning_plan` and accepted, in order."""
        calls = [call for event in self.events for call in event["calls"]]
        sent = [call["args"] for call in calls if call["name"] == "validate_learning_plan"]
        answers = self.answers_of("validate_learning_plan")
        # The last call has no answer if the process was killed in between.
        return [args["plan"] for args, a in zip(sent, answers, strict=False) if a.get("ok")]


KillPoint = Callable[[dict[str, Any]], bool]


def after_the_answer(report: dict[str, Any]) -> bool:
    """Returns whether the whole answer has been acknowledged."""
    return bool(report["report"] == "answered")


def after_a_tool_call(report: dict[str, Any]) -> bool:
    """Returns whether a tool call has been acknowledged, and not yet its answer."""
    return bool(report["report"] == "event" and report["calls"])


class Child:
    """A started demo process: it loads its modules and then waits until it is let go on."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        self._popen = subprocess.Popen(  # noqa: S603  # a fixed command
            [sys.executable, "-m", "resume_coach.demo.turn", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            encoding="utf-8",
            env={**os.environ, **environment},
        )

    def run(self, process: Process, kill_at: KillPoint | None) -> None:
        """Lets the child go on to its end, or to the report at which it is to be killed.

        Raises:
          ProcessFailedError: If it failed, hung, or ended before it could be killed.
        """
        process.pid = self._popen.pid
        watchdog = threading.Timer(_HANG_SECONDS, self._popen.kill)
        watchdog.start()
        try:
            self._converse(process, kill_at)
            code = self._popen.wait()
        finally:
            watchdog.cancel()
        process.was_killed = code == -signal.SIGKILL and kill_at is not None
        if process.was_killed != (kill_at is not None) or (code != 0 and not process.was_killed):
            self._log.seek(0)
            raise ProcessFailedError(
                f"process {process.number} ended with code {code}\n{self._log.read()[-4000:]}"
            )

    def _converse(self, process: Process, kill_at: KillPoint | None) -> None:
        for line in self._popen.stdout or ():
            report = json.loads(line)
            process.hear(report)
            if kill_at and kill_at(report):
                self._popen.kill()  # SIGKILL: no handler, no clean-up, no last words
                return
            if self._popen.stdin:
                # Not through the buffer: closing one that could not be written raises again.
                with contextlib.suppress(BrokenPipeError):
                    os.write(self._popen.stdin.fileno(), b"go on\n")

    def close(self) -> None:
        """Kills the child if it still runs, and closes its pipes and its log."""
        self._popen.kill()
        with self._popen, self._log:
            pass
