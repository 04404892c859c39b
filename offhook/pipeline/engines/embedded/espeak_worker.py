"""The child process in which eSpeak NG speaks, and the bytes it exchanges with the server.

eSpeak NG is free software under the GNU GPL, version 3. The server neither contains nor loads it:
it runs this program where the wheel espeakng-loader is installed, and talks to it over pipes.

On standard input come lines of JSON, ``{"text": ..., "voice": ..., "wpm": ..., "mnemonics": ...}``,
the last of which says whether phonemes stand in double brackets in the text. Each is answered
on standard output, as is the beginning (without sound), by a line of JSON, ``{"rate": Hz, "words":
[[place in the text, sample]], "bytes": count}`` and so many bytes of 16-bit mono sound, in the
machine's order; or by ``{"error": ...}``, which at the beginning is the end. A line
``{"phonemes": [text, ...], "voice": ...}`` is answered by ``{"phonemes": [IPA, ...], "bytes": 0}``.

Run as ``python -m offhook.pipeline.engines.embedded.espeak_worker``; it ends with its
standard input.
"""

import ctypes
import json
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any, BinaryIO

# speak_lib.h
AUDIO_OUTPUT_SYNCHRONOUS = 2
EVENT_LIST_TERMINATED = 0
EVENT_WORD = 1
POS_CHARACTER = 1
CHARS_UTF8 = 1
PHONEMES = 0x100
PHONEMES_IPA = 2
RATE = 1
OK = 0

BUFFER_MS = 200
"""Audio in ms between two callbacks."""


class EspeakError(Exception):
    """Raised when the library fails; the message says how."""


class _EventId(ctypes.Union):
    _fields_ = (("number", ctypes.c_int), ("name", ctypes.c_char_p), ("string", ctypes.c_char * 8))


class _Event(ctypes.Structure):
    """espeak_EVENT"""

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


class Espeak:
    """The loaded library; `rate` in Hz. Raises EspeakError."""

    def __init__(self) -> None:
        try:
            import espeakng_loader

            self._lib = ctypes.CDLL(espeakng_loader.get_library_path())
        except (ImportError, OSError) as error:
            raise EspeakError(f"eSpeak NG cannot be loaded ({error})") from error
        data = espeakng_loader.get_data_path().encode()
        self.rate: int = self._lib.espeak_Initialize(AUDIO_OUTPUT_SYNCHRONOUS, BUFFER_MS, data, 0)
        if self.rate <= 0:
            raise EspeakError(f"eSpeak NG cannot read its data in {data!r}")
        self._sound = bytearray()
        self._words: list[tuple[int, int]] = []
        self._callback = _Callback(self._receive)
        self._lib.espeak_SetSynthCallback(self._callback)
        self._lib.espeak_Synth.argtypes = [
            *(ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint, ctypes.c_int),
            *(ctypes.c_uint, ctypes.c_uint, ctypes.c_void_p, ctypes.c_void_p),
        ]
        self._lib.espeak_TextToPhonemes.argtypes = [
            *(ctypes.POINTER(ctypes.c_void_p), ctypes.c_int, ctypes.c_int)
        ]
        self._lib.espeak_TextToPhonemes.restype = ctypes.c_char_p
        self._voice = ""

    def _receive(self, samples: Any, count: int, events: Any) -> int:
        if samples and count:
            self._sound += ctypes.string_at(samples, 2 * count)
        number = 0
        while (event := events[number]).type != EVENT_LIST_TERMINATED:
            if event.type == EVENT_WORD:
                start = event.audio_position * self.rate // 1000
                self._words.append((event.text_position - 1, start))
            number += 1
        return 0

    def say(
        self, text: str, voice: str, wpm: int, mnemonics: bool
    ) -> tuple[bytes, list[tuple[int, int]]]:
        """Returns the audio, and the positions of word starts in the text and in samples. Raises
        EspeakError."""
        self._set_voice(voice)
        self._lib.espeak_SetParameter(RATE, wpm, 0)
        self._sound, self._words = bytearray(), []
        data = text.encode()
        place = (0, POS_CHARACTER, 0)
        flags = CHARS_UTF8 | PHONEMES * mnemonics
        status = self._lib.espeak_Synth(data, len(data) + 1, *place, flags, None, None)
        if status != OK:
            raise EspeakError(f"eSpeak NG cannot speak {text!r}: status {status}")
        return bytes(self._sound), self._words

    def phonemes(self, texts: list[str], voice: str) -> list[str]:
        """Returns the phonemes of texts. Raises EspeakError."""
        self._set_voice(voice)
        return [" ".join(self._clauses(text)) for text in texts]

    def _clauses(self, text: str) -> Iterator[str]:
        """Yields the phonemes of a text, which the library reads clause by clause."""
        data = ctypes.create_string_buffer(text.encode())
        rest = ctypes.c_void_p(ctypes.addressof(data))
        while rest.value is not None:
            read = self._lib.espeak_TextToPhonemes(ctypes.byref(rest), CHARS_UTF8, PHONEMES_IPA)
            yield (read or b"").decode(errors="replace").strip()

    def _set_voice(self, voice: str) -> None:
        if voice != self._voice:
            if self._lib.espeak_SetVoiceByName(voice.encode()) != OK:
                raise EspeakError(f"eSpeak NG has no voice {voice!r}")
            self._voice = voice


def _answer(output: BinaryIO, table: dict[str, Any], sound: bytes = b"") -> None:
    output.write(json.dumps(table).encode() + b"\n" + sound)
    output.flush()


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server handles it and closes our input
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of the library must not mix with responses
    try:
        espeak = Espeak()
    except EspeakError as error:
        _answer(output, {"error": str(error)})
        return
    _answer(output, {"rate": espeak.rate, "words": [], "bytes": 0})
    for line in sys.stdin.buffer:
        asked = json.loads(line)
        try:
            if "phonemes" in asked:
                phonemes = espeak.phonemes(asked["phonemes"], asked["voice"])
                _answer(output, {"phonemes": phonemes, "bytes": 0})
            else:
                sound, words = espeak.say(**asked)
                _answer(output, {"rate": espeak.rate, "words": words, "bytes": len(sound)}, sound)
        except EspeakError as error:
            _answer(output, {"error": str(error)})


if __name__ == "__main__":
    main()
