"""Does with a call what its Realtime conversation asks for."""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from offhook.media.leg import Leg
from offhook.pipeline.conversation.call_io import Agent, Call
from offhook.pipeline.conversation.directed_io import Direction, FunctionTool, ResponseRequest
from offhook.pipeline.speech.synthesizer import MIN_SPEED, VoiceOptions
from offhook.web.realtime.chat import context_of, listed
from offhook.web.realtime.clients import Clients
from offhook.web.realtime.conversation.actions import (
    Action,
    AppendAudio,
    CancelResponse,
    ClearAudio,
    ClearOutput,
    Close,
    CommitAudio,
    Configure,
    Generate,
    ListMcpTools,
    McpCall,
    Send,
)
from offhook.web.realtime.conversation.conversation import RealtimeConversation
from offhook.web.realtime.leg_io import SocketLeg
from offhook.web.realtime.protocol.conversation_session import ConversationSession, ConversationVad
from offhook.web.realtime.queued_responses import QueuedResponses
from offhook.web.realtime.side_requests_io import SideRequests
from offhook.web.realtime.turn_settings import turn_settings

if TYPE_CHECKING:  # its package is an extra
    from offhook.web.realtime.mcp_io import McpConnections


class IdleTimer:
    """Waits for a caller who says nothing, as long as the session's `idle_timeout_ms`."""

    def __init__(self, idled: Callable[[], None]) -> None:
        self._idled = idled
        self._timer: asyncio.TimerHandle | None = None

    def start(self, session: ConversationSession) -> None:
        """Waits from now on, if the session has a limit."""
        self.stop()
        detection = session.turn_detection
        if isinstance(detection, ConversationVad) and detection.idle_timeout_ms is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(detection.idle_timeout_ms / 1000, self._idled)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class CallActions:
    """The actions of one session, on its call once there is one."""

    def __init__(
        self, conversation: RealtimeConversation, direction: Direction, mcp: "McpConnections | None"
    ) -> None:
        """`mcp`: the MCP servers that the session's tools may be of."""
        self._conversation, self._direction = conversation, direction
        self._call: Call
        self._agent: Agent
        self._leg: Leg
        self.clients = Clients()
        self.queued = QueuedResponses()
        """Responses with audio that was not played to its end."""
        self.idle = IdleTimer(self._idled)
        self.interrupting = False
        """Whether an interruption is one of these actions."""
        self.heard_ms = 0
        """How much of the response was heard at the last interruption, in ms."""
        self._side = SideRequests(conversation, self.perform, mcp)

    def attach(self, call: Call, agent: Agent) -> None:
        """Has the actions done with this call. The tools of the agent's configuration are offered
        to its model beside those of the session."""
        self._call, self._agent, self._leg = call, agent, call.leg
        own = [tool for tool in agent.tools if isinstance(tool, FunctionTool)]
        self._side.offer(own)
        self._conversation.offer_tools([listed(tool) for tool in own])

    async def close(self) -> None:
        """Cancels what runs beside the call."""
        await self._side.close()

    def _idled(self) -> None:
        self.perform(self._conversation.idle(self._call.hearing.heard_ms))

    def perform(self, actions: Iterable[Action]) -> None:
        """Raises Backlog for audio of a client."""
        for action in actions:
            match action:
                case Send():
                    if not action.audio or isinstance(self._leg, SocketLeg):
                        self.clients.send(action)
                case Generate():
                    self._generate(action)
                case CancelResponse(response_id):
                    self._cancel(response_id)
                case ClearOutput():
                    self.heard_ms = 0
                    self._interrupt(lambda: self._call.hearing.interrupt())
                    self.queued.clear()
                    self.perform(self._conversation.output_cleared(self.heard_ms))
                case AppendAudio(pcm, rate):
                    assert isinstance(self._leg, SocketLeg)
                    self._leg.feed(pcm, rate)
                case CommitAudio():
                    self._commit()
                case ClearAudio():
                    if isinstance(self._leg, SocketLeg):
                        self._leg.clear()
                    self._call.hearing.clear()
                case Configure(_, new):
                    self.configure(new)
                case ListMcpTools():
                    self._side.list_tools(action)
                case McpCall():
                    self._side.call_tool(action)
                case Close(code, reason, to):
                    self.clients.close(code, reason, to)

    def _generate(self, action: Generate) -> None:
        if isinstance(self._leg, SocketLeg):
            self._leg.ask()
        if action.conversation == "none":
            self._side.respond(action, self._call, self._agent, self._voice(action.voice))
        else:
            self._respond(action)

    def _respond(self, action: Generate) -> None:
        self.idle.stop()
        limit = action.max_output_tokens
        request = ResponseRequest(
            response_id=action.response_id,
            context=context_of(action),
            instructions=action.instructions,
            max_tokens=None if limit == "inf" else limit,
            spoken=action.modalities == ("audio",),
            words="" if action.items or action.instructions else self._agent.greeting,
        )
        self._speak_with(action.voice)
        self._call.responses.request(request)

    def _cancel(self, response_id: str) -> None:
        if not self._side.cancel(response_id) and self._direction.wanted == response_id:
            self._interrupt(lambda: self._call.responses.cancel(response_id))

    def _interrupt(self, interrupt: Callable[[], None]) -> None:
        self.interrupting = True
        try:
            interrupt()
        finally:
            self.interrupting = False

    def _commit(self) -> None:
        hearing = self._call.hearing
        if isinstance(self._leg, SocketLeg):
            self._leg.when_read(hearing.commit)
        else:
            hearing.commit()

    def configure(self, session: ConversationSession) -> None:
        hearing, detection = self._call.hearing, session.turn_detection
        usual = self._call.engines.turn_detection.settings
        hearing.configure(turn_settings(detection, usual), manual=detection is None)
        hearing.agent.interruptible = detection is not None and detection.interrupt_response
        if isinstance(self._leg, SocketLeg):
            self._leg.waits_for_input = detection is None
            self._leg.may_hurry = lambda: not hearing.awaits_an_answer
        self._speak_with(session.audio.output.voice)

    def _speak_with(self, voice: str) -> None:
        """Has the next response spoken by the voice."""
        self._call.voice.options = self._voice(voice)

    def _voice(self, voice: str) -> VoiceOptions:
        """Returns the voice, if the engine has it; by OpenAI's names the engine's own is meant."""
        engines = self._call.engines
        usual, there = engines.speaking, engines.synthesizer.voices()
        return replace(
            usual,
            voice=voice if voice in there else usual.voice,
            speed=max(MIN_SPEED, self._conversation.session.audio.output.speed),
        )
