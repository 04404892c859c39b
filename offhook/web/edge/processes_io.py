"""Runs several edge processes on one port (SO_REUSEPORT), each a complete edge.

The first process starts the others and restarts them after a crash. They read from a pipe: their
settings, then commands, one per line (a new configuration, or drain); its end makes them exit, so
none outlives the first. Calls are distributed in `siblings_io`.
"""

import asyncio
import base64
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from secrets import token_urlsafe
from typing import Any

from loguru import logger

from offhook.media.tasks_io import first_of
from offhook.pipeline.conversation.bot_io import load_bot
from offhook.processes.child_io import Child, end_with_input
from offhook.processes.restarts import Restarts
from offhook.web.config.config import Config, ConfigError
from offhook.web.edge import server_io
from offhook.web.edge.edge_io import Edge
from offhook.web.edge.hand_over_io import adopting
from offhook.web.edge.reload_io import Read, Reload, use
from offhook.web.edge.rooms import relays_io
from offhook.web.edge.siblings_io import NumberedEdge, Siblings, socket_path, stream_path
from offhook.web.http.listening_io import Runner
from offhook.web.http.logs_io import set_up
from offhook.web.http.loop_io import run as run_loop
from offhook.web.http.stop_io import Stop
from offhook.web.workers.engines.choice import AutoWorker
from offhook.web.workers.local_worker_io import auto_workers, local_workers

FIRST = 1
"""Number of the process that starts the others."""
RESTART_S = 1.0
"""Delay in s before a crashed process is restarted; it doubles with each early crash."""
RESTART_MAX_S = 30.0
"""Maximum of this delay in s; it stays there however often the process crashes."""
STEADY_S = 60.0
"""Uptime in s from which a crash is not early."""
END_S = 15.0
"""Time limit in s for a process to announce the end and close its calls and engines; then it is
killed."""
SETTINGS_BYTES = 1 << 20
RELOAD = b"reload"
"""The command that precedes a new configuration."""
COMMAND = (
    "from loguru import logger; logger.remove()\n"  # Pipecat logs a banner when it is imported
    "from offhook.web.edge.processes_io import main; main()"
)
"""Command line of another process."""


@dataclass(frozen=True)
class Settings:
    """Settings of a process."""

    number: int
    """Number of the process, from 1."""
    directory: Path
    """Private directory of the Unix sockets."""
    config: Config
    bot_file: Path | None
    secret_key: str = field(repr=False)
    """Key of client secrets where the configuration has none."""
    auto: Sequence[AutoWorker] = ()
    """Workers of the engines of `auto`, which all processes share."""


# --- one process ---


@asynccontextmanager
async def _open(settings: Settings) -> AsyncIterator[Edge]:
    """An edge that takes calls from the port and from its siblings. Raises EngineError, OSError."""
    bot = load_bot(settings.bot_file) if settings.bot_file is not None else None
    edge = NumberedEdge(settings.config, bot, settings.number, settings.secret_key, settings.auto)
    edge.records.open_store(settings.config, settings.number)
    await edge.start()
    async with shared(edge, settings.directory):
        yield edge


@asynccontextmanager
async def shared(edge: NumberedEdge, directory: Path) -> AsyncIterator[None]:
    """Routes requests from the port to the process that they concern; closes the edge at the end.
    Raises OSError."""
    siblings = Siblings(edge, directory)
    public, inner = server_io.application(edge), server_io.application(edge, "siblings")
    of_operator = server_io.application(edge, "admin")
    for app in (public, of_operator):
        app.middlewares.insert(0, siblings.to_phones)
        app.middlewares.append(siblings.share)
    relays_io.add_routes(inner.router)
    runners = [Runner(app) for app in (public, inner, of_operator)]
    try:
        for runner in runners[:2]:
            await runner.setup()
        await runners[1].listen_unix(socket_path(directory, edge.number))
        assert runners[1].server is not None
        async with adopting(stream_path(directory, edge.number), runners[1].server):
            host, port = edge.config.server.host, edge.config.server.port
            await runners[0].listen(host, port, reuse_port=True)
            if edge.number == FIRST:
                await server_io.listen_for_operator(edge.config.server, runners[2])
                async with server_io.listen_for_wyoming(edge):
                    yield
            else:
                yield
    finally:
        await edge.close()
        for runner in runners:
            await runner.cleanup()
        await siblings.close()


def _number_logs(settings: Settings) -> None:
    def prefix(record: Any) -> None:
        record["message"] = f"[{settings.number}] {record['message']}"

    as_json = settings.config.log.json_lines
    logger.configure(extra={"process": settings.number}, patcher=None if as_json else prefix)


async def _serve_child() -> None:
    """Runs a process started by the first one."""
    told = asyncio.StreamReader(limit=SETTINGS_BYTES)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(told), sys.stdin)
    settings: Settings = pickle.loads(base64.b64decode(await told.readline()))
    set_up(settings.config.log)
    _number_logs(settings)
    stop = Stop()
    for number in (signal.SIGTERM, signal.SIGINT):
        # A service manager may signal all processes, so a second signal means no more than the
        # first.
        loop.add_signal_handler(number, stop.drain.set)
    # the first process passes on what is needed
    loop.add_signal_handler(signal.SIGHUP, lambda: None)

    configs: asyncio.Queue[Config] = asyncio.Queue()

    async def obey() -> None:
        while line := await told.readline():
            order, _, given = line.partition(b" ")
            if order == RELOAD:
                configs.put_nowait(pickle.loads(base64.b64decode(given)))
            else:
                stop.drain.set()
        stop.drain.set()
        stop.end.set()

    async def reload(edge: Edge) -> None:
        while True:
            use(edge, await configs.get())

    obeying = asyncio.create_task(obey(), name="orders")
    async with _open(settings) as edge:
        reloading = asyncio.create_task(reload(edge), name="reload")
        await stop.until_drained(edge.drain)
        reloading.cancel()
    obeying.cancel()


def main() -> None:
    end_with_input(END_S)
    run_loop(_serve_child())


# --- all of them ---


class OtherProcesses:
    """The processes started by this one."""

    def __init__(self, config: Config) -> None:
        self.config = config
        """The configuration of processes started from now on."""
        self.running: set[asyncio.StreamWriter] = set()
        """Their inputs."""

    def reload(self, config: Config) -> None:
        """Sends them a new configuration."""
        self.config = config
        order = RELOAD + b" " + base64.b64encode(pickle.dumps(config)) + b"\n"
        for orders in self.running:
            orders.write(order)


async def serve_all(config: Config, bot_file: Path | None = None, read: Read | None = None) -> None:
    """Runs `server_io.serve` in as many processes as configured; this one is the first."""
    server_io.check(config)
    if not hasattr(socket, "SO_REUSEPORT"):
        raise ConfigError("server.processes: this system has no SO_REUSEPORT to share the port")
    try:
        async with server_io.kept_addresses(config) as port:
            server = config.server.model_copy(update={"port": port})
            await _serve_all(config, config.model_copy(update={"server": server}), bot_file, read)
    except ExceptionGroup as failed:  # of the group of processes, which tells it in one line
        raise failed.exceptions[0] from None


async def _serve_all(
    as_read: Config, config: Config, bot_file: Path | None, read: Read | None
) -> None:
    """Serves with the configuration that was read, and the port that `config` has for it."""
    stop = Stop()
    stop.on_signals()
    server = config.server
    with tempfile.TemporaryDirectory(prefix="offhook-") as directory:  # mode 0700
        settings = Settings(FIRST, Path(directory), config, bot_file, token_urlsafe())
        _number_logs(settings)
        async with (
            local_workers(config) as config,
            auto_workers(config) as auto,
            # outer, so that this process's calls end while the others stop
            asyncio.TaskGroup() as others,
            _open(settings := replace(settings, config=config, auto=auto)) as edge,
        ):
            hive = OtherProcesses(config)
            for number in range(2, server.processes + 1):
                keeping = _keep_running(replace(settings, number=number), stop, hive)
                others.create_task(keeping)
            if read is not None:
                stop.reload = Reload(edge, as_read, read, hive.reload)
            server_io.say_where(config, server.port)
            await stop.until_drained(edge.drain)


async def _keep_running(settings: Settings, stop: Stop, hive: OtherProcesses) -> None:
    """Runs another process, and restarts it when it exits unexpectedly."""
    loop, restarts = asyncio.get_running_loop(), Restarts(RESTART_S, STEADY_S, max_s=RESTART_MAX_S)
    while not stop.drain.is_set():
        try:
            child = await _run_once(replace(settings, config=hive.config), stop, hive)
            how = f"{child.how_ended}: its calls are lost"
        except OSError as error:
            how = f"does not start: {error}"
        if stop.drain.is_set():
            return
        pause = restarts.next_s(loop.time())
        logger.error("process {} {}; again in {:.1f} s", settings.number, how, pause)
        await first_of(asyncio.sleep(pause), stop.drain.wait())


async def _run_once(settings: Settings, stop: Stop, hive: OtherProcesses) -> Child:
    """Returns the process, which has ended. Raises OSError."""
    child = Child((sys.executable, "-c", COMMAND), stdin=subprocess.PIPE, ends_in_order=True)
    line = logger.bind(started=settings.number, pid=child.pid)
    line.info("process {} started (pid {})", settings.number, child.pid)
    orders = await child.writer()
    orders.write(base64.b64encode(pickle.dumps(settings)) + b"\n")
    hive.running.add(orders)
    try:
        await first_of(child.until_ended(), stop.drain.wait())
        if child.poll() is None:  # let it drain
            orders.write(b"drain\n")
            limit_s = settings.config.server.drain_seconds + END_S
            await first_of(child.ends_within(limit_s), stop.end.wait())
    finally:
        hive.running.discard(orders)
        orders.close()
        await child.end(END_S)
    return child
