"""The child process of `local_worker_io`: a worker on a socket that it inherits.

It reads its settings, a line of JSON, from standard input, whose end is its own too: nothing is
left behind when the server dies, however it dies.
"""

import asyncio
import json
import os
import socket
import sys
import threading
from dataclasses import dataclass

from aiohttp import web
from loguru import logger

from offhook.pipeline.engine.asr_models import AsrModels
from offhook.web.engines_io import AsrEngine, open_recognizer
from offhook.web.logs import Log, set_up
from offhook.web.stop_io import Stop
from offhook.web.worker_io import Worker, WorkerSettings, run_to_end, serve

FAILED = 1
"""The exit status when the engine does not load; the last line of standard error says why."""


@dataclass(frozen=True)
class ChildSettings:
    engine: AsrEngine
    models: AsrModels
    max_streams: int
    idle_seconds: float
    log_level: str
    socket_fd: int = -1
    """Inherited; the server fills it in."""

    @classmethod
    def from_json(cls, line: bytes) -> "ChildSettings":
        table = json.loads(line)
        return cls(**{**table, "models": AsrModels(**table["models"])})


def main() -> None:
    os.dup2(2, 1)  # what a library prints is for the log
    settings = ChildSettings.from_json(sys.stdin.buffer.readline())
    set_up(Log.model_validate({"level": settings.log_level, "json_lines": True}))
    # A thread, because the loop may stand still while a model loads.
    threading.Thread(target=_end_with_server, name="end with server", daemon=True).start()
    try:
        run_to_end(_serve(settings))
    except (RuntimeError, ValueError, OSError) as error:
        logger.error("{}", error)
        sys.exit(FAILED)


def _end_with_server() -> None:
    while os.read(0, 1):
        pass
    os._exit(0)


async def _serve(settings: ChildSettings) -> None:
    stop = Stop()
    stop.on_signals()
    worker = Worker(
        WorkerSettings(
            settings.engine,
            settings.models.model,
            settings.max_streams,
            settings.idle_seconds,
            drain_seconds=0,
        ),
        lambda progress: open_recognizer(settings.engine, settings.models, progress),
    )
    listening = socket.socket(fileno=settings.socket_fd)

    async def listen(runner: web.AppRunner) -> str:
        assert runner.server is not None
        loop = asyncio.get_running_loop()
        if sys.version_info >= (3, 13):  # which removes the socket's file; but it is the server's
            await loop.create_unix_server(runner.server, sock=listening, cleanup_socket=False)
        else:
            await loop.create_unix_server(runner.server, sock=listening)
        return "the server's socket"

    await serve(worker, listen, stop)


if __name__ == "__main__":
    main()
