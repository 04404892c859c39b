"""A `RecognizerStream` for engines that recognize whole utterances, one after another.

The audio of an utterance is kept until its Final, so failures are retried and no word is lost. If
recognition fails for good, a live stream gets a Final without words, so that the call goes on; any
other stream raises EngineError.
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
from offhook.pipeline.speech.streams.retry import SPREAD_S, AttemptFailed, RetryPolicy
from offhook.pipeline.speech.streams.utterance_queue import (
    Utterance,
    UtteranceQueue,
    UtteranceState,
)

LIVE_GIVE_UP_S = 30.0
FILE_GIVE_UP_S = 120.0
"""Time in s after the first failure at which a final is given up."""
Tell = Callable[[Partial], None]


@dataclass(eq=False)
class WholeUtterance(Utterance):
    """An utterance recognized by a task of its own."""

    cut_at_quiet: ClassVar[bool] = True
    grown: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it has grown or is finished, until cleared."""
    hearing: "asyncio.Task[Final | None] | None" = None

    @property
    def is_finished(self) -> bool:
        return self.state is not UtteranceState.OPEN

    async def news(self) -> None:
        """Waits until it has grown or is finished."""
        self.grown.clear()
        await self.grown.wait()

    async def until_finished(self) -> None:
        while not self.is_finished:
            await self.news()

    def partial_timing(self, heard: int, needs: int, started: float) -> Timing | None:
        """Returns the timing of a text made just now from `heard` bytes, which was due at `needs`
        bytes."""
        if self.arrivals is None:
            return None
        return self.arrivals.update(heard // 2, needs // 2, started, monotonic())

    def final_timing(self, started: float) -> Timing | None:
        """Returns the timing of the final text, made just now."""
        return self.arrivals.final(started, monotonic()) if self.arrivals is not None else None


class UtteranceRecognizer(Protocol):
    """Recognizes the utterances of a stream."""

    @property
    def name(self) -> str: ...

    @property
    def whole_turns(self) -> bool:
        """Whether speakers' turns are to be recognized as wholes."""

    async def recognize(
        self, utterance: WholeUtterance, options: StreamOptions, tell: Tell
    ) -> Final:
        """Recognizes the utterance to its end, passing partials to `tell`. Raises AttemptFailed;
        partials emitted before stay valid."""

    def explain(self, failed: AttemptFailed) -> str:
        """Returns the message for the operator."""


def known_language(language: str, wanted: str | None) -> str:
    """Returns the language of an utterance: the one reported, or the one requested."""
    return language or wanted or UNKNOWN


class UtteranceStream(QueuedStream[WholeUtterance]):
    """Recognizes its utterances one after another."""

    def __init__(self, recognizer: UtteranceRecognizer, options: StreamOptions) -> None:
        language = known_language("", options.language_code)
        queue = UtteranceQueue(WholeUtterance, timed=options.timing, language=language)
        super().__init__(recognizer.name, options, queue)
        self._recognizer = recognizer
        self._said = ""
        """The last error logged."""
        self._news = asyncio.Event()
        self.run(self._recognize_all(), "utterances")

    def changed(self) -> None:
        self._news.set()
        for utterance in self.queue:
            utterance.grown.set()

    def withdraw(self, utterance: WholeUtterance) -> None:
        if utterance.hearing is not None:
            utterance.hearing.cancel()

    @property
    def whole_turns(self) -> bool:
        return self._recognizer.whole_turns

    def drop_finished(self) -> int:
        withdrawn = 0
        while self.queue.waiting and self.queue.open is None:
            self.cancel()
            withdrawn += 1
        return withdrawn

    async def _recognize_all(self) -> None:
        while not self.is_over:
            utterance = self.queue.oldest
            if utterance is None:
                self._news.clear()
                await self._news.wait()
                continue
            hearing = utterance.hearing = asyncio.create_task(self._recognize_whole(utterance))
            try:
                await asyncio.wait((hearing,))
            finally:
                hearing.cancel()
                await asyncio.gather(hearing, return_exceptions=True)
            if hearing.cancelled():
                continue  # including the utterance
            final = hearing.result()
            if final is None:
                self.give_up(utterance)
                continue
            if utterance.is_finished and final.audio_ms == utterance.audio_ms:
                final = replace(final, continues=False)
            self.emit(utterance, final)

    async def _recognize_whole(self, utterance: WholeUtterance) -> Final | None:
        """Returns its Final; None if it is given up."""
        loop = asyncio.get_running_loop()
        give_up_s = LIVE_GIVE_UP_S if self._options.live else FILE_GIVE_UP_S
        patience = RetryPolicy(give_up_s, spread_s=SPREAD_S)
        while True:
            utterance.rewind()
            try:
                return await self._recognizer.recognize(
                    utterance, self._options, lambda partial: self.emit(utterance, partial)
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
            logger.warning("{}", words)
            self._said = words
