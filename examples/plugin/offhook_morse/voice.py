"""A synthesizer: a tone that is keyed."""

import asyncio
import re
from collections.abc import AsyncIterator

import numpy as np

from offhook.media.pcm import RATE_OUT, Pcm
from offhook.pipeline.engines.shared.tts_models import TtsModels
from offhook.pipeline.speech.recognizer import Progress
from offhook.pipeline.speech.synthesizer import (
    DEFAULT_VOICE,
    Speech,
    Synthesizer,
    SynthesizerStream,
    UnknownVoice,
    VoiceOptions,
)
from offhook_morse.code import SIGNS, UNIT_MS

VOICES = {"low": 500, "high": 900}
"""Frequencies in Hz; the first is the default."""
LEVEL = 8000
WORD = re.compile(r"\s*\S+\s+|\s*\S+$|\s+$")
"""Matches a word with the space around it."""


class Voice(Synthesizer):
    name = "morse"
    languages = ("en",)

    def __init__(self, models: TtsModels, progress: Progress) -> None:
        progress(1.0, "there is nothing to load")

    def voices(self) -> list[str]:
        return list(VOICES)

    async def start(self) -> None:
        """A model would be loaded here, in a thread."""

    def open(self, options: VoiceOptions = DEFAULT_VOICE) -> "Speaking":
        voice = options.voice or next(iter(VOICES))
        if voice not in VOICES:
            raise UnknownVoice(f"{self.name} has no voice {voice!r}, only {', '.join(VOICES)}")
        return Speaking(VOICES[voice], options.speed)

    async def close(self) -> None: ...


class Speaking(SynthesizerStream):
    """A word is spoken when it is whole."""

    def __init__(self, hertz: int, speed: float) -> None:
        self._hertz, self._unit = hertz, int(RATE_OUT * UNIT_MS / 1000 / speed)
        self._text: asyncio.Queue[str | None] = asyncio.Queue()
        self._cancelled = False

    def write(self, text: str) -> None:
        self._text.put_nowait(text)

    def end(self) -> None:
        self._text.put_nowait(None)

    def cancel(self) -> None:
        self._cancelled = True
        self._text.put_nowait(None)

    async def __aiter__(self) -> AsyncIterator[Speech]:
        waiting = ""
        while (text := await self._text.get()) is not None and not self._cancelled:
            waiting += text
            while (word := WORD.match(waiting)) and word.end() < len(waiting):
                waiting = waiting[word.end() :]
                yield Speech(self._keyed(word[0]), word[0])
        while waiting and not self._cancelled and (word := WORD.match(waiting)):
            waiting = waiting[word.end() :]
            yield Speech(self._keyed(word[0]), word[0])

    def _keyed(self, word: str) -> Pcm:
        """Returns the sound of a word, and the pause after it."""
        key: list[int] = []
        for character in word.lower():
            if sign := SIGNS.get(character):
                for element in sign:
                    key += [1] * (3 if element == "-" else 1) + [0]
                key += [0, 0]
        key += [0] * 4
        down = np.repeat(np.array(key), self._unit)
        tone = LEVEL * np.sin(2 * np.pi * self._hertz / RATE_OUT * np.arange(len(down)))
        pcm: Pcm = (tone * down).astype(np.int16)
        return pcm
