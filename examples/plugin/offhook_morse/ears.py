"""A recognizer: what is keyed, letter by letter."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import numpy as np

from offhook.media.pcm import RATE_IN, Pcm
from offhook.pipeline.engines.shared.asr_models import AsrModels
from offhook.pipeline.speech.recognizer import (
    DEFAULT_OPTIONS,
    Final,
    Partial,
    Progress,
    Recognizer,
    RecognizerStream,
    StreamOptions,
)
from offhook_morse.code import CHARACTERS, UNIT_MS

FRAME_MS = 10
FRAME = RATE_IN * FRAME_MS // 1000
KEYED = 1000.0
"""Level of a frame, from which the key is down."""


class Ears(Recognizer):
    """Any number of streams; `models` has the model, the device and the rest of [asr]."""

    name = "morse"
    languages = ("en",)

    def __init__(self, models: AsrModels, progress: Progress) -> None:
        progress(1.0, "there is nothing to load")

    async def start(self) -> None:
        """A model would be loaded here, in a thread."""

    async def open(self, options: StreamOptions = DEFAULT_OPTIONS) -> "Hearing":
        return Hearing()

    async def close(self) -> None: ...


@dataclass
class Utterance:
    """What has been keyed."""

    frames: int = 0
    text: str = ""
    code: str = ""
    """Of the letter that is being keyed."""
    down: bool = False
    since: int = 0
    """Frames since the key was last pressed or released."""
    rest: Pcm = field(default_factory=lambda: np.zeros(0, np.int16))
    """Less than a frame."""

    def feed(self, pcm: Pcm) -> None:
        pcm = np.concatenate((self.rest, pcm))
        whole = len(pcm) // FRAME * FRAME
        self.rest = pcm[whole:]
        levels = np.sqrt(np.mean(np.square(pcm[:whole].reshape(-1, FRAME), dtype=np.float64), 1))
        for level in levels:
            self._frame(level >= KEYED)

    def _frame(self, down: bool) -> None:
        self.frames += 1
        if down == self.down:
            self.since += 1
            return
        units = self.since * FRAME_MS / UNIT_MS
        if self.down:
            self.code += "-" if units > 2 else "."
        elif units > 2:
            self.end_letter()
            self.text += " " * (units > 5 and bool(self.text))
        self.down, self.since = down, 1

    def end_letter(self) -> None:
        self.text += CHARACTERS.get(self.code, "")
        self.code = ""

    @property
    def audio_ms(self) -> int:
        return self.frames * FRAME_MS


class Hearing(RecognizerStream):
    def __init__(self) -> None:
        self._utterance = Utterance()
        self._events: asyncio.Queue[Partial | Final | None] = asyncio.Queue()

    def feed(self, pcm: Pcm) -> None:
        """It is fast enough to do so at once; others put the audio into a queue."""
        utterance = self._utterance
        before = utterance.text
        utterance.feed(pcm)
        if utterance.text != before:
            text = utterance.text
            self._events.put_nowait(Partial(text, len(text), utterance.audio_ms))

    def finish(self) -> None:
        utterance, self._utterance = self._utterance, Utterance()
        if utterance.down:
            utterance.feed(np.zeros(FRAME, np.int16))
        utterance.end_letter()
        self._events.put_nowait(Final(utterance.text.strip(), utterance.audio_ms))

    def cancel(self) -> None:
        self._utterance = Utterance()

    async def events(self) -> AsyncIterator[Partial | Final]:
        while (event := await self._events.get()) is not None:
            yield event

    async def close(self) -> None:
        self._events.put_nowait(None)
