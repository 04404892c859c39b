"""Brings in the engines of `auto` and `small` while calls go on with the embedded ones.

Each edge process watches the worker, which all of them share, by its /healthz; looking at a worker
that does not run is what starts it. A call keeps the engines that it began with.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Generic, TypeVar

from loguru import logger

from offhook.pipeline.speech.engines import spec_of
from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.recognizer import Recognizer, StreamOptions
from offhook.pipeline.speech.remote.recognizer_io import RemoteRecognizer
from offhook.pipeline.speech.remote.synthesizer_io import RemoteSynthesizer
from offhook.pipeline.speech.remote.worker_client_io import LOST, WorkerClient
from offhook.pipeline.speech.remote.worker_list_io import read_up_to
from offhook.pipeline.speech.streams.retry import RetryPolicy
from offhook.pipeline.speech.synthesizer import Synthesizer, VoiceOptions
from offhook.web.speech_api.server_io import EngineHandle
from offhook.web.workers.engines.auto_state import (
    SILENT,
    TABLE,
    LoadState,
    Look,
    News,
    Sign,
    look_of,
)
from offhook.web.workers.engines.choice import AutoWorker
from offhook.web.workers.engines.remote_engine_io import languages_of

LOOK_S = 1.0
"""Interval in s at which the worker is looked at."""
ANSWER_S = 3.0
"""Time limit in s for an answer to GET /healthz; then the worker counts as silent, and calls use
the stand-in."""
START_S = 30.0
"""Time limit in s for a loaded worker to open a first stream; then it counts as silent, and calls
use the stand-in."""
REFUSED_S = 5.0
"""Time in s after which a worker that refuses our options is asked again; doubled each time up to
REFUSED_MAX_S."""
REFUSED_MAX_S = 600.0
"""Maximum time in s after which a worker that refuses our options is asked again; it is not doubled
beyond that."""
MAX_STATE_BYTES = 1 << 14
"""Maximum size of a worker's state that is read; a worker with a longer one counts as silent."""
VERB = {"asr": "hear", "tts": "speak"}
E = TypeVar("E", Recognizer, Synthesizer)


class AutoEngine(Generic[E]):
    """An engine that takes the new calls once its worker is ready. `start` opens and closes a first
    stream with the options of calls; it raises EngineError. `in_use` returns the name of the engine
    of new calls."""

    def __init__(
        self,
        worker: AutoWorker,
        engine: E,
        start: Callable[[], Awaitable[None]],
        in_use: Callable[[], str],
    ) -> None:
        self.worker = worker
        self.state = LoadState.OFFERED
        self.look = SILENT
        """What was seen last."""
        self._engine: E = engine
        self._start = start
        self._in_use = in_use
        self._client = WorkerClient(worker.kind, worker.url, "")
        self._languages: tuple[str, ...] = ()
        """Those that the worker recognizes."""
        self._refused = RetryPolicy(first_s=REFUSED_S, max_s=REFUSED_MAX_S)
        self._watching: asyncio.Task[None] | None = None
        self._offline_told = False
        """Whether the log says that there is no network; further attempts without are not told."""

    @property
    def engine(self) -> E | None:
        """Returns the engine for a new call, None while that is the embedded one."""
        return self._engine if self.state is LoadState.READY else None

    def handle(self, stand_in: EngineHandle[E]) -> EngineHandle[E]:
        """Wraps the engine in use for the speech API."""
        choice = self.worker.choice

        async def get() -> E:
            return self.engine or await stand_in.get()

        return EngineHandle(
            get,
            lambda: stand_in.name() if self.engine is None else choice.engine,
            lambda: stand_in.model() if self.engine is None else choice.model,
            lambda: stand_in.languages() if self.engine is None else self._languages,
        )

    def want(self) -> None:
        """Starts the worker, and keeps it."""
        self.worker.wanted = True
        if self._watching is None:
            self._see(Look(Sign.WANTED))
            name = f"{self.worker.kind} of auto"
            self._watching = asyncio.create_task(self._watch(), name=name)

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await self._client.close()
        await self._engine.close()

    def health(self) -> dict[str, Any]:
        """Returns the state as anybody may read it."""
        choice = self.worker.choice
        return {
            "state": self.state,
            "uses": self._in_use(),
            "engine": choice.engine,
            "model": choice.model,
            "fraction": round(self.look.fraction, 3),
            "doing": self.look.doing,
            "retry_s": self.look.retry_s,
        }

    def report(self) -> dict[str, Any]:
        """Returns the state as the operator sees it."""
        choice, published = self.worker.choice, self.worker.choice.published
        return {
            **self.health(),
            "title": spec_of(self.worker.kind, choice.engine).title,
            "why": choice.why,
            "fault": self.look.fault,
            "offline": self.look.offline,
            "bytes": published.bytes if published is not None else None,
            "licence": published.licence if published is not None else "",
        }

    # --- the worker ---

    async def _watch(self) -> None:
        while True:
            look = await self._look()
            if look.sign is Sign.SERVES and self.state is not LoadState.READY:
                look = await self._try_engine(look)
            self._see(look)
            await asyncio.sleep(LOOK_S)

    async def _look(self) -> Look:
        try:
            async with asyncio.timeout(ANSWER_S):
                answer = await self._client.ask("GET", "/healthz")
                async with answer:
                    told = await read_up_to(answer, MAX_STATE_BYTES)
                    return look_of(answer.status, json.loads(told))
        except (*LOST, ValueError, TypeError, RecursionError):
            return SILENT

    async def _try_engine(self, look: Look) -> Look:
        try:
            async with asyncio.timeout(START_S):
                await self._start()
                _, state = await self._client.readiness()
                self._languages = languages_of(state)
        except TimeoutError:
            return SILENT
        except EngineError as error:
            pause = self._refused.next_s()
            logger.error("auto: {}", error)
            self._see(replace(look, sign=Sign.FAILS, fault=str(error), retry_s=pause))
            await asyncio.sleep(pause)
            return self.look
        self._refused.reset()
        return look

    def _see(self, look: Look) -> None:
        before = self.state
        self.state, news = TABLE[before, look.sign]
        # Nothing is seen of a worker between two attempts; the reason of the last one still holds.
        if look.sign is not Sign.SILENT or self.state is not before:
            self.look = look
        self._log(news)

    def _log(self, news: News) -> None:
        kind, choice, look = self.worker.kind, self.worker.choice, self.look
        if self._offline_told and (look.offline or news is News.BEGUN):
            return
        if news in (News.MOVED, News.FAILED):
            self._offline_told = look.offline
        name, verb = f"{choice.engine} ({choice.model})", VERB[self.worker.kind]
        line = logger.bind(engine=choice.engine, kind=kind, state=str(self.state))
        match news:
            case News.BEGUN:
                line.info("auto: {} is {}: {}", name, self.state, look.doing or choice.why)
            case News.MOVED:
                line.info("auto: new calls {} with {}", verb, name)
            case News.LOST:
                line.warning(
                    "auto: {} is away: until it is back, new calls {} with {}",
                    *(name, verb, self._in_use()),
                )
            case News.FAILED if look.offline:
                meanwhile = self.worker.meanwhile
                line.log(
                    "WARNING" if meanwhile else "INFO",
                    "auto: {} cannot be downloaded without a network: calls {} with {}, and it is "
                    "tried again now and then{}",
                    *(name, verb, self._in_use(), meanwhile and f". {meanwhile}"),
                )
            case News.FAILED:
                line.warning(
                    "auto: {} has failed; calls {} with {}, and it is tried again in {:g} s",
                    *(name, verb, self._in_use(), look.retry_s),
                )


def auto_recognizer(
    worker: AutoWorker, options: StreamOptions, in_use: Callable[[], str]
) -> tuple[AutoEngine[Recognizer], RemoteRecognizer]:
    """Returns the engine of a worker for ASR, and its client."""
    client = RemoteRecognizer(worker.url, name=str(worker.choice.engine))
    return AutoEngine[Recognizer](worker, client, lambda: client.start(options), in_use), client


def auto_synthesizer(
    worker: AutoWorker, options: VoiceOptions, in_use: Callable[[], str]
) -> AutoEngine[Synthesizer]:
    """Returns the engine of a worker for TTS."""
    client = RemoteSynthesizer(worker.url, name=str(worker.choice.engine))
    return AutoEngine[Synthesizer](worker, client, lambda: client.start(options), in_use)
