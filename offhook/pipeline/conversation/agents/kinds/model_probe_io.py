"""Asks an agent's model whether it can answer, for /readyz and the doctor: a language model for a
token, since only an answer shows that address, key, model and account are right; a speech-to-speech
model for a session, or for its server's list of models."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

from offhook.pipeline.conversation.agents.model_requests import ModelTraits
from offhook.pipeline.conversation.agents.realtime_link_io import RealtimeModel, check_model
from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.openai.answers import error_words, model_ids, plain, table
from offhook.pipeline.speech.openai.client_io import OpenAiServer
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
    async with _server_of(where, agent) as server:
        await _ask_for_token(server, agent)
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
    async with _server_of(where, agent) as server:
        try:
            async with server.ask("GET", "/models", ANSWER_S) as response:
                model_ids(await server.body(response, ANSWER_S))
        except AttemptFailed as failed:
            if failed.status not in NO_LIST:
                raise


@asynccontextmanager
async def _server_of(where: str, agent: Any) -> AsyncIterator[OpenAiServer]:
    """Yields the client of the model of an agent, whose table is `where`; what fails meanwhile
    is raised as EngineError."""
    parts = urlsplit(agent.base_url)
    if agent.api_key:  # which goes where a password of the URL would
        parts = parts._replace(netloc=parts.netloc.rpartition("@")[2])
    options = agent.options
    server = OpenAiServer(
        *("agent", parts.geturl(), agent.api_key, agent.model),
        section=where,
        headers=options.headers,
        query=options.query,
        secrets=options.secrets(),
    )
    try:
        async with asyncio.timeout(ANSWER_S):
            yield server
    except TimeoutError as error:
        late = AttemptFailed(f"it took longer than {ANSWER_S:g} s", fault="timeout")
        raise EngineError(server.explain(late), late.fault) from error
    except AttemptFailed as failed:
        raise EngineError(server.explain(failed), failed.fault) from failed
    finally:
        await server.close()


async def _ask_for_token(server: OpenAiServer, agent: Any) -> None:
    """Raises AttemptFailed."""
    traits = ModelTraits(agent.model)
    messages = [{"role": "user", "content": QUESTION}]
    params = {"model": agent.model, "messages": messages, "max_tokens": ANSWER_TOKENS}
    while True:
        body = traits.accepted(params)
        body.pop("extra_body")
        try:
            async with server.ask("POST", "/chat/completions", ANSWER_S, json=body) as response:
                return _check_answer(await server.body(response, ANSWER_S))
        except AttemptFailed as failed:
            if traits.learn(failed.status or 0, str(failed), body) is None:
                raise


def _check_answer(data: bytes) -> None:
    """Raises AttemptFailed if this is no answer of a chat API, which may be a stream unasked."""
    first = data.lstrip(b"\xef\xbb\xbf \r\n")
    if first.startswith((b"data:", b"event:", b":")):
        lines = (line[5:] for line in first.splitlines() if line.startswith(b"data:"))
        answers: list[Any] = []
        for line in lines:
            with suppress(ValueError):
                answers.append(json.loads(line))
        answer = next((a for a in answers if isinstance(a, dict)), {})
    else:
        answer = table(data)
    if answer.get("error"):
        raise AttemptFailed(f"it refuses ({plain(error_words(answer)[0])})", hopeless=True)
    if not isinstance(choices := answer.get("choices"), list) or not choices:
        raise AttemptFailed("what is there answers, but not as a chat API does", hopeless=True)
