"""The base class of `RecognizerStream`s over an `UtteranceQueue`."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from time import monotonic
from typing import Any, Generic

from loguru import logger

from offhook.media.pcm import Pcm
from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.recognizer import Final, Partial, StreamOptions
from offhook.pipeline.speech.streams import utterance_queue
from offhook.pipeline.speech.streams.event_mailbox_io import EventMailbox
from offhook.pipeline.speech.streams.utterance_queue import U, UtteranceQueue


class QueuedStream(Generic[U]):
    """Implements the stream interface. Subclasses process the utterances of `queue` in `changed`
    and `withdraw`, or in a task, and report results with `emit`."""

    def __init__(self, name: str, options: StreamOptions, queue: UtteranceQueue[U]) -> None:
        self.queue = queue
        self.mailbox = EventMailbox()
        self._name = name
        """Name of the engine, for the log."""
        self._options = options
        self._dropping = False
        self._task: asyncio.Task[None] | None = None

    def changed(self) -> None:
        """Called when there may be audio to process."""

    def withdraw(self, utterance: U) -> None:
        """Called when an utterance was cancelled or given up."""

    def run(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Starts a task that ends with the stream."""
        self._task = asyncio.create_task(work, name=name)

    def emit(self, utterance: U, event: Partial | Final) -> None:
        for told in self.queue.receive(utterance, event):
            self.mailbox.put(told)

    def give_up(self, utterance: U) -> None:
        for told in self.queue.give_up(utterance):
            self.mailbox.put(told)

    @property
    def is_over(self) -> bool:
        return self.mailbox.closed or self.mailbox.error is not None

    # --- the contract ---

    def feed(self, pcm: Pcm) -> None:
        if self.is_over or not len(pcm):
            return
        full = not self.queue.feed(pcm, monotonic())
        if full and not self._dropping:
            self._overrun(f"{utterance_queue.MAX_KEPT_S} s of sound")
        self._dropping = full
        self._give_up_overdue()
        self.changed()

    def finish(self) -> None:
        if self.is_over:
            return
        self.queue.finish(monotonic())
        self._give_up_overdue()
        self.changed()

    def cancel(self) -> None:
        if (utterance := self.queue.cancel()) is not None:
            self.mailbox.drop_partial()
            self.withdraw(utterance)

    def events(self) -> AsyncIterator[Partial | Final]:
        """Yields the events. Raises EngineError if the engine fails, or if a stream that is not
        live cannot be recognized."""
        return self.mailbox.events()

    async def close(self) -> None:
        self.mailbox.close()
        while (utterance := self.queue.cancel()) is not None:
            self.withdraw(utterance)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _give_up_overdue(self) -> None:
        while (oldest := self.queue.overdue) is not None:
            self._overrun(f"{utterance_queue.MAX_WAITING} utterances")
            self.give_up(oldest)
            self.withdraw(oldest)

    def _overrun(self, behind: str) -> None:
        """A caller can repeat what was lost, and the call continues; a file must be recognized
        completely."""
        if self._options.live:
            logger.error("{} is {} behind: what is more is dropped", self._name, behind)
        else:
            self.mailbox.fail(EngineError(f"{self._name} is {behind} behind", "timeout"))
