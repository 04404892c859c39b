"""Converts PCM of any common format to 16 kHz mono. Sans-io."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from offhook.media.pcm import RATE_IN, Pcm
from offhook.pipeline.speech.remote.worker_protocol import ProtocolError
from offhook.web.speech_api.sockets.input_resampler import InputResampler

RATES = (8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000, 96_000)
"""Sample rates in Hz that a client's audio may have."""
MAX_CHANNELS = 8
"""Maximum channels of a client's audio; with more it gets an error and is disconnected."""
BLOCK_S = 1
"""Audio in s converted at a time."""


@dataclass(frozen=True)
class AudioFormat:
    """Format of raw PCM, little-endian; samples of one byte are unsigned, as in WAV files. Raises
    ProtocolError for others."""

    rate: int = RATE_IN
    width: int = 2
    """Bytes per sample."""
    channels: int = 1

    def __post_init__(self) -> None:
        if self.rate not in RATES:
            raise ProtocolError(f"rate is {self.rate}, not one of {', '.join(map(str, RATES))} Hz")
        if not 1 <= self.width <= 4:
            raise ProtocolError(f"width is {self.width} bytes a sample, not 1..4")
        if not 1 <= self.channels <= MAX_CHANNELS:
            raise ProtocolError(f"channels is {self.channels}, not 1..{MAX_CHANNELS}")

    def samples(self, data: bytes) -> Pcm:
        """Returns the mean of the channels in 16 bits."""
        if self.width == 1:
            pcm = (np.frombuffer(data, np.uint8).astype(np.int16) - 128) << 8
        else:  # the two most significant bytes
            ordered = np.frombuffer(data, np.uint8).reshape(-1, self.width)[:, -2:]
            pcm = np.ascontiguousarray(ordered).view("<i2").ravel().astype(np.int16, copy=False)
        if self.channels > 1:
            pcm = pcm.reshape(-1, self.channels).mean(axis=1).astype(np.int16)
        return pcm


class AudioInput:
    """Converts one stream. The first one of a rate takes some 100 ms to make its filter."""

    def __init__(self, form: AudioFormat) -> None:
        self.form = form
        self._resampler = InputResampler(form.rate)

    def process(self, data: bytes) -> Iterator[Pcm]:
        """Yields the samples at 16 kHz, about a second at a time. Raises ProtocolError."""
        frame = self.form.width * self.form.channels
        if len(data) % frame:
            raise ProtocolError(f"{len(data)} bytes of audio: {frame} are a sample of each channel")
        block = BLOCK_S * self.form.rate * frame
        for at in range(0, len(data), block):
            yield self._resampler.process(self.form.samples(data[at : at + block]))
