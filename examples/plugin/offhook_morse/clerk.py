"""An agent: the clerk who takes telegrams. What needs more than this table is imported with the
first call."""

from pydantic import Field

from offhook.pipeline.conversation.agents.kinds.agent_kind import AgentKind
from offhook.web.config.section import Section


class Settings(Section):
    """`[agents.NAME.settings]`."""

    office: str = Field("the telegraph office", max_length=100)
    cents_a_word: int = Field(5, ge=0, le=1000)


CLERK = AgentKind("telegraph", "A telegraph clerk answers", "offhook_morse.clerk_io:make", Settings)
