"""Dummy engines and agent without cost, so that only the server is measured.

The caller's words are always TEXT, the agent answers with a fixed number of words, and every word
is a voice-like buzz of WORD_MS without silence, so any gap is the server's fault.
"""

import asyncio
from collections.abc import AsyncIterator
from functools import cache

import numpy as np
from pipecat.frames.frames import (
    Frame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
)
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor

from offhook.media.pcm import RATE_IN, RATE_OUT, Pcm
from offhook.pipeline.speech.recognizer import (
    DEFAULT_OPTIONS,
    Final,
    Partial,
    Recognizer,
    StreamOptions,
)
from offhook.pipeline.speech.synthesizer import DEFAULT_VOICE, Speech, Synthesizer, VoiceOptions

TEXT = "please tell me what you can do"
WORD_MS = 300
PARTIAL_MS = 200
"""Audio in ms between two partials."""


@cache
def word_sound() -> Pcm:
    """Returns 24 kHz audio of WORD_MS: harmonics of 120 Hz, loud throughout and continuous when
    repeated."""
    t = np.arange(RATE_OUT * WORD_MS // 1000) / RATE_OUT
    harmonics = sum(np.sin(2 * np.pi * 120 * k * t + k * k) / k for k in range(1, 16))
    sound: Pcm = (5000 * np.asarray(harmonics)).astype(np.int16)
    sound.setflags(write=False)
    return sound


def reply_text(words: int) -> str:
    return " ".join(["word"] * words)


class ScriptedRecognizer(Recognizer):
    name = "scripted"

    async def start(self) -> None:
        pass

    async def open(self, options: StreamOptions = DEFAULT_OPTIONS) -> "ScriptedRecognizerStream":
        return ScriptedRecognizerStream()

    async def close(self) -> None:
        pass


class ScriptedRecognizerStream:
    def __init__(self) -> None:
        self._events: asyncio.Queue[Partial | Final | None] = asyncio.Queue()
        self._ms = 0
        self._partial_ms = 0

    def feed(self, pcm: Pcm) -> None:
        self._ms += len(pcm) * 1000 // RATE_IN
        if self._ms - self._partial_ms >= PARTIAL_MS:
            self._partial_ms = self._ms
            words = TEXT.split()[: 1 + self._ms // (2 * PARTIAL_MS)]
            self._events.put_nowait(Partial(" ".join(words), 0, self._ms))

    def finish(self) -> None:
        self._events.put_nowait(Final(TEXT, self._ms))
        self._ms = self._partial_ms = 0

    def cancel(self) -> None:
        self._ms = self._partial_ms = 0

    async def events(self) -> AsyncIterator[Partial | Final]:
        while (event := await self._events.get()) is not None:
            yield event

    async def close(self) -> None:
        self._events.put_nowait(None)


class ScriptedSynthesizer(Synthesizer):
    name = "scripted"

    async def start(self) -> None:
        pass

    def voices(self) -> list[str]:
        return []

    def open(self, options: VoiceOptions = DEFAULT_VOICE) -> "ScriptedSynthesizerStream":
        return ScriptedSynthesizerStream()

    async def close(self) -> None:
        pass


class ScriptedSynthesizerStream:
    def __init__(self) -> None:
        self._text: asyncio.Queue[str | None] = asyncio.Queue()

    def write(self, text: str) -> None:
        self._text.put_nowait(text)

    def end(self) -> None:
        self._text.put_nowait(None)

    def cancel(self) -> None:
        self._text.put_nowait(None)

    async def __aiter__(self) -> AsyncIterator[Speech]:
        while (text := await self._text.get()) is not None:
            for word in text.split():
                yield Speech(word_sound(), f"{word} ")


class ScriptedAgent(FrameProcessor):
    """Answers every turn with a fixed number of words, token by token; with 0, never."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self._words = words

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if not isinstance(frame, LLMContextFrame):
            await self.push_frame(frame, direction)
        elif self._words and frame.context.messages:
            await self.push_frame(LLMFullResponseStartFrame())
            for token in reply_text(self._words).split():
                await self.push_frame(LLMTextFrame(f"{token} "))
            await self.push_frame(LLMFullResponseEndFrame())
