"""The child process of `local_worker_io`: a worker on an inherited socket.

It reads its settings, one line of JSON, from standard input and exits when that closes, so it never
outlives the server.
"""

import asyncio
import json
import os
import socket
import sys
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from loguru import logger

from offhook.pipeline.engines.shared.asr_models import AsrModels
from offhook.pipeline.engines.shared.tts_models import NO_CACHE, TtsModels
from offhook.pipeline.speech.errors import EngineError
from offhook.processes.child_io import end_with_input, inherited_sockets
from offhook.web.http.listening_io import Runner
from offhook.web.http.logs import Log
from offhook.web.http.logs_io import set_up
from offhook.web.http.stop_io import Stop
from offhook.web.speech_api.sockets.engine_metrics import AsrMetrics, TtsMetrics
from offhook.web.workers.engines.engines_io import at_hand, open_recognizer, open_synthesizer
from offhook.web.workers.worker_io import Worker, WorkerSettings, run_to_end, serve

FAILED = 1
"""Exit status if the engine does not load; the last line of standard error says why."""
UNREACHABLE = 3
"""Exit status if its model is not on this machine and nothing can be downloaded now; likewise."""

HEARTBEAT = b'{"alive": true}\n'
HEARTBEAT_S = 1.0
"""Interval in s at which the event loop of a loaded worker reports on standard error that it is
running; it may block while a model loads."""


@dataclass(frozen=True)
class Door:
    """A worker's port; see `WorkerSettings`."""

    api_key: str = field(repr=False)
    local: bool
    metrics: Literal["open", "key"]
    ports: tuple[int, ...]
    """Ports of all workers of the machine."""


@dataclass(frozen=True)
class ChildSettings:
    engine: str
    models: AsrModels | TtsModels
    max_streams: int
    idle_seconds: float
    log_level: str
    python: str = ""
    """Python of another environment that runs the child; used by the server."""
    gpu: str = ""
    """The GPU of the child, as CUDA_VISIBLE_DEVICES names it; empty: those of the server."""
    drain_seconds: float = 0
    door: Door | None = None
    """Who may use a socket that is not the server's own; None: the server alone."""

    @property
    def kind(self) -> Literal["asr", "tts"]:
        return "asr" if isinstance(self.models, AsrModels) else "tts"

    def to_json(self) -> bytes:
        return json.dumps({"kind": self.kind, **asdict(self)}).encode()

    @classmethod
    def from_json(cls, line: bytes) -> "ChildSettings":
        table = json.loads(line)
        models = AsrModels if table.pop("kind") == "asr" else TtsModels
        door = Door(**table["door"]) if table["door"] else None
        return cls(**{**table, "models": models(**table["models"]), "door": door})


def main() -> None:
    os.dup2(2, 1)  # output of libraries goes to the log
    settings = ChildSettings.from_json(sys.stdin.buffer.readline())
    set_up(Log.model_validate({"level": settings.log_level, "json_lines": True}))
    end_with_input()
    try:
        run_to_end(_serve(settings))
    except EngineError as error:
        if error.fault != "unreachable":
            logger.error("{}", error)
            sys.exit(FAILED)
        # The server decides whether that is worth a line.
        sys.stderr.write(json.dumps({"level": "DEBUG", "message": str(error)}) + "\n")
        sys.exit(UNREACHABLE)
    except (RuntimeError, ValueError, OSError) as error:
        logger.error("{}", error)
        sys.exit(FAILED)


def _worker(settings: ChildSettings) -> Worker[Any]:
    engine = settings.engine
    if settings.kind == "tts":
        engine = at_hand(engine)
    known = WorkerSettings(
        engine,
        settings.models.model,
        settings.max_streams,
        settings.idle_seconds,
        settings.drain_seconds,
        **({} if settings.door is None else asdict(settings.door)),
        audio_cache=NO_CACHE,  # the server has one
    )
    models: Any = settings.models
    if settings.kind == "asr":
        return Worker(known, lambda told: open_recognizer(engine, models, told), AsrMetrics())
    return Worker(known, lambda told: open_synthesizer(engine, models, told), TtsMetrics())


async def _serve(settings: ChildSettings) -> None:
    stop = Stop()
    stop.on_signals()
    worker = _worker(settings)
    (listening,) = inherited_sockets()
    accepting: list[asyncio.Server] = []  # uvloop closes a server without references

    async def listen(runner: Runner) -> str:
        assert runner.server is not None
        loop = asyncio.get_running_loop()
        if listening.family != socket.AF_UNIX:
            accepting.append(await loop.create_server(runner.server, sock=listening))
            host, port = listening.getsockname()[:2]
            return f"{host}:{port}"
        # From 3.13 on closing removes the socket file, which belongs to the server.
        kept: dict[str, Any] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}
        accepting.append(await loop.create_unix_server(runner.server, sock=listening, **kept))
        return "the server's socket"

    beating = asyncio.create_task(_beat(worker), name="heartbeat")
    try:
        await serve(worker, listen, stop)
    finally:
        beating.cancel()


async def _beat(worker: Worker[Any]) -> None:
    await asyncio.wait((worker.loading,))
    if worker.loading.exception() is not None:
        return  # it has not loaded, so its next start is later
    while True:
        os.write(sys.stderr.fileno(), HEARTBEAT)
        await asyncio.sleep(HEARTBEAT_S)


if __name__ == "__main__":
    main()
