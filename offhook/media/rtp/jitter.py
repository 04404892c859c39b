"""The jitter buffer: RTP packets in order of arrival to RTP packets in order of sequence number,
and how long they should wait. It neither decodes nor conceals: the receiver does.

The delay aimed at follows the measured jitter up and down, in the manner of WebRTC's NetEq: a
forgetting histogram of how late each packet is against the fastest of the last seconds, read at a
high quantile. All times are float seconds of one monotonic clock; all delays inside are seconds.
"""

from bisect import insort
from enum import Enum, auto
from typing import NamedTuple

from offhook.media.rtp.rtp import RtpPacket, uint16_diff, uint32_diff

MIN_DELAY = 0.020
"""s. One packet: the one following a lost one, which repairs it, is then there in time."""
MAX_DELAY = 0.400
"""s. Nothing later than this is waited for."""
QUANTILE = 0.97
"""Share of the packets the delay is meant to be enough for."""
FORGET = 0.99
"""Weight of the past per packet: a memory of about 100 packets, 2 s."""
BUCKET = 0.005
"""s of delay in one bucket of the histogram."""
BUCKETS = round(MAX_DELAY / BUCKET)
PRIOR_PACKETS = 40
"""Punctual packets assumed at the start, so that one late packet is not yet a habit."""

WINDOW = 2.0
"""s. The fastest packet is sought in this much time, and up to as much again."""
IDLE = 1.0
"""s without a packet after which the path is measured afresh."""
MAX_ASTRAY = 2.0
"""s. A packet this far from its time belongs to a restarted stream, or to none."""
MAX_DROPOUT = 3000
MAX_MISORDER = 100
"""Sequence numbers a stream may jump forward and back (RFC 3550 appendix A.1)."""

MAX_SPAN = 1.0
"""s of sound held. Beyond it the oldest packets are dropped and playing jumps forward."""
MAX_PACKETS = 128
"""Packets held, whatever they last; the oldest are dropped."""

_SEEN_MASK = (1 << MAX_MISORDER) - 1


class Arrival(Enum):
    """What became of a packet."""

    QUEUED = auto()
    LATE = auto()
    """Its time is past."""
    DUPLICATE = auto()
    ASTRAY = auto()
    """Far from its stream's numbers or time; not taken. A second one in sequence restarts it."""
    RESTARTED = auto()
    """Queued, as the first of a stream that began anew; what was held is gone."""


class Queued(NamedTuple):
    """A packet waiting. Its counters are unwrapped: they only grow."""

    sequence_number: int
    timestamp: int
    arrived: float
    payload_type: int
    payload: bytes
    foreign: int
    """Packets of the stream before this one that carried no sound of ours."""


class DelayEstimator:
    """How long packets must wait for nearly all of them to be there in time."""

    def __init__(self) -> None:
        self.target = MIN_DELAY
        """s that a packet should wait, counted from when the fastest one would have come."""
        self._histogram = [0.0] * (BUCKETS + 1)
        self._histogram[0] = self._total = float(PRIOR_PACKETS)
        self._weight = 1.0  # grows instead of the past shrinking: one addition a packet
        self._bucket = 0  # the quantile's
        self._above = 0.0  # weight in the buckets above it
        self.restart_path()

    def restart_path(self) -> None:
        """Forget how long the way is, not how much it varies."""
        self.fastest = self._previous = self._current = float("inf")
        self._window_end = float("-inf")

    def transit(self, transit: float, now: float) -> float:
        """Take one packet's arrival time less its sending time, each on its own clock. Returns s
        of delay against the fastest packet."""
        if now >= self._window_end:
            # Two halves of a window make a sliding minimum that follows clock drift and a path
            # grown longer, in constant memory.
            self._previous = self._current
            self._current = transit
            self._window_end = now + WINDOW
        elif transit < self._current:
            self._current = transit
        self.fastest = min(self._previous, self._current)
        return transit - self.fastest

    def record(self, delay: float) -> None:
        """Count one packet that could have been played `delay` s after the fastest would."""
        bucket = min(int(delay / BUCKET), BUCKETS)
        histogram = self._histogram
        histogram[bucket] += self._weight
        self._total += self._weight
        if bucket > self._bucket:
            self._above += self._weight
        allowed = (1 - QUANTILE) * self._total
        while self._above > allowed:
            self._bucket += 1
            self._above -= histogram[self._bucket]
        while self._bucket and self._above + histogram[self._bucket] <= allowed:
            self._above += histogram[self._bucket]
            self._bucket -= 1
        self.target = min(MAX_DELAY, max(MIN_DELAY, (self._bucket + 1) * BUCKET))
        self._weight /= FORGET
        if self._weight > 1e9:
            self._rescale()

    def _rescale(self) -> None:
        scale = 1 / self._weight
        self._histogram = [x * scale for x in self._histogram]
        self._total = sum(self._histogram)
        self._above = sum(self._histogram[self._bucket + 1 :])
        self._weight = 1.0


class JitterBuffer:
    """Packets of one stream, one synchronisation source, one clock rate."""

    def __init__(self, clock_rate: int) -> None:
        self.clock_rate = clock_rate
        self.position: int | None = None
        """Unwrapped timestamp of the next sound to play; None before the first packet."""
        self.repairable = False
        """Set by the receiver once a packet has repaired the lost one before it: from then on a
        lost packet counts as one that comes with its successor."""
        self.dropped = 0
        """Packets dropped because the buffer was full."""
        self._packets: list[Queued] = []
        self._delay = DelayEstimator()
        self._last_arrival = float("-inf")
        self._foreign = 0
        self._seen_foreign = 0  # as _seen, of the packets without sound
        self._restart_at: int | None = None
        self._highest = 0
        self._highest_timestamp = 0
        self._seen = 0  # bit i: the packet i before the highest came

    def __len__(self) -> int:
        return len(self._packets)

    @property
    def target(self) -> float:
        """s that a packet should wait."""
        return self._delay.target

    @property
    def head(self) -> Queued | None:
        """The packet to play next."""
        return self._packets[0] if self._packets else None

    def pop(self) -> Queued:
        return self._packets.pop(0)

    def backlog(self) -> float:
        """s of sound between the first and the last packet held."""
        if not self._packets:
            return 0.0
        return (self._packets[-1].timestamp - self._packets[0].timestamp) / self.clock_rate

    def slack(self, timestamp: int, now: float) -> float:
        """s that have passed since the packet of this unwrapped timestamp came, or would have
        come had it been as fast as the fastest."""
        return now - timestamp / self.clock_rate - self._delay.fastest

    def foreign(self, sequence_number: int) -> int | None:
        """A packet of the stream holds no sound (key presses, comfort noise, an unknown payload
        type): its sequence number is not a loss. Returns that, unwrapped; None for a duplicate
        and for a packet far from its stream's numbers."""
        ahead = uint16_diff(sequence_number, self._highest)
        if self.position is None or not -MAX_MISORDER < ahead < MAX_DROPOUT:
            return None
        unwrapped = self._highest + ahead
        if ahead > 0:
            self._see(unwrapped)
        elif self._seen >> -ahead & 1:
            return None
        else:  # overtaken by sound that is counted as if it were missing
            self._seen |= 1 << -ahead
            self._packets = [
                queued._replace(foreign=queued.foreign + (queued.sequence_number > unwrapped))
                for queued in self._packets
            ]
        self._seen_foreign |= 1 << self._highest - unwrapped
        self._foreign += 1
        return unwrapped

    def is_behind(self, sequence_number: int) -> bool:
        """Whether a packet was sent a little before the last that came."""
        return -MAX_MISORDER < uint16_diff(sequence_number, self._highest) < 0

    def insert(self, packet: RtpPacket, now: float) -> Arrival:
        """Take a packet that arrived at `now`."""
        if self.position is None:
            self._begin(packet)
        idle = now - self._last_arrival > IDLE
        if idle:
            self._delay.restart_path()
        sequence_number = self._highest + uint16_diff(packet.sequence_number, self._highest)
        timestamp = self._highest_timestamp + uint32_diff(packet.timestamp, self._highest_timestamp)
        if self._is_astray(sequence_number, timestamp, now, idle):
            if not idle and packet.sequence_number != self._restart_at:
                self._restart_at = (packet.sequence_number + 1) & 0xFFFF
                return Arrival.ASTRAY
            self._delay.restart_path()
            self._begin(packet)
            self._take(packet, packet.sequence_number, packet.timestamp, now)
            return Arrival.RESTARTED
        behind = self._highest - sequence_number
        if behind >= 0 and self._seen >> behind & 1:
            return Arrival.DUPLICATE
        return self._take(packet, sequence_number, timestamp, now)

    def _take(self, packet: RtpPacket, sequence_number: int, timestamp: int, now: float) -> Arrival:
        self._last_arrival = now
        self._restart_at = None
        self._measure(sequence_number, timestamp, now)
        behind = self._highest - sequence_number
        if behind < 0:
            self._see(sequence_number)
            self._highest_timestamp = timestamp
        else:
            self._seen |= 1 << behind
        assert self.position is not None
        if timestamp < self.position:
            return Arrival.LATE
        self._queue(packet, sequence_number, timestamp, now)
        return Arrival.QUEUED

    def _begin(self, packet: RtpPacket) -> None:
        self._packets.clear()
        self._highest = packet.sequence_number - 1
        self._highest_timestamp = self.position = packet.timestamp
        self._seen = self._seen_foreign = 0

    def _see(self, sequence_number: int) -> None:
        ahead = sequence_number - self._highest
        self._seen = (self._seen << ahead | 1) & _SEEN_MASK if ahead < MAX_MISORDER else 1
        if self._seen_foreign:
            shifted = self._seen_foreign << ahead if ahead < MAX_MISORDER else 0
            self._seen_foreign = shifted & _SEEN_MASK
        self._highest = sequence_number

    def _is_astray(self, sequence_number: int, timestamp: int, now: float, idle: bool) -> bool:
        ahead = sequence_number - self._highest
        if not -MAX_MISORDER < ahead < MAX_DROPOUT:
            return True
        if timestamp < self._highest_timestamp and (ahead > 0 or idle):
            return True  # a later packet with an earlier sound: the sender set its clock
        if idle:
            return ahead <= 0
        transit = now - timestamp / self.clock_rate
        return abs(transit - self._delay.fastest) > MAX_ASTRAY

    def _measure(self, sequence_number: int, timestamp: int, now: float) -> None:
        delay = self._delay.transit(now - timestamp / self.clock_rate, now)
        self._delay.record(delay)
        if self.repairable and sequence_number > self._highest + 1:
            missing = sequence_number - self._highest
            packet = (timestamp - self._highest_timestamp) / self.clock_rate / missing
            self._delay.record(max(0.0, delay + packet))

    def _queue(self, packet: RtpPacket, sequence_number: int, timestamp: int, now: float) -> None:
        packets = self._packets
        foreign = self._foreign
        if self._seen_foreign:  # less those that overtook this packet
            overtook = self._seen_foreign & (1 << self._highest - sequence_number) - 1
            foreign -= overtook.bit_count()
        queued = Queued(
            sequence_number, timestamp, now, packet.payload_type, packet.payload, foreign
        )
        if not packets or sequence_number > packets[-1].sequence_number:
            packets.append(queued)
        else:
            insort(packets, queued)
        while len(packets) > MAX_PACKETS or self.backlog() > MAX_SPAN:
            packets.pop(0)
            self.dropped += 1
            self.position = packets[0].timestamp
