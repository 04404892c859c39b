"""Noises of telephone calls, made from random numbers, and speech mixed with them at a ratio."""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from offhook.media.pcm import RATE_IN, SAMPLES_IN, Pcm

Sound = npt.NDArray[np.float64]

SPEECH_DBFS = -26.0
"""Usual level of telephone speech."""


def _shaped(samples: int, rng: np.random.Generator, gain: Callable[[Sound], Sound]) -> Sound:
    """Noise of power 1 with a spectrum."""
    frequencies = np.maximum(np.fft.rfftfreq(samples, 1 / RATE_IN), 1)
    spectrum = np.fft.rfft(rng.standard_normal(samples)) * gain(frequencies)
    return at_power(np.fft.irfft(spectrum, samples), 1.0)


def at_power(sound: Sound, power: float) -> Sound:
    return np.asarray(sound * np.sqrt(power / np.mean(sound**2)))


def white(samples: int, rng: np.random.Generator) -> Sound:
    return rng.standard_normal(samples)


def fan(samples: int, rng: np.random.Generator) -> Sound:
    """Pink noise with the hum of a motor."""
    seconds = np.arange(samples) / RATE_IN
    hum = np.sum([np.sin(2 * np.pi * 100 * k * seconds + k) / k for k in range(1, 6)], axis=0)
    return _shaped(samples, rng, lambda f: (f > 20) / np.sqrt(f)) + at_power(hum, 0.5)


def street(samples: int, rng: np.random.Generator) -> Sound:
    """The rumble of traffic, and a car that passes every few seconds."""
    seconds = np.arange(samples) / RATE_IN
    passing, at = np.zeros(samples), rng.uniform(0, 2)
    while at < samples / RATE_IN + 2:
        passing += rng.uniform(0.5, 1.5) / (1 + ((seconds - at) / rng.uniform(0.4, 1)) ** 2)
        at += rng.uniform(2, 5)
    rumble = _shaped(samples, rng, lambda f: (f > 30) / (1 + (f / 150) ** 2))
    distant = _shaped(samples, rng, lambda f: (f > 50) / (1 + f / 1000))
    tyres = _shaped(samples, rng, lambda f: f / 800 / (1 + (f / 800) ** 2.5))
    return rumble + 0.5 * distant + 0.9 * tyres * passing


def babble(samples: int, rng: np.random.Generator, speech: Sequence[Pcm]) -> Sound:
    """Six people who talk without a pause."""
    total = np.zeros(samples)
    for _ in range(6):
        parts = [at_power(speech[i].astype(float), 1.0) for i in rng.permutation(len(speech))]
        talk = np.concatenate(parts)
        total += np.resize(np.roll(talk, rng.integers(len(talk))), samples)
    return total


STEADY = {"street": street, "fan": fan, "white": white}


def at_level(speech: Pcm, level: float) -> Sound:
    """Speech whose parts within 25 dB of its loudest have a level in dBFS."""
    sound = speech.astype(float)
    ticks = sound[: len(sound) // SAMPLES_IN * SAMPLES_IN].reshape(-1, SAMPLES_IN)
    power = np.mean(ticks**2, axis=1)
    return np.asarray(
        sound * 32768 * 10 ** (level / 20) / np.sqrt(power[power > power.max() / 316].mean())
    )


def mixed(speech: Sound, noise: Sound | None, snr: float, level: float = SPEECH_DBFS) -> Pcm:
    """Adds noise so many dB below speech of a level; without noise, the speech."""
    if noise is not None:
        speech = speech + at_power(noise, (32768 * 10 ** ((level - snr) / 20)) ** 2)
    return np.clip(np.rint(speech), -32768, 32767).astype(np.int16)
