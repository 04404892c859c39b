"""The inference thread, the only one to touch a model, its engine and the CUDA context.

Streams reach it through one command queue; its events return in one wake-up of the event loop for
all that are available at that time.
"""

import asyncio
import gc
import queue
import threading
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Generic, Protocol, TypeVar

from loguru import logger

from offhook.pipeline.speech.errors import EngineError, EngineFailed

CLOSE_S = 10.0

Command = Callable[[], None]
EventT = TypeVar("EventT")


class Engine(Protocol):
    def turn(self, clock: Callable[[], float]) -> bool:
        """Runs one batch and returns whether there was one; `clock` returns monotonic seconds."""

    def timer(self) -> float | None:
        """Returns when the engine has work without further input, in s; None for never."""


class Inference(Generic[EventT]):
    """Runs an engine in its own thread. On the event loop, `deliver` is called for every event and
    `on_failure` once if the thread fails, e.g. after a CUDA error."""

    def __init__(
        self,
        name: str,
        deliver: Callable[[EventT], None],
        on_failure: Callable[[EngineFailed], None],
    ) -> None:
        self._name = name
        self._deliver_one = deliver
        self._on_failure = on_failure
        self._commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._events: deque[EventT] = deque()
        self._loop: asyncio.AbstractEventLoop
        self._thread: threading.Thread | None = None
        self.failed: EngineFailed | None = None

    # --- on the event loop ---

    async def start(self, load: Callable[[], Engine]) -> None:
        """Starts the thread and waits until `load` has returned the engine. Raises EngineError."""
        self._loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(
            target=self._run, args=(load, ready), name=self._name, daemon=True
        )
        self._thread.start()
        await ready

    def submit(self, command: Command) -> None:
        """Queues a command for the thread. Raises EngineFailed if the thread has failed."""
        if self.failed is not None:
            raise self.failed
        self._commands.put(command)

    async def close(self) -> None:
        """Stops the thread after its current batch."""
        self._commands.put(None)
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, CLOSE_S)

    def _deliver(self) -> None:
        while self._events:
            self._deliver_one(self._events.popleft())

    def _break(self, error: EngineFailed) -> None:
        self.failed = error
        self._on_failure(error)

    # --- in any thread ---

    def put(self, command: Command) -> None:
        """Queues a command, from any thread; it is dropped silently if the thread has ended."""
        self._commands.put(command)

    # --- in the inference thread ---

    def post(self, event: EventT) -> None:
        """Sends an event to `deliver` on the event loop."""
        self._events.append(event)
        if len(self._events) == 1:
            self.call_soon(self._deliver)

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Calls `callback` on the event loop."""
        self._loop.call_soon_threadsafe(callback)

    def _run(self, load: Callable[[], Engine], ready: "asyncio.Future[None]") -> None:
        try:
            engine = load()
        except Exception as error:
            reason = error if isinstance(error, EngineError) else EngineError(f"{error}")
            if not isinstance(error, EngineError):
                logger.exception("{} did not load", self._name)
            self._loop.call_soon_threadsafe(ready.set_exception, reason)
            return
        gc.collect()
        gc.freeze()  # what was loaded is never garbage: exclude it from collection
        self._loop.call_soon_threadsafe(ready.set_result, None)
        try:
            self._serve(engine)
        except Exception as error:
            logger.exception("{} broke", self._name)
            broken = EngineFailed(f"{self._name} broke: {error}")
            self._loop.call_soon_threadsafe(self._break, broken)

    def _serve(self, engine: Engine) -> None:
        """Runs commands and batches until the command None."""
        while True:
            try:
                while (command := self._commands.get_nowait()) is not None:
                    command()
                return
            except queue.Empty:
                pass
            if engine.turn(monotonic):
                continue
            timer = engine.timer()
            try:
                wait = None if timer is None else max(0.0, timer - monotonic())
                command = self._commands.get(timeout=wait)
            except queue.Empty:
                continue
            if command is None:
                return
            command()
