"""The demo's output: each process at a glance, and at the end what survived what."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import ValidationError
from rich.console import Console
from rich.table import Table
from rich.text import Text

from resume_coach.learning_plan import LearningPlan

from .checks import Check
from .process import Process

_WIDEST = 100
_ANSWER_LINES = 12


def console() -> Console:
    """Returns a console for standard output: coloured on a terminal, plain text in a pipe."""
    plain = Console(highlight=False)
    return Console(highlight=False, width=min(plain.width, _WIDEST))


def say_heading(out: Console, database: str, language: str, *, offline: bool) -> None:
    """Prints what the demo is about."""
    out.print()
    out.print(Text("Résumé coach: one conversation, six processes, two kill -9", style="bold"))
    out.print(
        f"Each process starts empty and finds the conversation in [bold]{database}[/bold] only."
    )
    if offline:
        out.print("No network: offline-coach stands in for a model and reads its request by rules.")
    if language != "en":
        out.print("In English: make demo LANGUAGE=en")


def say_start(out: Console, process: Process, what: str) -> None:
    """Prints that a process starts, and what it is for."""
    out.print()
    title = Text.assemble((f"Process {process.number}", "bold cyan"), f"  {what}")
    out.rule(title, align="left", style="cyan")


def say_process(out: Console, process: Process, message: str, ended: str) -> None:
    """Prints what a process found, did and left."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True, min_width=9)
    grid.add_column(overflow="fold")
    grid.add_row("pid", str(process.pid))
    grid.add_row("found", _found(process))
    if message:
        grid.add_row("person", _one_line(message))
    for name, summary in _tool_lines(process):
        grid.add_row("tool call", Text.assemble((name, "magenta"), f"  {summary}"))
    if process.answer:
        grid.add_row("answer", _short(process.answer))
    if process.prompt_tokens:
        tokens = ", ".join(f"{count:,}" for count in process.prompt_tokens)
        grid.add_row("prompts", f"{tokens} tokens ({_model_calls(process)})")
    for name, words in _erased_lines(process):
        grid.add_row(name, words)
    style = "bold red" if process.was_killed else "green"
    grid.add_row("ended", Text(ended, style=style))
    out.print(grid)


def _erased_lines(process: Process) -> Iterator[tuple[str, str]]:
    """Yields the receipt in short, and what a search of the files finds."""
    receipt = process.erased.get("receipt")
    if receipt is None:
        return
    counts = receipt["counts"]
    tables = sum(1 for count in counts.values() if count)
    yield "erased", f"{sum(counts.values())} rows of {tables} tables, {counts['events']} events"
    size = sum(sizes["bytes"] for sizes in receipt["files"].values())
    searched = f"{receipt['values_searched']} values in {size:,} bytes"
    yield "searched", f"{searched}: {receipt['residue_left']} have left a piece"
    verdict = "verified" if receipt["verified"] else "NOT VERIFIED"
    digest = (receipt["digest"] or "none")[:12]
    yield "receipt", f"number {receipt['number']}, {verdict}, level {receipt['level']}, {digest}"
    yield "names", f"nobody: {receipt['subject'][:12]}, an HMAC whose key the person has"
    every, before, after = process.pieces
    yield "grep", f"of {every:,} pieces of the résumé {before:,} were there, {after:,} are left"


def _model_calls(process: Process) -> str:
    count = len(process.prompt_tokens)
    return f"{count} {'call' if count == 1 else 'calls'} of {process.model}"


def _found(process: Process) -> Text:
    keys = ", ".join(sorted(process.found_state)) or "none"
    put_in = f", and {process.recovered} that recovery put in" if process.recovered else ""
    count = (str(len(process.found_events)), "bold")
    return Text.assemble(count, f" events{put_in}, state keys: ", (keys, "bold"))


def _one_line(message: str) -> Text:
    """Returns a message's first line, and how much more of it there is."""
    lines = message.splitlines()
    text = Text(lines[0])
    if len(lines) > 1:
        text.append(f" (+ {len(lines) - 1} pasted lines)", style="dim")
    return text


def _short(answer: str) -> Text:
    """Returns the beginning of an answer, each line cut at the right edge."""
    lines = [line for line in answer.splitlines() if line.strip()]
    text = Text("\n".join(lines[:_ANSWER_LINES]), no_wrap=True, overflow="ellipsis")
    if len(lines) > _ANSWER_LINES:
        text.append(f"\n(+ {len(lines) - _ANSWER_LINES} lines)", style="dim")
    return text


def _tool_lines(process: Process) -> Iterator[tuple[str, str]]:
    answers = [answer for event in process.events for answer in event["answers"]]
    for call in (call for event in process.events for call in event["calls"]):
        matching = [answer for answer in answers if answer["name"] == call["name"]]
        answer = matching[0]["response"] if matching else None
        if matching:
            answers.remove(matching[0])
        result = "killed before its answer" if answer is None else _result(answer)
        yield call["name"], f"{_asked(call['args'])} -> {result}"


def _asked(args: dict[str, Any]) -> str:
    if "quotes" in args:
        return f"{len(args['quotes'])} quotes"
    if "topics" in args:
        return ", ".join(args["topics"])
    try:
        hours = [week.hours_budget for week in LearningPlan.model_validate(args["plan"]).weeks]
    except (KeyError, ValidationError):
        return "no plan"  # a model may send anything
    changed = ", ".join(map(str, args.get("changed_weeks", [])))
    return f"{'+'.join(f'{h:g}' for h in hours)} = {sum(hours):g} h, changed {changed}"


def _result(answer: dict[str, Any]) -> str:
    if "results" in answer:
        verdicts = [result["verdict"] for result in answer["results"]]
        counts = ((kind, verdicts.count(kind)) for kind in ("exact", "near", "absent"))
        return ", ".join(f"{count} {kind}" for kind, count in counts if count)
    if "known" in answer:
        return f"{len(answer['known'])} with prerequisites, {len(answer['unknown'])} unknown"
    if "ok" in answer:
        return "accepted" if answer["ok"] else f"{len(answer['violations'])} rules broken"
    return str(answer.get("error", json.dumps(answer, ensure_ascii=False)))


def say_checks(out: Console, results: Sequence[Check]) -> None:
    """Prints what survived what, and in one line whether everything did."""
    out.print()
    out.rule(Text("What survived what", style="bold"), align="left", style="cyan")
    table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="dim")
    table.add_column("")
    table.add_column("what")
    table.add_column("survived")
    table.add_column("compared")
    for check in results:
        mark = Text("yes", style="bold green") if check.passed else Text("NO", style="bold red")
        table.add_row(mark, check.what, check.survived, check.compared)
    out.print(table)
    out.print()
    lost = [check.what for check in results if not check.passed]
    if lost:
        failed = f"FAILED: {len(lost)} of {len(results)} did not survive: {', '.join(lost)}"
        out.print(Text(failed, style="bold red"))
    else:
        out.print(Text(f"All {len(results)} checks passed.", style="bold green"))
