"""The speech of a Realtime model as a synthesizer's stream: its audio is played in place of ours,
and its transcript is placed along it."""

import asyncio
import re
from collections import deque
from collections.abc import AsyncIterator, Iterator

import numpy as np

from offhook.media.pcm import RATE_OUT, Pcm
from offhook.pipeline.speech.recognizer import EngineError
from offhook.pipeline.speech.synthesizer import Speech

USUAL_CHARS_PER_S = 15.0
_WORD = re.compile(r"\s*\S+\s+")
_NO_SOUND = np.zeros(0, np.int16)


class SpeakingRate:
    """How fast the model speaks, measured over its replies."""

    def __init__(self) -> None:
        self.samples_per_char = RATE_OUT / USUAL_CHARS_PER_S

    def update(self, samples: int, characters: int) -> None:
        """Learns from a complete reply."""
        self.samples_per_char = samples / characters


class RemoteSpeech:
    """One reply. The API does not say when which word is spoken: words are placed by the speaking
    rate, of this reply once all of it is there, of the last one before. Nothing is delayed."""

    def __init__(self, rate: SpeakingRate) -> None:
        self._rate = rate
        self._text = ""
        self._placed = 0
        """Characters of the words that were placed."""
        self._samples = 0
        """Samples given out."""
        self._waiting: deque[Pcm] = deque()
        self._text_ended = False
        self._audio_ended = False
        self._cancelled = False
        self._fault = ""
        self._wake = asyncio.Event()

    # --- from the voice: the text, as it passed the pipeline ---

    def write(self, text: str) -> None:
        self._text += text

    def end(self) -> None:
        self._text_ended = True
        self._wake.set()

    def cancel(self) -> None:
        self._cancelled = True
        self._waiting.clear()
        self._wake.set()

    # --- from the model ---

    def add(self, pcm: Pcm) -> None:
        """Adds audio at 24 kHz."""
        if not self._cancelled:
            self._waiting.append(pcm)
            self._wake.set()

    def finish(self, characters: int) -> None:
        """Ends the audio, which speaks a text of this length."""
        samples = self._samples + sum(map(len, self._waiting))
        if characters and samples and not self._cancelled:
            self._rate.update(samples, characters)
        self._audio_ended = True
        self._wake.set()

    def fail(self, fault: str) -> None:
        """Ends the audio in the middle of the text; does nothing once it has ended."""
        if not self._audio_ended:
            self._audio_ended, self._fault = True, fault
            self._wake.set()

    async def __aiter__(self) -> AsyncIterator[Speech]:
        while True:
            while self._waiting:
                for speech in self._with_words(self._waiting.popleft()):
                    yield speech
            if self._cancelled:
                return
            if self._audio_ended and (self._text_ended or self._fault):
                break
            self._wake.clear()
            await self._wake.wait()
        if self._fault:
            raise EngineError(self._fault)
        if rest := self._text[self._placed :]:
            yield Speech(_NO_SOUND, rest)

    def _with_words(self, pcm: Pcm) -> Iterator[Speech]:
        while word := _WORD.match(self._text, self._placed):
            end = round(word.end() * self._rate.samples_per_char) - self._samples
            if end > len(pcm):
                break
            cut = max(0, end)
            self._samples += cut
            self._placed = word.end()
            yield Speech(pcm[:cut], word[0])
            pcm = pcm[cut:]
        self._samples += len(pcm)
        if len(pcm):
            yield Speech(pcm, "")
