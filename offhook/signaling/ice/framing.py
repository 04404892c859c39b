"""Frames of ICE-TCP (RFC 4571): two bytes of length before every STUN, DTLS and SRTP packet."""

MAX_FRAME_BYTES = 2048
"""Maximum size of a packet on a TCP connection, of which browsers send at most 1500; with a longer
one the connection is closed. TLS and HTTP begin with bytes that are a greater length."""


class FramingError(ValueError):
    """The far end sends something else."""


def frame(data: bytes) -> bytes:
    """Returns the packet with its length before it."""
    return len(data).to_bytes(2, "big") + data


class Deframer:
    """Takes packets out of a stream; holds at most one that is incomplete."""

    def __init__(self) -> None:
        self._rest = b""

    def receive(self, data: bytes) -> list[bytes]:
        """Returns the packets that `data` completes. Raises FramingError."""
        data, at, frames = self._rest + data, 0, []
        while len(data) - at >= 2:
            length = int.from_bytes(data[at : at + 2], "big")
            if length > MAX_FRAME_BYTES:
                raise FramingError(f"a frame of {length} bytes")
            if len(data) - at < 2 + length:
                break
            frames.append(data[at + 2 : at + 2 + length])
            at += 2 + length
        self._rest = data[at:]
        return frames
