"""Speech that is understood whatever a line or a busy machine loses of it: each text is spoken with
a tone of its own, its mark, by which the recognizer knows it."""

from collections.abc import Mapping

import numpy as np

from benchmarks.servers.scripted import ScriptedRecognizer, ScriptedRecognizerStream
from offhook.media.pcm import RATE_IN, Pcm
from offhook.pipeline.speech.recognizer import DEFAULT_OPTIONS, Final, StreamOptions

MARK_SHARE = 0.3
"""The level of a mark, of the voice's own."""
CHUNK_S = 0.05
"""Time in s of a piece in which marks are looked for: so they are apart by multiples of 20 Hz."""


def marked(voice: Pcm, rate: int, hz: float) -> Pcm:
    """Returns speech with a mark."""
    sound, chunk = voice.astype(np.float64), round(rate * CHUNK_S)
    level = np.convolve(np.abs(sound), np.ones(chunk) / chunk, "same")
    mark = MARK_SHARE * level * np.sin(2 * np.pi * hz / rate * np.arange(len(sound)))
    both: Pcm = np.clip(sound + mark, -32768, 32767).astype(np.int16)
    return both


class Ears(ScriptedRecognizer):
    """Knows what is said by its mark."""

    def __init__(self, marks_hz: Mapping[str, float]) -> None:
        self._marks_hz = marks_hz

    async def open(self, options: StreamOptions = DEFAULT_OPTIONS) -> ScriptedRecognizerStream:
        return _Ear(self._marks_hz)


class _Ear(ScriptedRecognizerStream):
    def __init__(self, marks_hz: Mapping[str, float]) -> None:
        super().__init__()
        self._marks_hz = marks_hz
        self._pieces: list[Pcm] = []

    def feed(self, pcm: Pcm) -> None:
        self._ms += len(pcm) * 1000 // RATE_IN
        self._pieces.append(pcm)

    def finish(self) -> None:
        sound = np.concatenate([_SILENCE, *self._pieces])
        words = max(self._marks_hz, key=lambda text: _power_at(self._marks_hz[text], sound))
        self._events.put_nowait(Final(words, self._ms))
        self.cancel()

    def cancel(self) -> None:
        super().cancel()
        self._pieces.clear()


_SILENCE = np.zeros(round(RATE_IN * CHUNK_S), np.int16)


def _power_at(hz: float, sound: Pcm) -> float:
    """The power of a tone, whatever its phase in each piece of the sound."""
    chunk = len(_SILENCE)
    pieces = sound[: len(sound) // chunk * chunk].reshape(-1, chunk)
    return float(
        (np.abs(pieces @ np.exp(-2j * np.pi * hz / RATE_IN * np.arange(chunk))) ** 2).sum()
    )
