"""Where words are marked in a reply of an hour.

The engine says which frames there are; the sound that the marks are found in is made here, for a
model of random weights speaks no words: syllables of noise with pauses at commas and full stops,
where FRAMES_PER_TOKEN puts them.
"""

from collections.abc import Sequence

import numpy as np

from benchmarks.speech.texts import FRAMES_PER_TOKEN, Word, frames_of
from benchmarks.table import Table, percentile
from benchmarks.voices.tts_hour import SENTENCE, Narrator, run_through, tokens_in
from benchmarks.voices.tts_load import serve
from benchmarks.voices.tts_runners import Machine, usual_voices
from offhook.media.pcm import RATE_OUT, Pcm
from offhook.pipeline.engines.shared.synthesis.messages import FRAME_S, FRAME_SAMPLES
from offhook.pipeline.speech.text.spoken_text import SpokenWord
from offhook.pipeline.speech.voice.word_marks import WordMarks

COMMA_FRAMES, STOP_FRAMES = 2, 4
"""Of silence."""
SYLLABLE_S = 0.2


class Marks:
    """Words told by WordMarks against those that are over."""

    def __init__(self) -> None:
        self.late_ms: list[float] = []
        """After each frame: how late the marks are."""
        self._marks = WordMarks()
        self._sound = _sentence()
        self._frames = 0
        self._told = 0

    def written(self, said: Sequence[Word]) -> None:
        for word in said:
            self._marks.write(SpokenWord(word.text, f" {word.text.strip()}"))

    def heard(self, frames: int) -> None:
        for _ in range(frames):
            self._told += len(self._marks.feed(self._sound[self._frames % len(self._sound)]))
            self._frames += 1
            # A word is told when it is over: half of one is always missing.
            over = self._frames / FRAMES_PER_TOKEN - 0.5
            self.late_ms.append((over - self._told) * FRAMES_PER_TOKEN * 1000 * FRAME_S)


def _sentence() -> list[Pcm]:
    """Frames of one."""
    frames = frames_of(SENTENCE)
    time = np.arange(frames * FRAME_SAMPLES) / RATE_OUT
    noise = np.random.default_rng(0).standard_normal(len(time))
    syllables = 0.5 - 0.5 * np.cos(2 * np.pi * time / SYLLABLE_S)
    sound = (noise * (300 + 5000 * syllables)).clip(-32767, 32767).reshape(frames, FRAME_SAMPLES)
    comma = frames_of(SENTENCE // 2)
    for end, silent in ((comma, COMMA_FRAMES), (frames, STOP_FRAMES)):
        sound[end - silent : end] *= 0.002
    return list(sound.astype(np.int16))


def marks(machine: Machine, minutes: float, limit: float, as_json: bool) -> None:
    """`limit`: s after which it is given up."""
    found = Marks()
    voice = usual_voices(machine.config)[0]
    with serve(machine) as serving:
        narrator = Narrator(serving, voice, tokens_in(minutes), found)
        run_through(serving, [narrator], 0.0, limit)
    late = found.late_ms
    tenth = max(1, len(late) // 10)
    row = {
        "minutes": len(late) * FRAME_S / 60,
        "first_tenth_p50_ms": percentile(late[:tenth], 50),
        "last_tenth_p50_ms": percentile(late[-tenth:], 50),
        "all_p5_ms": percentile(late, 5),
        "all_p95_ms": percentile(late, 95),
    }
    note = f"how much later words are marked than they end, in made sound, over {minutes:g} minutes"
    Table("marks", note, " ".join(row), as_json).row(**row)
