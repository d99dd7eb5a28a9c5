"""The benchmark measures and reports; what it measures is never judged here."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from google.adk.sessions.database_session_service import DatabaseSessionService

from benchmarks import checkpoints, erasures, machine
from benchmarks.__main__ import main
from benchmarks.adk_stores import APP
from benchmarks.contenders import ADK, OPENAI, OURS, SQLITE, installed
from benchmarks.effort import TINY
from benchmarks.histories import seed_history
from benchmarks.parts import PARTS, Part
from benchmarks.profile_append import LEVELS, PLACES
from benchmarks.profile_append import PARTS as KINDS_OF_CODE
from benchmarks.report import report
from benchmarks.results import Results
from benchmarks.rounds import Measured, Spread, in_turns, percentile
from benchmarks.rows import POSTGRESQL, Row, Side, rows
from benchmarks.trimmers import INVALID, contents_of, histories, pieces_of, trimmers
from benchmarks.workload import EVENT_BYTES, STATE_KEYS, messages

if TYPE_CHECKING:
    from collections.abc import Iterator

    from google.adk.sessions.session import Session

MEMORY: Final = Path("/dev/shm")  # noqa: S108  # nothing is written there


def run(name: str, folder: Path, server: str = "") -> Measured:
    """Runs one part in this process, as small as it can be."""
    place = folder / name
    place.mkdir()
    part = Part(name=name, folder=place, effort=TINY, server=server)
    steps: list[float] = []
    measured = asyncio.run(part.measure(steps.append))
    assert steps[-1] == 1
    return measured


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """A tiny run of everything but PostgreSQL."""
    folder = tmp_path_factory.mktemp("benchmarks")
    measured = Measured()
    for name in PARTS:
        if not name.startswith("postgresql"):
            measured.update(run(name, folder))
    return Results(
        date="2026-01-31",
        minutes=1.4,
        effort_name=TINY.name,
        machine={"processor": "a good one"},
        measured=measured,
    )


def table_below(text: str, heading: str) -> list[list[str]]:
    """Returns the cells of the first table below a heading, without its head."""
    _, _, below = text.partition(f"## {heading}\n")
    lines = itertools.takewhile(
        lambda line: line.startswith("|"),
        itertools.dropwhile(lambda line: not line.startswith("|"), below.splitlines()),
    )
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines][2:]


# --- a run ---------------------------------------------------------------------------------------


def test_a_run_measures_both_sides_of_every_comparison(results: Results) -> None:
    """Every comparison on SQLite has a value; those on PostgreSQL have none without a server."""
    measured = {row.title for row in rows(TINY) if row.measured(results.measured)}
    expected = {
        row.title
        for row in rows(TINY)
        if not row.theirs.quantity.startswith(POSTGRESQL) and row.theirs.contender.installed
    }
    assert measured == expected
    assert len(expected) >= 7


def test_each_contender_has_a_value_for_every_round(results: Results) -> None:
    """Contenders that are installed take part in every round, each saying what its commit means."""
    for contender in installed(SQLITE):
        values = results.measured.rounds[f"append_ms|{contender.name}"]
        assert len(values) == TINY.append_rounds
        assert min(values) > 0
        assert "synchronous=" in results.measured.noted("durability", contender.name)


def test_erasures_are_measured_with_and_without_residue(results: Results) -> None:
    """A person is erased from a database of many, and a session deleted beside plain ADK."""
    measured = results.measured
    assert measured.has(erasures.ERASE, OURS.name)
    assert measured.has(erasures.ERASE_WITH_HIT, OURS.name)
    assert measured.has(erasures.DELETE, OURS.name, ADK.name)
    assert measured.noted(erasures.ERASE, OURS.name).startswith(f"{TINY.session_events} events")


def test_checkpoints_are_measured_beside_the_log(results: Results) -> None:
    """The log has the bytes of its events; the checkpoints have theirs beside it."""
    few, many = (
        {
            quantity: results.measured.spread(f"{quantity}/{turns}", OURS.name).median
            for quantity in (checkpoints.EVENT_BYTES, checkpoints.BYTES, checkpoints.RESTORE)
        }
        for turns in TINY.turns
    )
    log = checkpoints.EVENT_BYTES
    assert many[log] / few[log] == pytest.approx(TINY.turns[1] / TINY.turns[0], rel=0.05)
    assert few[log] * 1024 > TINY.turns[0] * checkpoints.EVENTS_A_TURN * EVENT_BYTES * 0.9
    assert many[checkpoints.BYTES] >= 0
    assert min(few[checkpoints.RESTORE], many[checkpoints.RESTORE]) > 0


def test_no_append_failed(results: Results) -> None:
    """With a few sessions at once, no store refuses an append."""
    assert {
        contender.name: results.measured.noted("failures", contender.name)
        for contender in installed(SQLITE)
    } == {contender.name: "" for contender in installed(SQLITE)}


def test_the_profile_shares_out_the_whole_append(results: Results) -> None:
    """The kinds of code add up to the whole, and the lines are lines of the package."""
    for level in LEVELS:
        quantity = f"{KINDS_OF_CODE}/{level}"
        subjects = results.measured.subjects(quantity)
        shares = [results.measured.spread(quantity, subject).median for subject in subjects]
        assert sum(shares) == pytest.approx(1)
        assert "SQLite: BEGIN and COMMIT" in subjects
    assert results.measured.subjects(PLACES)
    unlike = [p for p in results.measured.subjects(PLACES) if not re.match(r"\w+\.\w+: .", p)]
    assert unlike == []


def test_a_run_on_postgresql_measures_both_services(postgresql_url: str, tmp_path: Path) -> None:
    """Both PostgreSQL parts measure ADK's service and ours, and drop their databases."""
    append = run("postgresql-append", tmp_path, postgresql_url)
    concurrent = run("postgresql-concurrent", tmp_path, postgresql_url)
    assert append.has("append_ms", ADK.name, OURS.name)
    assert concurrent.has("appends_per_second", ADK.name, OURS.name)
    assert "fsync=" in append.noted("durability", ADK.name)


# --- the report ----------------------------------------------------------------------------------


def test_the_report_has_a_row_for_each_comparison(results: Results) -> None:
    """A comparison stands there with its ratio, its quartiles and a mark, or as not measured."""
    table = table_below(report(results, ""), "What is to be reached")
    assert [cells[0] for cells in table] == [row.title for row in rows(TINY)]
    for row, (_title, theirs, ours, ratio, must, aim) in zip(rows(TINY), table, strict=True):
        if not row.measured(results.measured):
            assert ratio == "not measured"
            continue
        assert re.search(r"\d (ms|KiB)$|/s$", theirs)
        assert re.search(r"\d (ms|KiB)$|/s$", ours)
        assert re.fullmatch(r"\*\*[+-]?[\d.,]+(x| ms)\*\*.* \(\S+.* to .*\)", ratio)
        assert re.fullmatch(r"[≥≤] [\d.]+(x| ms) [✓✗]", must)
        assert (aim == "") == (row.aim is None)


def test_the_report_names_every_store_and_its_commit(results: Results) -> None:
    """Each store that took part is a row with its durability and its times."""
    table = table_below(report(results, ""), "Every store, one run")
    assert [cells[0] for cells in table] == [one.label for one in installed(SQLITE)]
    assert all("synchronous=" in cells[1] and cells[2].endswith(" ms") for cells in table)


def test_the_report_has_every_length_of_history(results: Results) -> None:
    """Append, tail, whole load and reading stand there for each number of events."""
    table = table_below(report(results, ""), "By length of the history, SQLite")
    assert [int(cells[0]) for cells in table] == [n for n in TINY.lengths for _ in range(4)]


def test_each_trimmer_gets_the_same_histories(results: Results) -> None:
    """A row for each that is installed; ours leaves nothing wrong, and each is judged as often."""
    table = table_below(
        report(results, ""), f"Trimmers over the same {TINY.trimmed_histories} histories"
    )
    assert [cells[0].strip("*") for cells in table] == list(trimmers())
    assert table[0][1:4] == ["0.0 %"] * 3
    measured = results.measured
    numbers = {len(measured.values(INVALID, name)) for name in trimmers()}
    assert numbers == {TINY.trimmed_histories}


async def test_a_history_in_pieces_is_the_same_history() -> None:
    """What other frameworks are given is all of it, and what they keep comes back as it was."""
    for contents in await histories(5):
        pieces = pieces_of(contents)
        assert contents_of(contents, pieces) == contents
        asked = [call_id for piece in pieces if not piece.is_answer for call_id in piece.call_ids]
        answered = [piece.call_ids[0] for piece in pieces if piece.is_answer]
        assert sorted(asked) == sorted(answered)


def test_a_short_run_says_that_it_is_short(results: Results) -> None:
    """Numbers of a run that is not the full one are not to be quoted, and the report says so."""
    assert "too few rounds to be quoted" in report(results, "")


def test_a_saved_run_gives_the_same_report(results: Results, tmp_path: Path) -> None:
    """`--render` writes from the file what the run itself would have written."""
    saved = tmp_path / "results.json"
    results.save(saved)
    assert report(Results.load(saved), "") == report(results, "")
    output = tmp_path / "docs" / "benchmarks.md"
    assert main(["--render", str(saved), "--output", str(output)]) == 0
    picture = output.with_suffix(".svg")
    assert output.read_text() == report(results, picture.name if picture.exists() else "")


# --- the command ---------------------------------------------------------------------------------


def test_the_command_runs_a_part_in_a_process_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--profile` measures that part, writes and prints its report, and leaves no database."""
    output = tmp_path / "profile.md"
    arguments = ["--tiny", "--profile", "--allow-memory", "--dir", str(tmp_path / "bench")]
    assert main([*arguments, "--output", str(output)]) == 0
    assert "## Where the time of our append goes" in output.read_text()
    assert output.read_text() in capsys.readouterr().out
    assert [path.name for path in (tmp_path / "bench").iterdir()] == ["results.json"]
    assert json.loads((tmp_path / "bench" / "results.json").read_text())["effort_name"] == "tiny"


def test_a_part_that_fails_is_an_error(tmp_path: Path) -> None:
    """A part whose process ends without a result is not taken for a part without results."""
    part = Part(name="append", folder=tmp_path / "missing", effort=TINY, server="")
    with pytest.raises(RuntimeError, match="'append' ended without a result"):
        part.run(lambda _done: None)


@pytest.mark.skipif(not machine.lies_in_memory(MEMORY), reason="there is no tmpfs")
def test_a_folder_in_memory_is_refused() -> None:
    """Where a sync costs nothing, nothing is measured, and nothing is created."""
    folder = MEMORY / "adk-memory-ext-benchmarks"
    with pytest.raises(SystemExit, match="lies in memory"):
        main(["--tiny", "--dir", str(folder)])
    assert not folder.exists()


# --- rounds --------------------------------------------------------------------------------------


def measured_rounds(**rounds: list[float]) -> Measured:
    """Returns values of both sides: `theirs` and `ours`."""
    names = {"theirs": ADK.name, "ours": OURS.name}
    measured = Measured()
    for side, values in rounds.items():
        for value in values:
            for quantity in ("append_ms", "appends_per_second"):
                measured.add(quantity, names[side], value)
    return measured


@pytest.mark.parametrize(
    ("kind", "quantity", "expected"),
    [
        ("faster", "append_ms", 15),
        ("faster", "appends_per_second", 1 / 15),
        ("cost", "append_ms", 1 / 15),
        ("added", "append_ms", -19),
    ],
)
def test_a_comparison_is_the_median_over_the_rounds(
    kind: str, quantity: str, expected: float
) -> None:
    """Each round gives one ratio or difference; a time counts the other way round than a rate."""
    row = Row(
        title="",
        theirs=Side(contender=ADK, quantity=quantity),
        ours=Side(contender=OURS, quantity=quantity),
        kind=kind,  # type: ignore[arg-type]  # parametrised
        must=1,
    )
    measured = measured_rounds(theirs=[10, 20, 30], ours=[1, 1, 2])
    assert row.value(measured).median == pytest.approx(expected)
    assert row.must_goal.reached(2) == (kind == "faster")


def test_a_spread_is_the_median_and_the_quartiles() -> None:
    """Quartiles are those of the values themselves; one value is its own spread."""
    assert Spread.of([5, 1, 3, 2, 4]) == Spread(3, 2, 4)
    assert Spread.of([7]) == Spread(7, 7, 7)


def test_a_percentile_is_a_value_that_was_measured() -> None:
    """The nearest rank: 99 of 100 values are not above it."""
    assert percentile([float(value) for value in range(100, 0, -1)], 99) == 99
    assert percentile([3.0], 99) == 3
    assert percentile([1.0, 2.0, 3.0, 4.0], 50) == 2


def test_contenders_take_turns_in_changing_order() -> None:
    """Each has one turn a round; the order changes, and is the same in every run."""
    turns = list(in_turns(["a", "b", "c"], 8))
    orders = [[name for number, name in turns if number == one] for one in range(8)]
    assert all(sorted(order) == ["a", "b", "c"] for order in orders)
    assert len({tuple(order) for order in orders}) > 1
    assert turns == list(in_turns(["a", "b", "c"], 8))


# --- the workload --------------------------------------------------------------------------------


def test_every_message_has_the_stated_size() -> None:
    """Events have the size and the number of keys that the report names, and rising times."""
    stream = list(itertools.islice(messages("one"), 200))
    for message in stream:
        stored = json.dumps(message.to_event().model_dump(exclude_none=True, mode="json"))
        assert len(stored) == pytest.approx(EVENT_BYTES, rel=0.02)
        assert len(message.state) == STATE_KEYS
    assert all(one.time < other.time for one, other in itertools.pairwise(stream))
    assert len({message.id for message in stream}) == len(stream)


def test_the_messages_are_the_same_in_every_run() -> None:
    """One name gives one conversation, another name another one."""

    def first(name: str) -> Iterator[object]:
        return itertools.islice(messages(name), 3)

    assert list(first("one")) == list(first("one"))
    assert list(first("one")) != list(first("two"))


async def test_a_seeded_history_is_what_appends_would_have_left(tmp_path: Path) -> None:
    """The rows that are put into ADK's tables read as those of its own `append_event`."""

    async def loaded(service: DatabaseSessionService, name: str) -> Session:
        session = await service.get_session(app_name=APP, user_id=name, session_id=name)
        assert session is not None
        return session

    length = 7
    async with DatabaseSessionService(f"sqlite+aiosqlite:///{tmp_path}/adk.db") as service:
        await seed_history(service, "one", length)
        seeded = await loaded(service, "one")
        await service.delete_session(app_name=APP, user_id="one", session_id="one")
        appended = await service.create_session(app_name=APP, user_id="one", session_id="one")
        for message in itertools.islice(messages("one"), length):
            await service.append_event(appended, message.to_event())
        assert await loaded(service, "one") == seeded


def test_what_is_not_installed_takes_no_part() -> None:
    """A contender whose distribution is missing is left out."""
    missing = type(OPENAI)(name="x", label="x", package="no-such-distribution", open=OPENAI.open)
    assert installed([missing, OURS]) == [OURS]
