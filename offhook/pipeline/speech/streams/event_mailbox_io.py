"""A bounded queue of a recognition stream's events."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from time import monotonic

from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.recognizer import Final, Partial
from offhook.pipeline.speech.timing import routed

MAX_EVENTS = 256
"""Maximum unread events of one stream. All but the newest are finals, which must not be dropped, so
the stream fails beyond it."""


class EventMailbox:
    """The events of one `RecognizerStream` and its end. For use on the event loop."""

    def __init__(self) -> None:
        self.closed = False
        self.error: EngineError | None = None
        self._events: deque[Partial | Final] = deque()
        self._news = asyncio.Event()

    def put(self, event: Partial | Final) -> None:
        """Adds an event, replacing an unread partial. Events after an error are ignored."""
        if self.error is None:
            self.drop_partial()
            if len(self._events) == MAX_EVENTS:
                return self.fail(EngineError(f"{MAX_EVENTS} events of a stream are unread"))
            self._events.append(routed(event, monotonic()))
            self._news.set()

    def drop_partial(self) -> None:
        """Removes the newest event if it is a partial, because its utterance was cancelled."""
        if self._events and isinstance(self._events[-1], Partial):
            self._events.pop()

    def fail(self, error: EngineError) -> None:
        """Raises the error in the reader once all earlier events are read."""
        self.error = error
        self._news.set()

    def close(self) -> None:
        """Ends the iteration at once, discarding unread events."""
        self.closed = True
        self._news.set()

    async def events(self) -> AsyncIterator[Partial | Final]:
        """Yields the events. Raises EngineError, see `fail`."""
        while not self.closed:
            if self._events:
                yield self._events.popleft()
            elif self.error is not None:
                raise self.error
            else:
                self._news.clear()
                await self._news.wait()
