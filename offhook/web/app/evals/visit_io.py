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
    _heard: list[tuple[float, AgentTurn]] = field(default_factory=list)
    """What the caller has heard of each reply, and when that was over."""

    @property
    def stays_to_end(self) -> bool:
        """Whether the caller stays until the agent has said all of its last answer."""
        return bool(self.scenario.checks)

    @property
    def interrupts(self) -> bool:
        """Whether the next message of the caller is meant to come while the agent speaks."""
        turns = getattr(self.scenario.script, "turns", ())
        sent = [turn for turn in range(len(turns)) if self.scenario.sends_message(turn)]
        upcoming = sent[len(self.sounds.messages) :][:1]
        return any(turns[turn].send_after is not None for turn in upcoming)

    def note(self, event: Event) -> None:
        """Notes an event of the call."""
        match event:
            case AgentFailed(fault=fault, cause=cause):
                self.faults.append(f"{fault}: {cause}")
            case CallerTurn(turn=turn):
                self._asked[turn] = monotonic()
            case AgentTurn():
                self._heard.append((monotonic(), event))

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
        for over_at, reply in self._heard:
            found.setdefault(self._answers(over_at, reply), []).append(reply.text)
        return found

    def _answers(self, over_at: float, reply: AgentTurn) -> int:
        """Returns the turn of the scenario that a reply answers; -1: none."""
        asked_at = self._asked.get(reply.turn)
        if asked_at is not None:
            typed = any(asked_at < at < over_at for at in self.sounds.messages)
            if not typed:
                return self.sounds.turn_at(asked_at)
        # A greeting, or the answer to a text, of which a call does not count the turns.
        turn = self.sounds.turn_at(over_at)
        return turn - 1 if reply.interrupted else turn
