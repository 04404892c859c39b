"""Key presses as RTP packets beside the sound (RFC 4733): read, and written.

A press is several packets of one timestamp, that of its beginning, each telling how long it has
lasted so far. Any one of them tells the key, so a press is heard unless all of them are lost.
"""

import struct
from collections import deque
from typing import NamedTuple

from offhook.media.dtmf import DIGITS, TONE_TICKS, KeyTick
from offhook.media.pcm import PACKET_MS
from offhook.media.rtp.rtp import RtpPacket, uint32_add, uint32_diff

END = 0x80
"""The bit beside the volume that ends an event (RFC 4733 §2.3.3)."""
VOLUME = 10
"""-dBm0 of the keys we press; receivers make the tone of it, if they want one."""
END_PACKETS = 3
"""Times that the last packet of an event is sent (RFC 4733 §2.5.1.4)."""
MAX_DURATION = 0xFFFF
"""Ticks of the clock that one packet can tell of; a longer event is told in segments of this
length (RFC 4733 §2.5.1.3). At 48 kHz that is every 1.4 s."""
LEAST_SEGMENT = 0x8000
"""Ticks of a segment that ends with its sender's last packet before MAX_DURATION is reached.
Presses follow one another faster."""
MAX_EVENTS = 8
"""Looked at in one packet. Hardly any sender packs even two; without a limit one datagram could be
500 presses, each of which somebody has to hear of."""
REMEMBERED = 16
"""Presses whose packets may still come, late or twice; the oldest are forgotten."""

_EVENT = struct.Struct("!BBH")


class _Press(NamedTuple):
    ssrc: int
    timestamp: int
    event: int


class EventReceiver:
    """Packets of telephone events, in whatever order, to the keys pressed.

    Volumes are not looked at, nor durations but for what follows a segment: senders get them
    wrong, and a key is a key."""

    def __init__(self) -> None:
        self._presses: deque[_Press] = deque(maxlen=REMEMBERED)
        self._down: _Press | None = None
        """The last segment of the press whose end has not come."""
        self._duration = 0
        """Ticks that it has been told to last so far."""

    def receive(self, packet: RtpPacket) -> str:
        """The keys that this packet is the first to tell of: one, mostly none, several only of a
        sender that packs short events together (RFC 4733 §2.5.1.5). Never raises."""
        digits = ""
        timestamp = packet.timestamp
        payload = packet.payload
        size = min(len(payload) // _EVENT.size, MAX_EVENTS) * _EVENT.size
        for event, flags, duration in _EVENT.iter_unpack(payload[:size]):
            if event < len(DIGITS):
                press = _Press(packet.ssrc, timestamp, event)
                digits += self._take(press, packet.marker)
                self._follow(press, bool(flags & END), duration)
            if not flags & END:
                break
            timestamp = uint32_add(timestamp, duration)
        return digits

    def _take(self, press: _Press, marker: bool) -> str:
        if press in self._presses:
            return ""
        continues = not marker and self._is_segment(press)
        self._presses.append(press)
        self._down, self._duration = press, 0
        return "" if continues else DIGITS[press.event]

    def _follow(self, press: _Press, ended: bool, duration: int) -> None:
        if press == self._down:
            self._duration = max(self._duration, duration)
            if ended:
                self._down = None

    def _is_segment(self, press: _Press) -> bool:
        """Whether it is the next segment of the press that goes on, or one after that."""
        down = self._down
        if down is None or (down.ssrc, down.event) != (press.ssrc, press.event):
            return False
        ahead = uint32_diff(press.timestamp, down.timestamp)
        if ahead <= 0:
            return False
        return ahead % MAX_DURATION == 0 or ahead == self._duration >= LEAST_SEGMENT


class EventPacket(NamedTuple):
    """What the RTP packet of an event has besides the stream's own numbers."""

    timestamp: int
    payload: bytes
    marker: bool


class EventSender:
    """Key presses to the packets of one stream. `clock_rate` in Hz is what durations count in."""

    def __init__(self, clock_rate: int) -> None:
        self._step = clock_rate * PACKET_MS // 1000
        self._began = 0

    def tick(self, key: KeyTick, timestamp: int) -> EventPacket | None:
        """The packet of these 20 ms, which begin at `timestamp` of the stream of sound; None once
        the end has been told often enough."""
        if key.tick == 0:
            self._began = timestamp
        if key.tick >= TONE_TICKS - 1 + END_PACKETS:
            return None
        end = END if key.tick >= TONE_TICKS - 1 else 0
        duration = min(key.tick + 1, TONE_TICKS) * self._step
        payload = _EVENT.pack(DIGITS.index(key.digit), end | VOLUME, duration)
        return EventPacket(self._began, payload, key.tick == 0)
