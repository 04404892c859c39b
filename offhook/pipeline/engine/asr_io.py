"""Qwen3-ASR as a `Recognizer`: one inference thread for the model, streams on the event loop."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from time import monotonic

from offhook.media.pcm import Pcm
from offhook.pipeline.engine.asr_models import AsrModels
from offhook.pipeline.engine.inference_io import Inference
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
        self._inference: Inference[tuple[int, Partial | Final]] = Inference(
            self.name, self._deliver, self._break
        )
        self._streams: dict[int, Qwen3Stream] = {}
        self._opening: set[asyncio.Future[int]] = set()
        self._recognition: Recognition

    # --- on the event loop ---

    async def start(self) -> None:
        """Load and warm up in the inference thread. Raises EngineError."""
        await self._inference.start(self._load)

    async def open(self, options: StreamOptions = DEFAULT_OPTIONS) -> "Qwen3Stream":
        opened: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def order() -> None:
            try:
                self._answer(opened, self._recognition.open(options))
            except EngineError as error:
                self._answer(opened, error)

        self._inference.order(order)
        self._opening.add(opened)
        try:
            number = await opened
        finally:
            self._opening.discard(opened)
        stream = self._streams[number] = Qwen3Stream(self, number)
        return stream

    async def close(self) -> None:
        await self._inference.close()
        if self._loading.word_times is not None:
            self._loading.word_times.close()

    def _deliver(self, news: tuple[int, Partial | Final]) -> None:
        number, event = news
        stream = self._streams.get(number)
        if stream is not None:
            stream.take(event)

    def _break(self, error: EngineBroken) -> None:
        """The thread is gone: no stream gets another word."""
        for opening in self._opening:
            if not opening.done():
                opening.set_exception(error)
        for stream in self._streams.values():
            stream.fail(error)

    # --- in the inference thread ---

    def _load(self) -> Recognition:
        def tell(number: int, event: Partial | Final) -> None:
            self._inference.tell((number, event))

        self._recognition = self._loading.load(tell, self._inference.put)
        return self._recognition

    def _answer(self, future: "asyncio.Future[int]", value: int | EngineError) -> None:
        def answer() -> None:
            if future.done():
                if isinstance(value, int):
                    self._inference.put(lambda: self._recognition.close(value))
            elif isinstance(value, int):
                future.set_result(value)
            else:
                future.set_exception(value)

        self._inference.call_soon(answer)


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
                self._recognizer._inference.call_soon(lambda: self.fail(reason))

        self._order(order)

    def finish(self) -> None:
        self._order(lambda: self._recognition.finish(self._number, monotonic()))

    def cancel(self) -> None:
        self._order(lambda: self._recognition.cancel(self._number))

    def _order(self, order: Callable[[], None]) -> None:
        if not self._closed:
            self._recognizer._inference.order(order)

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
            if self._recognizer._inference.failed is None:
                self._order(lambda: self._recognition.close(self._number))
            self._closed = True
            self._recognizer._streams.pop(self._number, None)
            self._news.set()
