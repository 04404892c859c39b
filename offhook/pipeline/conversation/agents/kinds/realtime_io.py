"""Makes the agent of a call that is a speech-to-speech model."""

from offhook.pipeline.conversation.agents.kinds.agent_kind import AgentContext
from offhook.pipeline.conversation.agents.realtime.realtime_agent_io import (
    RealtimeAgentSettings,
    realtime_agent,
)
from offhook.pipeline.conversation.call_io import Agent


def make(context: AgentContext) -> Agent:
    table, instructions = context.table, context.instructions
    if context.greeting:
        instructions += f"\n\nBegin the call with exactly these words: {context.greeting}"
    settings = RealtimeAgentSettings(
        *(table.model, table.base_url, table.api_key, instructions, table.voice, table.transfers),
        options=table.options,
        limits=table.limits,
        gives_up_to=table.gives_up_to,
    )
    standby = None if context.fallback is None else context.fallback.make()
    return realtime_agent(settings, context.call, standby)
