"""One outgoing RTP stream: 20 ms of sound or of silence at a time, encoded and numbered.

Timestamps advance with every tick, sequence numbers with every packet. With discontinuous
transmission silence is sent for a few packets, so that the far end's decoder comes to rest, and
then as one packet every 400 ms, as Opus does by itself (RFC 7587 §3.1.3): that keeps NAT bindings
and the far end's watch over the media alive. Without it every tick is a packet.

The encoder's own discontinuous transmission is on in silence only. libopus takes what is steady
for background: of a dial tone or a held chord it would leave out six packets in seven.
"""

import random
from collections.abc import Callable
from typing import Protocol, runtime_checkable

import numpy as np

from offhook.media.codec import Encoder
from offhook.media.pcm import PACKET_MS, SAMPLES_OUT, Pcm
from offhook.media.rtp import RtpPacket, uint16_add, uint32_add

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

_SILENCE = np.zeros(SAMPLES_OUT, np.int16)


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


class AudioSender:
    """Encodes what one call says and sends it as RTP."""

    def __init__(
        self,
        encoder: Encoder,
        payload_type: int,
        ssrc: int,
        send: Callable[[bytes], None],
        dtx: bool = True,
    ) -> None:
        """`send` takes each RTP datagram. `dtx`: leave out packets of silence; right for Opus, and
        for other codecs where the far end asked for silence suppression."""
        self.ssrc = ssrc
        self.dtx = dtx
        # The upper half is left out so that the first packets, should they be lost or reordered,
        # cannot leave SRTP's rollover counter in doubt (RFC 3711 §3.3.1).
        self.sequence_number = random.randrange(1 << 15)
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
        self._quiet_ticks = 0
        """Packets of silence encoded since the last of sound."""
        self._unsent_ticks = KEEP_ALIVE_TICKS
        """Ticks since the last packet."""
        self._talkspurt = False
        """Packets are being sent without gaps, because of sound."""
        self._silence = b""
        """The last payload of silence while at rest."""
        self._settled = False
        """It is sent again without asking the encoder."""
        self._use(encoder, payload_type)

    def change_codec(self, encoder: Encoder, payload_type: int, ssrc: int | None = None) -> None:
        """Go on in another format from the next tick. If the clock rate differs a new SSRC is
        needed (RFC 7160 §4.1), which starts the counts anew. Raises ValueError without one."""
        if ssrc is not None:
            self.ssrc = ssrc
            self.packets = self.octets = 0
        elif encoder.clock_rate != self._encoder.clock_rate:
            raise ValueError("another clock rate needs another SSRC (RFC 7160 §4.1)")
        self._use(encoder, payload_type)

    def tick(self, pcm: Pcm | None, now: float) -> None:
        """20 ms pass, with 480 samples of sound or with none."""
        self.timestamp = uint32_add(self.timestamp, self._step)
        self.timestamp_at = now
        self._unsent_ticks += 1
        if pcm is not None:
            self._settled = False
            if self._quiet_ticks:
                self._quiet_ticks = 0
                self._set_dtx(False)
            self._speak(self._encoder.encode(pcm))
        elif self._quiet_ticks < SILENCE_TICKS and (self._talkspurt or not self.dtx):
            if not self._quiet_ticks:
                self._set_dtx(self.dtx)
            self._quiet_ticks += 1
            self._speak(self._encoder.encode(_SILENCE))
        else:
            self._rest()

    def report_loss(self, fraction: float) -> None:
        """The far end lost this fraction, 0..1, of our packets since its last report."""
        weight = LOSS_WEIGHT_UP if fraction > self.loss else LOSS_WEIGHT_DOWN
        self.loss += weight * (fraction - self.loss)
        self._adapt()

    def _use(self, encoder: Encoder, payload_type: int) -> None:
        self._encoder = encoder
        self._payload_type = payload_type
        self._step = encoder.clock_rate * PACKET_MS // 1000
        self._settled = False
        self._set_dtx(False)
        self._adapt()

    def _set_dtx(self, on: bool) -> None:
        if isinstance(self._encoder, DtxEncoder):
            self._encoder.set_dtx(on)

    def _adapt(self) -> None:
        self._encoder.set_loss(self.loss)
        if isinstance(self._encoder, BitrateEncoder):
            share = CONGESTED_BITRATE if self.loss >= CONGESTED_LOSS else 1.0
            self._encoder.set_bitrate(int(self._encoder.bitrate * share))

    def _speak(self, payload: bytes) -> None:
        """Send a packet of a talkspurt, unless the encoder says it need not be sent."""
        if not self.dtx:
            # Without silence suppression the marker is never set (RFC 3551 §4.1).
            self._packet(payload)
        elif len(payload) > DTX_BYTES:
            self._packet(payload, marker=not self._talkspurt)
            self._talkspurt = True
        elif self._talkspurt or self._unsent_ticks >= KEEP_ALIVE_TICKS:
            # The first such packet is sent all the same: it tells the decoder that the gap which
            # follows is silence and not loss.
            self._packet(payload)
            self._talkspurt = False

    def _rest(self) -> None:
        """Nothing to say, and the far end's decoder has come to rest."""
        self._talkspurt = False
        if self.dtx and self._unsent_ticks < KEEP_ALIVE_TICKS:
            return
        if not self._settled:
            payload = self._encoder.encode(_SILENCE)
            # An encoder that answers silence twice alike has nothing more to say about it.
            self._settled = payload == self._silence
            self._silence = payload
        self._packet(self._silence)

    def _packet(self, payload: bytes, marker: bool = False) -> None:
        packet = RtpPacket(
            self._payload_type, self.sequence_number, self.timestamp, self.ssrc, payload, marker
        )
        self.sequence_number = uint16_add(self.sequence_number, 1)
        self._unsent_ticks = 0
        self.packets += 1
        self.octets += len(payload)
        self._send(packet.serialize())
