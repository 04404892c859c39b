"""A recognition engine as a `Recognizer`: one inference thread, with its streams on the event
loop."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from time import monotonic
from typing import TYPE_CHECKING, Protocol

from loguru import logger

from offhook.media.pcm import Pcm
from offhook.pipeline.engine.inference_io import Command, Inference
from offhook.pipeline.speech.recognizer import (
    DEFAULT_OPTIONS,
    AudioOverrun,
    EngineError,
    EngineFailed,
    Final,
    Partial,
    StreamOptions,
)
from offhook.pipeline.speech.streams.event_mailbox_io import EventMailbox

if TYPE_CHECKING:
    from offhook.pipeline.engine.turns_io import TurnJudge

Tell = Callable[[int, Partial | Final], None]


class Streams(Protocol):
    """Open audio streams by number. All methods are called by the inference thread; times are
    time.monotonic() in s."""

    def feed(self, number: int, pcm: Pcm, arrived_at: float) -> None:
        """Adds samples that arrived at this time. Raises AudioOverrun."""

    def finish(self, number: int, arrived_at: float) -> None: ...

    def cancel(self, number: int) -> None: ...

    def close(self, number: int) -> None: ...

    def turn(self, clock: Callable[[], float]) -> bool: ...

    def timer(self) -> float | None: ...


class StreamingEngine(Streams, Protocol):
    """Audio streams in, recognition events out."""

    def open(self, options: StreamOptions) -> int:
        """Opens a stream and returns its number. Raises EngineError."""


class EngineOptions:
    """A base of `StreamingEngine`s: `open`, which the subclass has, translates the options of a
    stream for `engine`; all else is the engine's."""

    def __init__(self, engine: Streams) -> None:
        self.feed, self.finish, self.cancel = engine.feed, engine.finish, engine.cancel
        self.close, self.turn, self.timer = engine.close, engine.turn, engine.timer


class EngineRecognizer:
    """The recognition models on one device, shared by all streams of the process.

    `load(tell, submit)` builds the engine in its own thread; `submit` runs a command in that
    thread. When the thread fails, e.g. after a CUDA error, all streams and later calls raise
    EngineFailed.
    """

    def __init__(
        self, name: str, load: Callable[[Tell, Callable[[Command], None]], StreamingEngine]
    ) -> None:
        self.name = name
        self._load = load
        self.inference: Inference[tuple[int, Partial | Final | None]] = Inference(
            name, self._deliver, self._break
        )
        self._streams: dict[int, EngineStream] = {}
        self._opening: set[asyncio.Future[int]] = set()
        self.turns: TurnJudge | None = None
        """What answers whether speakers' turns are over, loaded with the engine; None: nothing
        does."""
        self.engine: StreamingEngine

    # --- on the event loop ---

    async def start(self) -> None:
        """Load and warm up in the inference thread. Raises EngineError."""
        await self.inference.start(self._begin)

    async def open(self, options: StreamOptions = DEFAULT_OPTIONS) -> "EngineStream":
        opened: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def command() -> None:
            try:
                self._answer(opened, self.engine.open(options))
            except EngineError as error:
                self._answer(opened, error)

        self.inference.submit(command)
        self._opening.add(opened)
        try:
            number = await opened
        finally:
            self._opening.discard(opened)
        stream = self._streams[number] = EngineStream(self, number)
        return stream

    async def close(self) -> None:
        await self.inference.close()
        if self.turns is not None:
            await self.turns.close()

    def remove(self, number: int) -> None:
        self._streams.pop(number, None)

    def _deliver(self, item: tuple[int, Partial | Final | None]) -> None:
        number, event = item
        stream = self._streams.get(number)
        if stream is not None:
            stream.receive(event)

    def _break(self, error: EngineFailed) -> None:
        """Fails every stream after the inference thread has failed."""
        for opening in self._opening:
            if not opening.done():
                opening.set_exception(error)
        for stream in self._streams.values():
            stream.mailbox.fail(error)

    # --- in the inference thread ---

    def _begin(self) -> StreamingEngine:
        def deliver(number: int, event: Partial | Final) -> None:
            self.inference.post((number, event))

        self._load_turns()  # before the engine, which takes the remaining memory
        self.engine = self._load(deliver, self.inference.put)
        return self.engine

    def _load_turns(self) -> None:
        """Loads what judges turns, or does without: edges have a model of their own."""
        if self.turns is not None:
            try:
                self.turns.load()
            except (OSError, ValueError, RuntimeError) as error:
                logger.warning("edges judge by themselves whether turns are over: {}", error)
                self.turns = None

    def _answer(self, future: "asyncio.Future[int]", value: int | EngineError) -> None:
        def answer() -> None:
            if future.done():
                if isinstance(value, int):
                    self.inference.put(lambda: self.engine.close(value))
            elif isinstance(value, int):
                future.set_result(value)
            else:
                future.set_exception(value)

        self.inference.call_soon(answer)


class EngineStream:
    """One stream of an `EngineRecognizer`; implements `RecognizerStream`."""

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
        arrived_at = monotonic()

        def command() -> None:
            try:
                self._engine.feed(self._number, samples, arrived_at)
            except AudioOverrun as error:
                reason = EngineError(f"audio arrived faster than real time: {error}")
                self._recognizer.inference.call_soon(lambda: self.mailbox.fail(reason))

        self._submit(command)

    def finish(self) -> None:
        arrived_at = monotonic()
        self._ends.append(True)
        self._submit(lambda: self._engine.finish(self._number, arrived_at))

    def cancel(self) -> None:
        self.mailbox.drop_partial()
        self._ends.append(False)

        def command() -> None:
            self._engine.cancel(self._number)
            self._recognizer.inference.post((self._number, None))

        self._submit(command)

    def _submit(self, command: Command) -> None:
        if not self.mailbox.closed:
            self._recognizer.inference.submit(command)

    @property
    def _engine(self) -> StreamingEngine:
        return self._recognizer.engine

    def events(self) -> AsyncIterator[Partial | Final]:
        """Yields the stream's events. Raises EngineFailed if the engine fails."""
        return self.mailbox.events()

    async def close(self) -> None:
        if not self.mailbox.closed:
            if self._recognizer.inference.failed is None:
                self._submit(lambda: self._engine.close(self._number))
            self.mailbox.close()
            self._recognizer.remove(self._number)
