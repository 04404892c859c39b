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

from offhook.media.codec import CodecError
from offhook.media.conceal import Concealer
from offhook.media.pcm import RATE_IN, RATE_OUT, SAMPLES_IN, Pcm
from offhook.media.resample import Resampler

CLOCK_RATE = 8_000


def _context(mode: Literal["r", "w"]) -> AudioCodecContext:
    context = av.CodecContext.create("g722", mode)
    context.sample_rate = RATE_IN
    context.layout = "mono"
    context.format = "s16"
    return context


class G722Decoder:
    """One incoming G.722 stream to 16 kHz: no resampling."""

    clock_rate = CLOCK_RATE

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
    """24 kHz to one G.722 stream, 160 bytes a packet."""

    clock_rate = CLOCK_RATE

    def __init__(self) -> None:
        self._context = _context("w")
        self._resampler = Resampler(RATE_OUT, RATE_IN)
        self._frame = AudioFrame(format="s16", layout="mono", samples=SAMPLES_IN)
        self._frame.sample_rate = RATE_IN

    def encode(self, pcm: Pcm) -> bytes:
        self._frame.planes[0].update(self._resampler.process(pcm).tobytes())
        (packet,) = self._context.encode(self._frame)
        return bytes(packet)

    def set_loss(self, fraction: float) -> None:
        """G.722 has no redundancy to spend bits on."""
