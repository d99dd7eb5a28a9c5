"""Durable sessions and memory for Google ADK: one service and one plugin."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from adk_memory_ext.checkpoint_records import (
        Checkpoint,
        CheckpointDiff,
        CheckpointPolicy,
        CheckpointRetention,
        Restored,
    )
    from adk_memory_ext.checkpoint_requests import (
        checkpoint_after_agent,
        checkpoint_after_model,
        checkpoint_after_tool,
        request_checkpoint,
    )
    from adk_memory_ext.checkpoint_routes import checkpoint_router
    from adk_memory_ext.checkpoint_steps import CheckpointSteps
    from adk_memory_ext.errors import (
        BudgetExceededError,
        CapabilityError,
        CheckpointError,
        CheckpointInconsistentError,
        CheckpointNotFoundError,
        CommitUnknownError,
        ConfigurationError,
        CorruptRecordError,
        ErasureIncompleteError,
        EventNotFoundError,
        FactRejectedError,
        InvalidIdError,
        MemoryExtError,
        RestoreHookError,
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
    from adk_memory_ext.interruptions import Recovered, live_events
    from adk_memory_ext.media import Media
    from adk_memory_ext.plugin import MemoryPlugin
    from adk_memory_ext.policy import Redaction, StatePolicy, StateRule
    from adk_memory_ext.profile import (
        PROFILE_INSTRUCTION,
        PreloadProfile,
        ProfileMemoryService,
        ProfileToolset,
    )
    from adk_memory_ext.pruned_turns import PruneHistory
    from adk_memory_ext.recovery import Recovery, idempotency_key, resume_interrupted
    from adk_memory_ext.refused_writes import RefusedWrites
    from adk_memory_ext.retention import Pruning, RetentionPolicy
    from adk_memory_ext.service import DurableSessionService
    from adk_memory_ext.service_uri import register
    from adk_memory_ext.shown_media import ShownMedia
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
    "Checkpoint",
    "CheckpointDiff",
    "CheckpointError",
    "CheckpointInconsistentError",
    "CheckpointNotFoundError",
    "CheckpointPolicy",
    "CheckpointRetention",
    "CheckpointSteps",
    "CommitUnknownError",
    "ConfigurationError",
    "CorruptRecordError",
    "DurableSessionService",
    "ErasureIncompleteError",
    "EventNotFoundError",
    "Extend",
    "Fact",
    "FactRejectedError",
    "History",
    "HistoryPolicy",
    "Increment",
    "InvalidIdError",
    "Maximum",
    "Media",
    "MemoryExtError",
    "MemoryPlugin",
    "NewFact",
    "PreloadProfile",
    "ProfileLimits",
    "ProfileMemoryService",
    "ProfileToolset",
    "Provenance",
    "PruneHistory",
    "Pruning",
    "Recalled",
    "Recovered",
    "Recovery",
    "Redaction",
    "RefusedWrites",
    "Remove",
    "RestoreHookError",
    "Restored",
    "RetentionPolicy",
    "RevisionConflictError",
    "Saved",
    "SchemaVersionError",
    "ShownMedia",
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
    "checkpoint_after_agent",
    "checkpoint_after_model",
    "checkpoint_after_tool",
    "checkpoint_router",
    "idempotency_key",
    "live_events",
    "register",
    "reject",
    "request_checkpoint",
    "resume_interrupted",
    "scoped",
    "supersede",
    "unwrap",
    "wait",
]

_MODULES: Final = {
    "Checkpoint": "checkpoint_records",
    "CheckpointDiff": "checkpoint_records",
    "CheckpointPolicy": "checkpoint_records",
    "CheckpointRetention": "checkpoint_records",
    "CheckpointSteps": "checkpoint_steps",
    "DurableSessionService": "service",
    "Extend": "state_changes",
    "Fact": "facts",
    "History": "history",
    "HistoryPolicy": "history",
    "Increment": "state_changes",
    "Maximum": "state_changes",
    "Media": "media",
    "MemoryPlugin": "plugin",
    "NewFact": "facts",
    "PROFILE_INSTRUCTION": "profile",
    "PreloadProfile": "profile",
    "ProfileLimits": "facts",
    "ProfileMemoryService": "profile",
    "ProfileToolset": "profile",
    "Provenance": "facts",
    "PruneHistory": "pruned_turns",
    "Pruning": "retention",
    "Recalled": "facts",
    "Recovered": "interruptions",
    "Recovery": "recovery",
    "Redaction": "policy",
    "RefusedWrites": "refused_writes",
    "Remove": "state_changes",
    "Restored": "checkpoint_records",
    "RetentionPolicy": "retention",
    "Saved": "facts",
    "ShownMedia": "shown_media",
    "StatePolicy": "policy",
    "StateRule": "policy",
    "Turns": "turns",
    "Union": "state_changes",
    "Window": "windows",
    "checkpoint_after_agent": "checkpoint_requests",
    "checkpoint_after_model": "checkpoint_requests",
    "checkpoint_after_tool": "checkpoint_requests",
    "checkpoint_router": "checkpoint_routes",
    "idempotency_key": "recovery",
    "resume_interrupted": "recovery",
    "live_events": "interruptions",
    "register": "service_uri",
    "reject": "turn_queue",
    "request_checkpoint": "checkpoint_requests",
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
