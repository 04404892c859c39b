"""The contract of speech synthesis: text in as it comes, sound out with the words marked."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from offhook.media.pcm import Pcm


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
    engine at once and ends the iteration.
    """

    def write(self, text: str) -> None: ...

    def end(self) -> None: ...

    def cancel(self) -> None: ...

    def __aiter__(self) -> AsyncIterator[Speech]: ...


class Synthesizer(Protocol):
    """An engine, shared by all calls of the process."""

    name: str

    async def start(self) -> None:
        """Load and warm up; raises EngineError saying what is missing and what to do."""

    def open(self, voice: str | None = None) -> SynthesizerStream: ...

    async def close(self) -> None: ...
