"""A summary of a call's conversation, by the model that leads it."""

import asyncio
from typing import Any

from loguru import logger
from pipecat.processors.aggregators.llm_context import LLMContext

from offhook.pipeline.conversation.call_io import Call
from offhook.pipeline.conversation.directed_io import Infer

MAX_SUMMARY_CHARS = 2000
"""Maximum characters of a summary of a conversation; the rest is cut off."""
SUMMARY_S = 5.0
"""Time limit in s for a summary, from when it is asked for; then whoever is to get it knows the
whole conversation."""
SUMMARY_TOKENS = 400
_SUMMARIZE = (
    "Summarize this telephone call for a colleague who takes it over now: what the caller wants, "
    "every name, number and date that was said, and what was done. At most 120 words, as plain "
    "text. Answer with the summary alone."
)


async def summary_of(call: Call, infer: Infer, instructions: str = _SUMMARIZE) -> str:
    """Returns a summary of the conversation; "" if there is none in time."""
    said: list[Any] = [{"role": role, "content": text} for role, text in call.transcript()]
    asked: Any = {"role": "user", "content": "(summarize the call now)"}
    try:
        async with asyncio.timeout(SUMMARY_S):
            answer = await infer(LLMContext([*said, asked]), instructions, SUMMARY_TOKENS)
    except Exception as error:  # the client's, as of a failing server
        words = str(error) or type(error).__name__
        logger.warning("{}: no summary: {}", call.leg.call_id, words)
        return ""
    return answer.text.strip()[:MAX_SUMMARY_CHARS]
