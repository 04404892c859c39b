"""The progress of a call, from dialling to its end."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from time import monotonic
from typing import Any, Literal

from offhook.media.tasks_io import first_of

Decision = Coroutine[Any, Any, int]
"""Decides whether a call is answered, or placed: 0, or the SIP status with which it is refused."""
CallState = Literal["dialing", "ringing", "early_media", "answered", "ended"]

MAX_HISTORY = 64
"""States kept of one call for late readers, and in each reader's queue; the oldest are dropped."""


class DialError(RuntimeError):
    """The call could not be placed or was not answered; the message says why."""

    def __init__(self, status: int, reason: str, silent: bool = False, moved_to: str = "") -> None:
        """`status`: SIP status, or the one that stands for no response; 0 if nothing was sent.
        `silent`: the far end could not be reached, or did not respond. `moved_to`: the number at
        which the called party can be reached instead."""
        super().__init__(reason)
        self.status = status
        self.silent = silent
        self.moved_to = moved_to


@dataclass(frozen=True)
class CallProgress:
    """The state of a call at one moment."""

    state: CallState
    status: int = 0
    """SIP status or its equivalent; 0 if there is none."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Moment:
    """A time by both clocks."""

    at: float
    """Monotonic seconds."""
    time: str
    """As records give it: ISO 8601, UTC, milliseconds."""

    @classmethod
    def of(cls, time: datetime) -> "Moment":
        """Return the moment of a time of day."""
        past_s = (datetime.now(UTC) - time).total_seconds()
        return cls(monotonic() - max(0.0, past_s), time.isoformat(timespec="milliseconds"))

    @classmethod
    def now(cls) -> "Moment":
        return cls.of(datetime.now(UTC))


class CallHistory:
    """The states of one call so far, at most MAX_HISTORY, and when it began, was answered and
    ended."""

    def __init__(self) -> None:
        self.began = Moment.now()
        self.answered: Moment | None = None
        self.ended: Moment | None = None
        self._past = [CallProgress("dialing")]
        self._readers: set[asyncio.Queue[CallProgress]] = set()

    @property
    def past(self) -> tuple[CallProgress, ...]:
        return tuple(self._past)

    @property
    def state(self) -> CallState:
        return self._past[-1].state

    def add(self, progress: CallProgress) -> None:
        """Append a state. Nothing may follow "ended"."""
        if progress.state == "answered":
            self.answered = self.answered or Moment.now()
        elif progress.state == "ended":
            self.ended = Moment.now()
        self._past.append(progress)
        del self._past[:-MAX_HISTORY]
        for queue in self._readers:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(progress)

    @property
    def duration_s(self) -> float:
        """Seconds from the answer to the end, or until now; 0 without an answer."""
        if self.answered is None:
            return 0.0
        return (self.ended or Moment.now()).at - self.answered.at

    @property
    def setup_ms(self) -> float | None:
        """Time in ms from the beginning to the answer; None without one."""
        return None if self.answered is None else (self.answered.at - self.began.at) * 1000

    async def events(self) -> AsyncGenerator[CallProgress, None]:
        """Yield every state from the beginning until the call has ended."""
        queue: asyncio.Queue[CallProgress] = asyncio.Queue(MAX_HISTORY)
        for progress in self._past:
            queue.put_nowait(progress)
        self._readers.add(queue)
        try:
            while True:
                progress = await queue.get()
                yield progress
                if progress.state == "ended":
                    return
        finally:
            self._readers.discard(queue)

    async def decided(self, decision: Decision) -> int | None:
        """Await the decision on the call; None if the call ends before, which cancels it."""
        status, _ = await first_of(decision, self.until("ended"))
        return status if self.state != "ended" else None

    async def until(self, *states: CallState) -> None:
        """Wait until the call has had one of these states, or has ended."""
        async with aclosing(self.events()) as events:
            async for progress in events:
                if progress.state in states:
                    return
