"""A `RecognizerStream` for engines that hear one whole utterance after another.

The sound of an utterance is kept until its Final comes, so what failed is tried again and no word
is lost. What cannot be heard at all is a Final without words in a live stream, so that the call
goes on; in one that is not live it is an EngineError of the iteration.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import ClassVar, Protocol

from loguru import logger

from offhook.pipeline.speech.recognizer import Final, Partial, StreamOptions, Timing
from offhook.pipeline.speech.streams.languages import UNKNOWN
from offhook.pipeline.speech.streams.queued_stream_io import QueuedStream
from offhook.pipeline.speech.streams.retry import AttemptFailed, RetryPolicy
from offhook.pipeline.speech.streams.utterance_queue import State, Utterance, UtteranceQueue

LIVE_GIVE_UP_S = 30.0
FILE_GIVE_UP_S = 120.0
"""After the first failure of a final."""
Tell = Callable[[Partial], None]


@dataclass(eq=False)
class WholeUtterance(Utterance):
    """One that is heard by a task of its own."""

    cut_at_quiet: ClassVar[bool] = True
    grown: asyncio.Event = field(default_factory=asyncio.Event)
    """Or finished: since it was last cleared."""
    hearing: "asyncio.Task[Final | None] | None" = None

    @property
    def is_finished(self) -> bool:
        return self.state is not State.OPEN

    async def news(self) -> None:
        """Until it has grown, or is finished, once more."""
        self.grown.clear()
        await self.grown.wait()

    async def until_finished(self) -> None:
        while not self.is_finished:
            await self.news()

    def partial_timing(self, heard: int, needs: int, started: float) -> Timing | None:
        """Of a text made just now of so many bytes of it, that was due when there were `needs`."""
        if self.arrivals is None:
            return None
        return self.arrivals.update(heard // 2, needs // 2, started, monotonic())

    def final_timing(self, started: float) -> Timing | None:
        """Of the last text, made just now."""
        return self.arrivals.final(started, monotonic()) if self.arrivals is not None else None


class UtteranceRecognizer(Protocol):
    """What a stream asks to hear."""

    @property
    def name(self) -> str: ...

    async def hear(self, utterance: WholeUtterance, options: StreamOptions, tell: Tell) -> Final:
        """The utterance, from now to its end; partials to `tell`. Raises AttemptFailed; what was
        told then stays told."""

    def explain(self, failed: AttemptFailed) -> str:
        """For whoever runs us."""


def known_language(language: str, wanted: str | None) -> str:
    """What to say of an utterance whose language may have been told, or asked for."""
    return language or wanted or UNKNOWN


class UtteranceStream(QueuedStream[WholeUtterance]):
    """Utterances are heard one after another."""

    def __init__(self, recognizer: UtteranceRecognizer, options: StreamOptions) -> None:
        language = known_language("", options.language_code)
        queue = UtteranceQueue(WholeUtterance, timed=options.timing, language=language)
        super().__init__(recognizer.name, options, queue)
        self._recognizer = recognizer
        self._said = ""
        """The last fault that was logged."""
        self._news = asyncio.Event()
        self.run(self._hear_all(), "utterances")

    def changed(self) -> None:
        self._news.set()
        for utterance in self.queue:
            utterance.grown.set()

    def withdraw(self, utterance: WholeUtterance) -> None:
        if utterance.hearing is not None:
            utterance.hearing.cancel()

    async def _hear_all(self) -> None:
        while not self.is_over:
            utterance = self.queue.oldest
            if utterance is None:
                self._news.clear()
                await self._news.wait()
                continue
            hearing = utterance.hearing = asyncio.create_task(self._hear_to_end(utterance))
            try:
                await asyncio.wait((hearing,))
            finally:
                hearing.cancel()
                await asyncio.gather(hearing, return_exceptions=True)
            if hearing.cancelled():
                continue  # the utterance too
            final = hearing.result()
            if final is None:
                self.give_up(utterance)
                continue
            if utterance.is_finished and final.audio_ms == utterance.audio_ms:
                final = replace(final, continues=False)
            self.heard(utterance, final)

    async def _hear_to_end(self, utterance: WholeUtterance) -> Final | None:
        """Its Final; None when it is to be given up."""
        loop = asyncio.get_running_loop()
        patience = RetryPolicy(LIVE_GIVE_UP_S if self._options.live else FILE_GIVE_UP_S)
        while True:
            utterance.rewind()
            try:
                return await self._recognizer.hear(
                    utterance, self._options, lambda partial: self.heard(utterance, partial)
                )
            except AttemptFailed as failed:
                self._log(failed)
                pause = patience.pause_s(failed, loop.time())
                if pause is None:
                    await utterance.until_finished()
                    if not self._options.live:
                        words = self._recognizer.explain(failed)
                        self.mailbox.fail(failed.as_error(words, self._options.demands()))
                    return None
                await asyncio.sleep(pause)

    def _log(self, failed: AttemptFailed) -> None:
        if (words := self._recognizer.explain(failed)) != self._said:
            logger.warning("x {}", words)
            self._said = words
