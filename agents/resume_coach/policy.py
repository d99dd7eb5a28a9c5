"""What the coach may remember; `adk-memory policy show resume_coach.policy:POLICY` prints it."""

from adk_memory_ext import StatePolicy, StateRule

from .intake import JOB_AD_KEY, RESUME_KEY
from .learning_plan import PLAN_KEY

POLICY = StatePolicy(
    rules=[
        # Weekly hours go into the profile, by a tool and only when the person asks for it.
        # A résumé belongs to its conversation and leaves with it: no `user:` key may hold it.
        StateRule(RESUME_KEY, type=str, sensitivity="personal", max_bytes=200_000),
        StateRule(JOB_AD_KEY, type=str, max_bytes=200_000),
        StateRule(PLAN_KEY, type=str, max_bytes=200_000),
        StateRule("user:preferred_name", type=str, sensitivity="personal", max_bytes=200),
        StateRule("temp:*"),
    ],
    undeclared="reject",
    scopes={"session", "user", "temp"},
)
"""One policy for all agents of this folder: `services.py` gives it to the service."""
