"""A worker: one speech engine behind HTTP, in a process of its own.

It answers while the model loads: /healthz says how far it is, and a stream opened meanwhile waits
for its `ready`. What is the same for all engines is here; what a stream says is the matter of the
worker's `Service`: `worker_asr_io` hears, `worker_tts_io` speaks.
"""

import asyncio
import math
import os
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, Protocol, TypeVar

from aiohttp import web
from loguru import logger
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from offhook.pipeline.speech.recognizer import EngineBroken, Progress
from offhook.pipeline.speech.remote.worker_client_io import UNIX
from offhook.pipeline.speech.remote.worker_protocol import ErrorCode
from offhook.web.config.config import Speech
from offhook.web.http.access import AccessPolicy, Key, Refusal, Role, is_loopback
from offhook.web.http.access_io import admit, open_door
from offhook.web.http.listening_io import Runner
from offhook.web.process.loop_io import run
from offhook.web.process.stop_io import Stop
from offhook.web.speech_api import server_io
from offhook.web.speech_api.routes_io import is_of_speech, mount
from offhook.web.speech_api.server_io import EngineHandle, SpeechServer
from offhook.web.speech_api.sockets.worker_stream_io import (
    CLOSE_SECONDS,
    Refused,
    WorkerMetrics,
    WorkerStream,
    held,
    opened,
    refusing,
)

LOADING_STEP = 0.1
"""Progress of loading is logged in steps of a tenth."""
IDLE_CHECK_S = 3600.0
STREAMS_PER_USE = 4
"""Streams a worker takes for each that it lets be in use at a time: clients keep some that wait."""
DRAIN_CHECK_S = 0.05
BROKEN = 2
"""The exit status when the engine broke after it had loaded: another process may do better."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Engine(Protocol):
    async def start(self) -> None: ...

    async def close(self) -> None: ...


E = TypeVar("E", bound=Engine)


class Service(Protocol[E]):
    """What a worker does with an engine."""

    kind: str
    """asr or tts."""
    path: str
    """Of its WebSocket."""

    @property
    def metrics(self) -> WorkerMetrics: ...

    def stream(
        self, worker: "Worker[E]", socket: web.WebSocketResponse, query: Mapping[str, str]
    ) -> WorkerStream:
        """Raises ProtocolError."""


@dataclass(frozen=True)
class WorkerSettings:
    engine: str
    model: str
    max_streams: int = 64
    """In use at a time."""
    idle_seconds: float = 0
    """The worker ends after so long without a stream in use; 0: never."""
    drain_seconds: float = 30
    api_key: str = field(default="", repr=False)
    """When set, clients must send it as a bearer token."""
    local: bool = True
    """Whether only this machine can connect."""
    audio_cache: str = ""
    """"off": the speech API keeps no replies, either."""
    metrics: Literal["open", "key"] = "open"
    """As in [server]."""

    def access(self) -> AccessPolicy:
        return AccessPolicy(
            local=self.local,
            keys=(Key("server", self.api_key),) if self.api_key else (),
            metrics=Role.PUBLIC if self.metrics == "open" else Role.SPEECH,
            key_setting="--api-key",
            names_setting="",
            origins_setting="",
        )


WORKER: "web.AppKey[Worker[Any]]" = web.AppKey("worker")


class Worker(Generic[E]):
    """The engine, how far it is loaded, and the streams that use it.

    `make` builds the engine, in a thread: to import what it needs can take seconds.
    """

    def __init__(
        self, settings: WorkerSettings, make: Callable[[Progress], E], service: Service[E]
    ) -> None:
        self.settings = settings
        self.service = service
        self.engine: E | None = None
        """None until it is loaded."""
        self.draining = False
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Given an EngineBroken, it ends the worker."""
        self.streams: set[WorkerStream] = set()
        self.busy: set[WorkerStream] = set()
        """Those in use."""
        self.doing = "starting"
        self.fraction = 0.0
        self._make = make
        self._used_at = 0.0
        self.loading = asyncio.create_task(self._load(), name="load")
        self.speech = self._speech()
        """The same engine, for programs that ask by HTTP."""

    @property
    def metrics(self) -> WorkerMetrics:
        return self.service.metrics

    def progress(self, fraction: float, doing: str) -> None:
        """Told by the engine while it loads, from any thread."""
        if doing != self.doing or fraction - self.fraction >= LOADING_STEP:
            logger.info("loading {}: {:.0%}, {}", self.settings.engine, fraction, doing)
            self.fraction, self.doing = fraction, doing

    async def _load(self) -> E:
        """Raises EngineError."""
        began = time.monotonic()
        engine = await asyncio.to_thread(self._make, self.progress)
        await engine.start()
        self.engine = engine
        self.metrics.loaded.set(1)
        self.metrics.of_engine.engine = engine
        self._used_at = time.monotonic()
        logger.info("{} loaded in {:.1f} s", self.settings.engine, self._used_at - began)
        return engine

    def _speech(self) -> SpeechServer:
        async def engine() -> Any:
            return await asyncio.shield(self.loading)

        settings = self.settings
        served: EngineHandle[Any] = EngineHandle(
            engine, lambda: settings.engine, lambda: settings.model
        )
        hears = self.service.kind == "asr"
        speech = SpeechServer(
            Speech(streams=settings.max_streams),
            served if hears else None,
            None if hears else served,
            self.metrics.registry,
            settings.audio_cache,
        )
        speech.on_broken = self.end
        return speech

    @property
    def is_busy(self) -> bool:
        return bool(self.busy) or self.speech.admission.is_busy

    async def close(self) -> None:
        self.loading.cancel()
        await asyncio.gather(self.loading, return_exceptions=True)
        await self.speech.close()
        if self.engine is not None:
            await self.engine.close()

    def admit(self) -> None:
        """Raises Refused when there is no room for a stream."""
        if self.draining:
            raise Refused(ErrorCode.STOPPING, "the server is stopping: connect again")
        most = self.settings.max_streams
        if len(self.busy) >= most or len(self.streams) >= STREAMS_PER_USE * most:
            words = f"all {most} streams are in use: try again later, or raise --max-streams"
            raise Refused(ErrorCode.FULL, words)

    @contextmanager
    def in_use(self, stream: WorkerStream) -> Iterator[None]:
        """Raises Refused when there is no room for it."""
        self.admit()
        self.busy.add(stream)
        self.metrics.streams.set(len(self.busy))
        try:
            yield
        finally:
            self.busy.discard(stream)
            self.metrics.streams.set(len(self.busy))
            self._used_at = time.monotonic()

    async def idle(self) -> None:
        """Returns when no stream was in use for `idle_seconds`; with 0, never."""
        limit = self.settings.idle_seconds or math.inf
        await asyncio.wait((self.loading,))
        while (unused := self._unused()) < limit:
            await asyncio.sleep(min(limit - unused, IDLE_CHECK_S))

    def _unused(self) -> float:
        """Seconds since something was in use."""
        used_at = max(self._used_at, self.speech.admission.left_at)
        return 0.0 if self.is_busy else time.monotonic() - used_at

    def end(self, error: EngineBroken) -> None:
        """The engine is broken, and with it the worker."""
        self.draining = True
        if not self.broken.done():
            self.broken.set_exception(error)

    async def drain(self) -> None:
        """Take no more streams; wait for those in use, then tell all to go."""
        self.draining = self.speech.draining = True
        until = time.monotonic() + self.settings.drain_seconds
        while self.is_busy and time.monotonic() < until:
            await asyncio.sleep(DRAIN_CHECK_S)

    def state(self) -> dict[str, Any]:
        if self.engine is None:
            return {"status": "loading", "fraction": self.fraction, "doing": self.doing}
        return {"status": "draining" if self.draining else "ok", **self.metrics.health()}


# --- HTTP ---


@web.middleware
async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Who may ask, as for the edge; and no page of another site may, in its visitor's browser."""
    if is_of_speech(request):
        return await server_io.guard(request, handler)
    try:
        admit(request)
    except Refusal as refusal:
        return _refusal(refusal.status, str(refusal), **refusal.headers)
    path = request.app[WORKER].service.path
    if request.path == path and not web.WebSocketResponse().can_prepare(request):
        return _refusal(426, f"{path} is a WebSocket", Upgrade="websocket")
    return await handler(request)


def _refusal(status: int, message: str, **headers: str) -> web.Response:
    return web.json_response({"error": message}, status=status, headers=headers)


async def talk(request: web.Request) -> web.WebSocketResponse:
    worker = request.app[WORKER]
    socket = await opened(request)
    conversation = _run_stream(worker, socket, request.query)
    await held(request, socket, conversation, lambda code: worker.metrics.ended.labels(code).inc())
    return socket


async def _run_stream(
    worker: Worker[Any], socket: web.WebSocketResponse, query: Mapping[str, str]
) -> None:
    """Raises Refused, ConnectionError."""
    with refusing():
        worker.admit()
        stream = worker.service.stream(worker, socket, query)
        worker.streams.add(stream)
        try:
            await stream.run()
        except EngineBroken as error:
            worker.end(error)
            raise Refused(ErrorCode.STOPPING, str(error)) from error
        finally:
            worker.streams.discard(stream)


async def healthz(request: web.Request) -> web.Response:
    return web.json_response(request.app[WORKER].state())


async def readyz(request: web.Request) -> web.Response:
    worker = request.app[WORKER]
    ready = worker.engine is not None and not worker.draining
    state = {
        "ready": ready,
        "engine": worker.settings.engine,
        "model": worker.settings.model,
        "streams": len(worker.busy),
        "max_streams": worker.settings.max_streams,
    }
    return web.json_response(state, status=200 if ready else 503)


async def metrics(request: web.Request) -> web.Response:
    body = generate_latest(request.app[WORKER].metrics.registry)
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})


def application(worker: Worker[Any]) -> web.Application:
    app = web.Application(middlewares=[guard])
    app[WORKER] = worker
    app.router.add_get(worker.service.path, talk)
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", metrics)
    mount(app, worker.speech)
    open_door(app, worker.settings.access)
    return app


# --- life ---


@dataclass(frozen=True)
class Address:
    """Where to listen."""

    host: str = "127.0.0.1"
    port: int = 0
    path: str = ""
    """Of a Unix socket; then host and port mean nothing."""

    @classmethod
    def parse(cls, text: str) -> "Address":
        """HOST:PORT, [IPV6]:PORT or unix:PATH. Raises ValueError."""
        if text.startswith(UNIX) and len(text) > len(UNIX):
            return cls(path=text.removeprefix(UNIX))
        host, _, port = text.rpartition(":")
        if not host or not port.isdecimal() or int(port) > 65535:
            raise ValueError(f"--listen {text}: give HOST:PORT or {UNIX}PATH")
        return cls(host.strip("[]"), int(port))

    @property
    def local(self) -> bool:
        return bool(self.path) or is_loopback(self.host)


Listen = Callable[[Runner], Awaitable[str]]
"""Begins to accept for the runner; returns where, in words."""


def listener(address: Address) -> Listen:
    async def listen(runner: Runner) -> str:
        if not address.path:
            await runner.listen(address.host, address.port)
            host, port = runner.addresses[0][:2]
            return f"http://{host}:{port}"
        mask = os.umask(0o177)  # nobody else, from the first moment
        try:
            await runner.listen_unix(address.path)
        finally:
            os.umask(mask)
        return UNIX + address.path

    return listen


async def serve(worker: Worker[Any], listen: Listen, stop: Stop) -> None:
    """Until `stop`, or until the worker was idle for long enough. Raises EngineError when the
    engine does not load, EngineBroken when it breaks later."""
    runner = Runner(application(worker), shutdown_timeout=CLOSE_SECONDS)
    await runner.setup()
    try:
        where = await listen(runner)
        logger.bind(listening=where).info("{} at {}", worker.settings.engine, where)
        await _until_over(worker, stop)
    finally:
        for stream in (*worker.streams, *worker.speech.streams):
            stream.stop()
        await runner.cleanup()
        await worker.close()


async def _first_of(*waits: asyncio.Future[Any]) -> None:
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)


async def _until_over(worker: Worker[Any], stop: Stop) -> None:
    over = [asyncio.create_task(wait) for wait in (stop.drain.wait(), worker.idle())]
    try:
        await _first_of(worker.loading, *over)
        if worker.loading.done():
            worker.loading.result()
            await _first_of(worker.broken, *over)
        drain = [asyncio.create_task(wait) for wait in (worker.drain(), stop.end.wait())]
        over += drain
        await _first_of(worker.broken, *drain)
        if worker.broken.done():
            worker.broken.result()
    finally:
        for task in over:
            task.cancel()


def run_to_end(serving: Coroutine[Any, Any, None]) -> None:
    """Run `serve`. If the engine breaks, that is the end of the process."""
    try:
        run(serving)
    except EngineBroken as error:
        logger.error("{}", error)
        os._exit(BROKEN)  # after an error, CUDA may neither end nor clean up
