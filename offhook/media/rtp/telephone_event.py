"""DTMF as RTP telephone events (RFC 4733), received and sent.

A digit is several packets with one timestamp, that of its beginning, each giving the duration so
far. Any one of them identifies the digit, so it is lost only if all of them are.

Not every sender keeps to that, so timestamp, sequence number and end bit are judged together:

    packet                                               is
    of a known event, timestamp and source               the same digit, unless it is newer and
                                                         begins again, with a marker or a much
                                                         shorter duration
    of the digit in progress, in the next MAX_GAP        the same digit if it ends it, or goes on
    packets, with another timestamp                      where the one before it ends
    of the digit just ended, in the next packets, with   the same digit: its end repeated
    another timestamp and an end bit
    at the end of a full segment of the digit in         the same digit, held (§2.5.1.3)
    progress, without a marker
    anything else                                        another digit
"""

import struct
from collections import deque
from typing import NamedTuple

from offhook.media.pcm import PACKET_MS
from offhook.media.rtp.rtp import RtpPacket, uint32_add, uint32_diff
from offhook.media.telephone_tones.dtmf import DIGITS, TONE_TICKS, DtmfTick

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
MAX_GAP = 4
"""Most packets from one of a digit in progress to its next, if the timestamp is another: a digit
between them would need more, its beginning and the end of the first."""
MAX_GAP_OF_ENDS = 2
"""The same from one end packet to the next."""
MAX_LATE = 1000
"""Packets by which one may be late; a larger difference is a sender that has started again."""
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
    are used only to tell digits and segments apart: senders get them wrong."""

    def __init__(self) -> None:
        self._presses: deque[_Press] = deque(maxlen=MAX_REMEMBERED_PRESSES)
        self._newest: _Press | None = None
        """Of the newest packet."""
        self._sequence_number = 0
        """Of that packet."""
        self._duration = 0
        """The longest duration received of it so far, in timestamp units."""
        self._counts = False
        """Whether its packets have given different durations."""
        self._ended = False
        """Whether its end has been received."""

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
                digits += self._digit(press, packet, bool(flags & END), duration)
            if not flags & END:
                break
            timestamp = uint32_add(timestamp, duration)
        return digits

    def _digit(self, press: _Press, packet: RtpPacket, end: bool, duration: int) -> str:
        gap = self._gap(press, packet)
        known = press in self._presses
        if known:
            begins = gap > 0 and not end and self._begins_again(press, packet.marker, duration)
        else:
            begins = not self._continues(press, packet.marker, end, gap, duration)
            self._presses.append(press)
        if gap >= 0 and (begins or not known or press == self._newest):
            self._remember(press, packet, begins, end, duration)
        return DIGITS[press.event] if begins else ""

    def _gap(self, press: _Press, packet: RtpPacket) -> int:
        """Packets from the newest to this one; negative if it is late."""
        if self._newest is None or self._newest.ssrc != press.ssrc:
            return MAX_GAP + 1
        gap = (packet.sequence_number - self._sequence_number + 0x8000) % 0x10000 - 0x8000
        return gap if abs(gap) <= MAX_LATE else MAX_GAP + 1

    def _begins_again(self, press: _Press, marker: bool, duration: int) -> bool:
        """Whether a newer packet of a known press, without an end bit, is of another digit: the
        sender's clock stands still. One that a relay has numbered in a wrong order has no marker,
        and a duration like the last one's."""
        begins = marker or not self._counts or 2 * duration <= self._duration < MIN_SEGMENT
        if press != self._newest or self._ended:
            return begins
        return duration < self._duration and begins and self._counts

    def _continues(self, press: _Press, marker: bool, end: bool, gap: int, duration: int) -> bool:
        """Whether a packet with an unknown timestamp belongs to the newest digit."""
        newest = self._newest
        if newest is None or (newest.ssrc, newest.event) != (press.ssrc, press.event) or gap <= 0:
            return False
        ahead = uint32_diff(press.timestamp, newest.timestamp)
        if self._ended:
            return end and gap <= MAX_GAP_OF_ENDS and 0 < ahead <= gap * self._duration
        goes_on = 0 < ahead <= gap * self._duration and duration >= self._duration
        if gap <= MAX_GAP and (end or goes_on):
            return True
        whole = ahead > 0 and (ahead % MAX_DURATION == 0 or ahead == self._duration >= MIN_SEGMENT)
        return whole and not marker

    def _remember(
        self, press: _Press, packet: RtpPacket, begins: bool, end: bool, duration: int
    ) -> None:
        same = press == self._newest and not begins
        self._newest, self._sequence_number = press, packet.sequence_number
        self._counts = (same or not begins) and (self._counts or duration != self._duration)
        self._duration = max(self._duration, duration) if same else duration
        self._ended = end or (same and self._ended)


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
