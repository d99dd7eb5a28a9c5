"""Runs the demo: `python -m resume_coach.demo [--language zh-TW|en] [--gemini]`."""

import argparse
import sys
from collections import deque
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from resume_coach.intake import take_apart
from resume_coach.scenario import LANGUAGES, messages

from . import report
from .checks import checks
from .leftovers import left, pieces
from .process import (
    Child,
    KillPoint,
    Process,
    ProcessFailedError,
    after_a_tool_call,
    after_the_answer,
)
from .turn import ERASE

DATABASE = Path(".sessions/demo.db")
"""Made anew by every run, below the current folder."""

_OFFLINE_MODEL = "offline-coach"


@dataclass(frozen=True)
class Act:
    """What one process of the story is for."""

    turn: int
    """The person's message, 1 to 3; 0 for a look without a message, 4 for the erasure."""
    what: str
    ended: str
    kill_at: KillPoint | None = None


STORY = (
    Act(
        1,
        "turn 1, then killed",
        "SIGKILL, right after its answer was acknowledged",
        after_the_answer,
    ),
    Act(
        2,
        "turn 2, killed in the middle",
        "SIGKILL, after a tool call was stored and before its answer",
        after_a_tool_call,
    ),
    Act(2, "turn 2, the message sent once more", "exit 0"),
    Act(3, "turn 3, one week changed", "exit 0"),
    Act(0, "a last look at what is stored", "exit 0"),
    Act(ERASE, "the conversation is erased", "exit 0"),
)


def main() -> int:
    """Plays the story and returns the exit code: 0 if everything survived, else 1."""
    parser = argparse.ArgumentParser(prog="resume_coach.demo", description=__doc__)
    parser.add_argument("--language", choices=LANGUAGES, default=LANGUAGES[0])
    parser.add_argument(
        "--gemini", action="store_true", help="ask Gemini instead of the offline stand-in"
    )
    options = parser.parse_args()
    out = report.console()
    report.say_heading(out, str(DATABASE), options.language, offline=not options.gemini)
    for old in DATABASE.parent.glob(f"{DATABASE.name}*"):
        old.unlink()
    try:
        processes = _play(out, options.language, gemini=options.gemini)
    except ProcessFailedError as error:
        out.print(Text(f"FAILED: {error}", style="bold red"), soft_wrap=True)
        return 1
    results = list(checks(processes, messages(options.language)))
    report.say_checks(out, results)
    return 0 if all(check.passed for check in results) else 1


def _play(out: Console, language: str, *, gemini: bool) -> list[Process]:
    """Runs the story's processes one after the other and prints each as it ends.

    Loading ADK takes a process some seconds, so the next one does that ahead; it opens the
    database only when its time has come, after the one before has ended.

    Raises:
      ProcessFailedError: If a process failed, or `gemini` is wanted and no key is set.
    """
    environment = {} if gemini else {"RESUME_COACH_MODEL": "offline"}
    processes: list[Process] = []
    turns = messages(language)
    resume = pieces(take_apart(turns[0]).resume)
    with ExitStack() as cleanup:

        def started(act: Act) -> Child:
            child = Child([f"sqlite:///{DATABASE}", language, str(act.turn)], environment)
            cleanup.callback(child.close)
            return child

        children = deque([started(STORY[0])])
        for number, act in enumerate(STORY, start=1):
            children.extend(started(following) for following in STORY[number : number + 1])
            process = Process(number, act.turn)
            report.say_start(out, process, act.what)
            before = left(DATABASE, resume)
            with out.status("running ...") if out.is_terminal else nullcontext():
                children.popleft().run(process, act.kill_at)
            process.pieces = (len(resume), before, left(DATABASE, resume))
            if gemini and process.model == _OFFLINE_MODEL:
                raise ProcessFailedError("--gemini needs GOOGLE_API_KEY or GEMINI_API_KEY")
            message = turns[act.turn - 1] if 1 <= act.turn <= len(turns) else ""
            report.say_process(out, process, message, act.ended)
            processes.append(process)
    return processes


if __name__ == "__main__":
    sys.exit(main())
