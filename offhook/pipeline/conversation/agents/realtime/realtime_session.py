"""The client's side of one session of OpenAI's Realtime API (GA), with a model that hears and
speaks. Sans-io.

Turns are ours: the session has no turn detection. The audio of a user turn is appended as it is
spoken and committed at its end, then a response is created. There is one response at a time:

    state       event                             -> state
    WAITING     the response before it is over    -> REQUESTED   response.create is sent
    REQUESTED   response.created                  -> ACTIVE
    REQUESTED   error that names our event        -> OVER
    ACTIVE      response.done                     -> OVER

A cancelled response keeps its state, as the server may not know yet; what still comes of it is
dropped.
"""

import base64
import binascii
import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import count
from typing import Any

import numpy as np
from pipecat.metrics.metrics import LLMTokenUsage

from offhook.media.pcm import RATE_OUT, Pcm
from offhook.media.untrusted_json import read_json
from offhook.pipeline.conversation.agents.agent_faults import Fault
from offhook.pipeline.conversation.agents.completion import reported

SAMPLES_PER_MS = RATE_OUT // 1000
MIN_COMMIT_MS = 100
"""Less audio than this is refused by a commit."""
MAX_OUTPUTS = 64
"""Maximum messages, and function calls, of one response; with more it fails as too long."""
MAX_UNSENT_CHARS = 8 << 20
"""Characters of events that may wait for a slow server, two minutes of audio; beyond it the session
ends, as the server counts as unreachable."""
MAX_RESPONSES = 8
"""Last responses whose transcripts are kept, to recognize them in the conversation; the oldest is
forgotten."""
SLOWEST_CHARS_PER_S = 8
"""Speech is faster than this, so that an answer's limit in characters also limits its audio; a
longer answer fails as too long."""
MAX_WORDS_CHARS = 300
"""Maximum characters of a server's message in our logs; the rest is cut off."""

_CODES = {
    "invalid_api_key": Fault.UNAUTHORIZED,
    "invalid_model": Fault.NO_MODEL,
    "model_not_found": Fault.NO_MODEL,
    "insufficient_quota": Fault.RATE_LIMITED,
    "credit_balance_exhausted": Fault.RATE_LIMITED,
    "rate_limit_exceeded": Fault.RATE_LIMITED,
    "session_expired": Fault.UNREACHABLE,
    "beta_api_shape_disabled": Fault.REFUSED,
}
"""Error codes that end a session or response."""


class ResponseState(Enum):
    WAITING = auto()
    REQUESTED = auto()
    ACTIVE = auto()
    OVER = auto()


@dataclass
class AudioItem:
    """A message of a response."""

    id: str
    samples: int = 0
    """Received audio at 24 kHz."""
    transcript: str = ""


@dataclass(frozen=True)
class FunctionCall:
    call_id: str
    name: str
    arguments: str
    """As the model wrote it; should be a JSON object."""


@dataclass(eq=False)
class RemoteResponse:
    """A response of the model."""

    event_id: str
    """Of our response.create."""
    id: str = ""
    state: ResponseState = ResponseState.WAITING
    cancelled: bool = False
    items: list[AudioItem] = field(default_factory=list)
    calls: list[FunctionCall] = field(default_factory=list)

    @property
    def samples(self) -> int:
        """Received audio."""
        return sum(item.samples for item in self.items)

    @property
    def transcript(self) -> str:
        return " ".join(item.transcript.strip() for item in self.items)

    def item(self, item_id: str) -> AudioItem:
        """Returns the message of that id, which may be new."""
        for item in self.items:
            if item.id == item_id:
                return item
        self.items.append(AudioItem(item_id))
        return self.items[-1]


@dataclass(frozen=True)
class TextDelta:
    response: RemoteResponse
    text: str


@dataclass(frozen=True)
class AudioDelta:
    response: RemoteResponse
    pcm: Pcm


@dataclass(frozen=True)
class ResponseDone:
    response: RemoteResponse
    usage: LLMTokenUsage | None = None
    """What it took; None if the server does not say."""


@dataclass(frozen=True)
class ResponseFailed:
    """The response failed. Without a response, the session did, and nothing follows."""

    response: RemoteResponse | None
    fault: Fault
    words: str


@dataclass(frozen=True)
class WordsPlayed:
    """The server's account of an interrupted response; empty if it keeps none."""

    response: RemoteResponse
    text: str


@dataclass(frozen=True)
class ErrorReported:
    """An error of the server that harms no response, for the log."""

    words: str


@dataclass(frozen=True)
class UsageReported:
    """What a response took of which nobody hears the rest."""

    usage: LLMTokenUsage


ResponseEvent = TextDelta | AudioDelta | ResponseDone | ResponseFailed
Report = WordsPlayed | ErrorReported | UsageReported
"""Events that no response waits for."""


class RealtimeSession:
    """One session, from its session.update to its end."""

    def __init__(
        self,
        instructions: str,
        tools: Sequence[Mapping[str, Any]],
        voice: str = "",
        max_characters: int = 4000,
    ) -> None:
        """`tools` are functions as the API describes them. An answer longer than `max_characters`
        fails as too long."""
        self.over = False
        """Nothing is sent or received any more."""
        self.responses: deque[RemoteResponse] = deque(maxlen=MAX_RESPONSES)
        """The last responses, whatever became of them."""
        self.open_calls: set[str] = set()
        """Ids of function calls whose output the server has not got."""
        self._max_characters = max_characters
        self._max_samples = max_characters * RATE_OUT // SLOWEST_CHARS_PER_S
        self._numbers = count(1)
        self._to_send: deque[str] = deque()
        self._unsent = 0
        self._events: deque[ResponseEvent | Report] = deque()
        self._current: RemoteResponse | None = None
        """The last response that was requested."""
        self._next: RemoteResponse | None = None
        """Waits for the current one."""
        self._appended = 0
        """Samples since the last commit."""
        self._truncated: dict[str, RemoteResponse] = {}
        """Responses by their truncated item, until the server has told the words."""
        self.keeps_words = True
        """Whether the server has kept the words of truncated items so far."""
        self._configuration = instructions, list(tools)
        self._update = self._send("session.update", session=_session(instructions, tools, voice))

    # --- to the server ---

    def messages_to_send(self) -> list[str]:
        """Returns the events to send, in order."""
        messages = list(self._to_send)
        self._to_send.clear()
        self._unsent = 0
        return messages

    def configure(self, instructions: str, tools: Sequence[Mapping[str, Any]]) -> None:
        """Changes the instructions and tools, if these are others."""
        if self._configuration != (configuration := (instructions, list(tools))):
            self._configuration = configuration
            session = {"type": "realtime", "instructions": instructions, "tools": _tools(tools)}
            self._update = self._send("session.update", session=session)

    def append(self, pcm: Pcm) -> None:
        """Appends audio of the user's turn, 24 kHz."""
        self._appended += len(pcm)
        audio = base64.b64encode(pcm.astype("<i2", copy=False).tobytes()).decode()
        self._send("input_audio_buffer.append", audio=audio)

    def clear(self) -> None:
        """Discards what was appended and not committed."""
        if self._appended:
            self._appended = 0
            self._send("input_audio_buffer.clear")

    def commit(self) -> bool:
        """Ends the user's turn; returns whether it had audio."""
        if self._appended < MIN_COMMIT_MS * SAMPLES_PER_MS:
            self.clear()
            return False
        self._appended = 0
        self._send("input_audio_buffer.commit")
        return True

    def add_message(self, role: str, text: str) -> None:
        """Adds a text to the conversation; `role` is user, assistant or system."""
        kind = "output_text" if role == "assistant" else "input_text"
        self._add_item(type="message", role=role, content=[{"type": kind, "text": text}])

    def add_call(self, call_id: str, name: str, arguments: str) -> None:
        """Adds a function call of an earlier session."""
        self._add_item(type="function_call", call_id=call_id, name=name, arguments=arguments)
        self.open_calls.add(call_id)

    def add_output(self, call_id: str, output: str) -> None:
        """Adds the output of a function call."""
        self.open_calls.discard(call_id)
        self._add_item(type="function_call_output", call_id=call_id, output=output)

    def respond(self) -> RemoteResponse:
        """Requests a response, in place of the one before it."""
        self._cancel(self._current)
        response = self._next = RemoteResponse(f"create_{next(self._numbers)}")
        self._request_next()
        return response

    def cut(self, response: RemoteResponse, played: int) -> None:
        """Ends a response of which `played` samples were played: the rest of it is cancelled, and
        truncated in the conversation."""
        active = response.state is not ResponseState.OVER
        self._cancel(response)
        for item in response.items:
            heard, played = min(played, item.samples), max(0, played - item.samples)
            if heard == item.samples and not active:
                continue
            if heard < SAMPLES_PER_MS:
                self._send("conversation.item.delete", item_id=item.id)
                continue
            self._truncated[item.id] = response
            if len(self._truncated) > MAX_RESPONSES:
                del self._truncated[next(iter(self._truncated))]
            self._send(
                "conversation.item.truncate",
                item_id=item.id,
                content_index=0,
                audio_end_ms=heard // SAMPLES_PER_MS,
            )

    def _cancel(self, response: RemoteResponse | None) -> None:
        if response is None or response.cancelled or response.state is ResponseState.OVER:
            return
        response.cancelled = True
        if response is self._next:
            self._next = None
            response.state = ResponseState.OVER
        elif response.id:
            self._send("response.cancel", response_id=response.id)
        else:
            self._send("response.cancel")

    def _request_next(self) -> None:
        if self._next is None:
            return
        if self._current is not None and self._current.state is not ResponseState.OVER:
            return
        response = self._current = self._next
        self._next = None
        response.state = ResponseState.REQUESTED
        self.responses.append(response)
        self._send("response.create", event_id=response.event_id)

    def _add_item(self, **item: Any) -> None:
        self._send("conversation.item.create", item=item)

    def _send(self, kind: str, *, event_id: str = "", **fields: Any) -> str:
        event_id = event_id or f"offhook_{next(self._numbers)}"
        if self.over:
            return event_id
        text = json.dumps({"type": kind, "event_id": event_id, **fields})
        self._unsent += len(text)
        if self._unsent > MAX_UNSENT_CHARS:
            self.close(Fault.UNREACHABLE, "it reads too slowly")
            return event_id
        self._to_send.append(text)
        return event_id

    # --- from the server ---

    def next_event(self) -> ResponseEvent | Report | None:
        return self._events.popleft() if self._events else None

    def close(self, fault: Fault, words: str) -> None:
        """Ends the session after a failure, such as a lost connection."""
        if not self.over:
            self.over = True
            self._to_send.clear()
            self._events.append(ResponseFailed(None, fault, words[:MAX_WORDS_CHARS]))

    def receive(self, text: str) -> None:
        """Receives an event. Events of unknown types are ignored."""
        if self.over:
            return
        try:
            event = read_json(text)
            if not isinstance(event, dict):
                raise ValueError("not an object")
            self._receive(str(event.get("type")), event)
        except (ValueError, TypeError, AttributeError) as error:
            self.close(Fault.BAD_ANSWER, f"an invalid event: {error}")

    def _receive(self, kind: str, event: dict[str, Any]) -> None:
        match kind:
            case "error":
                self._receive_error(_table(event, "error"))
            case "response.created":
                self._receive_created(_text(_table(event, "response"), "id"))
            case "response.output_item.added":
                self._receive_item(event)
            case "response.output_audio_transcript.delta":
                self._receive_text(event)
            case "response.output_audio.delta":
                self._receive_audio(event)
            case "response.output_item.done":
                self._receive_call(event)
            case "response.done":
                self._receive_done(_table(event, "response"))
            case "conversation.item.truncated":
                item_id = _text(event, "item_id")
                if item_id in self._truncated and self.keeps_words:
                    self._send("conversation.item.retrieve", item_id=item_id)
            case "conversation.item.retrieved":
                self._receive_words(_table(event, "item"))

    def _active(self, event: dict[str, Any]) -> RemoteResponse | None:
        """Returns the response of an event, if it is wanted."""
        current = self._current
        if current is None or not current.id or current.cancelled:
            return None
        return current if _text(event, "response_id") == current.id else None

    def _receive_created(self, response_id: str) -> None:
        current = self._current
        if current is not None and current.state is ResponseState.REQUESTED:
            current.id, current.state = response_id, ResponseState.ACTIVE

    def _receive_item(self, event: dict[str, Any]) -> None:
        item = _table(event, "item")
        if item.get("type") != "message":
            return
        item_id = _text(item, "id")
        if (response := self._active(event)) is not None:
            response.item(item_id)
            if len(response.items) > MAX_OUTPUTS:
                self._fail(response, Fault.TOO_LONG, "its messages")
        elif self._current is not None and event.get("response_id") == self._current.id:
            # Nobody has heard anything of it.
            self._send("conversation.item.delete", item_id=item_id)

    def _receive_text(self, event: dict[str, Any]) -> None:
        if (response := self._active(event)) is not None and (text := _text(event, "delta")):
            response.item(_text(event, "item_id")).transcript += text
            if sum(len(item.transcript) for item in response.items) > self._max_characters:
                self._fail(response, Fault.TOO_LONG, "its text")
            else:
                self._events.append(TextDelta(response, text))

    def _receive_audio(self, event: dict[str, Any]) -> None:
        if (response := self._active(event)) is None:
            return
        try:
            data = base64.b64decode(_text(event, "delta"), validate=True)
        except binascii.Error as error:
            raise ValueError(f"audio: {error}") from error
        pcm = np.frombuffer(data, "<i2")  # raises ValueError for half a sample
        if len(pcm):
            response.item(_text(event, "item_id")).samples += len(pcm)
            if response.samples > self._max_samples:
                self._fail(response, Fault.TOO_LONG, "its audio")
            else:
                self._events.append(AudioDelta(response, pcm))

    def _receive_call(self, event: dict[str, Any]) -> None:
        item = _table(event, "item")
        if item.get("type") != "function_call":
            return
        call = FunctionCall(*(_text(item, name) for name in ("call_id", "name", "arguments")))
        self.open_calls.add(call.call_id)
        if (response := self._active(event)) is not None:
            response.calls.append(call)
            characters = sum(len(call.arguments) for call in response.calls)
            if characters > self._max_characters or len(response.calls) > MAX_OUTPUTS:
                self._fail(response, Fault.TOO_LONG, "arguments of a tool")

    def _receive_done(self, about: dict[str, Any]) -> None:
        response = self._current
        if response is None or not response.id or response.id != about.get("id"):
            return
        response.state = ResponseState.OVER
        if not response.cancelled:
            if about.get("status") == "failed":
                error = (about.get("status_details") or {}).get("error") or {}
                fault = _CODES.get(str(error.get("code")), Fault.SERVER_ERROR)
                self._events.append(ResponseFailed(response, fault, _words(error)))
            else:
                self._events.append(ResponseDone(response, reported(about.get("usage"))))
        elif (usage := reported(about.get("usage"))) is not None:
            self._events.append(UsageReported(usage))
        self._request_next()

    def _fail(self, response: RemoteResponse, fault: Fault, words: str) -> None:
        self._cancel(response)
        self._events.append(ResponseFailed(response, fault, words))

    def _receive_error(self, error: dict[str, Any]) -> None:
        code, event_id, response = error.get("code"), error.get("event_id"), self._current
        fault = _CODES.get(str(code))
        if response is not None and event_id == response.event_id:
            response.state = ResponseState.OVER
            if not response.cancelled:
                words = _words(error)
                self._events.append(ResponseFailed(response, fault or Fault.REFUSED, words))
            self._request_next()
        elif event_id == self._update or fault is not None:
            self.close(fault or Fault.REFUSED, _words(error))
        else:
            self._events.append(ErrorReported(_words(error)))

    def _receive_words(self, item: dict[str, Any]) -> None:
        item_id = _text(item, "id")
        response = self._truncated.pop(item_id, None)
        if response is None:
            return
        parts = item.get("content") or [{}]
        words = parts[0].get("transcript") if isinstance(parts[0], dict) else None
        if not isinstance(words, str) or not words:
            self.keeps_words = False
            self._events.append(WordsPlayed(response, ""))
            return
        before = []
        for each in response.items:
            if each.id == item_id:
                break
            before.append(each.transcript.strip())
        self._events.append(WordsPlayed(response, " ".join([*before, words.strip()])))


def _session(
    instructions: str, tools: Sequence[Mapping[str, Any]], voice: str
) -> dict[str, object]:
    pcm = {"type": "audio/pcm", "rate": RATE_OUT}
    return {
        "type": "realtime",
        "instructions": instructions,
        "output_modalities": ["audio"],
        "audio": {
            "input": {"format": pcm, "turn_detection": None},
            "output": {"format": pcm, **({"voice": voice} if voice else {})},
        },
        "tools": _tools(tools),
    }


def _tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{"type": "function", **tool} for tool in tools]


def _table(event: dict[str, Any], name: str) -> dict[str, Any]:
    value = event.get(name)
    if not isinstance(value, dict):
        raise ValueError(f"{event.get('type')} without {name}")
    return value


def _text(event: dict[str, Any], name: str) -> str:
    value = event.get(name)
    if not isinstance(value, str):
        raise ValueError(f"{event.get('type')} without {name}")
    return value


def _words(error: dict[str, Any]) -> str:
    return f"{error.get('code') or error.get('type')}: {error.get('message')}"[:MAX_WORDS_CHARS]
