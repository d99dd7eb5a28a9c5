"""Extractors: the app's pure functions that conclude facts from the events of a session."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from adk_memory_ext.errors import ConfigurationError, FactRejectedError
from adk_memory_ext.fact_checks import check_name, checked_fact

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from google.adk.events.event import Event

    from adk_memory_ext.facts import NewFact, ProfileLimits

    Extractor: TypeAlias = Callable[[Sequence[Event]], Iterable[NewFact]]


class Extractors:
    """The registered extractors, asked in the order of their registration."""

    def __init__(self) -> None:
        self._extractors: dict[str, Extractor] = {}

    def register(self, name: str, extractor: Extractor) -> None:
        """Registers an extractor.

        Raises:
            ConfigurationError: When the name is taken or no slug.
        """
        try:
            check_name("name", name)
        except FactRejectedError as error:
            raise ConfigurationError(f"The extractor's name {error.reason}.") from None
        if name in self._extractors:
            raise ConfigurationError(f"There is an extractor {name!r} already.")
        self._extractors[name] = extractor

    def facts(
        self, session_id: str, events: Sequence[Event], limits: ProfileLimits
    ) -> list[NewFact]:
        """Returns what the extractors find in a session: inferred facts with their provenance.

        Raises:
            FactRejectedError: When one of them cannot be kept.
        """
        last = events[-1].timestamp if events else 0.0
        found = []
        for name, extractor in self._extractors.items():
            for fact in extractor(tuple(events)):
                provenance = replace(fact.provenance, session_id=session_id, extractor=name)
                new = replace(
                    fact,
                    status="inferred",
                    provenance=provenance,
                    observed_at=last if fact.observed_at is None else fact.observed_at,
                )
                found.append(checked_fact(new, limits, max(last, time.time())))
        return found
