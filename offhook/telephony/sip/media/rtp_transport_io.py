"""Transport of a SIP call's media: RTP and RTCP on two UDP ports, plain or with SRTP.

A datagram passes from the socket to the leg in one call: the latch decides whether its source is
accepted, SRTP whether it is authentic. The negotiated plan gives the keys.
"""

from collections import deque
from collections.abc import Callable
from ipaddress import ip_address
from time import monotonic

from loguru import logger

from offhook.media.end_reason import End
from offhook.media.rtp.rtp_leg import RtpLeg
from offhook.telephony.sip.media.dtls_io import Handshakes
from offhook.telephony.sip.media.latch import SDP_ONLY, Address, Latch, MediaSources, RtcpLatch
from offhook.telephony.sip.media.offer_answer import Dtls, MediaPlan, Sdes
from offhook.telephony.sip.media.refused_media import RefusedMedia
from offhook.telephony.sip.media.rtp_ports_io import RtpPorts, RtpSockets
from offhook.telephony.sip.media.srtp import SdesSrtp, SrtpError

EARLY_PACKETS = 25
"""Datagrams kept that arrive before the answer to our offer, half a second of audio: the far end
may send once it has the offer (RFC 3264 §5.1), and its media often overtake the 200."""
OLD_KEYS_S = 2.0
"""How long packets under the previous keys are still accepted, for those in flight."""

RtcpObserver = Callable[[bytes, bool, Address, Address], None]
"""Called with each RTCP datagram, unencrypted: whether we send it, our address, the far end's."""


class RtpTransport:
    """Passes accepted packets, decrypted, to `leg`, and counts the others there."""

    def __init__(self, leg: RtpLeg, address: str, sources: MediaSources = SDP_ONLY) -> None:
        """`address` is our address for SDP, as the far end should see it; `sources` are those that
        may be latched besides the one in the far end's."""
        self.address = address
        self.plan: MediaPlan | None = None
        """None before the first answer."""
        self.observe_rtcp: RtcpObserver | None = None
        self._leg = leg
        self._refused = RefusedMedia(leg.call_id)
        self.sockets: RtpSockets | None = None
        self._early: deque[tuple[bool, bytes, Address, float]] = deque(maxlen=EARLY_PACKETS)
        self._latch = Latch(None, False, (), sources)
        self._rtcp_latch = RtcpLatch(None, False)
        self._sdp_address: Address | None = None
        """Address in the far end's SDP, if it can be sent to."""
        self._sdp_rtcp_address: Address | None = None
        self._secure = False
        self._srtp: SdesSrtp | None = None
        """RTP keys; None also until the DTLS handshake is complete."""
        self._srtcp: SdesSrtp | None = None
        self._old_keys: tuple[SdesSrtp, float] | None = None
        """The previous keys, and until when they are valid."""
        self._handshakes: Handshakes | None = None
        self._rtcp_handshakes: Handshakes | None = None

    async def bind(self, ports: RtpPorts) -> RtpSockets:
        """Open a pair of ports. Raises NoPorts."""
        self.sockets = await ports.open_pair(self._rtp_received, self._rtcp_received)
        self.sockets.read_compiled(self._rtp_received, self._leg, self, self._latch)
        return self.sockets

    @property
    def destination(self) -> Address | None:
        """Where our RTP goes; None if unknown."""
        return self._latch.destination

    @property
    def protection(self) -> str:
        """Key exchange and suite, "SDES AES_CM_128_HMAC_SHA1_80"; "" for plain RTP."""
        if self._srtp is None or self.plan is None:
            return ""
        exchange = "DTLS" if isinstance(self.plan.security, Dtls) else "SDES"
        return f"{exchange} {self._srtp.suite}"

    def use(self, plan: MediaPlan, now: float) -> None:
        """Apply a negotiated plan, the first or a new one."""
        before, self.plan = self.plan, plan
        if plan == before:
            return
        moved = self._use_addresses(plan, now)
        # Without ICE a far end that moves creates a new association (RFC 8842 §4).
        if (
            before is None
            or before.security != plan.security
            or (moved and isinstance(plan.security, Dtls))
        ):
            self._use_keys(plan, now)

    def deliver_early(self) -> None:
        """Pass the packets that arrived before the answer to the leg, which is ready now."""
        for rtcp, data, source, came in self._early:
            (self._receive_rtcp if rtcp else self._receive_rtp)(data, source, came)
        self._early.clear()

    def end_handshakes(self) -> None:
        for handshakes in (self._handshakes, self._rtcp_handshakes):
            if handshakes is not None:
                handshakes.close()
        self._handshakes = self._rtcp_handshakes = None

    def close(self) -> None:
        if self.sockets is not None:
            self.sockets.close()

    # --- addresses and keys ---

    def _use_addresses(self, plan: MediaPlan, now: float) -> bool:
        """Apply the plan's addresses. Returns whether the far end has moved."""
        before = self._sdp_address
        nowhere = ip_address(plan.remote[0]).is_unspecified
        if (
            not nowhere or self._sdp_address is None
        ):  # with c=0.0.0.0 (hold) the far end is where it was
            self._sdp_address = self._sendable(plan.remote)
            self._sdp_rtcp_address = self._sendable(plan.remote_rtcp)
        secure = plan.security is not None
        arriving = frozenset((*plan.receive, *plan.events_in, *plan.comfort_noise))
        self._latch.renew(self._sdp_address, secure, arriving, now)
        self._rtcp_latch.renew(self._sdp_rtcp_address, secure)
        return self._sdp_address != before

    def _sendable(self, remote: Address) -> Address | None:
        """The address in SDP, unless it is unspecified or our own loopback."""
        theirs = ip_address(remote[0])
        if theirs.is_unspecified or (theirs.is_loopback and not _is_loopback(self.address)):
            return None
        return str(theirs), remote[1]  # in the notation of sources

    def _use_keys(self, plan: MediaPlan, now: float) -> None:
        security = plan.security
        self._secure = security is not None
        self.end_handshakes()
        match security:
            case None:
                self._srtp = self._srtcp = None
            case Sdes(_, suite, local_key, remote_key, local_mki, remote_mki):
                make = SdesSrtp if self._srtp is None else self._srtp.renewed
                keys = make(suite, local_key, remote_key, local_mki, remote_mki)
                self._replace_keys(keys, now)
                self._srtcp = self._srtp
            case Dtls():
                self._start_handshakes(security, plan.rtcp_mux)

    def _replace_keys(self, keys: SdesSrtp, now: float) -> None:
        if self._srtp is not None:
            self._old_keys = self._srtp, now + OLD_KEYS_S
        self._srtp = keys

    def _start_handshakes(self, security: Dtls, mux: bool) -> None:
        """Start one handshake on each port in use (RFC 5764 §4.1)."""
        assert self.sockets is not None
        self._handshakes = Handshakes(
            security,
            self._latch.destination,
            self.sockets.send_rtp,
            self._use_dtls_keys,
            lambda reason: self._leg.close(End.NOT_PROTECTED + f": {reason}"),
            lambda words: logger.warning("{}: {}", self._leg.call_id, words),
        )
        if not mux:
            self._rtcp_handshakes = Handshakes(
                security,
                self._rtcp_latch.destination,
                self.sockets.send_rtcp,
                self._use_dtls_rtcp_keys,
                lambda reason: logger.debug("{}: no RTCP: {}", self._leg.call_id, reason),
                lambda words: logger.debug("{}: no RTCP: {}", self._leg.call_id, words),
            )

    def _use_dtls_keys(self, keys: SdesSrtp, source: Address) -> None:
        assert self.plan is not None
        now = monotonic()
        self._replace_keys(keys, now)
        self._latch.authenticated(source, b"", now)
        if self.plan.rtcp_mux:
            self._srtcp = keys

    def _use_dtls_rtcp_keys(self, keys: SdesSrtp, source: Address) -> None:
        self._srtcp = keys
        self._rtcp_latch.authenticated(source, monotonic())

    # --- packets in ---

    def _rtp_received(self, data: bytes, source: Address, now: float) -> None:
        if self.plan is None:
            self._early.append((False, data, source, now))
        else:
            self._receive_rtp(data, source, now)

    def _rtcp_received(self, data: bytes, source: Address, now: float) -> None:
        if self.plan is None:
            self._early.append((True, data, source, now))
        else:
            self._receive_rtcp(data, source, now)

    def _receive_rtp(self, data: bytes, source: Address, now: float) -> None:
        if len(data) < 2 or data[0] >> 6 != 2:
            self._receive_other(self._handshakes, data, source)
        elif 192 <= data[1] <= 223:  # multiplexed RTCP (RFC 5761 §4)
            if self._secure or source == self._latch.destination:
                self._receive_report(data, source, now)
            else:
                self._leg.refused_packets += 1
        elif not self._latch.accept(source, data, now):
            self._leg.refused_packets += 1
            if self._latch.is_foreign(source):
                self._refused.add_foreign(source, self._sdp_address)
        elif not self._secure:
            self._leg.receive_rtp(data, now)
        elif self._srtp is None:  # the DTLS handshake is not complete
            if self._handshakes is not None:
                self._handshakes.note_source(source)
        elif (plain := self._unprotect(data, now)) is not None:
            self._latch.authenticated(source, data, now)
            self._leg.receive_rtp(plain, now)
        elif source in (self._latch.destination, self._sdp_address):
            self._refused.add_failure(data, source, self._srtp, self._leg.last_packet_at, now)

    def _unprotect(self, data: bytes, now: float) -> bytes | None:
        assert self._srtp is not None
        try:
            return self._srtp.unprotect(data)
        except SrtpError:
            pass
        if self._old_keys is not None:
            old, until = self._old_keys
            try:
                if now < until:
                    return old.unprotect(data)
            except SrtpError:
                pass
        self._leg.srtp_failures += 1
        return None

    def _receive_rtcp(self, data: bytes, source: Address, now: float) -> None:
        if len(data) < 2 or data[0] >> 6 != 2:
            self._receive_other(self._rtcp_handshakes, data, source)
        elif not self._rtcp_latch.accept(source, data, self._latch, now):
            self._leg.refused_packets += 1
        elif self._receive_report(data, source, now) and self._secure:
            self._rtcp_latch.authenticated(source, now)

    def _receive_report(self, data: bytes, source: Address, now: float) -> bool:
        """Decrypt and pass on RTCP. Returns whether it was valid."""
        if self._secure:
            if self._srtcp is None:
                return False
            try:
                data = self._srtcp.unprotect_rtcp(data)
            except SrtpError:
                self._leg.srtp_failures += 1
                return False
        self._leg.receive_rtcp(data, now)
        self._observe(data, False, source)
        return True

    def _receive_other(self, handshakes: Handshakes | None, data: bytes, source: Address) -> None:
        """Handle other packets on the port (RFC 7983 §7)."""
        if handshakes is not None and data and 20 <= data[0] <= 63:
            handshakes.receive(data, source)
        elif handshakes is not None and data and data[0] < 4:  # STUN, which is not supported here
            handshakes.note_source(source)
        else:
            self._leg.malformed_packets += 1

    # --- packets out ---

    def send_rtp(self, packet: bytes) -> None:
        to, srtp = self._latch.destination, self._srtp
        if to is None or self.sockets is None:
            return
        if srtp is not None:
            self.sockets.send_rtp(srtp.protect(packet), to)
        elif not self._secure:
            self.sockets.send_rtp(packet, to)

    def send_rtcp(self, packet: bytes) -> None:
        if self.sockets is None or self.plan is None:
            return
        mux = self.plan.rtcp_mux
        to = self._latch.destination if mux else self._rtcp_latch.destination
        if to is None or (self._secure and self._srtcp is None):
            return
        self._observe(packet, True, to)
        if self._secure and self._srtcp is not None:
            packet = self._srtcp.protect_rtcp(packet)
        (self.sockets.send_rtp if mux else self.sockets.send_rtcp)(packet, to)

    def _observe(self, data: bytes, sent: bool, remote: Address) -> None:
        if self.observe_rtcp is None or self.sockets is None or self.plan is None:
            return
        port = self.sockets.port if self.plan.rtcp_mux else self.sockets.rtcp_port
        self.observe_rtcp(data, sent, (self.address, port), remote)


def _is_loopback(address: str) -> bool:
    try:
        return ip_address(address).is_loopback
    except ValueError:  # a name
        return False
