"""Engines of a conversation by text: ears that hear nothing, and a voice of which each word is one
packet of sound, so that words are heard, counted and interrupted as those of calls are."""

import asyncio
from collections.abc import AsyncIterator

import numpy as np

from offhook.media.pcm import PACKET_MS, RATE_OUT, Pcm
from offhook.pipeline.conversation.call_io import Engines
from offhook.pipeline.conversation.turns.user_turn_io import TurnDetection
from offhook.pipeline.speech.recognizer import (
    DEFAULT_OPTIONS,
    Final,
    Partial,
    Recognizer,
    StreamOptions,
)
from offhook.pipeline.speech.synthesizer import DEFAULT_VOICE, Speech, Synthesizer, VoiceOptions
from offhook.pipeline.speech.vad.vad_io import VadBatch
from offhook.web.config.config import Config
from offhook.web.http.metrics import Metrics
from offhook.web.workers.engines.call_engines_io import CallEngines

WORD: Pcm = np.tile(np.array([3000, -3000], np.int16), RATE_OUT * PACKET_MS // 2000)
"""The sound of a word, 24 kHz samples."""


PACE_S = 0.001
"""Time in s from word to word: what is said at once reaches the line sound first, and the words
only behind it."""


class SilentRecognizer(Recognizer):
    """A recognizer that hears nothing."""

    name = "text"

    async def start(self) -> None:
        pass

    async def open(self, options: StreamOptions = DEFAULT_OPTIONS) -> "_SilentStream":
        return _SilentStream()

    async def close(self) -> None:
        pass


class _SilentStream:
    def __init__(self) -> None:
        self._closed = asyncio.Event()

    def feed(self, pcm: Pcm) -> None:
        pass

    def finish(self) -> None:
        pass

    def cancel(self) -> None:
        pass

    async def events(self) -> AsyncIterator[Partial | Final]:
        await self._closed.wait()
        nothing: tuple[Partial | Final, ...] = ()
        for event in nothing:
            yield event

    async def close(self) -> None:
        self._closed.set()


class WordVoice(Synthesizer):
    """A voice that says a word in PACKET_MS."""

    name = "text"

    async def start(self) -> None:
        pass

    def voices(self) -> list[str]:
        return []

    def open(self, options: VoiceOptions = DEFAULT_VOICE) -> "_Words":
        return _Words()

    async def close(self) -> None:
        pass


class _Words:
    def __init__(self) -> None:
        self._texts: asyncio.Queue[str | None] = asyncio.Queue()

    def write(self, text: str) -> None:
        self._texts.put_nowait(text)

    def end(self) -> None:
        self._texts.put_nowait(None)

    def cancel(self) -> None:
        self._texts.put_nowait(None)

    async def __aiter__(self) -> AsyncIterator[Speech]:
        rest = ""
        while (text := await self._texts.get()) is not None:
            *words, rest = (rest + text).split(" ")
            for word in filter(None, words):
                yield Speech(WORD, f"{word} ")
                await asyncio.sleep(PACE_S)
        if rest.strip():
            yield Speech(WORD, rest)


class TextEngines(CallEngines):
    """No models are loaded, and no workers started."""

    def __init__(self, config: Config, metrics: Metrics) -> None:
        super().__init__(config, metrics)

    async def open(self) -> str:
        turns = TurnDetection(VadBatch(), None, self._config.turn)
        self.configured = Engines(turns, SilentRecognizer(), WordVoice())
        return "text"
