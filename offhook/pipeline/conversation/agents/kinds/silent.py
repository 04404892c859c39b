"""The kind `silent`: it only listens."""

from offhook.pipeline.conversation.agents.kinds.agent_kind import AgentKind

SILENT = AgentKind(
    "silent",
    "Nobody answers here: this server only listens",
    "offhook.pipeline.conversation.agents.kinds.silent_io:make",
    keys=frozenset(),
    converses=False,
)
