"""The contract of speech synthesis: text in as it comes, sound out with the words marked."""

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from offhook.media.pcm import Pcm

MIN_SPEED, MAX_SPEED = 0.5, 2.0
MAX_VOICE_CHARS = 200
MAX_INSTRUCTIONS_CHARS = 2000
MAX_SEED = (1 << 63) - 1


class UnknownVoice(ValueError):
    """The engine has no voice of that name."""


class TextTooLong(ValueError):
    """More text waits to be spoken than anybody will listen to."""


@dataclass(frozen=True)
class VoiceOptions:
    """How one reply is to sound. Raises ValueError for what no engine can do."""

    voice: str = ""
    """One of the engine's `voices()`; empty: its usual one."""
    language: str = ""
    """ISO 639 code of two or three letters, as "en"; empty: found out from the text."""
    instructions: str = ""
    """How to speak, in words, as "whispering, in a hurry"; engines that cannot do not."""
    speed: float = 1.0
    """0.5..2: 2 is twice as fast, at the same pitch."""
    normalise: bool = True
    """Numbers, dates and signs are read as words. Without, the text is words already. Engines
    that read them by themselves always do."""
    live: bool = True
    """Somebody listens as it is spoken. Otherwise the sound goes to a file: replies that are live
    come first."""
    seed: int | None = None
    """The same text and seed give the same sound; None: another each time. Engines that draw no
    random numbers do not need it."""
    whole_text: bool = False
    """All of the text is there, so `write` and `end` come at once: an engine may read ahead before
    it speaks. Otherwise it speaks as the text comes."""
    cache: bool = True
    """A reply that was kept may be played, and this one kept, by an engine that keeps any."""

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
        """What it asks of the engine beyond speaking, in words: "the voice 'amy'"; else empty."""
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
    """A piece of sound and the text whose last sample it ends with.

    Pieces follow one another without gap. `text` is the exact slice of the text written (with its
    punctuation and following space), so that joining the texts of the pieces played gives the
    words that were heard. It may be empty: sound that completes no word.
    """

    pcm: Pcm
    """24 kHz samples."""
    text: str


class SynthesizerStream(Protocol):
    """One reply. ``write`` text as the agent makes it, then ``end``; iterate for the sound.

    Starvation of text holds the voice, it never ends it; only ``end`` does. ``cancel`` frees the
    engine at once and ends the iteration. The iteration raises EngineError when the engine cannot
    go on.
    """

    def write(self, text: str) -> None:
        """Raises TextTooLong when more waits to be spoken than the engine keeps."""

    def end(self) -> None: ...

    def cancel(self) -> None: ...

    def __aiter__(self) -> AsyncIterator[Speech]: ...


class Synthesizer(Protocol):
    """An engine, shared by all calls of the process."""

    name: str

    def voices(self) -> list[str]:
        """Names of the voices, the usual one first; complete once it has started."""

    async def start(self) -> None:
        """Load and warm up; raises EngineError saying what is missing and what to do."""

    def open(self, options: VoiceOptions = DEFAULT_VOICE) -> SynthesizerStream:
        """Begin a reply, inside the running loop. Raises UnknownVoice, and ValueError for what
        else this engine cannot do, as a language it does not speak."""

    async def close(self) -> None: ...
