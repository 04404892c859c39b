"""The kind `announcement`: it says one thing, and then puts the caller through or hangs up."""

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from offhook.pipeline.conversation.agents.kinds.agent_kind import AgentKind


class AnnouncementSettings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    transfer: str = Field("", pattern=r"^\S*$", max_length=256)
    """Number or address to which the caller is transferred then; empty: the call ends."""


def _faults(table: Any) -> Iterator[str]:
    if not table.greeting:
        yield f'kind = "{ANNOUNCEMENT.name}" needs greeting: what it says'
    try:
        AnnouncementSettings.model_validate(table.settings)
    except ValidationError as error:
        for one in error.errors():
            key = ".".join(map(str, one["loc"]))
            if one["type"] == "extra_forbidden":
                yield f"settings: there is no such key as {key}; there is transfer"
            else:
                yield f"settings: {key} must be a number or an address without spaces, in quotes"


ANNOUNCEMENT = AgentKind(
    "announcement",
    "A recorded sentence answers",
    "offhook.pipeline.conversation.agents.kinds.announcement_io:make",
    settings=AnnouncementSettings,
    keys=frozenset({"greeting", "voice", "speed", "lexicon"}),
    converses=False,
    faults=_faults,
)
