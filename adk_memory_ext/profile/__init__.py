"""The `profile` part: tools, a preload and a memory service over `sessions.profiles`."""

from __future__ import annotations

from adk_memory_ext.profile.instruction import PROFILE_INSTRUCTION
from adk_memory_ext.profile.memory import ProfileMemoryService
from adk_memory_ext.profile.preload import PreloadProfile
from adk_memory_ext.profile.toolset import ProfileToolset

__all__ = ["PROFILE_INSTRUCTION", "PreloadProfile", "ProfileMemoryService", "ProfileToolset"]
