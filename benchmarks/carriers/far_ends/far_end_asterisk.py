"""Far ends of Asterisk: AudioSocket over TCP, and chan_websocket.

Documents, as `[...]` beside each behaviour:

    [as]  docs.asterisk.org/Configuration/Channel-Drivers/AudioSocket
    [cw]  docs.asterisk.org/Configuration/Channel-Drivers/WebSocket
    [cw-c] asterisk/asterisk, channels/chan_websocket.c
"""

import struct
import uuid
from typing import Any, ClassVar

import numpy as np

from benchmarks.carriers.far_ends.far_end import CallFacts, Encoding, FarEnd, Message
from offhook.media.pcm import PACKET_MS


class AudioSocket(FarEnd):
    """[as]: bytes of a TCP stream. What comes is played; nothing can be taken back."""

    provider = "audiosocket"
    encodings = ("l16",)
    rates = (8_000, 16_000, 24_000, 48_000)
    jitter_ms = 0
    room_ms = 500
    """Asterisk passes sound on as it comes; more than this the phone behind it drops (assumed)."""
    KINDS: ClassVar[dict[int, int]] = {8_000: 0x10, 16_000: 0x12, 24_000: 0x13, 48_000: 0x16}
    HANG_UP, UUID, DTMF, ERROR = 0x00, 0x01, 0x03, 0xFF

    def __init__(self, facts: CallFacts | None = None, **options: Any) -> None:
        call = "40325ec2-5efd-4bd3-805f-53576e581d13"
        super().__init__(facts or CallFacts(call, call), **options)
        self._bytes = b""

    def _start(self, now: float) -> None:
        self._packet(self.UUID, uuid.UUID(self.facts.call_id).bytes)

    def _packet(self, kind: int, payload: bytes = b"") -> None:
        self._out.append(struct.pack("!BH", kind, len(payload)) + payload)

    def _send_sound(self, payload: bytes) -> None:
        self._packet(self.KINDS[self.rate], payload)

    def receive(self, message: Message, now: float) -> None:
        if isinstance(message, str):
            self._fault("text")
            return
        self._bytes += message
        while self.closed is None and len(self._bytes) >= 3:
            kind, length = struct.unpack_from("!BH", self._bytes)
            if len(self._bytes) < 3 + length:
                return
            payload, self._bytes = self._bytes[3 : 3 + length], self._bytes[3 + length :]
            self._handle(kind, payload, now)

    def _handle(self, kind: int, payload: bytes, now: float) -> None:
        if kind == self.KINDS[self.rate]:
            self._play(payload, now)
        elif kind == self.HANG_UP:
            self.closed = "the application hung up"
        else:
            self._fault(f"a packet of type {kind:#04x}")

    def press(self, digit: str) -> None:
        self._packet(self.DTMF, digit.encode())

    def hang_up(self) -> None:
        self._packet(self.HANG_UP)
        self.closed = "the caller hung up"


class ChanWebSocket(FarEnd):
    """[cw]: commands and events as text, in plain words or JSON; sound as binary, whole frames."""

    provider = "chan_websocket"
    encodings = ("pcmu", "pcma", "l16")
    rates = (8_000, 16_000, 24_000)
    jitter_ms = 0
    """[cw-c]: the next frame goes out with the next tick."""
    NAMES: ClassVar[dict[tuple[Encoding, int], str]] = {
        ("pcmu", 8_000): "ulaw",
        ("pcma", 8_000): "alaw",
        ("l16", 8_000): "slin",
        ("l16", 16_000): "slin16",
        ("l16", 24_000): "slin24",
    }
    XOFF_FRAMES, XON_FRAMES, MOST_FRAMES = 900, 800, 1_000
    MOST_BYTES = 65_500

    def __init__(self, facts: CallFacts | None = None, plain: bool = False, **options: Any) -> None:
        super().__init__(facts or CallFacts("e226e283-c90a-4ea9-9e37-389000b9ef47"), **options)
        self._plain = plain
        self._full = False
        self._buffering = False
        self._left = b""
        self._report_drained = False
        self._frame_bytes = self.player.frame * (2 if self.encoding == "l16" else 1)

    def _start(self, now: float) -> None:
        facts = self.facts
        self._event(
            "MEDIA_START",
            connection_id=facts.stream_id,
            channel=f"WebSocket/{facts.stream_id}",
            channel_id=facts.call_id,
            format=self.NAMES[self.encoding, self.rate],
            optimal_frame_size=self._frame_bytes,
            ptime=PACKET_MS,
            **({} if self._plain else {"channel_variables": dict(facts.parameters)}),
        )

    def _event(self, event: str, **more: Any) -> None:
        if self._plain:
            words = [event, *(f"{name}:{value}" for name, value in more.items())]
            self._out.append(" ".join(words))
        else:
            self._send({"event": event, **more})

    def _of_channel(self, event: str, **more: Any) -> None:
        """In plain words only some events tell the channel [cw]."""
        self._event(event, **({} if self._plain else {"channel_id": self.facts.call_id}), **more)

    def _send_sound(self, payload: bytes) -> None:
        self._out.append(payload)

    @property
    def _frames(self) -> int:
        return self.player.queued // self.player.frame

    def tick(self, due: float) -> None:
        """[cw-c]: XON is looked for before a frame is taken, drained when there is none."""
        if self._full and not self.player.paused and self._frames < self.XON_FRAMES:
            self._full = False
            self._of_channel("MEDIA_XON")
        super().tick(due)
        if self._report_drained and not self.player.sounding and not self.player.paused:
            self._report_drained = False
            self._of_channel("QUEUE_DRAINED")

    def receive(self, message: Message, now: float) -> None:
        if self.closed is not None:
            return
        if len(message) > self.MOST_BYTES:
            self._fault("a message of more than 65500 bytes")
            self.closed = "a message too long"
        elif isinstance(message, bytes):
            self._sound(message, now)
        else:
            self._command(message, now)

    def _sound(self, payload: bytes, now: float) -> None:
        """[cw-c]: what is no whole frame is kept while buffering, else dropped."""
        if self._frames >= self.MOST_FRAMES:
            self._fault("sound when the queue was full")
            return
        payload = self._left + payload if self._buffering else payload
        whole = len(payload) // self._frame_bytes * self._frame_bytes
        self._left = payload[whole:] if self._buffering else b""
        if whole < len(payload) and not self._buffering:
            self._fault("sound that is not whole frames")
        if whole:
            self._play(payload[:whole], now)
        if not self._full and self._frames >= self.XOFF_FRAMES:
            self._full = True
            self._of_channel("MEDIA_XOFF")

    def _command(self, message: str, now: float) -> None:
        correlation: Any
        if self._plain:
            command, _, correlation = message.strip().partition(" ")
        else:
            read = self._read(message)
            if read is None:
                return
            command, correlation = str(read.get("command")), read.get("correlation_id", "")
        match command:
            case "ANSWER":
                pass
            case "HANGUP":
                self.closed = "the application hung up"
            case "START_MEDIA_BUFFERING":
                self._buffering = True
            case "STOP_MEDIA_BUFFERING":
                self._stop_buffering(str(correlation), now)
            case "FLUSH_MEDIA":
                # [cw-c]: marks in the queue go with it, and nobody is told.
                self.player.clear()
                self.player.paused = self._buffering = False
                self._left = b""
            case "PAUSE_MEDIA" | "CONTINUE_MEDIA":
                self.player.paused = command == "PAUSE_MEDIA"
            case "MARK_MEDIA":
                self._mark(f"MEDIA_MARK_PROCESSED {correlation}")
            case "REPORT_QUEUE_DRAINED":
                self._report_drained = True
            case "GET_STATUS":
                self._status()
            case _:
                self._fault(f"unknown command {command}")

    def _stop_buffering(self, correlation: str, now: float) -> None:
        """What makes no whole frame is filled up with silence [cw]."""
        if left := self._left:
            silence = self.encode(np.zeros(self.player.frame, np.int16))
            self._play(left + silence[len(left) :], now)
        self._buffering, self._left = False, b""
        self._mark(f"MEDIA_BUFFERING_COMPLETED {correlation}")

    def _status(self) -> None:
        self._event(
            "STATUS",
            **({} if self._plain else {"channel_id": self.facts.call_id}),
            queue_length=self._frames,
            xon_level=self.XON_FRAMES,
            xoff_level=self.XOFF_FRAMES,
            queue_full=self._full,
            bulk_media=self._buffering,
            media_paused=self.player.paused,
        )

    def _send_mark(self, name: str) -> None:
        event, _, correlation = name.partition(" ")
        if self._plain:
            self._out.append(f"{event} {correlation}".strip())
        else:
            self._of_channel(event, correlation_id=correlation)

    def press(self, digit: str) -> None:
        self._of_channel("DTMF_END", digit=digit)

    def hang_up(self) -> None:
        self.closed = "the caller hung up"
