"""A conversation of the Realtime protocol: events of clients and reports of the call in, actions
out. Sans-io.

It owns the session object, the items and the responses, and decides which client is sent what. It
speaks and hears nothing itself: `Generate` asks the call for a response, which the call reports
piece by piece.
"""

import base64
from collections.abc import Sequence
from typing import Literal

from offhook.media.pcm import Pcm
from offhook.web.realtime.conversation.actions import Action, Close, Configure, Send
from offhook.web.realtime.conversation.audio import MAX_RETRIEVED_BYTES, AudioStore
from offhook.web.realtime.conversation.input_buffer import InputBuffer
from offhook.web.realtime.conversation.items import ROOT, ConversationItems
from offhook.web.realtime.conversation.mcp import McpTools
from offhook.web.realtime.conversation.outbox import Outbox
from offhook.web.realtime.conversation.responses import Responses
from offhook.web.realtime.conversation.scope import ConversationScope, Transport
from offhook.web.realtime.protocol import server_events
from offhook.web.realtime.protocol.client_events import Dialect
from offhook.web.realtime.protocol.conversation_events import (
    AppendInput,
    CancelActiveResponse,
    ClearInput,
    ClearOutputBuffer,
    CommitInput,
    ConversationClientEvent,
    CreateItem,
    CreateResponse,
    DeleteItem,
    RetrieveItem,
    TruncateItem,
    UpdateSession,
    parse_event,
)
from offhook.web.realtime.protocol.conversation_session import ConversationSession, updated
from offhook.web.realtime.protocol.frozen import NONE_FROZEN, FrozenFields
from offhook.web.realtime.protocol.items import (
    FunctionCallOutput,
    Item,
    McpApprovalResponse,
    McpListedTool,
    McpToolError,
)
from offhook.web.realtime.protocol.response_object import ResponseParams, Usage
from offhook.web.realtime.protocol.server_events import new_id
from offhook.web.realtime.protocol.session_object import EventError

MAX_ERRORS = 100
"""Consecutive invalid events after which a connection is closed."""
MAX_HELD = 128
"""Items that may wait for the end of a response; a further one gets the error
`rate_limit_exceeded`."""
BETA_CLOSE = 4000
POLICY_CLOSE = 1008
EXPIRED_CLOSE = 1001
IDLE = "session_idle"
"""Code of the error, and reason of the close, of a session whose client sends nothing."""


class RealtimeConversation:
    """One session with any number of connections: the owner, and side-bands.

    Every report of the call and every text of a client returns the actions that it leads to, in
    order. Reports on responses that are over are ignored.
    """

    def __init__(
        self,
        session: ConversationSession,
        transport: Transport,
        *,
        frozen: FrozenFields = NONE_FROZEN,
        session_id: str = "",
        expires_at: int = 0,
    ) -> None:
        """`frozen`: fields of the session that no client can change which was let in by a client
        secret. `expires_at`: in s since 1970."""
        self._frozen = frozen
        self._echoed = {
            "id": session_id or new_id("sess"),
            "object": "realtime.session",
            "expires_at": expires_at,
        }
        self._out, audio = Outbox(), AudioStore()
        self._items = ConversationItems(self._out, audio)
        self._scope = ConversationScope(session, transport, self._out, audio, self._items)
        self._buffer = InputBuffer(self._scope)
        self._mcp = McpTools(self._scope)
        self._responses = Responses(
            self._scope, self._mcp, lambda: self._buffer.is_heard, self._after_done
        )
        self._held: list[tuple[Item, str | None]] = []
        """Outputs of functions that came while a response was active, and items behind them, each
        with the id of the item that it follows."""
        self._errors: dict[int, int] = {}
        """Consecutive invalid events by connection."""

    @property
    def session(self) -> ConversationSession:
        """The settings in effect."""
        return self._scope.session

    def created(self) -> str:
        """Return `session.created`, the first event of the owner's connection."""
        return server_events.event("session.created", session=self._session())

    def started(self) -> list[Action]:
        """The session has begun: lists the tools of the MCP servers that it begins with."""
        self._mcp.list_tools(self.session.tools)
        return self._out.drain()

    def offer_tools(self, tools: Sequence[McpListedTool]) -> None:
        """Offer the tools of the agent's own configuration to the model."""
        self._mcp.offer(tools)

    def accept_images(self, images: bool) -> None:
        """Whether the agent that answers understands images; otherwise they are refused."""
        self._items.images = images

    def disconnected(self, connection: int) -> None:
        """A connection has ended."""
        self._errors.pop(connection, None)

    # --- clients ---

    def receive(self, connection: int, text: str, *, has_key: bool = False) -> list[Action]:
        """Handle an event of a client; never raises. An invalid one changes nothing. `has_key`: the
        client has a key of the server, to which nothing is frozen."""
        frozen, event_id = NONE_FROZEN if has_key else self._frozen, None
        try:
            event = parse_event(text)
            event_id = event.event_id
            self._handle(connection, event, frozen)
            self._errors.pop(connection, None)
        except EventError as error:
            error.event_id = error.event_id or event_id
            self._invalid(connection, error)
        return self._out.drain()

    def audio_dropped(self, connection: int, words: str) -> list[Action]:
        """There is no room for the audio of a client's event; `words` say why."""
        self._invalid(connection, EventError(words, "rate_limit_exceeded", "audio"))
        return self._out.drain()

    def _invalid(self, connection: int, error: EventError) -> None:
        self._out.add(Send(server_events.error(Dialect.OPENAI, error), connection))
        count = self._errors[connection] = self._errors.get(connection, 0) + 1
        if error.code == "beta_api_shape_disabled":
            self._out.add(Close(BETA_CLOSE, f"invalid_request_error.{error.code}", connection))
        elif count == MAX_ERRORS:
            self._out.add(Close(POLICY_CLOSE, f"{MAX_ERRORS} events were wrong", connection))

    def _handle(
        self, connection: int, event: ConversationClientEvent, frozen: FrozenFields
    ) -> None:
        match event:
            case UpdateSession():
                self._update(event, frozen)
            case AppendInput(audio=audio):
                self._buffer.append(audio)
            case CommitInput():
                self._buffer.commit()
            case ClearInput():
                self._buffer.clear()
            case ClearOutputBuffer():
                if self._scope.transport is Transport.WEBSOCKET:
                    words = "the client plays the audio of this session, and clears it"
                    raise EventError(words, "invalid_event_for_transport", "type")
                self._responses.clear_output()
            case CreateItem():
                frozen.check_item(event.item, "item")
                self._create_item(event)
            case RetrieveItem(item_id=item_id):
                self._retrieve(connection, item_id)
            case TruncateItem():
                self._truncate(event)
            case DeleteItem(item_id=item_id):
                self._existing(item_id, "delete")
                self._items.delete(item_id)
            case CreateResponse(response=params):
                self._responses.create(params or ResponseParams(), frozen)
            case CancelActiveResponse(response_id=response_id):
                self._responses.cancel(response_id)

    def _session(self) -> dict[str, object]:
        return {**self.session.as_dict(), **self._echoed}

    def _update(self, event: UpdateSession, frozen: FrozenFields) -> None:
        old = self.session
        new = frozen.kept(old, updated(old, event.session), "session")
        if self._responses.voice_is_fixed and new.audio.output.voice != old.audio.output.voice:
            words = "the voice cannot change once the assistant has spoken"
            raise EventError(words, "cannot_update_voice", "session.audio.output.voice")
        self._scope.session = new
        self._out.add(Configure(old, new))
        if type(new.turn_detection) is not type(old.turn_detection):
            self._buffer.detection_changed()
        self._out.send("session.updated", session=self._session())
        self._mcp.list_tools(new.tools)

    def _create_item(self, event: CreateItem) -> None:
        item, previous = self._items.admit(event.item, "item"), event.previous_item_id
        held_ids = {held.key for held, _ in self._held}
        if item.key in held_ids:
            words = f"there is an item with the id {item.id}"
            raise EventError(words, "item_create_duplicate_item_id", "item.id")
        known = previous is None or previous == ROOT or previous in self._items
        if not known and previous not in held_ids:
            words = f"there is no item with the id {previous}"
            raise EventError(words, "invalid_value", "previous_item_id")
        self._items.check_references(item)
        waits = isinstance(item, FunctionCallOutput) and self._responses.is_active
        if waits or previous in held_ids:
            if len(self._held) >= MAX_HELD:
                words = f"{MAX_HELD} items wait for the end of the response"
                raise EventError(words, "rate_limit_exceeded", "item")
            self._held.append((item, previous))
            return
        self._items.add(item, previous)
        if isinstance(item, McpApprovalResponse):
            self._mcp.answered(item)

    def _existing(self, item_id: str, what: str) -> Item:
        item = self._items.get(item_id)
        if item is None:
            words = f"there is no item with the id {item_id}"
            raise EventError(words, f"item_{what}_invalid_item_id", "item_id")
        return item

    def _retrieve(self, connection: int, item_id: str) -> None:
        item = self._responses.current(self._existing(item_id, "retrieve")).as_dict()
        audio = self._scope.audio.get(item_id)
        if 0 < len(audio) <= MAX_RETRIEVED_BYTES:
            first, *rest = item["content"]
            item["content"] = [{**first, "audio": base64.b64encode(audio).decode()}, *rest]
        self._out.send_to(connection, "conversation.item.retrieved", item=item)

    def _truncate(self, event: TruncateItem) -> None:
        self._existing(event.item_id, "truncate")
        spoken = self._items.spoken.get(event.item_id)
        if spoken is None:
            words = "only audio of the assistant can be truncated"
            raise EventError(words, "invalid_value", "item_id")
        if event.content_index:
            words = "content_index is not 0: the item has one part"
            raise EventError(words, "invalid_value", "content_index")
        self._items.truncate(event.item_id, spoken.truncation(event.audio_end_ms))

    def _after_done(self) -> None:
        held, self._held = self._held, []
        for item, previous in held:
            self._items.add(item, previous)
        self._responses.create_due()

    # --- reports: the user ---

    def speech_started(self, at_ms: int) -> list[Action]:
        """The user speaks since `at_ms` of the session's audio."""
        self._buffer.started(at_ms)
        return self._out.drain()

    def speech_stopped(self, at_ms: int) -> list[Action]:
        """The user has paused, or finished, at `at_ms`."""
        self._buffer.stopped(at_ms)
        return self._out.drain()

    def speech_discarded(self) -> list[Action]:
        """What was reported as speech was none."""
        self._buffer.discard()
        return self._out.drain()

    def user_partial(self, text: str) -> list[Action]:
        """The stable words of the turn so far."""
        self._buffer.partial(text)
        return self._out.drain()

    def user_turn(
        self, text: str, audio_s: float, language: str = "", audio: Pcm | None = None
    ) -> list[Action]:
        """A turn has ended, or the answer to CommitAudio is here: its words. `audio`: of the turn,
        at 24 kHz, for clients that retrieve it (WebSocket)."""
        self._turn_ended(self._buffer.turn(text, audio_s, audio))
        return self._out.drain()

    def transcription_failed(self, message: str) -> list[Action]:
        """A turn has ended, or CommitAudio was carried out, and the recognizer failed."""
        self._buffer.fail(message)
        self._responses.start_ready()
        return self._out.drain()

    def idle(self, at_ms: int) -> list[Action]:
        """Nothing was said since the last response for `idle_timeout_ms`."""
        if self._buffer.idle(at_ms):
            self._turn_ended(True)
        return self._out.drain()

    def dtmf(self, digit: str, received_at: int) -> list[Action]:
        """The user has pressed a key; `received_at` in s since 1970."""
        self._out.dtmf(digit, received_at)
        return self._out.drain()

    def _turn_ended(self, by_detection: bool) -> None:
        self._responses.start_ready()
        vad = self.session.turn_detection
        if by_detection and vad is not None and vad.create_response:
            self._responses.create_automatically()

    # --- reports: responses ---

    def response_text(self, response_id: str, delta: str) -> list[Action]:
        """The next text of a response, or of what it speaks."""
        if response := self._responses.generating(response_id):
            response.text(delta)
        return self._out.drain()

    def response_audio(self, response_id: str, pcm: Pcm) -> list[Action]:
        """The next speech of a response, at 24 kHz."""
        if response := self._responses.generating(response_id):
            response.speech(pcm)
            self._responses.voiced(response)
        return self._out.drain()

    def response_word(self, response_id: str, text: str, end_ms: int) -> list[Action]:
        """A word of the response's text ends at `end_ms` of its speech; also after
        `response_done`."""
        if response := self._responses.known(response_id):
            response.word(text, end_ms)
        return self._out.drain()

    def response_function_call(
        self, response_id: str, call_id: str, name: str, arguments: str
    ) -> list[Action]:
        """A response calls a function, `arguments` in JSON: the client's, or the tool of an MCP
        server, which leads to McpCall or to a request for the client's approval."""
        if response := self._responses.generating(response_id):
            tools = {function.name: function for function in response.generate.mcp}
            if name in tools:
                self._mcp.call(response, tools[name], arguments)
            else:
                response.function_call(call_id, name, arguments)
        return self._out.drain()

    def response_done(
        self,
        response_id: str,
        usage: Usage,
        reason: Literal["max_output_tokens", "content_filter"] | None = None,
    ) -> list[Action]:
        """All of a response was reported; `reason`: it is incomplete."""
        self._responses.done(response_id, usage, reason)
        return self._out.drain()

    def response_failed(self, response_id: str, code: str, message: str) -> list[Action]:
        """A response cannot be completed; `message` is for clients."""
        self._responses.fail(response_id, code, message)
        return self._out.drain()

    def interrupted(self, heard_ms: int | None) -> list[Action]:
        """The user has cut in. RTP: of the message that was being played, `heard_ms` were heard,
        and the rest is dropped already."""
        self._responses.interrupt(heard_ms)
        return self._out.drain()

    def playout_started(self, response_id: str) -> list[Action]:
        """RTP: the first audio of a response is sent, or the next after a gap."""
        self._responses.playout_started(response_id)
        return self._out.drain()

    def playout_stopped(self, response_id: str) -> list[Action]:
        """RTP: all audio of a response so far was sent."""
        self._responses.playout_stopped(response_id)
        return self._out.drain()

    def output_cleared(self, heard_ms: int | None) -> list[Action]:
        """RTP: the answer to ClearOutput: `heard_ms` of the message were played."""
        self._responses.output_cleared(heard_ms)
        return self._out.drain()

    # --- reports: MCP ---

    def mcp_tools(self, item_id: str, tools: Sequence[McpListedTool]) -> list[Action]:
        """The tools of an MCP server were listed."""
        self._mcp.listed(item_id, tools)
        self._responses.start_ready()
        return self._out.drain()

    def mcp_tools_failed(self, item_id: str, message: str) -> list[Action]:
        """The tools of an MCP server could not be listed; `message` is for clients."""
        self._mcp.list_failed(item_id, message)
        self._responses.start_ready()
        return self._out.drain()

    def mcp_called(
        self, item_id: str, result: str | McpToolError, *, follows: bool = False
    ) -> list[Action]:
        """A call of an MCP tool is over; `follows`: a response to that comes without the client."""
        output, error = (result, None) if isinstance(result, str) else (None, result)
        if not self._mcp.returned(item_id, output, error):
            self._responses.mcp_returned(item_id, output, error, follows=follows)
        return self._out.drain()

    # --- the end ---

    def left(self, heard_ms: int | None) -> list[Action]:
        """The user has left. RTP: of the message that was being played, `heard_ms` were heard."""
        self._responses.leave(heard_ms)
        return self._out.drain()

    def expired(self) -> list[Action]:
        """The session has lasted as long as it may."""
        return self._end("session_expired", "the session has reached its maximum duration")

    def fell_silent(self, words: str) -> list[Action]:
        """The client has sent nothing for longer than it may; `words` say for how long."""
        return self._end(IDLE, f"{words}: open another session when there is something to send")

    def _end(self, code: str, words: str) -> list[Action]:
        self._responses.fail_all(code, words)
        self._out.add(Send(server_events.error(Dialect.OPENAI, EventError(words, code))))
        self._out.add(Close(EXPIRED_CLOSE, code))
        return self._out.drain()
