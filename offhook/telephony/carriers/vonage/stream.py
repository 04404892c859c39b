"""Vonage's WebSocket of a call: audio as binary L16, everything else as JSON text.

The first message is `websocket:connected`. It gives the audio format (L16, little-endian, mono, at
8, 16 or 24 kHz, the same in both directions) and the headers that the NCCO set for the endpoint.
Vonage itself says nothing about the call: its id and numbers come only in those headers (`uuid`,
`from`, `to`).

A binary message is 20 ms of audio. Vonage queues about a minute (3072 messages), returns a `notify`
once the audio before it has been played, and answers `clear` when its queue is empty. It accepts no
DTMF from a stream. The end of a call is not announced: the socket closes. (The Audio Connector of
the Video API, otherwise the same, sends `websocket:disconnected`.)

Source: Vonage's "WebSockets in the Vonage Voice API" and "Audio Connector".
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from offhook.telephony.carriers.streams.json_text import (
    MAX_ID_CHARS,
    Json,
    JsonStream,
    StreamState,
    read_object,
    text_of,
    texts_of,
)
from offhook.telephony.carriers.streams.stream import (
    CarrierError,
    Cleared,
    Event,
    Format,
    Message,
    Sound,
    Started,
    Stopped,
)

MAX_MESSAGE_BYTES = 64 * 1024
"""Maximum size of a message; with a longer one the call ends. 20 ms of L16 at 24 kHz are 960 bytes;
the headers of an NCCO are at most 512 bytes."""

PACKET_MS = 20
"""Audio in a binary message, in ms."""
RATES = frozenset((8000, 16000, 24000))
"""Supported sample rates in Hz."""

_CONTENT_TYPE = re.compile(r"audio/l16; *rate=([0-9]{4,5})", re.IGNORECASE)


class VonageStream(JsonStream):
    """One WebSocket from Vonage."""

    provider = "vonage"
    acknowledges = True
    clears = True
    packet_ms = PACKET_MS

    def __init__(self) -> None:
        self._state = StreamState.WAITING
        self._packet_bytes = 0

    def receive(self, data: Message) -> list[Event]:
        if self._state is StreamState.STOPPED:
            return []
        if isinstance(data, bytes):
            return self._sound(data)
        message = read_object(data, MAX_MESSAGE_BYTES)
        event = text_of(message.get("event"), MAX_ID_CHARS) if message else ""
        if message is None or not event:
            self.malformed += 1
            return []
        action = self.actions.get((self._state, event))
        return action(self, message) if action else []

    def sound(self, payload: bytes) -> list[Message]:
        """Split audio into messages of 20 ms, as Vonage requires; the last is zero-padded."""
        size = self._packet_bytes
        return [
            payload[start : start + size].ljust(size, b"\0")
            for start in range(0, len(payload), size)
        ]

    def mark(self, name: str) -> list[Message]:
        return [json.dumps({"action": "notify", "payload": {"name": name}})]

    def clear(self) -> list[Message]:
        return [json.dumps({"action": "clear"})]

    def _connected(self, message: Json) -> list[Event]:
        content_type = text_of(message.get("content-type"), MAX_ID_CHARS)
        match = _CONTENT_TYPE.fullmatch(content_type)
        rate = int(match[1]) if match else 0
        if rate not in RATES:
            raise CarrierError(
                f"Vonage sends {content_type or 'audio of an unnamed type'}, which is not "
                "supported: it must be audio/l16 with a rate of 8000, 16000 or 24000"
            )
        self._packet_bytes = rate * PACKET_MS // 1000 * 2
        self._state = StreamState.STREAMING
        own = ("event", "content-type")
        headers = texts_of({name: value for name, value in message.items() if name not in own})
        call_id = headers.get("uuid", "")
        spoken = Format("l16", rate)
        return [
            Started(
                call_id,
                call_id,
                spoken,
                spoken,
                caller=headers.get("from", ""),
                called=headers.get("to", ""),
                parameters=headers,
            )
        ]

    def _connected_again(self, message: Json) -> list[Event]:
        raise CarrierError("Vonage started a second stream on the same socket")

    def _unexpected(self, message: Json) -> list[Event]:
        event = text_of(message["event"], MAX_ID_CHARS)
        raise CarrierError(f"Vonage sent {event} before websocket:connected")

    def _disconnected(self, message: Json) -> list[Event]:
        self._state = StreamState.STOPPED
        return [Stopped("Vonage ended the stream")]

    def _sound(self, payload: bytes) -> list[Event]:
        if len(payload) > MAX_MESSAGE_BYTES:
            raise CarrierError(f"a message of {len(payload)} bytes is too long")
        if self._state is StreamState.WAITING:
            raise CarrierError("Vonage sent sound before websocket:connected")
        return [Sound(payload)] if payload else []

    def _dtmf(self, message: Json) -> list[Event]:
        return self._pressed(message.get("digit"))

    def _notified(self, message: Json) -> list[Event]:
        payload = message.get("payload")
        return self._played_to(payload.get("name") if isinstance(payload, dict) else None)

    def _cleared(self, message: Json) -> list[Event]:
        return [Cleared()]

    # Anything not in the table is ignored: other events of the Video API, and future ones.
    actions: ClassVar[Mapping[tuple[StreamState, str], Callable[[Any, Json], list[Event]]]] = {
        (StreamState.WAITING, "websocket:connected"): _connected,
        (StreamState.WAITING, "websocket:dtmf"): _unexpected,
        (StreamState.WAITING, "websocket:notify"): _unexpected,
        (StreamState.WAITING, "websocket:cleared"): _unexpected,
        (StreamState.WAITING, "websocket:disconnected"): _disconnected,
        (StreamState.STREAMING, "websocket:connected"): _connected_again,
        (StreamState.STREAMING, "websocket:dtmf"): _dtmf,
        (StreamState.STREAMING, "websocket:notify"): _notified,
        (StreamState.STREAMING, "websocket:cleared"): _cleared,
        (StreamState.STREAMING, "websocket:disconnected"): _disconnected,
    }
