"""Qwen3-ASR as a `Recognizer`: one inference thread for the model, streams on the event loop.

The thread owns the model, the engine and the CUDA context. What streams say reaches it through one
queue; texts come back in one wake-up of the loop for all that is known at that moment.
"""

import asyncio
import queue
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from time import monotonic

from loguru import logger

from offhook.media.pcm import Pcm
from offhook.pipeline.engine.asr_models import AsrModels
from offhook.pipeline.engine.loading_io import Loading
from offhook.pipeline.engine.recognition import Recognition
from offhook.pipeline.engine.windows import AudioOverrun
from offhook.pipeline.recognizer import (
    DEFAULT_OPTIONS,
    EngineBroken,
    EngineError,
    Final,
    Partial,
    Progress,
    StreamOptions,
)

CLOSE_SECONDS = 10.0


class Qwen3Recognizer:
    """The models on one device, for all streams of the process. Raises EngineError when there is no
    such device.

    When the thread breaks, as after an error of CUDA, all streams raise EngineBroken, and so does
    whatever is asked for later.
    """

    def __init__(
        self, models: AsrModels, progress: Progress = lambda fraction, doing: None
    ) -> None:
        names = " + ".join(filter(None, (models.model, models.final_model)))
        self.name = f"Qwen3-ASR ({names})"
        self._loading = Loading(models, progress)
        self._orders: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._streams: dict[int, Qwen3Stream] = {}
        self._opening: set[asyncio.Future[int]] = set()
        self._told: deque[tuple[int, Partial | Final]] = deque()
        self._failed: EngineBroken | None = None
        self._loop: asyncio.AbstractEventLoop
        self._recognition: Recognition
        self._thread: threading.Thread | None = None

    # --- on the event loop ---

    async def start(self) -> None:
        """Load and warm up in the inference thread. Raises EngineError."""
        self._loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(
            target=self._infer, args=(ready,), name="qwen3-asr", daemon=True
        )
        self._thread.start()
        await ready

    async def open(self, options: StreamOptions = DEFAULT_OPTIONS) -> "Qwen3Stream":
        opened: asyncio.Future[int] = self._loop.create_future()

        def order() -> None:
            try:
                self._answer(opened, self._recognition.open(options))
            except EngineError as error:
                self._answer(opened, error)

        self._order(order)
        self._opening.add(opened)
        try:
            number = await opened
        finally:
            self._opening.discard(opened)
        stream = self._streams[number] = Qwen3Stream(self, number)
        return stream

    async def close(self) -> None:
        self._orders.put(None)
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, CLOSE_SECONDS)
        if self._loading.word_times is not None:
            self._loading.word_times.close()

    def _order(self, order: Callable[[], None]) -> None:
        if self._failed is not None:
            raise self._failed
        self._orders.put(order)

    def _deliver(self) -> None:
        """Everything told since the last wake-up, to the streams."""
        while self._told:
            number, event = self._told.popleft()
            stream = self._streams.get(number)
            if stream is not None:
                stream.take(event)

    def _break(self, error: EngineBroken) -> None:
        """The thread is gone: no stream gets another word."""
        self._failed = error
        for opening in self._opening:
            if not opening.done():
                opening.set_exception(error)
        for stream in self._streams.values():
            stream.fail(error)

    # --- in the inference thread ---

    def _answer(self, future: "asyncio.Future[int]", value: int | EngineError) -> None:
        def answer() -> None:
            if future.done():
                if isinstance(value, int):
                    self._orders.put(lambda: self._recognition.close(value))
            elif isinstance(value, int):
                future.set_result(value)
            else:
                future.set_exception(value)

        self._loop.call_soon_threadsafe(answer)

    def _tell(self, number: int, event: Partial | Final) -> None:
        self._told.append((number, event))
        if len(self._told) == 1:
            self._loop.call_soon_threadsafe(self._deliver)

    def _infer(self, ready: "asyncio.Future[None]") -> None:
        try:
            self._recognition = self._loading.load(self._tell, self._orders.put)
        except Exception as error:
            reason = error if isinstance(error, EngineError) else EngineError(f"{error}")
            if not isinstance(error, EngineError):
                logger.exception("{} did not load", self.name)
            self._loop.call_soon_threadsafe(ready.set_exception, reason)
            return
        self._loop.call_soon_threadsafe(ready.set_result, None)
        try:
            self._serve()
        except Exception as error:
            logger.exception("{} broke", self.name)
            broken = EngineBroken(f"{self.name} broke: {error}")
            self._loop.call_soon_threadsafe(self._break, broken)

    def _serve(self) -> None:
        """Orders and batches, until None is ordered."""
        while True:
            try:
                while (order := self._orders.get_nowait()) is not None:
                    order()
                return
            except queue.Empty:
                pass
            if self._recognition.turn(monotonic):
                continue
            timer = self._recognition.timer()
            try:
                wait = None if timer is None else max(0.0, timer - monotonic())
                order = self._orders.get(timeout=wait)
            except queue.Empty:
                continue
            if order is None:
                return
            order()


class Qwen3Stream:
    """One speaker's stream; see `RecognizerStream`."""

    def __init__(self, recognizer: Qwen3Recognizer, number: int) -> None:
        self._recognizer = recognizer
        self._number = number
        self._events: deque[Partial | Final] = deque()
        self._news = asyncio.Event()
        self._error: EngineError | None = None
        self._closed = False

    def feed(self, pcm: Pcm) -> None:
        samples = pcm.copy()  # the caller may use its buffer again

        def order() -> None:
            try:
                self._recognition.feed(self._number, samples, monotonic())
            except AudioOverrun as error:
                reason = EngineError(f"sound came faster than it was heard: {error}")
                self._recognizer._loop.call_soon_threadsafe(self.fail, reason)

        self._order(order)

    def finish(self) -> None:
        self._order(lambda: self._recognition.finish(self._number, monotonic()))

    def cancel(self) -> None:
        self._order(lambda: self._recognition.cancel(self._number))

    def _order(self, order: Callable[[], None]) -> None:
        if not self._closed:
            self._recognizer._order(order)

    @property
    def _recognition(self) -> Recognition:
        return self._recognizer._recognition

    def take(self, event: Partial | Final) -> None:
        """On the event loop. A partial nobody has read yet gives way to what is newer."""
        if self._events and isinstance(self._events[-1], Partial):
            self._events.pop()
        self._events.append(event)
        self._news.set()

    def fail(self, error: EngineError) -> None:
        self._error = error
        self._news.set()

    async def events(self) -> AsyncIterator[Partial | Final]:
        """Raises EngineError when the engine broke."""
        while True:
            while self._events:
                yield self._events.popleft()
            if self._error is not None:
                raise self._error
            if self._closed:
                return
            self._news.clear()
            await self._news.wait()

    async def close(self) -> None:
        if not self._closed:
            if self._recognizer._failed is None:
                self._order(lambda: self._recognition.close(self._number))
            self._closed = True
            self._recognizer._streams.pop(self._number, None)
            self._news.set()
