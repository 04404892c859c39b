"""An engine on a remote server: whether it has loaded, and its name and model.

Checking is what starts a local worker, and lets clients wait before they send a request's audio.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

from loguru import logger

from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.recognizer import Recognizer
from offhook.pipeline.speech.remote.pool_io import Workers
from offhook.pipeline.speech.remote.worker_client_io import (
    RECONNECT_S,
    is_hopeless,
)
from offhook.pipeline.speech.streams.retry import RetryPolicy
from offhook.pipeline.speech.synthesizer import Synthesizer
from offhook.web.speech_api.server_io import EngineHandle

TRIES = 4
"""Consecutive attempts at a worker that is stopping or crashes."""
WORKER_RETRY_S = 1.0
"""After a first failure; then twice as long each time, up to `RETRY_MAX_S`."""
E = TypeVar("E")
L = TypeVar("L", Recognizer, Synthesizer)


class RemoteEngine(Generic[E]):
    """`engine` is the client; `start` waits until the server has loaded and raises EngineError.
    `name` and `model` are its known values. A worker, one of `workers`, reports its own and may
    stop; any other server is started once."""

    def __init__(
        self,
        engine: E,
        start: Callable[[], Awaitable[None]],
        workers: Workers | None,
        name: str = "",
        model: str = "",
    ) -> None:
        self.engine = engine
        self.name, self.model = name, model
        self.languages: tuple[str, ...] = ()
        """Those of a recognizer, once it has loaded."""
        self.loaded = False
        """Whether it had loaded at the last check."""
        self._fault = ""
        """The server's reason why it is unavailable."""
        self._workers = workers
        self._start = start
        self._starting: asyncio.Task[None] | None = None

    def handle(self) -> EngineHandle[E]:
        return EngineHandle(self.get, lambda: self.name, lambda: self.model, lambda: self.languages)

    async def get(self) -> E:
        """Returns the engine once it has loaded. Raises EngineError."""
        if not await self._is_ready():
            if self._starting is None:  # shared by all who wait
                self._starting = asyncio.create_task(self._load(), name="speech worker")
                self._starting.add_done_callback(self._has_started)
            await asyncio.shield(self._starting)
        return self.engine

    async def close(self) -> None:
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)

    def _has_started(self, task: "asyncio.Task[None]") -> None:
        self._starting = None
        if not task.cancelled():
            task.exception()  # retrieved here; waiting callers raise it

    async def _load(self) -> None:
        """Raises EngineError."""
        retry = RetryPolicy(first_s=RECONNECT_S)
        for tries_left in reversed(range(TRIES)):
            try:
                await self._start()
                break
            except EngineError as error:
                hopeless = not tries_left or is_hopeless(error.__cause__ or error)
                if await self._is_ready():
                    break
                if self._fault:
                    raise EngineError(self._fault, "unloaded") from error
                if hopeless:
                    raise
            await asyncio.sleep(retry.next_s())
        if not self.loaded:
            self.loaded = self._workers is None or await self._is_ready()

    async def _is_ready(self) -> bool:
        """Returns what the worker's /readyz says."""
        if self._workers is None:
            return self.loaded
        self.loaded, state = await self._workers.readiness()
        self._fault = str(state.get("error", ""))
        self.name = str(state.get("engine", self.name))
        self.model = str(state.get("model", self.model))
        self.languages = languages_of(state) or self.languages
        return self.loaded


def languages_of(state: dict[str, Any]) -> tuple[str, ...]:
    """Returns the languages in the body of a worker's /readyz."""
    languages = state.get("languages")
    return tuple(map(str, languages)) if isinstance(languages, list) else ()


async def until_loaded(start: Callable[[], Awaitable[E]]) -> E:
    """What `start` returns, which is tried again as long as there is no worker."""
    retry = RetryPolicy(first_s=WORKER_RETRY_S)
    while True:
        try:
            return await start()
        except EngineError as error:
            logger.error("not ready: {}", error)
            await asyncio.sleep(retry.next_s())


def here(engine: L, name: str, model: str) -> EngineHandle[L]:
    """Wraps a loaded engine of this process."""

    async def get() -> L:
        return engine

    return EngineHandle(get, lambda: name, lambda: model, lambda: engine.languages)
