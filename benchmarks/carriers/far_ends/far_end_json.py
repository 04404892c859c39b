"""Far ends that speak JSON with the sound in base64: Twilio, Telnyx, Exotel, Plivo.

Documents, as `[...]` beside each behaviour:

    [tw]  twilio.com/docs/voice/media-streams/websocket-messages
    [tw-31931] twilio.com/docs/api/errors/31931
    [tx]  developers.telnyx.com/api-reference/websockets/stream-call-media-over-websocket
    [ex]  developer.exotel.com/docs/agentstream/websocket-protocol
    [ex-v] developer.exotel.com/docs/agentstream/stream-voicebot-applet
    [ex-s] support.exotel.com, "Working with the Stream and Voicebot Applet" (3000108630)
    [pl]  plivo.com/docs/voice/audio-streaming/audio-streaming
    [pl-c] plivo.com/docs/voice/xml/the-stream-element/checkpoint-event
    [pl-x] docs.plivo.com/docs/voice/xml/audiostream
"""

import base64
import binascii
from abc import abstractmethod
from collections.abc import Mapping
from random import Random
from typing import Any, ClassVar

import numpy as np

from benchmarks.carriers.far_ends.far_end import CallFacts, Encoding, FarEnd, Message
from offhook.media.pcm import PACKET_MS


class JsonFarEnd(FarEnd):
    """What the four have in common: events with a stream's id, sound in media.payload."""

    stream_key: ClassVar[str]
    """Of the stream's id in every message."""
    media_event: ClassVar[str] = "media"
    """The application's, with sound."""
    mark_event: ClassVar[str] = "mark"
    clear_event: ClassVar[str] = "clear"

    def __init__(self, facts: CallFacts | None = None, **options: Any) -> None:
        super().__init__(facts, **options)
        self._sequence = 0
        self._chunk = 0

    def receive(self, message: Message, now: float) -> None:
        read = self._read(message)
        if read is None or self.closed is not None:
            return
        self._check_stream(read)
        event = read.get("event")
        if event == self.media_event:
            self._media(read, now)
        elif event == self.mark_event:
            self._marked(read)
        elif event == self.clear_event:
            self._clear()
        else:
            self._other(str(event), read)

    def _check_stream(self, read: Mapping[str, Any]) -> None:
        if read.get(self.stream_key) != self.facts.stream_id:
            self._fault(f"no {self.stream_key} of this stream")

    def _media(self, read: Mapping[str, Any], now: float) -> None:
        media = read.get("media")
        text = media.get("payload") if isinstance(media, dict) else None
        try:
            payload = base64.b64decode(text or "", validate=True)
        except (binascii.Error, TypeError, ValueError):
            self._fault("a payload that is not base64")
            return
        self._check_media(media if isinstance(media, dict) else {}, payload)
        self._play(payload, now)

    def _check_media(self, media: Mapping[str, Any], payload: bytes) -> None:
        """Count what is wrong with it."""

    def _marked(self, read: Mapping[str, Any]) -> None:
        mark = read.get("mark")
        name = mark.get("name") if isinstance(mark, dict) else None
        if isinstance(name, str):
            self._mark(name)
        else:
            self._fault("a mark without a name")

    def _clear(self) -> None:
        """[tw] [tx]: what is queued is dropped, and the marks in it come back at once."""
        for name in self.player.clear():
            self._send_mark(name)

    def _other(self, event: str, read: Mapping[str, Any]) -> None:
        self._fault(f"unknown event {event}")

    def _next(self) -> int:
        self._sequence += 1
        return self._sequence

    @abstractmethod
    def _send_media(self, payload: str, chunk: int, timestamp: int) -> None: ...

    def _send_sound(self, payload: bytes) -> None:
        self._chunk += 1
        self._send_media(base64.b64encode(payload).decode(), self._chunk, self._heard_ms)


class Twilio(JsonFarEnd):
    """[tw]. Its numbers are strings."""

    provider = "twilio"
    stream_key = "streamSid"
    room_ms = 600_000
    """[tw-31931]: sound beyond ten minutes is discarded."""

    def _event(self, event: str, **more: Any) -> None:
        sequence = str(self._next())
        self._send({"event": event, "sequenceNumber": sequence, **more, "streamSid": self._id})

    @property
    def _id(self) -> str:
        return self.facts.stream_id

    def _start(self, now: float) -> None:
        facts = self.facts
        self._send({"event": "connected", "protocol": "Call", "version": "1.0.0"})
        start = {
            "accountSid": facts.account,
            "streamSid": facts.stream_id,
            "callSid": facts.call_id,
            "tracks": ["inbound"],
            "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1},
            "customParameters": dict(facts.parameters),
        }
        self._event("start", start=start)

    def _send_media(self, payload: str, chunk: int, timestamp: int) -> None:
        numbers = {"chunk": str(chunk), "timestamp": str(timestamp)}
        self._event("media", media={"track": "inbound", **numbers, "payload": payload})

    def _send_mark(self, name: str) -> None:
        self._event("mark", mark={"name": name})

    def press(self, digit: str) -> None:
        """Only bidirectional streams have it [tw]."""
        self._event("dtmf", dtmf={"track": "inbound_track", "digit": digit})

    def hang_up(self) -> None:
        stop = {"accountSid": self.facts.account, "callSid": self.facts.call_id}
        self._event("stop", stop=stop)
        self.closed = "the caller hung up"


class Telnyx(JsonFarEnd):
    """[tx]. Its messages may come in another order than they were sent: `chunk` tells."""

    provider = "telnyx"
    stream_key = "stream_id"
    encodings = ("pcmu", "pcma", "l16")
    rates = (8_000, 16_000, 24_000)
    NAMES: ClassVar[dict[Encoding, str]] = {"pcmu": "PCMU", "pcma": "PCMA", "l16": "L16"}

    def __init__(
        self, facts: CallFacts | None = None, disorder: float = 0.0, **options: Any
    ) -> None:
        """`disorder`: the share of media messages that come one later than the next."""
        super().__init__(facts or CallFacts("32DE0DEA-53CB-4B21-89A4-9E1819C043BC"), **options)
        self._disorder = disorder
        self._chance = Random(1)
        self._held_back: dict[str, Any] | None = None

    def _start(self, now: float) -> None:
        facts = self.facts
        self._send({"event": "connected", "version": "1.0.0"})
        encoding = self.NAMES[self.encoding]
        start = {
            "user_id": facts.account,
            "call_control_id": facts.call_id,
            "call_session_id": "ff55a038-6f5d-11ef-9692-02420aeffb1f",
            "from": facts.caller,
            "to": facts.called,
            "client_state": "",
            "custom_parameters": dict(facts.parameters),
            "media_format": {"encoding": encoding, "sample_rate": self.rate, "channels": 1},
        }
        self._event("start", start=start)

    def _event(self, event: str, **more: Any) -> None:
        self._send(self._message(event, more))

    def _message(self, event: str, more: Mapping[str, Any]) -> dict[str, Any]:
        number = {"sequence_number": str(self._next()), "stream_id": self.facts.stream_id}
        return {"event": event, **number, **more}

    def _check_stream(self, read: Mapping[str, Any]) -> None:
        """The application's messages have no id [tx]."""

    def _check_media(self, media: Mapping[str, Any], payload: bytes) -> None:
        """[tx]: 20 ms to 30 s of sound in a message."""
        ms = 1000 * len(payload) / self.rate / (2 if self.encoding == "l16" else 1)
        if not PACKET_MS <= ms <= 30_000:
            self._fault("sound of less than 20 ms or more than 30 s in a message")

    def _send_media(self, payload: str, chunk: int, timestamp: int) -> None:
        numbers = {"chunk": str(chunk), "timestamp": str(timestamp)}
        message = self._message("media", {"media": {"track": "inbound", **numbers}})
        message["media"]["payload"] = payload
        if self._held_back is None and self._chance.random() < self._disorder:
            self._held_back = message
            return
        self._send(message)
        if self._held_back is not None:
            self._send(self._held_back)
            self._held_back = None

    def _send_mark(self, name: str) -> None:
        self._event("mark", mark={"name": name})

    def press(self, digit: str) -> None:
        self._event("dtmf", dtmf={"digit": digit})

    def hang_up(self) -> None:
        facts = self.facts
        self._event("stop", stop={"user_id": facts.account, "call_control_id": facts.call_id})
        self.closed = "the caller hung up"


class Exotel(JsonFarEnd):
    """[ex]. Its sound comes about every 100 ms."""

    provider = "exotel"
    stream_key = "stream_sid"
    packet_ms = 100
    encodings = ("l16",)
    rates = (8_000, 16_000, 24_000)
    LEAST_MS = 100
    """[ex-v] says 3.2 KB and 100 ms, which is the same at 16 kHz: taken as the time."""
    MOST_BYTES = 100_000
    PIECE_BYTES = 320

    def _start(self, now: float) -> None:
        facts = self.facts
        self._send({"event": "connected"})
        start = {
            "stream_sid": facts.stream_id,
            "call_sid": facts.call_id,
            "account_sid": facts.account,
            "from": facts.caller,
            "to": facts.called,
            "custom_parameters": dict(facts.parameters),
            "media_format": {
                "encoding": "audio/x-raw",
                "sample_rate": str(self.rate),
                "bit_rate": "16",
            },
        }
        self._event("start", start=start)

    def _event(self, event: str, **more: Any) -> None:
        sequence, stream = str(self._next()), self.facts.stream_id
        self._send({"event": event, "sequence_number": sequence, "stream_sid": stream, **more})

    def _check_media(self, media: Mapping[str, Any], payload: bytes) -> None:
        """[ex-v]: 100 ms to 100 KB, a multiple of 320 bytes."""
        if len(payload) * 1000 < 2 * self.rate * self.LEAST_MS:
            self._fault("a chunk of less than 100 ms")
        if len(payload) > self.MOST_BYTES:
            self._fault("a chunk of more than 100 KB")
        if len(payload) % self.PIECE_BYTES:
            self._fault("a chunk that is no multiple of 320 bytes")

    def _play(self, payload: bytes, now: float) -> None:
        """A last piece of less than 320 bytes takes as long as a whole one [ex-s]."""
        super()._play(payload, now)
        if missing := -len(payload) % self.PIECE_BYTES:
            self.player.write(np.zeros(missing // 2, np.int16), now)

    def _clear(self) -> None:
        """Whether marks come back on a clear is not documented; assumed that they do not."""
        self.player.clear()

    def _send_media(self, payload: str, chunk: int, timestamp: int) -> None:
        media = {"chunk": str(chunk), "timestamp": str(timestamp), "payload": payload}
        self._event("media", media=media)

    def _send_mark(self, name: str) -> None:
        self._event("mark", mark={"name": name})

    def press(self, digit: str) -> None:
        self._event("dtmf", dtmf={"digit": digit, "duration": "100"})

    def hang_up(self) -> None:
        facts = self.facts
        stop = {"call_sid": facts.call_id, "account_sid": facts.account, "reason": "callended"}
        self._event("stop", stop=stop)
        self.closed = "the caller hung up"


class Plivo(JsonFarEnd):
    """[pl]. It says no goodbye: the socket closes."""

    provider = "plivo"
    stream_key = "streamId"
    media_event = "playAudio"
    mark_event = "checkpoint"
    clear_event = "clearAudio"
    encodings = ("pcmu", "l16")
    rates = (8_000, 16_000)
    NAMES: ClassVar[dict[Encoding, str]] = {"pcmu": "audio/x-mulaw", "l16": "audio/x-l16"}

    def _start(self, now: float) -> None:
        facts = self.facts
        start = {
            "callId": facts.call_id,
            "streamId": facts.stream_id,
            "accountId": facts.account,
            "tracks": ["inbound"],
            "mediaFormat": {"encoding": self.NAMES[self.encoding], "sampleRate": self.rate},
        }
        headers = ";".join(f"{name}={value}" for name, value in facts.parameters.items())
        number = self._next()
        message = {"event": "start", "sequenceNumber": number, "start": start}
        self._send({**message, "extra_headers": headers})

    def _event(self, event: str, **more: Any) -> None:
        number, stream = self._next(), self.facts.stream_id
        self._send({"sequenceNumber": number, "event": event, "streamId": stream, **more})

    def _check_stream(self, read: Mapping[str, Any]) -> None:
        """A playAudio has none [pl-x]."""
        if read.get("event") != self.media_event:
            super()._check_stream(read)

    def _check_media(self, media: Mapping[str, Any], payload: bytes) -> None:
        kind, rate = media.get("contentType"), media.get("sampleRate")
        if kind != self.NAMES[self.encoding] or str(rate) != str(self.rate):
            self._fault(f"sound as {kind} at {rate}")

    def _marked(self, read: Mapping[str, Any]) -> None:
        name = read.get("name")
        if isinstance(name, str):
            self._mark(name)
        else:
            self._fault("a checkpoint without a name")

    def _clear(self) -> None:
        """What was cleared was not played, so no playedStream tells of it [pl-c]."""
        self.player.clear()
        self._event("clearedAudio")

    def _other(self, event: str, read: Mapping[str, Any]) -> None:
        if event == "sendDTMF" and isinstance(read.get("dtmf"), str):
            self.pressed += read["dtmf"]
        else:
            super()._other(event, read)

    def _send_media(self, payload: str, chunk: int, timestamp: int) -> None:
        media = {"track": "inbound", "timestamp": str(timestamp), "chunk": chunk}
        self._event("media", media={**media, "payload": payload})

    def _send_mark(self, name: str) -> None:
        self._event("playedStream", name=name)

    def press(self, digit: str) -> None:
        self._event("dtmf", dtmf={"track": "inbound", "digit": digit, "timestamp": "0"})

    def hang_up(self) -> None:
        self.closed = "the caller hung up"
