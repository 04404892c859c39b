"""The kind `frontdesk`: a small receptionist by rules, which needs no network."""

from offhook.pipeline.conversation.agents.kinds.agent_kind import AgentKind

FRONTDESK = AgentKind(
    "frontdesk",
    "The front desk answers",
    "offhook.pipeline.conversation.agents.kinds.frontdesk_io:make",
    section="frontdesk",
)
