"""The kind `voicemail`: it says its greeting, and takes a message after a tone."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from offhook.pipeline.conversation.agents.kinds.agent_kind import AgentKind


class VoicemailSettings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    greeting_file: str = Field("", max_length=1024)
    """Sound file that is played in place of `greeting`, of up to a minute. A relative path begins
    at the folder in which the server is started."""
    max_seconds: float = Field(120, ge=5, le=3600)
    """Longest message in s; then the call ends."""


def _faults(table: Any) -> Iterator[str]:
    try:
        settings = VoicemailSettings.model_validate(table.settings)
    except ValidationError as error:
        for one in error.errors():
            key = ".".join(map(str, one["loc"]))
            if one["type"] == "extra_forbidden":
                there = ", ".join(VoicemailSettings.model_fields)
                yield f"settings: there is no such key as {key}; there are {there}"
            else:
                yield f"settings: {key}: {one['msg']}"
        return
    if not table.greeting and not settings.greeting_file:
        yield 'kind = "voicemail" needs greeting, what it says, or settings = {greeting_file = "…"}'
    if settings.greeting_file and not Path(settings.greeting_file).expanduser().is_file():
        yield f"settings: greeting_file {settings.greeting_file}: there is no such file"


VOICEMAIL = AgentKind(
    "voicemail",
    "A voicemail takes a message, which is recorded",
    "offhook.pipeline.conversation.agents.kinds.voicemail_io:make",
    settings=VoicemailSettings,
    keys=frozenset({"greeting", "voice", "speed", "lexicon"}),
    converses=False,
    records="on_demand",
    faults=_faults,
)
