"""One utterance in the Nemotron engine: its unprocessed audio, and its labels as words."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

import numpy as np

from offhook.media.pcm import RATE_IN, Pcm
from offhook.pipeline.engines.nemotron.runner import (
    FRAME_SAMPLES,
    Label,
    chunk_begin,
    chunk_samples,
)
from offhook.pipeline.speech.recognizer import Final, Partial, Timing, Word
from offhook.pipeline.speech.streams.languages import UNKNOWN

FRAME_MS = FRAME_SAMPLES * 1000 // RATE_IN
SHARED_SAMPLES = chunk_samples(0)
"""Samples of a chunk that are of the one before, too."""


class LabelText(Protocol):
    """The part of `nemotron.model.tokenizer.LabelTokenizer` that the engine uses."""

    def text(self, ids: Sequence[int]) -> str: ...

    def begins_word(self, id: int) -> bool: ...

    def language(self, ids: Sequence[int]) -> str | None: ...


class UtteranceAudio:
    """The audio of an utterance, buffered as far as its next chunks need it."""

    __slots__ = (
        *("_begin", "_end", "_pcm", "_size", "begun", "chunk_begun"),
        *("fed", "frames", "missing", "position", "unheard"),
    )

    def __init__(self, frames: int) -> None:
        """`frames` are the encoder frames of a chunk."""
        self.frames = frames
        self.position = 0
        """Encoder frames processed or in flight."""
        self.fed = 0
        """Samples of the utterance so far."""
        self.unheard = 0
        """Samples not yet in a chunk."""
        self.begun = 0.0
        """When the first of them arrived, in s."""
        self.chunk_begun = 0.0
        """When the first new sample of the newest chunk arrived, in s."""
        self._size = chunk_samples(frames)
        self._pcm = np.zeros(self._size + FRAME_SAMPLES, np.int16)
        self._begin, self._end = 0, -chunk_begin(0)
        """Where in the buffer the next chunk begins, and where the audio ends. Before the utterance
        there are zeros."""
        self.missing = self._size - self._end
        """Samples that the next chunk lacks; 0 or less: none."""

    def feed(self, pcm: Pcm, now: float) -> None:
        """Adds samples that arrived at `now`, in s."""
        count = len(pcm)
        if self._end + count > len(self._pcm):
            self._make_room(count)
        end = self._end + count
        self._pcm[self._end : end] = pcm
        if not self.begun:
            self.begun = now
        self._end = end
        self.fed += count
        self.unheard += count
        self.missing -= count

    def _make_room(self, count: int) -> None:
        """Moves what is still needed to the front, of a larger buffer if `count` samples more do
        not fit."""
        kept = self._pcm[self._begin : self._end]
        self._begin, self._end = 0, len(kept)
        if self._end + count > len(self._pcm):
            self._pcm = np.empty(2 * (self._end + count), np.int16)
        self._pcm[: self._end] = kept

    def pop_chunk(self, now: float) -> Pcm:
        """Returns the samples of the next chunk as far as there are any; see `runner.Part`. The
        result is a view, valid until the next `feed`."""
        pcm = self._pcm[self._begin : min(self._begin + self._size, self._end)]
        samples = self.frames * FRAME_SAMPLES
        self.position += self.frames
        self._begin += samples
        self.missing += samples
        self.unheard = max(0, self._end - self._begin - SHARED_SAMPLES)
        self.chunk_begun = self.begun
        self.begun = now if self.unheard else 0.0
        return pcm


class NemotronUtterance:
    """The audio of an utterance and the labels recognized in it."""

    __slots__ = (
        *("_final_ms", "_frames", "_labels", "_language", "_start_ms", "_text", "_tokenizer"),
        *("audio", "ended"),
    )

    def __init__(self, frames: int, start: int, tokenizer: LabelText, language: str) -> None:
        """`frames` are those of a chunk. `start` is in samples of the stream. `language` is an ISO
        639 code; empty: taken from the model's language tags."""
        self.audio = UtteranceAudio(frames)
        self.ended = False
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

    @property
    def is_due(self) -> bool:
        """Whether the next chunk has all of its audio, or all that will come."""
        return self.ended or self.audio.missing <= 0

    @property
    def over(self) -> bool:
        """Whether it has ended and all of its audio is processed or in flight."""
        return self.ended and not self.audio.unheard

    @property
    def labels(self) -> int:
        """Number of labels since the last Final."""
        return len(self._labels)

    def say(self, labels: Sequence[Label]) -> None:
        """Adds the labels of the newest chunk."""
        position = self.audio.position - self.audio.frames
        self._labels += [label.id for label in labels]
        self._frames += [position + label.frame for label in labels]
        self._text = self._tokenizer.text(self._labels)

    def partial(self, timing: Timing | None) -> Partial:
        return Partial(self._text, len(self._text), self._covered_ms, timing)

    def final(self, timing: Timing | None) -> Final:
        """Returns the last Final of the utterance."""
        audio_ms = self.audio.fed * 1000 // RATE_IN - self._final_ms
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
        return (self.audio.fed - self.audio.unheard) * 1000 // RATE_IN - self._final_ms

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
