"""The kind `openai`: a language model behind any OpenAI-compatible chat endpoint."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from offhook.pipeline.conversation.agents.kinds.agent_kind import (
    OF_A_MODEL,
    OF_THE_VOICE,
    AgentKind,
)
from offhook.pipeline.speech.streams.languages import NAMES

_OWN = frozenset({"extra_body", "fallback", "flow", "knowledge_in_prompt", "languages", "voices"})
_MODEL = frozenset({"headers", "query", "temperature", "top_p", "max_tokens", "reasoning_effort"})


def _faults(table: Any) -> Iterator[str]:
    given = table.model_fields_set
    if "base_url" in given and "model" not in given:
        yield f'kind = "{OPENAI.name}" with a base_url needs model, as its server names it'
    if urlsplit(table.base_url).scheme not in ("http", "https"):
        yield f"base_url {table.base_url!r} does not begin with http:// or https://"
    if table.languages and table.language:
        yield "language and languages exclude each other"
    if table.languages and len(set(table.languages)) < 2:
        yield "languages: at least two; of one only it is called language"
    if unknown := [code for code in table.languages if code not in NAMES]:
        yield f"languages: {unknown[0]!r} is none of {', '.join(NAMES)}"
    if other := [code for code in table.voices if code not in table.languages]:
        yield f"voices: {other[0]!r} is none of the languages"


OPENAI = AgentKind(
    "openai",
    "A language model answers",
    "offhook.pipeline.conversation.agents.kinds.openai_io:make",
    keys=OF_THE_VOICE | OF_A_MODEL | _MODEL | _OWN,
    faults=_faults,
    examines="offhook.pipeline.conversation.agents.kinds.model_probe_io:examine_chat",
    asks="offhook.pipeline.conversation.agents.kinds.model_probe_io:ask_chat",
)
