"""The speech of a Realtime model as a synthesizer's stream: its audio is played in place of ours,
and its transcript is placed along it."""

import asyncio
import re
from collections import deque
from collections.abc import AsyncIterator, Iterator

import numpy as np

from offhook.media.pcm import RATE_OUT, Pcm
from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.synthesizer import Speech
from offhook.pipeline.speech.text.spoken_text import SpokenWord
from offhook.pipeline.speech.voice.word_marks import Pace, WordMarks

PIECE = RATE_OUT * 80 // 1000
"""Samples after which the words that have ended are looked for."""
_WORD = re.compile(r"\s*\S+\s+")
_NO_SOUND = np.zeros(0, np.int16)


class RemoteSpeech:
    """One reply. The API does not say when which word is spoken, so the words are found in the
    audio. Nothing is delayed."""

    def __init__(self, pace: Pace) -> None:
        """`pace` is the voice's, learned from reply to reply."""
        self._marks = WordMarks(pace=pace)
        self._text = ""
        """Text that is not yet a whole word."""
        self._waiting: deque[Pcm] = deque()
        self._text_ended = False
        self._audio_ended = False
        self._cancelled = False
        self._fault = ""
        self._wake = asyncio.Event()

    # --- from the voice: the text, as it passed the pipeline ---

    def write(self, text: str) -> None:
        self._text += text
        while word := _WORD.match(self._text):
            self._write_word(word[0])
            self._text = self._text[word.end() :]

    def _write_word(self, text: str) -> None:
        self._marks.write(SpokenWord(text, text.strip()))

    def end(self) -> None:
        if self._text:
            self._write_word(self._text)
            self._text = ""
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

    def finish(self) -> None:
        """Ends the audio."""
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
                await asyncio.sleep(0)  # a reply may come at once: let the packets out between
            if self._cancelled:
                return
            if self._audio_ended and (self._text_ended or self._fault):
                break
            self._wake.clear()
            await self._wake.wait()
        if self._fault:
            raise EngineError(self._fault)
        if rest := "".join(self._marks.finish()):
            yield Speech(_NO_SOUND, rest)

    def _with_words(self, pcm: Pcm) -> Iterator[Speech]:
        for start in range(0, len(pcm), PIECE):
            piece = pcm[start : start + PIECE]
            yield Speech(piece, "".join(self._marks.feed(piece)))
