"""Synthesis of one text, concurrent with encoding and sending."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import numpy as np

from offhook.media.pcm import RATE_OUT, Pcm
from offhook.pipeline.speech.synthesizer import Speech, SynthesizerStream

AHEAD_CHARS = 20_000
"""Characters given to the engine ahead of synthesis."""
WRITE_CHARS = 4096
"""Characters given to it at a time."""
AHEAD_S = 60
"""Unread audio in s beyond which the engine is paused."""
TAKE_S = 0.25
"""Maximum audio in s read at a time, since encoding it needs some milliseconds; the rest waits for
the next read."""


async def spoken(stream: SynthesizerStream, text: str) -> AsyncIterator[Speech]:
    """Yields the pieces of `text`. Raises what the stream raises; the caller cancels it."""
    written = said = 0
    ended = False

    def write() -> None:
        nonlocal written, ended
        while written < len(text) and written - said < AHEAD_CHARS:
            stream.write(text[written : written + WRITE_CHARS])
            written += WRITE_CHARS
        if written >= len(text) and not ended:
            ended = True
            stream.end()

    write()
    async for piece in stream:
        said += len(piece.text)
        write()
        yield piece


async def played(pieces: Sequence[Speech]) -> AsyncIterator[Speech]:
    for piece in pieces:
        yield piece


class AudioBuffer:
    """A buffer of AHEAD_S seconds between engine and encoder."""

    def __init__(self) -> None:
        self._waiting: deque[Pcm] = deque()
        self._samples = 0
        self._over = False
        self._error: Exception | None = None
        self._news = asyncio.Event()
        self._room = asyncio.Event()

    async def read(self) -> Pcm | None:
        """Returns the available audio, at most TAKE_S; None at the end. Raises the engine's
        errors."""
        while not self._waiting:
            if self._error is not None:
                raise self._error
            if self._over:
                return None
            self._news.clear()
            await self._news.wait()
        taken = [self._waiting.popleft()]
        room = int(TAKE_S * RATE_OUT) - len(taken[0])
        while self._waiting and len(self._waiting[0]) <= room:
            room -= len(self._waiting[0])
            taken.append(self._waiting.popleft())
        if room < 0:
            self._waiting.appendleft(taken[0][room:])
            taken[0] = taken[0][:room]
        sound = np.concatenate(taken) if len(taken) > 1 else taken[0]
        self._samples -= len(sound)
        self._room.set()
        return sound

    async def fill(self, pieces: AsyncIterator[Speech]) -> None:
        try:
            async for piece in pieces:
                if len(piece.pcm):
                    self._waiting.append(piece.pcm)
                    self._samples += len(piece.pcm)
                    self._news.set()
                while self._samples > AHEAD_S * RATE_OUT:
                    self._room.clear()
                    await self._room.wait()
        except Exception as error:  # raised in the reader
            self._error = error
        finally:
            self._over = True
            self._news.set()


@asynccontextmanager
async def buffered(pieces: AsyncIterator[Speech]) -> AsyncIterator[AudioBuffer]:
    """Fills a buffer with the pieces while inside; the engine pauses while it is full."""
    buffer = AudioBuffer()
    filling = asyncio.create_task(buffer.fill(pieces), name="speech made ahead")
    try:
        yield buffer
    finally:
        filling.cancel()
        await asyncio.gather(filling, return_exceptions=True)
