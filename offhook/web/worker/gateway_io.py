"""`offhook speech`: the speech API alone, with its engines in processes of their own.

A gateway has no engine, no codec and no model in its process: it is small while nobody asks. The
workers of this machine are started by the first request, end when nobody asked for a while, and are
started again when they crash.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from aiohttp import web
from loguru import logger
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    ProcessCollector,
    generate_latest,
)

from offhook.pipeline.speech.recognizer import EngineError
from offhook.web.config.config import Config, ConfigError
from offhook.web.engines.engines_io import with_usual_model
from offhook.web.engines.remote_engine_io import Elsewhere
from offhook.web.engines.remote_engines_io import hears_at, recognizer_of, speaks_at, synthesizer_of
from offhook.web.http.access import AccessPolicy
from offhook.web.http.access_io import ACCESS, open_door
from offhook.web.http.listening_io import Runner
from offhook.web.process.loop_io import spare_what_is_loaded
from offhook.web.process.memory_io import give_back_freed, let_go_of_code
from offhook.web.process.stop_io import Stop
from offhook.web.speech_api.routes_io import mount
from offhook.web.speech_api.server_io import SPEECH, SpeechServer, guard
from offhook.web.worker.local_worker_io import local_workers
from offhook.web.worker.worker_io import Address, listener

LISTEN = "127.0.0.1:7862"
"""Where, unless told otherwise."""
MAX_BODY_BYTES = 1 << 20
"""Of requests read whole; uploads have a limit of their own."""
WORKER_RETRY_S = 5.0
"""How often a worker that is to be there before the first request is looked for."""
DRAIN_CHECK_S = 0.05
LINGER_S = 2.0
"""What still comes of a body that was refused is read for so long: its sender is to see why."""
CLOSE_S = 5.0
"""For connections to end when all is over; then they are cut."""


class Gateway:
    """The two engines, wherever they are, and the server on them."""

    def __init__(self, config: Config) -> None:
        self.config = config
        engines = config.engines
        self._hears = hears_at(engines, recognizer_of(engines))
        self._speaks = speaks_at(engines, synthesizer_of(engines))
        preloads = (self._hears, engines.asr_preload), (self._speaks, engines.tts_preload)
        self._awaited: list[Elsewhere[Any]] = [e for e, preload in preloads if preload is not False]
        """Without which we are not ready."""
        self._loading: asyncio.Task[Any] | None = None
        self.ready = not self._awaited
        self.access = AccessPolicy()
        """Who may ask."""
        self.listening: list[str] = []
        """Where, in words."""
        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.server = SpeechServer(
            config.speech,
            self._hears.served(),
            self._speaks.served(),
            registry,
            engines.tts_audio_cache,
        )

    def know(self, config: Config) -> None:
        """What the workers of this machine will run, before they do."""
        engines = config.engines
        if not engines.asr_url:
            self._hears.name = engines.asr
            self._hears.model = with_usual_model(engines.asr, engines.asr_models()).model
        if not engines.tts_url and engines.tts != "auto":
            self._speaks.name = engines.tts
            self._speaks.model = with_usual_model(engines.tts, engines.tts_models()).model

    def start(self) -> None:
        if self._awaited:
            self._loading = asyncio.create_task(self._wait_for_workers(), name="speech workers")

    async def _wait_for_workers(self) -> None:
        async def started(engine: Elsewhere[Any]) -> None:
            while True:
                try:
                    await engine.get()
                    return
                except EngineError as error:
                    logger.error("not ready: {}", error)
                    await asyncio.sleep(WORKER_RETRY_S)

        await asyncio.gather(*map(started, self._awaited))
        self.ready = True
        names = [f"{engine.name} {engine.model}".strip() for engine in self._awaited]
        logger.info("ready: {}", ", ".join(names))

    def reload(self, read: Callable[[], Config]) -> None:
        """Use the keys and names of the configuration as it is now; the rest takes a restart."""
        try:
            config = read()
        except ConfigError as error:
            faults = str(error).replace("\n", "; ")
            logger.error("x the configuration stays as it was: {}", faults)
            return
        self.access = config.access(local=self.access.local, gateway=True)
        self.server.use_keys(config.speech)
        logger.info("the keys were read again")

    async def drain(self) -> None:
        """Take no more requests; wait for those that there are, up to the configured time."""
        self.server.draining = True
        until = asyncio.get_running_loop().time() + self.config.server.drain_seconds
        while self.server.admission.is_busy and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(DRAIN_CHECK_S)

    async def close(self) -> None:
        if self._loading is not None:
            self._loading.cancel()
            await asyncio.gather(self._loading, return_exceptions=True)
        await self.server.close()
        for engine in (self._hears, self._speaks):
            await engine.close()
            await engine.engine.close()


GATEWAY: web.AppKey[Gateway] = web.AppKey("gateway", Gateway)


async def healthz(request: web.Request) -> web.Response:
    server = request.app[SPEECH]
    lanes = server.admission.lanes
    state = {
        "status": "draining" if server.draining else "ok",
        "running": {kind: len(lane.running) for kind, lane in lanes.items()},
        "waiting": {kind: len(lane.waiting) for kind, lane in lanes.items()},
        "streams": {kind: len(lane.streams) for kind, lane in lanes.items()},
    }
    return web.json_response(state)


async def readyz(request: web.Request) -> web.Response:
    gateway = request.app.get(GATEWAY)
    server = request.app[SPEECH]
    ready = (gateway is None or gateway.ready) and not server.draining
    state = {"ready": ready, "asr": server.asr_name, "tts": server.tts_name}
    return web.json_response(state, status=200 if ready else 503)


async def metrics(request: web.Request) -> web.Response:
    body = generate_latest(request.app[SPEECH].metrics.registry)
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})


def application(server: SpeechServer, access: AccessPolicy) -> web.Application:
    app = web.Application(middlewares=[guard], client_max_size=MAX_BODY_BYTES)
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", metrics)
    mount(app, server)
    open_door(app, lambda: access)
    return app


@asynccontextmanager
async def opened(config: Config, addresses: Sequence[Address]) -> AsyncIterator[Gateway]:
    """A gateway that answers there. Raises EngineError, OSError."""
    local = all(address.local for address in addresses)
    async with local_workers(config, gateway=True) as with_workers:
        gateway = Gateway(with_workers)
        gateway.know(config)
        gateway.access = config.access(local=local, gateway=True)
        app = application(gateway.server, gateway.access)
        app[GATEWAY], app[ACCESS] = gateway, lambda: gateway.access
        if not local and not gateway.access.keys:
            logger.warning("everybody who reaches this server may use it: see [server] api_key")
        runner = Runner(app, shutdown_timeout=CLOSE_S, lingering_time=LINGER_S)
        await runner.setup()
        try:
            for address in addresses:
                where = await listener(address)(runner)
                gateway.listening.append(where)
                logger.bind(listening=where).info("speech for programs at {}", where)
            gateway.start()
            yield gateway
        finally:
            for stream in gateway.server.streams:
                stream.stop()
            await runner.cleanup()
            await gateway.close()


async def serve(
    config: Config, listen: Sequence[str] = (), read: Callable[[], Config] | None = None
) -> None:
    """Run until SIGTERM or SIGINT; then drain. A second signal ends at once. SIGHUP reads the keys
    again. Raises ValueError for addresses that are none, EngineError, OSError."""
    addresses = [Address.parse(text) for text in listen or (LISTEN,)]
    stop = Stop()
    stop.on_signals()
    async with opened(config, addresses) as gateway:
        if read is not None:
            stop.reload = partial(gateway.reload, read)
        spare_what_is_loaded()
        give_back_freed()
        let_go_of_code()
        await stop.drain.wait()
        waits = [asyncio.create_task(wait) for wait in (gateway.drain(), stop.end.wait())]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
