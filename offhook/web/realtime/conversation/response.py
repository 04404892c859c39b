"""One response: its states, its output items, and the events that report them."""

import base64
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Literal

from offhook.media.pcm import Pcm
from offhook.web.realtime.conversation.actions import Generate
from offhook.web.realtime.conversation.audio import AudioEncoder, bytes_per_ms
from offhook.web.realtime.conversation.scope import ConversationScope, Transport
from offhook.web.realtime.conversation.truncation import SpokenText
from offhook.web.realtime.protocol.items import (
    AssistantMessage,
    FunctionCall,
    Item,
    ItemStatus,
    McpCallItem,
    McpToolError,
    OutputAudio,
    OutputText,
)
from offhook.web.realtime.protocol.response_object import Usage
from offhook.web.realtime.protocol.server_events import new_id
from offhook.web.realtime.protocol.session_object import AudioFormat

Reason = Literal["turn_detected", "client_cancelled", "max_output_tokens", "content_filter"]


class ResponseState(Enum):
    """State of a response; the last four are final, and each is reached by one response.done."""

    WAITING = "waiting"
    """For the transcript of what the user has said, or for the list of an MCP server's tools."""
    GENERATING = "generating"
    CALLING = "calling"
    """All is generated; calls of MCP tools have not returned."""
    COMPLETED = "completed"
    INCOMPLETE = "incomplete"
    CANCELLED = "cancelled"
    FAILED = "failed"


class ResponseTrigger(Enum):
    """What changes the state of a response."""

    READY = auto()
    """What it waited for is known."""
    GENERATED = auto()
    CALLS_LEFT = auto()
    """Generated, while MCP tools are being called."""
    LIMITED = auto()
    """Generated up to a limit."""
    RETURNED = auto()
    """The last MCP tool has returned."""
    CANCEL = auto()
    FAIL = auto()


_S, _T = ResponseState, ResponseTrigger
RESPONSE_POLICY: dict[tuple[ResponseState, ResponseTrigger], ResponseState] = {
    (_S.WAITING, _T.READY): _S.GENERATING,
    (_S.WAITING, _T.CANCEL): _S.CANCELLED,
    (_S.WAITING, _T.FAIL): _S.FAILED,
    (_S.GENERATING, _T.GENERATED): _S.COMPLETED,
    (_S.GENERATING, _T.CALLS_LEFT): _S.CALLING,
    (_S.GENERATING, _T.LIMITED): _S.INCOMPLETE,
    (_S.GENERATING, _T.CANCEL): _S.CANCELLED,
    (_S.GENERATING, _T.FAIL): _S.FAILED,
    (_S.CALLING, _T.RETURNED): _S.COMPLETED,
    (_S.CALLING, _T.CANCEL): _S.CANCELLED,
    (_S.CALLING, _T.FAIL): _S.FAILED,
}
"""What is not here changes nothing: a report that was under way when the response ended."""


@dataclass
class OutputItem:
    """An item that a response produces."""

    index: int
    item: Item
    open: bool = True


@dataclass(eq=False)
class Response:
    """One response, out of band or of the conversation."""

    scope: ConversationScope
    generate: Generate
    """What was asked for; its items are set when generation starts."""
    audio_format: AudioFormat
    state: ResponseState = ResponseState.GENERATING
    outputs: list[OutputItem] = field(default_factory=list)
    own_tools: bool = False
    """The tools are its own, not the session's."""
    usage: Usage | None = None
    status_details: dict[str, Any] | None = None
    _message: OutputItem | None = None

    def __post_init__(self) -> None:
        self._encoder = AudioEncoder(self.audio_format)
        self._text = SpokenText(bytes_per_ms=bytes_per_ms(self.audio_format))

    @property
    def id(self) -> str:
        return self.generate.response_id

    @property
    def in_conversation(self) -> bool:
        """Whether it belongs to the default conversation."""
        return self.generate.conversation == "auto"

    @property
    def is_over(self) -> bool:
        """Whether its response.done was sent."""
        state = self.state
        return state not in (_S.WAITING, _S.GENERATING, _S.CALLING)

    @property
    def calls_left(self) -> bool:
        """Whether MCP tools are being called."""
        return any(each.open and isinstance(each.item, McpCallItem) for each in self.outputs)

    @property
    def has_mcp(self) -> bool:
        """Whether an MCP tool was called, after which clients ask for the next response."""
        return any(isinstance(each.item, McpCallItem) for each in self.outputs)

    @property
    def is_generated(self) -> bool:
        """Whether all that was generated was also reported."""
        return self.state in (_S.CALLING, _S.COMPLETED, _S.INCOMPLETE)

    @property
    def is_cut(self) -> bool:
        """Whether its message was truncated."""
        return self._text.truncated_ms is not None

    @property
    def audio_item_id(self) -> str | None:
        """The id of the message that is spoken."""
        return self._message.item.key if self._message is not None and self._is_audio else None

    def step(self, trigger: ResponseTrigger) -> bool:
        """Change the state; returns False where that is impossible, and nothing has changed."""
        state = RESPONSE_POLICY.get((self.state, trigger))
        if state is not None:
            self.state = state
        return state is not None

    def as_dict(self) -> dict[str, Any]:
        """Return the response object as sent to clients."""
        asked = self.generate
        status = self.state.value if self.is_over else "in_progress"
        return {
            "object": "realtime.response",
            "id": self.id,
            "status": status,
            "status_details": self.status_details,
            "output": [each.item.as_dict() for each in self.outputs] if self.is_over else [],
            "conversation_id": self.scope.id if self.in_conversation else None,
            "output_modalities": list(asked.modalities),
            "max_output_tokens": asked.max_output_tokens,
            "audio": {"output": {"format": self.audio_format.model_dump(), "voice": asked.voice}},
            "metadata": asked.metadata,
            "usage": self.usage.as_dict() if self.usage is not None else None,
        }

    # --- what is generated ---

    def text(self, delta: str) -> None:
        """Text, or the transcript of speech, comes as it is generated."""
        if not delta or self._text.truncated_ms is not None:
            return
        output = self._open_message()
        self._text.text += delta
        self._send(f"{self._kind('transcript')}.delta", output, delta=delta)

    def speech(self, pcm: Pcm) -> None:
        """Speech comes, at 24 kHz."""
        if not len(pcm) or not self._is_audio or self._text.truncated_ms is not None:
            return
        output = self._open_message()
        self._text.samples += len(pcm)
        if self.scope.transport is Transport.RTP:
            return
        for data in self._encoder.encode(pcm):
            if self.in_conversation:
                self.scope.audio.append(output.item.key, data)
            delta = base64.b64encode(data).decode()
            self.scope.out.send_audio(**self._ids(output), content_index=0, delta=delta)

    def word(self, text: str, end_ms: int) -> None:
        """A word ends at `end_ms` of the speech."""
        self._text.word(text, end_ms)

    def function_call(self, call_id: str, name: str, arguments: str) -> None:
        """A function of the client is called."""
        call = FunctionCall(
            id=new_id("item"),
            type="function_call",
            status="in_progress",
            name=name,
            call_id=call_id,
            arguments="",
        )
        output = self._open(call)
        kind, ids = "response.function_call_arguments", {**self._ids(output), "call_id": call_id}
        self.scope.out.send(f"{kind}.delta", **ids, delta=arguments)
        self.scope.out.send(f"{kind}.done", **ids, name=name, arguments=arguments)
        self._close(output, {"arguments": arguments, "status": "completed"})

    def mcp_item(self, item: Item) -> None:
        """An item comes that is complete at once."""
        self._close(self._open(item), {})

    def mcp_call(self, item: McpCallItem) -> None:
        """A tool of an MCP server is called: `mcp_result` follows."""
        arguments = item.arguments
        output = self._open(item.model_copy(update={"arguments": ""}))
        output.item = item
        kind, ids = "response.mcp_call_arguments", self._ids(output)
        # OpenAI's agents SDK for JavaScript passes over a delta without obfuscation.
        self.scope.out.send(f"{kind}.delta", **ids, delta=arguments, obfuscation="")
        self.scope.out.send(f"{kind}.done", **ids, arguments=arguments)
        self._mcp_event("in_progress", output)

    def mcp_result(self, item_id: str, result: str | None, error: McpToolError | None) -> bool:
        """An MCP tool has returned; returns False if it is none of this response's."""
        for output in self.outputs:
            if output.item.key == item_id and output.open:
                self._mcp_event("completed" if error is None else "failed", output)
                self._close(output, {"output": result, "error": error})
                return True
        return False

    def current(self, item: Item) -> Item:
        """Return an item with what is generated by now."""
        if self._message is None or item.key != self._message.item.key:
            return item
        return item.model_copy(update={"content": (self._part(self._text.remaining),)})

    def close_outputs(self, status: ItemStatus) -> None:
        """Complete all items that are open."""
        for output in self.outputs:
            if not output.open:
                continue
            if isinstance(output.item, McpCallItem):
                self._mcp_event("failed", output)
                words = "the response has ended"
                error = McpToolError(type="tool_execution_error", message=words)
                self._close(output, {"error": error})
            else:
                self._close_message(output, status)

    # --- events ---

    @property
    def _is_audio(self) -> bool:
        return self.generate.modalities == ("audio",)

    def _kind(self, of_audio: str) -> str:
        return f"response.output_audio_{of_audio}" if self._is_audio else "response.output_text"

    def _ids(self, output: OutputItem) -> dict[str, Any]:
        return {
            "response_id": self.id,
            "item_id": output.item.key,
            "output_index": output.index,
        }

    def _send(self, kind: str, output: OutputItem, **fields: Any) -> None:
        self.scope.out.send(kind, **self._ids(output), content_index=0, **fields)

    def _mcp_event(self, what: str, output: OutputItem) -> None:
        item_id, index = output.item.key, output.index
        self.scope.out.send(f"response.mcp_call.{what}", item_id=item_id, output_index=index)

    def _open(self, item: Item) -> OutputItem:
        output = OutputItem(len(self.outputs), item)
        self.outputs.append(output)
        self._item_event("added", output)
        if self.in_conversation:
            self.scope.items.add(item, done=False)
        return output

    def _close(self, output: OutputItem, changes: dict[str, Any]) -> None:
        output.item = output.item.model_copy(update=changes)
        output.open = False
        if self.in_conversation:
            self.scope.items.replace(output.item, done=True)
        self._item_event("done", output)

    def _item_event(self, what: str, output: OutputItem) -> None:
        self.scope.out.send(
            f"response.output_item.{what}",
            response_id=self.id,
            output_index=output.index,
            item=output.item.as_dict(),
        )

    def _open_message(self) -> OutputItem:
        if self._message is None:
            message = AssistantMessage(
                id=new_id("item"), type="message", role="assistant", status="in_progress"
            )
            self._message = self._open(message)
            if self._is_audio and self.in_conversation:
                self.scope.items.spoken[message.key] = self._text
            self._send("response.content_part.added", self._message, part=self._short_part(""))
        return self._message

    def _close_message(self, output: OutputItem, status: ItemStatus) -> None:
        text = self._text.text
        if self._is_audio:
            self._send("response.output_audio.done", output)
            self._send("response.output_audio_transcript.done", output, transcript=text)
        else:
            self._send("response.output_text.done", output, text=text)
        self._send("response.content_part.done", output, part=self._short_part(text))
        part = self._part(self._text.remaining)
        self._close(output, {"content": (part,), "status": status})

    def _short_part(self, text: str) -> dict[str, str]:
        """Parts of events have short names, parts of items long ones."""
        if self._is_audio:
            return {"type": "audio", "transcript": text}
        return {"type": "text", "text": text}

    def _part(self, text: str) -> OutputAudio | OutputText:
        if self._is_audio:
            return OutputAudio(type="output_audio", transcript=text)
        return OutputText(type="output_text", text=text)
