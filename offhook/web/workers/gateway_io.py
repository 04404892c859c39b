"""`offhook speech`: the speech API alone, with its engines in separate processes.

A gateway process has no engine, codec or model, so it is small while idle. Local workers are
started by the first request, stop when unused for a while, and are restarted when they crash.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from loguru import logger
from prometheus_client import CollectorRegistry, ProcessCollector

from offhook.media.memory_io import give_back_memory
from offhook.media.tasks_io import end_all
from offhook.pipeline.speech.engine_spec import Kind
from offhook.pipeline.speech.engines import spec_of
from offhook.web.config.config import Config, ConfigError
from offhook.web.config.engines import Asr, Tts
from offhook.web.http.access import AccessPolicy
from offhook.web.http.listening_io import Address, listener
from offhook.web.http.loop_io import freeze_loaded_objects
from offhook.web.http.stop_io import Stop
from offhook.web.speech_api.server_io import SpeechServer
from offhook.web.workers.engines.abilities_io import check_engines, fault_of_lexicon
from offhook.web.workers.engines.engines_io import usual_model
from offhook.web.workers.engines.remote_engine_io import RemoteEngine, until_loaded
from offhook.web.workers.engines.remote_engines_io import (
    elsewhere_at,
    recognizer_of,
    synthesizer_of,
)
from offhook.web.workers.engines.worker_metrics import WorkerCollector
from offhook.web.workers.local_worker_io import local_workers, with_choices
from offhook.web.workers.routes_io import listening
from offhook.web.workers.wyoming.door_io import wyoming_clients

LISTEN = "127.0.0.1:7862"
"""Default address."""
REST_S = 60.0
"""Time in s without a request or stream after which the memory that they took is given back."""


class Gateway(SpeechServer):
    """A speech server whose two engines run in other processes, local or remote."""

    def __init__(self, config: Config) -> None:
        asr, tts = config.asr, config.tts
        self._hears = elsewhere_at(asr, recognizer_of(asr))
        self._speaks = elsewhere_at(tts, synthesizer_of(tts))
        preloads = (self._hears, asr.preload), (self._speaks, tts.preload)
        self._awaited: list[RemoteEngine[Any]] = [
            e for e, preload in preloads if preload is not False
        ]
        """Engines that must have loaded before the gateway is ready."""
        self._loading: asyncio.Task[Any] | None = None
        self._resting: asyncio.Task[None] | None = None
        self.ready = not self._awaited
        self.access = AccessPolicy()
        self.listening: list[str] = []
        """Addresses that it listens on."""
        self.wyoming = ""
        """Address for Wyoming clients; empty: none."""
        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._workers = WorkerCollector(self._hears.engine, self._speaks.engine)
        registry.register(self._workers)
        handles = self._hears.handle(), self._speaks.handle()
        super().__init__(
            *(config.speech, *handles, registry, tts.audio_cache),
            audio_cache_mb=tts.audio_cache_mb,
        )
        self.admission.shares = config.server.shares
        self.lexicon = tts.pronunciations

    def know(self, config: Config) -> None:
        """Sets the names of the engines that local workers will run."""
        engines: tuple[tuple[Kind, RemoteEngine[Any], Asr | Tts], ...] = (
            ("asr", self._hears, config.asr),
            ("tts", self._speaks, config.tts),
        )
        for kind, elsewhere, settings in engines:
            if not settings.url and not spec_of(kind, settings.engine).means:
                elsewhere.name = settings.engine
                elsewhere.model = settings.model or usual_model(kind, settings.engine)

    def health(self) -> dict[str, Any]:
        workers = self._workers.health()
        return {**super().health(), **({"workers": workers} if workers else {})}

    def start(self) -> None:
        self._resting = asyncio.create_task(self._rest_after_use(), name="rest")
        if self._awaited:
            self._loading = asyncio.create_task(self._wait_for_workers(), name="speech workers")

    async def _rest_after_use(self) -> None:
        rested = time.monotonic()
        while True:
            await asyncio.sleep(REST_S)
            now = time.monotonic()
            if not self.is_used and rested < self.admission.idle_since < now - REST_S:
                give_back_memory()
                rested = now

    async def _wait_for_workers(self) -> None:
        await asyncio.gather(*(until_loaded(engine.get) for engine in self._awaited))
        self.ready = True
        logger.info("ready: {}", ", ".join(f"{e.name} {e.model}".strip() for e in self._awaited))

    def reload(self, read: Callable[[], Config]) -> None:
        """Applies keys, names and lexicon of the current configuration; others need a restart."""
        try:
            config = read()
            check_engines(config)
        except ConfigError as error:
            logger.error("the configuration is unchanged: {}", str(error).replace("\n", "; "))
            return
        self.access = config.access(local=self.access.local, gateway=True)
        self.use_keys(config.speech, config.server.shares)
        self.lexicon = config.tts.pronunciations
        logger.info("the keys and the lexicon were read again")

    async def close(self) -> None:
        await end_all(lambda: filter(None, (self._loading, self._resting)))
        await super().close()
        for engine in (self._hears, self._speaks):
            await engine.close()
            await engine.engine.close()


@asynccontextmanager
async def opened(config: Config, addresses: Sequence[Address]) -> AsyncIterator[Gateway]:
    """A gateway that listens at the addresses. Raises ConfigError, EngineError, OSError."""
    check_engines(config)
    if fault := fault_of_lexicon(config):
        logger.warning("{}", fault)
    local = all(address.local for address in addresses)
    config = await asyncio.to_thread(with_choices, config)
    async with local_workers(config, gateway=True) as with_workers:
        gateway = Gateway(with_workers)
        gateway.know(config)
        gateway.access = config.access(local=local, gateway=True)
        if not local and not gateway.access.keys:
            logger.warning("anyone who can reach this server may use it: see [server] api_key")
        listeners = [listener(address) for address in addresses]
        async with listening(gateway, lambda: gateway.access, listeners) as gateway.listening:
            for where in gateway.listening:
                logger.bind(listening=where).info("speech for programs at {}", where)
            gateway.start()
            async with wyoming_clients(gateway, config.speech) as gateway.wyoming:
                yield gateway


async def serve(
    config: Config, listen: Sequence[str] = (), read: Callable[[], Config] | None = None
) -> None:
    """Runs until SIGTERM or SIGINT, then drains; a second signal ends at once. SIGHUP reloads the
    keys. Raises ValueError for invalid addresses, EngineError, OSError."""
    addresses = [Address.parse(text) for text in listen or (LISTEN,)]
    stop = Stop()
    stop.on_signals()
    async with opened(config, addresses) as gateway:
        if read is not None:
            stop.reload = partial(gateway.reload, read)
        freeze_loaded_objects()
        give_back_memory()
        await stop.until_drained(partial(gateway.drain, config.server.drain_seconds))
