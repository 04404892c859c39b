"""The inference thread: it alone touches a model, its engine and the CUDA context.

What streams say reaches it as orders through one queue; what the engine tells comes back in one
wake-up of the event loop for all that is known at that moment.
"""

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Generic, Protocol, TypeVar

from loguru import logger

from offhook.pipeline.speech.recognizer import EngineBroken, EngineError

CLOSE_S = 10.0

Order = Callable[[], None]
News = TypeVar("News")


class Engine(Protocol):
    def turn(self, clock: Callable[[], float]) -> bool:
        """One batch; False: there is nothing to do. `clock` tells the time in s."""

    def timer(self) -> float | None:
        """When there will be something to do by itself; None: never."""


class Inference(Generic[News]):
    """An engine in a thread of its own. `deliver` and `broke` are called on the event loop: with
    all the news since the last wake-up, and once, when the thread broke, as after an error of
    CUDA."""

    def __init__(
        self, name: str, deliver: Callable[[News], None], broke: Callable[[EngineBroken], None]
    ) -> None:
        self._name = name
        self._deliver_one = deliver
        self._broke = broke
        self._orders: queue.SimpleQueue[Order | None] = queue.SimpleQueue()
        self._told: deque[News] = deque()
        self._loop: asyncio.AbstractEventLoop
        self._thread: threading.Thread | None = None
        self.failed: EngineBroken | None = None

    # --- on the event loop ---

    async def start(self, load: Callable[[], Engine]) -> None:
        """`load` and serve in the thread; returns when it is loaded. Raises EngineError."""
        self._loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(
            target=self._run, args=(load, ready), name=self._name, daemon=True
        )
        self._thread.start()
        await ready

    def order(self, order: Order) -> None:
        """Have the thread do it, after what was ordered before. Raises EngineBroken."""
        if self.failed is not None:
            raise self.failed
        self._orders.put(order)

    async def close(self) -> None:
        """End the thread, after the batch it is at."""
        self._orders.put(None)
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, CLOSE_S)

    def _deliver(self) -> None:
        while self._told:
            self._deliver_one(self._told.popleft())

    def _break(self, error: EngineBroken) -> None:
        self.failed = error
        self._broke(error)

    # --- in any thread ---

    def put(self, order: Order) -> None:
        """As `order`, without a word when nobody serves any more."""
        self._orders.put(order)

    # --- in the inference thread ---

    def post(self, news: News) -> None:
        self._told.append(news)
        if len(self._told) == 1:
            self.call_soon(self._deliver)

    def call_soon(self, callback: Callable[[], None]) -> None:
        """On the event loop."""
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
        self._loop.call_soon_threadsafe(ready.set_result, None)
        try:
            self._serve(engine)
        except Exception as error:
            logger.exception("{} broke", self._name)
            broken = EngineBroken(f"{self._name} broke: {error}")
            self._loop.call_soon_threadsafe(self._break, broken)

    def _serve(self, engine: Engine) -> None:
        """Orders and batches, until None is ordered."""
        while True:
            try:
                while (order := self._orders.get_nowait()) is not None:
                    order()
                return
            except queue.Empty:
                pass
            if engine.turn(monotonic):
                continue
            timer = engine.timer()
            try:
                wait = None if timer is None else max(0.0, timer - monotonic())
                order = self._orders.get(timeout=wait)
            except queue.Empty:
                continue
            if order is None:
                return
            order()
