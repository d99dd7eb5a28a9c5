"""Durable sessions and memory for Google ADK: one service and one plugin."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from adk_memory_ext.errors import (
        BudgetExceededError,
        CapabilityError,
        CommitUnknownError,
        ConfigurationError,
        CorruptRecordError,
        ErasureIncompleteError,
        FactRejectedError,
        InvalidIdError,
        MemoryExtError,
        RevisionConflictError,
        SchemaVersionError,
        StateRejectedError,
        StoreError,
        StoreUnavailableError,
        TurnBusyError,
        TurnError,
        TurnHeldTooLongError,
        TurnNestedError,
        unwrap,
    )
    from adk_memory_ext.facts import Fact, NewFact, ProfileLimits, Provenance, Recalled, Saved
    from adk_memory_ext.history import History, HistoryPolicy
    from adk_memory_ext.plugin import MemoryPlugin
    from adk_memory_ext.policy import Redaction, StatePolicy, StateRule
    from adk_memory_ext.profile import (
        PROFILE_INSTRUCTION,
        PreloadProfile,
        ProfileMemoryService,
        ProfileToolset,
    )
    from adk_memory_ext.service import DurableSessionService
    from adk_memory_ext.service_uri import register
    from adk_memory_ext.state_changes import Extend, Increment, Maximum, Remove, Union
    from adk_memory_ext.turn_queue import reject, supersede, wait
    from adk_memory_ext.turns import Turns
    from adk_memory_ext.views import scoped
    from adk_memory_ext.windows import Window

__version__: Final = "0.1.0"

__all__ = [
    "PROFILE_INSTRUCTION",
    "BudgetExceededError",
    "CapabilityError",
    "CommitUnknownError",
    "ConfigurationError",
    "CorruptRecordError",
    "DurableSessionService",
    "ErasureIncompleteError",
    "Extend",
    "Fact",
    "FactRejectedError",
    "History",
    "HistoryPolicy",
    "Increment",
    "InvalidIdError",
    "Maximum",
    "MemoryExtError",
    "MemoryPlugin",
    "NewFact",
    "PreloadProfile",
    "ProfileLimits",
    "ProfileMemoryService",
    "ProfileToolset",
    "Provenance",
    "Recalled",
    "Redaction",
    "Remove",
    "RevisionConflictError",
    "Saved",
    "SchemaVersionError",
    "StatePolicy",
    "StateRejectedError",
    "StateRule",
    "StoreError",
    "StoreUnavailableError",
    "TurnBusyError",
    "TurnError",
    "TurnHeldTooLongError",
    "TurnNestedError",
    "Turns",
    "Union",
    "Window",
    "__version__",
    "register",
    "reject",
    "scoped",
    "supersede",
    "unwrap",
    "wait",
]

_MODULES: Final = {
    "DurableSessionService": "service",
    "Extend": "state_changes",
    "Fact": "facts",
    "History": "history",
    "HistoryPolicy": "history",
    "Increment": "state_changes",
    "Maximum": "state_changes",
    "MemoryPlugin": "plugin",
    "NewFact": "facts",
    "PROFILE_INSTRUCTION": "profile",
    "PreloadProfile": "profile",
    "ProfileLimits": "facts",
    "ProfileMemoryService": "profile",
    "ProfileToolset": "profile",
    "Provenance": "facts",
    "Recalled": "facts",
    "Redaction": "policy",
    "Remove": "state_changes",
    "Saved": "facts",
    "StatePolicy": "policy",
    "StateRule": "policy",
    "Turns": "turns",
    "Union": "state_changes",
    "Window": "windows",
    "register": "service_uri",
    "reject": "turn_queue",
    "scoped": "views",
    "supersede": "turn_queue",
    "wait": "turn_queue",
}


def __getattr__(name: str) -> object:
    """Imports a public name when it is first used: a tool that only needs one pays for one."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_MODULES.get(name, 'errors')}")
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
