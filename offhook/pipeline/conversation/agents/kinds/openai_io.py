"""Makes the agent of a call that asks a language model."""

from dataclasses import replace

from offhook.pipeline.conversation.agents.kinds.agent_kind import AgentContext
from offhook.pipeline.conversation.agents.kinds.openai import OPENAI
from offhook.pipeline.conversation.agents.openai_agent_io import (
    OpenAIAgentSettings,
    model_connections,
    openai_agent,
)
from offhook.pipeline.conversation.agents.openai_model_io import OpenAIModel
from offhook.pipeline.conversation.call_io import Agent


def make(context: AgentContext) -> Agent:
    """A fallback of the same kind is another model of this agent."""
    table, fallback = context.table, context.fallback
    model, standby = None, None
    if fallback is not None and fallback.kind is OPENAI:
        other = fallback.table
        model = OpenAIModel(other.model, other.base_url, other.api_key, options=other.options)
    elif fallback is not None:
        standby = fallback.make()
    settings = OpenAIAgentSettings(
        *(table.model, table.base_url, table.api_key, context.instructions, table.transfers),
        options=table.options,
        limits=table.limits,
        fallback=model,
        gives_up_to=table.gives_up_to,
        think_ahead=table.think_ahead,
        speak_ahead=table.speak_ahead,
        judges_turns=table.judges_turns,
        passages=context.passages,
        guide=context.guide,
    )
    made = openai_agent(settings, context.call, context.shared.one(model_connections), standby)
    return replace(made, takes_images=table.images)
