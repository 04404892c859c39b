"""What is done about who answers a call that we place."""

from loguru import logger

from offhook.pipeline.conversation.answering.policy import AnswerPolicy
from offhook.pipeline.conversation.call_io import Call
from offhook.web.config.agents import Agent as AgentSettings
from offhook.web.edge.agents_io import CallAgents


def answer_policy(agent: AgentSettings, call: Call, agents: CallAgents) -> AnswerPolicy | None:
    """Returns what is done; None: nothing, since nobody has asked for it, since we were called, or
    since the agent has a voice of its own, which nobody can keep waiting."""
    status, kind = call.leg.answer_status, agent.of_kind
    mode = status.mode or agent.machine_detection
    if mode == "off" or call.leg.info.direction != "outbound" or kind.own_voice:
        return None
    fill = agents.fill(agent, call)
    message = fill(status.message or agent.message)
    if mode == "message" and not message:
        logger.warning("{}: there is no message to be left on a machine", call.leg.call_id)
        mode = "detect"
    on_machine = fill(agent.on_machine) if kind.has_model else ""
    return AnswerPolicy(mode, message, on_machine, fill(agent.on_screening), kind.has_model)
