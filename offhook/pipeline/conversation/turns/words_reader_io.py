"""Reads what one caller's recognizer says, for as long as the call lasts."""

import asyncio
from collections.abc import Callable
from time import monotonic

from offhook.media.tasks_io import end_all
from offhook.pipeline.conversation.turns.caller_audio import MS, CallerAudio
from offhook.pipeline.conversation.turns.utterance_feed import UtteranceFeed
from offhook.pipeline.speech.recognizer import Final, RecognizerStream

PARTIAL_MS = 200
"""Minimum interval in ms between partial transcripts: faster ones are hard to read and cost
messages."""


class WordsReader:
    """Gives the events of a recognizer to an UtteranceFeed and reports its words."""

    def __init__(
        self,
        call_id: str,
        feed: UtteranceFeed,
        audio: CallerAudio,
        on_words: Callable[[str], bool],
        on_final: Callable[[Final], None],
    ) -> None:
        """`on_words` is called with the text of the utterance so far, at most every PARTIAL_MS, and
        returns whether it was shown; `on_final` once the last final that was due has come."""
        self.language = ""
        """Language code of the caller's last words, such as "en"; empty before any."""
        self.final_at = 0.0
        """When the last of the finals came, in monotonic seconds."""
        self._call_id, self._feed, self._audio = call_id, feed, audio
        self._on_words, self._on_final = on_words, on_final
        self._shown_at = 0
        self._task = self._start()

    def _start(self) -> asyncio.Task[None]:
        return asyncio.create_task(self._read(), name=f"words {self._call_id}")

    async def replace(self, recognizer: RecognizerStream) -> None:
        """Read what another stream says; the one before is closed."""
        before = self._feed.recognizer
        self._task.cancel()
        self._feed.replace(recognizer)
        self._task = self._start()
        self.language = ""
        await before.close()

    async def close(self) -> None:
        """Close the stream."""
        self._task.cancel()
        try:
            await self._feed.recognizer.close()
        finally:
            await end_all(lambda: (self._task,))

    async def _read(self) -> None:
        async for event in self._feed.recognizer.events():
            if isinstance(event, Final) and event.text:
                self.language = event.language
            if not self._feed.receive(event):
                continue
            if isinstance(event, Final):
                self.final_at = monotonic()
                self._on_final(event)
            elif self._audio.end - self._shown_at >= PARTIAL_MS * MS:
                self.show(event.text)

    def show(self, text: str) -> None:
        """Report the text of the utterance, whenever it was reported last."""
        if self._on_words(text):
            self._shown_at = self._audio.end
