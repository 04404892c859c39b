"""Converses with an agent of the configuration by text, with its model and its tools.

The conversation is that of a call: greeting, silences, fallbacks, hand-over and hang-up are as on
the phone. Only recognizer, voice and line are missing, and a word takes 20 ms.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from offhook.media.end_reason import End
from offhook.media.leg import CallInfo
from offhook.pipeline.conversation.call_io import Call
from offhook.pipeline.conversation.events import (
    AgentChanged,
    AgentFailed,
    AgentTurn,
    DetailNoted,
    Event,
    NodeEntered,
    PassagesFound,
    TokensUsed,
)
from offhook.web.config.config import Config, ConfigError
from offhook.web.config.programs import Speech
from offhook.web.config.server import Recording, WebRtc
from offhook.web.edge.edge_io import Edge
from offhook.web.edge.text.text_engines_io import TextEngines
from offhook.web.edge.text.text_leg_io import TextLeg

ANSWER_S = 120.0
"""Time limit in s for an answer with all its tools; then the exchange ends with what there is."""
SETTLED_S = 0.3
"""Time in s in which nothing happens after an answer for it to be complete."""
NOTHING_S = 3.0
"""The same without an answer: none comes."""
POLL_S = 0.02
RUNNING = "IN_PROGRESS"
"""Pipecat's result of a function that has not ended."""


@dataclass(frozen=True)
class ToolCall:
    """A function that the model has called."""

    name: str
    arguments: Any
    result: Any


@dataclass
class Exchange:
    """What came of one thing that the caller said."""

    words: list[str] = field(default_factory=list)
    """The agent's turns, as they were heard."""
    tools: list[ToolCall] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    """Passages of documents that the model got."""
    agents: list[str] = field(default_factory=list)
    """Agents to which the call was handed over, one after the other."""
    nodes: list[str] = field(default_factory=list)
    """Nodes of the agent's flow that were entered, one after the other."""
    faults: list[str] = field(default_factory=list)
    """What has failed, and why."""
    collected: dict[str, str] = field(default_factory=dict)
    """Details of the caller that the agent has noted."""
    input_tokens: int = 0
    """Of the language models that have answered, as their servers report them."""
    output_tokens: int = 0
    first_word_ms: int | None = None
    ended: str = ""
    """Why the call is over; empty while it goes on."""

    @property
    def text(self) -> str:
        return " ".join(self.words)


def without_doors(config: Config) -> Config:
    """Returns a configuration whose agents nobody calls from outside."""
    nothing: dict[str, Any] = {
        "sip": None,
        "carriers": (),
        "webrtc": WebRtc(),
        "recording": Recording(),
        "agent": config.agent.model_copy(update={"record": None}),
        "agents": {n: a.model_copy(update={"record": None}) for n, a in config.agents.items()},
        "hours": {},
        "speech": Speech(enabled=False),
        "server": config.server.model_copy(update={"redis": ""}),
    }
    return config.model_copy(update=nothing)


class TextEdge(Edge):
    """An edge without doors and engines."""

    def __init__(self, config: Config) -> None:
        super().__init__(without_doors(config))
        self.engines = TextEngines(self.config, self.metrics)


class TextConversation:
    """A conversation in progress."""

    def __init__(self, leg: TextLeg, call: Call) -> None:
        self.leg = leg
        self.on_words: Callable[[str, int | None], object] = lambda text, after_ms: None
        """Called with each turn of the agent, and after how many ms it began to speak."""
        self.on_tool: Callable[[ToolCall], object] = lambda tool: None
        """Called with each call of a function, once it has ended."""
        self.call = call
        self._exchange = Exchange()
        self._began = monotonic()
        self._known: set[str] = set()
        """Ids of the calls of functions that an exchange has."""
        self._awaited = False
        """Whether an agent that has taken the call over is still to begin."""
        call.listeners.append(self._listen)

    def _listen(self, event: Event) -> None:
        match event:
            case AgentTurn(text=text):
                self._note_tools()
                self._exchange.words.append(text)
                self.on_words(text, self._first_word_ms())
                self._awaited = False
            case AgentChanged(agent=agent):
                self._exchange.agents.append(agent)
                self.leg.show(f"hands the call over to {agent}")
                self._note_tools(running=True)  # the next agent knows nothing of them
                self._awaited = True
            case NodeEntered(node=node):
                self._exchange.nodes.append(node)
                self.leg.show(f"goes on at {node}")
            case PassagesFound(sources=sources, by=by):
                self._exchange.sources += sources
                where = "the documents" if by == "tool" else "the documents, unasked"
                self.leg.show(f"finds in {where}: {'; '.join(sources) or 'nothing'}")
            case DetailNoted(name=name, text=text):
                self._exchange.collected[name] = text
                self.leg.show(f"notes {name}: {text}")
            case TokensUsed():
                self._exchange.input_tokens += event.input_tokens
                self._exchange.output_tokens += event.output_tokens
            case AgentFailed(fault=fault, cause=cause):
                self._exchange.faults.append(f"{fault}: {cause}" if cause else str(fault))

    async def say(self, text: str) -> Exchange:
        """Returns what the agent answers to a text."""
        self._exchange, self._began = Exchange(), monotonic()
        self.leg.type(text)
        return await self.listen()

    async def listen(self) -> Exchange:
        """Returns what the agent says by itself, such as its greeting."""
        exchange, quiet_since = self._exchange, monotonic()
        while monotonic() - self._began < ANSWER_S and self.leg.closed is None:
            now = monotonic()
            self._note_tools()
            if self._is_busy():
                quiet_since = now
            answered = bool(exchange.words or exchange.faults or exchange.tools)
            if now - quiet_since > (SETTLED_S if answered and not self._awaited else NOTHING_S):
                break
            await asyncio.sleep(POLL_S)
        self._note_tools(running=True)
        exchange.first_word_ms = self._first_word_ms()
        if self.leg.closed is not None:
            exchange.ended = str(self.leg.closed)
        self._exchange, self._began = Exchange(), monotonic()
        return exchange

    def _first_word_ms(self) -> int | None:
        spoke_at = self.leg.first_word_at
        if spoke_at is None or spoke_at < self._began:
            return None
        return round((spoke_at - self._began) * 1000)

    def _note_tools(self, *, running: bool = False) -> None:
        """Adds the calls of functions that have ended since, or are still `running`."""
        messages: list[Any] = [m for m in self.call.context.messages if isinstance(m, dict)]
        results = {m.get("tool_call_id"): m.get("content") for m in messages}
        for call in (call for m in messages for call in m.get("tool_calls") or ()):
            result = results.get(call["id"])
            if call["id"] in self._known or (result == RUNNING and not running):
                continue
            self._known.add(call["id"])
            about = call["function"]
            tool = ToolCall(about["name"], _read(about["arguments"]), _read(result))
            self._exchange.tools.append(tool)
            self.on_tool(tool)

    def _is_busy(self) -> bool:
        reply, playout = self.call.hearing.reply, self.leg.playout
        messages = [m for m in self.call.context.messages if isinstance(m, dict)]
        running = any(m.get("content") == RUNNING for m in messages)
        return reply.busy or running or playout.queued > 0


def _read(text: Any) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return text


@asynccontextmanager
async def text_edge(config: Config) -> AsyncIterator[TextEdge]:
    """Runs an edge for conversations by text. Raises ConfigError."""
    edge = TextEdge(config)
    await edge.start()
    try:
        yield edge
    finally:
        await edge.close()


@asynccontextmanager
async def conversation(
    edge: TextEdge, agent: str, info: CallInfo, show: Any
) -> AsyncIterator[TextConversation]:
    """Begins a conversation with the named agent, "" for the default. `show` is told what the agent
    does with the line. Raises ConfigError if there is no such agent, or it converses with
    nobody."""
    settings = edge.config.agents.get(agent) if agent else edge.config.agent
    if settings is None:
        there = ", ".join(edge.config.agents) or "none"
        raise ConfigError(f"no agent is called {agent!r} (there: {there})")
    if not settings.of_kind.converses:
        raise ConfigError(f'kind = "{settings.kind}" converses with nobody')
    leg = TextLeg(edge.new_id(), info, show)
    call = edge.hold(leg, agent)
    begun: asyncio.Future[TextConversation] = asyncio.get_running_loop().create_future()
    call.observers.append(
        lambda conversation: begun.set_result(TextConversation(leg, conversation))
    )
    running = edge.begin(call)
    leg.connect()
    try:
        await asyncio.wait((begun, running), return_when=asyncio.FIRST_COMPLETED)
        if not begun.done():
            raise ConfigError(f"the call has not begun: {leg.closed}")
        yield begun.result()
    finally:
        leg.close(End.CALLER_HUNG_UP)
        await asyncio.wait((running,))
