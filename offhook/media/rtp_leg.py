"""A Leg over RTP and RTCP: what WebRTC and SIP have in common.

The edge below hands in packets already unprotected, and protects and sends what it is given.
"""

import time
from abc import abstractmethod
from collections.abc import Callable, Mapping

import numpy as np

from offhook.media.codec import Decoder, Encoder
from offhook.media.leg import Leg, LegStatistics
from offhook.media.pcm import PACKET_MS, RATE_IN, SAMPLES_IN, Pcm
from offhook.media.quality import mos
from offhook.media.receiver import AudioReceiver
from offhook.media.rtcp import Bye, RemoteReport, RtcpError, RtcpSession, Sent
from offhook.media.rtp import RtpError, RtpPacket
from offhook.media.sender import AudioSender

LOSS_WINDOW_S = 5.0
"""Loss on the line and its MOS are of the last seconds, not of the whole call."""

_SILENCE = np.zeros(SAMPLES_IN, np.int16)


class RtpLeg(Leg):
    """Opened when the codecs are negotiated; silent until then."""

    def __init__(self, call_id: str) -> None:
        super().__init__(call_id)
        self.srtp_failures = 0
        """Packets that failed authentication or were replayed."""
        self.malformed_packets = 0
        self.last_packet_at = 0.0
        """When the last RTP or RTCP packet came, in the time of the ticks; 0 before the first."""
        self._opened = False
        self._codec = ""
        self._receiver: AudioReceiver
        self._sender: AudioSender
        self._rtcp: RtcpSession
        self._remote: RemoteReport | None = None
        self._window_started = 0.0
        self._window_base = (0, 0)
        self._loss = 0.0

    def _open(
        self,
        codec: str,
        decoders: Mapping[int, Callable[[], Decoder]],
        encoder: Encoder,
        payload_type: int,
        ssrc: int,
        dtx: bool,
        now: float,
    ) -> None:
        """The codecs are agreed: `decoders` by payload type in, one encoder out; `dtx` leaves out
        silence."""
        self._codec = codec
        self._receiver = AudioReceiver(decoders)
        self._sender = AudioSender(encoder, payload_type, ssrc, self._send_rtp, dtx)
        self._rtcp = RtcpSession(ssrc, self.call_id, encoder.clock_rate, now)
        self._window_started = now
        self._opened = True

    # --- packets in ---

    def receive_rtp(self, data: bytes, now: float) -> None:
        """One unprotected RTP packet. Malformed ones are counted and dropped."""
        if not self._opened:
            return
        try:
            packet = RtpPacket.parse(data)
        except RtpError:
            self.malformed_packets += 1
            return
        self.last_packet_at = now
        self._receiver.receive(packet, now)
        self._rtcp.receive_rtp(packet.ssrc, packet.sequence_number, packet.timestamp, now)

    def receive_rtcp(self, data: bytes, now: float) -> None:
        """One unprotected RTCP datagram. Malformed ones are counted and dropped."""
        if not self._opened:
            return
        try:
            events = self._rtcp.receive(data, now)
        except RtcpError:
            self.malformed_packets += 1
            return
        self.last_packet_at = now
        for event in events:
            match event:
                case RemoteReport():
                    self._remote = event
                    self._sender.report_loss(event.fraction_lost)
                case Bye():
                    self.close("the caller hung up")

    # --- ticks ---

    def _receive(self, now: float) -> Pcm:
        return self._receiver.pull(now) if self._opened else _SILENCE

    def _send(self, said: Pcm | None, now: float) -> None:
        if not self._opened or self.closed is not None:
            return
        self._sender.tick(said, now)
        if now >= self._rtcp.get_timer():
            sent = Sent(self._sender.packets, self._sender.octets, self._sender.timestamp)
            if report := self._rtcp.reports_to_send(now, time.time(), sent):
                self._send_rtcp(report)
            self._measure_loss(now)

    def _measure_loss(self, now: float) -> None:
        if now - self._window_started < LOSS_WINDOW_S:
            return
        stats = self._receiver.stats
        played, concealed = stats.played_samples, stats.concealed_samples
        played_before, concealed_before = self._window_base
        if played > played_before:
            self._loss = (concealed - concealed_before) / (played - played_before)
        self._window_base = played, concealed
        self._window_started = now

    def send_bye(self, now: float) -> None:
        """Tell the far end that the stream ends (RFC 3550 §6.6)."""
        self._send_rtcp(self._rtcp.bye(now))

    @abstractmethod
    def _send_rtp(self, packet: bytes) -> None: ...

    @abstractmethod
    def _send_rtcp(self, packet: bytes) -> None: ...

    def statistics(self) -> LegStatistics:
        if not self._opened:
            return LegStatistics()
        stats, remote = self._receiver.stats, self._remote
        reception = self._rtcp.reception
        round_trip = remote.round_trip_ms if remote else None
        one_way = (round_trip or 0.0) / 2 + stats.delay_ms + PACKET_MS
        return LegStatistics(
            packets_received=stats.received,
            packets_lost=stats.lost,
            packets_late=stats.late,
            concealed_ms=stats.concealed_samples * 1000 // RATE_IN,
            loss=self._loss,
            jitter_ms=reception.jitter_ms if reception else 0.0,
            buffer_ms=stats.delay_ms,
            round_trip_ms=round_trip,
            remote_loss=self._sender.loss,
            packets_sent=self._sender.packets,
            mos=mos(one_way, self._loss, codec=self._codec) if stats.received else None,
        )
