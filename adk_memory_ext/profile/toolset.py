"""`ProfileToolset`: the tools by which an agent recalls, saves and forgets facts about its user."""

# ruff: noqa: D417  # the model reads these docstrings, and sees no tool_context

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

from google.adk.tools.base_toolset import BaseToolset
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.tool_context import ToolContext  # noqa: TC002  # ADK reads the annotations

from adk_memory_ext.errors import ConfigurationError, MemoryExtError, StoreError
from adk_memory_ext.facts import USER, Kind, NewFact, Provenance, Status
from adk_memory_ext.profile.fence import fenced
from adk_memory_ext.service import DurableSessionService

if TYPE_CHECKING:
    from collections.abc import Collection

    from google.adk.agents.invocation_context import InvocationContext
    from google.adk.agents.readonly_context import ReadonlyContext
    from google.adk.tools.base_tool import BaseTool

    from adk_memory_ext.profiles import Profiles

Permission: TypeAlias = Literal["recall", "save", "forget"]
Value: TypeAlias = str | bool | int | float | list[str]
"""What a model may save: a short value, or a list of texts."""

_EVERYTHING: Final = frozenset(get_args(Permission))


class ProfileToolset(BaseToolset):
    """Gives an agent `recall_profile`, `save_profile` and `forget_profile`.

    App and user are those of the invocation; no argument of the model can name others. What a tool
    cannot do comes back to the model as an `error`. An agent that runs as an `AgentTool` has no
    profile: ADK gives it another session service.

    Args:
        allow: Which tools there are; a tool that is not allowed does not exist.
        confirm: Ask the user, through ADK's tool confirmation, before a save.
        budget_tokens: How many tokens a recall may take, estimated.
        on_unavailable: When the database cannot be read: `partial` answers what is known and says
            what is missing, `stop` ends the turn with the error.
        commit: `at_once` saves during the turn, also when the turn fails later. `turn_end` saves
            when it ends, and needs the plugin `PreloadProfile`; a recall in between answers what
            is stored.

    Raises:
        ConfigurationError: When an argument has no meaning.
    """

    def __init__(
        self,
        *,
        allow: Collection[Permission] = _EVERYTHING,
        confirm: bool = False,
        budget_tokens: int = 1_000,
        on_unavailable: Literal["partial", "stop"] = "partial",
        commit: Literal["at_once", "turn_end"] = "at_once",
    ) -> None:
        super().__init__()
        if isinstance(allow, str) or not set(allow) <= _EVERYTHING:
            raise ConfigurationError(f"allow is a set of {', '.join(sorted(_EVERYTHING))}.")
        if on_unavailable not in ("partial", "stop"):
            raise ConfigurationError("on_unavailable must be 'partial' or 'stop'.")
        if commit not in ("at_once", "turn_end"):
            raise ConfigurationError("commit must be 'at_once' or 'turn_end'.")
        if not isinstance(budget_tokens, int) or budget_tokens < 1:
            raise ConfigurationError("budget_tokens must be a whole number from 1 on.")
        self._budget_tokens = budget_tokens
        self._stops = on_unavailable == "stop"
        self._waits = commit == "turn_end"
        tools = {
            "recall": FunctionTool(self.recall_profile),
            "save": FunctionTool(self.save_profile, require_confirmation=confirm),
            "forget": FunctionTool(self.forget_profile),
        }
        self._tools: list[BaseTool] = [tool for name, tool in tools.items() if name in allow]

    async def get_tools(
        self,
        readonly_context: ReadonlyContext | None = None,  # noqa: ARG002  # ADK's interface
    ) -> list[BaseTool]:
        """Returns the tools that are allowed."""
        return list(self._tools)

    async def recall_profile(
        self, tool_context: ToolContext, keys: list[str] | None = None
    ) -> dict[str, Any]:
        """Recalls what is saved about the user.

        Args:
          keys: Only these facts; leave out for all.

        Returns:
          profile: the facts, as data. partial: whether something could not be read, and missing:
          what.
        """
        context = tool_context.get_invocation_context()
        try:
            recalled = await _profiles(context).recall(
                keys or None,
                **_owner(context),
                agent=tool_context.agent_name,
                budget_tokens=self._budget_tokens,
                on_unavailable="raise" if self._stops else "partial",
            )
        except MemoryExtError as error:
            return self._failed(error)
        answer: dict[str, Any] = {"profile": fenced(recalled.facts), "partial": recalled.partial}
        if recalled.partial:
            answer["missing"] = list(recalled.missing)
        if recalled.left_out:
            answer["left_out"] = list(recalled.left_out)
        return answer

    async def save_profile(  # noqa: PLR0917  # ADK calls tools by keyword
        self,
        tool_context: ToolContext,
        key: str,
        value: Value,
        kind: Kind = "fact",
        status: Status = "stated",
        about: str = USER,
    ) -> dict[str, Any]:
        """Saves one short fact about the user for later conversations, or corrects it.

        Call it only when the user asks you to remember something.

        Args:
          key: A name such as "dietary" or "weekly-hours"; the same one to correct a fact.
          value: A short value.
          kind: What sort of fact it is.
          status: "stated" if the user said it, "inferred" if you conclude it.
          about: "user", or a label such as "gift-for-ann" for somebody or something else.

        Returns:
          outcome: created, updated, confirmed, conflict, kept_newer, kept_stated or waiting.
          profile: what is saved now. removed: facts that followed from the old value.
        """
        context = tool_context.get_invocation_context()
        agent, event = tool_context.agent_name, _user_event(context)
        new = NewFact(
            key=key,
            value=value,
            kind=kind,
            status=status,
            subject=about,
            confidence=1.0 if status == "stated" else 0.5,
            # An event that is ahead of this clock was said now, as far as anybody here can tell.
            observed_at=event.timestamp if event and event.timestamp <= time.time() else None,
            provenance=Provenance(
                session_id=context.session.id,
                invocation_id=context.invocation_id,
                event_id=event.id if event else None,
                author=agent,
            ),
        )
        try:
            profiles = _profiles(context)
            if self._waits:
                profiles.save_at_end(
                    new, invocation_id=context.invocation_id, agent=agent, **_owner(context)
                )
                return {"outcome": "waiting", "until": "the end of this turn"}
            saved = await profiles.save(new, agent=agent, **_owner(context))
        except MemoryExtError as error:
            return self._failed(error)
        answer: dict[str, Any] = {"outcome": saved.outcome, "profile": fenced([saved.fact])}
        if saved.removed:
            answer["removed"] = list(saved.removed)
        return answer

    async def forget_profile(
        self, tool_context: ToolContext, key: str, about: str = USER
    ) -> dict[str, Any]:
        """Forgets a fact for good, with its earlier values and what followed from it.

        Args:
          key: The fact's name.
          about: "user", or the label it was saved with.

        Returns:
          forgotten: the names that are gone; empty if there was nothing of that name.
        """
        context = tool_context.get_invocation_context()
        try:
            gone = await _profiles(context).forget(
                key, **_owner(context), subject=about, agent=tool_context.agent_name
            )
        except MemoryExtError as error:
            return self._failed(error)
        return {"forgotten": list(gone)}

    def _failed(self, error: MemoryExtError) -> dict[str, Any]:
        """Returns an error as the model reads it, or ends the turn with it."""
        if self._stops and isinstance(error, StoreError):
            raise error
        return {"error": str(error)}


def _profiles(context: InvocationContext) -> Profiles:
    """Returns the profiles of the Runner's service.

    Raises:
        ConfigurationError: When it has none.
    """
    service = context.session_service
    if isinstance(service, DurableSessionService):
        return service.profiles
    raise ConfigurationError(
        f"There is no profile here: this agent runs over a {type(service).__name__} and not over a"
        " DurableSessionService. An agent inside an AgentTool has no profile; let the agent that"
        " calls it recall and save."
    )


def _owner(context: InvocationContext) -> dict[str, Any]:
    return {"app_name": context.app_name, "user_id": context.user_id}


def _user_event(context: InvocationContext) -> Any:
    """Returns the event of the message that began this invocation; None if there is none."""
    for event in reversed(context.session.events):
        if event.author == "user" and event.invocation_id == context.invocation_id:
            return event
    return None
