"""One conversation of the harness, as it went at our end."""

import asyncio
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from offhook.pipeline.conversation.events import AgentFailed, AgentTurn, CallerTurn, Event
from offhook.web.app.evals.checks import failures_of
from offhook.web.app.evals.scenarios_io import Scenario
from offhook.web.app.evals.sounds import Sounds


@dataclass
class Visit:
    """What a conversation is about, and what came of it."""

    url: str
    """Where the harness is to call."""
    scenario: Scenario
    sounds: Sounds = field(default_factory=Sounds)
    faults: list[str] = field(default_factory=list)
    """What failed of the agent."""
    refusal: str = ""
    """Why there was no call."""
    over: asyncio.Event = field(default_factory=asyncio.Event)
    _asked: dict[int, float] = field(default_factory=dict)
    """When the agent got each turn of the caller."""
    _heard: list[tuple[int, str]] = field(default_factory=list)
    """The agent's words that the caller has heard, with the number of the caller's turn."""

    @property
    def hears_out(self) -> bool:
        """Whether the caller stays until the agent has said all of its last answer."""
        return bool(self.scenario.checks)

    def note(self, event: Event) -> None:
        """Notes an event of the call."""
        match event:
            case AgentFailed(fault=fault, cause=cause):
                self.faults.append(f"{fault}: {cause}")
            case CallerTurn(turn=turn):
                self._asked[turn] = monotonic()
            case AgentTurn(turn=turn, text=text):
                self._heard.append((turn, text))

    async def on_progress(self, session: object, record: Any) -> None:
        """Notes that the harness has begun a turn."""
        if getattr(record, "status", "") == "turn":
            turn, scenario = record.turn_index, self.scenario
            self.sounds.begin_turn(
                monotonic(),
                by_message=scenario.sends_message(turn),
                spoken=scenario.speaks(turn),
            )

    def failures(self) -> list[str]:
        """Returns why the conversation fails, beside what the harness has found."""
        failures = list(failures_of(self.scenario.checks, self._heard_by_turn(), self.sounds))
        if self.scenario.line.over and self._heard and not self.sounds.agent.all:
            failures.append(f"no sound of the agent came by {self.scenario.line.over}")
        return failures

    def _heard_by_turn(self) -> dict[int, list[str]]:
        """Returns the agent's words that the caller has heard, by the turn of the scenario that
        they answer."""
        found: dict[int, list[str]] = {}
        for turn, text in self._heard:
            at = self._asked.get(turn)
            of = self.sounds.turn_at(at) if at is not None else 0
            found.setdefault(of, []).append(text)
        return found
