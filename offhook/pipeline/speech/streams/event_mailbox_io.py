"""What a recognizer's stream has heard, until whoever reads the stream takes it."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from time import monotonic

from offhook.pipeline.speech.recognizer import EngineError, Final, Partial
from offhook.pipeline.speech.timing import routed

MAX_EVENTS = 256
"""Events of one stream that nobody has taken. They are finals, but for the newest, so none may be
dropped: with one more the stream fails."""


class EventMailbox:
    """The events of one `RecognizerStream`, and its end. All methods are for the event loop."""

    def __init__(self) -> None:
        self.closed = False
        self.error: EngineError | None = None
        self._events: deque[Partial | Final] = deque()
        self._news = asyncio.Event()

    def put(self, event: Partial | Final) -> None:
        """A partial nobody has taken gives way to what is newer. What comes after an error is for
        nobody."""
        if self.error is None:
            self.drop_partial()
            if len(self._events) == MAX_EVENTS:
                return self.fail(EngineError(f"{MAX_EVENTS} events of a stream are unread"))
            self._events.append(routed(event, monotonic()))
            self._news.set()

    def drop_partial(self) -> None:
        """The newest event, if it is a partial: its utterance was cancelled."""
        if self._events and isinstance(self._events[-1], Partial):
            self._events.pop()

    def fail(self, error: EngineError) -> None:
        """Raised to the reader who has taken all that was put before."""
        self.error = error
        self._news.set()

    def close(self) -> None:
        """Whoever reads is at the end at once, whatever there is still to take."""
        self.closed = True
        self._news.set()

    async def events(self) -> AsyncIterator[Partial | Final]:
        """Raises EngineError; see `fail`."""
        while not self.closed:
            if self._events:
                yield self._events.popleft()
            elif self.error is not None:
                raise self.error
            else:
                self._news.clear()
                await self._news.wait()
