"""The agent `openai`: any OpenAI-compatible chat endpoint. In a file of its own, because the client
library takes 14 MB that no other agent needs."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pipecat.services.openai.llm import OpenAILLMService

from offhook.pipeline.call_info import for_a_model
from offhook.pipeline.call_io import Agent, Call
from offhook.pipeline.call_tools_io import ANYWHERE, call_tools

_KEYS = "Keys that the caller presses come as [pressed 12#]; that is not speech."


@dataclass(frozen=True)
class OpenAIAgentSettings:
    """Any OpenAI-compatible chat endpoint."""

    model: str
    base_url: str
    api_key: str = field(repr=False)
    instructions: str
    transfers: Sequence[str] = ANYWHERE
    """Where to it may transfer: numbers, addresses, patterns of them; none: nowhere."""


class _OpenAI(OpenAILLMService):
    """Pipecat's own service, without the connections that it leaves open after its call."""

    async def cleanup(self) -> None:
        await super().cleanup()
        await self._client.close()


def openai_agent(settings: OpenAIAgentSettings, call: Call) -> Agent:
    """Pipecat's own OpenAI service, told who calls, with tools for what can be done with a call."""
    known = for_a_model(call.leg.info)
    instructions = "\n\n".join(text for text in (settings.instructions, _KEYS, known) if text)
    llm = _OpenAI(
        api_key=settings.api_key,
        base_url=settings.base_url,
        settings=OpenAILLMService.Settings(model=settings.model, system_instruction=instructions),
    )
    return Agent("openai", llm, call_tools(call, settings.transfers))
