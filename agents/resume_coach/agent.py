"""The résumé coach as an ADK app; `adk web agents` finds it here."""

import os
from collections.abc import Mapping

from google.adk.agents import LlmAgent
from google.adk.apps import App
from google.adk.models import BaseLlm

from adk_memory_ext import History, HistoryPolicy, MemoryPlugin, PreloadProfile, ProfileToolset
from adk_memory_ext.history import ClearAnswers, DropInvocations, KeepLatest

from .catalogue import lookup_resources
from .evidence import verify_evidence
from .instruction import INSTRUCTION
from .intake import take_in_documents
from .offline_model import OfflineCoach
from .plan_validation import validate_learning_plan

GEMINI = "gemini-2.5-flash"
OFFLINE = "offline"
"""Value of RESUME_COACH_MODEL that asks for `OfflineCoach`, whatever keys are set."""

_KEYS = ("GOOGLE_API_KEY", "GEMINI_API_KEY")
_VERTEX = ("GOOGLE_GENAI_USE_ENTERPRISE", "GOOGLE_GENAI_USE_VERTEXAI")


def choose_model(environment: Mapping[str, str]) -> str | BaseLlm:
    """Returns the model that the environment variables ask for.

    With an API key, or with Vertex AI switched on as `google-genai` reads it, it is Gemini;
    without either it is `OfflineCoach`. RESUME_COACH_MODEL names another model, or `offline`.
    """
    named = environment.get("RESUME_COACH_MODEL", "")
    vertex = any(environment.get(name, "").lower() in {"1", "true"} for name in _VERTEX)
    has_key = any(environment.get(name) for name in _KEYS)
    if named == OFFLINE or not (named or vertex or has_key):
        return OfflineCoach()
    return named or GEMINI


root_agent = LlmAgent(
    name="resume_coach",
    description="Compares a résumé with a job advertisement and plans how to close the gap.",
    model=choose_model(os.environ),
    instruction=INSTRUCTION,
    before_agent_callback=take_in_documents,
    tools=[verify_evidence, lookup_resources, validate_learning_plan, ProfileToolset()],
)

HISTORY = HistoryPolicy(
    budget_tokens=32_000,
    # Résumé, advertisement and accepted plan stand in the system text: what went before can go.
    strategies=(KeepLatest({"validate_learning_plan"}), ClearAnswers(1), DropInvocations()),
)

app = App(
    name="resume_coach",
    root_agent=root_agent,
    plugins=[MemoryPlugin(profile=PreloadProfile(), history=History(HISTORY))],
)
