"""The kind `conference`: callers of its numbers meet each other, those who know its PIN."""

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from offhook.pipeline.conversation.agents.kinds.agent_kind import AgentKind

MAX_PROMPT_CHARS = 500
"""Maximum characters of what is said at the door; more is refused at the start."""


class ConferenceSettings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    pin: str = Field("", pattern=r"^([0-9]{4,12})?$", repr=False)
    """Digits that callers have to press; empty: everybody who calls the number may come in."""
    wrong_pin: str = Field("That is not the PIN. Please try again.", max_length=MAX_PROMPT_CHARS)
    """What callers hear after another PIN, or none."""
    refused: str = Field("Sorry, goodbye.", max_length=MAX_PROMPT_CHARS)
    """What they hear before the call is ended."""
    agent: str = Field("", max_length=256)
    """Name of the agent that takes part: it hears all, and all hear it. Empty: none."""
    notes: bool = False
    """Whether what is said is recognized and kept, without an agent that answers."""


def _faults(table: Any) -> Iterator[str]:
    try:
        settings = ConferenceSettings.model_validate(table.settings)
    except ValidationError as error:
        for one in error.errors():
            yield f"settings: {'.'.join(map(str, one['loc']))}: {one['msg']}"
        return
    if settings.pin and not table.greeting:
        yield "settings: pin needs greeting, which asks for it"
    if settings.agent and settings.notes:
        yield "settings: agent and notes exclude each other: an agent has notes"


CONFERENCE = AgentKind(
    "conference",
    "Callers meet each other here",
    "offhook.pipeline.conversation.agents.kinds.silent_io:make",
    settings=ConferenceSettings,
    keys=frozenset({"greeting", "voice", "speed", "lexicon"}),
    converses=False,
    faults=_faults,
)
