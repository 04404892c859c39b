"""The speech synthesis interface that every engine implements: streaming text in, audio with word
marks out."""

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from offhook.media.pcm import Pcm

MIN_SPEED, MAX_SPEED = 0.5, 2.0
MAX_VOICE_CHARS = 200
"""Maximum length of a voice's name; a longer one is refused."""
MAX_INSTRUCTIONS_CHARS = 2000
"""Maximum length of instructions; longer ones are refused."""
MAX_SEED = (1 << 63) - 1
"""Largest seed, of 63 bits; a larger one is refused."""


class UnknownVoice(ValueError):
    """Raised when the engine has no voice of that name."""


class TextTooLong(ValueError):
    """Raised when too much text is waiting to be spoken."""


@dataclass(frozen=True)
class VoiceOptions:
    """Options of one reply. Raises ValueError for what no engine supports."""

    voice: str = ""
    """One of the engine's `voices()`; empty: its default."""
    language: str = ""
    """ISO 639 code of two or three letters, e.g. "en"; empty: detected from the text."""
    instructions: str = ""
    """How to speak, in words, e.g. "whispering, in a hurry"; engines without this feature ignore
    it."""
    speed: float = 1.0
    """Speaking rate, 0.5..2: 2 is twice as fast, at the same pitch."""
    normalise: bool = True
    """Whether numbers, dates and symbols are expanded to words. Engines that do so by themselves
    always do."""
    live: bool = True
    """Whether someone listens as it is spoken. Otherwise the audio goes to a file, and live replies
    have priority."""
    seed: int | None = None
    """The same text and seed give the same audio; None: varies. Engines without random sampling
    ignore it."""
    whole_text: bool = False
    """Whether all text is known in advance (`write` and `end` follow at once), so that the engine
    may read ahead before speaking. Otherwise it speaks as text arrives."""
    cache: bool = True
    """Whether an engine with a reply cache may use it for this reply."""

    def __post_init__(self) -> None:
        if len(self.voice) > MAX_VOICE_CHARS:
            raise ValueError(f"voice is over {MAX_VOICE_CHARS} characters")
        if self.language and not re.fullmatch("[a-z]{2,3}", self.language):
            raise ValueError(f"language is {self.language[:50]!r}, not a code such as 'en'")
        if len(self.instructions) > MAX_INSTRUCTIONS_CHARS:
            raise ValueError(f"instructions are over {MAX_INSTRUCTIONS_CHARS} characters")
        if not MIN_SPEED <= self.speed <= MAX_SPEED:
            raise ValueError(f"speed is {self.speed}, not {MIN_SPEED}..{MAX_SPEED}")
        if self.seed is not None and not 0 <= self.seed <= MAX_SEED:
            raise ValueError(f"seed is {self.seed}, not 0..{MAX_SEED}")

    def demands(self) -> str:
        """Describes the options that an engine may not support, e.g. "the voice 'amy'"; empty if
        none."""
        parts = (
            f"the voice {self.voice!r}" if self.voice else "",
            f"the language {self.language!r}" if self.language else "",
            "instructions" * bool(self.instructions),
            f"speed {self.speed:g}" if self.speed != 1 else "",
        )
        return " and ".join(filter(None, parts))


DEFAULT_VOICE = VoiceOptions()


@dataclass(frozen=True)
class Speech:
    """A piece of audio and the text that ends with its last sample.

    Pieces are contiguous. `text` is an exact slice of the text written (with punctuation and the
    following space), so the concatenated texts of the pieces played are what was heard. It may be
    empty if the audio completes no word.
    """

    pcm: Pcm
    """24 kHz int16 samples."""
    text: str
    passed_over: bool = False
    """Whether the voice knows that it cannot say the text, which has letters or digits, and leaves
    it out."""


class SynthesizerStream(Protocol):
    """One reply. Call `write` with text as it is generated, then `end`; iterate for the audio.

    Lack of text suspends the voice but never ends it; only `end` does. `cancel` frees the engine at
    once and ends the iteration. The iteration raises EngineError if the engine fails.
    """

    def write(self, text: str) -> None:
        """Adds text. Raises TextTooLong if more is waiting than the engine buffers."""

    def end(self) -> None:
        """Ends the text."""

    def cancel(self) -> None:
        """Stops speaking at once."""

    def __aiter__(self) -> AsyncIterator[Speech]: ...


async def sound_of(stream: SynthesizerStream, text: str) -> Pcm:
    """Returns all of a text as samples at 24 kHz. Raises TextTooLong, EngineError."""
    try:
        stream.write(text)
        stream.end()
        pieces = [speech.pcm async for speech in stream]
    finally:
        stream.cancel()
    return np.concatenate((np.zeros(0, np.int16), *pieces))


@dataclass(frozen=True)
class KnownVoice:
    """A voice that an engine can use."""

    name: str
    kind: str = "speaker"
    """speaker: built in; design: described in words; clone: from a recording."""
    languages: tuple[str, ...] = ()
    """ISO 639 codes; empty: unknown."""
    created_s: int = 0
    """Creation time in s since the epoch; 0: built in."""
    licence: str = ""
    """Licence of the recording that a built-in voice was made from; empty: that of the model."""


class Synthesizer(Protocol):
    """A speech synthesis engine, shared by all calls of the process. A class that inherits from it
    has the languages, the limit and `known_voices` by default, and may set the former in its
    body."""

    name: str
    takes_ipa: bool = False
    """Whether it speaks phonemes in IPA, written as `<phoneme alphabet="ipa" ph="…">`."""

    @property
    def languages(self) -> tuple[str, ...]:
        """ISO 639 codes of all its voices; empty: unknown."""
        return ()

    @property
    def max_streams(self) -> int | None:
        """Replies that may be spoken at once; None: unknown, or not yet known."""
        return None

    async def known_voices(self) -> list[KnownVoice]:
        """Returns what is known of the voices, the default first. Raises EngineError."""
        return [KnownVoice(name, languages=self.languages) for name in self.voices()]

    def voices(self) -> list[str]:
        """Returns the names of the voices, the default first; complete once started."""

    async def start(self) -> None:
        """Loads and warms up. Raises EngineError saying what is missing and how to fix it."""

    def open(self, options: VoiceOptions = DEFAULT_VOICE) -> SynthesizerStream:
        """Opens a reply, inside a running event loop. Raises UnknownVoice, and ValueError for other
        unsupported options, e.g. a language."""

    async def close(self) -> None: ...
