"""Where the far end's sound comes from, and so where ours goes: symmetric RTP (RFC 4961).

SDP says where the far end is, as far as it knows. Behind a NAT it knows wrong, and its packets
tell better (RFC 7362 §4). But whoever guesses our port can send packets too, so a source other
than the SDP's own is believed only as written below, once; then the latch is locked.

| packet is from       | nothing heard yet     | locked to the SDP's | locked to another        |
|----------------------|-----------------------|---------------------|--------------------------|
| the source locked to |                       | heard               | heard                    |
| the SDP's address    | lock to it at once    |                     | lock to it at once       |
| elsewhere            | lock after some       | refused; after a silence, with the SSRC        |
|                      | consistent packets    | heard before, as if nothing was heard yet      |

With SRTP there is nothing to guess: whoever authenticates is the far end.
"""

from collections.abc import Container

Address = tuple[str, int]
"""Numeric IP address and UDP port."""

LATCH_PACKETS = 5
"""Consistent packets of a source that SDP did not name. 100 ms of sound, which a NAT costs once; a
blind sprayer would have to keep a stream's order to pass."""
LATCH_GAP = 16
"""How far sequence numbers may skip between such packets, for those lost or sent elsewhere."""
LATCH_AGAIN_S = 2.0
"""Silence of the source locked to after which the same stream may go on from elsewhere: a NAT that
forgot its binding, a phone that changed networks. Too long for a pause that is only jitter."""
RTCP_LATCH_AGAIN_S = 15.0
"""The same for RTCP: three of its usual intervals (RFC 3550 §6.2)."""
CANDIDATES = 8
"""Sources observed at a time; more are ignored until one of these falls silent."""
CANDIDATE_S = 1.0
"""A candidate not heard for so long makes room for another."""

RTP_HEADER_BYTES = 12
RTCP_HEADER_BYTES = 8
"""With the SSRC of the sender (RFC 3550 §6.4)."""


class _Candidate:
    """A source that may be the far end."""

    __slots__ = ("heard_at", "packets", "sequence_number", "ssrc")

    def __init__(self, ssrc: bytes, sequence_number: int, now: float) -> None:
        self.ssrc = ssrc
        self.sequence_number = sequence_number
        self.packets = 1
        self.heard_at = now

    def follow(self, ssrc: bytes, sequence_number: int, now: float) -> None:
        """Count a packet that continues the stream, or begin again with it."""
        step = (sequence_number - self.sequence_number) & 0xFFFF
        follows = ssrc == self.ssrc and 0 < step <= LATCH_GAP
        self.packets = self.packets + 1 if follows else 1
        self.ssrc, self.sequence_number, self.heard_at = ssrc, sequence_number, now


class Latch:
    """The latch of one RTP stream. `now` is monotonic seconds."""

    def __init__(
        self, expected: Address | None, secure: bool, payload_types: Container[int]
    ) -> None:
        """`expected` is the address in the far end's SDP, None if it names none that can be sent
        to; `secure`: packets are authenticated; `payload_types` are those that may arrive."""
        self.destination = expected
        """Where to send: what is latched, else what SDP says; None while neither is known."""
        self._expected = expected
        self._secure = secure
        self._payload_types = payload_types
        self._locked: Address | None = None
        self._last = b""
        self._heard_at = 0.0
        self._candidates: dict[Address, _Candidate] = {}
        self._left: Address | None = None
        self._left_until = 0.0

    @property
    def locked(self) -> bool:
        """Whether the far end was heard."""
        return self._locked is not None

    @property
    def ssrc(self) -> bytes | None:
        """Of the last packet accepted; None before it."""
        return self._last[8:RTP_HEADER_BYTES] or None

    def renew(
        self, expected: Address | None, secure: bool, payload_types: Container[int], now: float
    ) -> None:
        """Another offer was answered. A new address is believed like the first was; what comes
        from the old one meanwhile is heard but not latched to. With the old address in SDP nothing
        changes: a NAT is still where it was."""
        self._secure = secure
        self._payload_types = payload_types
        if expected == self._expected:
            return
        self._expected = self.destination = expected
        if self._locked is not None and self._locked != expected:
            self._left, self._left_until = self._locked, now + LATCH_AGAIN_S
        self._locked = None
        self._candidates.clear()

    def accept(self, source: Address, data: bytes, now: float) -> bool:
        """Whether this RTP packet is to be heard. Of a secure stream: whether to authenticate
        it; `authenticated` then says that it was."""
        if source == self._locked:
            self._last, self._heard_at = data, now
            return True
        return self._secure or self._believe(source, data, now)

    def authenticated(self, source: Address, data: bytes, now: float) -> None:
        """SRTP vouches for this packet."""
        self._locked = self.destination = source
        self._last, self._heard_at = data, now

    def _believe(self, source: Address, data: bytes, now: float) -> bool:
        if len(data) < RTP_HEADER_BYTES or data[1] & 0x7F not in self._payload_types:
            return False
        if source == self._expected:
            self._lock(source, data, now)
            return True
        if source == self._left and now < self._left_until:
            return True
        ssrc = data[8:RTP_HEADER_BYTES]
        if self._locked is not None and (now - self._heard_at < LATCH_AGAIN_S or ssrc != self.ssrc):
            return False
        if self._packets_of(source, ssrc, data[2] << 8 | data[3], now) < LATCH_PACKETS:
            return False
        self._lock(source, data, now)
        return True

    def _lock(self, source: Address, data: bytes, now: float) -> None:
        self._locked = self.destination = source
        self._last, self._heard_at = data, now
        self._left = None
        self._candidates.clear()

    def _packets_of(self, source: Address, ssrc: bytes, sequence_number: int, now: float) -> int:
        """Consistent packets of this source, with this one; 0 if it is not observed."""
        candidate = self._candidates.get(source)
        if candidate is not None:
            candidate.follow(ssrc, sequence_number, now)
            return candidate.packets
        if len(self._candidates) >= CANDIDATES:
            for other, known in tuple(self._candidates.items()):
                if now - known.heard_at > CANDIDATE_S:
                    del self._candidates[other]
        if len(self._candidates) >= CANDIDATES:
            return 0
        self._candidates[source] = _Candidate(ssrc, sequence_number, now)
        return 1


class RtcpLatch:
    """The latch of the RTCP beside it, when that has a port of its own. Reports are too rare to
    observe an order in, so one from elsewhere must bear the SSRC that RTP is heard with: 32 bits
    that a sprayer does not know."""

    def __init__(self, expected: Address | None, secure: bool) -> None:
        self.destination = expected
        """Where to send, as with `Latch`."""
        self._expected = expected
        self._secure = secure
        self._locked: Address | None = None
        self._heard_at = 0.0

    def renew(self, expected: Address | None, secure: bool) -> None:
        """Another offer was answered, as with `Latch`."""
        self._secure = secure
        if expected != self._expected:
            self._expected = self.destination = expected
            self._locked = None

    def accept(self, source: Address, data: bytes, ssrc: bytes | None, now: float) -> bool:
        """Whether this RTCP datagram is to be read, or authenticated; `ssrc` is RTP's."""
        if source == self._locked:
            self._heard_at = now
            return True
        return self._secure or self._believe(source, data, ssrc, now)

    def authenticated(self, source: Address, now: float) -> None:
        """SRTCP vouches for this datagram."""
        self._locked = self.destination = source
        self._heard_at = now

    def _believe(self, source: Address, data: bytes, ssrc: bytes | None, now: float) -> bool:
        if len(data) < RTCP_HEADER_BYTES:
            return False
        if source != self._expected:
            if data[4:RTCP_HEADER_BYTES] != ssrc:
                return False
            if self._locked is not None and now - self._heard_at < RTCP_LATCH_AGAIN_S:
                return False
        self.authenticated(source, now)
        return True
