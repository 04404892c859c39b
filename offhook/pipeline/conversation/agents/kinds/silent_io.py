"""Makes the agent that only listens to a call."""

from offhook.pipeline.conversation.agents.agents_io import SilentAgent
from offhook.pipeline.conversation.agents.kinds.agent_kind import AgentContext
from offhook.pipeline.conversation.agents.kinds.silent import SILENT
from offhook.pipeline.conversation.call_io import Agent


def make(context: AgentContext) -> Agent:
    return Agent(SILENT.name, SilentAgent())
