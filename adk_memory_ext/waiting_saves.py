"""Saves that wait for the end of a turn, in the memory of the process that runs it."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from adk_memory_ext.facts import FactKey, NewFact, Owner

_OPEN_TURNS: Final = 4_096
"""Turns that may have saves waiting for their end; of more, the oldest are given up."""


@dataclass(frozen=True, slots=True)
class WaitingSave:
    """A fact that is to be saved when its turn ends."""

    owner: Owner
    fact: NewFact
    expected_revision: int | None
    agent: str | None


class WaitingSaves:
    """The waiting saves of every turn that runs."""

    def __init__(self) -> None:
        self._turns: OrderedDict[str, list[WaitingSave]] = OrderedDict()

    def begin(self, invocation_id: str) -> None:
        """Lets saves of a turn wait; does nothing if it has begun."""
        self._turns.setdefault(invocation_id, [])
        while len(self._turns) > _OPEN_TURNS:
            self._turns.popitem(last=False)

    def add(self, invocation_id: str, save: WaitingSave) -> bool:
        """Has a save wait, and returns whether anybody will notice the turn's end."""
        if invocation_id not in self._turns:
            return False
        self._turns[invocation_id].append(save)
        return True

    def take_back(self, owner: Owner, name: FactKey | None = None) -> set[str]:
        """Gives up what waits in any turn to be saved of a user's fact, of all if None is named.

        Returns:
            The keys of what waited.
        """
        taken: set[str] = set()
        for waiting in self._turns.values():
            for save in list(waiting):
                new = save.fact
                if save.owner == owner and name in (None, (new.subject, new.key)):
                    waiting.remove(save)
                    taken.add(new.key)
        return taken

    def end(self, invocation_id: str) -> list[WaitingSave]:
        """Returns what waited, in its order; nobody else gets it."""
        return self._turns.pop(invocation_id, [])
