"""Flite (CMU, 2.2) by ctypes: a small English voice for any CPU, with its words' exact ends.

Debian's libflite1 holds the library and the voices; nothing is downloaded. Flite makes an
utterance as relations of items: tokens as written, the words a token is read as ("$5" is two), and
segments (phones) with their end times. The end of a written word is the end of the last segment of
its token's last word that has any.

Flite counts references to shared features without a lock, so one thread at a time may be in it;
about 20 ms of one core makes a second of speech, so one thread serves tens of voices.
"""

import ctypes
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np

from offhook.media.pcm import Pcm
from offhook.pipeline.engines.embedded.embedded_speech_io import EmbeddedSynthesizer, Sound
from offhook.pipeline.speech.errors import EngineError

_STRETCH = b"duration_stretch"
"""Factor on every segment's duration, 1 by default. Flite keeps the pointer to this name, so it
must not be freed."""
_LAST_SEGMENT_END = b"R:SylStructure.daughtern.daughtern.R:Segment.end"
ONSET_S = 0.02
"""Sound before the end of the first pause that belongs to the first phone."""
_LOCK = threading.Lock()


class _Wave(ctypes.Structure):
    """cst_wave.h"""

    _fields_ = (
        ("type", ctypes.c_char_p),
        ("sample_rate", ctypes.c_int),
        ("num_samples", ctypes.c_int),
        ("num_channels", ctypes.c_int),
        ("samples", ctypes.POINTER(ctypes.c_short)),
    )


class _Voice(ctypes.Structure):
    """The beginning of cst_voice.h"""

    _fields_ = (("name", ctypes.c_char_p), ("features", ctypes.c_void_p))


@dataclass(frozen=True)
class Voice:
    address: int
    features: int
    """Features that Flite copies into each utterance."""


def _load(soname: str) -> ctypes.CDLL:
    try:
        # Global, because the voices look up the library's functions in the process.
        return ctypes.CDLL(soname, mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise EngineError(
            f"Flite cannot be loaded ({error}): install the Debian package libflite1"
        ) from error


@cache
def libflite() -> ctypes.CDLL:
    """Loads libflite and declares the functions used. Raises EngineError if it is missing."""
    lib = _load("libflite.so.1")
    for soname in ("libflite_usenglish.so.1", "libflite_cmulex.so.1"):
        _load(soname)
    void, text = ctypes.c_void_p, ctypes.c_char_p
    lib.flite_synth_text.restype = void
    lib.flite_synth_text.argtypes = [text, void]
    lib.utt_wave.restype = ctypes.POINTER(_Wave)
    lib.utt_wave.argtypes = [void]
    lib.delete_utterance.restype = None
    lib.delete_utterance.argtypes = [void]
    lib.utt_relation.restype = void
    lib.utt_relation.argtypes = [void, text]
    for step in (lib.relation_head, lib.item_next, lib.item_daughter):
        step.restype = void
        step.argtypes = [void]
    lib.flite_ffeature_float.restype = ctypes.c_float
    lib.flite_ffeature_float.argtypes = [void, text]
    lib.feat_set_float.restype = None
    lib.feat_set_float.argtypes = [void, text, ctypes.c_float]
    lib.flite_init()
    return lib


@cache
def flite_voice(name: str) -> Voice:
    """Returns a voice, kept for the life of the process. Raises EngineError."""
    libflite()
    register = getattr(_load(f"libflite_cmu_us_{name}.so.1"), f"register_cmu_us_{name}")
    register.restype = ctypes.c_void_p
    register.argtypes = [ctypes.c_void_p]
    voice = register(None)
    if not voice:
        raise EngineError(f"Flite cannot make its voice {name}: reinstall libflite1")
    return Voice(voice, _Voice.from_address(voice).features)


class FliteSynthesizer(EmbeddedSynthesizer):
    """Flite's voices: `slt` (a clear female voice), `rms` and `awb` (male)."""

    name = "flite"
    spoken = dict.fromkeys(("slt", "rms", "awb"), ("en",))

    def load(self) -> None:
        flite_voice(self.voice_of(""))

    def sound(self, words: list[str], voice: str, speed: float = 1.0) -> Sound:
        with _LOCK:
            lib, text = libflite(), " ".join(words).encode("ascii")
            spoken_by = flite_voice(voice)
            lib.feat_set_float(spoken_by.features, _STRETCH, 1 / speed)
            utterance = lib.flite_synth_text(text, spoken_by.address)
            if not utterance:
                raise EngineError(f"Flite made no utterance of {text!r}")
            try:
                wave = lib.utt_wave(utterance).contents
                samples, rate = wave.num_samples, int(wave.sample_rate)
                pcm = np.ctypeslib.as_array(wave.samples, (samples,)).copy()
                # Its filters start on whatever the memory held, in some processes audibly.
                pcm[: int(_silent_seconds(lib, utterance) * rate)] = 0
                token_ends = list(_token_ends(lib, utterance))
            finally:
                lib.delete_utterance(utterance)
        return Sound(pcm, rate, _word_ends(words, token_ends, pcm, rate))


def _items(lib: ctypes.CDLL, item: int | None) -> Iterator[int]:
    while item:
        yield item
        item = lib.item_next(item)


def _silent_seconds(lib: ctypes.CDLL, utterance: int) -> float:
    """Returns how much of the pause before the first phone is silent; 0.0 without phones."""
    pauses = _items(lib, lib.relation_head(lib.utt_relation(utterance, b"Segment")))
    ends = (float(lib.flite_ffeature_float(pause, b"end")) for pause in pauses)
    return max(0.0, next(ends, 0.0) - ONSET_S)


def _token_ends(lib: ctypes.CDLL, utterance: int) -> Iterator[float]:
    """Yields the end of each token in seconds; 0.0 for one without audio."""
    tokens = lib.relation_head(lib.utt_relation(utterance, b"Token"))
    for token in _items(lib, tokens):
        words = _items(lib, lib.item_daughter(token))
        yield max((lib.flite_ffeature_float(word, _LAST_SEGMENT_END) for word in words), default=0)


def _word_ends(words: list[str], token_ends: list[float], pcm: Pcm, rate: int) -> list[int]:
    """Returns the end of each word. Flite splits tokens at white space like us; otherwise the words
    share the audio by letters, which is off by a word or so."""
    if len(token_ends) == len(words):
        ends = np.array(token_ends) * rate
    else:
        letters = np.cumsum([len(word) for word in words])
        ends = letters / letters[-1] * len(pcm)
    return [int(end) for end in np.maximum.accumulate(ends)]
