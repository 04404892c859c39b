"""Streams of a voice engine for replies in another process.

`FarStreams` is in the process with the replies, a `StreamsDoor` for it in the one with the engine;
what each `send`s is for the other to `receive`.
"""

from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from offhook.pipeline.engines.shared.process_link_io import Failed
from offhook.pipeline.engines.shared.synthesis.messages import Ended
from offhook.pipeline.engines.shared.synthesis.reply_streams_io import (
    Listener,
    Numbered,
    ReplyStreams,
)
from offhook.pipeline.speech.errors import EngineError, EngineFailed

P = TypeVar("P")
E = TypeVar("E", bound=Numbered)


class Opened(NamedTuple):
    number: int
    request: Any


class Written(NamedTuple):
    number: int
    parts: Sequence[Any]
    last: bool


class Cancelled(NamedTuple):
    number: int


class Reported(NamedTuple):
    """An event of the engine, whose own number means nothing here."""

    number: int
    event: Any


ToEngine = Opened | Written | Cancelled
FromEngine = Reported | Failed


class FarStreams(Generic[P, E]):
    """The streams of an engine in another process; implements `ReplyStreams`."""

    def __init__(self, send: Callable[[ToEngine], None]) -> None:
        self._send = send
        self._count = 0
        self._numbers: dict[Listener[E], int] = {}
        self._listeners: dict[int, Listener[E]] = {}
        self._failed: EngineFailed | None = None

    def open(self, listener: Listener[E], request: Any) -> None:
        if self._failed is not None:
            raise self._failed
        self._count += 1
        self._numbers[listener] = self._count
        self._listeners[self._count] = listener
        self._send(Opened(self._count, request))

    def write(self, listener: Listener[E], parts: Sequence[P], *, last: bool) -> None:
        if self._failed is not None:
            raise self._failed
        if (number := self._numbers.get(listener)) is not None:
            self._send(Written(number, parts, last))

    def cancel(self, listener: Listener[E]) -> None:
        if (number := self._forget(listener)) is not None:
            self._send(Cancelled(number))

    def _forget(self, listener: Listener[E]) -> int | None:
        number = self._numbers.pop(listener, None)
        if number is not None:
            del self._listeners[number]
        return number

    def receive(self, said: FromEngine) -> None:
        listener = self._listeners.get(said.number)
        if listener is None:
            return
        if isinstance(said, Failed):
            if isinstance(said.error, EngineFailed):
                self._failed = said.error
            self._forget(listener)
            listener.fail(said.error)
            return
        if isinstance(said.event, Ended):
            self._forget(listener)
        listener.receive(said.event)


class StreamsDoor(Generic[P, E]):
    """The streams of the replies of one other process."""

    def __init__(self, streams: ReplyStreams[P, E], send: Callable[[FromEngine], None]) -> None:
        self._streams = streams
        self._send = send
        self._replies: dict[int, _FarReply[E]] = {}

    def receive(self, said: ToEngine) -> None:
        try:
            self._obey(said)
        except EngineFailed as error:
            self.report(Failed(said.number, error))

    def _obey(self, said: ToEngine) -> None:
        """Raises EngineFailed."""
        match said:
            case Opened(number, request):
                reply = self._replies[number] = _FarReply(number, self.report)
                self._streams.open(reply, request)
            case Written(number, parts, last) if number in self._replies:
                self._streams.write(self._replies[number], parts, last=last)
            case Cancelled(number) if number in self._replies:
                self._streams.cancel(self._replies.pop(number))

    def report(self, said: FromEngine) -> None:
        if isinstance(said, Failed) or isinstance(said.event, Ended):
            self._replies.pop(said.number, None)
        self._send(said)

    async def close(self) -> None:
        """Frees all streams: the other process has ended."""
        for reply in self._replies.values():
            self._streams.cancel(reply)
        self._replies.clear()


class _FarReply(Generic[E]):
    """Implements `Listener`."""

    def __init__(self, number: int, report: Callable[[FromEngine], None]) -> None:
        self._number, self._report = number, report

    def receive(self, told: E) -> None:
        self._report(Reported(self._number, told))

    def fail(self, error: EngineError) -> None:
        self._report(Failed(self._number, error))
