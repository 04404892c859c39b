"""A WebRTC peer as a Leg: ICE, DTLS, SRTP, SDP and the data channel by aiortc, the sound by us.

aiortc's own audio path (a thread a receiver, a task a sender, a jitter buffer that never recovers)
is not started: its `RTCRtpSender.send` and `RTCRtpReceiver.receive` are replaced on the instances,
and RTP is taken from the ICE connection the moment the datagram arrives. This leans on private
names of aiortc 1.16.0 and aioice 0.13.0; both are pinned, and tests/signaling/test_peer.py fails
when they move.
"""

import asyncio
import contextlib
import json
import re
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from time import monotonic
from typing import Any

import aioice.ice
import aiortc.codecs
import aiortc.rtcsctptransport
import pylibsrtp
from aiortc import (
    MediaStreamTrack,
    RTCConfiguration,
    RTCDataChannel,
    RTCIceServer,
    RTCPeerConnection,
    RTCRtpCodecParameters,
    RTCSessionDescription,
)
from aiortc.rtcrtptransceiver import RTCRtpTransceiver
from aiortc.sdp import SessionDescription, candidate_from_sdp
from loguru import logger

from offhook.media.codecs.codec import Decoder, Encoder
from offhook.media.codecs.g711 import PcmaDecoder, PcmaEncoder, PcmuDecoder, PcmuEncoder
from offhook.media.codecs.g722 import G722Decoder, G722Encoder
from offhook.media.codecs.opus import OpusDecoder, OpusEncoder, OpusSettings
from offhook.media.end_reason import End
from offhook.media.rtp.rtp_leg import RtpFormat, RtpLeg

CONNECT_TIMEOUT_S = 15
"""From the answer to a connected peer. Browsers take a second, or five behind a slow TURN server; a
peer that has not come by then holds a line for nothing."""
PING_TIMEOUT_S = 15
"""The web client pings every second on the data channel. Stock servers mute the agent after 3 s
without one, which a backgrounded tab easily reaches; ours ends the call, so it waits for as long as
a browser takes to notice a dead path and come back (Chromium: 7 s). Media that keeps flowing counts
as a sign of life too."""
SCTP_PAYLOAD_BYTES = 1100
"""aiortc's 1200 makes datagrams of 1305 bytes, which stall on paths with an MTU of 1280
(IPv6 tunnels, VPNs)."""
MESSAGE_BACKLOG = 64
"""Messages kept while the data channel is not open yet; the oldest are dropped beyond that."""
CHANNEL_BUFFER_BYTES = 256 * 1024
"""A peer that stops reading its data channel gets no more messages beyond this."""
GOODBYE_S = 0.3
"""How long hanging up waits for messages that are still to be sent."""
SDP_LINES = 1000
MEDIA_LIMIT = 8
CANDIDATES_LIMIT = 128
"""Bounds of a session description; a browser sends some 200 lines, 3 m-lines and 20 candidates.
aiortc takes seconds of the event loop for thousands, and opens a socket for every m-line."""

PONG = json.dumps({"type": "pong"})
"""Answers each ping, so that the far end notices a dead line as soon as we do. Stock clients ignore
JSON without RTVI's label."""
TELEPHONE_EVENT = "audio/telephone-event"
TELEPHONE_EVENTS = {48_000: 110, 8_000: 101}
"""Clock rates in Hz of key presses beside the sound (RFC 4733), with the payload types that we
offer them by. Chromium and Firefox offer 8 kHz beside Opus; Chromium 48 kHz too."""

aiortc.rtcsctptransport.USERDATA_MAX_LENGTH = SCTP_PAYLOAD_BYTES
aiortc.codecs.CODECS["audio"] += [
    RTCRtpCodecParameters(TELEPHONE_EVENT, clock_rate, 1, payload_type)
    for clock_rate, payload_type in TELEPHONE_EVENTS.items()
]


class OfferError(ValueError):
    """The session description cannot be answered; the message says why in SDP's terms."""


def use_addresses(addresses: Sequence[str]) -> None:
    """Offer exactly these local addresses as ICE host candidates, process-wide.

    aioice offers every interface but loopback; a server told to stay on loopback, or one behind
    several networks, wants to say which.
    """

    def host_addresses(use_ipv4: bool, use_ipv6: bool) -> list[str]:
        return [a for a in addresses if (use_ipv6 if ":" in a else use_ipv4)]

    aioice.ice.get_host_addresses = host_addresses


_malformed_stun: list[Callable[[], None]] = []


def on_malformed_stun(count: Callable[[], None]) -> None:
    """`count` is called for every datagram that anybody sent to a port of ours and that is no STUN
    message, though its first bytes say so. The last who asked is told."""
    _malformed_stun[:] = [count]


def _guard_stun() -> None:
    """Let no datagram raise out of aioice, which would be a traceback for each of them."""
    received = aioice.ice.StunProtocol.datagram_received

    def datagram_received(
        self: aioice.ice.StunProtocol, data: bytes | str, addr: tuple[Any, ...]
    ) -> None:
        try:
            received(self, data, addr)
        except Exception as error:  # struct.error, KeyError, …: whatever a parser stumbles over
            for count in _malformed_stun:
                count()
            logger.warning("x malformed STUN from {}:{}: {}", addr[0], addr[1], _reason(error))

    aioice.ice.StunProtocol.datagram_received = datagram_received  # type: ignore[method-assign]


_guard_stun()


class _SilentTrack(MediaStreamTrack):
    """Stands in the SDP for the sound that the leg sends itself; nobody reads it."""

    kind = "audio"

    async def recv(self) -> Any:
        raise NotImplementedError("the leg sends its own RTP")


DECODERS: dict[str, Callable[[], Decoder]] = {
    "opus": OpusDecoder,
    "g722": G722Decoder,
    "pcmu": PcmuDecoder,
    "pcma": PcmaDecoder,
}


def _encoder(name: str, opus: OpusSettings) -> Encoder:
    match name:
        case "g722":
            return G722Encoder()
        case "pcmu":
            return PcmuEncoder()
        case "pcma":
            return PcmaEncoder()
    return OpusEncoder(opus)


def _with_opus_parameters(sdp: str) -> str:
    """Ask the far end for in-band FEC and mono speech (RFC 7587 §6.1); aiortc writes no fmtp."""

    def add(match: re.Match[str]) -> str:
        return f"{match[0]}a=fmtp:{match[1]} minptime=10;useinbandfec=1;stereo=0\r\n"

    return re.sub(r"a=rtpmap:(\d+) opus/48000/2\r\n(?!a=fmtp)", add, sdp, flags=re.IGNORECASE)


def _check(sdp: str) -> None:
    """Refuse what aiortc would stumble over half way. Raises ValueError."""
    if len(sdp.splitlines()) > SDP_LINES:
        raise ValueError(f"more than {SDP_LINES} lines")
    description = SessionDescription.parse(sdp)
    media = [m for m in description.media if m.kind in ("audio", "video", "application")]
    if len(media) > MEDIA_LIMIT:
        raise ValueError(f"more than {MEDIA_LIMIT} m-lines")
    if not any(m.kind == "audio" for m in media):
        raise ValueError("there is no audio m-line")
    if sum(len(m.ice_candidates) for m in media) > CANDIDATES_LIMIT:
        raise ValueError(f"more than {CANDIDATES_LIMIT} ICE candidates")
    mids = {m.rtp.muxId for m in media}
    for group in description.group:
        if group.semantic == "BUNDLE" and not mids.issuperset(group.items[:1]):
            raise ValueError(f"no m-line has the mid {group.items[0]!r} of the BUNDLE group")


def _is_event(codec: RTCRtpCodecParameters) -> bool:
    return codec.mimeType.lower() == TELEPHONE_EVENT


def _reason(error: Exception) -> str:
    """An assertion of aiortc's has no words of its own."""
    return str(error) or type(error).__name__


class PeerLeg(RtpLeg):
    """One WebRTC peer, on either side of the offer."""

    def __init__(
        self,
        call_id: str,
        ice_servers: Sequence[RTCIceServer] = (),
        opus: OpusSettings | None = None,
        ping_timeout: float = PING_TIMEOUT_S,
    ) -> None:
        super().__init__(call_id)
        self._opus = opus or OpusSettings()
        self._pc = RTCPeerConnection(RTCConfiguration(iceServers=list(ice_servers)))
        self.remote = ""
        """The IP address that the offer came from."""
        self._channel: RTCDataChannel | None = None
        self._backlog: list[str] = []
        self._trickled = 0
        self._alive_at = 0.0
        """When the peer connected or pinged last."""
        self._ping_timeout = ping_timeout
        self._watch: asyncio.Task[None] | None = None
        self._goodbye: asyncio.Task[None] | None = None
        self._srtp_out: pylibsrtp.Session | None = None
        self._datagram_out: Callable[[bytes], None] = lambda data: None
        self._pc.on("datachannel", self._use_channel)
        self._pc.on("connectionstatechange", self._state_changed)

    # --- offer and answer ---

    async def answer(self, sdp: str) -> str:
        """Answer an offer, first or renewed, with our SDP. Raises OfferError."""
        if len(self._pc.getTransceivers()) > MEDIA_LIMIT:
            raise OfferError(f"more than {MEDIA_LIMIT} m-lines were offered so far")
        try:
            _check(sdp)
            await self._pc.setRemoteDescription(RTCSessionDescription(sdp, "offer"))
            self._prepare_media()
            await self._pc.setLocalDescription(await self._pc.createAnswer())
        except Exception as error:  # aiortc raises what it stumbles over: any type
            raise OfferError(f"cannot answer the offer: {_reason(error)}") from error
        if self._watch is None:
            self._watch = asyncio.create_task(self._keep_watch(), name=f"watch {self.call_id}")
        return _with_opus_parameters(self._pc.localDescription.sdp)

    async def offer(self) -> str:
        """Offer audio and the data channel "chat", as a web client does."""
        self._pc.addTransceiver("audio", direction="sendrecv")
        self._use_channel(self._pc.createDataChannel("chat"))
        self._prepare_media()
        await self._pc.setLocalDescription(await self._pc.createOffer())
        self._watch = asyncio.create_task(self._keep_watch(), name=f"watch {self.call_id}")
        return _with_opus_parameters(self._pc.localDescription.sdp)

    async def accept(self, sdp: str) -> None:
        """Take the far end's answer to our offer. Raises OfferError."""
        try:
            _check(sdp)
            await self._pc.setRemoteDescription(RTCSessionDescription(sdp, "answer"))
        except Exception as error:  # as above
            raise OfferError(f"cannot use the answer: {_reason(error)}") from error

    async def add_candidate(self, candidate: str, mid: str | None, index: int | None) -> None:
        """Take a trickled candidate; an empty one ends them (RFC 8840 §4.4). Raises OfferError."""
        self._trickled += 1
        if self._trickled > CANDIDATES_LIMIT:
            raise OfferError(f"more than {CANDIDATES_LIMIT} ICE candidates")
        parsed = None
        try:
            if candidate:
                parsed = candidate_from_sdp(candidate.removeprefix("candidate:"))
                parsed.sdpMid, parsed.sdpMLineIndex = mid, index
            await self._pc.addIceCandidate(parsed)
        except Exception as error:  # as above
            message = f"cannot use the ICE candidate {candidate[:80]!r}: {_reason(error)}"
            raise OfferError(message) from error

    def _prepare_media(self) -> None:
        """Put our sound in place of aiortc's on the first audio m-line; answer others inactive."""
        audio = None
        for transceiver in self._pc.getTransceivers():
            if transceiver._offerDirection is None:  # unsaid is sendrecv (RFC 8866 §6.7)
                transceiver._offerDirection = "sendrecv"
            if transceiver.kind == "audio" and audio is None:
                audio = transceiver
                if transceiver._codecs and all(map(_is_event, transceiver._codecs)):
                    raise ValueError("no audio codec in common")
                if transceiver.sender.track is None:
                    transceiver.sender.replaceTrack(_SilentTrack())
                    transceiver.direction = "sendrecv"
            else:
                transceiver.direction = "inactive"

            start = self._starter(transceiver if transceiver is audio else None)
            for side, name in ((transceiver.sender, "send"), (transceiver.receiver, "receive")):
                setattr(side, name, start)

    # --- media ---

    def _starter(self, audio: RTCRtpTransceiver | None) -> Callable[[Any], Awaitable[None]]:
        """What aiortc calls in place of starting its own sender or receiver."""

        async def start(parameters: Any) -> None:
            if audio is not None:
                self._start_media(audio)

        return start

    def _start_media(self, transceiver: RTCRtpTransceiver) -> None:
        """DTLS is up: open the sound on the negotiated codecs. aiortc calls this once for each
        direction and again after a renegotiation."""
        dtls = transceiver.receiver.transport
        self._srtp_out = dtls._tx_srtp
        codecs = [c for c in transceiver._codecs if not _is_event(c)]
        if self._opened or not codecs:
            return
        events = {c.payloadType or 0: c.clockRate for c in transceiver._codecs if _is_event(c)}
        name, clock_rate = codecs[0].name.lower(), codecs[0].clockRate
        payload_type = codecs[0].payloadType
        assert payload_type is not None  # every negotiated codec has one
        format = RtpFormat(
            codec=name,
            decoders={c.payloadType or 0: DECODERS[c.name.lower()] for c in codecs},
            make_encoder=partial(_encoder, name, self._opus),
            payload_type=payload_type,
            dtx=name == "opus" and self._opus.dtx,
            events_in=events,
            events_out=min(events.items(), key=lambda e: e[1] != clock_rate, default=None),
        )
        self._open(format, ssrc=transceiver.sender._ssrc, now=monotonic())
        self._take_datagrams(dtls)

    def _take_datagrams(self, dtls: Any) -> None:
        """Take SRTP off the ICE connection before aiortc queues it; send past its queue too."""
        ice = dtls.transport._connection
        srtp_in: pylibsrtp.Session = dtls._rx_srtp
        queue = ice.data_received

        def data_received(data: bytes, component: int) -> None:
            try:
                if not 127 < data[0] < 192:  # DTLS (RFC 7983 §7)
                    queue(data, component)
                    return
                if 192 <= data[1] <= 223:  # RTCP (RFC 5761 §4)
                    self.receive_rtcp(srtp_in.unprotect_rtcp(data), monotonic())
                else:
                    self.receive_rtp(srtp_in.unprotect(data), monotonic())
            except pylibsrtp.Error:
                self.srtp_failures += 1
            except IndexError:  # none or one byte
                self.malformed_packets += 1

        def datagram_out(data: bytes) -> None:
            pair = ice._nominated.get(1)
            if pair is not None:
                pair.protocol.transport.sendto(data, pair.remote_addr)

        ice.data_received = data_received
        self._datagram_out = datagram_out

    def _send_rtp(self, packet: bytes) -> None:
        assert self._srtp_out is not None
        self._datagram_out(self._srtp_out.protect(packet))

    def _send_rtcp(self, packet: bytes) -> None:
        assert self._srtp_out is not None
        self._datagram_out(self._srtp_out.protect_rtcp(packet))

    # --- the data channel ---

    def _use_channel(self, channel: RTCDataChannel) -> None:
        self._channel = channel
        channel.on("message", self._channel_message)
        channel.on("open", self._flush_backlog)
        if channel.readyState == "open":
            self._flush_backlog()

    def _flush_backlog(self) -> None:
        assert self._channel is not None
        for text in self._backlog:
            self._channel.send(text)
        self._backlog.clear()

    def _channel_message(self, message: str | bytes) -> None:
        if not isinstance(message, str):
            logger.debug("{}: binary message on the data channel ignored", self.call_id)
        elif message.startswith("ping"):
            self._alive_at = monotonic()
            self.send_message(PONG)
        elif message != PONG:
            self.listener.on_message(message)

    def send_message(self, text: str) -> bool:
        channel = self._channel
        if self.closed is not None:
            return False
        if channel is None or channel.readyState != "open":
            self._backlog = [*self._backlog[-(MESSAGE_BACKLOG - 1) :], text]
            return False
        if channel.bufferedAmount > CHANNEL_BUFFER_BYTES:
            return False
        channel.send(text)
        return True

    def _unsent_messages(self) -> bool:
        channel = self._channel
        if channel is None or channel.readyState != "open" or self.closed is not None:
            return False
        return channel.bufferedAmount > 0

    # --- life ---

    def _state_changed(self) -> None:
        state = self._pc.connectionState
        logger.debug("{}: peer is {}", self.call_id, state)
        if state == "connected":
            self.connect()
        elif state == "failed":
            self.close(End.CONNECTION_FAILED)
        elif state == "closed":
            self.close(End.CALLER_HUNG_UP)

    async def _keep_watch(self) -> None:
        """Notice a peer that never connects, or that vanished without a word."""
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await self.until_connected()
        except TimeoutError:
            self.close(End.NOT_CONNECTED)
            return
        self._alive_at = monotonic()
        while self.closed is None:
            await asyncio.sleep(min(0.5, self._ping_timeout))
            if monotonic() - max(self._alive_at, self.last_packet_at) > self._ping_timeout:
                self.close(End.NOTHING_HEARD)

    async def hang_up(self, reason: str) -> None:
        """Say goodbye (last messages, RTCP BYE, DTLS close) and free everything. Idempotent."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GOODBYE_S):
                while self._unsent_messages():
                    await asyncio.sleep(0.01)
        if self._opened and self.connected and self.closed is None:
            self.send_bye(monotonic())
        self.close(reason)
        if self._goodbye is None:
            self._goodbye = asyncio.create_task(self._free(), name=f"goodbye {self.call_id}")
        await asyncio.shield(self._goodbye)

    async def _free(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        try:
            await self._pc.close()
        except Exception as error:  # aiortc stumbles over what an offer it refused left behind
            logger.debug("{}: closing the peer: {}", self.call_id, _reason(error))
        self._datagram_out = lambda data: None
