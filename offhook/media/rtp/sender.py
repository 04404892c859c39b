"""One outgoing RTP stream: encodes and packetizes 20 ms of audio or silence at a time.

Timestamps advance with every tick, sequence numbers with every packet. With discontinuous
transmission (DTX) silence is sent for a few packets, so that the far end's decoder settles, and
then as one packet every 400 ms, as Opus itself does (RFC 7587 §3.1.3): this keeps NAT bindings and
the far end's media timeout alive. Without DTX every tick is a packet.

If packets are longer or shorter than a tick, audio is accumulated and sent as packets fill.
Telephone events (RFC 4733) replace audio, in the same sequence numbers and timestamps.

The encoder's own DTX is enabled in silence only. libopus mistakes steady sounds for background
noise: of a dial tone or a held chord it would leave out six packets in seven.
"""

import random
from collections.abc import Callable
from typing import Protocol, runtime_checkable

import numpy as np

from offhook.media import native
from offhook.media.codecs.codec import Encoder
from offhook.media.pcm import PACKET_MS, RATE_OUT, SAMPLES_OUT, Pcm
from offhook.media.rtp.rtp import RtpPacket, uint16_add, uint32_add
from offhook.media.rtp.telephone_event import EventSender
from offhook.media.telephone_tones.dtmf import DtmfTick

SILENCE_TICKS = 15
"""Ticks of silence encoded and sent after speech, 300 ms, unless the encoder enters DTX sooner."""
KEEP_ALIVE_TICKS = 400 // PACKET_MS
"""Ticks between packets while there is nothing to send: 400 ms."""
DTX_BYTES = 2
"""An Opus payload no longer than this need not be sent (RFC 7587 §3.1.3)."""
LOSS_WEIGHT_UP = 0.5
LOSS_WEIGHT_DOWN = 0.1
"""Weight of one loss report in the estimate: it rises quickly and falls slowly."""
CONGESTED_LOSS = 0.10
"""Loss from which the path is considered congested and the bitrate is lowered. Not sooner: below
ten percent of loss and at a low bitrate, libopus gives up FEC rather than bandwidth."""
CONGESTED_BITRATE = 24_000
"""Bit rate in bit/s beyond which nothing is sent then: Opus speech at 24 kbit/s is wideband with
FEC."""
MAX_PACKET_MS = 60
"""Longest audio in ms in one packet; more is sent in several."""


@runtime_checkable
class BitrateEncoder(Protocol):
    """An encoder whose bitrate may change within a stream."""

    bitrate: int
    """Bits per second it was created with."""

    def set_bitrate(self, bitrate: int) -> None: ...


@runtime_checkable
class DtxEncoder(Protocol):
    """An encoder with discontinuous transmission."""

    def set_dtx(self, on: bool) -> None: ...


def _first_sequence_number() -> int:
    """A random number in the lower half, so that loss or reordering of the first packets cannot
    make SRTP's rollover counter ambiguous (RFC 3711 §3.3.1)."""
    return random.randrange(1 << 15)


def _discard(packet: bytes) -> None:
    pass


class AudioSender:
    """Encodes the audio of one call and sends it as RTP."""

    def __init__(
        self,
        encoder: Encoder,
        payload_type: int,
        ssrc: int,
        send: Callable[[bytes], None],
        dtx: bool = True,
        ptime_ms: int = PACKET_MS,
    ) -> None:
        """`send` is called with each RTP datagram. `dtx`: leave out packets of silence; right for
        Opus, and for other codecs if the far end asked for silence suppression. `ptime_ms`: ms of
        audio per packet if the codec supports it, else 20."""
        self.ssrc = ssrc
        self.dtx = dtx
        self.sequence_number = _first_sequence_number()
        """Of the next packet."""
        self.timestamp = random.randrange(1 << 32)
        """RTP timestamp of the last tick, whether sent or not; its time is `timestamp_at`."""
        self.timestamp_at: float | None = None
        """The `now` of the last tick; None before the first."""
        self.packets = 0
        self.octets = 0
        """Payload bytes sent, as counted in sender reports (RFC 3550 §6.4.1)."""
        self.loss = 0.0
        """Smoothed loss of our packets at the far end, 0..1."""
        self._send = send
        self._events: EventSender | None = None
        self._event_payload_type = 0
        self._quiet = 0
        """Packets of silence encoded since the last audio."""
        self._unsent = 0
        """Packets skipped since the last one sent."""
        self._talkspurt = False
        """Within a talkspurt: packets are sent without gaps."""
        self._gap = False
        """Without DTX: something other than audio, or nothing, was sent last."""
        self._silence = b""
        """The last payload of silence."""
        self._settled = False
        """That payload is repeated without encoding again."""
        self._accumulated = np.zeros((MAX_PACKET_MS + PACKET_MS) * RATE_OUT // 1000, np.int16)
        self._filled = 0
        """Accumulated samples, less than a packet."""
        self._audio_end = 0
        """How many of them end with the last audio."""
        self._timestamp_offset = 0
        """Timestamp offset from the last tick to the packet being built."""
        self._set_codec(encoder, payload_type, ptime_ms)
        self._unsent = self._keep_alive

    @property
    def encoder(self) -> Encoder:
        return self._encoder

    def change_codec(
        self,
        encoder: Encoder,
        payload_type: int,
        ssrc: int | None = None,
        ptime_ms: int = PACKET_MS,
    ) -> None:
        """Switch to another format from the next tick on. A different clock rate requires a new
        SSRC (RFC 7160 §4.1), which resets the counters. Raises ValueError without one."""
        if ssrc is None and encoder.clock_rate != self._encoder.clock_rate:
            raise ValueError("a different clock rate requires a new SSRC (RFC 7160 §4.1)")
        self._flush()
        if ssrc is not None:
            self.ssrc = ssrc
            self.sequence_number = _first_sequence_number()
            self.packets = self.octets = 0
        self._set_codec(encoder, payload_type, ptime_ms)

    def use_events(self, payload_type: int, clock_rate: int) -> None:
        """Set how telephone events are sent from now on. An event in progress is abandoned."""
        self._events = EventSender(clock_rate)
        self._event_payload_type = payload_type

    def tick(self, pcm: Pcm | None, now: float) -> None:
        """Send a tick of 480 samples of audio, or of silence."""
        packet = self._steady(pcm, now)
        if packet is not None:
            if packet:
                self._send(packet)
            return
        self._advance_clock(now)
        if self._samples == SAMPLES_OUT:
            self._encode_block(pcm)
        else:
            self._accumulate(pcm)

    def tick_digit(self, key: DtmfTick, now: float) -> None:
        """Send a tick of a DTMF digit instead of audio. Only after `use_events`."""
        assert self._events is not None
        packet = self._events.tick(key, uint32_add(self.timestamp, self._step))
        if packet is None:
            self.tick(None, now)
            return
        self._flush()
        self._advance_clock(now)
        self._mark_gap()
        self._send_packet(self._event_payload_type, *packet)

    def tick_held(self, now: float) -> None:
        """Advance by a tick in which nothing may be sent."""
        self._advance_clock(now)
        self._mark_gap()
        self._unsent += 1

    def close(self) -> None:
        """Stop sending. Drops the reference to the leg too, so that ended calls are freed without a
        pause for garbage collection."""
        self._send = _discard

    def report_loss(self, fraction: float) -> None:
        """Report the fraction, 0..1, of our packets that the far end lost since its last report."""
        weight = LOSS_WEIGHT_UP if fraction > self.loss else LOSS_WEIGHT_DOWN
        self.loss += weight * (fraction - self.loss)
        self._adapt()

    def _set_codec(self, encoder: Encoder, payload_type: int, ptime_ms: int) -> None:
        self._encoder = encoder
        self._dtx_encoder = encoder if isinstance(encoder, DtxEncoder) else None
        self._bitrate_encoder = encoder if isinstance(encoder, BitrateEncoder) else None
        self._payload_type = payload_type
        self._step = encoder.clock_rate * PACKET_MS // 1000
        ptime_ms = ptime_ms if ptime_ms in encoder.packets_ms else PACKET_MS
        self._samples = RATE_OUT * ptime_ms // 1000
        self._nothing = np.zeros(self._samples, np.int16)
        self._silence_packets = SILENCE_TICKS * PACKET_MS // ptime_ms
        self._keep_alive = KEEP_ALIVE_TICKS * PACKET_MS // ptime_ms
        self._settled = False
        self._set_dtx(False)
        self._adapt()

    def _steady(self, pcm: Pcm | None, now: float) -> bytes | None:
        """Return the packet of a tick that has nothing out of the ordinary, an empty one if none is
        due. None if it has; then nothing has happened."""
        return None

    # packets of other lengths than a tick

    def _accumulate(self, pcm: Pcm | None) -> None:
        end = self._filled + SAMPLES_OUT
        if pcm is None:
            self._accumulated[self._filled : end] = 0
        else:
            self._accumulated[self._filled : end] = pcm
            self._audio_end = end
        self._filled = end
        while self._filled >= self._samples:
            self._pack()

    def _pack(self) -> None:
        """Build a packet from the first samples accumulated."""
        self._timestamp_offset = self._step - self._filled * self._encoder.clock_rate // RATE_OUT
        self._encode_block(self._accumulated[: self._samples] if self._audio_end > 0 else None)
        self._timestamp_offset = 0
        left = max(0, self._filled - self._samples)
        self._accumulated[:left] = self._accumulated[self._samples : self._filled]
        self._filled = left
        self._audio_end -= self._samples

    def _flush(self) -> None:
        """Send the accumulated audio: what follows is not audio, or in another format."""
        if self._filled and self._audio_end > 0:
            self._accumulated[self._filled : self._samples] = 0
            self._pack()
        self._filled = self._audio_end = 0

    # one packet

    def _advance_clock(self, now: float) -> None:
        self.timestamp = uint32_add(self.timestamp, self._step)
        self.timestamp_at = now

    def _mark_gap(self) -> None:
        """Mark a gap in the audio from here on."""
        self._filled = self._audio_end = 0
        self._talkspurt = False
        self._gap = not self.dtx

    def _encode_block(self, pcm: Pcm | None) -> None:
        """Send one packet of audio, or of silence."""
        self._unsent += 1
        if pcm is not None:
            self._settled = False
            if self._quiet:
                self._quiet = 0
                self._set_dtx(False)
            self._send_speech(self._encoder.encode(pcm))
        elif self._quiet < self._silence_packets and (self._talkspurt or not self.dtx):
            if not self._quiet:
                self._set_dtx(self.dtx)
            self._quiet += 1
            self._send_speech(self._encoder.encode(self._nothing))
        else:
            self._send_silence()

    def _set_dtx(self, on: bool) -> None:
        if self._dtx_encoder is not None:
            self._dtx_encoder.set_dtx(on)

    def _adapt(self) -> None:
        self._encoder.set_loss(self.loss)
        if (encoder := self._bitrate_encoder) is not None:
            most = CONGESTED_BITRATE if self.loss >= CONGESTED_LOSS else encoder.bitrate
            encoder.set_bitrate(min(encoder.bitrate, most))

    def _send_speech(self, payload: bytes) -> None:
        """Send a packet of a talkspurt, unless the encoder says it need not be sent."""
        if not self.dtx:
            # Without DTX the marker is set only after a gap (RFC 3551 §4.1).
            self._send_audio(payload)
        elif len(payload) > DTX_BYTES:
            self._send_audio(payload, marker=not self._talkspurt)
            self._talkspurt = True
        elif self._talkspurt or self._unsent >= self._keep_alive:
            # The first such packet is sent all the same: it tells the decoder that the gap that
            # follows is silence, not loss.
            self._send_audio(payload)
            self._talkspurt = False

    def _send_silence(self) -> None:
        """Send nothing, or a keep-alive: the far end's decoder has settled."""
        self._talkspurt = False
        if self.dtx and self._unsent < self._keep_alive:
            return
        if not self._settled:
            payload = self._encoder.encode(self._nothing)
            # Once silence encodes to the same payload twice, it need not be encoded again.
            self._settled = payload == self._silence
            self._silence = payload
        self._send_audio(self._silence)

    def _send_audio(self, payload: bytes, marker: bool = False) -> None:
        timestamp = self.timestamp
        if self._timestamp_offset:
            timestamp = uint32_add(timestamp, self._timestamp_offset)
        self._send_packet(self._payload_type, timestamp, payload, marker or self._gap)
        self._gap = False
        self._unsent = 0

    def _send_packet(self, payload_type: int, timestamp: int, payload: bytes, marker: bool) -> None:
        packet = RtpPacket(
            payload_type, self.sequence_number, timestamp, self.ssrc, payload, marker
        )
        self.sequence_number = uint16_add(self.sequence_number, 1)
        self.packets += 1
        self.octets += len(payload)
        self._send(packet.serialize())


if native.BUILT:

    class CompiledSender(native.Sender, AudioSender):
        """Encodes and builds a packet of G.711, G.722 or Opus in one step."""

        def _set_codec(self, encoder: Encoder, payload_type: int, ptime_ms: int) -> None:
            super()._set_codec(encoder, payload_type, ptime_ms)
            self._compiled = getattr(encoder, "compiled", None)


def new_sender(
    encoder: Encoder,
    payload_type: int,
    ssrc: int,
    send: Callable[[bytes], None],
    dtx: bool = True,
    ptime_ms: int = PACKET_MS,
) -> AudioSender:
    """Return the sender of a new call."""
    make = CompiledSender if native.used else AudioSender
    return make(encoder, payload_type, ssrc, send, dtx, ptime_ms)
