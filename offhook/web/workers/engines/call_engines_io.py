"""The speech engines of an edge: in its process, on workers, or those of `auto` and `small`, which
take over from the embedded ones."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from loguru import logger

from offhook.pipeline.conversation.call_io import Engines
from offhook.pipeline.conversation.turns.user_turn_io import TurnDetection
from offhook.pipeline.speech.engine_spec import Kind
from offhook.pipeline.speech.engines import stand_in
from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.recognizer import Recognizer
from offhook.pipeline.speech.remote.recognizer_io import RemoteRecognizer
from offhook.pipeline.speech.synthesizer import Synthesizer, VoiceOptions
from offhook.pipeline.speech.vad.smart_turn_io import SharedTurnModel
from offhook.pipeline.speech.vad.turn_model_io import SMART_TURN, open_turn_model
from offhook.pipeline.speech.vad.vad_io import VadBatch
from offhook.web.config.config import Config, ConfigError
from offhook.web.http.metrics import EngineInUse, Metrics
from offhook.web.speech_api.server_io import EngineHandle
from offhook.web.workers.engines.abilities_io import (
    check_engines,
    fault_of_lexicon,
    fault_on_phones,
    faults_of,
)
from offhook.web.workers.engines.auto_io import AutoEngine, auto_recognizer, auto_synthesizer
from offhook.web.workers.engines.auto_state import LoadState
from offhook.web.workers.engines.choice import AutoWorker
from offhook.web.workers.engines.engines_io import (
    is_embedded,
    open_recognizer,
    open_synthesizer,
    usual_model,
)
from offhook.web.workers.engines.remote_engine_io import RemoteEngine, here, until_loaded
from offhook.web.workers.engines.remote_engines_io import (
    elsewhere_at,
    recognizer_of,
    started,
    synthesizer_of,
)
from offhook.web.workers.engines.worker_metrics import WorkerCollector

E = TypeVar("E")
Brought = TypeVar("Brought", Recognizer, Synthesizer)


class CallEngines:
    """The engines of the calls of one process, and of its speech API.

    `auto`: workers of the engines that take over from the embedded ones, the best of a kind first.
    `open` comes first.
    """

    def __init__(self, config: Config, metrics: Metrics, auto: Sequence[AutoWorker] = ()) -> None:
        self._config, self._metrics, self._auto_workers = config, metrics, auto
        self.configured: Engines
        """Those of the configuration, without `auto`."""
        self._recognizers: list[AutoEngine[Recognizer]] = []
        self._synthesizers: list[AutoEngine[Synthesizer]] = []
        self._workers = WorkerCollector()
        self._elsewhere: list[RemoteEngine[Any]] = []
        """Remote engines as the speech API uses them."""
        self._awaited: list[Callable[[], Awaitable[str]]] = []
        """Functions that wait for required workers; each returns its engine's name."""

    async def open(self) -> str:
        """Loads and warms up the engines of this process, and returns a description. Raises
        EngineError, ConfigError."""
        config = self._config
        check_engines(config)
        if fault := fault_of_lexicon(config):
            logger.warning("{}", fault)
        turn_detection = TurnDetection(
            VadBatch(),
            await asyncio.to_thread(_open_turn_model, config.turn.model),
            config.turn,
            config.asr.enhancement(),
            ask_engine=config.turn.model == SMART_TURN,
        )
        recognizer = await self._open_recognizer()
        synthesizer, speaking = await self._open_synthesizer()
        hearing = config.asr.options()
        if config.asr.automatic and faults_of(config, "asr", stand_in("asr").name):
            hearing = replace(hearing, language=None)
        self.configured = Engines(turn_detection, recognizer, synthesizer, hearing, speaking)
        for worker in self._auto_workers:
            self._open_auto(worker)
        stays = not any(w.kind == "asr" and w.wanted for w in self._auto_workers)
        if stays and (fault := fault_on_phones(config, recognizer.name)):
            logger.warning("{}", fault)
        self._metrics.add_engines(self._in_use)
        self._metrics.add_turn_answers(turn_detection.answers)
        self._workers = WorkerCollector(recognizer, synthesizer)
        self._metrics.registry.register(self._workers)
        return f"hears with {recognizer.name}, speaks with {synthesizer.name}"

    @property
    def awaits_workers(self) -> bool:
        """Returns whether the engines are ready only after `wait`."""
        return bool(self._awaited)

    async def wait(self) -> None:
        """Waits for required workers."""
        names = await asyncio.gather(*map(until_loaded, self._awaited))
        logger.info("ready: the speech worker runs {}", ", ".join(names))

    async def close(self) -> None:
        for engine in (*self._elsewhere, *self.auto):
            await engine.close()
        await self.configured.close()

    # --- which are in use ---

    def of_new_calls(self) -> Engines:
        """Returns the engines of a call that begins now."""
        engines, config = self.configured, self._config
        if (recognizer := _best(self._recognizers)) is not None:
            hearing = config.asr.options()
            engines = replace(engines, recognizer=recognizer, hearing=hearing)
        if (synthesizer := _best(self._synthesizers)) is not None:
            speaking = config.tts.options()
            engines = replace(engines, synthesizer=synthesizer, speaking=speaking)
        return engines

    def names(self) -> dict[Kind, str]:
        """Returns the names of the engines of new calls, without addresses."""
        engines = self.of_new_calls()
        return {
            "asr": public_name(engines.recognizer.name),
            "tts": public_name(engines.synthesizer.name),
        }

    def for_programs(self) -> tuple[EngineHandle[Recognizer], EngineHandle[Synthesizer]]:
        """Returns the engines as the speech API uses them."""
        engines, asr, tts = self.configured, self._config.asr, self._config.tts
        hearing = self._here("asr")
        hears = here(engines.recognizer, hearing, usual_model("asr", hearing))
        for recognizer in reversed(self._recognizers):
            hears = recognizer.handle(hears)
        speaks = here(engines.synthesizer, engines.synthesizer.name, "")
        for synthesizer in reversed(self._synthesizers):
            speaks = synthesizer.handle(speaks)
        if asr.url:
            hears = self._elsewhere_at(elsewhere_at(asr, engines.recognizer))
        if tts.url:
            speaks = self._elsewhere_at(elsewhere_at(tts, engines.synthesizer))
        return hears, speaks

    def _elsewhere_at(self, engine: RemoteEngine[E]) -> EngineHandle[E]:
        self._elsewhere.append(engine)
        return engine.handle()

    # --- auto ---

    @property
    def auto(self) -> list[AutoEngine[Recognizer] | AutoEngine[Synthesizer]]:
        """Returns the engines that take over, or may, from the embedded ones, the best of a kind
        first."""
        return [*self._recognizers, *self._synthesizers]

    def start_auto(self) -> None:
        """Starts those of `auto` that the configuration wants."""
        for engine in self.auto:
            if engine.worker.wanted:
                engine.want()

    def report(self) -> dict[str, Any]:
        """Returns the states of the engines of `auto` by kind, for the operator. Of several of a
        kind, that is the one on its way, or else the best."""
        return {kind: engine.report() for kind, engine in self._foremost().items()}

    def health(self) -> dict[str, Any]:
        """Returns the states of the best engines of `auto` that are wanted, by kind, for
        everyone."""
        wanted = [engine for engine in self.auto if engine.worker.wanted]
        return {engine.worker.kind: engine.health() for engine in reversed(wanted)}

    def _foremost(self) -> dict[Kind, AutoEngine[Any]]:
        foremost: dict[Kind, AutoEngine[Any]] = {}
        for engine in self.auto:
            kind = engine.worker.kind
            on_its_way = engine.state not in (LoadState.OFFERED, LoadState.READY)
            if kind not in foremost or (on_its_way and foremost[kind].state is LoadState.OFFERED):
                foremost[kind] = engine
        return foremost

    def worker_counts(self) -> dict[str, dict[str, int]]:
        """Returns the number of workers in each state, by kind, where there are several."""
        return self._workers.health()

    def _open_auto(self, worker: AutoWorker) -> None:
        config = self._config

        def in_use() -> str:
            return self.names()[worker.kind]

        if worker.kind == "asr":
            recognizer, remote = auto_recognizer(worker, config.asr.options(), in_use)
            self._recognizers.append(recognizer)
            self._metrics.add_recognizer_losses(remote.losses)
        else:
            options = config.tts.options()
            self._synthesizers.append(auto_synthesizer(worker, options, in_use))

    def _in_use(self) -> list[EngineInUse]:
        of_auto, used = self._foremost(), []
        for hears_or_speaks, name in self.names().items():
            auto = of_auto.get(hears_or_speaks)
            state = (str(auto.state), auto.look.fraction) if auto is not None else ()
            used.append(EngineInUse(hears_or_speaks, name, *state))
        return used

    # --- opening those of the configuration ---

    def _here(self, kind: Kind) -> str:
        """Returns the name of the engine in this process, where none is in a worker."""
        section = self._config.asr if kind == "asr" else self._config.tts
        return stand_in(kind).name if section.automatic else section.engine

    async def _open_recognizer(self) -> Recognizer:
        """Returns a local recognizer, or the client of the worker at the configured URL."""
        asr = self._config.asr
        if not asr.url:
            if not is_embedded("asr", asr.engine):
                raise ConfigError("asr.url: this engine runs in a worker")
            models = replace(asr.models(self._config.engines.hub), processes=asr.processes)
            recognizer = open_recognizer(self._here("asr"), models)
            self._metrics.add_recognizer_losses(recognizer.losses)
            await recognizer.start()
            return recognizer
        remote = recognizer_of(asr)
        if isinstance(remote, RemoteRecognizer):
            self._metrics.add_recognizer_losses(remote.losses)
        if asr.preload is not False:
            self._awaited.append(partial(started, remote, asr))
        return remote

    async def _open_synthesizer(self) -> tuple[Synthesizer, VoiceOptions]:
        """Returns a local voice, or the client of the worker at the configured URL, and the options
        of its replies."""
        tts = self._config.tts
        options = tts.options()
        if not tts.url:
            if not is_embedded("tts", tts.engine):
                raise ConfigError("tts.url: this engine runs in a worker")
            engine = self._here("tts")
            models = tts.models(self._config.engines.hub)
            synthesizer = open_synthesizer(engine, models, language=tts.language)
            await synthesizer.start()
            if tts.automatic and faults_of(self._config, "tts", engine):
                options = VoiceOptions(speed=tts.speed)  # the rest is for the engine to come
            return synthesizer, options
        remote = synthesizer_of(tts)
        if tts.preload is not False:
            self._awaited.append(partial(started, remote, tts))
        return remote, options


def _open_turn_model(choice: str) -> SharedTurnModel | None:
    """Raises ConfigError; OSError if Smart Turn is missing."""
    try:
        return open_turn_model(choice)
    except EngineError as error:
        raise ConfigError(f"turn.model: {error}") from error


def _best(engines: Sequence[AutoEngine[Brought]]) -> Brought | None:
    """Returns the first that new calls may use."""
    return next((found for engine in engines if (found := engine.engine) is not None), None)


def public_name(engine: str) -> str:
    """Returns an engine's name without its address."""
    return "a speech server" if "://" in engine else engine
