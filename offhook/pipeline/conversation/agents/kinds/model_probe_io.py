"""Asks an agent's model whether it can answer, for /readyz and the doctor: a language model for a
token, since only an answer shows that address, key, model and account are right; a speech-to-speech
model for a session, or for its server's list of models."""

import json
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from offhook.pipeline.conversation.agents.kinds.chat_server_io import chat_server, complete
from offhook.pipeline.conversation.agents.model_requests import ModelTraits
from offhook.pipeline.conversation.agents.realtime.realtime_link_io import (
    RealtimeModel,
    check_model,
)
from offhook.pipeline.speech.openai.answers import error_words, model_ids, plain, table
from offhook.pipeline.speech.streams.retry import AttemptFailed

ANSWER_S = 10.0
"""Time limit in s for the token; then the model counts as unavailable."""
NO_LIST = (404, 405, 501)
"""Statuses of servers that respond but have no model list."""
QUESTION = "Say yes."
ANSWER_TOKENS = 16
"""Maximum tokens of the answer; models that reason refuse to be limited to fewer."""


async def examine_chat(where: str, agent: Any, settings: Any) -> str:
    """Describes a language model that has answered. Raises EngineError, which says whose server it
    is and what that says."""
    async with chat_server(where, agent, ANSWER_S) as server:
        messages = [{"role": "user", "content": QUESTION}]
        params = {"messages": messages, "max_tokens": ANSWER_TOKENS}
        _check_answer(await complete(server, agent.model, params, ModelTraits(agent.model)))
        return f"{server.name}, answers"


async def ask_chat(where: str, agent: Any, settings: Any) -> None:
    """Raises EngineError."""
    await examine_chat(where, agent, settings)


async def examine_realtime(where: str, agent: Any, settings: Any) -> str:
    """Describes a speech-to-speech model that has opened a session. Raises OSError."""
    model = RealtimeModel(agent.model, agent.base_url, agent.api_key, options=agent.options)
    await check_model(model)
    return f"{agent.model}, at {urlsplit(agent.base_url).netloc.rpartition('@')[2]}"


async def ask_realtime(where: str, agent: Any, settings: Any) -> None:
    """Asks for the list of models, in which not all models of a Realtime API are: another offhook's
    agents are not. Raises EngineError."""
    async with chat_server(where, agent, ANSWER_S) as server:
        try:
            async with server.ask("GET", "/models", ANSWER_S) as response:
                model_ids(await server.body(response, ANSWER_S))
        except AttemptFailed as failed:
            if failed.status not in NO_LIST:
                raise


def _check_answer(data: bytes) -> None:
    """Raises AttemptFailed if this is no answer of a chat API, which may be a stream unasked."""
    first = data.lstrip(b"\xef\xbb\xbf \r\n")
    if first.startswith((b"data:", b"event:", b":")):
        lines = (line[5:] for line in first.splitlines() if line.startswith(b"data:"))
        answers: list[Any] = []
        for line in lines:
            with suppress(ValueError, RecursionError):
                answers.append(json.loads(line))
        answer = next((a for a in answers if isinstance(a, dict)), {})
    else:
        answer = table(data)
    if answer.get("error"):
        raise AttemptFailed(f"it refuses ({plain(error_words(answer)[0])})", hopeless=True)
    if not isinstance(choices := answer.get("choices"), list) or not choices:
        raise AttemptFailed("what is there answers, but not as a chat API does", hopeless=True)
