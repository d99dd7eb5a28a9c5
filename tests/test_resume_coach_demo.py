"""The demo as a stranger runs it, and its checks against what could have been lost."""

from __future__ import annotations

import copy
import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from google.adk.sessions import InMemorySessionService
from rich.cells import cell_len

from adk_memory_ext import DurableSessionService
from coach import APP_NAME, SESSION_ID, USER_ID, converse
from conversation import said
from residues import residue
from resume_coach.demo.checks import checks
from resume_coach.demo.leftovers import left, pieces
from resume_coach.demo.process import Child, Process, ProcessFailedError
from resume_coach.demo.turn import ERASE, event_report
from resume_coach.intake import take_apart
from resume_coach.learning_plan import PLAN_KEY
from resume_coach.scenario import LANGUAGES, messages

if TYPE_CHECKING:
    from collections.abc import Callable

    from google.adk.sessions.session import Session

AGENTS = Path(__file__).parents[1] / "agents"
PYTHONPATH = os.pathsep.join(filter(None, [str(AGENTS), os.environ.get("PYTHONPATH")]))
HANG_SECONDS = 300


def run_demo(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the demo in a folder, with a key set that it must not use."""
    environment = {
        **os.environ,
        "PYTHONPATH": PYTHONPATH,
        "GOOGLE_API_KEY": "no key",
        "COLUMNS": "80",
    }
    return subprocess.run(
        [sys.executable, "-m", "resume_coach.demo", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        timeout=HANG_SECONDS,
        check=False,
    )


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_demo_survives_its_kills_in_each_language(language: str, tmp_path: Path) -> None:
    """Six processes, two of them killed; all survives until it is erased, read at 80 columns."""
    done = run_demo(tmp_path, "--language", language)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    assert [line.split("  ")[0] for line in lines if line.startswith("Process ")] == [
        f"Process {number}" for number in range(1, 7)
    ]
    pids = {line.split()[-1] for line in lines if line.startswith("pid ")}
    assert len(pids) == 6
    assert [line.split()[1] for line in lines if line.startswith("ended ")] == [
        "SIGKILL,",
        "SIGKILL,",
        *["exit"] * 4,
    ]
    assert [line.split()[1] for line in lines if line.startswith("found ")] == [
        "0",
        "5",
        "7",
        "13",
        *["17"] * 2,
    ]
    found = [line for line in lines if line.startswith("found ")]
    put_in = [", and 1 that recovery put in, " in line for line in found]
    assert put_in == [False] * 3 + [True] * 3
    (erased,) = (line for line in lines if line.startswith("erased "))
    assert erased.endswith(" 18 events")
    assert any("killed before its answer" in line for line in lines)
    assert sum(line.startswith("yes") for line in lines) == 14
    assert any("18 became 14" in line for line in lines)
    assert lines[-1] == "All 14 checks passed."
    assert max(map(cell_len, lines)) <= 80
    assert all(character.isprintable() for line in lines for character in line)
    database = tmp_path / ".sessions" / "demo.db"
    assert database.is_file()
    resume = take_apart(messages(language)[0]).resume
    assert residue(database, resume.splitlines(), sqlite3) == []
    for word in ("Flask", "timetable", "圖書館借閱系統"):
        assert word.encode() not in database.read_bytes()


def test_a_demo_that_cannot_run_says_why(tmp_path: Path) -> None:
    """Where no database can be made, the demo ends with 1 and the failed process's own words."""
    (tmp_path / ".sessions").write_text("a file where the folder should be")
    done = run_demo(tmp_path)
    assert done.returncode == 1
    assert "FAILED: process 1 ended with code 1" in done.stdout
    assert "ConfigurationError" in done.stdout


def test_a_process_that_ends_before_its_kill_has_failed(tmp_path: Path) -> None:
    """A kill that never happened is no survival."""
    child = Child([f"sqlite:///{tmp_path}/demo.db", "en", "0"], {"PYTHONPATH": PYTHONPATH})
    try:
        with pytest.raises(ProcessFailedError, match="ended with code 0"):
            child.run(Process(1, 0), lambda _: False)
    finally:
        child.close()


async def stored(sessions: DurableSessionService) -> Session:
    """Returns the demo's conversation as it is stored."""
    session = await sessions.get_session(app_name=APP_NAME, user_id=USER_ID, session_id=SESSION_ID)
    assert session
    return session


async def story() -> list[Process]:
    """Returns the six processes of a demo in which nothing was lost and all was erased.

    The second one ended after it had stored the person's message.
    """
    first, second, third = messages("en")
    sessions = DurableSessionService(InMemorySessionService())
    processes: list[Process] = []
    for number, (turn, message) in enumerate(
        [(1, first), (2, ""), (2, second), (3, third), (0, "")], start=1
    ):
        process = Process(number, turn)
        if processes:
            session = await stored(sessions)
            process.found_events = [event_report(event) for event in session.events]
            process.found_state = dict(session.state)
        if message:
            conversation = await converse([message], sessions=sessions)
            process.events = [event_report(event) for event in conversation.turns[0]]
        elif turn:
            await sessions.append_event(await stored(sessions), said(second))
        processes.append(process)
    processes[-1].elsewhere = {"state": {}, "user_state": {}}
    receipt = {"verified": True, "level": "file"}
    erasure = Process(6, ERASE, erased={"receipt": receipt, "broken": [], "others": 1})
    erasure.pieces = (9, 9, 0)
    return [*processes, erasure]


def failed(processes: list[Process]) -> set[str]:
    """Returns what did not survive, by the checks' own names."""
    return {check.what for check in checks(processes, messages("en")) if not check.passed}


def lose_an_event(processes: list[Process]) -> None:
    """Loses the last event of turn 1."""
    del processes[1].found_events[-1]


def swap_events(processes: list[Process]) -> None:
    """Reads two events of turn 2 in the other order."""
    events = processes[3].found_events
    events[-1], events[-2] = events[-2], events[-1]


def repeat_an_event(processes: list[Process]) -> None:
    """Stores an event of turn 3 twice."""
    processes[4].found_events.append(processes[4].found_events[-1])


def lose_the_message(processes: list[Process]) -> None:
    """Loses the message of the half turn."""
    del processes[2].found_events[-1]


def change_a_word(processes: list[Process]) -> None:
    """Finds another résumé than was pasted."""
    processes[1].found_state["resume_text"] += " and SQL"


def plan_of(process: Process, old: str, new: str) -> None:
    """Finds a plan in which something differs."""
    process.found_state[PLAN_KEY] = process.found_state[PLAN_KEY].replace(old, new, 1)


def change_week_one(processes: list[Process]) -> None:
    """Week 1 is other than before the change of week 2."""
    plan_of(processes[4], "The job asks for SQL", "The job asks for sql")


def change_the_stored_plan(processes: list[Process]) -> None:
    """The plan that was found is not the one that was accepted."""
    plan = json.loads(processes[3].found_state[PLAN_KEY])
    plan["known_topics"].append("kubernetes")
    processes[3].found_state[PLAN_KEY] = json.dumps(plan)


def keep_the_hours(processes: list[Process]) -> None:
    """Week 2 keeps its hours."""
    plan_of(processes[4], '"hours_budget": 2.0', '"hours_budget": 6.0')


def lose_the_plan(processes: list[Process]) -> None:
    """No plan is found."""
    del processes[3].found_state[PLAN_KEY]


def search_again(processes: list[Process]) -> None:
    """The coach looks for the gap once more in turn 2."""
    processes[2].events[0] = copy.deepcopy(processes[0].events[2])


def write_user_state(processes: list[Process]) -> None:
    """The coach writes user: state."""
    processes[4].elsewhere["user_state"] = {"hours": 6}


def leak_the_resume(processes: list[Process]) -> None:
    """Another conversation of the person finds the résumé."""
    processes[4].elsewhere["state"] = {"resume_text": "..."}


def leave_a_piece(processes: list[Process]) -> None:
    """A piece of the résumé is left in the files."""
    processes[5].pieces = (9, 9, 1)


def look_in_the_wrong_place(processes: list[Process]) -> None:
    """Nothing was found before either, so that finding nothing afterwards shows nothing."""
    processes[5].pieces = (9, 0, 0)


def verify_nothing(processes: list[Process]) -> None:
    """The receipt is not verified."""
    processes[5].erased["receipt"]["verified"] = False


def break_the_chain(processes: list[Process]) -> None:
    """A receipt was changed."""
    processes[5].erased["broken"] = [1]


def erase_too_much(processes: list[Process]) -> None:
    """The other conversation went too."""
    processes[5].erased["others"] = 0


async def test_a_story_without_loss_passes_every_check() -> None:
    """What was kept whole is found whole."""
    assert failed(await story()) == set()


@pytest.mark.parametrize(
    ("lose", "what"),
    [
        (lose_an_event, "events of turn 1"),
        (lose_the_message, "events of half a turn"),
        (swap_events, "events of turn 2"),
        (repeat_an_event, "events of turn 3"),
        (change_a_word, "résumé and job ad"),
        (change_week_one, "weeks 1 and 3"),
        (keep_the_hours, "hours of the plan"),
        (change_the_stored_plan, "accepted plan"),
        (lose_the_plan, "accepted plan"),
        (search_again, "the gap it had found"),
        (write_user_state, "user: and app: state"),
        (leak_the_resume, "privacy of the résumé"),
        (leave_a_piece, "no piece of the résumé"),
        (look_in_the_wrong_place, "no piece of the résumé"),
        (verify_nothing, "a receipt"),
        (break_the_chain, "a receipt"),
        (erase_too_much, "another conversation"),
    ],
)
async def test_each_loss_fails_its_check(lose: Callable[[list[Process]], None], what: str) -> None:
    """A demo in which something was lost says what."""
    processes = await story()
    lose(processes)
    assert what in failed(processes)


def test_the_demo_finds_what_grep_finds(tmp_path: Path) -> None:
    """Pieces are found in the file and beside it, bare and as JSON writes them."""
    wanted = pieces("Library lending service\n圖書館借閱系統")
    database = tmp_path / "demo.db"
    database.write_bytes(b"--Library lending service--")
    some = left(database, wanted)
    assert some == len(b"Library lending service") - 11
    (tmp_path / "demo.db-wal").write_text(json.dumps("圖書館借閱系統") + "圖書館借閱系統")
    assert left(database, wanted) == len(wanted) > some
    database.write_bytes(b"nothing")
    (tmp_path / "demo.db-wal").write_bytes(b"")
    assert left(database, wanted) == 0
