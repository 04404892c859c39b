"""An agent as the operator tries it on the page: settings for one call that nobody else has."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from offhook.pipeline.conversation.agents.kinds import kinds
from offhook.pipeline.conversation.agents.kinds.agent_kind import AgentKind
from offhook.signaling.smallwebrtc import RequestError
from offhook.web.config.agents import DEFAULT, Agent
from offhook.web.config.config import Config
from offhook.web.config.reading.faults import BARE, faults_of

BUILDER = "builder"
"""Key of an offer's `requestData` with what the operator's page wants of its call."""
TRIED = (
    *("instructions", "greeting", "goodbye", "voice", "speed", "language"),
    *("model", "temperature", "top_p", "max_tokens", "reasoning_effort"),
)
"""Settings of an agent that can be tried: nothing that says where a request goes, or with which
key."""
OF_A_MODEL = frozenset(
    {"instructions", "model", "temperature", "top_p", "max_tokens", "reasoning_effort"}
)
"""Those that only agents with a model use."""


@dataclass(frozen=True)
class Draft:
    """Who answers one call of the operator's page."""

    agent: str
    """Name of the agent; "agent" is [agent]."""
    settings: Agent
    """Its table, with what is tried."""

    @property
    def route(self) -> str:
        """The agent's name as calls are routed: "" for [agent]."""
        return "" if self.agent == DEFAULT else self.agent


def draft_of(wanted: Any, config: Config) -> Draft:
    """Reads `{"agent": NAME, "settings": {KEY: VALUE, …}}`, where both may be left out. Raises
    RequestError, which says what is wrong with a setting."""
    if not isinstance(wanted, dict):
        raise RequestError(f"{BUILDER} is not a JSON object")
    name, tried = wanted.get("agent") or DEFAULT, wanted.get("settings") or {}
    if not isinstance(name, str) or not isinstance(tried, dict):
        raise RequestError(f"{BUILDER}: agent is a text, and settings a JSON object")
    agent = config.agent_called(name)
    if agent is None:
        raise RequestError(f"no agent is called {name!r}")
    if not agent.of_kind.answers:
        raise RequestError(f"{name!r} answers no calls by itself")
    allowed = settings_of(agent)
    for key in tried:
        if key not in allowed:
            raise RequestError(f"{key} cannot be tried here")
    return Draft(name, tried_agent(name, agent, tried) if tried else agent)


def tried_agent(name: str, agent: Agent, tried: Mapping[str, Any]) -> Agent:
    """Returns an agent with other settings. Raises RequestError."""
    table = {key: getattr(agent, key) for key in agent.model_fields_set}
    table.pop("instructions_file", None)  # its text is in `instructions`
    for key, value in tried.items():
        if value is None or value == "":
            table.pop(key, None)
        else:
            table[key] = value
    try:
        return Agent.model_validate(table)
    except ValidationError as error:
        raise RequestError("; ".join(faults_of(error, Agent, None, (name,)))) from error


def settings_of(agent: Agent) -> dict[str, Any]:
    """Returns the settings of an agent that can be tried, with their values; None: as by
    default."""
    return {
        key: getattr(agent, key) if key in agent.model_fields_set else _default(key)
        for key in TRIED
        if _has(agent.of_kind, key)
    }


def _default(key: str) -> Any:
    """Returns what a setting is without a word of the configuration's, where that is a value."""
    return Agent.model_fields[key].default or None


def _has(kind: AgentKind, key: str) -> bool:
    if kind.name in kinds.OURS and key in OF_A_MODEL and "tools" not in kind.keys:
        return False
    is_of_some = any(key in one.keys for one in kinds.OURS.values())
    return key in kind.keys or not is_of_some


def as_toml(draft: Draft, before: Agent) -> str:
    """Returns the lines of the configuration that make a draft of an agent's table."""
    return "\n".join(_lines(draft, before)) + "\n"


def _lines(draft: Draft, before: Agent) -> Iterator[str]:
    name = draft.agent if BARE.fullmatch(draft.agent) else json.dumps(draft.agent)
    yield "[agent]" if draft.agent == DEFAULT else f"[agents.{name}]"
    for key in TRIED:
        now = getattr(draft.settings, key)
        if now == getattr(before, key):
            continue
        if key == "instructions" and before.instructions_file:
            yield f"# in {before.instructions_file}, in place of what it says:"
            yield from (f"# {line}".rstrip() for line in now.splitlines())
        elif key in draft.settings.model_fields_set:
            yield f"{key} = {_value(now)}"
        else:
            yield f"# without {key}"


def _value(value: Any) -> str:
    if not isinstance(value, str):
        return json.dumps(value)
    if "\n" in value and '"""' not in value and "\\" not in value and value.isprintable() is False:
        plain = all(character == "\n" or character.isprintable() for character in value)
        if plain and not value.endswith('"'):
            return f'"""\n{value}"""'
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
