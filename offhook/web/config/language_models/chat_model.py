"""A language model behind OpenAI's chat API, as tables of the configuration have it."""

from typing import Annotated, Any, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from offhook.pipeline.conversation.agents.model_options import ModelOptions
from offhook.web.config.section import Secret, Section, headers_besides

_OWN_HEADERS = frozenset(("content-type", "content-length", "host", "connection"))
_OWN_KEYS = frozenset(("model", "messages", "stream", "tools"))


class ChatModel(Section):
    model: str = "gpt-4o-mini"
    """Name of the language model at its server."""
    base_url: str = "https://api.openai.com/v1"
    """URL of a server with OpenAI's chat API, or Realtime API, without the query."""
    api_key: Secret = ""
    """Bearer token for that server."""
    headers: Annotated[dict[str, str], headers_besides(_OWN_HEADERS)] = Field(
        {}, repr=False, max_length=32
    )
    """Further headers of its requests, as `api-key` for Azure; never logged."""
    query: dict[str, str] = Field({}, repr=False, max_length=32)
    """Query of its requests, as `api-version` for Azure."""
    temperature: float | None = Field(None, ge=0, le=2)
    """Sampling temperature of the language model. As `top_p`, `max_tokens` and `reasoning_effort`
    sent only if it is set, and no more to a server that refuses it."""
    top_p: float | None = Field(None, gt=0, le=1)
    """Share of the probability that the language model samples from."""
    max_tokens: int | None = Field(None, ge=1)
    """Maximum tokens of an answer, which ends with a sentence that says so. Sent as
    `max_completion_tokens` to models that want it."""
    reasoning_effort: str = Field("", pattern="^[a-z_]*$", max_length=20, examples=["low", "high"])
    """How much a reasoning model thinks before it answers, such as none, minimal or low."""
    extra_body: dict[str, Any] = Field({})
    """Further parameters of its server, such as
    `{chat_template_kwargs = {enable_thinking = false}}`."""

    @field_validator("base_url")
    @classmethod
    def _is_a_url(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https", "ws", "wss") or not parts.hostname:
            raise ValueError(f"{url!r} is no URL; one begins with http:// or https://")
        if parts.query or parts.fragment:
            raise ValueError('what follows "?" is given by query = {name = "value"}')
        return url

    @field_validator("extra_body")
    @classmethod
    def _leaves_ours(cls, extra: dict[str, Any]) -> dict[str, Any]:
        if ours := _OWN_KEYS.intersection(extra):
            raise ValueError(f"{', '.join(sorted(ours))} cannot be set")
        return extra

    @model_validator(mode="after")
    def _has_one_authorization(self) -> Self:
        if self.api_key and any(name.lower() == "authorization" for name in self.headers):
            raise ValueError("api_key and an Authorization header exclude each other")
        return self

    @property
    def options(self) -> ModelOptions:
        """Returns how the model is queried."""
        return ModelOptions(
            *(self.temperature, self.top_p, self.max_tokens, self.reasoning_effort),
            extra_body=self.extra_body,
            headers=self.headers,
            query=self.query,
        )
