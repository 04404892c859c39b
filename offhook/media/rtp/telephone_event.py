"""DTMF as RTP telephone events (RFC 4733), received and sent.

A digit is several packets with one timestamp, that of its beginning, each giving the duration so
far. Any one of them identifies the digit, so it is lost only if all of them are.
"""

import struct
from collections import deque
from typing import NamedTuple

from offhook.media.dtmf import DIGITS, TONE_TICKS, DtmfTick
from offhook.media.pcm import PACKET_MS
from offhook.media.rtp.rtp import RtpPacket, uint32_add, uint32_diff

END = 0x80
"""The end bit, beside the volume (RFC 4733 §2.3.3)."""
VOLUME = 10
"""Power level of the digits we send, in -dBm0."""
END_PACKETS = 3
"""How often the final packet of an event is sent (RFC 4733 §2.5.1.4)."""
MAX_DURATION = 0xFFFF
"""Longest duration one packet can give, in timestamp units; a longer event is sent in segments of
this length (RFC 4733 §2.5.1.3), every 1.4 s at 48 kHz."""
MIN_SEGMENT = 0x8000
"""Shortest duration of a segment, in timestamp units, that may end before MAX_DURATION. Separate
digits follow one another faster."""
MAX_EVENTS = 8
"""Maximum events read from one packet, of which few senders pack even two; further ones are
ignored, as one datagram could hold 500 digits to report."""
MAX_REMEMBERED_PRESSES = 16
"""Digits remembered because their packets may arrive late or twice; the oldest are forgotten, and
would be reported again."""

_EVENT = struct.Struct("!BBH")


class _Press(NamedTuple):
    ssrc: int
    timestamp: int
    event: int


class EventReceiver:
    """Turns telephone-event packets, in any order, into digits. Volumes are ignored, and durations
    are used only to recognize segments: senders get them wrong."""

    def __init__(self) -> None:
        self._presses: deque[_Press] = deque(maxlen=MAX_REMEMBERED_PRESSES)
        self._in_progress: _Press | None = None
        """The last segment of the digit whose end has not arrived."""
        self._duration = 0
        """Its longest duration received so far, in timestamp units."""

    def receive(self, packet: RtpPacket) -> str:
        """Return the digits that this packet is the first to report: usually none or one; several
        only from a sender that packs short events together (RFC 4733 §2.5.1.5). Never raises."""
        digits = ""
        timestamp = packet.timestamp
        payload = packet.payload
        size = min(len(payload) // _EVENT.size, MAX_EVENTS) * _EVENT.size
        for event, flags, duration in _EVENT.iter_unpack(payload[:size]):
            if event < len(DIGITS):
                press = _Press(packet.ssrc, timestamp, event)
                digits += self._new_digit(press, packet.marker)
                self._follow(press, bool(flags & END), duration)
            if not flags & END:
                break
            timestamp = uint32_add(timestamp, duration)
        return digits

    def _new_digit(self, press: _Press, marker: bool) -> str:
        if press in self._presses:
            return ""
        continues = not marker and self._is_segment(press)
        self._presses.append(press)
        self._in_progress, self._duration = press, 0
        return "" if continues else DIGITS[press.event]

    def _follow(self, press: _Press, ended: bool, duration: int) -> None:
        if press == self._in_progress:
            self._duration = max(self._duration, duration)
            if ended:
                self._in_progress = None

    def _is_segment(self, press: _Press) -> bool:
        """Whether the event is a later segment of the digit in progress."""
        down = self._in_progress
        if down is None or (down.ssrc, down.event) != (press.ssrc, press.event):
            return False
        ahead = uint32_diff(press.timestamp, down.timestamp)
        if ahead <= 0:
            return False
        return ahead % MAX_DURATION == 0 or ahead == self._duration >= MIN_SEGMENT


class EventPacket(NamedTuple):
    """The fields of a telephone-event RTP packet that differ from the audio stream's."""

    timestamp: int
    payload: bytes
    marker: bool


class EventSender:
    """Turns DTMF digits into telephone-event packets with durations in units of 1/`clock_rate`
    s."""

    def __init__(self, clock_rate: int) -> None:
        self._step = clock_rate * PACKET_MS // 1000
        self._began = 0

    def tick(self, key: DtmfTick, timestamp: int) -> EventPacket | None:
        """Return the packet of this tick, which begins at `timestamp` of the audio stream; None
        once the end has been sent often enough."""
        if key.tick == 0:
            self._began = timestamp
        if key.tick >= TONE_TICKS - 1 + END_PACKETS:
            return None
        end = END if key.tick >= TONE_TICKS - 1 else 0
        duration = min(key.tick + 1, TONE_TICKS) * self._step
        payload = _EVENT.pack(DIGITS.index(key.digit), end | VOLUME, duration)
        return EventPacket(self._began, payload, key.tick == 0)
