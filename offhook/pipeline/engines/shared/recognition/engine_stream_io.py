"""A stream of a recognition engine, in the engine's process or another."""

from collections import deque
from collections.abc import AsyncIterator
from time import monotonic
from typing import Protocol

from offhook.media.pcm import Pcm
from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.recognizer import Final, Partial
from offhook.pipeline.speech.streams.event_mailbox_io import EventMailbox


class StreamCommands(Protocol):
    """What a stream tells its engine, wherever that is. Times are time.monotonic() in s. Raise
    EngineFailed if the engine has failed."""

    def feed(self, number: int, pcm: Pcm, arrived_at: float) -> None:
        """Adds 16 kHz samples, which nobody changes any more."""

    def finish(self, number: int, arrived_at: float) -> None: ...

    def cancel(self, number: int) -> None: ...

    def close(self, number: int) -> None: ...


class StreamListener(Protocol):
    """What the engine tells a stream."""

    def receive(self, event: Partial | Final | None) -> None:
        """The next event, which is of the oldest utterance; None: one was cancelled."""

    def fail(self, error: EngineError) -> None: ...


class EngineStream:
    """One stream of an engine, which `commands` reach; implements `RecognizerStream`, and
    `StreamListener` for what the engine reports."""

    def __init__(self, commands: StreamCommands, number: int) -> None:
        self.mailbox = EventMailbox()
        self.fail = self.mailbox.fail
        self._commands = commands
        self._number = number
        self._ends: deque[bool] = deque()
        """Of the utterances that are over for the speaker and not for the engine, oldest first:
        True has its final to come; False was cancelled, and what comes of it was under way."""

    def receive(self, event: Partial | Final | None) -> None:
        """The engine's next event, which is of the oldest utterance; None: one was cancelled."""
        if event is None:
            self._ends.remove(False)
        elif not self._ends or self._ends[0]:
            if self._ends and isinstance(event, Final) and not event.continues:
                self._ends.popleft()
            self.mailbox.put(event)

    def feed(self, pcm: Pcm) -> None:
        if not self.mailbox.closed:  # a copy: the caller may use its buffer again
            self._commands.feed(self._number, pcm.copy(), monotonic())

    def finish(self) -> None:
        self._ends.append(True)
        if not self.mailbox.closed:
            self._commands.finish(self._number, monotonic())

    def cancel(self) -> None:
        self.mailbox.drop_partial()
        self._ends.append(False)
        if not self.mailbox.closed:
            self._commands.cancel(self._number)

    def events(self) -> AsyncIterator[Partial | Final]:
        """Yields the stream's events. Raises EngineFailed if the engine fails."""
        return self.mailbox.events()

    async def close(self) -> None:
        if not self.mailbox.closed:
            self.mailbox.close()
            self._commands.close(self._number)
