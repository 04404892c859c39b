"""A SIP call's audio as a leg, as negotiated by offer and answer; an RtpTransport carries its
packets.

Signalling is elsewhere: the session exchanges the descriptions, and the leg requests signalling
operations through its `control`.
"""

import asyncio
import random
from time import monotonic
from typing import Literal, Protocol

from offhook.media.codecs.opus import OpusSettings
from offhook.media.leg import LegError
from offhook.media.rtp.rtp_leg import RtpLeg
from offhook.media.telephone_tones.dtmf import DtmfError, DtmfQueue
from offhook.telephony.sip.media.dtls_io import local_fingerprint
from offhook.telephony.sip.media.keying import Profile
from offhook.telephony.sip.media.latch import SDP_ONLY, Address, MediaSources
from offhook.telephony.sip.media.offer_answer import (
    Direction,
    MediaNegotiation,
    MediaPlan,
    MediaSettings,
    SavedMedia,
)
from offhook.telephony.sip.media.rtp_format import format_of
from offhook.telephony.sip.media.rtp_ports_io import RtpPorts
from offhook.telephony.sip.media.rtp_transport_io import RtcpObserver, RtpTransport

MAX_SPEECH_S = 300.0
"""Seconds of our speech, or another caller's, for which a far end may send nothing."""


class LegControl(Protocol):
    """Signalling operations a leg needs. All but `hang_up` raise LegError."""

    async def hang_up(self, reason: str) -> None:
        """End the call, if it has not ended."""

    async def transfer(self, target: str) -> None: ...
    async def hold(self) -> None: ...
    async def resume(self) -> None: ...

    def send_info_dtmf(self, digit: str) -> None:
        """Send a DTMF digit by INFO (RFC 6086)."""


class SipLeg(RtpLeg):
    """The leg of one SIP call, as offerer or answerer. The session's owner calls `connect` when the
    call is answered and `close` when the far end ends it."""

    def __init__(
        self,
        call_id: str,
        settings: MediaSettings,
        ports: RtpPorts,
        address: str,
        opus: OpusSettings | None = None,
        sources: MediaSources = SDP_ONLY,
    ) -> None:
        """`address` is our address for SDP, as the far end should see it; `sources` are those that
        RTP may come from besides the one in the far end's."""
        super().__init__(call_id)
        self.control: LegControl | None = None
        self._settings = settings
        self._ports = ports
        self._opus = opus or OpusSettings()
        self._transport = RtpTransport(self, address, sources)
        self.negotiation: MediaNegotiation
        """Offer and answer; from `bind` on."""
        self._waiting_since = 0.0
        """Since when media have been expected."""
        self._closing: asyncio.Task[None] | None = None

    def observe_rtcp(self, observer: RtcpObserver) -> None:
        """Have `observer` called with each RTCP datagram of the call."""
        self._transport.observe_rtcp = observer

    # --- offer and answer ---

    async def bind(self, saved: SavedMedia | None = None) -> None:
        """Open the ports, before anything else. `saved` are the media of another server's call that
        the next offer continues. Raises NoPorts and, for `saved`, SdpError or NotAcceptable."""
        sockets = await self._transport.bind(self._ports)
        self.negotiation = MediaNegotiation(
            self._settings,
            self._transport.address,
            sockets.port,
            sockets.rtcp_port,
            session_id=random.getrandbits(62),
            fingerprint=local_fingerprint() if self._settings.dtls else "",
        )
        if saved is not None:
            self.negotiation.restore(saved)

    def offer(self, direction: Direction = "sendrecv", profile: Profile | None = None) -> str:
        """Return our offer, initial or renewed; `profile` applies to the initial one. Nothing
        changes until it is answered."""
        return self.negotiation.offer(direction, profile)

    def answer(self, sdp: str) -> str:
        """Answer an offer, initial or renewed. Raises SdpError or NotAcceptable."""
        answer = self.negotiation.answer(sdp)
        self._apply(monotonic())
        return answer

    def accept(self, sdp: str) -> None:
        """Apply the answer to our offer, from a 183 and again from the 200. Raises SdpError or
        NotAcceptable."""
        self.negotiation.accept(sdp)
        self._apply(monotonic())

    def _apply(self, now: float) -> None:
        plan, before = self.negotiation.plan, self._transport.plan
        assert plan is not None  # an exchange was completed
        wanted, expecting = self.negotiation.wanted, self._expecting
        self._transport.use(plan, now)
        self.listen_for_tones(plan.tones)
        if plan != before:
            self._use_format(plan, now)
        self.sending = plan.direction in ("sendrecv", "sendonly")
        self.receiving = plan.direction in ("sendrecv", "recvonly")
        self.set_held(not self.sending and wanted in ("sendrecv", "sendonly"))
        if before is None or self._expecting is not expecting:
            self._waiting_since = now
        self._transport.deliver_early()

    def _use_format(self, plan: MediaPlan, now: float) -> None:
        format = format_of(plan, self._opus)
        if self._opened:
            self._change_formats(format)
        else:
            self._open(format, random.getrandbits(32), now)

    def _receive_bye(self) -> None:
        """Ignore the BYE: SIP ends calls, and some send an RTCP BYE on hold."""

    # --- packets out ---

    def _send_rtp(self, packet: bytes) -> None:
        self._transport.send_rtp(packet)

    def _send_rtcp(self, packet: bytes) -> None:
        self._transport.send_rtcp(packet)

    def send_dtmf(self, digits: str) -> None:
        """Send digits as telephone events or tones; by INFO if neither works: Opus garbles
        tones."""
        plan = self._transport.plan
        if self.control is None or plan is None or plan.events_out or plan.codec.name != "opus":
            super().send_dtmf(digits)
            return
        try:
            DtmfQueue().press(digits)
        except DtmfError as error:
            raise LegError(str(error)) from error
        for digit in digits.replace(",", ""):
            self.control.send_info_dtmf(digit.upper())

    # --- status ---

    @property
    def srtp(self) -> str:
        return self._transport.protection

    @property
    def remote(self) -> Address | None:
        """Where our audio goes; None if unknown."""
        return self._transport.destination

    @property
    def waits(self) -> bool:
        return not (self._opened and self.last_packet_at)

    @property
    def _expecting(self) -> bool:
        """Whether media are expected: nobody is on hold."""
        return self.receiving and not self.held

    def media_timeout(
        self, now: float, initial_s: float, mid_call_s: float
    ) -> Literal["initial", "mid-call"] | None:
        """Return whether nothing was received for too long: since the call began, or since the last
        packet. RTCP counts, so a far end that is merely silent does not time out; one that sends
        nothing while it is silent has time from when we have stopped speaking, or MAX_SPEECH_S
        after its last packet. A limit of 0 is none."""
        if not self._opened or not self._expecting:
            return None
        if not self.last_packet_at:
            return "initial" if now - self._waiting_since > initial_s else None
        said_at = min(self.last_said_at, self.last_packet_at + MAX_SPEECH_S)
        since = max(self.last_packet_at, self._waiting_since, said_at)
        return "mid-call" if mid_call_s and now - since > mid_call_s else None

    # --- life ---

    def connect(self) -> None:
        if not self.connected:
            self._waiting_since = monotonic()
        super().connect()

    def _controls(self) -> LegControl:
        if self.control is None or self.closed is not None:
            raise LegError("the leg is not connected")
        return self.control

    async def transfer(self, target: str) -> None:
        await self._controls().transfer(target)

    async def hold(self) -> None:
        await self._controls().hold()

    async def resume(self) -> None:
        await self._controls().resume()

    async def hang_up(self, reason: str) -> None:
        """End the call in RTCP and SIP, and release the ports. Idempotent."""
        if self._opened and self.closed is None:
            self.send_bye(monotonic())
        self.close(reason)
        if self._closing is None:
            reason = self.closed or reason  # whoever closed the leg knows the reason better
            self._closing = asyncio.create_task(self._free(reason), name=f"goodbye {self.call_id}")
        await asyncio.shield(self._closing)

    async def _free(self, reason: str) -> None:
        self._transport.end_handshakes()
        try:
            if self.control is not None:
                await self.control.hang_up(reason)
        finally:
            self.control = None
            self._transport.close()
