"""Sound of a stream as RTP packets, so that one receive path serves carriers and RTP alike.

Carriers send over TCP, so nothing is lost and hardly anything out of order (Telnyx does that), and
they number and time their messages well, badly or not at all. So packets are counted on by their
length: a number that is told only says where among the others a message belongs, a time that is
told only where the carrier left sound out.
"""

from offhook.media.codecs.opus import CLOCK_RATE as OPUS_RATE
from offhook.media.codecs.opus import libopus
from offhook.media.pcm import PACKET_MS
from offhook.media.rtp.rtp import RtpPacket
from offhook.telephony.carriers.streams.stream import Format, Sound

PAYLOAD_TYPE = 0
MAX_PACKET_MS = 500
"""A longer message is cut into packets of this. Shorter ones are not: their pieces, which come all
at once, would be taken for jitter and wait as long as the message is."""
GAP_MS = 60
"""More than this between the end of a message and the beginning of the next is sound left out;
less is the carrier's rounding."""
MAX_JUMP = 100
"""Messages; a number farther from the one expected begins the count anew."""


class Packetizer:
    """One stream's sound, message by message."""

    def __init__(self, format: Format) -> None:
        self._rate = format.rate
        self._opus = format.encoding == "opus"
        self._sample_bytes = 2 if format.encoding == "l16" else 1
        self._longest = format.rate * MAX_PACKET_MS // 1000
        self._number = 0
        """Of the next packet, and..."""
        self._timestamp = 0
        """...of its first sample, unwrapped, as long as messages come in order."""
        self._expected: int | None = None
        """The sequence of the next message."""
        self._began: int | None = None
        """Of the stream's own clock, where `_timestamp` was 0, in ticks."""

    def packets(self, sound: Sound) -> list[RtpPacket]:
        """The packets of one message, none if it holds not even a sample."""
        payload = sound.payload
        samples = self._opus_samples(payload) if self._opus else len(payload) // self._sample_bytes
        if not samples:
            return []
        sequence = sound.sequence
        ahead = 0 if sequence is None else self._ahead(sequence)
        timestamp = self._timestamp + ahead * samples
        number = self._number + ahead
        if ahead >= 0:
            if sound.timestamp_ms is not None:
                timestamp = self._timed(timestamp, sound.timestamp_ms)
            self._timestamp = timestamp + samples
        if self._opus or samples <= self._longest:
            packets = [self._packet(number, timestamp, payload)]
        else:
            packets = self._cut(number, timestamp, payload)
        if ahead >= 0:
            self._number = number + len(packets)
        return packets

    def _opus_samples(self, payload: bytes) -> int:
        samples: int = libopus().opus_packet_get_nb_samples(payload, len(payload), OPUS_RATE)
        # Of what is malformed the decoder will say so.
        return samples if samples > 0 else OPUS_RATE * PACKET_MS // 1000

    def _ahead(self, sequence: int) -> int:
        """How many messages there are between the one expected and this; below 0 if others have
        overtaken it."""
        expected = self._expected
        if sequence == expected:
            self._expected = sequence + 1
            return 0
        ahead = 0 if expected is None else sequence - expected
        if abs(ahead) > MAX_JUMP:
            ahead = 0
            self._expected = None
        if self._expected is None or ahead >= 0:
            self._expected = sequence + 1
        return ahead

    def _timed(self, timestamp: int, told_ms: int) -> int:
        """The timestamp of a message that is expected at `timestamp`."""
        told = told_ms * self._rate // 1000
        if self._began is not None:
            gap = told - self._began - timestamp
            if gap > self._rate * GAP_MS // 1000:
                timestamp += gap
        # Measured anew each time: that the clocks differ is no sound left out.
        self._began = told - timestamp
        return timestamp

    def _cut(self, number: int, timestamp: int, payload: bytes) -> list[RtpPacket]:
        size = self._longest * self._sample_bytes
        return [
            self._packet(number + i, timestamp + i * self._longest, payload[start : start + size])
            for i, start in enumerate(range(0, len(payload), size))
        ]

    def _packet(self, number: int, timestamp: int, payload: bytes) -> RtpPacket:
        return RtpPacket(PAYLOAD_TYPE, number & 0xFFFF, timestamp & 0xFFFFFFFF, 0, payload)
