"""`offhook worker`: processes with a speech engine."""

from argparse import Namespace
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from loguru import logger

from offhook.pipeline.engines.shared.asr_models import AsrModels
from offhook.pipeline.engines.shared.tts_models import TtsModels
from offhook.web.app.cli.commands.engine_options import asr_models, tts_models
from offhook.web.app.cli.terminal import Terminal
from offhook.web.http.loop_io import run

if TYPE_CHECKING:
    from offhook.pipeline.speech.recognizer import Progress
    from offhook.web.speech_api.sockets.engine_metrics import AsrMetrics, TtsMetrics


def worker(arguments: Namespace, terminal: Terminal) -> int:
    return (_worker_asr if arguments.kind == "asr" else _worker_tts)(arguments)


def _worker_asr(arguments: Namespace) -> int:
    from offhook.web.speech_api.sockets.engine_metrics import AsrMetrics
    from offhook.web.workers.engines.engines_io import (
        check_engine,
        open_recognizer,
        with_usual_model,
    )

    a = arguments
    check_engine("asr", a.engine)
    models = with_usual_model("asr", a.engine, asr_models(a))
    if a.device == "all":
        return _work_on_all_gpus(a, models)
    return _work(
        a, models.model, lambda progress: open_recognizer(a.engine, models, progress), AsrMetrics()
    )


def _worker_tts(arguments: Namespace) -> int:
    from offhook.web.speech_api.sockets.engine_metrics import TtsMetrics
    from offhook.web.workers.engines.engines_io import (
        at_hand,
        check_engine,
        open_synthesizer,
        with_usual_model,
    )

    a = arguments
    a.engine = at_hand(a.engine)
    check_engine("tts", a.engine)
    models = with_usual_model("tts", a.engine, tts_models(a))
    if a.device == "all":
        return _work_on_all_gpus(a, models)
    return _work(
        a, models.model, lambda progress: open_synthesizer(a.engine, models, progress), TtsMetrics()
    )


def _work_on_all_gpus(arguments: Namespace, models: AsrModels | TtsModels) -> int:
    from offhook.pipeline.speech.engines import names_on_gpu
    from offhook.web.http.listening_io import Address
    from offhook.web.http.logs import Log
    from offhook.web.http.logs_io import set_up
    from offhook.web.http.stop_io import Stop
    from offhook.web.workers.gpu_workers_io import serve_gpus
    from offhook.web.workers.worker_child_io import ChildSettings, Door
    from offhook.web.workers.worker_io import WorkerSettings

    a = arguments
    if a.engine not in names_on_gpu():
        raise ValueError(f"--device all is for {', '.join(names_on_gpu())}, not for {a.engine}")
    set_up(Log(level=a.log_level))
    address = Address.parse(a.listen)
    if address.path:
        raise ValueError("--device all needs ports: --listen HOST:PORT")
    if not address.local and not a.api_key:
        logger.warning("anyone who can reach {} can use these workers: see --api-key", a.listen)
    settings = ChildSettings(
        *(a.engine, models, a.max_streams, 0, a.log_level),
        drain_seconds=WorkerSettings.drain_seconds,
        door=Door(a.api_key, address.local, a.metrics, ()),
    )

    async def work() -> None:
        stop = Stop()
        stop.on_signals()
        await serve_gpus(settings, address, stop)

    run(work())
    return 0


def _work(
    arguments: Namespace,
    model: str,
    make: "Callable[[Progress], Any]",
    metrics: "AsrMetrics | TtsMetrics",
) -> int:
    from offhook.web.http.listening_io import Address, listener
    from offhook.web.http.logs import Log
    from offhook.web.http.logs_io import set_up
    from offhook.web.http.stop_io import Stop
    from offhook.web.workers.worker_io import Worker, WorkerSettings, run_to_end, serve

    set_up(Log(level=arguments.log_level))
    a = arguments
    address = Address.parse(a.listen)
    if not address.local and not a.api_key:
        logger.warning("anyone who can reach {} can use this worker: see --api-key", a.listen)

    async def work() -> None:
        stop = Stop()
        stop.on_signals()
        settings = WorkerSettings(
            a.engine,
            model,
            a.max_streams,
            a.idle_seconds,
            api_key=a.api_key,
            local=address.local,
            audio_cache=getattr(a, "audio_cache", ""),
            audio_cache_mb=getattr(a, "audio_cache_mb", TtsModels.audio_cache_mb),
            metrics=a.metrics,
        )
        await serve(Worker(settings, make, metrics), listener(address), stop)

    run_to_end(work())
    return 0
