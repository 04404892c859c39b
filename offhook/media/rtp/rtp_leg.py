"""A leg over RTP and RTCP: what WebRTC and SIP have in common.

The edge passes in unprotected packets, and protects and sends those it is given.
"""

import random
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from offhook.media.codecs.codec import Decoder, Encoder
from offhook.media.end_reason import End
from offhook.media.leg import Leg, LegError, LegStatistics
from offhook.media.pcm import PACKET_MS, RATE_IN, SAMPLES_IN, SAMPLES_OUT, Pcm
from offhook.media.playout import PlayoutState
from offhook.media.rtp.loss_window import LossWindow
from offhook.media.rtp.quality import mos
from offhook.media.rtp.receiver import AudioReceiver, new_receiver
from offhook.media.rtp.rtcp import Bye, RemoteReport, RtcpError, RtcpSession, SentTotals
from offhook.media.rtp.rtp import RtpError, RtpPacket
from offhook.media.rtp.sender import AudioSender, new_sender
from offhook.media.rtp.telephone_event import EventReceiver
from offhook.media.telephone_tones.dtmf import DtmfError, DtmfQueue, DtmfTick
from offhook.media.telephone_tones.tones import dtmf

_SILENCE = np.zeros(SAMPLES_IN, np.int16)


@dataclass(frozen=True)
class RtpFormat:
    """The negotiated formats of both directions."""

    codec: str
    """Codec we send: "opus", "g722", "pcmu" or "pcma"."""
    decoders: Mapping[int, Callable[[], Decoder]]
    """Decoder factories by the payload types that may be received."""
    make_encoder: Callable[[], Encoder]
    """Factory of the encoder. After a renegotiation the encoder continues if codec and factory are
    equal to the previous ones."""
    payload_type: int
    dtx: bool
    """Suppress silence when sending."""
    ptime_ms: int = PACKET_MS
    """Audio per packet sent, if the codec supports it; else 20."""
    events_in: Mapping[int, int] = field(default_factory=dict)
    """Telephone events that may be received: payload type to clock rate in Hz (RFC 4733)."""
    events_out: tuple[int, int] | None = None
    """Payload type and clock rate of the telephone events we send; None: DTMF is sent as tones."""
    comfort_noise: frozenset[int] = frozenset()
    """Payload types of comfort noise that may be received (RFC 3389)."""


class RtpLeg(Leg):
    """A leg over RTP. Opened once the codecs are negotiated; silent until then."""

    def __init__(self, call_id: str) -> None:
        super().__init__(call_id)
        self.srtp_failures = 0
        """SRTP packets that failed authentication or were replayed."""
        self.malformed_packets = 0
        self.refused_packets = 0
        """Packets refused because of their source address."""
        self.last_packet_at = 0.0
        """When the last RTP or RTCP packet arrived, in tick time; 0 before the first."""
        self.last_said_at = 0.0
        """When audio of ours was sent last; 0 before the first."""
        self.sending = True
        """Whether audio and DTMF are sent; otherwise they wait. RTCP is sent in any case."""
        self.receiving = True
        """Whether received audio is passed on. DTMF is in any case."""
        self._opened = False
        self._codec = ""
        self._format: RtpFormat
        self._receiver: AudioReceiver
        self._sender: AudioSender
        self._rtcp: RtcpSession
        self._clock_rate_in = 0
        """Timestamp rate of the audio received last; 0 before the first."""
        self._events = EventReceiver()
        self._dtmf_queue = DtmfQueue()
        self._digit: DtmfTick | None = None
        """The digit of this tick, if it is sent as a telephone event."""
        self._remote: RemoteReport | None = None
        self._window: LossWindow

    def _open(self, format: RtpFormat, ssrc: int, now: float) -> None:
        """Start the media with the formats negotiated first."""
        encoder = format.make_encoder()
        self._format = format
        self._codec = format.codec
        self._receiver = new_receiver(format.decoders, format.comfort_noise)
        self._sender = new_sender(
            encoder, format.payload_type, ssrc, self._send_rtp, format.dtx, format.ptime_ms
        )
        if format.events_out is not None:
            self._sender.use_events(*format.events_out)
        self._rtcp = RtcpSession(ssrc, self.call_id, encoder.clock_rate, now)
        self._window = LossWindow(now)
        self._opened = True

    def _change_formats(self, format: RtpFormat) -> None:
        """Apply renegotiated formats. Receiving continues; sending does too, under another SSRC if
        its clock rate changes (RFC 7160 §4.1)."""
        if format == self._format:
            return
        old, self._format = self._format, format
        self._codec = format.codec
        self._receiver.change(format.decoders, format.comfort_noise)
        sender = self._sender
        same = (old.codec, old.make_encoder) == (format.codec, format.make_encoder)
        encoder = sender.encoder if same else format.make_encoder()
        ssrc = None
        if encoder.clock_rate != sender.encoder.clock_rate:
            ssrc = random.getrandbits(32)
            self._rtcp.change_source(ssrc, encoder.clock_rate)
        sender.dtx = format.dtx
        sender.change_codec(encoder, format.payload_type, ssrc, format.ptime_ms)
        if ssrc is not None or format.events_out != old.events_out:
            self._dtmf_queue.skip()  # restarted, the press would count twice
            if format.events_out is not None:
                sender.use_events(*format.events_out)

    # --- packets in ---

    def unread_since(self, at: float | None) -> None:
        if self._opened:
            self._receiver.unread_since(at)

    def receive_rtp(self, data: bytes, now: float) -> None:
        """Receive one unprotected RTP packet. Malformed ones are counted and dropped."""
        if not self._opened:
            return
        if self.receiving and self._receiver.accept(data, now):
            self.last_packet_at = now
            return
        try:
            packet = RtpPacket.parse(data)
        except RtpError:
            self.malformed_packets += 1
            return
        self.last_packet_at = now
        if packet.payload_type in self._format.events_in:
            self._receive_event(packet, now)
            return
        if self._is_other_media(packet):
            return
        if self.receiving:
            self._receiver.receive(packet, now)
            if self._receiver.clock_rate != self._clock_rate_in:
                self._update_clock_rate()
        else:
            self._receiver.ignore(packet)
        noise = packet.payload_type in self._format.comfort_noise
        timestamp = None if noise else packet.timestamp
        self._rtcp.receive_rtp(packet.ssrc, packet.sequence_number, timestamp, now)
        self._receiver.reception = self._rtcp.reception

    def _is_other_media(self, packet: RtpPacket) -> bool:
        """Whether the packet is of a stream that is not ours, e.g. video in the same bundle."""
        format, reception = self._format, self._rtcp.reception
        known = packet.payload_type in format.decoders
        known = known or packet.payload_type in format.comfort_noise
        return not known and (reception is None or reception.ssrc != packet.ssrc)

    def _update_clock_rate(self) -> None:
        if clock_rate := self._receiver.clock_rate:
            self._clock_rate_in = clock_rate
            self._rtcp.set_clock_rate(clock_rate)

    def _receive_event(self, packet: RtpPacket, now: float) -> None:
        """Receive a telephone event. Events share the sequence numbers of the audio, unless the
        sender gives them an SSRC of their own, which is left out of the audio's statistics."""
        self._receiver.ignore(packet)
        reception = self._rtcp.reception
        if reception is None or reception.ssrc == packet.ssrc:
            self._rtcp.receive_rtp(packet.ssrc, packet.sequence_number, None, now)
        for digit in self._events.receive(packet):
            self.receive_digit(digit)

    def receive_rtcp(self, data: bytes, now: float) -> None:
        """Receive one unprotected RTCP datagram. Malformed ones are counted and dropped."""
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
                    self._receive_bye()

    def _receive_bye(self) -> None:
        """Handle the far end's BYE (RFC 3550 §6.6): it ends the call. Edges whose signalling ends
        calls override this."""
        self.close(End.CALLER_HUNG_UP)

    # --- DTMF ---

    def send_dtmf(self, digits: str) -> None:
        if not self._opened or self.closed is not None:
            raise LegError("cannot send DTMF: the leg is not connected")
        if not self.sending:
            raise LegError("cannot send DTMF: the call is on hold")
        try:
            self._dtmf_queue.press(digits)
        except DtmfError as error:
            raise LegError(str(error)) from error

    def send_ahead(self, now: float) -> None:
        """Neither keys nor silence: what is written next would have to wait for it."""
        playing = self.playout.state is PlayoutState.PLAYING and self.playout.queued >= SAMPLES_OUT
        if playing and self.sending and not self._dtmf_queue.busy:
            said = self._next_packet()
            self._send(said, now)
            self._sent_ahead.append(said)

    def _next_packet(self) -> Pcm | None:
        """Queued audio waits while digits are sent, and both wait while on hold."""
        if not self._opened:
            return self.playout.pop()
        if not self.sending:
            return None
        if not self._dtmf_queue.busy:
            return super()._next_packet()
        return self._next_key()

    def _next_key(self) -> Pcm | None:
        """Return 20 ms of the digits that are sent: their tone, or None if they are events."""
        key = self._dtmf_queue.tick()
        if self._format.events_out is not None:
            self._digit = key
            return None
        return None if key is None else dtmf(key)

    # --- ticks ---

    def _send_mix(self, mix: Pcm | None, now: float) -> None:
        """What is said in a room waits for nothing: it is not heard over digits, nor on hold."""
        if self._opened and self.sending and self._dtmf_queue.busy:
            mix = self._next_key()
        self._send(mix if self.sending else None, now)

    def _receive(self, now: float) -> Pcm:
        if not self._opened:
            return _SILENCE
        heard = self._receiver.pull(now)
        return heard if self.receiving else _SILENCE

    def _send(self, said: Pcm | None, now: float) -> None:
        key, self._digit = self._digit, None
        if not self._opened or self.closed is not None:
            return
        if not self.sending:
            self._sender.tick_held(now)
        elif key is not None:
            self._sender.tick_digit(key, now)
        else:
            if said is not None:
                self.last_said_at = now
            self._sender.tick(said, now)
        if now >= self._rtcp.get_timer():
            sent = SentTotals(self._sender.packets, self._sender.octets, self._sender.timestamp)
            if report := self._rtcp.reports_to_send(now, time.time(), sent):
                self._send_rtcp(report)
            if now >= self._window.due:
                self._window.measure(self._receiver.stats, now)

    def close(self, reason: str) -> None:
        super().close(reason)
        if self._opened:
            self._sender.close()

    def send_bye(self, now: float) -> None:
        """Send an RTCP BYE for our stream (RFC 3550 §6.6)."""
        self._send_rtcp(self._rtcp.bye(now))

    @abstractmethod
    def _send_rtp(self, packet: bytes) -> None: ...

    @abstractmethod
    def _send_rtcp(self, packet: bytes) -> None: ...

    @property
    def codec(self) -> str:
        """The codec we send; "" before the first answer."""
        return self._codec

    @property
    def srtp(self) -> str:
        """Key exchange and suite in use, "SDES AES_CM_128_HMAC_SHA1_80"; "" for none."""
        return ""

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
            loss=self._window.loss,
            jitter_ms=reception.jitter_ms if reception else 0.0,
            buffer_ms=stats.delay_ms,
            round_trip_ms=round_trip,
            remote_loss=self._sender.loss,
            packets_sent=self._sender.packets,
            mos=mos(one_way, self._window.loss, codec=self._codec) if stats.received else None,
        )
