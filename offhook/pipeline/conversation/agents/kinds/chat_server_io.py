"""Asks a language model outside of a call: one question, and one answer that is no stream."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from offhook.pipeline.conversation.agents.model_requests import ModelTraits
from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.openai.client_io import OpenAiServer
from offhook.pipeline.speech.streams.retry import AttemptFailed

NO_LIMIT_S = 3600.0
"""Stands for no time limit of a single step: `chat_server` has that of all of them."""


class ModelFailed(EngineError):
    """Raised when a model cannot be asked."""

    def __init__(self, words: str, failed: AttemptFailed) -> None:
        super().__init__(words, failed.fault)
        self.failed = failed
        """What has failed."""


@asynccontextmanager
async def chat_server(where: str, model: Any, limit_s: float) -> AsyncIterator[OpenAiServer]:
    """Yields the client of a model, whose table of the configuration is `where`, for `limit_s`;
    what fails meanwhile is raised as ModelFailed, which says whose server it is and what that
    says."""
    parts = urlsplit(model.base_url)
    if model.api_key:  # which goes where a password of the URL would
        parts = parts._replace(netloc=parts.netloc.rpartition("@")[2])
    options = model.options
    server = OpenAiServer(
        *("agent", parts.geturl(), model.api_key, model.model),
        section=where,
        headers=options.headers,
        query=options.query,
        secrets=options.secrets(),
    )
    try:
        async with asyncio.timeout(limit_s):
            yield server
    except TimeoutError as error:
        late = AttemptFailed(f"it took longer than {limit_s:g} s", fault="timeout")
        raise ModelFailed(server.explain(late), late) from error
    except AttemptFailed as failed:
        raise ModelFailed(server.explain(failed), failed) from failed
    finally:
        await server.close()


async def complete(
    server: OpenAiServer, model: str, params: Mapping[str, Any], traits: ModelTraits
) -> bytes:
    """Returns the body of an answer; parameters that the server refuses are left out, which
    `traits` learns. Raises AttemptFailed."""
    while True:
        body = traits.accepted({"model": model, **params})
        body |= body.pop("extra_body")
        try:
            async with server.ask("POST", "/chat/completions", NO_LIMIT_S, json=body) as response:
                return await server.body(response, NO_LIMIT_S)
        except AttemptFailed as failed:
            if traits.learn(failed.status or 0, str(failed), body) is None:
                raise
