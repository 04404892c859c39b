"""eSpeak NG by ctypes from the espeakng_loader wheel: the voice where there is no Flite.

It runs on every system the wheel is built for and loads in 10 ms, but sounds like a machine. The
library tells where each word begins (espeak_EVENT in speak_lib.h); a word ends where the next one
begins, so a pause within a clause belongs to the word before it.
"""

import ctypes
import threading
from bisect import bisect_right
from collections.abc import Iterator
from functools import cache
from typing import Any

import espeakng_loader
import numpy as np

from offhook.pipeline.embedded_speech_io import EmbeddedSynthesizer, Sound
from offhook.pipeline.recognizer import EngineError

# speak_lib.h
AUDIO_OUTPUT_SYNCHRONOUS = 2
EVENT_LIST_TERMINATED = 0
EVENT_WORD = 1
POS_CHARACTER = 1
CHARS_UTF8 = 1
RATE = 1
OK = 0

USUAL_RATE_WPM = 175

BUFFER_MS = 200
"""Sound between two callbacks."""
_LOCK = threading.Lock()


class _EventId(ctypes.Union):
    _fields_ = (("number", ctypes.c_int), ("name", ctypes.c_char_p), ("string", ctypes.c_char * 8))


class _Event(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("id", _EventId),
    )


_Callback = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event)
)


class _Espeak:
    """The loaded library; `rate` in Hz. One utterance at a time, the caller sees to that."""

    def __init__(self) -> None:
        try:
            self._lib = ctypes.CDLL(espeakng_loader.get_library_path())
        except OSError as error:
            raise EngineError(
                f"eSpeak NG cannot be loaded ({error}): install the Debian package libflite1 "
                "for the Flite voice instead, or reinstall the wheel espeakng-loader"
            ) from error
        data = espeakng_loader.get_data_path().encode()
        self.rate: int = self._lib.espeak_Initialize(AUDIO_OUTPUT_SYNCHRONOUS, BUFFER_MS, data, 0)
        if self.rate <= 0:
            raise EngineError(f"eSpeak NG cannot read its data in {data!r}: reinstall the wheel")
        self._blocks: list[Any] = []
        self._word_starts: list[tuple[int, int]] = []
        self._callback = _Callback(self._receive)
        self._lib.espeak_SetSynthCallback(self._callback)
        self._lib.espeak_Synth.argtypes = [
            *(ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint, ctypes.c_int),
            *(ctypes.c_uint, ctypes.c_uint, ctypes.c_void_p, ctypes.c_void_p),
        ]
        self._voice = ""

    def _receive(self, samples: Any, count: int, events: Any) -> int:
        if samples and count:
            self._blocks.append(np.ctypeslib.as_array(samples, (count,)).copy())
        number = 0
        while (event := events[number]).type != EVENT_LIST_TERMINATED:
            if event.type == EVENT_WORD:
                start = event.audio_position * self.rate // 1000
                self._word_starts.append((event.text_position - 1, start))
            number += 1
        return 0

    def synthesize(self, words: list[str], voice: str, speed: float) -> Sound:
        if voice != self._voice:
            if self._lib.espeak_SetVoiceByName(voice.encode()) != OK:
                raise EngineError(f"eSpeak NG has no voice {voice!r}")
            self._voice = voice
        self._lib.espeak_SetParameter(RATE, round(USUAL_RATE_WPM * speed), 0)
        self._blocks, self._word_starts = [], []
        text = " ".join(words).encode("ascii")
        position = (0, POS_CHARACTER, 0)
        status = self._lib.espeak_Synth(text, len(text) + 1, *position, CHARS_UTF8, None, None)
        if status != OK:
            raise EngineError(f"eSpeak NG cannot speak {text!r}: status {status}")
        pcm = np.concatenate([np.empty(0, np.int16), *self._blocks])
        return Sound(pcm, self.rate, list(_word_ends(words, self._word_starts, len(pcm))))


def _word_ends(words: list[str], starts: list[tuple[int, int]], samples: int) -> Iterator[int]:
    """`starts` are (place in the text, sample) of the words eSpeak saw; it may see several in one
    of ours or none, which then has no length of its own."""
    places = [place for place, _ in starts]
    after = 0
    for word in words:
        after += len(word) + 1
        following = bisect_right(places, after - 1)
        yield min(starts[following][1], samples) if following < len(starts) else samples


@cache
def libespeak() -> _Espeak:
    """Load the library once for the process. Raises EngineError."""
    return _Espeak()


class EspeakSynthesizer(EmbeddedSynthesizer):
    """eSpeak's American English."""

    name = "espeak"
    names = ("en-us",)

    def load(self) -> None:
        libespeak()

    def sound(self, words: list[str], voice: str, speed: float = 1.0) -> Sound:
        with _LOCK:
            return libespeak().synthesize(words, voice, speed)
