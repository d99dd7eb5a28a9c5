"""Opens `memext+…` URLs for `adk run`, which looks in the agent's own folder and not above it."""

import sys
from importlib import import_module
from pathlib import Path

from adk_memory_ext import register

# ADK has only this folder on the path by now, and the policy is a module of the package.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
register(policy=import_module("resume_coach.policy").POLICY)
