"""Audio of a carrier stream as RTP packets, so that carriers and RTP share one receive path.

Carriers send over TCP, so nothing is lost and little is reordered (by some), and they number and
timestamp their messages well, badly or not at all. So timestamps advance by the length of the
packets: a message's number only gives its order, and its timestamp is used only where the carrier
left out audio.
"""

from offhook.media import native
from offhook.media.codecs.opus import CLOCK_RATE as OPUS_RATE
from offhook.media.codecs.opus import libopus
from offhook.media.pcm import PACKET_MS
from offhook.media.rtp.rtp import RtpPacket
from offhook.telephony.carriers.streams.stream import Format, Sound

PAYLOAD_TYPE = 0
MAX_PACKET_MS = 500
"""Longest packet in ms; longer messages are split into packets of this. Shorter ones are not: their
pieces, arriving together, would count as jitter and be delayed by the length of the message."""
GAP_MS = 60
"""A larger gap between messages is audio left out; a smaller one is the carrier's rounding."""
MAX_JUMP = 100
"""Largest distance in messages from the expected number; a number farther from it restarts the
count."""


class Packetizer:
    """Turns one stream's messages into RTP packets."""

    def __init__(self, format: Format) -> None:
        self._rate = format.rate
        self._opus = format.encoding == "opus"
        self._sample_bytes = 2 if format.encoding == "l16" else 1
        self._longest = format.rate * MAX_PACKET_MS // 1000
        self._number = 0
        """Of the next packet, and..."""
        self._timestamp = 0
        """...of its first sample, unwrapped, if messages arrive in order."""
        self._expected: int | None = None
        """Sequence number of the next message."""
        self._began: int | None = None
        """Stream clock at which `_timestamp` was 0, in ticks."""

    def packets(self, sound: Sound) -> list[RtpPacket]:
        """Return the packets of one message; none if it holds less than a sample."""
        payload = sound.payload
        samples = self._opus_samples(payload) if self._opus else len(payload) // self._sample_bytes
        if not samples:
            return []
        sequence = sound.sequence
        ahead = 0 if sequence is None else self._messages_ahead(sequence)
        timestamp = self._timestamp + ahead * samples
        number = self._number + ahead
        if ahead >= 0:
            if sound.timestamp_ms is not None:
                timestamp = self._adjust_timestamp(timestamp, sound.timestamp_ms)
            self._timestamp = timestamp + samples
        if self._opus or samples <= self._longest:
            packets = [self._packet(number, timestamp, payload)]
        else:
            packets = self._split(number, timestamp, payload)
        if ahead >= 0:
            self._number = number + len(packets)
        return packets

    def _opus_samples(self, payload: bytes) -> int:
        samples: int = libopus().opus_packet_get_nb_samples(payload, len(payload), OPUS_RATE)
        # The decoder will report malformed packets.
        return samples if samples > 0 else OPUS_RATE * PACKET_MS // 1000

    def _messages_ahead(self, sequence: int) -> int:
        """Messages between the expected one and this; negative if others have overtaken it."""
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

    def _adjust_timestamp(self, timestamp: int, stream_ms: int) -> int:
        """Adjust the timestamp of a message, expected at `timestamp`, for audio left out."""
        stream_time = stream_ms * self._rate // 1000
        if self._began is not None:
            gap = stream_time - self._began - timestamp
            if gap > self._rate * GAP_MS // 1000:
                timestamp += gap
        # Updated each time, so that clock drift is not taken for a gap.
        self._began = stream_time - timestamp
        return timestamp

    def _split(self, number: int, timestamp: int, payload: bytes) -> list[RtpPacket]:
        size = self._longest * self._sample_bytes
        return [
            self._packet(number + i, timestamp + i * self._longest, payload[start : start + size])
            for i, start in enumerate(range(0, len(payload), size))
        ]

    def _packet(self, number: int, timestamp: int, payload: bytes) -> RtpPacket:
        return RtpPacket(PAYLOAD_TYPE, number & 0xFFFF, timestamp & 0xFFFFFFFF, 0, payload)


if native.BUILT:

    class CompiledPacketizer(native.Packetizer, Packetizer):
        """Has its state where `native.MediaReader` finds it."""


def new_packetizer(format: Format) -> Packetizer:
    """Return the packetizer of a new stream."""
    make = CompiledPacketizer if native.used else Packetizer
    return make(format)
