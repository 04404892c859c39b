"""The kind `webhook`: a program is asked whether it accepts the call, which it then answers by the
Realtime API; otherwise the fallback does."""

from collections.abc import Iterator
from typing import Any

from offhook.pipeline.conversation.agents.kinds.agent_kind import AgentKind


def _faults(table: Any) -> Iterator[str]:
    if not table.url or not table.secrets:
        yield f'kind = "{WEBHOOK.name}" needs url and secrets'


WEBHOOK = AgentKind(
    "webhook",
    "A program decides who answers",
    keys=frozenset({"url", "secrets", "fallback"}),
    converses=False,
    faults=_faults,
)
