"""One conversation of the harness, as it went at our end."""

import asyncio
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from time import monotonic
from typing import Any

from offhook.pipeline.conversation.events import (
    AgentChanged,
    AgentFailed,
    AgentTurn,
    CallerTurn,
    CallStarted,
    Event,
    NodeEntered,
)
from offhook.web.app.evals.checks import failures_of
from offhook.web.app.evals.coverage import Feature
from offhook.web.app.evals.scenarios_io import Scenario
from offhook.web.app.evals.sounds import Sounds
from offhook.web.http.logs import for_recording, kind

BEGINS_S = 5.0
"""Time in s in which an agent begins that has taken a call over, if it does at all."""


@dataclass
class Visit:
    """What a conversation is about, and what came of it."""

    url: str
    """Where the harness is to call."""
    scenario: Scenario
    agent: str = ""
    """Name of the agent with which the caller talks; "agent" is `[agent]`."""
    first_nodes: Mapping[str, str] = field(default_factory=dict)
    """Nodes with which the flows of agents begin, by the agents' names."""
    sounds: Sounds = field(default_factory=Sounds)
    used: set[Feature] = field(default_factory=set)
    """What the conversation has used of the agents."""
    replies: list[str] = field(default_factory=list)
    """What the caller has heard of each reply."""
    timeline: list[dict[str, Any]] = field(default_factory=list)
    """The events of the call, as its record has them."""
    agents: list[str] = field(default_factory=list)
    """The agents with which the caller has talked, in their order."""
    greets: bool = False
    """Whether the agent certainly speaks first."""
    faults: list[str] = field(default_factory=list)
    """What failed of the agent."""
    refusal: str = ""
    """Why there was no call."""
    over: asyncio.Event = field(default_factory=asyncio.Event)
    _changed_at: float | None = None
    """When another agent has taken the call over that has not spoken yet."""
    _asked: dict[int, float] = field(default_factory=dict)
    """When the agent got each turn of the caller."""
    _heard: list[tuple[float, float, AgentTurn]] = field(default_factory=list)
    """What the caller has heard of each reply, and when that began and was over."""

    @property
    def stays_to_end(self) -> bool:
        """Whether the caller stays until the agent has said all of its last answer."""
        scenario = self.scenario
        return bool(scenario.checks or scenario.criteria) or scenario.is_played

    @property
    def changes(self) -> bool:
        """Whether another agent has taken the call over, and is still to begin."""
        return self._changed_at is not None and monotonic() - self._changed_at < BEGINS_S

    @property
    def interrupts(self) -> bool:
        """Whether the next message of the caller is meant to come while the agent speaks."""
        turns = getattr(self.scenario.script, "turns", ())
        sent = [turn for turn in range(len(turns)) if self.scenario.sends_message(turn)]
        upcoming = sent[len(self.sounds.messages) :][:1]
        return any(turns[turn].send_after is not None for turn in upcoming)

    @property
    def waits_for_greeting(self) -> bool:
        """Whether the caller has something to say first, and says it behind the greeting."""
        for first in getattr(self.scenario.script, "turns", ())[:1]:
            return first.send_after is None and (first.user is not None or first.dtmf is not None)
        return False

    def _begin(self) -> None:
        """The conversation has begun with this agent."""
        self.agents.append(self.agent)
        if (first := self.first_nodes.get(self.agent)) is not None:
            self.used.add(Feature("node", self.agent, first))

    def note(self, event: Event) -> None:
        """Notes an event of the call."""
        fields = for_recording(asdict(event), has_keys=False)
        self.timeline.append({**fields, "event": kind(event)})
        match event:
            case CallStarted():
                self._begin()
            case AgentFailed(fault=fault, cause=cause):
                self.faults.append(f"{fault}: {cause}")
            case CallerTurn(turn=turn):
                self._asked[turn] = monotonic()
                self.sounds.give(self._asked[turn])
            case AgentTurn():
                self._note_reply(event, monotonic())
            case AgentChanged(agent=agent):
                self.used.add(Feature("hand-over", self.agent, agent))
                self.agent, self._changed_at = agent, monotonic()
                self._begin()
            case NodeEntered(node=node):
                self.used.add(Feature("node", self.agent, node))

    def _note_reply(self, reply: AgentTurn, now: float) -> None:
        before = self._heard[-1][1] if self._heard else 0.0
        if (begun := self.sounds.began(before)) is None:  # without a gap, or without sound
            begun = before or now
        if self.sounds.is_older(begun):
            self.sounds.go_on(now)
        self._heard.append((begun, now, reply))
        self.replies.append(reply.text)
        self._changed_at = None

    def __post_init__(self) -> None:
        self.sounds.unscripted = self.scenario.is_played

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
        failures: list[str] = []
        if checks := self.scenario.checks:
            failures += failures_of(checks, self._heard_by_turn(), self.sounds)
        if self.scenario.line.over and self._heard and not self.sounds.agent.all:
            failures.append(f"no sound of the agent came by {self.scenario.line.over}")
        return failures

    def _heard_by_turn(self) -> dict[int, list[str]]:
        """Returns the agent's words that the caller has heard, by the turn of the scenario that
        they answer."""
        found: dict[int, list[str]] = {}
        for begun_at, _, reply in self._heard:
            found.setdefault(self._answers(begun_at, reply), []).append(reply.text)
        return found

    def _answers(self, begun_at: float, reply: AgentTurn) -> int:
        """Returns the turn of the scenario that a reply answers; -1: none."""
        asked_at = self._asked.get(reply.turn)
        if asked_at is not None:
            typed = any(asked_at < at <= begun_at for at in self.sounds.messages)
            if not typed:
                return self.sounds.turn_at(asked_at)
        # A greeting, or the answer to a text, of which a call does not count the turns. What the
        # caller says or presses is counted, so it is answered by none of these.
        turn = self.sounds.turn_at(begun_at)
        return turn - 1 if turn >= 0 and self.scenario.is_counted(turn) else turn
