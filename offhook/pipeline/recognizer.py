"""The contract of speech recognition: what every engine offers and the call relies on."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Protocol

from offhook.media.pcm import Pcm


@dataclass(frozen=True)
class Word:
    """One recognised or spoken word; times in ms of the stream's own audio."""

    text: str
    start_ms: int
    end_ms: int


@dataclass(frozen=True)
class Partial:
    """What is heard so far of the utterance. The first `stable_chars` are never taken back."""

    text: str
    stable_chars: int
    audio_ms: int
    """How much audio of this utterance the text covers."""


@dataclass(frozen=True)
class Final:
    """The utterance as finally heard; text is empty when there were no words."""

    text: str
    audio_ms: int
    words: tuple[Word, ...] = field(default=())
    language: str = "en"


class RecognizerStream(Protocol):
    """One utterance after another of one caller.

    ``feed`` audio, then ``finish`` to end the utterance; its `Final` is the last event of it, and
    the next ``feed`` begins the next utterance. ``cancel`` drops the utterance: no Final comes.
    ``close`` ends the stream and with it the iteration of events.
    """

    def feed(self, pcm: Pcm) -> None:
        """Take 16 kHz samples. Never blocks; an engine that falls behind drops nothing but
        answers later."""

    def finish(self) -> None: ...

    def cancel(self) -> None: ...

    def events(self) -> AsyncIterator[Partial | Final]: ...

    async def close(self) -> None: ...


class Recognizer(Protocol):
    """An engine, shared by all calls of the process."""

    name: str

    async def start(self) -> None:
        """Load and warm up; raises EngineError saying what is missing and what to do."""

    async def open(self) -> RecognizerStream: ...

    async def close(self) -> None: ...


class EngineError(RuntimeError):
    """An engine cannot run here. The message says why and what to do next."""
