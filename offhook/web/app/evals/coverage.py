"""What of the agents under test no scenario has used: tools, hand-overs, nodes of flows."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from offhook.web.config.agents import DEFAULT, NOTE, SEARCH, Agent
from offhook.web.config.config import Config


@dataclass(frozen=True)
class Feature:
    """Something of an agent that a conversation may use."""

    kind: Literal["tool", "hand-over", "node"]
    agent: str
    """Its name; "agent" is `[agent]`."""
    name: str
    """Of the tool, of the agent that takes the call over, or of the node."""

    def __str__(self) -> str:
        if self.kind == "hand-over":
            return f"hand-over from {self.agent} to {self.name}"
        return f"{self.kind} {self.name} of {self.agent}"


@dataclass
class Coverage:
    """The features of the agents under test, and in how many conversations each was used."""

    uses: dict[Feature, int] = field(default_factory=dict)

    def offer(self, feature: Feature) -> None:
        """There is this feature: such as a tool that an MCP server has listed."""
        self.uses.setdefault(feature, 0)

    def use(self, features: set[Feature]) -> None:
        """A conversation has used these."""
        for feature in features:
            self.uses[feature] = self.uses.get(feature, 0) + 1

    @property
    def unused(self) -> list[Feature]:
        return [feature for feature, uses in self.uses.items() if not uses]

    def __str__(self) -> str:
        used = len(self.uses) - len(self.unused)
        return f"{used} of {len(self.uses)} tools, hand-overs and nodes used"

    def as_json(self) -> dict[str, Any]:
        return {
            "used": [
                {**asdict(feature), "in": uses} for feature, uses in self.uses.items() if uses
            ],
            "unused": [asdict(feature) for feature in self.unused],
        }


def coverage_of(config: Config, agent: str) -> Coverage:
    """Returns the features of an agent and of all to which its calls may be handed over; "" is
    `[agent]`."""
    coverage = Coverage()
    names = [agent or DEFAULT]
    for name in names:  # grows meanwhile
        settings = config.agent_called(name)
        if settings is None:
            continue
        targets = dict.fromkeys(_targets(settings))
        for feature in _own(name, settings):
            coverage.offer(feature)
        for target in targets:
            coverage.offer(Feature("hand-over", name, target))
        names += [target for target in targets if target not in names]
    return coverage


def _targets(agent: Agent) -> Iterator[str]:
    yield from agent.handoffs
    if agent.loaded_flow is not None:
        for _, action in agent.loaded_flow.actions():
            if action.hand_over:
                yield action.hand_over


def _own(name: str, agent: Agent) -> Iterator[Feature]:
    for tool in agent.tools:
        for function in tool.function_names:
            yield Feature("tool", name, function)
    if agent.knowledge:
        yield Feature("tool", name, SEARCH)
    if agent.collect:
        yield Feature("tool", name, NOTE)
    if agent.loaded_flow is not None:
        for node in agent.loaded_flow.nodes:
            yield Feature("node", name, node)
