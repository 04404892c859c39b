"""A worker: a speech server with one engine in a process of its own.

It serves requests while the model loads: /healthz reports the progress, and streams wait for
`ready`.
"""

import asyncio
import math
import os
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, TypeVar, cast

from aiohttp import web
from loguru import logger

from offhook.media.tasks_io import first_of
from offhook.pipeline.engines.shared.capacity import open_streams
from offhook.pipeline.engines.shared.tts_models import CACHE_MB
from offhook.pipeline.speech.errors import EngineFailed
from offhook.pipeline.speech.recognizer import Progress, Recognizer, TurnAnswers
from offhook.pipeline.speech.streams.speech_gate_io import GatedRecognizer
from offhook.pipeline.speech.synthesizer import Synthesizer
from offhook.web.config.programs import Speech
from offhook.web.http.access import AccessPolicy, Key, Role
from offhook.web.http.listening_io import Listen
from offhook.web.http.loop_io import YOUNG_OF_STREAMS, freeze_loaded_objects, run
from offhook.web.http.stop_io import Stop
from offhook.web.speech_api.admission import Kind, Ticket
from offhook.web.speech_api.reply_cache_io import Keep
from offhook.web.speech_api.server_io import EngineHandle, SpeechServer, limits_of
from offhook.web.speech_api.sockets.engine_metrics import AsrMetrics, TtsMetrics
from offhook.web.workers.fronts_io import Fronts, ServesFar, fronts_for
from offhook.web.workers.routes_io import listening

USUAL_STREAMS = 64
"""Maximum streams in use where neither the settings nor the engine has a number; further ones are
refused with the error `full`."""
LOADING_STEP = 0.1
"""Interval of progress log lines while loading."""
IDLE_CHECK_S = 3600.0
STREAMS_PER_USE = 4
"""Connections accepted per voice in use, since clients keep idle ones."""
BROKEN = 2
"""Exit status if the engine fails after it has loaded; a new process may succeed."""


E = TypeVar("E", bound=Recognizer | Synthesizer)


@dataclass(frozen=True)
class WorkerSettings:
    engine: str
    model: str
    max_streams: int = 0
    """Maximum streams in use; 0: as many as the engine follows in real time."""
    idle_seconds: float = 0
    """Time in s without a request or stream in use after which the worker exits; 0: never."""
    drain_seconds: float = 30
    api_key: str = field(default="", repr=False)
    """If set, clients must send it as a bearer token."""
    local: bool = True
    """Whether only this machine can connect."""
    audio_cache: str = ""
    """URL of a Redis cache of the replies that are sent over HTTP; empty: they are cached in
    memory; "off": they are not."""
    audio_cache_mb: int = CACHE_MB
    """Size of that cache in memory, in MB."""
    metrics: Literal["open", "key"] = "open"
    """Who may read /metrics, as in [server]."""
    fronts: int | None = None
    """Processes with its WebSockets and voices; None: by its streams and the cores of the
    machine."""
    ports: Sequence[int] = ()
    """Ports of this worker and its neighbours on other GPUs, listed at /workers."""

    def access(self) -> AccessPolicy:
        return AccessPolicy(
            local=self.local,
            keys=(Key("server", self.api_key),) if self.api_key else (),
            metrics=Role.PUBLIC if self.metrics == "open" else Role.SPEECH,
            key_setting="--api-key",
            names_setting="",
            origins_setting="",
        )


class Worker(SpeechServer, Generic[E]):
    """A speech server whose engine loads in the background.

    `make` builds the engine in a thread, since imports can take seconds. `metrics` determines the
    kind of engine.
    """

    engine_metrics: AsrMetrics | TtsMetrics
    loading_s = None

    def __init__(
        self,
        settings: WorkerSettings,
        make: Callable[[Progress], E],
        metrics: AsrMetrics | TtsMetrics,
    ) -> None:
        self.of_worker = settings
        self.engine_metrics = metrics
        self.kind: Kind = "transcription" if metrics.kind == "asr" else "speech"
        self.engine: E | None = None
        """None until it is loaded."""
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Completed with an EngineFailed, it ends the worker."""
        self.fronts: Fronts | None = None
        """Those that take its WebSockets and requests for speech, once it has loaded; None: it
        takes them itself."""
        self.doing = "starting"
        self.fraction = 0.0
        self._make = make
        self._loaded_at = 0.0
        self.loading = asyncio.create_task(self._load(), name="load")
        handle: EngineHandle[Any] = EngineHandle(
            lambda: asyncio.shield(self.loading), lambda: settings.engine, lambda: settings.model
        )
        self.max_streams = most = settings.max_streams or USUAL_STREAMS
        """Streams in use at most: what the settings say, and no more than the engine follows."""
        speech = Speech(streams=most, speeches=most)
        super().__init__(
            speech,
            handle if self.kind == "transcription" else None,
            handle if self.kind == "speech" else None,
            metrics.registry,
            settings.audio_cache,
            replace(
                limits_of(speech),
                idle_streams=self._open_for(most) - most,
                streams_setting="--max-streams",
            ),
            settings.audio_cache_mb,
        )
        self.ports = settings.ports
        metrics.streams.set_function(lambda: len(self.busy))
        metrics.max_streams.set_function(lambda: self.max_streams)

    def progress(self, fraction: float, doing: str) -> None:
        """Progress callback of the engine, called from any thread while loading."""
        if doing != self.doing or fraction - self.fraction >= LOADING_STEP:
            logger.info("loading {}: {:.0%}, {}", self.of_worker.engine, fraction, doing)
            self.fraction, self.doing = fraction, doing

    async def _load(self) -> E:
        """Raises EngineError."""
        began = time.monotonic()
        engine = await asyncio.to_thread(self._make, self.progress)
        await engine.start()
        self._admit(engine)
        await self._start_fronts(engine)
        freeze_loaded_objects(YOUNG_OF_STREAMS)
        self.engine = engine
        self.engine_metrics.loaded.set(1)
        self.engine_metrics.of_engine.engine = engine
        self._loaded_at = time.monotonic()
        logger.info("{} loaded in {:.1f} s", self.of_worker.engine, self._loaded_at - began)
        return engine

    async def _start_fronts(self, engine: E) -> None:
        number = self.of_worker.fronts
        if number is None:
            number = fronts_for(self.kind, self.max_streams)
        inner = engine.engine if isinstance(engine, GatedRecognizer) else engine
        if number and isinstance(inner, ServesFar):
            self.fronts = Fronts(self, self.kind, inner, self.of_worker)
            await self.fronts.start(number)

    def _admit(self, engine: E) -> None:
        """Limits the streams in use to those that the engine follows, and the open ones to those
        that it has memory for, as far as it knows."""
        followed = engine.max_streams
        if followed is None:
            return
        wanted = self.of_worker.max_streams
        as_wanted = 0 < wanted <= followed
        self.max_streams = most = wanted if as_wanted else followed
        hears = self._as_recognizer(engine)
        fit = (hears and hears.max_open_streams) or self._open_for(most)
        self.admission.limit(
            replace(
                limits_of(Speech(streams=most, speeches=most)),
                idle_streams=max(0, fit - most),
                streams_setting="--max-streams" if as_wanted else "the number of workers",
            )
        )

    def _as_recognizer(self, engine: E | None) -> Recognizer | None:
        """Returns the engine if it recognizes."""
        return cast(Recognizer, engine) if self.kind == "transcription" else None

    def _open_for(self, in_use: int) -> int:
        """Returns how many streams may be open of which so many are in use at once."""
        callers = self.kind == "transcription"
        return open_streams(in_use) if callers else STREAMS_PER_USE * in_use

    async def close(self) -> None:
        self.loading.cancel()
        await asyncio.gather(self.loading, return_exceptions=True)
        await super().close()
        if self.fronts is not None:
            await self.fronts.close()
        if self.engine is not None:
            await self.engine.close()

    @property
    def busy(self) -> set[Ticket]:
        """Returns the streams in use."""
        return self.admission.lanes[self.kind].streams

    async def idle(self) -> None:
        """Returns after `idle_seconds` without use of the loaded engine; with 0, never."""
        limit = self.of_worker.idle_seconds or math.inf
        await asyncio.wait((self.loading,))
        while (unused := self._unused_s()) < limit:
            await asyncio.sleep(min(limit - unused, IDLE_CHECK_S))

    def _unused_s(self) -> float:
        if self.is_used:
            return 0.0
        return time.monotonic() - max(self._loaded_at, self.admission.idle_since)

    @property
    def _open_streams(self) -> int:
        lane = self.admission.lanes[self.kind]
        return len(lane.streams) + len(lane.idle)

    @property
    def turns(self) -> TurnAnswers | None:
        """What answers whether speakers' turns are over; None if nothing does, or not yet."""
        hears = self._as_recognizer(self.engine)
        return None if hears is None else hears.turns

    async def handed_over(self, request: web.Request) -> web.StreamResponse | None:
        return None if self.fronts is None else await self.fronts.serve(request)

    async def spoken_elsewhere(
        self, request: web.Request, body: bytes, keep: Keep | None
    ) -> web.StreamResponse | None:
        return None if self.fronts is None else await self.fronts.speak(request, body, keep)

    def begin_drain(self) -> None:
        super().begin_drain()
        if self.fronts is not None:
            self.fronts.drain()

    def stop_streams(self) -> None:
        super().stop_streams()
        if self.fronts is not None:
            self.fronts.stop()

    def engine_broke(self, error: EngineFailed) -> None:
        self.draining = True
        if not self.broken.done():
            self.broken.set_exception(error)

    def health(self) -> dict[str, Any]:
        if self.engine is None:
            return {"status": "loading", "fraction": self.fraction, "doing": self.doing}
        return {"status": "draining" if self.draining else "ok", **self.engine_metrics.health()}

    def readiness(self) -> dict[str, Any]:
        return {
            "ready": self.engine is not None and not self.draining,
            "engine": self.of_worker.engine,
            "model": self.of_worker.model,
            "languages": list(self.engine.languages if self.engine is not None else ()),
            "turns": self.turns is not None,
            "streams": len(self.busy),
            "max_streams": self.max_streams,
            "open_streams": self._open_streams,
            "max_open_streams": self.admission.max_open,
            **self.identity(),
        }


async def serve(worker: Worker[Any], listen: Listen, stop: Stop) -> None:
    """Runs until `stop` or until the worker has been idle for long enough. Raises EngineError if
    the engine does not load, EngineFailed if it fails later."""
    settings = worker.of_worker
    access = settings.access()
    async with listening(worker, lambda: access, [listen]) as (where,):
        logger.bind(listening=where).info("{} at {}", settings.engine, where)
        await first_of(_broken(worker), _until_drained(worker, stop))


async def _broken(worker: Worker[Any]) -> None:
    """Waits for a failure. Raises EngineError if the engine does not load, EngineFailed if it fails
    later."""
    await asyncio.shield(worker.loading)
    await asyncio.shield(worker.broken)


async def _until_drained(worker: Worker[Any], stop: Stop) -> None:
    await first_of(stop.drain.wait(), worker.idle())
    await first_of(worker.drain(worker.of_worker.drain_seconds), stop.end.wait())


def run_to_end(serving: Coroutine[Any, Any, None]) -> None:
    """Runs `serve`; if the engine fails, the process exits."""
    try:
        run(serving)
    except EngineFailed as error:
        logger.error("{}", error)
        os._exit(BROKEN)  # after an error CUDA may be unable to clean up
