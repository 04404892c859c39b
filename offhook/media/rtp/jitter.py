"""The jitter buffer: puts RTP packets in sequence order and decides how long they wait. It neither
decodes nor conceals; the receiver does.

The target delay follows the measured jitter up and down, like WebRTC's NetEq: a histogram with
exponential forgetting of each packet's delay relative to the fastest of the last seconds, read at a
high quantile. All times are float seconds of one monotonic clock; all delays here are seconds.
"""

from bisect import insort
from enum import Enum, auto
from typing import NamedTuple

from offhook.media import native
from offhook.media.rtp.rtp import RtpPacket, uint16_diff, uint32_diff

MIN_DELAY = 0.020
"""Seconds. One packet, so that the packet after a lost one, which repairs it, arrives in time."""
MAX_DELAY = 0.400
"""Maximum delay in s at which packets are played; later packets are not waited for."""
QUANTILE = 0.97
"""Fraction of packets that should arrive within the target delay."""
FORGET_FACTOR = 0.99
"""Weight of the past per packet: a memory of about 100 packets, 2 s."""
BUCKET = 0.005
"""Seconds of delay per histogram bucket."""
BUCKETS = round(MAX_DELAY / BUCKET)
PRIOR_PACKETS = 40
"""On-time packets assumed at the start, so that a single late one does not raise the target."""

WINDOW = 2.0
"""Seconds. The fastest packet is searched for in one to two times this window."""
IDLE = 1.0
"""Seconds without a packet after which the path delay is measured afresh."""
MAX_TIME_OFFSET = 2.0
"""Distance in s of a packet from its expected time; a packet farther from it belongs to a restarted
stream."""
MAX_DROPOUT = 3000
"""Largest jump forward in sequence numbers (RFC 3550 appendix A.1); after a larger one the stream
counts as restarted."""
MAX_MISORDER = 100
"""Largest jump back in sequence numbers (RFC 3550 appendix A.1); after a larger one the stream
counts as restarted."""

MAX_SPAN = 3.2
"""Seconds of audio held: what arrives while the process stands still for 3 s. Beyond it the oldest
packets are dropped and playout jumps forward."""
MAX_PACKETS = 320
"""Limit of packets held, whatever their duration: MAX_SPAN of 10 ms each. The oldest are
dropped."""
STILL_PACKETS = 4
"""Packets in a row with one timestamp by which the sender's clock is known to stand still: their
times follow from their sequence numbers then. Fewer may be copies."""

_SEEN_MASK = (1 << MAX_MISORDER) - 1


class Arrival(Enum):
    """What `JitterBuffer.insert` did with a packet."""

    QUEUED = auto()
    LATE = auto()
    """Discarded: its playout time has passed."""
    DUPLICATE = auto()
    OUT_OF_RANGE = auto()
    """Discarded: far from the stream's sequence numbers or timestamps. A second one in sequence
    restarts the stream."""
    RESTARTED = auto()
    """Queued as the first packet of a restarted stream; everything held before is dropped."""


class Queued(NamedTuple):
    """A packet in the buffer. Its sequence number and timestamp are unwrapped: they only grow."""

    sequence_number: int
    timestamp: int
    arrived: float
    payload_type: int
    payload: bytes
    non_audio: int
    """Packets of the stream before this one that carried no audio."""


class DelayEstimator:
    """Estimates how long packets must wait for nearly all of them to arrive in time."""

    def __init__(self) -> None:
        self.target = MIN_DELAY
        """Seconds a packet should wait, from when the fastest one would have arrived."""
        self._histogram = [0.0] * (BUCKETS + 1)
        self._histogram[0] = self._total = float(PRIOR_PACKETS)
        self._weight = 1.0  # grows instead of scaling the past down: one addition per packet
        self._bucket = 0  # of the quantile
        self._above = 0.0  # total weight of the buckets above it
        self.restart_path()

    def restart_path(self) -> None:
        """Forget the path delay, but not its variation."""
        self.fastest = self._previous = self._current = float("inf")
        self._window_end = float("-inf")

    def add_transit(self, transit: float, now: float) -> float:
        """Record one packet's transit time: arrival minus sending time, each on its own clock.
        Returns its delay in seconds relative to the fastest packet."""
        if now >= self._window_end:
            # Two half windows make a sliding minimum that follows clock drift and a path grown
            # longer, in constant memory.
            self._previous = self._current
            self._current = transit
            self._window_end = now + WINDOW
        elif transit < self._current:
            self._current = transit
        self.fastest = min(self._previous, self._current)
        return transit - self.fastest

    def record(self, delay: float) -> None:
        """Count one packet that could have been played `delay` seconds after the fastest one."""
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
        self._weight /= FORGET_FACTOR
        if self._weight > 1e9:
            self._rescale()

    def _rescale(self) -> None:
        scale = 1 / self._weight
        self._histogram = [x * scale for x in self._histogram]
        self._total = sum(self._histogram)
        self._above = sum(self._histogram[self._bucket + 1 :])
        self._weight = 1.0


class JitterBuffer:
    """The jitter buffer of one stream: one SSRC, one clock rate."""

    def __init__(self, clock_rate: int) -> None:
        self.clock_rate = clock_rate
        self.position: int | None = None
        """Unwrapped timestamp of the next audio to play; None before the first packet."""
        self.repairable = False
        """Set by the receiver once a packet has repaired the lost one before it. From then on a
        lost packet counts as one that arrives with its successor."""
        self.dropped = 0
        """Packets dropped because the buffer was full."""
        self.packet_ticks = clock_rate // 50
        """Duration of a packet in ticks of the timestamp, set by whoever decodes them; 20 ms before
        the first."""
        self._packets: list[Queued] = []
        self._delay = DelayEstimator()
        self._last_arrival = float("-inf")
        self._non_audio = 0
        self._seen_non_audio = 0  # as _seen, of the packets without audio
        self._restart_at: int | None = None
        self._highest = 0
        self._highest_timestamp = 0
        self._sent_timestamp = 0  # of the latest packet, as sent
        self._repeated = 0  # packets before it with the same
        self._stamped = 0  # the first packet with the highest timestamp
        self._shift = 0  # what a clock that stood still has lost
        self._seen = 0  # bit i: the packet i before the highest has arrived

    def __len__(self) -> int:
        return len(self._packets)

    @property
    def target(self) -> float:
        """Seconds a packet should wait."""
        return self._delay.target

    @property
    def head(self) -> Queued | None:
        """The next packet to play; None if the buffer is empty."""
        return self._packets[0] if self._packets else None

    def pop(self) -> Queued:
        return self._packets.pop(0)

    def backlog(self) -> float:
        """Seconds of audio between the first and the last packet held."""
        if not self._packets:
            return 0.0
        return (self._packets[-1].timestamp - self._packets[0].timestamp) / self.clock_rate

    def slack(self, timestamp: int, now: float) -> float:
        """Seconds since the packet with this unwrapped timestamp would have arrived, had it been as
        fast as the fastest."""
        return now - timestamp / self.clock_rate - self._delay.fastest

    def skip_non_audio(self, sequence_number: int) -> int | None:
        """Account for a packet that holds no audio (telephone event, comfort noise, unknown payload
        type), so that its sequence number does not count as lost. Returns the unwrapped number;
        None for a duplicate and for one far from the stream's numbers."""
        ahead = uint16_diff(sequence_number, self._highest)
        if self.position is None or not -MAX_MISORDER < ahead < MAX_DROPOUT:
            return None
        unwrapped = self._highest + ahead
        if ahead > 0:
            self._mark_seen(unwrapped)
        elif self._seen >> -ahead & 1:
            return None
        else:  # overtaken by audio that is counted as if it were missing
            self._seen |= 1 << -ahead
            self._packets = [
                queued._replace(non_audio=queued.non_audio + (queued.sequence_number > unwrapped))
                for queued in self._packets
            ]
        self._seen_non_audio |= 1 << self._highest - unwrapped
        self._non_audio += 1
        return unwrapped

    def is_behind(self, sequence_number: int) -> bool:
        """Whether a packet was sent shortly before the latest one received."""
        return -MAX_MISORDER < uint16_diff(sequence_number, self._highest) < 0

    def insert(self, packet: RtpPacket, now: float) -> Arrival:
        """Insert a packet that arrived at `now` (seconds)."""
        if self.position is None:
            self._reset(packet)
        idle = now - self._last_arrival > IDLE
        if idle:
            self._delay.restart_path()
        sequence_number = self._highest + uint16_diff(packet.sequence_number, self._highest)
        timestamp = self._timestamp_of(packet.timestamp, sequence_number)
        if self._is_out_of_range(sequence_number, timestamp, now, idle):
            if not idle and packet.sequence_number != self._restart_at:
                self._restart_at = (packet.sequence_number + 1) & 0xFFFF
                return Arrival.OUT_OF_RANGE
            self._delay.restart_path()
            self._reset(packet)
            self._accept(packet, packet.sequence_number, packet.timestamp, now)
            return Arrival.RESTARTED
        behind = self._highest - sequence_number
        if behind >= 0 and self._seen >> behind & 1:
            return Arrival.DUPLICATE
        return self._accept(packet, sequence_number, timestamp, now)

    def _timestamp_of(self, sent: int, sequence_number: int) -> int:
        """Return the unwrapped timestamp of a packet, by its sequence number while the sender's
        clock stands still. When it goes on, what it has lost is added."""
        highest, ahead = self._highest_timestamp, sequence_number - self._highest
        timestamp = highest + uint32_diff(sent + self._shift, highest)
        if not -MAX_MISORDER < ahead < MAX_DROPOUT:
            return timestamp
        counted = highest + (sequence_number - self._stamped) * self.packet_ticks
        before = self._repeated
        if ahead > 0 and sequence_number != self._stamped:
            self._repeated = before + 1 if sent == self._sent_timestamp else 0
            self._sent_timestamp = sent
        if self._repeated >= STILL_PACKETS - 1:
            return counted if sent == self._sent_timestamp else timestamp
        if before >= STILL_PACKETS - 1 and timestamp <= highest:
            self._shift += counted - timestamp
            return counted
        return timestamp

    def _accept(
        self, packet: RtpPacket, sequence_number: int, timestamp: int, now: float
    ) -> Arrival:
        self._last_arrival = now
        self._restart_at = None
        self._measure(sequence_number, timestamp, now)
        behind = self._highest - sequence_number
        if behind < 0:
            self._mark_seen(sequence_number)
            if timestamp != self._highest_timestamp:
                self._highest_timestamp, self._stamped = timestamp, sequence_number
        else:
            self._seen |= 1 << behind
        assert self.position is not None
        if timestamp < self.position:
            return Arrival.LATE
        self._queue(packet, sequence_number, timestamp, now)
        return Arrival.QUEUED

    def _reset(self, packet: RtpPacket) -> None:
        self._packets.clear()
        self._highest = packet.sequence_number - 1
        self._highest_timestamp = self.position = packet.timestamp
        self._sent_timestamp, self._stamped = packet.timestamp, packet.sequence_number
        self._repeated = self._shift = 0
        self._seen = self._seen_non_audio = 0

    def _mark_seen(self, sequence_number: int) -> None:
        ahead = sequence_number - self._highest
        self._seen = (self._seen << ahead | 1) & _SEEN_MASK if ahead < MAX_MISORDER else 1
        if self._seen_non_audio:
            shifted = self._seen_non_audio << ahead if ahead < MAX_MISORDER else 0
            self._seen_non_audio = shifted & _SEEN_MASK
        self._highest = sequence_number

    def _is_out_of_range(
        self, sequence_number: int, timestamp: int, now: float, idle: bool
    ) -> bool:
        ahead = sequence_number - self._highest
        if not -MAX_MISORDER < ahead < MAX_DROPOUT:
            return True
        if timestamp < self._highest_timestamp and (ahead > 0 or idle):
            return True  # a later packet with earlier audio: the sender reset its clock
        if idle:
            return ahead <= 0
        transit = now - timestamp / self.clock_rate
        return abs(transit - self._delay.fastest) > MAX_TIME_OFFSET

    def _measure(self, sequence_number: int, timestamp: int, now: float) -> None:
        delay = self._delay.add_transit(now - timestamp / self.clock_rate, now)
        self._delay.record(delay)
        if self.repairable and sequence_number > self._highest + 1:
            missing = sequence_number - self._highest
            packet = (timestamp - self._highest_timestamp) / self.clock_rate / missing
            self._delay.record(max(0.0, delay + packet))

    def _queue(self, packet: RtpPacket, sequence_number: int, timestamp: int, now: float) -> None:
        packets = self._packets
        non_audio = self._non_audio
        if self._seen_non_audio:  # minus those that overtook this packet
            overtook = self._seen_non_audio & (1 << self._highest - sequence_number) - 1
            non_audio -= overtook.bit_count()
        queued = Queued(
            sequence_number, timestamp, now, packet.payload_type, packet.payload, non_audio
        )
        if not packets or sequence_number > packets[-1].sequence_number:
            packets.append(queued)
        else:
            insort(packets, queued)
        while len(packets) > MAX_PACKETS or self.backlog() > MAX_SPAN:
            packets.pop(0)
            self.dropped += 1
            self.position = packets[0].timestamp


if native.BUILT:  # pragma: no branch -- where there is a C compiler
    native.use_types(tuple(Arrival), Queued)


def new_buffer(clock_rate: int) -> "JitterBuffer | native.JitterBuffer":
    """Return the jitter buffer of a new stream."""
    return native.JitterBuffer(clock_rate) if native.used else JitterBuffer(clock_rate)
