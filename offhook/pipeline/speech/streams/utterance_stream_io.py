"""A `RecognizerStream` for engines that hear one whole utterance after another.

The sound of an utterance is kept until its Final comes, so what failed is tried again and no word
is lost. What cannot be heard at all is a Final without words in a live stream, so that the call
goes on; in one that is not live it is an EngineError of the iteration.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Protocol

from loguru import logger

from offhook.media.pcm import RATE_IN, Pcm
from offhook.pipeline.speech.recognizer import EngineError, Final, Partial, StreamOptions, Timing
from offhook.pipeline.speech.streams.audio_chunks import SEARCH_SECONDS, split
from offhook.pipeline.speech.streams.event_mailbox_io import EventMailbox
from offhook.pipeline.speech.streams.languages import UNKNOWN
from offhook.pipeline.speech.streams.partials import following
from offhook.pipeline.speech.streams.retry import AttemptFailed, RetryPolicy
from offhook.pipeline.speech.streams.rolling_text import samples
from offhook.pipeline.speech.timing import Arrivals

MAX_UTTERANCE_S = 60
"""A longer utterance is ended about here, where it is quiet, and goes on as the next one: its first
Final `continues`."""
MAX_KEPT_S = 180
"""Sound of one stream without a final. Beyond, sound of a live stream is dropped until one comes;
one that is not live has failed."""
LIVE_GIVE_UP_S = 30.0
FILE_GIVE_UP_S = 120.0
"""After the first failure of a final."""
NOTHING = Partial("", 0, 0)
Tell = Callable[[Partial], None]


@dataclass(eq=False)
class PendingUtterance:
    """One utterance of a stream until its final comes."""

    start: int
    """In samples of the stream."""
    pcm: bytearray = field(default_factory=bytearray)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    grown: asyncio.Event = field(default_factory=asyncio.Event)
    """Or ended: since it was last cleared."""
    continues: bool = False
    """Ended by MAX_UTTERANCE_S, and not by `finish`."""
    shown: Partial = NOTHING
    """The last partial told."""
    sent: int = 0
    """Bytes that went out as they came: it can be cut only after them."""
    hearing: "asyncio.Task[Final] | None" = None
    arrivals: Arrivals | None = None
    """For a `Timing`, where one is asked for."""

    @property
    def audio_ms(self) -> int:
        return len(self.pcm) // 2 * 1000 // RATE_IN

    def take(self, data: bytes) -> None:
        self.pcm += data
        if self.arrivals is not None:
            self.arrivals.came(len(data) // 2, monotonic())
        self.grown.set()

    def end(self) -> None:
        if self.arrivals is not None:
            self.arrivals.ended(monotonic())
        self.ended.set()
        self.grown.set()

    def partial_timing(self, heard: int, needs: int, started: float) -> Timing | None:
        """Of a text made just now of so many bytes of it, that was due when there were `needs`."""
        if self.arrivals is None:
            return None
        return self.arrivals.update(heard // 2, needs // 2, started, monotonic())

    def final_timing(self, started: float) -> Timing | None:
        """Of the last text, made just now."""
        return self.arrivals.final(started, monotonic()) if self.arrivals is not None else None

    def show(self, partial: Partial) -> Partial | None:
        """The partial as it may be told: what was stable stays, whoever says so. None when it says
        nothing new."""
        if (told := following(self.shown, partial)) is not None:
            self.shown = told
        return told

    def drop(self, audio_ms: int) -> None:
        """Forget the beginning: it has its Final."""
        size = min(len(self.pcm), audio_ms * RATE_IN // 1000 * 2)
        del self.pcm[:size]
        self.start += size // 2
        if self.arrivals is not None:
            self.arrivals.forget(size // 2)
        self.sent = 0
        self.shown = NOTHING

    def split_off(self) -> bytes | None:
        """When it has become too long it ends here, in the quiet where all of it can still be cut;
        what is beyond is returned, for the next."""
        most = MAX_UTTERANCE_S * RATE_IN * 2
        if len(self.pcm) <= most + int(SEARCH_SECONDS) * RATE_IN * 2:
            return None
        cut = max(2 * split(samples(self.pcm), MAX_UTTERANCE_S)[0][1], self.sent)
        rest = bytes(self.pcm[cut:])
        del self.pcm[cut:]
        self.continues = True
        self.end()
        return rest


class UtteranceRecognizer(Protocol):
    """What a stream asks to hear."""

    @property
    def name(self) -> str: ...

    async def hear(self, utterance: PendingUtterance, options: StreamOptions, tell: Tell) -> Final:
        """The utterance, from now to its end; partials to `tell`. Raises Failed; what was told then
        stays told."""

    def explain(self, failed: AttemptFailed) -> str:
        """For whoever runs us."""


def known_language(language: str, wanted: str | None) -> str:
    """What to say of an utterance whose language may have been told, or asked for."""
    return language or wanted or UNKNOWN


class UtteranceStream:
    """A `RecognizerStream`: utterances are heard one after another."""

    def __init__(self, recognizer: UtteranceRecognizer, options: StreamOptions) -> None:
        self._recognizer = recognizer
        self._options = options
        self._utterances: deque[PendingUtterance] = deque()
        """Without a final, oldest first; only the last can be in progress."""
        self._samples = 0
        self._dropping = False
        self._said = ""
        """The last fault that was logged."""
        self._mailbox = EventMailbox()
        self._news = asyncio.Event()
        """There is an utterance to hear."""
        self._task = asyncio.create_task(self._hear_all(), name="utterances")

    # --- the contract ---

    def feed(self, pcm: Pcm) -> None:
        self._samples += len(pcm)
        if self._is_over() or not len(pcm) or self._is_full(2 * len(pcm)):
            return
        utterance = self._current() or self._begin(len(pcm))
        utterance.take(pcm.astype("<i2", copy=False).tobytes())
        while (rest := utterance.split_off()) is not None:
            utterance = self._begin(len(rest) // 2)
            utterance.take(rest)
        self._news.set()

    def finish(self) -> None:
        if not self._is_over():
            (self._current() or self._begin(0)).end()
            self._news.set()

    def cancel(self) -> None:
        if not self._utterances:
            return
        utterance = self._utterances.pop()
        self._mailbox.drop_partial()
        if utterance.hearing is not None:
            utterance.hearing.cancel()

    def events(self) -> AsyncIterator[Partial | Final]:
        """Raises EngineError when a stream that is not live cannot be heard."""
        return self._mailbox.events()

    async def close(self) -> None:
        self._mailbox.close()
        self._utterances.clear()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    # --- utterances ---

    def _is_over(self) -> bool:
        return self._mailbox.closed or self._mailbox.error is not None

    def _current(self) -> PendingUtterance | None:
        """The utterance in progress."""
        newest = self._utterances[-1] if self._utterances else None
        return None if newest is None or newest.ended.is_set() else newest

    def _begin(self, fed: int) -> PendingUtterance:
        arrivals = Arrivals() if self._options.timing else None
        self._utterances.append(PendingUtterance(self._samples - fed, arrivals=arrivals))
        return self._utterances[-1]

    def _is_full(self, more_bytes: int) -> bool:
        kept = sum(len(utterance.pcm) for utterance in self._utterances)
        full = kept + more_bytes > MAX_KEPT_S * RATE_IN * 2
        if full and not self._options.live:
            words = f"{self._recognizer.name} is {MAX_KEPT_S} s of sound behind"
            self._mailbox.fail(EngineError(words, "timeout"))
        elif full and not self._dropping:
            logger.error("x {} is {} s behind: sound is dropped", self._recognizer.name, MAX_KEPT_S)
        self._dropping = full
        return full

    # --- hearing ---

    async def _hear_all(self) -> None:
        while self._mailbox.error is None:
            while not self._utterances:
                self._news.clear()
                await self._news.wait()
            utterance = self._utterances[0]
            utterance.hearing = asyncio.create_task(self._hear_to_end(utterance))
            try:
                await asyncio.wait((utterance.hearing,))
            finally:
                utterance.hearing.cancel()
                await asyncio.gather(utterance.hearing, return_exceptions=True)
            if utterance not in self._utterances:
                continue  # cancelled meanwhile
            final = utterance.hearing.result()
            if self._mailbox.error is not None:
                return
            if final.continues and final.audio_ms < utterance.audio_ms:
                utterance.drop(final.audio_ms)
            else:
                self._utterances.remove(utterance)
                final = replace(final, continues=utterance.continues)
            self._mailbox.put(final)

    async def _hear_to_end(self, utterance: PendingUtterance) -> Final:
        """Its Final, at any rate: an empty one when it is given up."""
        loop = asyncio.get_running_loop()
        patience = RetryPolicy(LIVE_GIVE_UP_S if self._options.live else FILE_GIVE_UP_S)

        def tell(partial: Partial) -> None:
            if shown := utterance.show(partial):
                self._mailbox.put(shown)

        while True:
            try:
                return await self._recognizer.hear(utterance, self._options, tell)
            except AttemptFailed as failed:
                self._log(failed)
                pause = patience.pause_s(failed, loop.time())
                if pause is None:
                    await utterance.ended.wait()
                    if not self._options.live:
                        words = self._recognizer.explain(failed)
                        self._mailbox.fail(failed.as_error(words, self._options.demands()))
                    language = known_language("", self._options.language_code)
                    return Final("", utterance.audio_ms, language=language, lost=True)
                await asyncio.sleep(pause)

    def _log(self, failed: AttemptFailed) -> None:
        if (words := self._recognizer.explain(failed)) != self._said:
            logger.warning("x {}", words)
            self._said = words
