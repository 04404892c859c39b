"""One outgoing RTP stream: 20 ms of sound or of silence at a time, packed, encoded and numbered.

Timestamps advance with every tick, sequence numbers with every packet. With discontinuous
transmission silence is sent for a few packets, so that the far end's decoder comes to rest, and
then as one packet every 400 ms, as Opus does by itself (RFC 7587 §3.1.3): that keeps NAT bindings
and the far end's watch over the media alive. Without it every tick is a packet.

Packets of another length than a tick are gathered first, and are sent when they are full. Key
presses (RFC 4733) take the place of sound, in the same numbers and on the same clock.

The encoder's own discontinuous transmission is on in silence only. libopus takes what is steady
for background: of a dial tone or a held chord it would leave out six packets in seven.
"""

import random
from collections.abc import Callable
from typing import Protocol, runtime_checkable

import numpy as np

from offhook.media.codecs.codec import Encoder
from offhook.media.dtmf import KeyTick
from offhook.media.pcm import PACKET_MS, RATE_OUT, SAMPLES_OUT, Pcm
from offhook.media.rtp.rtp import RtpPacket, uint16_add, uint32_add
from offhook.media.rtp.telephone_event import EventSender

SILENCE_TICKS = 15
"""Silence encoded and sent after speech, 300 ms, unless the encoder goes quiet sooner."""
KEEP_ALIVE_TICKS = 400 // PACKET_MS
"""Ticks from one packet to the next while there is nothing to say: 400 ms."""
DTX_BYTES = 2
"""An Opus payload this short says that nothing need be sent (RFC 7587 §3.1.3)."""
LOSS_WEIGHT_UP = 0.5
LOSS_WEIGHT_DOWN = 0.1
"""Weight of one report of loss in the estimate: bad news counts quickly, good news slowly."""
CONGESTED_LOSS = 0.10
"""Loss from which the line is taken to be congested and the bitrate is lowered. Not sooner: below
ten percent of loss libopus drops its redundancy rather than bandwidth when bits are few."""
CONGESTED_BITRATE = 0.75
"""Of the full bitrate: Opus speech at 24 instead of 32 kbit/s is wideband with redundancy."""
MAX_PACKET_MS = 60
"""Of sound in one packet."""


@runtime_checkable
class BitrateEncoder(Protocol):
    """An encoder whose bitrate may change within a stream."""

    bitrate: int
    """Bits per second it was made for."""

    def set_bitrate(self, bitrate: int) -> None: ...


@runtime_checkable
class DtxEncoder(Protocol):
    """An encoder that can say of a packet that it need not be sent."""

    def set_dtx(self, on: bool) -> None: ...


def _first_sequence_number() -> int:
    """The upper half is left out so that the first packets, should they be lost or reordered,
    cannot leave SRTP's rollover counter in doubt (RFC 3711 §3.3.1)."""
    return random.randrange(1 << 15)


def _nowhere(packet: bytes) -> None:
    pass


class AudioSender:
    """Encodes what one call says and sends it as RTP."""

    def __init__(
        self,
        encoder: Encoder,
        payload_type: int,
        ssrc: int,
        send: Callable[[bytes], None],
        dtx: bool = True,
        ptime_ms: int = PACKET_MS,
    ) -> None:
        """`send` takes each RTP datagram. `dtx`: leave out packets of silence; right for Opus, and
        for other codecs where the far end asked for silence suppression. `ptime_ms`: ms of sound
        in a packet, as far as the codec has such packets; else 20."""
        self.ssrc = ssrc
        self.dtx = dtx
        self.sequence_number = _first_sequence_number()
        """Of the next packet."""
        self.timestamp = random.randrange(1 << 32)
        """Of the sound that begins at the last tick, sent or not: what a sender report gives
        beside `timestamp_at`."""
        self.timestamp_at: float | None = None
        """The `now` of the last tick; None before the first."""
        self.packets = 0
        self.octets = 0
        """Payload bytes sent, as sender reports count them (RFC 3550 §6.4.1)."""
        self.loss = 0.0
        """The far end's loss of our packets, smoothed, 0..1."""
        self._send = send
        self._events: EventSender | None = None
        self._event_payload_type = 0
        self._quiet = 0
        """Packets of silence encoded since the last of sound."""
        self._unsent = 0
        """Packets not sent since the last that was."""
        self._talkspurt = False
        """Packets are being sent without gaps, because of sound."""
        self._gap = False
        """Without silence suppression: something else than sound, or nothing, was sent last."""
        self._silence = b""
        """The last payload of silence while at rest."""
        self._settled = False
        """It is sent again without asking the encoder."""
        self._gathered = np.zeros((MAX_PACKET_MS + PACKET_MS) * RATE_OUT // 1000, np.int16)
        self._filled = 0
        """Samples gathered that do not fill a packet yet."""
        self._sounding = 0
        """Of those, samples up to the end of the last sound."""
        self._ahead = 0
        """Clock ticks from the last tick's beginning to that of the packet being made."""
        self._use(encoder, payload_type, ptime_ms)
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
        """Go on in another format from the next tick. If the clock rate differs a new SSRC is
        needed (RFC 7160 §4.1), which starts the counts anew. Raises ValueError without one."""
        if ssrc is None and encoder.clock_rate != self._encoder.clock_rate:
            raise ValueError("another clock rate needs another SSRC (RFC 7160 §4.1)")
        self._flush()
        if ssrc is not None:
            self.ssrc = ssrc
            self.sequence_number = _first_sequence_number()
            self.packets = self.octets = 0
        self._use(encoder, payload_type, ptime_ms)

    def use_events(self, payload_type: int, clock_rate: int) -> None:
        """How key presses are sent from now on. One that is being sent does not go on."""
        self._events = EventSender(clock_rate)
        self._event_payload_type = payload_type

    def tick(self, pcm: Pcm | None, now: float) -> None:
        """20 ms pass, with 480 samples of sound or with none."""
        self._pass(now)
        if self._samples == SAMPLES_OUT:
            self._block(pcm)
        else:
            self._gather(pcm)

    def tick_key(self, key: KeyTick, now: float) -> None:
        """20 ms pass with a key pressed in place of sound. After `use_events` only."""
        assert self._events is not None
        packet = self._events.tick(key, uint32_add(self.timestamp, self._step))
        if packet is None:
            self.tick(None, now)
            return
        self._flush()
        self._pass(now)
        self._interrupt()
        self._number(self._event_payload_type, *packet)

    def tick_held(self, now: float) -> None:
        """20 ms pass in which nothing may be sent."""
        self._pass(now)
        self._interrupt()
        self._unsent += 1

    def close(self) -> None:
        """Nothing more is sent. Lets go of the line too: calls that ended hold on to nothing, and
        Python need not stop all others to find out."""
        self._send = _nowhere

    def report_loss(self, fraction: float) -> None:
        """The far end lost this fraction, 0..1, of our packets since its last report."""
        weight = LOSS_WEIGHT_UP if fraction > self.loss else LOSS_WEIGHT_DOWN
        self.loss += weight * (fraction - self.loss)
        self._adapt()

    def _use(self, encoder: Encoder, payload_type: int, ptime_ms: int) -> None:
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

    # packets of other lengths than a tick

    def _gather(self, pcm: Pcm | None) -> None:
        end = self._filled + SAMPLES_OUT
        if pcm is None:
            self._gathered[self._filled : end] = 0
        else:
            self._gathered[self._filled : end] = pcm
            self._sounding = end
        self._filled = end
        while self._filled >= self._samples:
            self._pack()

    def _pack(self) -> None:
        """Make a packet of the first that was gathered."""
        self._ahead = self._step - self._filled * self._encoder.clock_rate // RATE_OUT
        self._block(self._gathered[: self._samples] if self._sounding > 0 else None)
        self._ahead = 0
        left = max(0, self._filled - self._samples)
        self._gathered[:left] = self._gathered[self._samples : self._filled]
        self._filled = left
        self._sounding -= self._samples

    def _flush(self) -> None:
        """Send what is gathered: what follows is not sound, or of another format."""
        if self._filled and self._sounding > 0:
            self._gathered[self._filled : self._samples] = 0
            self._pack()
        self._filled = self._sounding = 0

    # one packet

    def _pass(self, now: float) -> None:
        self.timestamp = uint32_add(self.timestamp, self._step)
        self.timestamp_at = now

    def _interrupt(self) -> None:
        """The stream of sound has a gap from here on."""
        self._filled = self._sounding = 0
        self._talkspurt = False
        self._gap = not self.dtx

    def _block(self, pcm: Pcm | None) -> None:
        """A packet's worth of sound, or of none."""
        self._unsent += 1
        if pcm is not None:
            self._settled = False
            if self._quiet:
                self._quiet = 0
                self._set_dtx(False)
            self._speak(self._encoder.encode(pcm))
        elif self._quiet < self._silence_packets and (self._talkspurt or not self.dtx):
            if not self._quiet:
                self._set_dtx(self.dtx)
            self._quiet += 1
            self._speak(self._encoder.encode(self._nothing))
        else:
            self._rest()

    def _set_dtx(self, on: bool) -> None:
        if self._dtx_encoder is not None:
            self._dtx_encoder.set_dtx(on)

    def _adapt(self) -> None:
        self._encoder.set_loss(self.loss)
        if (encoder := self._bitrate_encoder) is not None:
            share = CONGESTED_BITRATE if self.loss >= CONGESTED_LOSS else 1.0
            encoder.set_bitrate(int(encoder.bitrate * share))

    def _speak(self, payload: bytes) -> None:
        """Send a packet of a talkspurt, unless the encoder says it need not be sent."""
        if not self.dtx:
            # Without silence suppression the marker is not set (RFC 3551 §4.1) but after a gap.
            self._packet(payload)
        elif len(payload) > DTX_BYTES:
            self._packet(payload, marker=not self._talkspurt)
            self._talkspurt = True
        elif self._talkspurt or self._unsent >= self._keep_alive:
            # The first such packet is sent all the same: it tells the decoder that the gap which
            # follows is silence and not loss.
            self._packet(payload)
            self._talkspurt = False

    def _rest(self) -> None:
        """Nothing to say, and the far end's decoder has come to rest."""
        self._talkspurt = False
        if self.dtx and self._unsent < self._keep_alive:
            return
        if not self._settled:
            payload = self._encoder.encode(self._nothing)
            # An encoder that answers silence twice alike has nothing more to say about it.
            self._settled = payload == self._silence
            self._silence = payload
        self._packet(self._silence)

    def _packet(self, payload: bytes, marker: bool = False) -> None:
        timestamp = self.timestamp
        if self._ahead:
            timestamp = uint32_add(timestamp, self._ahead)
        self._number(self._payload_type, timestamp, payload, marker or self._gap)
        self._gap = False
        self._unsent = 0

    def _number(self, payload_type: int, timestamp: int, payload: bytes, marker: bool) -> None:
        packet = RtpPacket(
            payload_type, self.sequence_number, timestamp, self.ssrc, payload, marker
        )
        self.sequence_number = uint16_add(self.sequence_number, 1)
        self.packets += 1
        self.octets += len(payload)
        self._send(packet.serialize())
