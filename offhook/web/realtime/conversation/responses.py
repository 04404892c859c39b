"""The responses of a conversation: one of its own at a time, others beside it, and their end."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from offhook.web.realtime.conversation.actions import CancelResponse, ClearOutput, Generate
from offhook.web.realtime.conversation.mcp import McpTools
from offhook.web.realtime.conversation.response import (
    Reason,
    Response,
    ResponseState,
    ResponseTrigger,
)
from offhook.web.realtime.conversation.scope import ConversationScope, Transport
from offhook.web.realtime.protocol.frozen import NONE_FROZEN, FrozenFields
from offhook.web.realtime.protocol.items import Item, ItemStatus, McpToolError
from offhook.web.realtime.protocol.response_object import ResponseParams, Usage
from offhook.web.realtime.protocol.server_events import new_id
from offhook.web.realtime.protocol.session_object import EventError

MAX_OUT_OF_BAND = 8
"""Responses beside the conversation's own at a time; a further one gets the error
`rate_limit_exceeded`."""
MAX_TOOL_ROUNDS = 8
"""Times in a row that a response follows the agent's own tools without being asked for; then the
model is not asked again until the client or the user's next turn does."""
MAX_ENDED = 16
"""Ended responses whose playout may still be reported; the oldest ones are forgotten."""


class Responses:
    """All responses. Each one that is created gets exactly one response.done."""

    def __init__(
        self,
        scope: ConversationScope,
        mcp: McpTools,
        is_heard: Callable[[], bool],
        after_done: Callable[[], None],
    ) -> None:
        """`is_heard`: whether all that was committed is transcribed. `after_done` is called when
        the conversation's response has ended."""
        self._scope = scope
        self._mcp = mcp
        self._is_heard = is_heard
        self._after_done = after_done
        self._active: Response | None = None
        self._running: dict[str, Response] = {}
        """All that are not over, the active one too."""
        self._ended: OrderedDict[str, Response] = OrderedDict()
        self._inputs: dict[str, tuple[Item, ...]] = {}
        """The context of responses that have one of their own."""
        self._due = False
        """A response to a turn of the user's is due when the active one is over."""
        self._asked: tuple[ResponseParams, tuple[Item, ...] | None] | None = None
        """What a client has asked for while the active response called MCP tools."""
        self._to_play: OrderedDict[str, Response] = OrderedDict()
        """Responses with audio that was not played to its end, where the server plays."""
        self._playing: Response | None = None
        self._drained: Response | None = None
        """Was played to its end so far, and is not over."""
        self._clearing: Response | None = None
        """Was cancelled; what waits to be played is being dropped."""
        self.voice_is_fixed = False
        """The assistant has spoken."""
        self._tool_rounds = 0
        """Responses to the agent's own tools since somebody asked for one."""

    @property
    def is_active(self) -> bool:
        """Whether the conversation's own response is not over."""
        return self._active is not None

    # --- begin ---

    def create(self, given: ResponseParams, frozen: FrozenFields = NONE_FROZEN) -> None:
        """Create a response for a client. Raises EventError, also for one that would not be by the
        `frozen` fields of the session."""
        session = self._scope.session
        chosen = frozen.kept(session, given.applied_to(session), "response")
        for at, item in enumerate(given.input or ()):
            frozen.check_item(item, f"response.input.{at}")
        if chosen.tools is session.tools:
            given = given.model_copy(update={"tools": None})
        conversation = given.conversation or "auto"
        if self.voice_is_fixed and chosen.audio.output.voice != session.audio.output.voice:
            words = "the voice cannot change once the assistant has spoken"
            raise EventError(words, "cannot_update_voice", "response.audio.output.voice")
        own = self._scope.items.resolve(given.input) if given.input is not None else None
        if conversation == "none":
            if len(self._running) - self.is_active >= MAX_OUT_OF_BAND:
                words = f"{MAX_OUT_OF_BAND} responses are active beside the conversation"
                raise EventError(words, "rate_limit_exceeded", "response.conversation")
        elif self._active is not None:
            if self._active.has_mcp and self._asked is None:
                self._asked = (given, own)
                return
            words = f"the conversation has an active response: {self._active.id}"
            raise EventError(words, "conversation_already_has_active_response")
        self._tool_rounds = 0
        self._begin(given, own)

    def create_automatically(self) -> None:
        """Create the response to a turn of the user's, as soon as none is active."""
        self._tool_rounds = 0
        self._due = True
        self.create_due()

    def create_due(self) -> None:
        """Create what waited for the active response to be over."""
        if self._active is None and self._asked is not None:
            asked, self._asked, self._due = self._asked, None, False
            self._begin(*asked)
        if self._active is None and self._due:
            self._due = False
            self._begin(ResponseParams(), None)

    def start_ready(self) -> None:
        """Start the responses that wait for nothing any more."""
        for response in tuple(self._running.values()):
            if response.state is ResponseState.WAITING and self._is_ready(response):
                response.step(ResponseTrigger.READY)
                self._generate(response)

    def _is_ready(self, response: Response) -> bool:
        if response.own_tools and self._mcp.is_listing(response.generate.tools):
            return False
        return response.id in self._inputs or self._is_heard()

    def _begin(self, given: ResponseParams, own: tuple[Item, ...] | None) -> None:
        session = given.applied_to(self._scope.session)
        asked = Generate(
            response_id=new_id("resp"),
            items=(),
            instructions=session.instructions,
            tools=session.tools,
            tool_choice=session.tool_choice,
            modalities=session.output_modalities,
            voice=session.audio.output.voice,
            max_output_tokens=session.max_output_tokens,
            conversation=given.conversation or "auto",
            metadata=given.metadata or {},
        )
        response = Response(
            self._scope,
            asked,
            session.audio.output.format,
            own_tools=given.tools is not None,
        )
        self._running[response.id] = response
        if response.in_conversation:
            self._active = response
        if own is not None:
            self._inputs[response.id] = own
        self._scope.out.send("response.created", response=response.as_dict())
        self._mcp.list_tools(given.tools or ())
        if self._is_ready(response):
            self._generate(response)
        else:
            response.state = ResponseState.WAITING

    def _generate(self, response: Response) -> None:
        items = self._inputs.pop(response.id, None)
        if items is None:
            items = tuple(self.current(item) for item in self._scope.items.context())
        of_agent = response.in_conversation and not response.own_tools
        mcp = self._mcp.functions(response.generate.tools, of_agent=of_agent)
        response.generate = replace(response.generate, items=items, mcp=mcp)
        self._scope.out.add(response.generate)

    def current(self, item: Item) -> Item:
        """Return an item with what is generated by now."""
        return self._active.current(item) if self._active is not None else item

    # --- reports ---

    def generating(self, response_id: str) -> Response | None:
        """Return the response, if it is being generated."""
        response = self._running.get(response_id)
        if response is not None and response.state is ResponseState.GENERATING:
            return response
        return None

    def known(self, response_id: str) -> Response | None:
        """Return the response, if it runs or has ended lately."""
        return self._running.get(response_id) or self._ended.get(response_id)

    def done(self, response_id: str, usage: Usage, reason: Reason | None) -> None:
        """A response is generated, up to a limit if there is a `reason`."""
        response = self.generating(response_id)
        if response is None:
            return
        response.usage = usage
        if reason is not None:
            details = {"type": "incomplete", "reason": reason}
            self._end(response, ResponseTrigger.LIMITED, details)
        elif response.calls_left:
            response.step(ResponseTrigger.CALLS_LEFT)
        else:
            self._end(response, ResponseTrigger.GENERATED, None)

    def mcp_returned(
        self, item_id: str, output: str | None, error: McpToolError | None, *, follows: bool
    ) -> None:
        """A call of an MCP tool is over. `follows`: a response to its result is created without
        the client, unless the model goes on calling."""
        for response in tuple(self._running.values()):
            if response.mcp_result(item_id, output, error):
                if follows and not self._due and self._tool_rounds < MAX_TOOL_ROUNDS:
                    self._tool_rounds += 1
                    self._due = True
                if response.state is ResponseState.CALLING and not response.calls_left:
                    self._end(response, ResponseTrigger.RETURNED, None)
                return

    def fail(self, response_id: str, code: str, message: str) -> None:
        """A response cannot be completed."""
        response = self._running.get(response_id)
        if response is not None:
            error = {"type": "server_error", "code": code, "message": message}
            self._end(response, ResponseTrigger.FAIL, {"type": "failed", "error": error})

    def fail_all(self, code: str, message: str) -> None:
        """The session ends."""
        self._due, self._asked = False, None
        for response_id in tuple(self._running):
            self._scope.out.add(CancelResponse(response_id))
            self.fail(response_id, code, message)

    # --- cancel ---

    def cancel(self, response_id: str | None) -> None:
        """Cancel a response for a client; None: the conversation's. Raises EventError."""
        response = self._running.get(response_id) if response_id else self._active
        if response is None:
            words = f"no active response{f' {response_id}' if response_id else ''} found"
            code, param = "response_cancel_not_active", "response_id" if response_id else None
            raise EventError(f"Cancellation failed: {words}", code, param)
        cut = []
        if response is self._drained and not self._to_play:
            cut = self._cut_all(None, response)
        elif self._to_play or self._is_played(response):
            self._clearing = response
        self._cancel(response, "client_cancelled")
        self._report_cut(cut)

    def _cancel(self, response: Response, reason: Reason | None) -> None:
        if response.state is not ResponseState.WAITING:
            self._scope.out.add(CancelResponse(response.id))
        details = {"type": "cancelled", "reason": reason} if reason else {"type": "cancelled"}
        self._end(response, ResponseTrigger.CANCEL, details)

    def interrupt(self, heard_ms: int | None) -> None:
        """The user has cut in: cancel the conversation's response, and truncate what was being
        played at `heard_ms` where the server plays it."""
        self._due = False
        cut = self._cut_all(heard_ms, self._active)
        if self._active is not None:
            self._cancel(self._active, "turn_detected")
        self._report_cut(cut)

    def leave(self, heard_ms: int | None) -> None:
        """The user has left: cancel all, and truncate what was being played at `heard_ms` where the
        server plays it."""
        self._due, self._asked = False, None
        cut = self._cut_all(heard_ms, self._active)
        for response in tuple(self._running.values()):
            self._cancel(response, None)
        self._report_cut(cut)

    # --- playout, where the server plays ---

    def _is_played(self, response: Response) -> bool:
        """Whether the server plays audio of the response."""
        by_rtp = self._scope.transport is Transport.RTP
        return by_rtp and response.in_conversation and response.audio_item_id is not None

    def voiced(self, response: Response) -> None:
        """A response has more audio."""
        if response.audio_item_id is None:
            return
        self.voice_is_fixed |= response.in_conversation
        if self._is_played(response):
            self._to_play[response.id] = response
            if len(self._to_play) > MAX_ENDED:
                self._to_play.popitem(last=False)

    def playout_started(self, response_id: str) -> None:
        """A response is being heard."""
        response = self.known(response_id)
        if response is None or not self._is_played(response) or response.is_cut:
            return
        if self._drained is response:
            self._drained = None
            self._playing = response
        elif self._playing is not response:
            self._playing = response
            self._scope.out.send("output_audio_buffer.started", response_id=response_id)

    def playout_stopped(self, response_id: str) -> None:
        """All of a response that was generated so far was heard."""
        response = self._playing
        if response is None or response.id != response_id:
            return
        self._playing = None
        self._to_play.pop(response_id, None)
        if response.is_over:
            self._scope.out.send("output_audio_buffer.stopped", response_id=response_id)
        else:
            self._drained = response

    def clear_output(self) -> None:
        """Drop what waits to be played, for a client; what is being generated ends with it."""
        active = self._active
        if active is not None and active.state is ResponseState.GENERATING:
            self.cancel(active.id)
        else:
            self._scope.out.add(ClearOutput())

    def output_cleared(self, heard_ms: int | None) -> None:
        """What waited to be played was dropped; `heard_ms` of the message were played."""
        response, self._clearing = self._clearing, None
        self._report_cut(self._cut_all(heard_ms, response))

    def _cut_all(
        self, heard_ms: int | None, also: Response | None
    ) -> list[tuple[Response, int | None]]:
        """Keep what was heard: of the response that was being played up to `heard_ms`, of those
        behind it nothing. Returns at which ms each was cut."""
        waiting = (self._playing, *self._to_play.values(), also)
        responses = list(dict.fromkeys(each for each in waiting if each is not None))
        self._to_play.clear()
        return [
            (response, self._cut(response, 0 if i and heard_ms is not None else heard_ms))
            for i, response in enumerate(responses)
        ]

    def _cut(self, response: Response, heard_ms: int | None) -> int | None:
        """Keep what was heard of a response's message. Returns at which ms it was cut, or None."""
        spoken = self._scope.items.spoken.get(response.audio_item_id or "")
        if spoken is None or not self._is_played(response):
            return None
        if response is self._drained:
            heard_ms = spoken.duration_ms
        if heard_ms is None:
            return None
        at_ms = min(max(heard_ms, 0), spoken.duration_ms)
        if at_ms == spoken.duration_ms and response.is_generated:
            return None
        spoken.truncate(at_ms)
        return at_ms

    def _report_cut(self, cut: list[tuple[Response, int | None]]) -> None:
        for response, at_ms in cut:
            item_id = response.audio_item_id
            if item_id is not None and at_ms is not None and item_id in self._scope.items:
                self._scope.items.truncate(item_id, at_ms)
            if response is self._playing:
                self._playing = None
                self._scope.out.send("output_audio_buffer.cleared", response_id=response.id)

    # --- end ---

    def _end(
        self, response: Response, trigger: ResponseTrigger, details: dict[str, Any] | None
    ) -> None:
        if not response.step(trigger):
            return
        complete = response.state is ResponseState.COMPLETED
        status: ItemStatus = "completed" if complete else "incomplete"
        response.close_outputs(status)
        response.status_details = details
        if response.usage is None:
            response.usage = Usage()
        del self._running[response.id]
        self._inputs.pop(response.id, None)
        self._ended[response.id] = response
        if len(self._ended) > MAX_ENDED:
            self._ended.popitem(last=False)
        self._scope.out.send("response.done", response=response.as_dict())
        self._scope.out.send("rate_limits.updated", rate_limits=[])
        if self._clearing is response:
            self._scope.out.add(ClearOutput())
        if self._drained is response:
            self._drained = None
            self._scope.out.send("output_audio_buffer.stopped", response_id=response.id)
        if response is self._active:
            self._active = None
            self._after_done()
