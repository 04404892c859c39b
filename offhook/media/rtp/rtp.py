"""RTP packets (RFC 3550 §5.1) and the serial arithmetic of their counters (RFC 1982)."""

import struct
from dataclasses import dataclass

_HEADER = struct.Struct("!BBHII")
_EXTENSION = struct.Struct("!HH")

VERSION = 2
HEADER_BYTES = _HEADER.size


class RtpError(ValueError):
    """The datagram is not an RTP packet."""


@dataclass(slots=True)
class RtpPacket:
    """One RTP packet, without CSRCs and header extensions."""

    payload_type: int
    """0..127."""
    sequence_number: int
    """16 bits."""
    timestamp: int
    """32 bits, in ticks of the payload format's clock rate."""
    ssrc: int
    payload: bytes
    marker: bool = False

    @classmethod
    def parse(cls, data: bytes) -> "RtpPacket":
        """Parse one datagram. CSRCs, header extensions (RFC 8285) and padding are skipped. Raises
        RtpError if it is malformed."""
        size = len(data)
        if size < HEADER_BYTES:
            raise RtpError(f"RTP packet of {size} bytes is shorter than its 12-byte header")
        first, second, sequence_number, timestamp, ssrc = _HEADER.unpack_from(data)
        if first >> 6 != VERSION:
            raise RtpError(f"RTP version is {first >> 6}, not 2")
        start = HEADER_BYTES
        if first & 0x3F:  # padding, extension or CSRCs: rare, so out of the way
            start, size = _payload_bounds(data, first)
        return cls(
            second & 0x7F, sequence_number, timestamp, ssrc, data[start:size], second >= 0x80
        )

    def serialize(self) -> bytes:
        """Return the packet as a datagram. All fields must be within their bit widths."""
        return (
            _HEADER.pack(
                VERSION << 6,
                self.marker << 7 | self.payload_type,
                self.sequence_number,
                self.timestamp,
                self.ssrc,
            )
            + self.payload
        )


def _payload_bounds(data: bytes, first: int) -> tuple[int, int]:
    """Return where the payload starts and ends, by the flags of the first header byte."""
    end = len(data)
    start = HEADER_BYTES + 4 * (first & 0x0F)
    if start > end:
        raise RtpError("RTP CSRC list is truncated")
    if first & 0x10:
        if start + _EXTENSION.size > end:
            raise RtpError("RTP header extension is truncated")
        start += _EXTENSION.size + 4 * _EXTENSION.unpack_from(data, start)[1]
        if start > end:
            raise RtpError("RTP header extension is truncated")
    if first & 0x20:
        padding = data[-1]
        if not 0 < padding <= end - start:
            raise RtpError(f"RTP padding of {padding} bytes does not fit")
        end -= padding
    return start, end


def uint16_add(a: int, b: int) -> int:
    return (a + b) & 0xFFFF


def uint32_add(a: int, b: int) -> int:
    return (a + b) & 0xFFFFFFFF


def uint16_diff(a: int, b: int) -> int:
    """Signed distance from `b` to `a` modulo 2**16, -32768..32767."""
    return ((a - b + 0x8000) & 0xFFFF) - 0x8000


def uint32_diff(a: int, b: int) -> int:
    """Signed distance from `b` to `a` modulo 2**32, -2**31..2**31 - 1."""
    return ((a - b + 0x80000000) & 0xFFFFFFFF) - 0x80000000
