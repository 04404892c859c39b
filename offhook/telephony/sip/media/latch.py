"""Where the far end's sound comes from, and so where ours goes: symmetric RTP (RFC 4961).

SDP says where the far end is, as far as it knows. Behind a NAT it knows wrong, and its packets
tell better (RFC 7362 §4). But whoever guesses our port can send packets too, so a source other
than the SDP's own is believed only as written below.

| packet is from       | nothing heard yet     | locked to the SDP's | locked to another        |
|----------------------|-----------------------|---------------------|--------------------------|
| the source locked to |                       | heard               | heard                    |
| the SDP's address    | lock to it at once    |                     | lock to it at once       |
| elsewhere            | lock after some       | while that is silent, lock after as many of the  |
|                      | consistent packets    | same stream; else refused                        |

A far end moves in the middle of a call when its NAT forgets the binding, or the phone goes from one
network to another; each second in which it is not believed is a second of silence both ways. What
tells it from somebody who guesses is that a stream goes on: the payload types agreed on, the SSRC
(32 bits), the sequence numbers where they left off, packet after packet in their order, for a time
in which the old source would have sent but has not. Who cannot see the stream does not know these;
who can see plain RTP can forge all of it, and only SRTP helps. A new stream (another SSRC) from
elsewhere is nobody's without a new SDP.

With SRTP there is nothing to guess: whoever authenticates is the far end.
"""

from collections.abc import Container

Address = tuple[str, int]
"""Numeric IP address and UDP port."""

LATCH_PACKETS = 4
"""Consistent packets of a source that SDP did not name: 80 ms of sound, which a NAT costs once. A
blind sprayer would have to keep a stream's order to pass."""
LATCH_GAP = 16
"""How far sequence numbers may skip between such packets, for those lost or sent elsewhere."""
LATCH_AHEAD = 1500
"""How far the sequence numbers of a stream may have gone on when it is heard from elsewhere: half a
minute of sound, after which a call without any is over."""
LATCH_SPAN_S = 0.05
"""The source locked to must have been silent for so long while the stream came from elsewhere. Of a
far end that has not moved a packet would have come, so a burst of forged ones is not enough."""
LATCH_AGAIN_S = 2.0
"""Silence of the source locked to after which the sequence numbers may have begun anew. For so long
the source before is heard, too, after a new SDP."""
RTCP_LATCH_AGAIN_S = 15.0
"""The same for RTCP: three of its usual intervals (RFC 3550 §6.2)."""
RTCP_LATCH_SPAN_S = 5.0
"""As LATCH_SPAN_S: one such interval."""
CANDIDATES = 8
"""Sources observed at a time; more are ignored until one of these falls silent."""
CANDIDATE_S = 1.0
"""A candidate not heard for so long makes room for another."""

RTP_HEADER_BYTES = 12
RTCP_HEADER_BYTES = 8
"""With the SSRC of the sender (RFC 3550 §6.4)."""


class _Candidate:
    """A source that may be the far end."""

    __slots__ = ("heard_at", "packets", "sequence_number", "since", "ssrc")

    def __init__(self, ssrc: bytes, sequence_number: int, now: float) -> None:
        self.ssrc = ssrc
        self.sequence_number = sequence_number
        self.packets = 1
        self.since = self.heard_at = now

    def follow(self, ssrc: bytes, sequence_number: int, now: float) -> None:
        """Count a packet that continues the stream, or begin again with it."""
        step = (sequence_number - self.sequence_number) & 0xFFFF
        follows = ssrc == self.ssrc and 0 < step <= LATCH_GAP
        if follows:
            self.packets += 1
        else:
            self.packets, self.since = 1, now
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
            if self._candidates:
                self._candidates.clear()  # it has not moved
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
        ssrc, number = data[8:RTP_HEADER_BYTES], data[2] << 8 | data[3]
        moved = self._locked is not None
        if moved and not self._goes_on(ssrc, number, now):
            return False
        candidate = self._observed(source, ssrc, number, now)
        if candidate is None or candidate.packets < LATCH_PACKETS:
            return False
        if moved and now - candidate.since < LATCH_SPAN_S:
            return False
        self._lock(source, data, now)
        return True

    def _goes_on(self, ssrc: bytes, number: int, now: float) -> bool:
        """Whether a packet may be the next of the stream that is heard."""
        if ssrc != self.ssrc:
            return False
        step = (number - (self._last[2] << 8 | self._last[3])) & 0xFFFF
        return 0 < step <= LATCH_AHEAD or now - self._heard_at >= LATCH_AGAIN_S

    def _lock(self, source: Address, data: bytes, now: float) -> None:
        self._locked = self.destination = source
        self._last, self._heard_at = data, now
        self._left = None
        self._candidates.clear()

    def _observed(
        self, source: Address, ssrc: bytes, sequence_number: int, now: float
    ) -> _Candidate | None:
        """What is known of this source, with this packet; None if it is not observed."""
        candidate = self._candidates.get(source)
        if candidate is not None:
            candidate.follow(ssrc, sequence_number, now)
            return candidate
        if len(self._candidates) >= CANDIDATES:
            for other, known in tuple(self._candidates.items()):
                if now - known.heard_at > CANDIDATE_S:
                    del self._candidates[other]
        if len(self._candidates) >= CANDIDATES:
            return None
        candidate = self._candidates[source] = _Candidate(ssrc, sequence_number, now)
        return candidate


class RtcpLatch:
    """The latch of the RTCP beside it, when that has a port of its own.

    Reports have no order to observe, so those from elsewhere must bear the SSRC that RTP is heard
    with: 32 bits that a sprayer does not know. Once locked, a source elsewhere is believed when RTP
    has moved to its host already; after LATCH_PACKETS reports over RTCP_LATCH_SPAN_S in which the
    source locked to was silent; or when that was silent for RTCP_LATCH_AGAIN_S.
    """

    def __init__(self, expected: Address | None, secure: bool) -> None:
        self.destination = expected
        """Where to send, as with `Latch`."""
        self._expected = expected
        self._secure = secure
        self._locked: Address | None = None
        self._heard_at = 0.0
        self._candidate: Address | None = None
        """Whose reports, and nobody else's, have come since."""
        self._reports, self._since = 0, 0.0
        """Of it, and when the first came."""

    def renew(self, expected: Address | None, secure: bool) -> None:
        """Another offer was answered, as with `Latch`."""
        self._secure = secure
        if expected != self._expected:
            self._expected = self.destination = expected
            self._locked = self._candidate = None

    def accept(self, source: Address, data: bytes, rtp: Latch, now: float) -> bool:
        """Whether this RTCP datagram is to be read, or authenticated; `rtp` is RTP's latch."""
        if source == self._locked:
            self._heard_at, self._candidate = now, None
            return True
        return self._secure or self._believe(source, data, rtp, now)

    def authenticated(self, source: Address, now: float) -> None:
        """SRTCP vouches for this datagram."""
        self._locked = self.destination = source
        self._heard_at, self._candidate = now, None

    def _believe(self, source: Address, data: bytes, rtp: Latch, now: float) -> bool:
        if len(data) < RTCP_HEADER_BYTES:
            return False
        if source != self._expected:
            if data[4:RTCP_HEADER_BYTES] != rtp.ssrc:
                return False
            if self._locked is not None and not self._has_moved(self._locked, source, rtp, now):
                return False
        self.authenticated(source, now)
        return True

    def _has_moved(self, before: Address, source: Address, rtp: Latch, now: float) -> bool:
        if source != self._candidate:
            self._candidate, self._reports, self._since = source, 0, now
        self._reports += 1
        with_rtp = rtp.locked and rtp.destination is not None and rtp.destination[0] == source[0]
        return (
            (with_rtp and before[0] != source[0])
            or (self._reports >= LATCH_PACKETS and now - self._since >= RTCP_LATCH_SPAN_S)
            or now - self._heard_at >= RTCP_LATCH_AGAIN_S
        )
