"""One utterance in the Nemotron engine: its unprocessed audio, and its labels as words."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

import numpy as np

from offhook.media.pcm import RATE_IN, Pcm
from offhook.pipeline.engine.nemotron.runner import (
    FRAME_SAMPLES,
    Label,
    chunk_begin,
    chunk_end,
    chunk_samples,
)
from offhook.pipeline.speech.recognizer import Final, Partial, Timing, Word
from offhook.pipeline.speech.streams.languages import UNKNOWN

FRAME_MS = FRAME_SAMPLES * 1000 // RATE_IN


class LabelText(Protocol):
    """The part of `models.nemotron.tokenizer.LabelTokenizer` that the engine uses."""

    def text(self, ids: Sequence[int]) -> str: ...

    def begins_word(self, id: int) -> bool: ...

    def language(self, ids: Sequence[int]) -> str | None: ...


class UtteranceAudio:
    """Buffers the audio of an utterance that is still needed."""

    def __init__(self) -> None:
        self._pcm = np.empty(4 * FRAME_SAMPLES, np.int16)
        self._first = 0
        """Position in the utterance of the buffer's first sample."""
        self.fed = 0

    def feed(self, pcm: Pcm) -> None:
        at = self.fed - self._first
        if at + len(pcm) > len(self._pcm):
            size = max(len(self._pcm), 2 * (at + len(pcm)))
            grown = np.empty(size, np.int16)
            grown[:at] = self._pcm[:at]
            self._pcm = grown
        self._pcm[at : at + len(pcm)] = pcm
        self.fed += len(pcm)

    def cut(self, begin: int, count: int) -> Pcm:
        """Returns samples [begin, begin + count) as far as available, zeros before the utterance.
        Earlier samples are no longer needed. The result is a view, valid until the next `feed`."""
        if begin < 0:
            lead = np.zeros(min(count, -begin), np.int16)
            return np.concatenate([lead, self._pcm[: max(0, min(begin + count, self.fed))]])
        self._compact(begin)
        return self._pcm[begin - self._first : min(begin + count, self.fed) - self._first]

    def _compact(self, before: int) -> None:
        """Compacts the buffer once half of it is no longer needed."""
        gone = before - self._first
        if gone > len(self._pcm) // 2:
            left = self._pcm[gone : self.fed - self._first]
            self._pcm = np.concatenate([left, np.empty(len(self._pcm) - len(left), np.int16)])
            self._first = before


class NemotronUtterance:
    """The audio of an utterance and the labels recognized in it."""

    def __init__(self, start: int, tokenizer: LabelText, language: str) -> None:
        """`start` is in samples of the stream. `language` is an ISO 639 code; empty: taken from the
        model's language tags."""
        self.position = 0
        """Encoder frames processed or in flight."""
        self.ended = False
        self.begun = 0.0
        """When the first sample arrived that is in no chunk yet, in s."""
        self._sound = UtteranceAudio()
        self._taken = chunk_end(0, 0)
        """Samples covered by processed and in-flight chunks; negative before the first."""
        self._start_ms = start * 1000 // RATE_IN
        self._tokenizer = tokenizer
        self._language = language
        self._labels: list[int] = []
        self._frames: list[int] = []
        """Frame of each label, in the utterance."""
        self._text = ""
        """Text of the labels."""
        self._final_ms = 0
        """Audio in ms covered by Finals that did not end the utterance."""

    # --- its sound ---

    @property
    def fed(self) -> int:
        return self._sound.fed

    @property
    def unheard(self) -> int:
        """Samples not yet in a batch."""
        return max(0, self._sound.fed - max(0, self._taken))

    @property
    def over(self) -> bool:
        """Whether it has ended and all of its audio is processed or in flight."""
        return self.ended and not self.unheard

    def feed(self, pcm: Pcm, now: float) -> None:
        if not self.begun:
            self.begun = now
        self._sound.feed(pcm)

    def is_due(self, frames: int) -> bool:
        """Whether the next chunk of `frames` frames has all of its audio, or all that will come."""
        return self.ended or self._sound.fed >= self._taken + frames * FRAME_SAMPLES

    def pop_chunk(self, frames: int, now: float) -> Pcm:
        """Returns the samples of the next chunk; see `runner.Part`."""
        pcm = self._sound.cut(chunk_begin(self.position), chunk_samples(frames))
        self.position += frames
        self._taken = chunk_end(self.position, 0)
        self.begun = now if self.unheard else 0.0
        return pcm

    # --- its words ---

    @property
    def labels(self) -> int:
        """Number of labels since the last Final."""
        return len(self._labels)

    def say(self, position: int, labels: Sequence[Label]) -> None:
        """Adds the labels of the chunk at this position."""
        if labels:
            self._labels += [label.id for label in labels]
            self._frames += [position + label.frame for label in labels]
            self._text = self._tokenizer.text(self._labels)

    def partial(self, timing: Timing | None) -> Partial:
        return Partial(self._text, len(self._text), self._covered_ms, timing)

    def final(self, timing: Timing | None) -> Final:
        """Returns the last Final of the utterance."""
        audio_ms = self.fed * 1000 // RATE_IN - self._final_ms
        return self._final(len(self._labels), audio_ms, timing, continues=False)

    def cut(self, timing: Timing | None) -> Final:
        """Returns a Final of the text before the last word; the rest continues in the next one."""
        begins = self._tokenizer.begins_word
        words = (i for i in range(len(self._labels) - 1, 0, -1) if begins(self._labels[i]))
        end = next(words, len(self._labels))
        final = self._final(end, self._covered_ms, timing, continues=True)
        del self._labels[:end], self._frames[:end]
        self._text = self._tokenizer.text(self._labels)
        self._final_ms += final.audio_ms
        return final

    @property
    def _covered_ms(self) -> int:
        """Returns the audio in ms that the labels cover since the last Final."""
        heard = min(self._sound.fed, max(0, self._taken))
        return heard * 1000 // RATE_IN - self._final_ms

    def _final(self, end: int, audio_ms: int, timing: Timing | None, continues: bool) -> Final:
        """Returns a Final of the labels up to `end`."""
        labels = self._labels[:end]
        language = self._language or self._tokenizer.language(labels) or UNKNOWN
        text = self._tokenizer.text(labels)
        return Final(text, audio_ms, self._words(end), language, continues, timing)

    def _words(self, end: int) -> tuple[Word, ...]:
        """Returns words with times that are exact to one frame."""
        begins_word, labels = self._tokenizer.begins_word, self._labels
        begins = [i for i in range(end) if i == 0 or begins_word(labels[i])]
        words = []
        for first, last in pairwise((*begins, end)):
            text = self._tokenizer.text(labels[first:last])
            if text:
                begin, over = (
                    self._frames[first] * FRAME_MS,
                    (self._frames[last - 1] + 1) * FRAME_MS,
                )
                words.append(Word(text, self._start_ms + begin, self._start_ms + over))
        return tuple(words)
