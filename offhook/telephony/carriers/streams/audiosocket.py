"""Asterisk's AudioSocket: the sound of one call over one TCP connection, without a WebSocket.

Asterisk connects, says which call it is (a UUID that its dial plan made up) and sends sound; each
frame has one byte of kind, two of length (big-endian) and the payload. Either end may end the call
with a frame of kind 0, or close the connection. That is all there is: nothing tells who calls, and
sound once sent can neither be taken back nor asked after. Asterisk hands it on as it comes, so it
has to be sent in time, little ahead. It also wants sound all the time: the dial plan's application
gives up after 2 s in which neither end sent any, and a channel that once began to read waits in
there, and sends nothing, until something comes.

How sound is sampled is not said at the start but in the kind of each frame. The application speaks
8 kHz; the channel driver what its dial string asks for, and drops what comes in another rate. So
the first sound that comes decides for both directions. Asterisk before 20.17, 22.7 and 23.1 knows
only kind 0x10 and uses it whatever the rate: there the dial string has to say c(slin).

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
    Event,
    Format,
    Message,
    Pressed,
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
"""Hz, by the kind of a frame of sound: 16-bit PCM, mono, little-endian."""
HEADER = struct.Struct(">BH")
UUID_BYTES = 16
FIRST_SOUND_MS = 1000
"""For the first sound after the UUID. A caller who is silent may bring none: then it is 8 kHz."""
MAX_MALFORMED = 100
"""Frames that mean nothing; with more it is no AudioSocket that we hear."""
MAX_SOUND_BYTES = 65534
"""In one frame of ours: the most whole samples that its length can say."""
ERRORS = ((0x01, "the caller hung up"), (0x02, "a frame was not handed on"), (0x04, "no memory"))
"""Bits of the code in an error frame."""


def frame(kind: int, payload: bytes = b"") -> bytes:
    return HEADER.pack(kind, len(payload)) + payload


SILENCE = frame(SOUND, bytes(320))
"""20 ms at 8 kHz."""


class _State(Enum):
    WAITING = auto()
    """For the UUID."""
    IDENTIFIED = auto()
    """No sound has come yet."""
    STREAMING = auto()
    STOPPED = auto()


class AudioSocketStream(CarrierStream):
    """One connection of Asterisk's. `receive` takes the bytes of the TCP stream as they come.

    Empty data says that another `packet_ms` passed: while it waits for the first sound the stream
    has to be told of each, since it sends silence meanwhile.
    """

    provider = "audiosocket"
    acknowledges = False
    clears = False
    silence_too = True
    lead_ms = 40

    def __init__(self) -> None:
        self._state = _State.WAITING
        self._buffer = bytearray()
        """Less than one frame: 65 kB at most."""
        self._identity = b""
        self._kind = SOUND
        """Of the sound of this stream."""
        self._waited_ms = 0

    @property
    def started(self) -> bool:
        """It is known which call this is and how it sounds."""
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
                heard += _samples(payload)  # one Sound for all that is there, however it was cut
                continue
            if heard:
                events.append(Sound(bytes(heard)))
                heard.clear()
            events += self._take(kind, payload)
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
        return self._start(SOUND) if self._waited_ms >= FIRST_SOUND_MS else [Answer(SILENCE)]

    def _frames(self) -> Iterator[tuple[int, bytes]]:
        """Those that are whole. The end of the call is, as soon as its header is there."""
        buffer, start = self._buffer, 0
        if self._state is _State.WAITING and buffer[0] != IDENTITY:
            raise CarrierError(f"what came begins with {buffer[0]:#04x}, not with a UUID (0x01)")
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

    def _take(self, kind: int, payload: bytes) -> list[Event]:
        action = self._actions.get((self._state, SOUND if kind in RATES else kind))
        return self._count() if action is None else action(self, kind, payload)

    def _count(self) -> list[Event]:
        self.malformed += 1
        if self.malformed > MAX_MALFORMED:
            raise CarrierError(f"{self.malformed} frames came that AudioSocket does not have")
        return []

    def _identify(self, kind: int, payload: bytes) -> list[Event]:
        self._identity = payload
        self._state = _State.IDENTIFIED
        return [Answer(SILENCE)]

    def _identify_again(self, kind: int, payload: bytes) -> list[Event]:
        if payload != self._identity:
            raise CarrierError("a second UUID came on the same connection")
        return self._count()

    def _first_sound(self, kind: int, payload: bytes) -> list[Event]:
        samples = _samples(payload)
        return [*self._start(kind), Sound(samples)] if samples else self._count()

    def _start(self, kind: int) -> list[Event]:
        if RATES[kind] not in l16.RATES:
            raise CarrierError(
                f"Asterisk sends {RATES[kind]} Hz, which is not understood: the dial string must "
                "ask for another format, as c(slin16)"
            )
        self._kind = kind
        self._state = _State.STREAMING
        identity = str(UUID(bytes=self._identity))
        coding = Format("l16", RATES[kind])
        return [Started(identity, identity, coding, coding)]

    def _sound(self, kind: int, payload: bytes) -> list[Event]:
        """Sound that is empty, or in another rate."""
        if kind == self._kind or not payload:
            return self._count()
        raise CarrierError(
            f"Asterisk went from {RATES[self._kind]} to {RATES[kind]} Hz within the call"
        )

    def _press(self, kind: int, payload: bytes) -> list[Event]:
        digit = payload.decode("latin-1").upper()
        return [Pressed(digit)] if digit in DIGITS else self._count()

    def _terminate(self, kind: int, payload: bytes) -> list[Event]:
        self._state = _State.STOPPED
        return [Stopped(End.ASTERISK_HUNG_UP)]

    def _error(self, kind: int, payload: bytes) -> list[Event]:
        self._state = _State.STOPPED
        code = payload[0] if payload else 0
        said = ", ".join(text for bit, text in ERRORS if code & bit) or f"error {code}"
        return [Stopped(f"Asterisk gave up: {said}")]

    # What is not in the table is counted. Before the UUID nothing else gets here.
    _actions: ClassVar[Mapping[tuple[_State, int], Callable[["Any", int, bytes], list[Event]]]] = {
        (_State.WAITING, IDENTITY): _identify,
        (_State.IDENTIFIED, IDENTITY): _identify_again,
        (_State.IDENTIFIED, SOUND): _first_sound,
        (_State.IDENTIFIED, DTMF): _press,
        (_State.IDENTIFIED, TERMINATE): _terminate,
        (_State.IDENTIFIED, ERROR): _error,
        (_State.STREAMING, IDENTITY): _identify_again,
        (_State.STREAMING, SOUND): _sound,
        (_State.STREAMING, DTMF): _press,
        (_State.STREAMING, TERMINATE): _terminate,
        (_State.STREAMING, ERROR): _error,
    }


def _samples(payload: bytes) -> bytes:
    """Whole ones."""
    return payload if len(payload) % 2 == 0 else payload[:-1]
