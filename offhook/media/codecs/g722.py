"""G.722 at 64 kbit/s (ITU-T G.722; RFC 3551 §4.5.2): two sub-band ADPCM, 16 kHz sound.

The codec is FFmpeg's, in PyAV; it keeps no frame back, so a packet in is a packet out. Its RTP
timestamps count at 8 kHz though the sound is 16 kHz: an error of the first RTP profile, kept ever
since. A payload byte is thus one tick of the clock and two samples.
"""

from typing import Literal

import av
import numpy as np
from av.audio.codeccontext import AudioCodecContext
from av.audio.frame import AudioFrame

from offhook.media.codecs.codec import CodecError
from offhook.media.codecs.conceal import Concealer
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
    """Takes multiples of `unit` samples; of other numbers it would keep the rest back."""
    context = _context("w")
    context.options = {"frame_size": str(unit)}
    return context


def _frame(samples: int) -> AudioFrame:
    frame = AudioFrame(format="s16", layout="mono", samples=samples)
    frame.sample_rate = RATE_IN
    return frame


class G722Decoder:
    """One incoming G.722 stream to 16 kHz: no resampling."""

    clock_rate = CLOCK_RATE
    sound_rate = RATE_IN

    def __init__(self) -> None:
        self._context = _context("r")
        self._concealer = Concealer()

    def decode(self, payload: bytes) -> Pcm:
        # FFmpeg would take an empty payload for the end of the stream.
        if not payload:
            raise CodecError("g722: empty payload")
        (frame,) = self._context.decode(av.Packet(payload))
        pcm = np.frombuffer(memoryview(frame.planes[0]), np.int16, frame.samples)
        return self._concealer.heard(pcm)

    def recover(self, following: bytes, samples: int) -> Pcm | None:
        return None

    def conceal(self, samples: int) -> Pcm:
        return self._concealer.conceal(samples)


class G722Encoder:
    """24 kHz to one G.722 stream, 8 bytes a millisecond."""

    clock_rate = CLOCK_RATE
    packets_ms = range(10, 61, 10)

    def __init__(self) -> None:
        self._resampler = Resampler(RATE_OUT, RATE_IN)
        self._unit = SAMPLES_IN
        """Whole units of 20 ms cost least, so the shorter ones are for packets that need them."""
        self._context = _encoder(self._unit)
        self._frame = _frame(SAMPLES_IN)

    def encode(self, pcm: Pcm) -> bytes:
        sound = self._resampler.process(pcm)
        if len(sound) != self._frame.samples:
            self._frame = _frame(len(sound))
            if len(sound) % self._unit:
                self._unit = SHORTEST
                self._context = _encoder(self._unit)
        self._frame.planes[0].update(sound.tobytes())
        return b"".join(bytes(packet) for packet in self._context.encode(self._frame))

    def set_loss(self, fraction: float) -> None:
        """G.722 has no redundancy to spend bits on."""
