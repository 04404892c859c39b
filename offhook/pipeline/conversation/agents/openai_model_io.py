"""An OpenAI-compatible chat endpoint: its address, what calls have learned of it, its faults."""

import json
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import openai
from openai import Omit

from offhook.pipeline.conversation.agents.agent_faults import AgentFailure, Fault
from offhook.pipeline.conversation.agents.model_options import ModelOptions
from offhook.pipeline.conversation.agents.model_requests import ModelTraits
from offhook.pipeline.speech.openai.answers import retry_after_s

_TRAITS: dict[tuple[str, str, str], ModelTraits] = {}
"""By base URL, name, and parameters of the configuration."""


@dataclass(frozen=True)
class OpenAIModel:
    """An OpenAI-compatible chat endpoint."""

    model: str
    base_url: str
    api_key: str = field(repr=False)
    options: ModelOptions = field(default_factory=ModelOptions, kw_only=True)

    @property
    def traits(self) -> ModelTraits:
        """What the calls of this process have learned of the model, with these parameters."""
        parameters = json.dumps([self.options.parameters(), dict(self.options.extra_body)])
        return _TRAITS.setdefault((self.base_url, self.model, parameters), ModelTraits(self.model))

    def headers(self) -> dict[str, Any]:
        """Returns the headers of its requests. `Authorization` is not sent without a key."""
        given = self.options.headers
        return {**given} if self.api_key else {"Authorization": Omit(), **given}

    async def create(
        self,
        create: Callable[..., Awaitable[Any]],
        params: dict[str, Any],
        on_refused: Callable[[str, Exception, str, str], None],
        shown_to: Callable[[Mapping[str, Any], Sequence[str]], object] | None = None,
    ) -> Any:
        """Makes a request by a method of the client, again without each parameter that the server
        refuses, which `on_refused` is told with the error, the model and its URL. `shown_to` is
        told what is sent, and which of it are secrets. Raises the client's exceptions."""
        options, traits = self.options, self.traits
        params = {**options.parameters(), **params, "extra_body": options.extra_body}
        while True:
            request = traits.accepted(params)
            if shown_to is not None:
                shown_to(self._shown(request), (self.api_key, *options.secrets()))
            try:
                return await create(
                    **_as_it_is(request), extra_headers=self.headers(), extra_query=options.query
                )
            except openai.APIStatusError as error:
                name = traits.learn(error.status_code, error.response.text, request)
                if name is None:
                    raise
                on_refused(name, error, self.model, self.base_url)

    def _shown(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Returns what can be shown of a request: neither headers nor query, and of the parameters
        those that OpenAI's API has."""
        left_out = ("model", "messages", "tools", "extra_body")
        return {
            "model": self.model,
            "base_url": self.base_url,
            "messages": request["messages"],
            "tools": request.get("tools") or [],
            "parameters": {n: v for n, v in request.items() if n not in left_out},
        }


def _as_it_is(request: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a request whose messages and tools the client only serializes: it walks through each
    field of what it is given as such, 0.25 ms a message, and the loop of the packets waits."""
    body = {name: request[name] for name in ("messages", "tools") if name in request}
    return {**request, **dict.fromkeys(body, ()), "extra_body": {**body, **request["extra_body"]}}


def fault_of(error: Exception) -> tuple[Fault, float]:
    """Returns the fault of a client exception, and the server's Retry-After in s."""
    if isinstance(error, AgentFailure):
        return error.fault, 0.0
    if isinstance(error, openai.APIStatusError):
        status, headers = error.status_code, error.response.headers
        if status == 429:
            return Fault.RATE_LIMITED, retry_after_s(headers, datetime.now(UTC))
        if status in (401, 403):
            return Fault.UNAUTHORIZED, 0.0
        if status == 404:
            return Fault.NO_MODEL, 0.0
        return (Fault.SERVER_ERROR if status >= 500 else Fault.REFUSED), 0.0
    if isinstance(error, openai.APIConnectionError):
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, socket.gaierror):
                return Fault.NO_NAME, 0.0
            cause = cause.__cause__ or cause.__context__
        return Fault.UNREACHABLE, 0.0
    if isinstance(error, openai.APIError):
        return Fault.SERVER_ERROR, 0.0
    if isinstance(error, ValueError):  # JSON or UTF-8 errors
        return Fault.BAD_ANSWER, 0.0
    return Fault.UNEXPECTED, 0.0
