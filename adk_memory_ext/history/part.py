"""The `history` part of `MemoryPlugin`, and the same as a plain before-model callback."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, get_args

from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.genai import types

from adk_memory_ext.errors import BudgetExceededError, ConfigurationError
from adk_memory_ext.history.calibration import ESTIMATE, calibrated
from adk_memory_ext.history.candidates import choose
from adk_memory_ext.history.counters import counted
from adk_memory_ext.history.entries import as_entries
from adk_memory_ext.history.fitting import Filter, fit
from adk_memory_ext.history.provenance import Reader, entries_of
from adk_memory_ext.history.trimming import HistoryPolicy
from adk_memory_ext.media import with_media
from adk_memory_ext.records import SessionId
from adk_memory_ext.service import DurableSessionService

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from google.adk.agents.callback_context import CallbackContext

    from adk_memory_ext.history.candidates import Choice, ContextCandidate
    from adk_memory_ext.history.counters import TokenCounter
    from adk_memory_ext.history.reports import RequestReport

OnOverBudget: TypeAlias = Literal["raise", "answer"]
OnReport: TypeAlias = "Callable[[CallbackContext, RequestReport], None]"

Candidates: TypeAlias = "Callable[[CallbackContext], Iterable[ContextCandidate]]"

OVER_BUDGET: Final = "MEMEXT_BUDGET_EXCEEDED"
"""The error code of an answer that was given in place of the model's."""
_SHARE_OF_CANDIDATES: Final = 8
_ESTIMATES_KEPT: Final = 64
"""Of calls whose answer has not come."""


class History(BasePlugin):
    """Keeps the history of each request valid and inside its budget, and says what it did.

    Give it to `MemoryPlugin(history=…)`, to a Runner as a plugin of its own, behind all others that
    add to requests, or to an agent: `LlmAgent(before_model_callback=History(…).trim)`. As a plain
    callback it does not see what the model reports, so its estimates stay uncorrected.

    Args:
        policy: How large a request may be, and what goes first; or just its `budget_tokens`.
        name: The plugin's name, unique within a Runner.
        custom_filter: Runs behind the policy's strategies. What it breaks is repaired, and the
            newest message is put back if it left that out.
        on_over_budget: What happens when what must stay does not fit. `raise` ends the turn with a
            `BudgetExceededError`; `answer` gives its text as the model's answer.
        on_report: Gets a report of each request.
        candidates: Gives what may stand beside the history: facts, search results, documents. Those
            of other users than the invocation's are never looked at.
        candidates_tokens: What the chosen ones may take of the budget; None: an eighth.
        counter: Counts what would be sent; where that is more than the estimate said, and too much,
            more is cut. `ModelTokenCounter()` asks the model's own `count_tokens`. None: the
            estimate, corrected by what the model reported for earlier calls.
        record: Keep each report beside its session, for `adk-memory explain`; needs sessions in a
            database of `DurableSessionService.from_url`. The plain callback records nothing.

    Raises:
        ConfigurationError: When the policy or an option makes no sense.
    """

    def __init__(
        self,
        policy: HistoryPolicy | int,
        *,
        name: str = "memory_history",
        custom_filter: Filter | None = None,
        on_over_budget: OnOverBudget = "raise",
        on_report: OnReport | None = None,
        candidates: Candidates | None = None,
        candidates_tokens: int | None = None,
        counter: TokenCounter | None = None,
        record: bool = False,
    ) -> None:
        super().__init__(name=name)
        if on_over_budget not in get_args(OnOverBudget):
            raise ConfigurationError(
                f"on_over_budget must be 'raise' or 'answer', not {on_over_budget!r}."
            )
        self.policy: Final = _policy(policy)
        self._filter = custom_filter
        self._on_over_budget: OnOverBudget = on_over_budget
        self._on_report = on_report
        self._candidates = candidates
        self._candidates_tokens = (
            self.policy.budget_tokens // _SHARE_OF_CANDIDATES
            if candidates_tokens is None
            else candidates_tokens
        )
        self._counter = counter
        self._record = record
        self._estimates: dict[tuple[str, str, str | None], int] = {}

    async def before_model_callback(
        self, *, callback_context: CallbackContext, llm_request: LlmRequest
    ) -> LlmResponse | None:
        """Does what `trim_counted` does, and records what was done if that is asked for.

        Raises:
            BudgetExceededError: When what must stay does not fit.
            ConfigurationError: When it is to be recorded and there is no place for it.
            StoreError: When it could not be recorded.
        """
        report = await self._counted(callback_context, llm_request)
        if isinstance(report, LlmResponse):
            return report
        if self._record:
            await _record(callback_context, report)
        return None

    def trim(
        self, callback_context: CallbackContext, llm_request: LlmRequest
    ) -> LlmResponse | None:
        """Gives the request contents that are valid and fit.

        What is changed is replaced: what the session holds stays as it is.

        Raises:
            BudgetExceededError: When what must stay does not fit. The request is as it was.
            ConfigurationError: When a counter was given, for which `trim_counted` waits.
        """
        if self._counter is not None:
            raise ConfigurationError("With a counter the callback is History(…).trim_counted.")
        fitting, ratio = self._fitting(callback_context, llm_request)
        try:
            report = fitting(ratio)
        except BudgetExceededError as error:
            return self._refused(error)
        self._note(callback_context, report)
        return None

    async def trim_counted(
        self, callback_context: CallbackContext, llm_request: LlmRequest
    ) -> LlmResponse | None:
        """Does what `trim` does, and asks the counter, if there is one.

        Raises:
            BudgetExceededError: When what must stay does not fit. The request is as it was.
        """
        report = await self._counted(callback_context, llm_request)
        return report if isinstance(report, LlmResponse) else None

    async def _counted(
        self, context: CallbackContext, request: LlmRequest
    ) -> RequestReport | LlmResponse:
        """Returns what was done to the request, or the answer that takes its place."""
        fitting, ratio = self._fitting(context, request)
        try:
            if self._counter is None:
                report = fitting(ratio)
            else:
                counter = partial(_with_media_counted, self._counter, context)
                report = await counted(fitting, request, ratio, counter)
        except BudgetExceededError as error:
            return self._refused(error)
        self._note(context, report)
        return report

    def _fitting(
        self, context: CallbackContext, request: LlmRequest
    ) -> tuple[Callable[[float], RequestReport], float]:
        """Returns what fits the request by corrected estimates, and the first correction."""
        run = context.get_invocation_context()
        events = run.session.events
        reader = Reader(
            agent=context.agent_name,
            branch=run.branch,
            isolation_scope=run.isolation_scope,
            question=context.user_content,
        )
        fitting = partial(
            fit,
            request,
            entries_of(request.contents, events, reader),
            self.policy,
            custom_filter=self._filter,
            choice=self._choice(context),
        )
        return fitting, calibrated(events)

    def _refused(self, error: BudgetExceededError) -> LlmResponse:
        if self._on_over_budget == "raise":
            raise error
        return _refusal(error)

    async def after_model_callback(
        self, *, callback_context: CallbackContext, llm_response: LlmResponse
    ) -> LlmResponse | None:
        """Leaves the estimate beside the usage that the model reports, for the calls to come."""
        if llm_response.partial or llm_response.usage_metadata is None:
            return None
        estimate = self._estimates.pop(_call(callback_context), None)
        if estimate is not None:
            metadata = llm_response.custom_metadata or {}
            llm_response.custom_metadata = {**metadata, ESTIMATE: estimate}
        return None

    def _choice(self, context: CallbackContext) -> Choice | None:
        if self._candidates is None:
            return None
        return choose(
            self._candidates(context),
            owner=context.user_id,
            budget_tokens=self._candidates_tokens,
        )

    def _note(self, context: CallbackContext, report: RequestReport) -> None:
        from opentelemetry import trace

        trace.get_current_span().set_attributes(report.attributes())
        while len(self._estimates) >= _ESTIMATES_KEPT:
            del self._estimates[next(iter(self._estimates))]
        self._estimates[_call(context)] = max(1, round(report.prompt_tokens / report.ratio))
        if self._on_report is not None:
            self._on_report(context, report)


def trim_contents(
    contents: Sequence[types.Content], policy: HistoryPolicy | int
) -> list[types.Content]:
    """Returns a valid history inside a budget, of contents from anywhere, without a Runner.

    Raises:
        BudgetExceededError: When what must stay does not fit.
        ConfigurationError: When the budget makes no sense.
    """
    request = LlmRequest(contents=list(contents))
    fit(request, as_entries(contents), _policy(policy), 1.0)
    return request.contents


async def _record(context: CallbackContext, report: RequestReport) -> None:
    run = context.get_invocation_context()
    if not isinstance(run.session_service, DurableSessionService):
        raise ConfigurationError("History(record=True) needs a DurableSessionService.")
    await run.session_service.requests.record(
        SessionId.of(run.session),
        invocation_id=run.invocation_id,
        agent=context.agent_name,
        report=report.to_json(),
    )


async def _with_media_counted(
    counter: TokenCounter, context: CallbackContext, request: LlmRequest
) -> int:
    """Returns what is counted of a request as the `media` part will make it."""
    contents = await with_media(request.contents, context.get_invocation_context())
    return await counter(request.model_copy(update={"contents": contents}))


def _policy(policy: HistoryPolicy | int) -> HistoryPolicy:
    return policy if isinstance(policy, HistoryPolicy) else HistoryPolicy(budget_tokens=policy)


def _call(context: CallbackContext) -> tuple[str, str, str | None]:
    """Returns what tells a call of a model from every other one that is under way."""
    run = context.get_invocation_context()
    return run.invocation_id, context.agent_name, run.branch


def _refusal(error: BudgetExceededError) -> LlmResponse:
    content = types.Content(role="model", parts=[types.Part(text=str(error))])
    return LlmResponse(content=content, error_code=OVER_BUDGET, error_message=str(error))
