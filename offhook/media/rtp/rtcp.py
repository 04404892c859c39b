"""RTCP of one voice call (RFC 3550 §6): what we report of the sound we get, what the far end
reports of ours, and the round trip time from both.

Sans-io: datagrams and `now` (monotonic seconds) go in, events and datagrams come out. The wall
clock appears only in sender reports and is an argument too; the round trip is measured on `now`,
so a wall clock that is set during the call does no harm.
"""

import random
import struct
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from aiortc.rtp import (
    RTCP_BYE,
    RTCP_RR,
    RTCP_SR,
    RtcpByePacket,
    RtcpReceiverInfo,
    RtcpRrPacket,
    RtcpSdesPacket,
    RtcpSenderInfo,
    RtcpSourceInfo,
    RtcpSrPacket,
    clamp_packets_lost,
)

REPORT_INTERVAL_S = 1.6
"""Mean time between reports; each is drawn from half to one and a half of it, 0.8 .. 2.4 s, so
that calls do not report in step (RFC 3550 §6.3.1). Some 100 bytes every 1.6 s are 0.5 kb/s: within
the 5 % that RFC 3550 §6.2 gives RTCP, even of a 16 kb/s call."""
SENT_REPORTS_KEPT = 16
"""Sender reports that a late answer can still be matched with: half a minute of them."""
MAX_DROPOUT = 3000
MAX_MISORDER = 100
"""Packets ahead or behind that still belong to the same run of numbers (RFC 3550 A.1)."""
MAX_JITTER_STEP_S = 5.0
"""A greater step between two transit times is a sender that set its clock, not jitter."""

NTP_EPOCH_OFFSET_S = 2_208_988_800
"""1900 to 1970 (RFC 5905 §6)."""
SDES_CNAME = 1
SENDER_INFO_BYTES = 20
REPORT_BLOCK_BYTES = 24
UINT32 = 0xFFFF_FFFF


class RtcpError(ValueError):
    """A datagram is not valid RTCP."""


@dataclass(frozen=True)
class RemoteReport:
    """How the far end gets our sound (RFC 3550 §6.4.1)."""

    fraction_lost: float
    """0..1, since its previous report."""
    packets_lost: int
    """Since the start; negative when it got duplicates."""
    jitter_ms: float
    round_trip_ms: float | None
    """None when it has not answered a sender report of ours yet."""


@dataclass(frozen=True)
class Bye:
    """The far end ends its stream (RFC 3550 §6.6)."""

    ssrc: int


@dataclass(frozen=True)
class Sent:
    """What we have sent so far, and the RTP timestamp of the present instant."""

    packets: int
    octets: int
    """Of payload, without headers."""
    rtp_timestamp: int


class ReceptionStatistics:
    """What arrived of one SSRC (RFC 3550 A.1, A.3, A.8)."""

    def __init__(self, ssrc: int, clock_rate: int) -> None:
        self.ssrc = ssrc
        self.received = 0
        """Packets, duplicates included."""
        self.jitter = 0.0
        """Interarrival jitter in timestamp units."""
        self._clock_rate = clock_rate
        self._base = 0
        self._cycles = 0
        self._max_sequence = -1
        self._bad_sequence = -1
        self._last: tuple[int, float] | None = None
        self._expected_prior = 0
        self._received_prior = 0

    def use_clock(self, clock_rate: int) -> None:
        """Timestamps count at another rate from now on (RFC 7160 §4.2): no transit is measured
        across the change."""
        self.jitter *= clock_rate / self._clock_rate
        self._clock_rate = clock_rate
        self._last = None

    def receive(self, sequence_number: int, timestamp: int | None, now: float) -> None:
        """Count one packet: 16-bit sequence number, 32-bit timestamp, arrival in seconds. None
        for a timestamp that is not the instant of sending, as of telephone events (RFC 4733
        §2.5.1.2): it says nothing of jitter."""
        if self._max_sequence < 0:
            self._start(sequence_number)
        elif not self._advance(sequence_number):
            return
        self.received += 1
        if timestamp is not None:
            self._update_jitter(timestamp, now)

    def _start(self, sequence_number: int) -> None:
        self._base = self._max_sequence = sequence_number
        self._cycles = self.received = self._expected_prior = self._received_prior = 0
        self._bad_sequence = -1
        self._last = None

    def _advance(self, sequence_number: int) -> bool:
        """Follow the sequence number; False for a stray packet that is not counted (A.1)."""
        ahead = (sequence_number - self._max_sequence) & 0xFFFF
        if ahead < MAX_DROPOUT:
            self._cycles += 0x10000 if sequence_number < self._max_sequence else 0
            self._max_sequence = sequence_number
        elif ahead <= 0x10000 - MAX_MISORDER:
            if sequence_number != self._bad_sequence:
                self._bad_sequence = (sequence_number + 1) & 0xFFFF
                return False
            # Two in a row far from the rest: the sender started anew.
            self._start(sequence_number)
        return True

    def _update_jitter(self, timestamp: int, now: float) -> None:
        if self._last is None:
            self._last = timestamp, now
            return
        last_timestamp, last_now = self._last
        # A packet that shares the last one's timestamp was not sent when it was sampled.
        if timestamp == last_timestamp:
            return
        self._last = timestamp, now
        elapsed = (timestamp - last_timestamp + 0x8000_0000 & UINT32) - 0x8000_0000
        step = abs((now - last_now) * self._clock_rate - elapsed)
        if step < MAX_JITTER_STEP_S * self._clock_rate:
            self.jitter += (step - self.jitter) / 16

    @property
    def highest_sequence(self) -> int:
        """Extended highest sequence number received; 0 before the first packet."""
        return self._cycles + max(self._max_sequence, 0)

    @property
    def expected(self) -> int:
        return self._cycles + self._max_sequence - self._base + 1 if self.received else 0

    @property
    def lost(self) -> int:
        """Packets lost since the start; negative when duplicates outnumber them."""
        return self.expected - self.received

    @property
    def jitter_ms(self) -> float:
        return self.jitter * 1000 / self._clock_rate

    def take_fraction_lost(self) -> int:
        """Loss since this was last called, in 1/256 (A.3)."""
        expected = self.expected - self._expected_prior
        lost = expected - (self.received - self._received_prior)
        self._expected_prior, self._received_prior = self.expected, self.received
        return min(256 * lost // expected, 255) if expected > 0 and lost > 0 else 0


class RtcpSession:
    """Both directions of RTCP for one stream out and one stream in.

    `clock_rate` in Hz is that of the RTP timestamps, both ways to begin with. `uniform` gives a
    float in [0, 1)."""

    def __init__(
        self,
        ssrc: int,
        cname: str,
        clock_rate: int,
        now: float,
        uniform: Callable[[], float] = random.random,
    ) -> None:
        self._cname = cname.encode()[:255]
        self.reception: ReceptionStatistics | None = None
        """Of the stream that came last; None before the first packet."""
        self._uniform = uniform
        # (SSRC of the sender report, its middle 32 bits of NTP time, when it came)
        self._heard_report: tuple[int, int, float] | None = None
        self._sent_reports: deque[tuple[int, float]] = deque(maxlen=SENT_REPORTS_KEPT)
        self._packets_reported: deque[int] = deque([0, 0], maxlen=2)
        self._clock_rate_in = clock_rate
        self.change_source(ssrc, clock_rate)
        # The first report comes after half the interval (RFC 3550 §6.2).
        self._due = now + self._interval() / 2

    def _interval(self) -> float:
        return REPORT_INTERVAL_S * (0.5 + self._uniform())

    def get_timer(self) -> float:
        """When `reports_to_send` is next due, in the seconds of `now`."""
        return self._due

    def change_source(self, ssrc: int, clock_rate: int) -> None:
        """What we send goes on as another stream, under the same name (RFC 3550 §6.5.1)."""
        self.ssrc = ssrc
        self._clock_rate = clock_rate
        name = [(SDES_CNAME, self._cname)]
        self._description = bytes(RtcpSdesPacket(chunks=[RtcpSourceInfo(ssrc=ssrc, items=name)]))
        self._sent_reports.clear()
        self._packets_reported.extend((0, 0))

    def use_clock(self, clock_rate: int) -> None:
        """What we get counts its timestamps at this rate, in Hz, from now on."""
        self._clock_rate_in = clock_rate
        if self.reception is not None:
            self.reception.use_clock(clock_rate)

    def receive_rtp(
        self, ssrc: int, sequence_number: int, timestamp: int | None, now: float
    ) -> None:
        """Count an RTP packet that arrived; without a timestamp as `ReceptionStatistics` does.
        Another SSRC is another stream: counting begins anew, as after a transfer at the far
        end."""
        reception = self.reception
        if reception is None or reception.ssrc != ssrc:
            reception = self.reception = ReceptionStatistics(ssrc, self._clock_rate_in)
        reception.receive(sequence_number, timestamp, now)

    def receive(self, data: bytes, now: float) -> list[RemoteReport | Bye]:
        """Take one RTCP datagram, compound or of reduced size (RFC 5506). Packets of other types
        than sender report, receiver report and goodbye are skipped. Raises RtcpError."""
        events: list[RemoteReport | Bye] = []
        for packet in _parse(data):
            if isinstance(packet, RtcpByePacket):
                events += self._byes(packet.sources)
                continue
            if isinstance(packet, RtcpSrPacket):
                middle = packet.sender_info.ntp_timestamp >> 16 & UINT32
                self._heard_report = packet.ssrc, middle, now
            events += self._remote_reports(packet.reports, now)
        return events

    def _remote_reports(self, blocks: list[RtcpReceiverInfo], now: float) -> Iterator[RemoteReport]:
        for block in blocks:
            if block.ssrc == self.ssrc:
                yield RemoteReport(
                    fraction_lost=block.fraction_lost / 256,
                    packets_lost=block.packets_lost,
                    jitter_ms=block.jitter * 1000 / self._clock_rate,
                    round_trip_ms=self._round_trip_ms(block, now),
                )

    def _round_trip_ms(self, block: RtcpReceiverInfo, now: float) -> float | None:
        """RFC 3550 §6.4.1, with our own record of when the quoted report left."""
        for middle, sent_at in self._sent_reports:
            if block.lsr == middle:
                return max(0.0, now - sent_at - block.dlsr / 65536) * 1000
        return None

    def _byes(self, sources: list[int]) -> Iterator[Bye]:
        """A goodbye of a stream that another has replaced ends nothing."""
        for ssrc in sources:
            if self.reception is None or ssrc == self.reception.ssrc:
                yield Bye(ssrc)

    def reports_to_send(self, now: float, wall_time: float, sent: Sent) -> bytes | None:
        """The compound packet that is due, None when none is: a sender report when packets went
        out since the report before the last (RFC 3550 §6.4), else a receiver report, then CNAME.

        `wall_time` is seconds since 1970 (UTC) at the same instant as `now`."""
        if now < self._due:
            return None
        self._due = now + self._interval()
        is_sender = sent.packets > self._packets_reported[0]
        self._packets_reported.append(sent.packets)
        blocks = self._report_blocks(now)
        if not is_sender:
            return bytes(RtcpRrPacket(ssrc=self.ssrc, reports=blocks)) + self._description
        ntp = int((wall_time + NTP_EPOCH_OFFSET_S) * (1 << 32)) & 0xFFFF_FFFF_FFFF_FFFF
        self._sent_reports.append((ntp >> 16 & UINT32, now))
        info = RtcpSenderInfo(
            ntp_timestamp=ntp,
            rtp_timestamp=sent.rtp_timestamp & UINT32,
            packet_count=sent.packets & UINT32,
            octet_count=sent.octets & UINT32,
        )
        report = RtcpSrPacket(ssrc=self.ssrc, sender_info=info, reports=blocks)
        return bytes(report) + self._description

    def _report_blocks(self, now: float) -> list[RtcpReceiverInfo]:
        reception = self.reception
        if reception is None or not reception.received:
            return []
        lsr = dlsr = 0
        if self._heard_report is not None and self._heard_report[0] == reception.ssrc:
            _, lsr, heard_at = self._heard_report
            dlsr = min(int((now - heard_at) * 65536), UINT32)
        return [
            RtcpReceiverInfo(
                ssrc=reception.ssrc,
                fraction_lost=reception.take_fraction_lost(),
                packets_lost=clamp_packets_lost(reception.lost),
                highest_sequence=reception.highest_sequence & UINT32,
                jitter=min(int(reception.jitter), UINT32),
                lsr=lsr,
                dlsr=dlsr,
            )
        ]

    def bye(self, now: float) -> bytes:
        """The last compound packet: report, CNAME, goodbye (RFC 3550 §6.3.7)."""
        report = RtcpRrPacket(ssrc=self.ssrc, reports=self._report_blocks(now))
        return bytes(report) + self._description + bytes(RtcpByePacket(sources=[self.ssrc]))


def _parse(data: bytes) -> list[RtcpSrPacket | RtcpRrPacket | RtcpByePacket]:
    """All packets of a datagram that say something to us, or RtcpError and none of them."""
    packets: list[RtcpSrPacket | RtcpRrPacket | RtcpByePacket] = []
    for packet_type, count, body in _split(data):
        if packet_type == RTCP_SR:
            length = 4 + SENDER_INFO_BYTES + REPORT_BLOCK_BYTES * count
            packets.append(RtcpSrPacket.parse(_prefix(body, length), count))
        elif packet_type == RTCP_RR:
            length = 4 + REPORT_BLOCK_BYTES * count
            packets.append(RtcpRrPacket.parse(_prefix(body, length), count))
        elif packet_type == RTCP_BYE:
            packets.append(RtcpByePacket.parse(_prefix(body, 4 * count), count))
    return packets


def _split(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Packets of a datagram as (type, count, body without header and padding) (RFC 3550 §6.1)."""
    if not data:
        raise RtcpError("RTCP datagram is empty")
    position = 0
    while position < len(data):
        if len(data) - position < 4:
            raise RtcpError("RTCP header is truncated")
        first, packet_type, words = struct.unpack_from("!BBH", data, position)
        if first >> 6 != 2:
            raise RtcpError(f"RTCP version is {first >> 6}, not 2")
        end = position + 4 + 4 * words
        if end > len(data):
            raise RtcpError("RTCP packet is truncated")
        body = data[position + 4 : end]
        if first & 0x20:
            if not body or not 0 < body[-1] <= len(body):
                raise RtcpError("RTCP padding is longer than its packet")
            body = body[: -body[-1]]
        yield packet_type, first & 0x1F, body
        position = end


def _prefix(body: bytes, length: int) -> bytes:
    """A packet without what may follow its counted part: profile-specific extensions of a report
    (RFC 3550 §6.4.3), the reason of a goodbye (§6.6). aiortc takes no longer ones."""
    if len(body) < length:
        raise RtcpError("RTCP packet is shorter than its count says")
    return body[:length]
