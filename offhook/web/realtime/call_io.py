"""A Realtime conversation on a call: the call's events are reported to the conversation, and what
the conversation asks for is done with the call."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from enum import Enum, auto
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol

from loguru import logger
from pipecat.metrics.metrics import LLMTokenUsage
from pipecat.processors.aggregators.llm_context import LLMContext

from offhook.media.end_reason import End, EndReason
from offhook.media.leg import Leg
from offhook.media.pcm import Pcm
from offhook.media.tasks_io import TaskSet
from offhook.pipeline.conversation.agents.agent_faults import Action as FaultAction
from offhook.pipeline.conversation.agents.agent_faults import Fault
from offhook.pipeline.conversation.call_io import Agent, Call
from offhook.pipeline.conversation.directed_io import (
    Direction,
    Incomplete,
    Inference,
    ResponseListener,
    ResponseRequest,
    function_tool,
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
from offhook.pipeline.speech.synthesizer import MIN_SPEED, VoiceOptions
from offhook.web.realtime.chat import chat_messages
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
from offhook.web.realtime.leg_io import Backlog, SocketLeg
from offhook.web.realtime.protocol.conversation_session import ConversationSession, ConversationVad
from offhook.web.realtime.protocol.items import McpToolError
from offhook.web.realtime.protocol.response_object import Usage
from offhook.web.realtime.protocol.tools import ChosenFunction, ChosenMcp, FunctionTool
from offhook.web.realtime.turn_settings import turn_settings
from offhook.web.speech_api.http.synthesis_io import spoken

if TYPE_CHECKING:  # its package is an extra
    from offhook.web.realtime.mcp_io import McpConnections

NORMAL_CLOSURE = 1000
"""WebSocket close code (RFC 6455 §7.4.1)."""
NO_MCP = McpToolError(
    type="tool_execution_error",
    message="this server calls no MCP servers: its operator has not named any in its settings",
)
BESIDE_TIMEOUT_S = 60.0
"""Time limit in s for the text of a response beside the conversation; then the response fails with
`server_error`."""
BACKLOG_POLL_S = 0.1
"""How often a client that sends audio faster than it can be processed is looked at again, in s."""


class Client(Protocol):
    """Where events are sent: a socket or a data channel."""

    def send(self, text: str) -> None: ...

    def close(self, code: int, reason: str) -> None: ...


class CallState(Enum):
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
        self._mcp = mcp
        self._owned = owned
        self.leg: Leg
        """The call's leg, once it has one."""
        self.activity = 0
        """Events of clients, and pieces of responses: a number that changes with each."""
        self.state = CallState.WAITING
        self.direction = Direction(self)
        self._call: Call
        self._agent: Agent
        self._started = asyncio.Event()
        """Set in ACTIVE and ENDED."""
        self._clients: dict[int, Client] = {}
        self._owner: int | None = None
        """The client that the session's audio is sent to."""
        self._numbers = count(1)
        self._words: dict[str, list[tuple[str, int]]] = {}
        """Words of the responses that are not played to their end, each with its end in ms."""
        self._to_play: deque[str] = deque()
        """Responses with audio that was not played to its end."""
        self._onset_ms: int | None = None
        """Position at which the caller began to speak over the agent, if that is heard just now."""
        self._spoke_from_ms = 0
        """Position at which the user's turn began."""
        self._acting = False
        """An interruption is of our own making."""
        self._heard_ms = 0
        """How much of the response was heard at the last interruption."""
        self._idle: asyncio.TimerHandle | None = None
        self._beside = TaskSet()
        """Responses beside the conversation, and requests to MCP servers."""
        self._beside_by_id: dict[str, asyncio.Task[None]] = {}

    # --- the call ---

    def direct(self, call: Call, agent: Agent) -> Agent:
        """Takes the direction of a call that is about to start."""
        self._call, self._agent, self.leg = call, agent, call.leg
        self._enter(CallState.STARTING)
        self.conversation.accept_images(agent.takes_images)
        call.listeners.append(self._report)
        return replace(agent, direction=self.direction, on_idle=None, greeting="", silences=())

    def _report(self, event: Event) -> None:
        conversation = self.conversation
        match event:
            case CallStarted():
                self._configure(self.conversation.session)
                if not self._owned:
                    self._perform(conversation.started())
                self._enter(CallState.ACTIVE)
            case SpeechStarted(at_ms):
                self._stop_idling()
                self._spoke_from_ms = at_ms
                self._perform(conversation.speech_started(at_ms))
            case PlayoutPaused(_, onset_ms):
                self._onset_ms = onset_ms
            case PlayoutResumed():
                self._onset_ms = None
            case Interrupted(_, heard, _):
                self._interrupted(heard.split())
            case CallerPartial(_, text):
                self._perform(conversation.user_partial(text))
            case CallerTurn(at_ms, _, text):
                self._user_turn(at_ms, text)
            case TurnDiscarded():
                self._perform(conversation.speech_discarded())
            case Dtmf(_, digit):
                self._perform(conversation.dtmf(digit, int(time.time())))
            case AgentFailed(_, fault, _, action):
                if action not in (FaultAction.RETRY, FaultAction.FALL_BACK):
                    self._failed(fault)
            case CallTransferred():
                self._leave(EndReason("the caller was transferred"))
            case CallEnded(reason=reason):
                self._leave(reason)

    def _interrupted(self, words: list[str]) -> None:
        self._heard_ms = self._end_of(words)
        if not self._acting:
            self._give_floor(self._heard_ms)

    def _give_floor(self, heard_ms: int) -> None:
        """The caller has interrupted, by speaking or by a key."""
        self._forget_played()
        if self._onset_ms is not None:
            self._spoke_from_ms = self._onset_ms
            self._perform(self.conversation.speech_started(self._onset_ms))
            self._onset_ms = None
        self._perform(self.conversation.interrupted(heard_ms))

    def _end_of(self, heard: list[str]) -> int:
        """Returns where these words end in the response that begins with them; 0 if none does."""
        for response_id in self._to_play:
            words = self._words.get(response_id, [])[: len(heard)]
            if heard and [word for word, _ in words] == heard:
                return words[-1][1]
        return 0

    def _forget_played(self) -> None:
        self._to_play.clear()
        self._words.clear()

    def _user_turn(self, at_ms: int, text: str) -> None:
        self._stop_idling()
        self._onset_ms = None
        conversation, hearing = self.conversation, self._call.hearing
        self._perform(conversation.speech_stopped(at_ms))
        audio_s = max(0, at_ms - self._spoke_from_ms) / 1000
        self._spoke_from_ms = at_ms
        self._perform(conversation.user_turn(text, audio_s, hearing.language))
        if self.direction.wanted is None:
            self._call.leave_unanswered()

    def _failed(self, fault: str) -> None:
        if (response_id := self.direction.wanted) is not None:
            self.direction.cancel(response_id)
            message = f"the agent's model failed: {fault}"
            if fault == Fault.UNSPEAKABLE:
                message = "the voice makes no sound of the answer: does it speak the language?"
            self._perform(self.conversation.response_failed(response_id, "server_error", message))

    def _leave(self, reason: EndReason) -> None:
        """Ends the conversation of a call that goes on without it, or is over."""
        if self.has_ended:
            return
        heard = self._call.hearing.reply.spoken  # what is queued may still be played
        self._perform(self.conversation.left(self._end_of(heard.split())))
        self._forget_played()
        if reason.end is End.TOO_LONG:
            self._perform(self.conversation.expired())
        elif reason.end in (End.NOTHING_HEARD, End.GAVE_WAY):
            self._perform(self.conversation.fell_silent(reason))
        self.end(reason)

    @property
    def has_owner(self) -> bool:
        """Whether a client has begun the session, as opposed to joining it."""
        return self._owner is not None

    @property
    def has_ended(self) -> bool:
        """Whether nothing more is done with it."""
        return self.state is CallState.ENDED

    def end(self, reason: str) -> None:
        """Closes all connections: the call is over."""
        self._stop_idling()
        for client in self._clients.values():
            client.close(NORMAL_CLOSURE, reason)
        self._enter(CallState.ENDED)

    def _enter(self, state: CallState) -> None:
        if not self.has_ended:
            self.state = state
        if self.state in (CallState.ACTIVE, CallState.ENDED):
            self._started.set()

    async def close(self) -> None:
        """Ends it and cancels what runs beside the call."""
        if not self.has_ended:
            self.end("the call is over")
        await self._beside.close()
        if self._mcp is not None:
            await self._mcp.close()

    # --- clients ---

    def attach(self, client: Client, *, owner: bool, greeted: bool = False) -> int:
        """Adds a client; the owner is sent session.created, unless it is `greeted`, and audio if it
        has a WebSocket leg. Returns its number."""
        number = next(self._numbers)
        self._clients[number] = client
        if owner:
            self._owner = number
            if not greeted:
                client.send(self.conversation.created())
            self._perform(self.conversation.started())
        return number

    def detach(self, number: int) -> None:
        self._clients.pop(number, None)
        self.conversation.disconnected(number)

    async def receive(self, number: int, text: str) -> None:
        """Handles an event of a client; returns when the next one may be read."""
        self.activity += 1
        await self._started.wait()
        if self.has_ended:
            return
        beside = number != self._owner  # which takes a key of the server
        try:
            self._perform(self.conversation.receive(number, text, has_key=beside))
        except Backlog as error:
            logger.warning("{}: audio is dropped: {}", self.leg.call_id, error)
            self._perform(self.conversation.audio_dropped(number, str(error)))
        if isinstance(self.leg, SocketLeg):
            while self.leg.is_ahead and not self.has_ended:
                await asyncio.sleep(BACKLOG_POLL_S)

    def refuse_bytes(self, number: int) -> None:
        """Handles a binary message, which no client may send."""
        self._perform(self.conversation.receive(number, ""))

    # --- what the agent makes of a request ---

    def on_text(self, response_id: str, delta: str) -> None:
        self.activity += 1
        self._perform(self.conversation.response_text(response_id, delta))

    def on_audio(self, response_id: str, pcm: Pcm) -> None:
        self.activity += 1
        if response_id not in self._to_play:
            self._to_play.append(response_id)
        self._perform(self.conversation.response_audio(response_id, pcm))

    def on_word(self, response_id: str, text: str, end_ms: int) -> None:
        words = self._words.setdefault(response_id, [])
        words += [(word, end_ms) for word in text.split()]
        self._perform(self.conversation.response_word(response_id, text, end_ms))

    def on_function_call(self, response_id: str, call_id: str, name: str, arguments: str) -> None:
        perform = self.conversation.response_function_call
        self._perform(perform(response_id, call_id, name, arguments))

    def on_done(
        self, response_id: str, usage: LLMTokenUsage | None, incomplete: Incomplete | None
    ) -> None:
        done = self.conversation.response_done
        self._perform(done(response_id, usage_of(usage), incomplete))
        if not self._to_play:
            self._call.leave_unanswered()
            self._idle_from_now()

    def on_interrupted(self, response_id: str) -> None:
        self._give_floor(0)

    def on_playout_started(self) -> None:
        if self._to_play:
            self._perform(self.conversation.playout_started(self._to_play[0]))

    def on_playout_stopped(self) -> None:
        self.activity += 1
        while self._to_play:
            response_id = self._to_play.popleft()
            self._words.pop(response_id, None)
            self._perform(self.conversation.playout_stopped(response_id))
        self._idle_from_now()

    # --- idle callers ---

    def _idle_from_now(self) -> None:
        self._stop_idling()
        detection = self.conversation.session.turn_detection
        if isinstance(detection, ConversationVad) and detection.idle_timeout_ms is not None:
            loop = asyncio.get_running_loop()
            self._idle = loop.call_later(detection.idle_timeout_ms / 1000, self._idled)

    def _idled(self) -> None:
        self._idle = None
        self._perform(self.conversation.idle(self._call.hearing.heard_ms))

    def _stop_idling(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    # --- actions ---

    def _perform(self, actions: Iterable[Action]) -> None:
        """Raises Backlog for audio of a client."""
        for action in actions:
            match action:
                case Send():
                    self._send(action)
                case Generate(conversation=conversation):
                    if isinstance(self.leg, SocketLeg):
                        self.leg.ask()
                    respond = self._respond_beside if conversation == "none" else self._respond
                    respond(action)
                case CancelResponse(response_id):
                    self._cancel(response_id)
                case ClearOutput():
                    self._heard_ms = 0
                    self._interrupt(lambda: self._call.hearing.interrupt())
                    self._forget_played()
                    self._perform(self.conversation.output_cleared(self._heard_ms))
                case AppendAudio(pcm, rate):
                    assert isinstance(self.leg, SocketLeg)
                    self.leg.feed(pcm, rate)
                case CommitAudio():
                    self._commit()
                case ClearAudio():
                    if isinstance(self.leg, SocketLeg):
                        self.leg.clear()
                    self._call.hearing.clear()
                case Configure(_, new):
                    self._configure(new)
                case ListMcpTools(item_id=item_id):
                    self._beside.spawn(self._list_tools(action), f"MCP list {item_id}")
                case McpCall(item_id=item_id):
                    self._beside.spawn(self._call_tool(action), f"MCP call {item_id}")
                case Close(code, reason, to):
                    self._close(code, reason, to)

    def _send(self, send: Send) -> None:
        if send.audio:
            if isinstance(self.leg, SocketLeg) and self._owner in self._clients:
                self._clients[self._owner].send(send.event)
        elif send.to is None:
            for client in tuple(self._clients.values()):
                client.send(send.event)
        elif send.to in self._clients:
            self._clients[send.to].send(send.event)

    def _close(self, code: int, reason: str, to: int | None) -> None:
        numbers = self._clients if to is None else (to,)
        for number in tuple(numbers):
            self._clients[number].close(code, reason)

    def _respond(self, action: Generate) -> None:
        self._stop_idling()
        limit = action.max_output_tokens
        request = ResponseRequest(
            response_id=action.response_id,
            context=context_of(action),
            instructions=action.instructions,
            max_tokens=None if limit == "inf" else limit,
            spoken=action.modalities == ("audio",),
        )
        self._speak_with(action.voice)
        self._call.respond(request)

    def _cancel(self, response_id: str) -> None:
        if (task := self._beside_by_id.pop(response_id, None)) is not None:
            task.cancel()
        elif self.direction.wanted == response_id:
            self._interrupt(lambda: self._call.cancel_response(response_id))

    def _interrupt(self, interrupt: Callable[[], None]) -> None:
        self._acting = True
        try:
            interrupt()
        finally:
            self._acting = False

    def _commit(self) -> None:
        hearing = self._call.hearing
        if isinstance(self.leg, SocketLeg):
            self.leg.when_read(hearing.commit)
        else:
            hearing.commit()

    def _configure(self, session: ConversationSession) -> None:
        hearing, detection = self._call.hearing, session.turn_detection
        usual = self._call.engines.turn_detection.settings
        hearing.configure(turn_settings(detection, usual), manual=detection is None)
        hearing.interruptible = detection is not None and detection.interrupt_response
        if isinstance(self.leg, SocketLeg):
            self.leg.waits_for_input = detection is None
            self.leg.may_hurry = lambda: not hearing.awaits_an_answer
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
            speed=max(MIN_SPEED, self.conversation.session.audio.output.speed),
        )

    # --- tools of MCP servers ---

    async def _list_tools(self, action: ListMcpTools) -> None:
        listed = NO_MCP if self._mcp is None else await self._mcp.list_tools(action.tool)
        if isinstance(listed, McpToolError):
            self._perform(self.conversation.mcp_tools_failed(action.item_id, listed.message))
        else:
            self._perform(self.conversation.mcp_tools(action.item_id, listed))

    async def _call_tool(self, action: McpCall) -> None:
        called: str | McpToolError = NO_MCP
        if self._mcp is not None:
            called = await self._mcp.call(action.tool, action.name, action.arguments)
        if isinstance(called, McpToolError):
            self._perform(self.conversation.mcp_call_failed(action.item_id, called))
        else:
            self._perform(self.conversation.mcp_call_done(action.item_id, called))

    # --- responses beside the conversation ---

    def _respond_beside(self, action: Generate) -> None:
        task = self._beside.spawn(self._think_beside(action), f"response {action.response_id}")
        self._beside_by_id[action.response_id] = task

    async def _think_beside(self, action: Generate) -> None:
        conversation, response_id = self.conversation, action.response_id
        try:
            async with asyncio.timeout(BESIDE_TIMEOUT_S):
                answer = await self._infer(action)
            self._perform(conversation.response_text(response_id, answer.text))
            if action.modalities == ("audio",) and isinstance(self.leg, SocketLeg):
                await self._speak_beside(action, answer.text)
            for call in answer.calls:
                self._perform(conversation.response_function_call(response_id, *call))
            usage = usage_of(answer.usage)
            self._perform(conversation.response_done(response_id, usage, answer.incomplete))
        except Exception as error:
            logger.warning(
                "{}: response beside: {}", self.leg.call_id, str(error) or type(error).__name__
            )
            words = "the response could not be generated"
            if self._agent.infer is None:
                words = "the agent of this conversation is no language model"
            self._perform(conversation.response_failed(response_id, "server_error", words))
        finally:
            self._beside_by_id.pop(response_id, None)

    async def _infer(self, action: Generate) -> Inference:
        if self._agent.infer is None:
            raise RuntimeError("the agent is no language model")
        limit = action.max_output_tokens
        max_tokens = None if limit == "inf" else limit
        return await self._agent.infer(context_of(action), action.instructions, max_tokens)

    async def _speak_beside(self, action: Generate, text: str) -> None:
        """Synthesizes a response that no line plays. Raises EngineError."""
        options = replace(self._voice(action.voice), live=False, whole_text=True)
        stream = self._call.engines.synthesizer.open(options)
        try:
            async for speech in spoken(stream, text):
                self._perform(self.conversation.response_audio(action.response_id, speech.pcm))
        finally:
            stream.cancel()


def usage_of(usage: LLMTokenUsage | None) -> Usage:
    """Returns the tokens that a chat model counted; none for an agent without tokens."""
    if usage is None:
        return Usage()
    return Usage(
        input_text_tokens=usage.prompt_tokens,
        cached_text_tokens=usage.cache_read_input_tokens or 0,
        output_text_tokens=usage.completion_tokens,
    )


def context_of(action: Generate) -> LLMContext:
    """Returns the request to a chat model."""
    messages: list[Any] = [*chat_messages(action.items)]
    tools: list[Any] = [
        function_tool(tool.name, tool.description or "", tool.parameters or {})
        for tool in action.tools
        if isinstance(tool, FunctionTool)
    ]
    tools += [function_tool(f.name, f.tool.description, f.tool.input_schema) for f in action.mcp]
    if not tools:
        return LLMContext(messages)
    return LLMContext(messages, tools=tools, tool_choice=_tool_choice(action))


def _tool_choice(action: Generate) -> Any:
    match action.tool_choice:
        case ChosenFunction(name=name):
            return {"type": "function", "function": {"name": name}}
        case ChosenMcp(server_label=label, name=name):
            of_server = [f for f in action.mcp if f.server.server_label == label]
            for function in of_server:
                if function.tool.name == name:
                    return {"type": "function", "function": {"name": function.name}}
            return "required" if of_server else "auto"
        case choice:
            return choice
