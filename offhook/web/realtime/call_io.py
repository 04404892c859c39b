"""A Realtime conversation on a call: the call's events are reported to the conversation, and what
the conversation asks for is done with the call."""

import asyncio
import time
from dataclasses import replace
from enum import Enum, auto
from typing import TYPE_CHECKING

from loguru import logger
from pipecat.metrics.metrics import LLMTokenUsage

from offhook.media.end_reason import End, EndReason
from offhook.media.leg import Leg
from offhook.media.pcm import Pcm
from offhook.pipeline.conversation.agents.agent_faults import Action as FaultAction
from offhook.pipeline.conversation.agents.agent_faults import Fault
from offhook.pipeline.conversation.call_io import Agent, Call
from offhook.pipeline.conversation.directed_io import (
    Direction,
    Incomplete,
    ResponseListener,
)
from offhook.pipeline.conversation.events import (
    AgentFailed,
    CallEnded,
    CallerPartial,
    CallerTurn,
    CallStarted,
    CallTransferred,
    Dtmf,
    Event,
    Interrupted,
    PlayoutPaused,
    PlayoutResumed,
    SpeechStarted,
    TurnDiscarded,
)
from offhook.web.realtime.actions_io import CallActions
from offhook.web.realtime.chat import usage_of
from offhook.web.realtime.clients import Client
from offhook.web.realtime.conversation.conversation import RealtimeConversation
from offhook.web.realtime.leg_io import Backlog, SocketLeg

if TYPE_CHECKING:  # its package is an extra
    from offhook.web.realtime.mcp_io import McpConnections

NORMAL_CLOSURE = 1000
"""WebSocket close code (RFC 6455 §7.4.1)."""
LOST = "the speech recognizer has failed"
"""What clients are told of a turn whose words are lost."""
BACKLOG_POLL_S = 0.1
"""How often a client that sends audio faster than it can be processed is looked at again, in s."""


class RealtimeCallState(Enum):
    """State of a session's call.

    | state | when | then |
    |---|---|---|
    | WAITING | its agent is made | STARTING |
    | STARTING | its pipeline runs | ACTIVE |
    | any | it is over, goes on without the session, or never comes | ENDED |

    Events of clients wait until it is ACTIVE; once it has ENDED they are ignored.
    """

    WAITING = auto()
    STARTING = auto()
    ACTIVE = auto()
    ENDED = auto()


class RealtimeCall(ResponseListener):
    """The clients, the conversation and the call of one session."""

    def __init__(
        self,
        conversation: RealtimeConversation,
        mcp: "McpConnections | None" = None,
        *,
        owned: bool = True,
    ) -> None:
        """`mcp`: the MCP servers that its tools may be of. `owned`: a client begins the session,
        as opposed to joining it."""
        self.conversation = conversation
        self._owned = owned
        self.leg: Leg
        """The call's leg, once it has one."""
        self.activity = 0
        """Events of clients, and pieces of responses: a number that changes with each."""
        self.state = RealtimeCallState.WAITING
        self.direction = Direction(self)
        self._call: Call
        self._agent: Agent
        self._started = asyncio.Event()
        """Set in ACTIVE and ENDED."""
        self._onset_ms: int | None = None
        """Position at which the caller began to speak over the agent, if that is heard just now."""
        self._spoke_from_ms = 0
        """Position at which the user's turn began."""
        self._actions = CallActions(conversation, self.direction, mcp)

    # --- the call ---

    def direct(self, call: Call, agent: Agent) -> Agent:
        """Takes the direction of a call that is about to start."""
        self._call, self._agent, self.leg = call, agent, call.leg
        self._actions.attach(call, agent)
        self._enter(RealtimeCallState.STARTING)
        self.conversation.accept_images(agent.takes_images)
        call.listeners.append(self._report)
        return replace(agent, direction=self.direction, on_idle=None, greeting="", silences=())

    def _report(self, event: Event) -> None:
        conversation = self.conversation
        match event:
            case CallStarted():
                self._actions.configure(conversation.session)
                if not self._owned:
                    self._actions.perform(conversation.started())
                self._enter(RealtimeCallState.ACTIVE)
            case SpeechStarted(at_ms):
                self._actions.idle.stop()
                self._spoke_from_ms = at_ms
                self._actions.perform(conversation.speech_started(at_ms))
            case PlayoutPaused(_, onset_ms):
                self._onset_ms = onset_ms
            case PlayoutResumed():
                self._onset_ms = None
            case Interrupted(_, heard, _):
                self._interrupted(heard.split())
            case CallerPartial(_, text):
                self._actions.perform(conversation.user_partial(text))
            case CallerTurn(at_ms, _, text):
                self._user_turn(at_ms, text)
            case TurnDiscarded(at_ms, lost=True):
                self._actions.perform(conversation.speech_stopped(at_ms))
                self._actions.perform(conversation.transcription_failed(LOST))
            case TurnDiscarded():
                self._actions.perform(conversation.speech_discarded())
            case Dtmf(_, digit):
                self._actions.perform(conversation.dtmf(digit, int(time.time())))
            case AgentFailed(_, fault, _, action):
                if action not in (FaultAction.RETRY, FaultAction.FALL_BACK):
                    self._failed(fault)
            case CallTransferred():
                self._leave(EndReason("the caller was transferred"))
            case CallEnded(reason=reason):
                self._leave(reason)

    def _interrupted(self, words: list[str]) -> None:
        heard_ms = self._actions.heard_ms = self._actions.queued.end_of(words)
        if not self._actions.interrupting:
            self._give_floor(heard_ms)

    def _give_floor(self, heard_ms: int) -> None:
        """The caller has interrupted, by speaking or by a key."""
        self._actions.queued.clear()
        if self._onset_ms is not None:
            self._spoke_from_ms = self._onset_ms
            self._actions.perform(self.conversation.speech_started(self._onset_ms))
            self._onset_ms = None
        self._actions.perform(self.conversation.interrupted(heard_ms))

    def _user_turn(self, at_ms: int, text: str) -> None:
        self._actions.idle.stop()
        self._onset_ms = None
        conversation, hearing = self.conversation, self._call.hearing
        self._actions.perform(conversation.speech_stopped(at_ms))
        audio_s = max(0, at_ms - self._spoke_from_ms) / 1000
        self._spoke_from_ms = at_ms
        self._actions.perform(conversation.user_turn(text, audio_s, hearing.language))
        if self.direction.wanted is None:
            self._call.responses.leave_unanswered()

    def _failed(self, fault: str) -> None:
        if (response_id := self.direction.wanted) is not None:
            self.direction.cancel(response_id)
            message = f"the agent's model failed: {fault}"
            if fault == Fault.UNSPEAKABLE:
                message = "the voice makes no sound of the answer: does it speak the language?"
            self._actions.perform(
                self.conversation.response_failed(response_id, "server_error", message)
            )

    def _leave(self, reason: EndReason) -> None:
        """Ends the conversation of a call that goes on without it, or is over."""
        if self.has_ended:
            return
        heard = self._call.hearing.reply.spoken  # what is queued may still be played
        self._actions.perform(self.conversation.left(self._actions.queued.end_of(heard.split())))
        self._actions.queued.clear()
        if reason.end is End.TOO_LONG:
            self._actions.perform(self.conversation.expired())
        elif reason.end in (End.NOTHING_HEARD, End.GAVE_WAY):
            self._actions.perform(self.conversation.fell_silent(reason))
        self.end(reason)

    @property
    def has_owner(self) -> bool:
        """Whether a client has begun the session, as opposed to joining it."""
        return self._actions.clients.owner is not None

    @property
    def has_ended(self) -> bool:
        """Whether nothing more is done with it."""
        return self.state is RealtimeCallState.ENDED

    def end(self, reason: str) -> None:
        """Closes all connections: the call is over."""
        self._actions.idle.stop()
        self._actions.clients.close(NORMAL_CLOSURE, reason)
        self._enter(RealtimeCallState.ENDED)

    def _enter(self, state: RealtimeCallState) -> None:
        if not self.has_ended:
            self.state = state
        if self.state in (RealtimeCallState.ACTIVE, RealtimeCallState.ENDED):
            self._started.set()

    async def close(self) -> None:
        """Ends it and cancels what runs beside the call."""
        if not self.has_ended:
            self.end("the call is over")
        await self._actions.close()

    # --- clients ---

    def attach(self, client: Client, *, owner: bool, greeted: bool = False) -> int:
        """Adds a client; the owner is sent session.created, unless it is `greeted`, and audio if it
        has a WebSocket leg. Returns its number."""
        number = self._actions.clients.attach(client, owner=owner)
        if owner:
            if not greeted:
                client.send(self.conversation.created())
            self._actions.perform(self.conversation.started())
        return number

    def detach(self, number: int) -> None:
        self._actions.clients.detach(number)
        self.conversation.disconnected(number)

    async def receive(self, number: int, text: str) -> None:
        """Handles an event of a client; returns when the next one may be read."""
        self.activity += 1
        await self._started.wait()
        if self.has_ended:
            return
        beside = number != self._actions.clients.owner  # which takes a key of the server
        try:
            self._actions.perform(self.conversation.receive(number, text, has_key=beside))
        except Backlog as error:
            logger.warning("{}: audio is dropped: {}", self.leg.call_id, error)
            self._actions.perform(self.conversation.audio_dropped(number, str(error)))
        if isinstance(self.leg, SocketLeg):
            while self.leg.is_ahead and not self.has_ended:
                await asyncio.sleep(BACKLOG_POLL_S)

    def refuse_bytes(self, number: int) -> None:
        """Handles a binary message, which no client may send."""
        self._actions.perform(self.conversation.receive(number, ""))

    # --- what the agent makes of a request ---

    def on_text(self, response_id: str, delta: str) -> None:
        self.activity += 1
        self._actions.perform(self.conversation.response_text(response_id, delta))

    def on_audio(self, response_id: str, pcm: Pcm) -> None:
        self.activity += 1
        self._actions.queued.add_audio(response_id)
        self._actions.perform(self.conversation.response_audio(response_id, pcm))

    def on_word(self, response_id: str, text: str, end_ms: int) -> None:
        self._actions.queued.add_words(response_id, text, end_ms)
        self._actions.perform(self.conversation.response_word(response_id, text, end_ms))

    def on_function_call(self, response_id: str, call_id: str, name: str, arguments: str) -> None:
        perform = self.conversation.response_function_call
        self._actions.perform(perform(response_id, call_id, name, arguments))

    def on_done(
        self, response_id: str, usage: LLMTokenUsage | None, incomplete: Incomplete | None
    ) -> None:
        done = self.conversation.response_done
        self._actions.perform(done(response_id, usage_of(usage), incomplete))
        if not self._actions.queued:
            self._call.responses.leave_unanswered()
            self._actions.idle.start(self.conversation.session)

    def on_interrupted(self, response_id: str) -> None:
        self._give_floor(0)

    def on_playout_started(self) -> None:
        if self._actions.queued:
            self._actions.perform(self.conversation.playout_started(self._actions.queued.first))

    def on_playout_stopped(self) -> None:
        self.activity += 1
        for response_id in self._actions.queued.played():
            self._actions.perform(self.conversation.playout_stopped(response_id))
        self._actions.idle.start(self.conversation.session)
