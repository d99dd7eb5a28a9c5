"""A request counted by its model, where that is asked for, instead of by an estimate alone."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final, TypeAlias

from google.adk.models.llm_request import LlmRequest
from google.genai import types

from adk_memory_ext.errors import BudgetExceededError, ConfigurationError
from adk_memory_ext.history.calibration import GRAIN
from adk_memory_ext.history.tokens import json_text

if TYPE_CHECKING:
    from google.genai import Client

    from adk_memory_ext.history.reports import RequestReport

_logger: Final = logging.getLogger(__name__)

TokenCounter: TypeAlias = Callable[[LlmRequest], Awaitable[int]]
"""Counts the tokens of a request's prompt as it stands: contents, system text and tools."""

_PATIENCE: Final = timedelta(seconds=5)


class ModelTokenCounter:
    """Asks the model's own `count_tokens`: one call a request, and one more where it is too large.

    Over the Gemini Developer API, which counts contents only, system text and tools are counted as
    contents of the same words.

    Args:
        client: Of google-genai; None: one as its environment variables say, made at the first use.
        timeout: After this time without an answer the estimate stands.

    Raises:
        ConfigurationError: When the timeout is not positive.
    """

    def __init__(self, client: Client | None = None, *, timeout: timedelta = _PATIENCE) -> None:
        if timeout <= timedelta(0):
            raise ConfigurationError("timeout must be positive.")
        self._client = client
        self._seconds = timeout.total_seconds()

    async def __call__(self, request: LlmRequest) -> int:
        """Returns the tokens of a request's prompt.

        Raises:
            Exception: Whatever google-genai raises; `TimeoutError` after the timeout.
        """
        if self._client is None:
            from google.genai import Client

            self._client = Client()
        contents: list[types.ContentUnion] = [*map(_sent, request.contents)]
        config = types.CountTokensConfig()
        if self._client.vertexai:
            config.system_instruction = request.config.system_instruction
            config.tools = _declared(request.config)
        else:
            contents += _as_contents(request.config)
        async with asyncio.timeout(self._seconds):
            counted = await self._client.aio.models.count_tokens(
                model=request.model or "", contents=contents, config=config
            )
        if counted.total_tokens is None:
            raise ValueError("The model did not say how many tokens there are.")
        return counted.total_tokens


async def counted(
    fitting: Callable[[float], RequestReport],
    request: LlmRequest,
    ratio: float,
    counter: TokenCounter,
) -> RequestReport:
    """Fits a request until the model itself counts that it keeps its budget.

    Where the counter fails the estimate stands, and the report says so.

    Args:
        fitting: Fits the request by estimates that are multiplied by a number.
        request: The request.
        ratio: By what to multiply them first.
        counter: Counts what was fitted.

    Raises:
        BudgetExceededError: When what must stay does not fit. The request is as it was.
    """
    before = request.contents
    try:
        while True:
            report = fitting(ratio)
            try:
                tokens = await counter(request)
            except Exception as error:  # noqa: BLE001  # of the model's client, or of anybody's
                kind = type(error).__name__
                _logger.warning("The model did not count a request (%s); estimated it.", kind)
                return replace(report, counted_by=f"estimate, because of {kind}")
            room = report.budget_tokens - report.fixed.output_reserve - report.fixed.margin
            if tokens <= room:
                return replace(report, counted_by="model", counted_tokens=tokens)
            # In eighths, and by one at least: so it ends, when what must stay does not fit at last.
            corrected = ratio * tokens / max(1, report.prompt_tokens)
            ratio = max(math.ceil(corrected * GRAIN), math.floor(ratio * GRAIN) + 1) / GRAIN
    except BudgetExceededError:
        request.contents = before
        raise


def _sent(content: types.Content) -> types.Content:
    """Returns a content without the names of its media, which ADK sends to no model either."""
    media = [part.inline_data or part.file_data for part in content.parts or ()]
    if not any(medium and medium.display_name for medium in media):
        return content
    copied = content.model_copy(update={"parts": [p.model_copy() for p in content.parts or ()]})
    for part in copied.parts or ():
        if part.inline_data:
            part.inline_data = part.inline_data.model_copy(update={"display_name": None})
        if part.file_data:
            part.file_data = part.file_data.model_copy(update={"display_name": None})
    return copied


def _declared(config: types.GenerateContentConfig) -> list[types.Tool]:
    return [tool for tool in config.tools or () if isinstance(tool, types.Tool)]


def _as_contents(config: types.GenerateContentConfig) -> list[types.ContentUnion]:
    """Returns what is sent besides the contents as contents of the same words."""
    found: list[types.ContentUnion] = []
    instruction = config.system_instruction
    if isinstance(instruction, str):
        found.append(types.UserContent(instruction))
    elif isinstance(instruction, types.Content):
        found.append(types.Content(role="user", parts=instruction.parts))
    elif instruction is not None:
        found.append(types.UserContent(json_text(instruction)))
    found += [
        types.UserContent(json_text(tool.model_dump(mode="json", exclude_none=True)))
        for tool in _declared(config)
    ]
    return found
