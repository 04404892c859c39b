"""A SIP call's sound as a Leg: RTP and RTCP on two UDP ports of its own, plain or under SRTP, as
offer and answer have agreed.

A datagram goes from the socket to the jitter buffer in one call: the latch says whether to believe
its source, SRTP whether it is authentic. Signalling is not here: the session exchanges the
descriptions, and what a leg cannot do by itself it asks of its `control`.
"""

import asyncio
import random
from collections import deque
from ipaddress import ip_address
from time import monotonic
from typing import Literal, Protocol

from loguru import logger

from offhook.media.codecs.opus import OpusSettings
from offhook.media.dtmf import DtmfError, KeyPresses
from offhook.media.end_reason import End
from offhook.media.leg import LegError
from offhook.media.rtp.rtp_leg import RtpLeg
from offhook.telephony.sip.media.dtls_io import Handshakes, local_fingerprint
from offhook.telephony.sip.media.keying import Profile
from offhook.telephony.sip.media.latch import Address, Latch, RtcpLatch
from offhook.telephony.sip.media.offer_answer import (
    Direction,
    Dtls,
    MediaNegotiation,
    MediaPlan,
    MediaSettings,
    Sdes,
)
from offhook.telephony.sip.media.rtp_format import format_of
from offhook.telephony.sip.media.rtp_ports_io import RtpPorts, RtpSockets
from offhook.telephony.sip.media.srtp import SdesSrtp, SrtpError

EARLY_PACKETS = 25
"""Datagrams kept that come before the answer to our offer, half a second of sound: the far end may
send as soon as it has the offer (RFC 3264 §5.1), and its first word often overtakes its 200."""
OLD_KEYS_S = 2.0
"""How long packets under the keys before are still heard, for those that were under way."""


class LegControl(Protocol):
    """What a leg asks of the signalling. All but `hang_up` raise LegError."""

    async def hang_up(self, reason: str) -> None:
        """End the call, if it has not ended."""

    async def transfer(self, target: str) -> None: ...
    async def hold(self) -> None: ...
    async def resume(self) -> None: ...

    def send_info_dtmf(self, digit: str) -> None:
        """Tell of a key press by an INFO (RFC 6086)."""


class SipLeg(RtpLeg):
    """One SIP call, on either side of the offer. The session's owner calls `connect` when the call
    is answered and `close` when the far end ends it."""

    def __init__(
        self,
        call_id: str,
        settings: MediaSettings,
        ports: RtpPorts,
        address: str,
        opus: OpusSettings | None = None,
    ) -> None:
        """`address` is ours as the far end should see it, in SDP."""
        super().__init__(call_id)
        self.control: LegControl | None = None
        self.refused_packets = 0
        """From sources that are not believed."""
        self._settings = settings
        self._ports = ports
        self._address = address
        self._opus = opus or OpusSettings()
        self._sockets: RtpSockets | None = None
        self._negotiation: MediaNegotiation
        self._plan: MediaPlan | None = None
        self._early: deque[tuple[bool, bytes, Address, float]] = deque(maxlen=EARLY_PACKETS)
        self._latch = Latch(None, False, ())
        self._rtcp_latch = RtcpLatch(None, False)
        self._told: Address | None = None
        """In the far end's SDP, if it can be sent to."""
        self._told_rtcp: Address | None = None
        self._secure = False
        self._srtp: SdesSrtp | None = None
        """Of RTP; None too while DTLS has not agreed on keys."""
        self._srtcp: SdesSrtp | None = None
        self._old_keys: tuple[SdesSrtp, float] | None = None
        """Those before, and until when they are good."""
        self._handshakes: Handshakes | None = None
        self._rtcp_handshakes: Handshakes | None = None
        self._waiting_since = 0.0
        """From when on sound was to be expected."""
        self._goodbye: asyncio.Task[None] | None = None

    # --- offer and answer ---

    async def bind(self) -> None:
        """Open the ports; before anything else. Raises NoPorts."""
        self._sockets = await self._ports.pair(self._rtp_received, self._rtcp_received)
        self._negotiation = MediaNegotiation(
            self._settings,
            self._address,
            self._sockets.port,
            self._sockets.rtcp_port,
            session_id=random.getrandbits(62),
            fingerprint=local_fingerprint() if self._settings.dtls else "",
        )

    @property
    def profiles(self) -> tuple[Profile, ...]:
        """Of a first offer, in the order of trying; none once the sound is agreed on."""
        return self._negotiation.profiles

    def offer(self, direction: Direction = "sendrecv", profile: Profile | None = None) -> str:
        """Our offer, first or renewed; `profile` of a first one. Nothing changes before its
        answer."""
        return self._negotiation.offer(direction, profile)

    def answer(self, sdp: str) -> str:
        """Answer an offer, first or renewed. Raises SdpError and NotAcceptable."""
        answer = self._negotiation.answer(sdp)
        self._apply(monotonic())
        return answer

    def accept(self, sdp: str) -> None:
        """Take the answer to our offer, of a 183 and again of the 200. Raises SdpError and
        NotAcceptable."""
        self._negotiation.accept(sdp)
        self._apply(monotonic())

    def rollback(self) -> None:
        """Our offer was refused: all stays as it was."""
        self._negotiation.rollback()

    def _apply(self, now: float) -> None:
        plan, before = self._negotiation.plan, self._plan
        assert plan is not None  # an exchange was completed
        wanted = self._negotiation.wanted
        self._plan = plan
        if plan != before:
            moved = self._use_addresses(plan, now)
            if before is None or before.security != plan.security:
                self._use_keys(plan, now)
            elif moved and isinstance(plan.security, Dtls):
                self._use_keys(plan, now)  # without ICE another association (RFC 8842 §4)
            self._use_format(plan, now)
        expecting = self._expecting
        self.sending = plan.direction in ("sendrecv", "sendonly")
        self.receiving = plan.direction in ("sendrecv", "recvonly")
        self.set_held(not self.sending and wanted in ("sendrecv", "sendonly"))
        if before is None or self._expecting is not expecting:
            self._waiting_since = now
        for rtcp, data, source, came in self._early:
            (self._take_rtcp if rtcp else self._take_rtp)(data, source, came)
        self._early.clear()

    def _use_addresses(self, plan: MediaPlan, now: float) -> bool:
        """Whether the far end is now elsewhere."""
        before = self._told
        nowhere = ip_address(plan.remote[0]).is_unspecified
        if not nowhere or self._told is None:  # held by c=0.0.0.0, the far end is where it was
            self._told = self._sendable(plan.remote)
            self._told_rtcp = self._sendable(plan.remote_rtcp)
        secure = plan.security is not None
        arriving = frozenset((*plan.receive, *plan.events_in, *plan.comfort_noise))
        self._latch.renew(self._told, secure, arriving, now)
        self._rtcp_latch.renew(self._told_rtcp, secure)
        return self._told != before

    def _sendable(self, remote: Address) -> Address | None:
        """What SDP says, unless that is nowhere, or some service of our own machine."""
        theirs = ip_address(remote[0])
        if theirs.is_unspecified or (theirs.is_loopback and not _is_loopback(self._address)):
            return None
        return remote

    def _use_keys(self, plan: MediaPlan, now: float) -> None:
        security = plan.security
        self._secure = security is not None
        self._close_handshakes()
        match security:
            case None:
                self._srtp = self._srtcp = None
            case Sdes(_, suite, local_key, remote_key):
                make = SdesSrtp if self._srtp is None else self._srtp.renewed
                self._replace_keys(make(suite, local_key, remote_key), now)
                self._srtcp = self._srtp
            case Dtls():
                self._shake_hands(security, plan.rtcp_mux)

    def _replace_keys(self, keys: SdesSrtp, now: float) -> None:
        if self._srtp is not None:
            self._old_keys = self._srtp, now + OLD_KEYS_S
        self._srtp = keys

    def _shake_hands(self, security: Dtls, mux: bool) -> None:
        """One handshake on each port that is used (RFC 5764 §4.1)."""
        assert self._sockets is not None
        self._handshakes = Handshakes(
            security,
            self._latch.destination,
            self._sockets.send_rtp,
            self._use_dtls_keys,
            lambda reason: self.close(End.NOT_PROTECTED + f": {reason}"),
            lambda words: logger.warning("{}: {}", self.call_id, words),
        )
        if not mux:
            self._rtcp_handshakes = Handshakes(
                security,
                self._rtcp_latch.destination,
                self._sockets.send_rtcp,
                self._use_dtls_rtcp_keys,
                lambda reason: logger.debug("{}: no RTCP: {}", self.call_id, reason),
                lambda words: logger.debug("{}: no RTCP: {}", self.call_id, words),
            )

    def _use_dtls_keys(self, keys: SdesSrtp, source: Address) -> None:
        assert self._plan is not None
        now = monotonic()
        self._replace_keys(keys, now)
        self._latch.authenticated(source, b"", now)
        if self._plan.rtcp_mux:
            self._srtcp = keys

    def _use_dtls_rtcp_keys(self, keys: SdesSrtp, source: Address) -> None:
        self._srtcp = keys
        self._rtcp_latch.authenticated(source, monotonic())

    def _close_handshakes(self) -> None:
        for handshakes in (self._handshakes, self._rtcp_handshakes):
            if handshakes is not None:
                handshakes.close()
        self._handshakes = self._rtcp_handshakes = None

    def _use_format(self, plan: MediaPlan, now: float) -> None:
        format = format_of(plan, self._opus)
        if self._opened:
            self._change(format)
        else:
            self._open(format, random.getrandbits(32), now)

    # --- packets in ---

    def _rtp_received(self, data: bytes, source: Address) -> None:
        if self._plan is None:
            self._early.append((False, data, source, monotonic()))
        else:
            self._take_rtp(data, source, monotonic())

    def _rtcp_received(self, data: bytes, source: Address) -> None:
        if self._plan is None:
            self._early.append((True, data, source, monotonic()))
        else:
            self._take_rtcp(data, source, monotonic())

    def _take_rtp(self, data: bytes, source: Address, now: float) -> None:
        if len(data) < 2 or data[0] >> 6 != 2:
            self._take_other(self._handshakes, data, source)
        elif 192 <= data[1] <= 223:  # RTCP beside it (RFC 5761 §4)
            if self._secure or source == self._latch.destination:
                self._take_report(data, now)
            else:
                self.refused_packets += 1
        elif not self._latch.accept(source, data, now):
            self.refused_packets += 1
        elif not self._secure:
            self.receive_rtp(data, now)
        elif self._srtp is None:  # DTLS has not agreed on keys
            if self._handshakes is not None:
                self._handshakes.heard(source)
        elif (plain := self._unprotect(data, now)) is not None:
            self._latch.authenticated(source, data, now)
            self.receive_rtp(plain, now)

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
        self.srtp_failures += 1
        return None

    def _take_rtcp(self, data: bytes, source: Address, now: float) -> None:
        if len(data) < 2 or data[0] >> 6 != 2:
            self._take_other(self._rtcp_handshakes, data, source)
        elif not self._rtcp_latch.accept(source, data, self._latch, now):
            self.refused_packets += 1
        elif self._take_report(data, now) and self._secure:
            self._rtcp_latch.authenticated(source, now)

    def _take_report(self, data: bytes, now: float) -> bool:
        """RTCP whose source is believed, or is to be proved."""
        if self._secure:
            if self._srtcp is None:
                return False
            try:
                data = self._srtcp.unprotect_rtcp(data)
            except SrtpError:
                self.srtp_failures += 1
                return False
        self.receive_rtcp(data, now)
        return True

    def _take_other(self, handshakes: Handshakes | None, data: bytes, source: Address) -> None:
        """What else shares the port (RFC 7983 §7)."""
        if handshakes is not None and data and 20 <= data[0] <= 63:
            handshakes.receive(data, source)
        elif handshakes is not None and data and data[0] < 4:  # STUN, which we do not speak here
            handshakes.heard(source)
        else:
            self.malformed_packets += 1

    def _stream_ended(self) -> None:
        """Nothing: it is SIP that ends calls. Some say goodbye to their stream when they hold."""

    # --- packets out ---

    def _send_rtp(self, packet: bytes) -> None:
        to, srtp = self._latch.destination, self._srtp
        if to is None or self._sockets is None:
            return
        if srtp is not None:
            self._sockets.send_rtp(srtp.protect(packet), to)
        elif not self._secure:
            self._sockets.send_rtp(packet, to)

    def _send_rtcp(self, packet: bytes) -> None:
        if self._sockets is None or self._plan is None:
            return
        if self._secure:
            if self._srtcp is None:
                return
            packet = self._srtcp.protect_rtcp(packet)
        if self._plan.rtcp_mux:
            if self._latch.destination is not None:
                self._sockets.send_rtp(packet, self._latch.destination)
        elif self._rtcp_latch.destination is not None:
            self._sockets.send_rtcp(packet, self._rtcp_latch.destination)

    def send_dtmf(self, digits: str) -> None:
        """Without telephone events keys are pressed as tones; Opus garbles them: there, by INFO."""
        plan = self._plan
        if self.control is None or plan is None or plan.events_out or plan.codec.name != "opus":
            super().send_dtmf(digits)
            return
        try:
            KeyPresses().press(digits)
        except DtmfError as error:
            raise LegError(str(error)) from error
        for digit in digits.replace(",", ""):
            self.control.send_info_dtmf(digit.upper())

    def send_message(self, text: str) -> bool:
        return False

    # --- how it goes ---

    @property
    def codec(self) -> str:
        """What we send; "" before the first answer."""
        return self._codec

    @property
    def srtp(self) -> str:
        """How the sound is protected, "SDES AES_CM_128_HMAC_SHA1_80"; "" when it is not."""
        if self._srtp is None or self._plan is None:
            return ""
        way = "DTLS" if isinstance(self._plan.security, Dtls) else "SDES"
        return f"{way} {self._srtp.suite}"

    @property
    def remote(self) -> Address | None:
        """Where our sound goes; None while that is not known."""
        return self._latch.destination

    @property
    def _expecting(self) -> bool:
        """Whether sound is to be expected: nobody is on hold."""
        return self.receiving and not self.held

    def media_timeout(
        self, now: float, initial_s: float, mid_call_s: float
    ) -> Literal["initial", "mid-call"] | None:
        """Whether nothing has been heard for too long: since the call began, or since the last
        packet. Reports count, so a far end that is merely silent is not taken for gone."""
        if not self._opened or not self._expecting:
            return None
        if not self.last_packet_at:
            return "initial" if now - self._waiting_since > initial_s else None
        since = max(self.last_packet_at, self._waiting_since)
        return "mid-call" if now - since > mid_call_s else None

    # --- life ---

    def connect(self) -> None:
        if not self.connected:
            self._waiting_since = monotonic()
        super().connect()

    def _controls(self) -> LegControl:
        if self.control is None or self.closed is not None:
            raise LegError("the line is not up")
        return self.control

    async def transfer(self, target: str) -> None:
        await self._controls().transfer(target)

    async def hold(self) -> None:
        await self._controls().hold()

    async def resume(self) -> None:
        await self._controls().resume()

    async def hang_up(self, reason: str) -> None:
        """End the call in RTCP and SIP, and give the ports back to rest. Idempotent."""
        if self._opened and self.closed is None:
            self.send_bye(monotonic())
        self.close(reason)
        if self._goodbye is None:
            reason = self.closed or reason  # who closed the line knows better why
            self._goodbye = asyncio.create_task(self._free(reason), name=f"goodbye {self.call_id}")
        await asyncio.shield(self._goodbye)

    async def _free(self, reason: str) -> None:
        self._close_handshakes()
        try:
            if self.control is not None:
                await self.control.hang_up(reason)
        finally:
            self.control = None
            if self._sockets is not None:
                self._sockets.close()


def _is_loopback(address: str) -> bool:
    try:
        return ip_address(address).is_loopback
    except ValueError:  # a name
        return False
