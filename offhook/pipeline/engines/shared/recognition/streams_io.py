"""A recognition engine as a `Recognizer`: one inference thread, with its streams on the event
loop."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from loguru import logger

from offhook.media.pcm import Pcm
from offhook.pipeline.engines.shared.inference_io import Command, Inference
from offhook.pipeline.engines.shared.recognition.engine_stream_io import (
    EngineStream,
    StreamListener,
)
from offhook.pipeline.engines.shared.recognition.far_recognizer_io import (
    RecognizerDoor,
    RecognizerSettings,
    SendFrom,
)
from offhook.pipeline.speech.errors import AudioOverrun, EngineError, EngineFailed
from offhook.pipeline.speech.recognizer import (
    DEFAULT_OPTIONS,
    Final,
    Partial,
    Recognizer,
    StreamOptions,
)

if TYPE_CHECKING:
    from offhook.pipeline.engines.shared.recognition.turns_io import TurnJudge

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


class EngineRecognizer(Recognizer):
    """The recognition models on one device, shared by all streams of the process.

    `load(tell, submit)` builds the engine in its own thread; `submit` runs a command in that
    thread. When the thread fails, e.g. after a CUDA error, all streams and later calls raise
    EngineFailed.
    """

    turns: "TurnJudge | None" = None
    """What answers whether speakers' turns are over, loaded with the engine; None: nothing does."""

    def __init__(
        self, name: str, load: Callable[[Tell, Callable[[Command], None]], StreamingEngine]
    ) -> None:
        self.name = name
        self._load = load
        self.inference: Inference[tuple[int, Partial | Final | None]] = Inference(
            name, self._deliver, self._break
        )
        self.commands = InferenceCommands(self)
        self._listeners: dict[int, StreamListener] = {}
        self._opening: set[asyncio.Future[int]] = set()
        self.engine: StreamingEngine

    # --- on the event loop ---

    async def start(self) -> None:
        """Load and warm up in the inference thread. Raises EngineError."""
        await self.inference.start(self._begin)

    async def open(self, options: StreamOptions = DEFAULT_OPTIONS) -> "EngineStream":
        number = await self.open_stream(options)
        stream = EngineStream(self.commands, number)
        self.listen(number, stream)
        return stream

    async def open_stream(self, options: StreamOptions) -> int:
        """Opens a stream for `listen` and `commands`, and returns its number. Raises
        EngineError."""
        opened: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def command() -> None:
            try:
                self._answer(opened, self.engine.open(options))
            except EngineError as error:
                self._answer(opened, error)

        self.inference.submit(command)
        self._opening.add(opened)
        try:
            return await opened
        finally:
            self._opening.discard(opened)

    @property
    def far_settings(self) -> RecognizerSettings:
        """What another process needs to know of the loaded engine."""
        return RecognizerSettings(self.name, self.languages, self.turns is not None)

    def door(self, send: SendFrom) -> RecognizerDoor:
        """Returns the streams for the sockets of another process."""
        return RecognizerDoor(self, send)

    def listen(self, number: int, listener: "StreamListener") -> None:
        """Reports what happens to a stream that has just been opened, until it is closed."""
        self._listeners[number] = listener

    async def close(self) -> None:
        await self.inference.close()
        if self.turns is not None:
            await self.turns.close()

    def remove(self, number: int) -> None:
        self._listeners.pop(number, None)

    def fail(self, number: int, error: EngineError) -> None:
        """Tells a stream that it has failed."""
        if (listener := self._listeners.get(number)) is not None:
            listener.fail(error)

    def _deliver(self, item: tuple[int, Partial | Final | None]) -> None:
        number, event = item
        listener = self._listeners.get(number)
        if listener is not None:
            listener.receive(event)

    def _break(self, error: EngineFailed) -> None:
        """Fails every stream after the inference thread has failed."""
        for opening in self._opening:
            if not opening.done():
                opening.set_exception(error)
        for listener in self._listeners.values():
            listener.fail(error)

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


class InferenceCommands:
    """`StreamCommands` for an engine in this process."""

    def __init__(self, recognizer: EngineRecognizer) -> None:
        self._recognizer = recognizer
        self._inference = recognizer.inference

    def feed(self, number: int, pcm: Pcm, arrived_at: float) -> None:
        def command() -> None:
            try:
                self._recognizer.engine.feed(number, pcm, arrived_at)
            except AudioOverrun as error:
                reason = EngineError(f"audio arrived faster than real time: {error}")
                self._inference.call_soon(lambda: self._recognizer.fail(number, reason))

        self._inference.submit(command)

    def finish(self, number: int, arrived_at: float) -> None:
        self._inference.submit(lambda: self._recognizer.engine.finish(number, arrived_at))

    def cancel(self, number: int) -> None:
        def command() -> None:
            self._recognizer.engine.cancel(number)
            self._inference.post((number, None))

        self._inference.submit(command)

    def close(self, number: int) -> None:
        if self._inference.failed is None:
            self._inference.submit(lambda: self._recognizer.engine.close(number))
        self._recognizer.remove(number)
