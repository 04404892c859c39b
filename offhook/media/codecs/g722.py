"""G.722 at 64 kbit/s (ITU-T G.722; RFC 3551 §4.5.2): two-band ADPCM, 16 kHz audio.

The codec is FFmpeg's, through PyAV; it buffers nothing, so each packet in gives a packet out. The
compiled one gives the same, bit by bit.

RTP timestamps count at 8 kHz although the audio is 16 kHz, a historical error kept by RFC 3551. A
payload byte is thus one timestamp tick and two samples.
"""

from typing import Literal

import av
import numpy as np
from av.audio.codeccontext import AudioCodecContext
from av.audio.frame import AudioFrame

from offhook.media import native
from offhook.media.codecs.codec import CodecError
from offhook.media.codecs.conceal import new_concealer
from offhook.media.codecs.resample import Resampler
from offhook.media.pcm import RATE_IN, RATE_OUT, SAMPLES_IN, Pcm

CLOCK_RATE = 8_000
SHORTEST = RATE_IN // 100
"""Samples of the shortest packet, 10 ms."""


def _context(mode: Literal["r", "w"]) -> AudioCodecContext:
    context = av.CodecContext.create("g722", mode)
    context.sample_rate = RATE_IN
    context.layout = "mono"
    context.format = "s16"
    return context


def _encoder(unit: int) -> AudioCodecContext:
    """Create an encoder for multiples of `unit` samples; it holds back any remainder."""
    context = _context("w")
    context.options = {"frame_size": str(unit)}
    return context


def _frame(samples: int) -> AudioFrame:
    frame = AudioFrame(format="s16", layout="mono", samples=samples)
    frame.sample_rate = RATE_IN
    return frame


class G722Decoder:
    """Decodes one G.722 stream to 16 kHz, without resampling."""

    clock_rate = CLOCK_RATE
    sound_rate = RATE_IN

    def __init__(self) -> None:
        self._concealer = new_concealer()
        self.compiled: native.G722Decoder | None = None
        """Does the same in one step."""
        if native.used:
            self.compiled = native.G722Decoder(self._concealer)
        else:
            self._context = _context("r")

    def decode(self, payload: bytes) -> Pcm:
        # FFmpeg would treat an empty payload as the end of the stream.
        if not payload:
            raise CodecError("g722: empty payload")
        if self.compiled is not None:
            return self.compiled.decode(payload)
        (frame,) = self._context.decode(av.Packet(payload))
        pcm = np.frombuffer(memoryview(frame.planes[0]), np.int16, frame.samples)
        return self._concealer.process(pcm)

    def recover(self, following: bytes, samples: int) -> Pcm | None:
        return None

    def conceal(self, samples: int) -> Pcm:
        return self._concealer.conceal(samples)


class G722Encoder:
    """Encodes 24 kHz to one G.722 stream, 8 bytes per ms."""

    clock_rate = CLOCK_RATE
    packets_ms = range(10, 61, 10)

    def __init__(self) -> None:
        self._resampler = Resampler(RATE_OUT, RATE_IN)
        self.compiled: native.G722Encoder | None = None
        """Does the same in one step."""
        if native.used:
            self.compiled = native.G722Encoder(self._resampler.compiled)
            return
        self._unit = SAMPLES_IN
        """Samples the encoder works in: 20 ms units are cheapest, 10 ms ones a fallback."""
        self._context = _encoder(self._unit)
        self._frame = _frame(SAMPLES_IN)

    def encode(self, pcm: Pcm) -> bytes:
        if self.compiled is not None:
            return self.compiled.encode(pcm)
        sound = self._resampler.process(pcm)
        if len(sound) != self._frame.samples:
            self._frame = _frame(len(sound))
            if len(sound) % self._unit:
                self._unit = SHORTEST
                self._context = _encoder(self._unit)
        self._frame.planes[0].update(sound.tobytes())
        return b"".join(bytes(packet) for packet in self._context.encode(self._frame))

    def set_loss(self, fraction: float) -> None:
        """No-op: G.722 has no redundancy."""
