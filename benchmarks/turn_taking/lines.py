"""What a line makes of a caller's sound, in samples of the same number and place."""

from collections.abc import Callable, Mapping
from zlib import crc32

import numpy as np

from benchmarks.speech.noises import SPEECH_DBFS, at_level, mixed, street
from benchmarks.speech.recordings import resample
from offhook.media.codecs.g711 import CLOCK_RATE, ULAW_CODES, ULAW_LEVELS
from offhook.media.pcm import RATE_IN, Pcm

SNR_DB = 15.0
FAR_DB, FAR_S, DIRECT = -12.0, 0.35, 0.5
"""A caller some metres from the microphone: the level, how long the room's echo lasts (to -60 dB),
and the share of the sound that comes straight."""


def telephone(sound: Pcm) -> Pcm:
    """G.711 at 8 kHz."""
    coded = ULAW_CODES.take(resample(sound, RATE_IN, CLOCK_RATE), mode="wrap")
    return np.resize(resample(ULAW_LEVELS.take(coded), CLOCK_RATE, RATE_IN), len(sound))


def noisy(sound: Pcm) -> Pcm:
    """Traffic SNR_DB below the caller's speech."""
    noise = street(len(sound), np.random.default_rng(crc32(sound.tobytes())))
    return mixed(at_level(sound, SPEECH_DBFS), noise, SNR_DB)


def far(sound: Pcm) -> Pcm:
    """A quiet caller in a room that echoes."""
    time = np.arange(int(FAR_S * RATE_IN)) / RATE_IN
    room = np.random.default_rng(1).normal(0, 1, len(time)) * 10 ** (-3 * time / FAR_S)
    room *= np.sqrt((1 - DIRECT) / np.sum(room**2))
    room[0] += np.sqrt(DIRECT)
    size = len(sound) + len(room)
    whole = np.fft.irfft(np.fft.rfft(sound, size) * np.fft.rfft(room, size), size)[: len(sound)]
    return np.clip(np.rint(whole * 10 ** (FAR_DB / 20)), -32768, 32767).astype(np.int16)


LINES: Mapping[str, Callable[[Pcm], Pcm]] = {
    "clean": lambda sound: sound,
    "telephone": telephone,
    "noisy": noisy,
    "far": far,
}
