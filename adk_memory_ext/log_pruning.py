"""Which events of a log can go, so that the rest is valid and says the same state; pure logic.

Each stretch of removed events is replaced by one event without content, its tombstone: it has the
place and the time of the last of them, the invocation of the first, what they came to in the state,
and a count. A replay of the log comes to the same state at every event that stays, and a rewind
mark that goes back to a removed invocation hides what it hid before.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from adk_memory_ext.interruptions import special_in
from adk_memory_ext.rewind_marks import Outline, live_positions
from adk_memory_ext.rewinds import REMOVED, session_scope
from adk_memory_ext.state_changes import MISSING
from adk_memory_ext.windows import References, references

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from adk_memory_ext.retention import Pruning
    from adk_memory_ext.rewind_marks import Special

PRUNED: Final = "memext_pruned"
"""Where the `custom_metadata` of a tombstone says what it stands for: `count`, `why` (a count for
each reason), `first` (sequence), and of pruned events `digest` with its `salt`."""
DELETED: Final = "deleted"
"""The reason of events that somebody wanted to be gone."""

_NOTHING: Final = frozenset[int]()


class Call(NamedTuple):
    """A tool call, or the code that a model has run."""

    id: str
    name: str
    arguments: str
    """As canonical JSON."""


@dataclass(eq=False)
class LogEntry:
    """A stored event, and what has to be known of it."""

    sequence: int
    id: str
    invocation: str
    text: str

    @cached_property
    def data(self) -> dict[str, Any]:
        """The event's JSON form."""
        return json.loads(self.text or "{}")  # type: ignore[no-any-return]  # an object

    @cached_property
    def actions(self) -> dict[str, Any]:
        """What it did."""
        return self.data.get("actions") or {}

    @cached_property
    def metadata(self) -> dict[str, Any]:
        """Its `custom_metadata`."""
        return self.data.get("custom_metadata") or {}

    @cached_property
    def time(self) -> float:
        """UTC epoch seconds."""
        return float(self.data.get("timestamp") or 0)

    @cached_property
    def parts(self) -> list[dict[str, Any]]:
        """What it says."""
        return (self.data.get("content") or {}).get("parts") or []

    @cached_property
    def calls(self) -> list[Call]:
        """The calls that it makes."""
        found = [part.get("function_call") or part.get("functionCall") for part in self.parts]
        return [
            Call(
                call.get("id") or "",
                call.get("name") or "",
                json.dumps(call.get("args") or {}, sort_keys=True),
            )
            for call in found
            if call
        ]

    @cached_property
    def answers(self) -> list[str]:
        """The ids of the calls that it answers."""
        found = [
            part.get("function_response") or part.get("functionResponse") for part in self.parts
        ]
        return [answer.get("id") or "" for answer in found if answer]

    @cached_property
    def is_tools_only(self) -> bool:
        """Whether it says nothing besides calls and answers."""
        return all(
            part.get("thought")
            or any("function" in name for name in part if part[name] is not None)
            for part in self.parts
        )

    @cached_property
    def can_lead(self) -> bool:
        """Whether a call may directly follow it."""
        return self.data.get("author") == "user" or bool(self.answers)

    @cached_property
    def summary(self) -> tuple[float, float] | None:
        """The times of the first and the last event for which it stands; None for no summary."""
        found = self.actions.get("compaction")
        if not found:
            return None
        names = (("start_timestamp", "startTimestamp"), ("end_timestamp", "endTimestamp"))
        begin, end = (float(found.get(one) or found.get(other) or 0) for one, other in names)
        return begin, end

    @cached_property
    def tombstone(self) -> dict[str, Any] | None:
        """What it stands for; None for an event of the conversation."""
        found = self.metadata.get(PRUNED)
        return found if isinstance(found, dict) else None

    @cached_property
    def special(self) -> Special | None:
        """What it says of rewinds and restores."""
        return special_in(self.text)

    @cached_property
    def references(self) -> References:
        """Its long-running calls, and those that it answers from outside."""
        return references(self.data)

    @property
    def has_code(self) -> bool:
        """Whether a model's code is in it."""
        return any("executable_code" in part or "executableCode" in part for part in self.parts)

    @property
    def has_result(self) -> bool:
        """Whether the result of a model's code is in it."""
        names = ("code_execution_result", "codeExecutionResult")
        return any(name in part for part in self.parts for name in names)


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring events for which one tombstone is to stand."""

    entries: Sequence[LogEntry]
    """Removed events, and tombstones of earlier ones."""
    why: Mapping[str, int]
    """How many events went for each reason, those of the earlier tombstones too."""
    outcome: Mapping[str, Any]
    """What they came to in session scope; removed keys are `MISSING`."""
    artifacts: Mapping[str, int]

    @property
    def first(self) -> int:
        """The sequence with which it begins."""
        before = self.entries[0].tombstone
        return self.entries[0].sequence if before is None else int(before["first"])


class Log:
    """A whole log, oldest event first."""

    def __init__(self, entries: Sequence[LogEntry]) -> None:
        self.entries: Final = entries
        self.begins: Final[dict[str, int]] = {}
        """The position of the first event of each invocation."""
        for position, entry in enumerate(entries):
            self.begins.setdefault(entry.invocation, position)

    # -- what can be pruned -----------------------------------------------------------------

    def prunable(self, pruning: Pruning, covered: int, now: float) -> dict[int, str]:
        """Returns the positions of the events that can go, each with its reason.

        Whole invocations go, and those that share calls and answers go together; what waits for an
        answer from outside stays. Inside an invocation only superseded calls go.

        Args:
            pruning: The rules.
            covered: The sequence of the last event that the newest checkpoint covers.
            now: UTC epoch seconds.
        """
        boundary = self._boundary(pruning.keep)
        units: dict[str, list[int]] = {}
        for position, entry in enumerate(self.entries):
            if entry.tombstone is None:
                units.setdefault(entry.invocation, []).append(position)
        summaries = self._live_summaries() if pruning.summarised else []
        waiting = self._waiting()
        doomed: dict[int, str] = {}
        for positions in units.values():
            if positions[-1] >= boundary or not waiting.isdisjoint(positions):
                continue
            reason = self._reason(positions, pruning, covered, now, summaries)
            if reason is not None:
                doomed |= dict.fromkeys(positions, reason)
        self._keep_what_belongs_together(doomed, units)
        self._add_superseded(doomed, pruning.superseded_tools, boundary)
        return doomed

    def _boundary(self, keep: int) -> int:
        """Returns the position from which on everything stays."""
        newest: dict[str, None] = {}
        for entry in reversed(self.entries):
            if entry.data.get("content") is not None and entry.tombstone is None:
                newest[entry.invocation] = None
                if len(newest) == keep:
                    return self.begins[entry.invocation]
        return 0

    def _reason(
        self,
        positions: Sequence[int],
        pruning: Pruning,
        covered: int,
        now: float,
        summaries: Sequence[LogEntry],
    ) -> str | None:
        entries = [self.entries[position] for position in positions]
        if pruning.older_than is not None and all(
            entry.time <= now - pruning.older_than.total_seconds() for entry in entries
        ):
            return "age"
        if pruning.checkpointed and entries[-1].sequence <= covered:
            return "checkpoint"
        for summary in summaries:
            begin, end = summary.summary or (0.0, 0.0)
            if entries[-1].sequence < summary.sequence and all(
                begin <= (entry.summary or (entry.time,))[0]
                and (entry.summary or (entry.time,))[-1] <= end
                for entry in entries
            ):
                return "summary"
        return None

    def _live_summaries(self) -> list[LogEntry]:
        outline = Outline()
        for entry in self.entries:
            outline.add(entry.id, entry.invocation, entry.special)
        live = [self.entries[position] for position in live_positions(outline)]
        return [entry for entry in live if entry.summary is not None]

    def _waiting(self) -> set[int]:
        """Returns the positions of long-running calls that nobody has answered yet."""
        opened: dict[str, int] = {}
        for position, entry in enumerate(self.entries):
            for call in entry.references.answered:
                opened.pop(call, None)
            opened |= dict.fromkeys(entry.references.opened, position)
        return set(opened.values())

    def _keep_what_belongs_together(
        self, doomed: dict[int, str], units: Mapping[str, Sequence[int]]
    ) -> None:
        """Takes out of `doomed` what something that stays needs."""
        links = self._links()
        hidden = {mark: range(begin, mark) for mark, begin in self._marks().items()}
        changed = True
        while changed:
            changed = False
            for position in list(doomed):
                if position not in doomed:
                    continue
                needs = (*links.get(position, ()), *hidden.get(position, ()))
                if any(other not in doomed and not self._is_grave(other) for other in needs):
                    for other in units[self.entries[position].invocation]:
                        doomed.pop(other, None)
                    changed = True

    def _is_grave(self, position: int) -> bool:
        return self.entries[position].tombstone is not None

    def _marks(self) -> dict[int, int]:
        """Returns the positions of rewind marks, and of the first event that each hides."""
        return {
            position: self.begins[entry.special.rewinds_before]
            for position, entry in enumerate(self.entries)
            if entry.special is not None and entry.special.rewinds_before in self.begins
        }

    def _links(self) -> dict[int, set[int]]:
        """Returns which calls and answers belong together, by position, both ways."""
        links: dict[int, set[int]] = {}
        newest: dict[str, int] = {}
        code: dict[str, int] = {}
        for position, entry in enumerate(self.entries):
            partners = {newest[call] for call in entry.answers if call in newest}
            if entry.has_result and entry.invocation in code:
                partners.add(code[entry.invocation])
            for partner in partners - {position}:
                links.setdefault(position, set()).add(partner)
                links.setdefault(partner, set()).add(position)
            newest.update((call.id, position) for call in entry.calls)
            if entry.has_code:
                code[entry.invocation] = position
        return links

    def _add_superseded(
        self, doomed: dict[int, str], tools: Collection[str], boundary: int
    ) -> None:
        """Adds calls of these tools, with their answers, that were made and answered again."""
        if not tools:
            return
        links = self._links()
        last: dict[tuple[str, str], int] = {}
        for position, entry in enumerate(self.entries):
            if entry.calls and position in links and position not in doomed:
                last |= dict.fromkeys((call[1:] for call in entry.calls), position)
        for position, entry in enumerate(self.entries[:boundary]):
            group = {position, *links.get(position, _NOTHING)}
            if (
                entry.calls
                and group.isdisjoint(doomed)
                and all(
                    call.name in tools and last.get(call[1:], 0) > position for call in entry.calls
                )
                and max(group) < boundary
                and all(self._is_pair(position, other, links) for other in group)
                and not self._misled({*doomed, *group})
            ):
                doomed |= dict.fromkeys(group, "superseded")

    def _is_pair(self, call: int, other: int, links: Mapping[int, set[int]]) -> bool:
        """Whether an event says nothing but this call, or its answer."""
        entry = self.entries[other]
        if not entry.is_tools_only or entry.references.opened:
            return False
        return other == call or (not entry.calls and links[other] == {call})

    # -- what somebody wants to be gone -----------------------------------------------------

    def deletable(self, wanted: Iterable[int]) -> dict[int, str]:
        """Returns what goes with some events: their calls and answers, and what summarises them."""
        doomed = set(wanted)
        links = self._links()
        while True:
            more = {other for position in doomed for other in links.get(position, ())}
            more |= self._misled(doomed)
            if more <= doomed:
                break
            doomed |= more
        times = [self.entries[position].time for position in doomed]
        for position, entry in enumerate(self.entries):
            if entry.summary is not None and any(
                entry.summary[0] <= time <= entry.summary[1] for time in times
            ):
                doomed.add(position)
        return dict.fromkeys(doomed, DELETED)

    def _misled(self, doomed: Collection[int]) -> set[int]:
        """Returns what would no longer follow on a user's turn: calls, and the beginning."""
        found: set[int] = set()
        before: LogEntry | None = None
        left: LogEntry | None = None
        begins_right: bool | None = None
        for position, entry in enumerate(self.entries):
            if not entry.parts:
                continue
            if begins_right is None:
                begins_right = entry.can_lead
            if position not in doomed:
                if left is None and begins_right and not entry.can_lead:
                    found.add(position)
                    before = entry
                    continue
                could = before is not None and before.can_lead
                can = left is not None and left.can_lead
                if entry.calls and could and not can:
                    found.add(position)
                left = entry
            before = entry
        return found

    # -- tombstones -------------------------------------------------------------------------

    def runs(self, doomed: Mapping[int, str], *, merge: bool) -> Iterator[Run]:
        """Yields the stretches of events to be replaced, in order.

        Args:
            doomed: Positions and reasons.
            merge: Take in the tombstones of earlier ones that lie beside them.
        """
        # A mark goes back to the first event of its invocation: a stretch begins anew there.
        targets = {begin for mark, begin in self._marks().items() if mark not in doomed}
        run: list[int] = []
        for position in range(len(self.entries) + 1):
            is_in = position in doomed or (
                merge and position < len(self.entries) and self._is_grave(position)
            )
            if run and (not is_in or position in targets):
                if not doomed.keys().isdisjoint(run):
                    yield self._run(run, doomed)
                run = []
            if is_in:
                run.append(position)

    def _run(self, positions: Sequence[int], doomed: Mapping[int, str]) -> Run:
        entries = [self.entries[position] for position in positions]
        why = Counter(doomed[position] for position in positions if position in doomed)
        outcome: dict[str, Any] = {}
        artifacts: dict[str, int] = {}
        for entry in entries:
            if entry.tombstone is not None:
                why.update(entry.tombstone["why"])
            outcome |= session_scope(entry.actions.get("state_delta") or {})
            outcome |= session_scope(dict.fromkeys(entry.metadata.get(REMOVED, ()), MISSING))
            artifacts |= entry.actions.get("artifact_delta") or {}
        if any(doomed.get(position) == DELETED for position in positions):
            outcome = self._still_meant(outcome, positions[-1])
        return Run(entries, dict(why), outcome, artifacts)

    def _still_meant(self, outcome: Mapping[str, Any], last: int) -> dict[str, Any]:
        """Leaves out values that later events replaced: they have no place any more."""
        later: set[str] = set()
        for entry in self.entries[last + 1 :]:
            later.update(entry.actions.get("state_delta") or {})
        return {
            key: value for key, value in outcome.items() if value is MISSING or key not in later
        }
