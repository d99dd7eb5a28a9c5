"""What may be remembered, where and for how long: rules for state, as pure logic without I/O."""

from __future__ import annotations

from adk_memory_ext.policy.enforcement import Accepted, Refusal, enforce
from adk_memory_ext.policy.redaction import Redaction
from adk_memory_ext.policy.rules import StatePolicy, StateRule

__all__ = ["Accepted", "Redaction", "Refusal", "StatePolicy", "StateRule", "enforce"]
