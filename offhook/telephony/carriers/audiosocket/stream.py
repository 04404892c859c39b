"""Asterisk's AudioSocket protocol: the audio of one call over one TCP connection.

Asterisk connects, identifies the call (by a UUID made up in its dialplan) and sends audio. Each
frame has one byte of kind, two of length (big-endian) and the payload. Either end may end the call
with a frame of kind 0, or close the connection. Nothing identifies the caller, and audio once sent
can neither be cleared nor acknowledged. Asterisk forwards it as it arrives, so it must be sent in
time, little ahead. It also needs audio continuously: the dialplan application gives up after 2 s in
which neither end sent any, and a channel that has begun to read blocks, sending nothing, until
audio arrives.

The sample rate is given not at the start but by the kind of each frame. The application uses 8 kHz;
the channel driver the rate in its dial string, dropping audio of any other. So the first audio
received sets the format of both directions. Asterisk before 20.17, 22.7 and 23.1 has only kind 0x10
and uses it whatever the rate: its dial string must contain c(slin).

Source: docs.asterisk.org, Channel Drivers, AudioSocket; res_audiosocket.c, app_audiosocket.c and
chan_audiosocket.c of Asterisk 23; for the error codes the README of CyCoreSystems' audiosocket.
"""

import struct
from collections.abc import Callable, Iterator, Mapping
from enum import Enum, auto
from types import MappingProxyType
from typing import Any, ClassVar
from uuid import UUID

from offhook.media.codecs import l16
from offhook.media.end_reason import End
from offhook.telephony.carriers.streams.json_text import DIGITS
from offhook.telephony.carriers.streams.stream import (
    Answer,
    CarrierError,
    CarrierStream,
    DtmfReceived,
    Event,
    Format,
    Message,
    Sound,
    Started,
    Stopped,
)

TERMINATE, IDENTITY, DTMF, SOUND, ERROR = 0x00, 0x01, 0x03, 0x10, 0xFF
RATES: Mapping[int, int] = MappingProxyType(
    {
        0x10: 8000,
        0x11: 12000,
        0x12: 16000,
        0x13: 24000,
        0x14: 32000,
        0x15: 44100,
        0x16: 48000,
        0x17: 96000,
        0x18: 192000,
    }
)
"""Sample rate in Hz by audio frame kind: 16-bit PCM, mono, little-endian."""
HEADER = struct.Struct(">BH")
UUID_BYTES = 16
"""Length of an identity."""
FIRST_SOUND_TIMEOUT_MS = 1000
"""Time limit in ms for the first audio after the UUID; then 8 kHz is assumed."""
MAX_MALFORMED = 100
"""Invalid frames tolerated; with more the connection is closed, as the peer does not speak
AudioSocket."""
MAX_SOUND_BYTES = 65534
"""Maximum bytes of audio in one of our frames, the most whole samples its length field allows; more
is sent in several frames."""
ERRORS = ((0x01, "the caller hung up"), (0x02, "forwarding failed"), (0x04, "out of memory"))
"""Bits of the code in an error frame."""


def frame(kind: int, payload: bytes = b"") -> bytes:
    return HEADER.pack(kind, len(payload)) + payload


SILENCE = frame(SOUND, bytes(320))
"""20 ms at 8 kHz."""


class _State(Enum):
    WAITING = auto()
    """Waiting for the UUID."""
    IDENTIFIED = auto()
    """No audio has arrived yet."""
    STREAMING = auto()
    STOPPED = auto()


class AudioSocketStream(CarrierStream):
    """One AudioSocket connection. `receive` accepts the bytes of the TCP stream as they arrive.

    Empty data means that another `packet_ms` passed; it must be passed in while waiting for the
    first audio, since silence is sent meanwhile.
    """

    provider = "audiosocket"
    acknowledges = False
    clears = False
    needs_silence = True
    lead_ms = 40

    def __init__(self) -> None:
        self._state = _State.WAITING
        self._buffer = bytearray()
        """An incomplete frame: 65 kB at most."""
        self._identity = b""
        self._kind = SOUND
        """Audio frame kind of this stream."""
        self._waited_ms = 0

    @property
    def started(self) -> bool:
        """The call id and audio format are known."""
        return self._state is _State.STREAMING

    def receive(self, data: Message) -> list[Event]:
        if isinstance(data, str):
            raise CarrierError("AudioSocket has no text")
        if self._state is _State.STOPPED:
            return []
        if not data:
            return self._wait()
        self._buffer += data
        events: list[Event] = []
        heard = bytearray()
        for kind, payload in self._frames():
            if kind == self._kind and self._state is _State.STREAMING and payload:
                heard += _samples(payload)  # one Sound for all audio received
                continue
            if heard:
                events.append(Sound(bytes(heard)))
                heard.clear()
            events += self._handle_frame(kind, payload)
        if heard:
            events.append(Sound(bytes(heard)))
        return events

    def sound(self, payload: bytes) -> list[Message]:
        return [
            frame(self._kind, payload[start : start + MAX_SOUND_BYTES])
            for start in range(0, len(payload), MAX_SOUND_BYTES)
        ]

    def hang_up(self, reason: str) -> list[Message]:
        return [frame(TERMINATE)]

    def _wait(self) -> list[Event]:
        if self._state is not _State.IDENTIFIED:
            return []
        self._waited_ms += self.packet_ms
        return (
            self._start(SOUND) if self._waited_ms >= FIRST_SOUND_TIMEOUT_MS else [Answer(SILENCE)]
        )

    def _frames(self) -> Iterator[tuple[int, bytes]]:
        """Yield the complete frames. A TERMINATE frame counts as soon as its header has arrived."""
        buffer, start = self._buffer, 0
        if self._state is _State.WAITING and buffer[0] != IDENTITY:
            raise CarrierError(f"the first frame is {buffer[0]:#04x}, not a UUID (0x01)")
        while self._state is not _State.STOPPED and len(buffer) - start >= HEADER.size:
            kind, length = HEADER.unpack_from(buffer, start)
            if self._state is _State.WAITING and (kind, length) != (IDENTITY, UUID_BYTES):
                raise CarrierError(f"a frame {kind:#04x} of {length} bytes came before the UUID")
            payload_at = start + HEADER.size
            if kind != TERMINATE and len(buffer) < payload_at + length:
                break
            start = payload_at + length
            yield kind, bytes(buffer[payload_at:start])
        del buffer[:start]

    def _handle_frame(self, kind: int, payload: bytes) -> list[Event]:
        action = self._actions.get((self._state, SOUND if kind in RATES else kind))
        return self._count_malformed() if action is None else action(self, kind, payload)

    def _count_malformed(self) -> list[Event]:
        self.malformed += 1
        if self.malformed > MAX_MALFORMED:
            raise CarrierError(f"{self.malformed} invalid AudioSocket frames received")
        return []

    def _identify(self, kind: int, payload: bytes) -> list[Event]:
        self._identity = payload
        self._state = _State.IDENTIFIED
        return [Answer(SILENCE)]

    def _identify_again(self, kind: int, payload: bytes) -> list[Event]:
        if payload != self._identity:
            raise CarrierError("a second UUID came on the same connection")
        return self._count_malformed()

    def _first_sound(self, kind: int, payload: bytes) -> list[Event]:
        samples = _samples(payload)
        return [*self._start(kind), Sound(samples)] if samples else self._count_malformed()

    def _start(self, kind: int) -> list[Event]:
        if RATES[kind] not in l16.RATES:
            raise CarrierError(
                f"Asterisk sends {RATES[kind]} Hz, which is not supported: the dial string must "
                "ask for another format, as c(slin16)"
            )
        self._kind = kind
        self._state = _State.STREAMING
        identity = str(UUID(bytes=self._identity))
        coding = Format("l16", RATES[kind])
        return [Started(identity, identity, coding, coding)]

    def _sound(self, kind: int, payload: bytes) -> list[Event]:
        """Handle audio that is empty or in another rate."""
        if kind == self._kind or not payload:
            return self._count_malformed()
        raise CarrierError(
            f"Asterisk changed from {RATES[self._kind]} to {RATES[kind]} Hz within the call"
        )

    def _dtmf(self, kind: int, payload: bytes) -> list[Event]:
        digit = payload.decode("latin-1").upper()
        return [DtmfReceived(digit)] if digit in DIGITS else self._count_malformed()

    def _terminate(self, kind: int, payload: bytes) -> list[Event]:
        self._state = _State.STOPPED
        return [Stopped(End.ASTERISK_HUNG_UP)]

    def _error(self, kind: int, payload: bytes) -> list[Event]:
        self._state = _State.STOPPED
        code = payload[0] if payload else 0
        said = ", ".join(text for bit, text in ERRORS if code & bit) or f"error {code}"
        return [Stopped(f"Asterisk gave up: {said}")]

    # Anything not in the table is counted as malformed. Before the UUID nothing else arrives here.
    _actions: ClassVar[Mapping[tuple[_State, int], Callable[["Any", int, bytes], list[Event]]]] = {
        (_State.WAITING, IDENTITY): _identify,
        (_State.IDENTIFIED, IDENTITY): _identify_again,
        (_State.IDENTIFIED, SOUND): _first_sound,
        (_State.IDENTIFIED, DTMF): _dtmf,
        (_State.IDENTIFIED, TERMINATE): _terminate,
        (_State.IDENTIFIED, ERROR): _error,
        (_State.STREAMING, IDENTITY): _identify_again,
        (_State.STREAMING, SOUND): _sound,
        (_State.STREAMING, DTMF): _dtmf,
        (_State.STREAMING, TERMINATE): _terminate,
        (_State.STREAMING, ERROR): _error,
    }


def _samples(payload: bytes) -> bytes:
    """Drop an odd trailing byte."""
    return payload if len(payload) % 2 == 0 else payload[:-1]
