"""An offline stand-in for a language model, so that the sample runs without a network or a key."""

from collections.abc import AsyncGenerator

from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types

from .coaching import Call, next_step
from .transcript import Transcript, estimated_tokens, tokens_in


class OfflineCoach(BaseLlm):
    """Answers as the résumé coach by rules: it stands in for a model and is none.

    It decides from the request alone: the system text, the contents and the tool answers in them.
    So what a conversation has lost, the answer lacks too: without its earlier answer in the request
    it asks again, without the stored plan it cannot change it. The same request gives the same
    response. It understands the kind of message that `reading` describes, in English and Chinese,
    and nothing beyond.

    Token counts in `usage_metadata` are estimates from characters; see
    `transcript.estimated_tokens`.
    """

    model: str = "offline-coach"

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Yields the answer or the tool call that follows from the request.

        Args:
          llm_request: The request to answer.
          stream: Whether to yield an answer line by line, as partial responses, before the whole
            one. A tool call always comes whole.
        """
        step = next_step(Transcript.of(llm_request))
        if isinstance(step, Call):
            part = types.Part.from_function_call(name=step.tool, args=step.args)
            said = f"{step.tool}{step.args}"
        else:
            part = types.Part.from_text(text=step)
            said = step
            for line in step.splitlines(keepends=True) if stream else ():
                yield LlmResponse(content=types.ModelContent(line), partial=True)
        prompt, answer = estimated_tokens(llm_request), tokens_in(said)
        yield LlmResponse(
            content=types.Content(role="model", parts=[part]),
            finish_reason=types.FinishReason.STOP,
            model_version=self.model,
            usage_metadata=types.GenerateContentResponseUsageMetadata(
                prompt_token_count=prompt,
                candidates_token_count=answer,
                total_token_count=prompt + answer,
            ),
        )
