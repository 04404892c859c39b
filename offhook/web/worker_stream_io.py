"""What the streams of all workers share: one WebSocket between a client and an engine."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import Any, TypeVar

from aiohttp import WSMsgType, web
from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector

from offhook.pipeline.worker_protocol import (
    IDLE_S,
    MAX_TEXT_CHARS,
    Error,
    ErrorCode,
    ProtocolError,
)

E = TypeVar("E")


class Refused(Exception):
    """A stream ends with this error."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error = Error(code, message)


class WorkerMetrics:
    """What Prometheus sees of one worker. `kind`: asr or tts."""

    def __init__(self, kind: str) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        name = f"offhook_{kind}"
        self.loaded = Gauge(f"{name}_loaded", "1 when the model is loaded", registry=registry)
        self.streams = Gauge(f"{name}_streams", "Streams in use now", registry=registry)
        self.ended = Counter(
            f"{name}_streams_ended_total",
            "Streams ended, by the error's code",
            ["code"],
            registry=registry,
        )


class WorkerStream(ABC):
    """One WebSocket from its beginning to its close."""

    wants: str
    """What is missing when a client is idle."""

    def __init__(self, socket: web.WebSocketResponse) -> None:
        self.stopped: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Given an exception, it ends the stream."""
        self._socket = socket

    @abstractmethod
    async def run(self) -> None:
        """Until the client closes. Raises Refused, EngineError; ConnectionError when the client
        is gone."""

    @abstractmethod
    async def hear(self, data: bytes) -> None:
        """A binary message. Raises Refused, ProtocolError."""

    @abstractmethod
    def obey(self, text: str) -> bool:
        """A text message; False when it ends the stream. Raises Refused, ProtocolError."""

    def may_be_idle(self) -> bool:
        """Whether the client may be quiet now, because it waits for us."""
        return False

    async def loaded(self, loading: "asyncio.Task[E]") -> E:
        await self._first_of(loading)
        return loading.result()

    async def both(self, *ways: Coroutine[Any, Any, None]) -> None:
        """Until one of them ends or the stream is stopped; raises what it raised."""
        tasks = [asyncio.create_task(way) for way in ways]
        try:
            await self._first_of(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _first_of(self, *tasks: asyncio.Task[Any]) -> None:
        waits = {*tasks, self.stopped}
        done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for ended in done:
            ended.result()

    async def listen(self) -> None:
        """What the client says, until it closes. Raises Refused."""
        while True:
            try:
                message = await self._socket.receive(IDLE_S)
            except TimeoutError as error:
                if self.may_be_idle():
                    continue
                words = f"nothing came for {IDLE_S} s: send {self.wants}, or a ping"
                raise Refused(ErrorCode.IDLE, words) from error
            try:
                match message.type:
                    case WSMsgType.BINARY:
                        await self.hear(message.data)
                    case WSMsgType.TEXT:
                        _check_length(message.data)
                        if not self.obey(message.data):
                            return
                    case _:
                        return
            except ProtocolError as error:
                raise Refused(ErrorCode.BAD_REQUEST, str(error)) from error

    async def send(self, message: str | bytes) -> None:
        if isinstance(message, str):
            await self._socket.send_str(message)
        else:
            await self._socket.send_bytes(message)


def _check_length(text: str) -> None:
    if len(text) > MAX_TEXT_CHARS:
        words = f"a message of {len(text)} characters, not at most {MAX_TEXT_CHARS}"
        raise Refused(ErrorCode.TOO_LONG, words)
