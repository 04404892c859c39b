"""The agent `openai`: any OpenAI-compatible chat endpoint. In a file of its own, because the client
library takes 14 MB that no other agent needs."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from pipecat.services.llm_service import FunctionCallParams
from pipecat.services.openai.llm import OpenAILLMService


@dataclass(frozen=True)
class OpenAIAgentSettings:
    """Any OpenAI-compatible chat endpoint."""

    model: str
    base_url: str
    api_key: str
    instructions: str


def openai_agent(settings: OpenAIAgentSettings, hang_up: Callable[[], Awaitable[None]]) -> Any:
    """Pipecat's own OpenAI service, with a tool to end the call."""
    llm = OpenAILLMService(
        api_key=settings.api_key,
        base_url=settings.base_url,
        settings=OpenAILLMService.Settings(
            model=settings.model, system_instruction=settings.instructions
        ),
    )

    async def end_call(params: FunctionCallParams) -> None:
        """End the phone call. Say goodbye first; use only when the caller is done."""
        await params.result_callback({"status": "the call ends after your last words"})
        await hang_up()

    llm.register_direct_function(end_call)
    return llm, end_call
