"""The kind `openai`: a language model behind any OpenAI-compatible chat endpoint."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from offhook.pipeline.conversation.agents.kinds.agent_kind import (
    OF_A_MODEL,
    OF_THE_VOICE,
    AgentKind,
)

_MODEL = frozenset({"headers", "query", "temperature", "top_p", "max_tokens", "reasoning_effort"})


def _faults(table: Any) -> Iterator[str]:
    given = table.model_fields_set
    if "base_url" in given and "model" not in given:
        yield f'kind = "{OPENAI.name}" with a base_url needs model, as its server names it'
    if urlsplit(table.base_url).scheme not in ("http", "https"):
        yield f"base_url {table.base_url!r} does not begin with http:// or https://"


OPENAI = AgentKind(
    "openai",
    "A language model answers",
    "offhook.pipeline.conversation.agents.kinds.openai_io:make",
    keys=OF_THE_VOICE | OF_A_MODEL | _MODEL | {"extra_body", "fallback", "knowledge_in_prompt"},
    faults=_faults,
    examines="offhook.pipeline.conversation.agents.kinds.model_probe_io:examine_chat",
    asks="offhook.pipeline.conversation.agents.kinds.model_probe_io:ask_chat",
)
