"""The kinds of agents: those that come with offhook, and those of other packages.

A package has a kind by an entry point of `offhook.agents`, whose value is the import path of its
`AgentKind`; `kind` in the configuration is its name, or an import path. Only the process with the
calls imports it, and the doctor.
"""

from collections.abc import Iterator
from typing import Any

from offhook.pipeline.conversation.agents.kinds.agent_kind import AgentKind
from offhook.pipeline.conversation.agents.kinds.announcement import ANNOUNCEMENT
from offhook.pipeline.conversation.agents.kinds.conference import CONFERENCE
from offhook.pipeline.conversation.agents.kinds.frontdesk import FRONTDESK
from offhook.pipeline.conversation.agents.kinds.openai import OPENAI
from offhook.pipeline.conversation.agents.kinds.realtime import REALTIME
from offhook.pipeline.conversation.agents.kinds.silent import SILENT
from offhook.pipeline.conversation.agents.kinds.webhook import WEBHOOK
from offhook.pipeline.speech.engine_spec import imported
from offhook.pipeline.speech.entry_points import path_of
from offhook.pipeline.speech.errors import EngineError

GROUP = "offhook.agents"
OURS = {
    kind.name: kind
    for kind in (FRONTDESK, OPENAI, REALTIME, SILENT, WEBHOOK, ANNOUNCEMENT, CONFERENCE)
}
"""By name; the first is the usual one."""


def is_known(name: str) -> bool:
    """Returns whether there is a kind of this name, as far as that is known without importing
    it."""
    return name in OURS or path_of(GROUP, name) is not None


def kind_of(name: str) -> AgentKind:
    """Returns a kind by its name, or by its import path. Raises EngineError if there is none."""
    if name in OURS:
        return OURS[name]
    path = path_of(GROUP, name)
    if path is None:
        raise EngineError(f"there is no kind of agent {name!r}")
    kind = imported(path)
    if not isinstance(kind, AgentKind):
        raise EngineError(f"{path} is no AgentKind")
    return kind


def faults_of(kind: AgentKind, table: Any) -> Iterator[str]:
    """Yields what an agent's table, a pydantic model, has and its kind has not, and what else is
    wrong with it."""
    only: dict[str, list[str]] = {}
    for key in type(table).model_fields:
        *others, last = ["", *(f'"{one.name}"' for one in OURS.values() if key in one.keys)]
        if key in table.model_fields_set and last and key not in kind.keys:
            those = " or ".join(filter(None, (", ".join(others[1:]), last)))
            only.setdefault(those, []).append(key)
    for those, keys in only.items():
        yield f"{', '.join(keys)}: only for kind = {those}"
    if table.settings and kind.settings is None:
        yield f'settings: kind = "{kind.name}" has none'
    yield from kind.faults(table)
