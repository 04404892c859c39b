"""Checks what the configuration says of parts of other packages, where these are imported."""

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from offhook.pipeline.conversation.agents.kinds import kinds
from offhook.pipeline.speech.errors import EngineError
from offhook.web.config.config import Agent, Config, ConfigError
from offhook.web.config.reading.faults import faults_of, placed
from offhook.web.config.reading.toml_text import KeyPath

Settings = TypeVar("Settings", bound=BaseModel)


def check_agents(config: Config) -> None:
    """Imports the kinds of agents of other packages, and checks their tables. Raises ConfigError
    with all errors."""
    faults: list[str] = []
    for where, agent in config.named_agents().items():
        if agent.kind not in kinds.OURS:
            faults += _faults_of(config, key_path(where), agent)
    if not faults:
        faults = [placed((), words, config.places) for words in config.faults_between_agents()]
    if faults:
        raise ConfigError("\n".join(faults))


def _faults_of(config: Config, at: KeyPath, agent: Agent) -> Iterator[str]:
    try:
        kind = agent.of_kind
        if kind.settings is not None:
            settings_of((*at, "settings"), kind.settings, agent.settings)
    except EngineError as error:
        yield placed((*at, "kind"), f"{'.'.join(map(str, at))}.kind: {error}", config.places)
    except ConfigError as error:
        for words in str(error).splitlines():
            yield placed(at, words, config.places)
    else:
        for words in kinds.faults_of(kind, agent):
            yield placed(at, f"{'.'.join(map(str, at))}.{words}", config.places)


def settings_of(at: KeyPath, model: type[Settings], given: Mapping[str, Any]) -> Settings:
    """Returns the settings at a place of the configuration, as another package has them. Raises
    ConfigError with all errors, each with its key and no line."""
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise ConfigError("\n".join(faults_of(error, model, above=at))) from error


def key_path(where: str) -> KeyPath:
    """Returns the path to an agent's table, of its name in `Config.named_agents`."""
    return tuple(where.split(".", 1))
