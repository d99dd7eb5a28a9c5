"""Opens `memext+…` URLs for `adk run`, which looks in the agent's own folder and not above it."""

from adk_memory_ext import register
from resume_coach.policy import POLICY

register(policy=POLICY)
