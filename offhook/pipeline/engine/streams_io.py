"""An engine of recognition as a `Recognizer`: one inference thread, streams on the event loop."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from time import monotonic
from typing import Protocol

from offhook.media.pcm import Pcm
from offhook.pipeline.engine.inference_io import Inference, Order
from offhook.pipeline.speech.recognizer import (
    DEFAULT_OPTIONS,
    AudioOverrun,
    EngineBroken,
    EngineError,
    Final,
    Partial,
    StreamOptions,
)
from offhook.pipeline.speech.streams.event_mailbox_io import EventMailbox

Tell = Callable[[int, Partial | Final], None]


class StreamingEngine(Protocol):
    """Streams in, events out. All methods are called by the inference thread. Times are s of
    time.monotonic()."""

    def open(self, options: StreamOptions) -> int:
        """A stream's number. Raises EngineError."""

    def feed(self, number: int, pcm: Pcm, came: float) -> None:
        """Samples that came at this time. Raises AudioOverrun."""

    def finish(self, number: int, came: float) -> None: ...

    def cancel(self, number: int) -> None: ...

    def close(self, number: int) -> None: ...

    def turn(self, clock: Callable[[], float]) -> bool: ...

    def timer(self) -> float | None: ...


class EngineRecognizer:
    """The models on one device, for all streams of the process.

    `load(tell, order)` makes the engine, in the thread that is to run it; `order` is how another
    thread has that one do something. When the thread breaks, as after an error of CUDA, all streams
    raise EngineBroken, and so does whatever is asked for later.
    """

    def __init__(
        self, name: str, load: Callable[[Tell, Callable[[Order], None]], StreamingEngine]
    ) -> None:
        self.name = name
        self._load = load
        self.inference: Inference[tuple[int, Partial | Final | None]] = Inference(
            name, self._deliver, self._break
        )
        self._streams: dict[int, EngineStream] = {}
        self._opening: set[asyncio.Future[int]] = set()
        self.hears: StreamingEngine

    # --- on the event loop ---

    async def start(self) -> None:
        """Load and warm up in the inference thread. Raises EngineError."""
        await self.inference.start(self._begin)

    async def open(self, options: StreamOptions = DEFAULT_OPTIONS) -> "EngineStream":
        opened: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def order() -> None:
            try:
                self._answer(opened, self.hears.open(options))
            except EngineError as error:
                self._answer(opened, error)

        self.inference.order(order)
        self._opening.add(opened)
        try:
            number = await opened
        finally:
            self._opening.discard(opened)
        stream = self._streams[number] = EngineStream(self, number)
        return stream

    async def close(self) -> None:
        await self.inference.close()

    def remove(self, number: int) -> None:
        self._streams.pop(number, None)

    def _deliver(self, news: tuple[int, Partial | Final | None]) -> None:
        number, event = news
        stream = self._streams.get(number)
        if stream is not None:
            stream.receive(event)

    def _break(self, error: EngineBroken) -> None:
        """The thread is gone: no stream gets another word."""
        for opening in self._opening:
            if not opening.done():
                opening.set_exception(error)
        for stream in self._streams.values():
            stream.mailbox.fail(error)

    # --- in the inference thread ---

    def _begin(self) -> StreamingEngine:
        def deliver(number: int, event: Partial | Final) -> None:
            self.inference.post((number, event))

        self.hears = self._load(deliver, self.inference.put)
        return self.hears

    def _answer(self, future: "asyncio.Future[int]", value: int | EngineError) -> None:
        def answer() -> None:
            if future.done():
                if isinstance(value, int):
                    self.inference.put(lambda: self.hears.close(value))
            elif isinstance(value, int):
                future.set_result(value)
            else:
                future.set_exception(value)

        self.inference.call_soon(answer)


class EngineStream:
    """One speaker's stream; see `RecognizerStream`."""

    def __init__(self, recognizer: EngineRecognizer, number: int) -> None:
        self.mailbox = EventMailbox()
        self._recognizer = recognizer
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
        samples = pcm.copy()  # the caller may use its buffer again
        came = monotonic()

        def order() -> None:
            try:
                self._hears.feed(self._number, samples, came)
            except AudioOverrun as error:
                reason = EngineError(f"sound came faster than it was heard: {error}")
                self._recognizer.inference.call_soon(lambda: self.mailbox.fail(reason))

        self._order(order)

    def finish(self) -> None:
        came = monotonic()
        self._ends.append(True)
        self._order(lambda: self._hears.finish(self._number, came))

    def cancel(self) -> None:
        self.mailbox.drop_partial()
        self._ends.append(False)

        def order() -> None:
            self._hears.cancel(self._number)
            self._recognizer.inference.post((self._number, None))

        self._order(order)

    def _order(self, order: Order) -> None:
        if not self.mailbox.closed:
            self._recognizer.inference.order(order)

    @property
    def _hears(self) -> StreamingEngine:
        return self._recognizer.hears

    def events(self) -> AsyncIterator[Partial | Final]:
        """Raises EngineError when the engine broke."""
        return self.mailbox.events()

    async def close(self) -> None:
        if not self.mailbox.closed:
            if self._recognizer.inference.failed is None:
                self._order(lambda: self._hears.close(self._number))
            self.mailbox.close()
            self._recognizer.remove(self._number)
