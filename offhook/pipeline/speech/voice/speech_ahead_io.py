"""A reply whose first words are spoken, to nobody yet, before it is certain that they will be
said."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable

from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.synthesizer import Speech, SynthesizerStream


class SpeechAhead:
    """One reply; implements `SynthesizerStream`.

    `expect` gives it words that are likely to be written, which are spoken at once. Their speech is
    passed on as the same words are written. From the first one that differs on, the reply is spoken
    anew.
    """

    def __init__(self, open_stream: Callable[[], SynthesizerStream]) -> None:
        """`open_stream` opens a reply of the voice and raises as `Synthesizer.open` does. The owner
        runs `run` until it ends."""
        self._open_stream = open_stream
        self._stream = open_stream()
        self._expected = ""
        """Words given to the voice and not yet written."""
        self._unspoken = ""
        """Words written whose speech was not passed on yet."""
        self._is_complete = False
        """Whether the voice was given the end of the text."""
        self._is_decided = False
        """Whether all of the reply was written, or it was cancelled."""
        self._ready: deque[Speech] = deque()
        self._error: EngineError | None = None
        self._over = False
        """Whether the voice has spoken all that it was given, or failed."""
        self._news = asyncio.Event()
        self._written = asyncio.Event()

    def expect(self, text: str, *, end: bool = False) -> None:
        """Adds words that are likely to be written next; with `end`, the last ones."""
        self._expected += text
        if text:
            self._stream.write(text)
        if end:
            self._is_complete = True
            self._stream.end()

    # --- the contract ---

    def write(self, text: str) -> None:
        self._unspoken += text
        if self._expected.startswith(text):
            self._expected = self._expected[len(text) :]
        elif text.startswith(self._expected) and not self._is_complete:
            self._stream.write(text[len(self._expected) :])
            self._expected = ""
        else:
            self._speak_anew()
        self._wake()

    def end(self) -> None:
        if self._expected:
            self._speak_anew()
        if not self._is_complete:
            self._is_complete = True
            self._stream.end()
        self._is_decided = True
        self._wake()

    def cancel(self) -> None:
        self._is_decided = self._over = True
        self._expected, self._error = "", None
        self._ready.clear()
        self._stream.cancel()
        self._wake()

    async def __aiter__(self) -> AsyncIterator[Speech]:
        while True:
            while self._ready and self._is_written(self._ready[0]):
                speech = self._ready.popleft()
                self._unspoken = self._unspoken[len(speech.text) :]
                yield speech
            if self._over and not (self._ready or self._expected):
                if self._error is not None:
                    raise self._error
                if self._is_decided:
                    return
            self._news.clear()
            await self._news.wait()

    # --- the voice ---

    async def run(self) -> None:
        """Takes the speech from the voice until the reply ends or is cancelled."""
        stream = None
        while stream is not self._stream:
            stream = self._stream
            error = None
            try:
                async for speech in stream:
                    if stream is not self._stream:
                        break
                    self._ready.append(speech)
                    self._news.set()
            except EngineError as failure:
                error = failure
            if stream is self._stream:
                self._error, self._over = error, True
                self._news.set()
            while stream is self._stream and not self._is_decided:
                self._written.clear()
                await self._written.wait()

    def _is_written(self, speech: Speech) -> bool:
        """Whether a piece is of words that were written. Sound without a text is of the next
        one."""
        if not self._expected:
            return True
        return bool(self._unspoken) and len(speech.text) <= len(self._unspoken)

    def _speak_anew(self) -> None:
        self._stream.cancel()
        self._ready.clear()
        self._expected, self._is_complete = "", False
        self._error, self._over = None, False
        self._stream = self._open_stream()
        self._stream.write(self._unspoken)

    def _wake(self) -> None:
        self._news.set()
        self._written.set()
