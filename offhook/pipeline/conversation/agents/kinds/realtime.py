"""The kind `realtime`: a speech-to-speech model behind OpenAI's Realtime API."""

from collections.abc import Iterator
from typing import Any

from offhook.pipeline.conversation.agents.kinds.agent_kind import OF_A_MODEL, AgentKind


def _faults(table: Any) -> Iterator[str]:
    if "model" not in table.model_fields_set:
        yield f'kind = "{REALTIME.name}" needs model, such as "gpt-realtime"'


REALTIME = AgentKind(
    "realtime",
    "A speech-to-speech model answers",
    "offhook.pipeline.conversation.agents.kinds.realtime_io:make",
    keys=OF_A_MODEL | {"greeting", "voice", "headers", "query", "fallback"},
    own_voice=True,
    faults=_faults,
    examines="offhook.pipeline.conversation.agents.kinds.model_probe_io:examine_realtime",
    asks="offhook.pipeline.conversation.agents.kinds.model_probe_io:ask_realtime",
)
