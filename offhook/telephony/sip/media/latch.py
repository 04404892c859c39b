"""Symmetric RTP (RFC 4961): latches onto the address the far end's media come from.

SDP gives the far end's address as it knows it. Behind a NAT that is wrong, and its packets show
the right one (RFC 7362 §4). But anybody who finds our port can send packets too, so a source
other than the SDP's own is accepted only as follows.

| packet is from       | nothing heard yet     | locked to the SDP's | locked to another        |
|----------------------|-----------------------|---------------------|--------------------------|
| the source locked to |                       | accepted            | accepted                 |
| the SDP's address    | lock to it at once    |                     | lock to it at once       |
| `MediaSources`       | lock after some       | while that is silent, lock after as many of the  |
|                      | consistent packets    | same stream; else refused                        |
| elsewhere            | refused               | as above                                         |

The first packets count for nothing but their order, which a stranger can make up as well. So they
latch from anywhere only where the SDP does not say who the far end is: its address is private, and
not the one that signals. A private address that does signal is in our own network, with no NAT in
between, and nothing else is latched. If the address is public, they have to come from that host (a
NAT whose address the far end knows, but not the port) or from the one that signals (an address
learnt before the line changed, or from a wrong STUN server). See `MediaSources`.

A far end moves within a call when its NAT drops the binding, or the phone changes networks; each
second it is not accepted is a second of silence both ways. What distinguishes it from an attacker
is that the stream continues: the negotiated payload types, the SSRC (32 bits), the sequence
numbers where they left off, packet after packet in order, for a time in which the old source would
have sent but has not. Somebody who cannot see the stream does not know these; somebody who can see
plain RTP can forge all of it, and only SRTP helps. A new stream (another SSRC) from elsewhere is
not accepted without a new SDP.

With SRTP, whoever authenticates is the far end.
"""

from collections.abc import Container
from dataclasses import dataclass
from ipaddress import ip_address

Address = tuple[str, int]
"""Numeric IP address and UDP port."""

LATCH_PACKETS = 4
"""Consistent packets required from a source not in SDP: 80 ms of audio, lost once behind a NAT. A
blind attacker would have to keep a stream's order to pass."""
LATCH_GAP = 16
"""Largest gap of sequence numbers between such packets, for those lost or sent elsewhere."""
LATCH_AHEAD = 1500
"""How far a stream's sequence numbers may have advanced when it reappears elsewhere: half a minute
of audio, after which the call has timed out."""
LATCH_SPAN_S = 0.05
"""How long the latched source must have been silent while the stream came from elsewhere. A far end
that has not moved would have sent a packet, so a burst of forged ones is not enough."""
RELATCH_S = 2.0
"""Silence in s of the latched source after which sequence numbers may have restarted, so that
packets of its stream from another source are accepted. After a new SDP the previous source is
accepted for this long too."""
RTCP_RELATCH_S = 15.0
"""The same for RTCP: three of its usual intervals (RFC 3550 §6.2)."""
RTCP_LATCH_SPAN_S = 5.0
"""Like LATCH_SPAN_S: one such interval."""
MAX_CANDIDATES = 8
"""Sources observed at once; more are ignored until one of these falls silent."""
CANDIDATE_TIMEOUT_S = 1.0
"""Silence in s after which a candidate makes room for another."""

RTP_HEADER_BYTES = 12
RTCP_HEADER_BYTES = 8
"""Including the sender's SSRC (RFC 3550 §6.4)."""


@dataclass(frozen=True)
class MediaSources:
    """Whose first packets may be latched besides those from the SDP's address."""

    signalling: str = ""
    """IP address that the far end's SIP comes from; "" if it is unknown."""
    anywhere: bool = False
    """Anybody's: for trunks that send media from hosts they do not name."""

    def hosts(self, expected: Address | None) -> frozenset[str] | None:
        """Return the hosts for this address of the far end's SDP; None for any."""
        if self.anywhere or expected is None:
            return None
        host = expected[0]
        if ip_address(host).is_global:
            return frozenset((host, self.signalling))
        return frozenset() if host == self.signalling else None


SDP_ONLY = MediaSources()
"""Of a far end whose signalling is unknown."""


class _Candidate:
    """A source that may be the far end."""

    __slots__ = ("packets", "received_at", "sequence_number", "since", "ssrc")

    def __init__(self, ssrc: bytes, sequence_number: int, now: float) -> None:
        self.ssrc = ssrc
        self.sequence_number = sequence_number
        self.packets = 1
        self.since = self.received_at = now

    def follow(self, ssrc: bytes, sequence_number: int, now: float) -> None:
        """Count a packet that continues the stream, or start over with it."""
        step = (sequence_number - self.sequence_number) & 0xFFFF
        follows = ssrc == self.ssrc and 0 < step <= LATCH_GAP
        if follows:
            self.packets += 1
        else:
            self.packets, self.since = 1, now
        self.ssrc, self.sequence_number, self.received_at = ssrc, sequence_number, now


class Latch:
    """The latch of one RTP stream. `now` is monotonic seconds."""

    def __init__(
        self,
        expected: Address | None,
        secure: bool,
        payload_types: Container[int],
        sources: MediaSources = SDP_ONLY,
    ) -> None:
        """`expected` is the address in the far end's SDP, None if it cannot be sent to; `secure`
        means packets are authenticated; `payload_types` are those that may be received."""
        self.destination = expected
        """Where to send: the latched address, else the one in SDP; None if neither is known."""
        self._expected = expected
        self._secure = secure
        self._payload_types = payload_types
        self._sources = sources
        self._hosts = sources.hosts(expected)
        self._locked: Address | None = None
        self._last = b""
        self._received_at = 0.0
        self._candidates: dict[Address, _Candidate] = {}
        self._previous: Address | None = None
        self._previous_until = 0.0

    @property
    def locked(self) -> bool:
        """Whether a source has been latched."""
        return self._locked is not None

    def is_foreign(self, source: Address) -> bool:
        """Return whether packets of this source are refused for its host alone: nothing was heard
        yet."""
        return not (self.locked or self._secure or self._hosts is None or source[0] in self._hosts)

    @property
    def ssrc(self) -> bytes | None:
        """SSRC of the last packet accepted; None before the first."""
        return self._last[8:RTP_HEADER_BYTES] or None

    def renew(
        self, expected: Address | None, secure: bool, payload_types: Container[int], now: float
    ) -> None:
        """Apply a new SDP. A new address is accepted like the first one; packets from the old
        source are accepted meanwhile but not latched. If the address is unchanged nothing changes:
        a NAT is still where it was."""
        self._secure = secure
        self._payload_types = payload_types
        if expected == self._expected:
            return
        self._expected = self.destination = expected
        self._hosts = self._sources.hosts(expected)
        if self._locked is not None and self._locked != expected:
            self._previous, self._previous_until = self._locked, now + RELATCH_S
        self._locked = None
        self._candidates.clear()

    def accept(self, source: Address, data: bytes, now: float) -> bool:
        """Return whether to accept this RTP packet. For SRTP: whether to try authenticating it;
        call `authenticated` if that succeeds."""
        if source == self._locked:
            self._last, self._received_at = data, now
            if self._candidates:
                self._candidates.clear()  # it has not moved
            return True
        return self._secure or self._check_source(source, data, now)

    def authenticated(self, source: Address, data: bytes, now: float) -> None:
        """Latch the source of a packet authenticated by SRTP."""
        self._locked = self.destination = source
        self._last, self._received_at = data, now

    def _check_source(self, source: Address, data: bytes, now: float) -> bool:
        if len(data) < RTP_HEADER_BYTES or data[1] & 0x7F not in self._payload_types:
            return False
        if source == self._expected:
            self._lock(source, data, now)
            return True
        if source == self._previous and now < self._previous_until:
            return True
        ssrc, number = data[8:RTP_HEADER_BYTES], data[2] << 8 | data[3]
        moved = self._locked is not None
        if moved and not self._continues(ssrc, number, now):
            return False
        if not moved and self._hosts is not None and source[0] not in self._hosts:
            return False
        candidate = self._observe(source, ssrc, number, now)
        if candidate is None or candidate.packets < LATCH_PACKETS:
            return False
        if moved and now - candidate.since < LATCH_SPAN_S:
            return False
        self._lock(source, data, now)
        return True

    def _continues(self, ssrc: bytes, number: int, now: float) -> bool:
        """Whether a packet may be the next one of the current stream."""
        if ssrc != self.ssrc:
            return False
        step = (number - (self._last[2] << 8 | self._last[3])) & 0xFFFF
        return 0 < step <= LATCH_AHEAD or now - self._received_at >= RELATCH_S

    def _lock(self, source: Address, data: bytes, now: float) -> None:
        self._locked = self.destination = source
        self._last, self._received_at = data, now
        self._previous = None
        self._candidates.clear()

    def _observe(
        self, source: Address, ssrc: bytes, sequence_number: int, now: float
    ) -> _Candidate | None:
        """Record a packet from this source. Returns its candidate; None if it is not observed."""
        candidate = self._candidates.get(source)
        if candidate is not None:
            candidate.follow(ssrc, sequence_number, now)
            return candidate
        if len(self._candidates) >= MAX_CANDIDATES:
            for other, known in tuple(self._candidates.items()):
                if now - known.received_at > CANDIDATE_TIMEOUT_S:
                    del self._candidates[other]
        if len(self._candidates) >= MAX_CANDIDATES:
            return None
        candidate = self._candidates[source] = _Candidate(ssrc, sequence_number, now)
        return candidate


class RtcpLatch:
    """The latch of RTCP on a port of its own.

    Reports have no order to check, so those from another source must bear the SSRC of the RTP
    stream: 32 bits a blind attacker does not know. Once latched, another source is accepted if RTP
    has already moved to its host; after LATCH_PACKETS reports over RTCP_LATCH_SPAN_S in which the
    latched source was silent; or if that was silent for RTCP_LATCH_AGAIN_S.
    """

    def __init__(self, expected: Address | None, secure: bool) -> None:
        self.destination = expected
        """Where to send, as in `Latch`."""
        self._expected = expected
        self._secure = secure
        self._locked: Address | None = None
        self._received_at = 0.0
        self._candidate: Address | None = None
        """The only source whose reports have arrived since."""
        self._reports, self._since = 0, 0.0
        """Number of its reports, and when the first arrived."""

    def renew(self, expected: Address | None, secure: bool) -> None:
        """Apply a new SDP, as in `Latch`."""
        self._secure = secure
        if expected != self._expected:
            self._expected = self.destination = expected
            self._locked = self._candidate = None

    def accept(self, source: Address, data: bytes, rtp: Latch, now: float) -> bool:
        """Return whether to read (or authenticate) this RTCP datagram; `rtp` is RTP's latch."""
        if source == self._locked:
            self._received_at, self._candidate = now, None
            return True
        return self._secure or self._check_source(source, data, rtp, now)

    def authenticated(self, source: Address, now: float) -> None:
        """Latch the source of a datagram authenticated by SRTCP."""
        self._locked = self.destination = source
        self._received_at, self._candidate = now, None

    def _check_source(self, source: Address, data: bytes, rtp: Latch, now: float) -> bool:
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
            or now - self._received_at >= RTCP_RELATCH_S
        )
