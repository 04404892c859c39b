"""RTCP of one voice call (RFC 3550 §6): our reception reports, the far end's reports on our audio,
and the round-trip time from both.

Sans-io: datagrams and `now` (monotonic seconds) go in, events and datagrams come out. Wall time is
used in sender reports only and is an argument; the round trip is measured on `now`, so setting the
wall clock during a call does no harm.
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

from offhook.media import native

REPORT_INTERVAL_S = 1.6
"""Mean time between reports; each interval is drawn from 0.5 to 1.5 times this, 0.8 .. 2.4 s, so
that calls do not report in step (RFC 3550 §6.3.1). About 100 bytes every 1.6 s are 0.5 kb/s: within
the 5 % that RFC 3550 §6.2 allots to RTCP, even of a 16 kb/s call."""
SENT_REPORTS_KEPT = 16
"""Sender reports remembered for matching late receiver reports: half a minute."""
MAX_DROPOUT = 3000
"""Largest jump forward in sequence numbers (RFC 3550 A.1); after a larger one counting begins
anew."""
MAX_MISORDER = 100
"""Largest jump back in sequence numbers (RFC 3550 A.1); after a larger one, in two packets in a
row, counting begins anew."""
MAX_JITTER_STEP_S = 5.0
"""Largest step in s between two transit times that counts as jitter; after a larger one the sender
has reset its clock, and the step is ignored."""

NTP_EPOCH_OFFSET_S = 2_208_988_800
"""Seconds from 1900 to 1970 (RFC 5905 §6)."""
SDES_CNAME = 1
SENDER_INFO_BYTES = 20
REPORT_BLOCK_BYTES = 24
UINT32 = 0xFFFF_FFFF


class RtcpError(ValueError):
    """A datagram is not valid RTCP."""


@dataclass(frozen=True)
class RemoteReport:
    """The far end's reception report on our audio (RFC 3550 §6.4.1)."""

    fraction_lost: float
    """0..1, since its previous report."""
    packets_lost: int
    """Since the start; negative if it received duplicates."""
    jitter_ms: float
    round_trip_ms: float | None
    """None until it has answered one of our sender reports."""


@dataclass(frozen=True)
class Bye:
    """The far end ended its stream (RFC 3550 §6.6)."""

    ssrc: int


@dataclass(frozen=True)
class SentTotals:
    """Totals for a sender report, and the RTP timestamp of the present instant."""

    packets: int
    octets: int
    """Payload bytes, without headers."""
    rtp_timestamp: int


class ReceptionStatistics:
    """Reception statistics of one SSRC (RFC 3550 A.1, A.3, A.8)."""

    def __init__(self, ssrc: int, clock_rate: int) -> None:
        self.ssrc = ssrc
        self.received = 0
        """Packets received, duplicates included."""
        self.jitter = 0.0
        """Interarrival jitter in timestamp units."""
        self._clock_rate = clock_rate
        self._base = 0
        self._cycles = 0
        self._max_sequence = -1
        self._bad_sequence = -1
        self._last_timestamp = -1
        self._last_at = 0.0
        self._expected_prior = 0
        self._received_prior = 0

    def set_clock_rate(self, clock_rate: int) -> None:
        """Switch to another timestamp rate in Hz (RFC 7160 §4.2). No transit spans the change."""
        self.jitter *= clock_rate / self._clock_rate
        self._clock_rate = clock_rate
        self._last_timestamp = -1

    def receive(self, sequence_number: int, timestamp: int | None, now: float) -> None:
        """Count one packet: 16-bit sequence number, 32-bit timestamp, arrival in seconds. Pass None
        for a timestamp that is not the sampling instant, as of telephone events (RFC 4733
        §2.5.1.2); it is then left out of the jitter."""
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
        self._last_timestamp = -1

    def _advance(self, sequence_number: int) -> bool:
        """Advance to a sequence number. Returns False for a stray packet, not counted (A.1)."""
        ahead = (sequence_number - self._max_sequence) & 0xFFFF
        if ahead < MAX_DROPOUT:
            self._cycles += 0x10000 if sequence_number < self._max_sequence else 0
            self._max_sequence = sequence_number
        elif ahead <= 0x10000 - MAX_MISORDER:
            if sequence_number != self._bad_sequence:
                self._bad_sequence = (sequence_number + 1) & 0xFFFF
                return False
            # Two consecutive packets far from the rest: the sender restarted.
            self._start(sequence_number)
        return True

    def _update_jitter(self, timestamp: int, now: float) -> None:
        last_timestamp, last_now = self._last_timestamp, self._last_at
        # A packet that shares the previous timestamp was not sent when it was sampled.
        if timestamp == last_timestamp:
            return
        self._last_timestamp, self._last_at = timestamp, now
        if last_timestamp < 0:
            return
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
        """Packets lost since the start; negative if duplicates outnumber them."""
        return self.expected - self.received

    @property
    def jitter_ms(self) -> float:
        return self.jitter * 1000 / self._clock_rate

    def next_fraction_lost(self) -> int:
        """Return the fraction lost since the previous call, in 1/256 (A.3)."""
        expected = self.expected - self._expected_prior
        lost = expected - (self.received - self._received_prior)
        self._expected_prior, self._received_prior = self.expected, self.received
        return min(256 * lost // expected, 255) if expected > 0 and lost > 0 else 0


if native.BUILT:

    class CompiledReception(native.Reception, ReceptionStatistics):
        pass


def new_reception(ssrc: int, clock_rate: int) -> ReceptionStatistics:
    """Return the statistics of a new stream."""
    make = CompiledReception if native.used else ReceptionStatistics
    return make(ssrc, clock_rate)


class RtcpSession:
    """RTCP in both directions for one outgoing and one incoming stream. `clock_rate` in Hz is the
    initial RTP timestamp rate of both; `uniform` returns a float in [0, 1)."""

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
        """Statistics of the current incoming stream; None before the first packet."""
        self._uniform = uniform
        # (SSRC of the last sender report, middle 32 bits of its NTP time, when it arrived)
        self._last_sender_report: tuple[int, int, float] | None = None
        self._sent_reports: deque[tuple[int, float]] = deque(maxlen=SENT_REPORTS_KEPT)
        self._packets_reported: deque[int] = deque([0, 0], maxlen=2)
        self._clock_rate_in = clock_rate
        self.change_source(ssrc, clock_rate)
        # The first report is sent after half the interval (RFC 3550 §6.2).
        self._due = now + self._interval() / 2

    def _interval(self) -> float:
        return REPORT_INTERVAL_S * (0.5 + self._uniform())

    def get_timer(self) -> float:
        """When `reports_to_send` is next due, in the seconds of `now`."""
        return self._due

    def change_source(self, ssrc: int, clock_rate: int) -> None:
        """Continue sending under another SSRC with the same CNAME (RFC 3550 §6.5.1)."""
        self.ssrc = ssrc
        self._clock_rate = clock_rate
        name = [(SDES_CNAME, self._cname)]
        self._description = bytes(RtcpSdesPacket(chunks=[RtcpSourceInfo(ssrc=ssrc, items=name)]))
        self._sent_reports.clear()
        self._packets_reported.extend((0, 0))

    def set_clock_rate(self, clock_rate: int) -> None:
        """Set the timestamp rate of the incoming stream, in Hz."""
        self._clock_rate_in = clock_rate
        if self.reception is not None:
            self.reception.set_clock_rate(clock_rate)

    def receive_rtp(
        self, ssrc: int, sequence_number: int, timestamp: int | None, now: float
    ) -> None:
        """Count an RTP packet that arrived; `timestamp` as in `ReceptionStatistics.receive`. A new
        SSRC, e.g. after a transfer at the far end, starts new statistics."""
        reception = self.reception
        if reception is None or reception.ssrc != ssrc:
            reception = self.reception = new_reception(ssrc, self._clock_rate_in)
        reception.receive(sequence_number, timestamp, now)

    def receive(self, data: bytes, now: float) -> list[RemoteReport | Bye]:
        """Parse one RTCP datagram, compound or reduced-size (RFC 5506). Packet types other than SR,
        RR and BYE are skipped. Raises RtcpError."""
        events: list[RemoteReport | Bye] = []
        for packet in parse_datagram(data):
            if isinstance(packet, RtcpByePacket):
                events += self._byes(packet.sources)
                continue
            if isinstance(packet, RtcpSrPacket):
                middle = packet.sender_info.ntp_timestamp >> 16 & UINT32
                self._last_sender_report = packet.ssrc, middle, now
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
        """Round trip by RFC 3550 §6.4.1, with our own record of when the quoted report was sent."""
        for middle, sent_at in self._sent_reports:
            if block.lsr == middle:
                return max(0.0, now - sent_at - block.dlsr / 65536) * 1000
        return None

    def _byes(self, sources: list[int]) -> Iterator[Bye]:
        """Ignore a BYE for a stream that another SSRC has replaced."""
        for ssrc in sources:
            if self.reception is None or ssrc == self.reception.ssrc:
                yield Bye(ssrc)

    def reports_to_send(self, now: float, wall_time: float, sent: SentTotals) -> bytes | None:
        """Return the compound packet that is due, or None: a sender report if packets were sent
        since the report before the last (RFC 3550 §6.4), else a receiver report, followed by the
        CNAME.

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
        if self._last_sender_report is not None and self._last_sender_report[0] == reception.ssrc:
            _, lsr, received_at = self._last_sender_report
            # The time of a tick that is late is before that of a report just received.
            dlsr = min(max(0, int((now - received_at) * 65536)), UINT32)
        return [
            RtcpReceiverInfo(
                ssrc=reception.ssrc,
                fraction_lost=reception.next_fraction_lost(),
                packets_lost=clamp_packets_lost(reception.lost),
                highest_sequence=reception.highest_sequence & UINT32,
                jitter=min(int(reception.jitter), UINT32),
                lsr=lsr,
                dlsr=dlsr,
            )
        ]

    def bye(self, now: float) -> bytes:
        """Return the final compound packet: report, CNAME and BYE (RFC 3550 §6.3.7)."""
        report = RtcpRrPacket(ssrc=self.ssrc, reports=self._report_blocks(now))
        return bytes(report) + self._description + bytes(RtcpByePacket(sources=[self.ssrc]))


def parse_datagram(data: bytes) -> list[RtcpSrPacket | RtcpRrPacket | RtcpByePacket]:
    """Return the sender reports, receiver reports and BYEs of a datagram. Raises RtcpError if any
    of its packets is invalid."""
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
    """Yield the packets of a datagram as (type, count, body without padding) (RFC 3550 §6.1)."""
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
    """Cut off what may follow the counted part of a packet: profile-specific extensions of a report
    (RFC 3550 §6.4.3), the reason of a BYE (§6.6). aiortc does not parse them."""
    if len(body) < length:
        raise RtcpError("RTCP packet is shorter than its count says")
    return body[:length]
