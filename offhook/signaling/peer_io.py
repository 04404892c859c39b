"""A WebRTC peer as a leg: aiortc does ICE, DTLS, SRTP, SDP and the data channel, we do the audio.

aiortc's own audio path (a thread per receiver, a task per sender, a jitter buffer that never
recovers) is not started: `RTCRtpSender.send` and `RTCRtpReceiver.receive` are replaced on the
instances, and RTP is taken from the ICE agent as the datagrams arrive. This relies on private
names of aiortc 1.16.0 and aioice 0.13.0; both are pinned, and tests/signaling/test_peer.py fails if
they change. ICE itself, on a shared port or on ports of its own, is in `signaling/ice`.
"""

import asyncio
import contextlib
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import Any, ClassVar, Literal

import aioice.ice
import aiortc.codecs
import aiortc.rtcpeerconnection
import pylibsrtp
from aiortc import (
    InvalidStateError,
    MediaStreamTrack,
    RTCConfiguration,
    RTCDataChannel,
    RTCIceServer,
    RTCPeerConnection,
    RTCRtpCodecCapability,
    RTCRtpCodecParameters,
    RTCSessionDescription,
)
from aiortc.codecs import get_capabilities
from aiortc.rtcdtlstransport import RTCCertificate
from aiortc.rtcrtptransceiver import RTCRtpTransceiver
from loguru import logger
from OpenSSL import SSL

from offhook.media import native
from offhook.media.codecs.codec import Decoder, Encoder
from offhook.media.codecs.g711 import PcmaDecoder, PcmaEncoder, PcmuDecoder, PcmuEncoder
from offhook.media.codecs.g722 import G722Decoder, G722Encoder
from offhook.media.codecs.opus import OpusDecoder, OpusEncoder, OpusSettings
from offhook.media.end_reason import End
from offhook.media.rtp.rtp_leg import RtpFormat, RtpLeg
from offhook.media.rtp.srtp import Protector, compiled
from offhook.media.tasks_io import TaskSet
from offhook.signaling.ice.agent_io import use_agents
from offhook.signaling.ice.port_io import IcePort
from offhook.signaling.message_channel_io import MessageChannel
from offhook.signaling.peer_ice_io import PeerIce, reason_of
from offhook.signaling.sctp_io import Association
from offhook.signaling.sdp import (
    MAX_MEDIA_SECTIONS,
    OfferError,
    check_answer,
    check_offer,
)

CONNECT_TIMEOUT_S = 15
"""Time limit in s from the answer to a connected peer, after which the call ends: browsers need a
second, or five behind a slow TURN server."""
PING_TIMEOUT_S = 15
"""Time in s without a ping or media after which the call ends, as long as a browser needs to
recover from a dead path (Chromium: 7 s). The web client pings every second on the data channel.
Other servers mute the agent after 3 s without a ping, which a backgrounded tab easily reaches."""
CONSENT_FAILURES = 5
"""Consent checks (RFC 7675) without an answer after which ICE fails: there is one each 4 to 6 s, so
a peer that is gone without a word is closed within 33 s."""
FLUSH_TIMEOUT_S = 0.3
"""Maximum time in s that hanging up waits for messages still to be sent; then they are lost."""
TELEPHONE_EVENT = "audio/telephone-event"
TELEPHONE_EVENTS = {48_000: 110, 8_000: 101}
"""Clock rates in Hz of telephone events (RFC 4733), and the payload types we offer them with.
Chromium and Firefox offer 8 kHz beside Opus; Chromium 48 kHz too."""

SRTP_SUITES = {"SRTP_AES128_CM_SHA1_80": "AES_CM_128_HMAC_SHA1_80"}
"""SRTP's names (RFC 4568 §6.2) of OpenSSL's profiles, where they differ by more than the prefix."""

Direction = Literal["sendrecv", "sendonly", "recvonly"]
"""Of the audio, as our session description says it."""

aioice.ice.CONSENT_FAILURES = CONSENT_FAILURES
aiortc.codecs.CODECS["audio"] += [
    RTCRtpCodecParameters(TELEPHONE_EVENT, clock_rate, 1, payload_type)
    for clock_rate, payload_type in TELEPHONE_EVENTS.items()
]


def _choose_codecs() -> None:
    """Have aiortc answer video of any codec with the first that is offered: we make the m-line
    inactive, while aiortc refuses the whole offer if it knows none of the codecs. Retransmission
    (RFC 4588), which GStreamer offers for audio too, is left out. Preferred codecs are told apart
    by their clock rates too, as telephone events are."""
    find = aiortc.rtcpeerconnection.find_common_codecs

    def find_common_codecs(
        local_codecs: list[RTCRtpCodecParameters], remote_codecs: list[RTCRtpCodecParameters]
    ) -> list[RTCRtpCodecParameters]:
        remote_codecs = [codec for codec in remote_codecs if codec.name.lower() != "rtx"]
        if local_codecs is aiortc.codecs.CODECS["video"]:
            return [replace(codec, rtcpFeedback=[]) for codec in remote_codecs[:1]]
        return find(local_codecs, remote_codecs)

    def filter_preferred_codecs(
        codecs: list[RTCRtpCodecParameters], preferred: list[RTCRtpCodecCapability]
    ) -> list[RTCRtpCodecParameters]:
        wanted = [(codec.name.lower(), codec.clockRate) for codec in preferred]
        known = {(codec.name.lower(), codec.clockRate): codec for codec in codecs}
        return [known[codec] for codec in wanted if codec in known] if preferred else codecs

    aiortc.rtcpeerconnection.find_common_codecs = find_common_codecs
    aiortc.rtcpeerconnection.filter_preferred_codecs = filter_preferred_codecs


_choose_codecs()


def _refuse_renegotiation() -> None:
    """Have DTLS shake hands once. A peer could ask for it again with each record (RFC 5246
    §7.4.1.1), at the cost of a signature each time."""
    create = RTCCertificate._create_ssl_context

    def create_ssl_context(self: RTCCertificate, srtp_profiles: list[Any]) -> SSL.Context:
        context = create(self, srtp_profiles)
        context.set_options(SSL.OP_NO_RENEGOTIATION)
        return context

    RTCCertificate._create_ssl_context = create_ssl_context  # type: ignore[method-assign]


_refuse_renegotiation()


def use_addresses(addresses: Sequence[str]) -> None:
    """Offer exactly these local addresses as ICE host candidates, process-wide.

    aioice offers every interface but loopback, which is wrong for a server bound to loopback or to
    one of several networks.
    """

    def host_addresses(use_ipv4: bool, use_ipv6: bool) -> list[str]:
        return [a for a in addresses if (use_ipv6 if ":" in a else use_ipv4)]

    aioice.ice.get_host_addresses = host_addresses


_BUNDLE = re.compile(r"^a=group:BUNDLE \S[^\n]*\n", re.MULTILINE)
"""aiortc answers with a bundle in any case, and browsers refuse one that they have not offered (RFC
8843 §7.3)."""


class _SilentTrack(MediaStreamTrack):
    """A placeholder track for the SDP: the leg sends its own audio, and this is never read."""

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
    """Ask the far end for in-band FEC and mono (RFC 7587 §6.1); aiortc writes no fmtp."""

    def add(match: re.Match[str]) -> str:
        return f"{match[0]}a=fmtp:{match[1]} minptime=10;useinbandfec=1;stereo=0\r\n"

    return re.sub(r"a=rtpmap:(\d+) opus/48000/2\r\n(?!a=fmtp)", add, sdp, flags=re.IGNORECASE)


def _with_mid(sdp: str, mid: str) -> str:
    """Name the one m-line of an answer as the offer did: phones name it as they like, or not at
    all, and aiortc refuses that."""
    if f"a=mid:{mid}" in sdp.splitlines() or sdp.count("\nm=") != 1:
        return sdp
    unnamed = re.sub(r"^a=mid:[^\n]*\n", "", _BUNDLE.sub("", sdp), flags=re.MULTILINE)
    return f"{unnamed.rstrip()}\r\na=mid:{mid}\r\n"


def _is_event(codec: RTCRtpCodecParameters) -> bool:
    return codec.mimeType.lower() == TELEPHONE_EVENT


def _own_connecting(pc: Any, tasks: TaskSet, is_up: Callable[[], bool]) -> None:
    """Have the tasks in which aiortc connects end with their leg. aiortc forgets them as soon as
    they have begun, and they fail if the peer is closed meanwhile."""
    connect = pc._RTCPeerConnection__connect

    async def connect_for_leg() -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        try:
            await connect()
        except InvalidStateError:
            if is_up():
                raise

    pc._RTCPeerConnection__connect = connect_for_leg


class PeerLeg(RtpLeg):
    """One WebRTC peer, as offerer or answerer."""

    direction: ClassVar[Direction] = "sendrecv"

    def __init__(
        self,
        call_id: str,
        ice_servers: Sequence[RTCIceServer] = (),
        opus: OpusSettings | None = None,
        ping_timeout: float = PING_TIMEOUT_S,
        ice_port: IcePort | None = None,
    ) -> None:
        """Without an ICE port, which calls share, the leg binds ports of its own."""
        super().__init__(call_id)
        self.sending = self.direction != "recvonly"
        self.receiving = self.direction != "sendonly"
        self._opus = opus or OpusSettings()
        self._pc = RTCPeerConnection(RTCConfiguration(iceServers=list(ice_servers)))
        # FFmpeg answers no checks once it publishes: what it sends says that it is there.
        needs_consent = self.direction != "recvonly"
        self._agents = use_agents(self._pc, ice_port, ice_servers, needs_consent)
        self.ice = PeerIce(self._pc, self._agents, self._is_up)
        self.on_channel: Callable[[RTCDataChannel], None] | None = None
        """Called with the far end's open data channel, in place of its use for messages."""
        self.messages = MessageChannel(call_id, lambda text: self.listener.on_message(text))
        self._ping_timeout = ping_timeout
        self._monitor_task: asyncio.Task[None] | None = None
        self._connecting = TaskSet()
        _own_connecting(self._pc, self._connecting, self._is_up)
        self._closing: asyncio.Task[None] | None = None
        self._srtp = ""
        self._srtp_out: Protector | None = None
        self._datagram_out: Callable[[bytes], None] = lambda data: None
        self._pc.on("datachannel", self._use_channel)
        self._pc.on("connectionstatechange", self._state_changed)

    def _is_up(self) -> bool:
        return self.closed is None

    # --- offer and answer ---

    async def answer(self, sdp: str) -> str:
        """Answer an offer, initial or renegotiated, with our SDP. Raises OfferError and NoPorts."""
        check_offer(sdp)
        if len(self._pc.getTransceivers()) > MAX_MEDIA_SECTIONS:
            raise OfferError(f"more than {MAX_MEDIA_SECTIONS} m-lines have been offered")
        try:
            await self.ice.restart_if_requested(sdp)
            await self._pc.setRemoteDescription(RTCSessionDescription(sdp, "offer"))
            self._prepare_media()
            await self._pc.setLocalDescription(await self._pc.createAnswer())
        except Exception as error:  # aiortc raises exceptions of any type
            await self.ice.cancel_restart()
            raise OfferError(f"cannot answer the offer: {reason_of(error)}") from error
        self.ice.check_answerable()
        self._watch()
        answer = _with_opus_parameters(self._pc.localDescription.sdp)
        return answer if _BUNDLE.search(sdp) else _BUNDLE.sub("", answer)

    async def offer(self) -> str:
        """Offer audio and the data channel "chat", as a web client does. Returns our SDP."""
        self._pc.addTransceiver("audio", direction="sendrecv")
        self._use_channel(self._pc.createDataChannel("chat"))
        sdp = await self._offer()
        self._watch()
        return sdp

    async def offer_audio(self, codecs: Sequence[str]) -> str:
        """Offer audio alone, in these codecs, to somebody who may take a minute to answer. Returns
        our SDP, the same each time until there is an answer. Raises NoPorts."""
        if self._pc.signalingState == "have-local-offer":
            return _with_opus_parameters(self._pc.localDescription.sdp)
        transceiver = self._pc.addTransceiver("audio", direction="sendrecv")
        known = get_capabilities("audio").codecs
        wanted = [codec for name in codecs for codec in known if codec.name.lower() == name]
        events = [codec for codec in known if codec.mimeType.lower() == TELEPHONE_EVENT]
        transceiver.setCodecPreferences([*wanted, *events])
        sdp = await self._offer()
        self.ice.check_ports()
        return sdp

    async def _offer(self) -> str:
        self._prepare_media()
        await self._pc.setLocalDescription(await self._pc.createOffer())
        return _with_opus_parameters(self._pc.localDescription.sdp)

    async def accept(self, sdp: str) -> None:
        """Apply the far end's answer to our offer. Raises OfferError."""
        check_answer(sdp)
        first, *others = self._pc.getTransceivers()
        if self._pc.sctp is None and not others and first.mid is not None:
            sdp = _with_mid(sdp, first.mid)
        try:
            await self._pc.setRemoteDescription(RTCSessionDescription(sdp, "answer"))
        except Exception as error:  # as above
            raise OfferError(f"cannot use the answer: {reason_of(error)}") from error
        audio = next(t for t in self._pc.getTransceivers() if t.kind == "audio")
        if all(map(_is_event, audio._codecs)):
            raise OfferError("cannot use the answer: no audio codec in common")
        self._watch()

    def _watch(self) -> None:
        """See from now on that the peer connects and stays."""
        if self._monitor_task is None:
            self._monitor_task = asyncio.create_task(self._monitor(), name=f"watch {self.call_id}")

    def _prepare_media(self) -> None:
        """Use our audio in place of aiortc's on the first audio m-line; make others inactive."""
        if isinstance(self._pc.sctp, Association):
            self._pc.sctp.call_id = self.call_id
        audio = None
        for transceiver in self._pc.getTransceivers():
            if transceiver._offerDirection is None:  # sendrecv is the default (RFC 8866 §6.7)
                transceiver._offerDirection = "sendrecv"
            if transceiver.kind == "audio" and audio is None:
                audio = transceiver
                if transceiver._codecs and all(map(_is_event, transceiver._codecs)):
                    raise ValueError("no audio codec in common")
                if transceiver.sender.track is None:
                    if self.direction != "recvonly":
                        transceiver.sender.replaceTrack(_SilentTrack())
                    transceiver.direction = self.direction
            else:
                transceiver.direction = "inactive"

            start = partial(self._start, transceiver if transceiver is audio else None)
            for side, name in ((transceiver.sender, "send"), (transceiver.receiver, "receive")):
                setattr(side, name, start)

    # --- media ---

    async def _start(self, transceiver: RTCRtpTransceiver | None, parameters: Any) -> None:
        """Start the audio with the negotiated codecs once DTLS is up; nothing of other m-lines.
        aiortc calls this in place of its own sender's and receiver's start: once per direction, and
        again after a renegotiation."""
        if transceiver is None:
            return
        dtls = transceiver.receiver.transport
        codecs = [c for c in transceiver._codecs if not _is_event(c)]
        if self._opened or not codecs:
            return
        ssl: Any = dtls._ssl
        profile = ssl.get_selected_srtp_profile().decode()
        self._srtp = f"DTLS {SRTP_SUITES.get(profile, profile.removeprefix('SRTP_'))}"
        self._srtp_out = Protector(dtls._tx_srtp)
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
        self._intercept_datagrams(dtls)

    def _intercept_datagrams(self, dtls: Any) -> None:
        """Intercept SRTP on the ICE connection before aiortc queues it, and send past its queue."""
        ice = dtls.transport._connection
        srtp_in: pylibsrtp.Session = dtls._rx_srtp
        queue = ice.data_received

        def data_received(data: bytes, component: int) -> None:
            try:
                if not 127 < data[0] < 192:  # DTLS (RFC 7983 §7)
                    queue(data, component)
                    return
                is_rtcp = 192 <= data[1] <= 223  # RFC 5761 §4
                plain = srtp_in.unprotect_rtcp(data) if is_rtcp else srtp_in.unprotect(data)
            except (pylibsrtp.Error, ValueError):  # ValueError: over libsrtp's 1500 bytes
                self.srtp_failures += 1
            except IndexError:  # none or one byte
                self.malformed_packets += 1
            else:
                (self.receive_rtcp if is_rtcp else self.receive_rtp)(plain, monotonic())

        def datagram_out(data: bytes) -> None:
            pair = ice._nominated.get(1)
            if pair is not None:
                pair.protocol.transport.sendto(data, pair.remote_addr)

        srtp = compiled(srtp_in)
        ice.data_received = data_received
        ice.inbound = None if srtp is None else native.Inbound(self, srtp)
        ice.is_remote_ssrc = self._is_remote_ssrc
        self._datagram_out = datagram_out

    def _is_remote_ssrc(self, ssrc: int) -> bool:
        reception = self._rtcp.reception
        return reception is not None and reception.ssrc == ssrc

    def _send_rtp(self, packet: bytes) -> None:
        assert self._srtp_out is not None
        self._datagram_out(self._srtp_out.protect(packet))

    def _send_rtcp(self, packet: bytes) -> None:
        assert self._srtp_out is not None
        self._datagram_out(self._srtp_out.protect_rtcp(packet))

    @property
    def srtp(self) -> str:
        return self._srtp

    # --- the data channel ---

    def _use_channel(self, channel: RTCDataChannel) -> None:
        if self.on_channel is not None:
            self.on_channel(channel)
        else:
            self.messages.use(channel)

    @property
    def carries_messages(self) -> bool:
        return self.on_channel is None

    def send_message(self, text: str) -> bool:
        if self.closed is not None or not self.carries_messages:
            return False
        return self.messages.send(text)

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

    async def _monitor(self) -> None:
        """Close the leg if the peer never connects or disappears."""
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await self.until_connected()
        except TimeoutError:
            self.close(End.NOT_CONNECTED)
            return
        if self.direction == "sendonly":
            return  # a peer that only receives need not send anything: ICE consent says it is there
        self.messages.alive_at = monotonic()
        while self.closed is None:
            await asyncio.sleep(min(0.5, self._ping_timeout))
            if monotonic() - max(self.messages.alive_at, self.last_packet_at) > self._ping_timeout:
                self.close(End.NOTHING_HEARD)

    async def hang_up(self, reason: str) -> None:
        """Send pending messages and an RTCP BYE, close DTLS and free everything. Idempotent."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_TIMEOUT_S):
                while self.closed is None and self.messages.unsent:
                    await asyncio.sleep(0.01)
        if self._opened and self.connected and self.closed is None:
            self.send_bye(monotonic())
        self.close(reason)
        if self._closing is None:
            self._closing = asyncio.create_task(self._free(), name=f"goodbye {self.call_id}")
        await asyncio.shield(self._closing)

    async def _free(self) -> None:
        if self._monitor_task is not None:
            self._monitor_task.cancel()
            await asyncio.gather(self._monitor_task, return_exceptions=True)
        try:
            await self._pc.close()
        except Exception as error:  # aiortc may fail on the remains of an offer it refused
            logger.debug("{}: closing the peer: {}", self.call_id, reason_of(error))
        await self._connecting.close()
        for agent in self._agents:
            await agent.close()
        self._datagram_out = lambda data: None
