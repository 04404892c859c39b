"""A voice that spells: a real `Synthesizer`, slow or held as a test wants it, whose sound says what
was spoken."""

import asyncio
import re
from collections.abc import AsyncIterator

import numpy as np

from offhook.media.pcm import Pcm
from offhook.pipeline.speech.synthesizer import (
    DEFAULT_VOICE,
    Speech,
    Synthesizer,
    UnknownVoice,
    VoiceOptions,
)

LETTER = 240
"""Samples of a letter: 10 ms."""


class Speller(Synthesizer):
    """Every letter is LETTER samples of its own value, a piece each; the piece of a word's last
    letter has the word, with the space behind it. A word is spoken when it is whole."""

    name = "speller"

    def __init__(self) -> None:
        self.replies: list[SpellerStream] = []
        """Those that were spoken, oldest first."""
        self.letters = 0
        """Spoken in all."""
        self.may_speak = asyncio.Event()
        """Cleared, it holds the voice."""
        self.may_speak.set()
        self.hold_after: int | None = None
        """So many letters in all: then it is held."""
        self.fault: Exception | None = None
        """Raised instead of the next letter."""

    async def start(self) -> None:
        pass

    def voices(self) -> list[str]:
        return ["capital", "small"]

    def open(self, options: VoiceOptions = DEFAULT_VOICE) -> "SpellerStream":
        if options.voice not in ("", *self.voices()):
            raise UnknownVoice(f"speller has no voice {options.voice!r}")
        return SpellerStream(self, options)

    def letters_of(self, word: str) -> str:
        """Returns what is spelt of a word."""
        return word.strip()

    async def close(self) -> None:
        pass


class SpellerStream:
    def __init__(self, speller: Speller, options: VoiceOptions) -> None:
        self.options = options
        self.cancelled = False
        self.written = ""
        self._speller = speller
        self._text = ""
        self._ended = False
        self._news = asyncio.Event()

    def write(self, text: str) -> None:
        self.written += text
        self._text += text
        self._news.set()

    def end(self) -> None:
        self._ended = True
        self._news.set()

    def cancel(self) -> None:
        self.cancelled = True
        self._news.set()

    async def __aiter__(self) -> AsyncIterator[Speech]:
        self._speller.replies.append(self)
        while (word := await self._next_word()) is not None:
            letters = self._speller.letters_of(word)
            for at, letter in enumerate(letters):
                speller = self._speller
                await speller.may_speak.wait()
                if speller.fault is not None:
                    raise speller.fault
                if self.cancelled:
                    return
                speller.letters += 1
                if speller.letters == speller.hold_after:
                    speller.may_speak.clear()
                pcm = np.full(LETTER, ord(letter) & 0x7FFF, np.int16)
                yield Speech(pcm, word if at == len(letters) - 1 else "")
            if not letters:
                yield Speech(np.zeros(0, np.int16), word, any(map(str.isalnum, word)))

    async def _next_word(self) -> str | None:
        while not self.cancelled:
            whole = re.match(r"\s*\S+\s+" if not self._ended else r"\s*\S*\s*", self._text)
            if whole and whole.group():
                self._text = self._text[whole.end() :]
                return whole.group()
            if self._ended:
                return None
            self._news.clear()
            await self._news.wait()
        return None


def spelt(pcm: Pcm) -> str:
    """What the sound says, without the spaces; of 15 bits of each letter."""
    assert len(pcm) % LETTER == 0
    return "".join(chr(value) for value in pcm[::LETTER])


class EnglishOnly(Speller):
    """Makes no sound of words in other letters than ASCII, nor of what is no word."""

    def letters_of(self, word: str) -> str:
        return word.strip() if word.isascii() and any(map(str.isalnum, word)) else ""
