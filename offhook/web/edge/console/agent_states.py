"""The agents of a configuration as the console shows them, without secrets."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from offhook.pipeline.speech.errors import EngineError
from offhook.web.config.agents import DEFAULT, Agent
from offhook.web.config.config import Config
from offhook.web.config.tools import OWN
from offhook.web.records.live_look import AgentSums

SECRET = frozenset({"api_key", "headers", "query", "secret", "secrets", "settings"})
"""Keys of an agent and its tools that may be secret, and are no part of its version."""
VERSION_CHARS = 12
"""Characters of a version."""


def agent_states(
    config: Config,
    sums: Mapping[str, AgentSums] | None,
    lacking: list[str],
    gone: list[str],
    tools: Callable[[Agent], Sequence[str]],
) -> dict[str, Any]:
    """Returns the agents of the configuration, and the calls of others that are gone from it.
    `sums` are those of their calls, None if calls are not kept; `lacking` is what agents lack, a
    line each, `gone` are those whose models do not answer, and `tools` returns the names of an
    agent's functions."""
    left, shown = dict(sums or {}), []
    for where, agent in config.named_agents().items():
        name = where.removeprefix("agents.")
        state = {"name": name, "is_default": name == DEFAULT, **described(agent, tools(agent))}
        if name in gone:
            state["fault"] = "its model does not answer"
        of_agent = left.pop(name, None)
        shown.append({**state, **(_numbers(of_agent) if sums is not None else {})})
    others = [{"name": name, **_numbers(of_agent)} for name, of_agent in sorted(left.items())]
    return {"agents": shown, "others": others, "faults": lacking, "kept": sums is not None}


def _numbers(sums: AgentSums | None) -> dict[str, Any]:
    none = {"in_progress": 0, "calls": 0, "failures": 0, "latency_p50_ms": None}
    return none if sums is None else {name: getattr(sums, name) for name in none}


def described(agent: Agent, tools: Sequence[str]) -> dict[str, Any]:
    """Returns what an agent with these functions is, without what may be secret."""
    try:
        kind, fault = agent.of_kind, ""
    except EngineError as error:
        kind, fault = None, str(error)
    has_model = kind is not None and kind.has_model
    built_in = [name for name in OWN if name != "transfer_call" or agent.transfers]
    return {
        "kind": agent.kind,
        "title": kind.title if kind is not None else "",
        "model": agent.model if has_model else "",
        "tools": list(tools) if has_model else [],
        "built_in_tools": built_in if has_model else [],
        "handoffs": list(agent.handoffs),
        "collects": list(agent.collect),
        "documents": len(agent.knowledge),
        "languages": list(agent.languages) or ([agent.language] if agent.language else []),
        "fallback": agent.fallback,
        "version": version_of(agent),
        "fault": fault,
    }


def version_of(agent: Agent) -> str:
    """Returns a hash of an agent's settings, its instructions and its flow: another one answers
    otherwise. Keys and headers are no part of it, nor are its documents."""
    settings = _without_secrets(agent.model_dump(mode="json"))
    flow = agent.loaded_flow
    settings["flow"] = flow.model_dump(mode="json") if flow is not None else None
    text = json.dumps(settings, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:VERSION_CHARS]


def _without_secrets(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_secrets(v) for k, v in value.items() if k not in SECRET}
    return [_without_secrets(each) for each in value] if isinstance(value, list) else value
